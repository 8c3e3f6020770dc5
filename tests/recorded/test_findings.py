"""Recorded results are read as they were written, an entry on each line, and tests that pages run are left out."""

from types import SimpleNamespace

import pytest

import on_pages
from backpass.recorded import findings
from backpass.recorded.findings import Findings


def test_findings_are_read_as_they_were_written(tmp_path):
    found = Findings({"numpy": "2.4", "torch": "2.13"}, {"softmax": ["✓ exact", 3], "linear": {"a": None}})
    findings.save("checks", found, tmp_path)
    assert findings.load("checks", tmp_path) == found
    lines = (tmp_path / "checks.json").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "✓" in line] == ['    "softmax": ["✓ exact", 3]']
    assert found.provenance == "numpy 2.4, torch 2.13"


def test_an_installed_package_has_its_copy_elsewhere():
    assert findings.FOLDER.parts[-2:] == ("assets", "records")


@pytest.mark.parametrize(
    ("keyword", "args", "prove", "left"),
    [
        ("", ["tests"], "", ["other"]),
        ("F43", ["tests"], "", ["other", "on a page"]),
        ("", ["tests/claims/test_claims.py::test_a"], "", ["other", "on a page"]),
        ("", ["tests"], "all", ["other", "on a page"]),
    ],
)
def test_what_pages_run_is_left_out_unless_it_is_chosen(monkeypatch, keyword, args, prove, left):
    def item(name, marker):
        return SimpleNamespace(name=name, get_closest_marker=lambda asked: asked == marker)

    monkeypatch.setenv("BACKPASS_PROVE", prove)
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config = SimpleNamespace(getoption=lambda name: keyword, args=args, hook=hook)
    items = [item("other", "rotates"), item("on a page", "on_pages")]
    on_pages.Plugin().pytest_collection_modifyitems(config, items)
    assert [each.name for each in items] == left
