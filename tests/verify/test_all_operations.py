"""The table of all operations shows the results, a failure above all."""

import numpy as np
import pytest

import recorded
from backpass import ops
from backpass.ops import softmax
from backpass.recorded import findings
from backpass.verify import all_operations, cases, check, check_all
from backpass.verify.all_operations import NO_ROW, Overview, Recorded
from backpass.verify.comparison import DECLARED_ZERO

ROUNDING = 1e-15  # an error below this depends on the order in which a machine adds


@pytest.mark.parametrize("stem", ops.STEMS)
def test_every_operation_passes(stem):
    found = check_all(stem)
    headings, *lines = found.table()
    assert found.passed
    assert [line[0] for line in lines] == [stem]
    assert {"finite differences", "complex step", "symbolic"} <= set(headings)
    shown = {method: cell for method, cell in zip(headings, lines[0], strict=True) if cell != NO_ROW}
    del shown["operation"]
    record = recorded.entry("checks", stem, shown)
    different = {method for method in shown | record if not same(shown.get(method), record.get(method))}
    assert not different, f"found {shown}, recorded {record}; `make records` writes the results"


def same(found, record):
    """Whether two cells show the same verdict and, because errors differ between machines, errors of the same size."""
    if not all(cell and cell.startswith("✓ ") for cell in (found, record)):
        return found == record
    one, other = (max(ROUNDING, float(cell[2:].replace("exact", "0"))) for cell in (found, record))
    return 0.1 < one / other < 10


def test_a_cell_is_compared_with_its_record_by_verdict_and_size():
    assert same("✓ 2.1e-11", "✓ 9.0e-12") and same("✓ exact", "✓ 3.1e-17") and same("–", "–")
    for wrong in ("✓ 2.1e-09", "✗ FAILED", "! raised", "○ vacuous", "✓ exact", None):
        assert not same(wrong, "✓ 2.1e-11")


def test_the_page_shows_the_record_of_every_operation():
    entries = findings.load("checks").entries
    assert sorted(entries) == sorted(ops.STEMS)
    headings, *lines = Recorded().table()
    assert [line[0] for line in lines] == list(ops.STEMS)
    for stem, *cells in lines:
        shown = dict(zip(headings[1:], cells, strict=True))
        assert {method: cell for method, cell in shown.items() if cell != NO_ROW} == entries[stem]
    assert "Recorded with python 3" in Recorded()._repr_html_()


def test_every_operation_has_its_line(monkeypatch):
    monkeypatch.setattr(all_operations, "_checked", lambda *which: ())
    _, *lines = check_all().table()
    assert [line[0] for line in lines] == list(ops.STEMS)


@pytest.fixture
def wrong_softmax(monkeypatch):
    right = softmax.backward
    monkeypatch.setattr(softmax, "backward", lambda dy, saved: 2 * right(dy, saved))


def test_a_wrong_backward_is_seen_by_every_method_of_gradients(wrong_softmax):
    found = check_all("softmax", "scale")
    headings, of_softmax, of_scale = found.table()
    assert not found.passed
    for method in ("finite differences", "complex step", "symbolic", "torch autograd", "PyTorch's operator"):
        assert of_softmax[headings.index(method)] == "✗ FAILED"
        assert of_scale[headings.index(method)].startswith("✓")


def test_symbols_run_once_for_each_structure_that_they_can_tell_apart(monkeypatch):
    right = softmax.backward
    monkeypatch.setattr(softmax, "backward", lambda dy, saved: right(dy, saved) * (2 if dy.ndim == 1 else 1))
    reports = check_all("softmax").reports["softmax"]
    verdicts = [row.verdict for report in reports for row in report.of("symbolic")]
    assert verdicts == ["passed", "FAILED", *["not run"] * (len(reports) - 2)]


def test_inputs_that_repeat_can_be_left_out():
    """Softmax has no option: one set of inputs is left of each rank that its symbols tell apart, and one of float16."""
    every = check_all("softmax").reports["softmax"]
    once = check_all("softmax", repeats=False).reports["softmax"]
    assert set(map(repr, once)) < set(map(repr, every))
    inputs = [report.inputs for report in once]
    assert sum("float16" in each for each in inputs) == 1 and inputs[0] == every[0].inputs


def test_the_page_shows_the_same_words():
    found = check_all("scale")
    page = found._repr_html_()
    assert '<a href="./chapters/foundations/chain_rule.html"><code>scale</code></a></th>' in page
    assert all(cell in page for cell in found.table()[1][1:])


def test_the_largest_error_is_shown():
    found = check_all("softmax")
    headings, line = found.table()
    errors = [row.error for row in found.rows("softmax", "complex_step")]
    assert line[headings.index("complex step")] == f"✓ {np.max(errors):.1e}"


def test_a_declared_zero_has_no_relative_error_to_show():
    """In half precision its reference is rounding, and so is the gradient."""
    drawn = cases("multi_head_attention", np.random.default_rng(0))
    reports = (
        check("multi_head_attention", *inputs, methods=["precision"], raises=False, options=options)
        for inputs, options in drawn
    )
    found = Overview({"multi_head_attention": tuple(reports)})
    rounding = [row for row in found.rows("multi_head_attention", "precision") if row.note == DECLARED_ZERO]
    assert max(row.error for row in rounding) > 0.5
    headings, line = found.table()
    shown = float(line[headings.index("low precision")].removeprefix("✓ "))
    others = [row.error for row in found.rows("multi_head_attention", "precision") if row not in rounding]
    assert shown == pytest.approx(max(others), rel=0.05)
