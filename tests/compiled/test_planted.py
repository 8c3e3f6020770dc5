"""Faults planted in kernels are found at the inputs of an ordinary test, and their right twins are not accused."""

import pytest
import torch

from backpass.kernels import compiled
from backpass.verify import check
from backpass.verify.vary import executed

from . import planted, planted_more
from .planted_more import Planted
from .test_row import verifying

# What the first finding of each fault says.
FOUND = {
    (
        "norm",
        "rows of the last program",
    ): "9 multiprocessors, length 37 in place of 8: compiled kernel, float32",
    ("norm", "padding counted"): "9 multiprocessors, length 37 in place of 32",
    ("norm", "rows left over"): "9 multiprocessors, length 37 in place of 8",
    ("norm", "rows beyond the last"): "OutOfBounds: planted.py",
    ("norm", "stride of w"): "y differs when w is not contiguous; dx differs when w is not contiguous",
    ("norm", "stale rstd"): "other values: compiled kernel, float32",
    ("norm", "atomic sum of garbage"): "updates uninitialised bytes of dw_ptr",
    ("softmax", "wrong grid axis"): "Undefined: planted.py",
    ("softmax", "sum not rescaled"): "length 37 in place of 32: compiled kernel, float32",
    ("softmax", "last block dropped"): "length 37 in place of 32",
    ("product", "no mask of k"): "OutOfBounds: planted.py",
    ("product", "strides of contiguous operands"): "",
    ("shift", "in place"): "Race: planted.py",
    ("shift", "one program"): "length 131 in place of 60",
}


def checked(family, fault="", **settings):
    build, inputs, operator = planted.FAMILIES[family]
    inputs = [x.float() for x in inputs]
    return check(build(fault), *inputs, operator=operator, compiled=True, raises=False, **settings)


@pytest.mark.rotates(share=0.5, checks=verifying)
@pytest.mark.parametrize("family", planted.FAMILIES)
def test_a_right_kernel_passes(family):
    report = checked(family)
    assert report.passed, report
    assert all(row.verdict == "passed" for row in report.rows)


@pytest.mark.rotates(share=0.25, checks=verifying)
@pytest.mark.parametrize(("family", "fault"), FOUND)
def test_a_planted_fault_is_found(family, fault):
    found = [what for _, what in checked(family, fault, explain=False).findings()]
    assert found and FOUND[family, fault] in found[0]


def test_a_sum_in_half_precision_is_found_with_more_rows(monkeypatch):
    monkeypatch.setattr(executed, "BEYOND", (523,))
    build, (x, w), operator = planted.FAMILIES["norm"]
    inputs = x[:, :5].bfloat16(), w[:5].bfloat16()
    for fault in ("", "sum in half precision"):
        report = check(
            build(fault), *inputs, operator=operator, methods=["compiled"], vary=True, raises=False
        )
        assert {row.quantity for row in report.failed} == ({"dw"} if fault else set())


def test_a_sum_in_any_order_is_accepted_if_that_is_declared():
    (found,) = (what for _, what in checked("norm", "atomic sum", vary=False).findings())
    assert found.startswith("not deterministic: planted.py") and "tl.atomic_add" in found
    assert found.endswith("; if you accept this, pass atomic_sums=True (--atomic-sums)")
    report = checked("norm", "atomic sum", atomic_sums=True)
    assert report.passed and "accepted, as declared: planted.py" in report.rows[0].note


def test_a_sum_in_any_order_does_not_hide_a_fault_at_other_lengths():
    _, inputs, operator = planted.FAMILIES["norm"]
    padded = planted.Norm.of("padding counted")
    both = planted.Norm.of("atomic sum", forward=padded.forward)
    settings = {"operator": operator, "compiled": True, "raises": False, "explain": False}
    report = check(both, *(x.float() for x in inputs), **settings)
    of_order, of_length, *_ = (what for _, what in report.findings())
    assert of_order.startswith("not deterministic: planted.py")
    assert FOUND["norm", "padding counted"] in of_length
    assert "accepted" not in str(report)


def checked_more(name, fault="", **settings):
    family = planted_more.FAMILIES[name]
    inputs = [x.float() if x.is_floating_point() else x for x in family.inputs]
    planted = Planted(family, fault)
    return check(planted, *inputs, operator=family.operator, compiled=True, raises=False, **settings)


@pytest.mark.rotates(share=0.3, checks=verifying)
@pytest.mark.parametrize("family", planted_more.FAMILIES)
def test_a_right_kernel_of_another_kind_passes(family):
    report = checked_more(family)
    assert report.passed, report
    assert not report.failed


@pytest.mark.parametrize(("family", "fault"), planted_more.FAULTS)
def test_a_planted_fault_of_another_kind_is_found(family, fault):
    says = planted_more.FAMILIES[family].faults[fault]
    methods = ["contract" if says == "was modified in place" else "compiled"]
    report = checked_more(family, fault, methods=methods, vary=False)
    found = " ".join(what for _, what in report.findings())
    assert found and says in found
    if says == "never written":
        assert found.startswith("NaN at") and found.count(says) == 2


@pytest.mark.parametrize("restored", [True, False])
def test_an_autotuned_kernel_that_works_in_place_shows_every_trial(restored):
    with compiled.executing(configurations=None) as verdict:
        y = planted_more.configured(restored)(torch.ones(40))
    assert torch.equal(y, torch.full((40,), 2.0 if restored else 4.0))
    assert verdict.passed == restored


@pytest.mark.parametrize("restored", [True, False])
def test_one_trial_shows_what_an_autotuned_kernel_leaves_behind(restored):
    increased = planted_more.configured(restored)
    with compiled.executing() as verdict:
        y = increased(torch.ones(40))
        again = increased(torch.ones(40))  # by the choice of the first call
    assert torch.equal(y, torch.full((40,), 2.0 if restored else 3.0)) and torch.equal(
        again, torch.full((40,), 2.0)
    )
    says = "the trials of the autotuned increased_kernel change what its launch computes in x_ptr: list x_ptr in reset_to_zero"
    assert verdict.passed == restored and (says in str(verdict)) != restored


@pytest.mark.parametrize("reset", [True, False])
def test_a_sum_that_is_not_reset_between_trials_is_named(reset):
    (x,) = (torch.randn(9, 20, generator=torch.Generator().manual_seed(0)),)
    settings = {"operator": lambda x: x.sum(0), "atomic_sums": True, "compiled": True, "raises": False}
    report = check(planted_more.Total(reset), x, **settings)
    assert report.passed == reset
    if not reset:
        (finding,) = (what for _, what in report.findings())
        assert "got = 2 ×" in finding and "list y_ptr in reset_to_zero" in finding
