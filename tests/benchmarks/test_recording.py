"""A record is written after each of its parts, and the next run continues an unfinished record."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from backpass.recorded import records

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import harness
from harness import Recording, Settings

COLUMNS = [("operation", "operation", ""), ("milliseconds", "time", "ms")]


@pytest.fixture
def chosen(tmp_path, monkeypatch) -> Settings:
    monkeypatch.setenv("BACKPASS_COMMIT", "aaaaaaaaaaaa")
    return Settings("cpu", quick=True, folder=tmp_path)


def begin(chosen, **more) -> Recording:
    return Recording(chosen, "speed", "How fast?", COLUMNS, ["A note."], **more)


def row(operation, milliseconds=1.0):
    return {"operation": operation, "milliseconds": milliseconds}


def test_each_part_is_written_as_it_is_measured(chosen, tmp_path):
    recording = begin(chosen)
    assert not [*tmp_path.iterdir()]
    recording.add("softmax", [row("softmax")], ["Said of it."], {"copy": 2.0})
    left = records.load("speed", folder=tmp_path)
    assert (left.rows, left.facts, left.finished) == ([row("softmax")], {"copy": 2.0}, False)
    assert left.notes[-2:] == ["A note.", "Said of it."]
    assert left.provenance.endswith(", unfinished")


def test_an_unfinished_record_is_continued_and_a_finished_one_begun_anew(chosen, tmp_path):
    begin(chosen, order=lambda row: row["operation"]).add("softmax", [row("softmax")], ["Said of it."])
    second = begin(chosen, order=lambda row: row["operation"])
    assert not second.lacks("softmax") and second.lacks("relu")
    second.add("relu", [row("relu")], ["Said of it."])
    assert second.finish() == 0
    whole = records.load("speed", folder=tmp_path)
    assert whole.rows == [row("relu"), row("softmax")]
    assert whole.finished and not whole.parts and whole.notes.count("Said of it.") == 1
    assert "unfinished" not in whole.provenance
    assert begin(chosen).lacks("softmax")


def test_what_failed_is_left_to_the_next_run(chosen, tmp_path):
    recording = begin(chosen)
    recording.add("softmax", [row("softmax")])
    assert recording.finish(missing=["relu"]) == 1
    assert not records.load("speed", folder=tmp_path).finished
    assert begin(chosen).lacks("relu") and not begin(chosen).lacks("softmax")


def test_a_record_of_another_commit_is_continued_only_on_demand(chosen, tmp_path, monkeypatch):
    begin(chosen).add("softmax", [row("softmax")])
    monkeypatch.setenv("BACKPASS_COMMIT", "bbbbbbbbbbbb-dirty")
    assert begin(chosen).lacks("softmax")
    recording = begin(chosen._replace(any_commit=True))
    assert not recording.lacks("softmax")
    recording.add("relu", [row("relu")])
    recording.finish()
    whole = records.load("speed", folder=tmp_path)
    assert whole.parts == {"softmax": "aaaaaaaaaaaa", "relu": "bbbbbbbbbbbb"}
    assert "commit bbbbbbbbbbbb with changes (softmax: commit aaaaaaaaaaaa)" in whole.provenance


@pytest.mark.parametrize("differs", ["versions", "columns"])
def test_a_record_of_other_versions_or_columns_is_not_continued(differs, chosen, monkeypatch):
    begin(chosen).add("softmax", [row("softmax")])
    if differs == "versions":
        monkeypatch.setattr(harness, "_versions", lambda: {"torch": "0"})
    else:
        monkeypatch.setattr(sys.modules[__name__], "COLUMNS", COLUMNS[:1])
    assert begin(chosen).lacks("softmax")


def test_without_a_folder_nothing_is_written(chosen, tmp_path):
    recording = begin(chosen._replace(folder=None))
    recording.add("softmax", [row("softmax")])
    assert recording.finish() == 0
    assert not [*tmp_path.iterdir()]


def test_a_rehearsal_runs_each_call_once(chosen):
    ran = []
    calls = {name: lambda name=name: ran.append(name) for name in ("ours", "theirs")}
    assert harness.medians(calls, chosen._replace(rehearsal=True)).keys() == calls.keys()
    assert ran == ["ours", "theirs"]
