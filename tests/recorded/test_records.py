"""Records are written, read and shown as they were measured."""

import dataclasses

import pytest

from backpass.recorded import records
from backpass.recorded.records import Record


@pytest.fixture
def record() -> Record:
    return Record(
        name="softmax",
        question="How fast is <softmax>?",
        device="Quick & Co. 9000",
        threads=2,
        versions={"python": "3.11.7", "torch": "2.13.0"},
        date="2026-01-31",
        commit="0123456789ab",
        dirty=True,
        columns=[["step", "step", ""], ["n", "length", ""], ["milliseconds", "time", "ms"]],
        rows=[
            {"step": "forward", "n": 1024, "milliseconds": 0.0001234},
            {"step": "backward", "n": 16384, "milliseconds": 1234.56},
            {"step": "both", "n": 7, "milliseconds": None},
        ],
        facts={"copy_gigabytes_per_second": 12.5},
        notes=["Measured twice."],
    )


def test_what_is_saved_is_what_is_loaded(record, tmp_path):
    path = records.save(record, tmp_path)
    assert path.name == "softmax-quick-co-9000.json"
    assert records.load("softmax", folder=tmp_path) == record
    assert records.devices("softmax", folder=tmp_path) == ["Quick & Co. 9000"]


def test_each_row_stands_on_its_own_line_of_the_file(record, tmp_path):
    lines = records.save(record, tmp_path).read_text().splitlines()
    assert sum('"milliseconds": ' in line for line in lines) == len(record.rows)


def test_the_latest_is_loaded_unless_a_device_is_named(record, tmp_path):
    later = dataclasses.replace(record, device="Other", date="2026-02-01")
    for each in (later, record):
        records.save(each, tmp_path)
    assert records.load("softmax", folder=tmp_path) == later
    assert records.load("softmax", device=record.device, folder=tmp_path) == record


def test_a_record_that_is_missing_or_broken_is_rejected(record, tmp_path):
    with pytest.raises(LookupError, match=r"no record of 'softmax' .*; there are: none"):
        records.load("softmax", folder=tmp_path)
    records.save(record, tmp_path)
    with pytest.raises(
        LookupError, match=r"no record of 'sofmax' .*; there are: softmax on Quick & Co\. 9000"
    ):
        records.load("sofmax", folder=tmp_path)
    (tmp_path / "broken.json").write_text('{"name": "broken"}')
    with pytest.raises(ValueError, match=r"broken\.json is not a record: .*missing"):
        records.load("softmax", folder=tmp_path)


def test_the_text_says_what_where_and_when(record):
    lines = repr(record).splitlines()
    assert lines[0] == "How fast is <softmax>?"
    assert lines[1].split() == ["step", "length", "time", "(ms)"]
    assert lines[2].split() == ["forward", "1,024", "1.2e-04"]
    assert lines[3].split() == ["backward", "16,384", "1,230"]
    assert lines[4].split() == ["both", "7", "–"]
    assert lines[5] == (
        "Recorded on Quick & Co. 9000, 2 threads, 2026-01-31, commit 0123456789ab with changes, "
        "python 3.11.7, torch 2.13.0."
    )
    assert lines[6] == "Measured twice."


def test_the_table_is_escaped_and_has_headers(record):
    shown = record._repr_html_()
    assert "<caption>How fast is &lt;softmax&gt;?</caption>" in shown
    assert '<th scope="col">time (ms)</th>' in shown
    assert '<th scope="row">backward</th><td>16,384</td><td>1,230</td>' in shown
    assert "Quick &amp; Co. 9000" in shown


def test_rows_are_found_by_their_entries(record):
    assert record.where(step="forward", n=1024) == [record.rows[0]]
    assert record.where(step="sideways") == []


def test_a_part_keeps_the_provenance_and_drops_what_all_its_rows_share(record):
    part = record.only(step="forward")
    assert part.rows == [record.rows[0]]
    assert [key for key, *_ in part.columns] == ["n", "milliseconds"]
    assert part.provenance == record.provenance and part.notes == record.notes


def test_one_thread_is_one(record):
    assert ", 1 thread, " in dataclasses.replace(record, threads=1).provenance


@pytest.mark.parametrize("path", sorted(records.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_records_kept_are_readable(path):
    record = records.read(path)
    assert path.name.startswith(record.name)
    assert record.rows
