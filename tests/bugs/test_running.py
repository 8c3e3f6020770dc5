"""A record that is wrong is found, and a corrected twin that is accused counts against the tool."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from backpass_ledger.bugs import Bug, every, normal, require, twins
from backpass_ledger.bugs.running import (
    LARGEST,
    accepted,
    checked,
    diagnosis,
    elements,
    faults,
    gradcheck,
    levels,
    run,
    seen,
    verdicts,
)

BUGS = {bug.name: bug for bug in every()}


def square(*, wrong, **facts):
    """A bug of y = x², whose wrong backward is given."""

    def make():
        return twins(lambda x: (x * x, x), lambda dy, x: 2 * dy * x, wrong)

    record = {"name": "square", "thread": "a/b#1", "wrong": "Wrong.", "right": "dx = 2x·dy", "kind": "norms"}
    return Bug(**record, twins=make, inputs=normal((3, 5)), **facts)


def found_wrong(bug):
    return faults(bug, run(bug))


def without_factor(dy, x):
    return dy * x


def wrong_when_large(dy, x):
    return 2 * dy * np.where(np.abs(x) > 9, 1, x)


def test_a_right_record_has_no_faults():
    assert not found_wrong(square(wrong=without_factor))


@pytest.mark.parametrize(
    "record", [{"gradcheck": "never"}, {"gradcheck": "telling"}, {"seen": "varied"}, {"missed": "a reason"}]
)
def test_a_record_that_says_too_little_is_a_fault(record):
    (fault,) = found_wrong(square(wrong=without_factor, **record))
    assert "found 'usual'" in fault


def test_a_record_that_says_too_much_is_a_fault():
    """The twins are equal, so nothing can be caught."""
    found = found_wrong(square(wrong=lambda dy, x: 2 * dy * x))
    assert len(found) == 2
    assert "found ''" in found[0] and "found 'never'" in found[1]


@pytest.mark.parametrize("name", ["mean_of_strided_dy", "frozen_weight", "elu_of_large_inputs"])
def test_a_bug_recorded_as_caught_by_gradcheck_that_is_not_is_a_fault(name):
    (fault,) = found_wrong(replace(BUGS[name], gradcheck="usual"))
    assert "gradcheck: the record says 'usual'" in fault


@pytest.mark.parametrize("name", ["selu", "hardsigmoid"])
def test_a_bug_recorded_as_accepted_by_gradcheck_that_is_not_is_a_fault(name):
    (fault,) = found_wrong(replace(BUGS[name], gradcheck="never"))
    assert "gradcheck: the record says 'never'" in fault


def test_a_report_without_what_the_record_says_is_a_fault():
    assert not found_wrong(square(wrong=without_factor, says="got = ½"))
    (fault,) = found_wrong(square(wrong=without_factor, says="got = 2"))
    assert "says: the report does not contain 'got = 2'" in fault


def test_a_bug_is_not_caught_where_the_corrected_twin_is_accused():
    bug = square(wrong=without_factor)
    swapped = replace(bug, twins=lambda: bug.twins()[::-1])
    assert seen(swapped) == "" and gradcheck(swapped) == "never"
    both = replace(bug, twins=lambda: (bug.twins()[1], bug.twins()[1]))
    assert seen(both) == "" and gradcheck(both) == "never"
    assert verdicts(both) == {"usual": (False, False)}


def test_the_first_inputs_that_show_a_bug_count():
    bug = square(wrong=wrong_when_large, seen="varied", gradcheck="never")
    assert levels(bug) == ("usual", "varied")
    assert not found_wrong(bug)
    told = replace(bug, telling=lambda rng: (np.array([0.5, 20.0]),), telling_inputs="large x")
    assert seen(told) == "varied" and gradcheck(told) == "telling"


def test_telling_inputs_have_to_be_there():
    with pytest.raises(ValueError, match="square has no telling inputs"):
        checked(square(wrong=without_factor), object(), "telling")


def test_options_reach_the_twins():
    bug = BUGS["elu_of_negative_alpha"]
    assert verdicts(bug) == {"usual": (True, True), "telling": (True, False)}
    assert gradcheck(replace(bug, telling_keywords={})) == "never"
    assert gradcheck(replace(bug, telling_keywords={"options": {"alpha": -2.0}})) == "telling"


def test_gradcheck_compares_in_float64_whatever_the_inputs_are():
    seen_dtypes = set()

    def forward(x):
        seen_dtypes.add(x.dtype)
        return x * x, x

    bug = square(wrong=without_factor)
    op = twins(forward, lambda dy, x: 2 * dy * x, without_factor)[0]
    low = replace(bug, inputs=lambda rng: (torch.tensor(rng.standard_normal(4), dtype=torch.bfloat16),))
    assert accepted(low, op, "usual")
    assert seen_dtypes == {torch.float64}


def test_gradcheck_keeps_the_strides_of_the_inputs():
    strides = set()

    def forward(x):
        require(x.ndim == 2, "a matrix")
        strides.add(x.strides)
        return x * x, x

    op = twins(forward, lambda dy, x: 2 * dy * x, without_factor)[0]
    bug = replace(square(wrong=without_factor), inputs=lambda rng: (rng.standard_normal((5, 3)).T,))
    assert accepted(bug, op, "usual")
    assert (8, 24) in strides


def test_constants_and_integers_have_no_gradient():
    for name in ("batch_norm_in_evaluation", "divergence", "gather"):
        assert verdicts(BUGS[name]) == {"usual": (True, False)}


def test_an_exception_is_a_rejection():
    def raises(dy, x):
        raise IndexError("out of range")

    assert gradcheck(square(wrong=raises)) == "usual"


def test_the_diagnosis_is_that_of_the_first_method_that_failed():
    (found,) = diagnosis(square(wrong=without_factor))
    assert found == ("finite differences, dx", "got = ½ × reference")
    assert diagnosis(square(wrong=lambda dy, x: 2 * dy * x)) == ()
    ((_, vacuous),) = diagnosis(BUGS["router_of_one"])
    assert "any error would pass" in vacuous


def test_gradcheck_is_not_given_inputs_whose_matrices_would_be_too_large():
    bug = BUGS["layer_norm_of_many_rows"]
    assert elements(bug, "telling") > LARGEST >= elements(bug, "usual")
    assert verdicts(bug) == {"usual": (True, True)} and gradcheck(bug) == "never"
    assert all(
        elements(other, level) <= LARGEST
        for other in BUGS.values()
        if other is not bug
        for level in levels(other)
        if level != "varied"
    )
