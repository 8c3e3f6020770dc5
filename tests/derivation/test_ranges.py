"""Indices such as t − 1, and sums between limits: nothing out of range counts as 0."""

import pytest

from .judging import one

NAMES = r"given x, y \in \mathbb{R}^n, a \in \mathbb{R}^m"


@pytest.mark.parametrize(
    "formula",
    [
        r"\sum_{i=1}^{n-1} (x_{i+1} - x_i) = x_n - x_1",
        r"\sum_{i=2}^{n} (x_{i} - x_{i - 1}) = x_n - x_1",
        r"\sum_{i=0}^{n-1} x_{i+1} = \sum_i x_i",
        r"\sum_{i=1}^{n} \sum_{j=i}^n x_i y_j = \sum_{j=1}^n y_j \sum_{i=1}^j x_i",
        r"\sum_{i=1}^{n} \sum_{j=i+1}^n x_i y_j = \sum_{j=1}^n y_j \sum_{i=1}^{j-1} x_i",
        r"\sum_{i=1}^t x_i - \sum_{i=1}^{t-1} x_i = x_t",
        r"\prod_{i=1}^t x_i = x_t \prod_{i=1}^{t-1} x_i",
        r"\sum_i \delta_{i,j-1} x_i = x_{j-1} \quad (j > 1)",
        r"\sum_{i=1}^{n-2} x_i = \sum_i x_i - x_n - x_{n-1}",
        r"\frac{\partial}{\partial x_t} \left( \sum_{i=1}^{n-1} x_i x_{i+1} \right) = x_{t-1} + x_{t+1} \quad (t > 1, t < n)",
        r"\sum_{i=2}^{n} y \, (x_i - x_{i-1}) = (x_n - x_1) y",
        r"\sum_{i=1}^{t-1} x_i \, y = \left( \sum_{i=1}^t x_i - x_t \right) y",
    ],
)
def test_shifted_indices_and_limits_are_read(formula):
    assert one(formula, NAMES).kind == "equal"


@pytest.mark.parametrize(
    "formula",
    [
        r"\sum_{i=2}^{n-1} (x_{i} - x_{i-1}) = x_n - x_1",  # one short
        r"\sum_{i=1}^{n-1} (x_{i+1} - x_i) = x_n - x_2",
        r"\sum_{i=1}^{n-1} x_{i+1} = \sum_i x_i",
        r"\sum_{i=1}^{n} \sum_{j=i+1}^n x_i y_j = \sum_{j=1}^n y_j \sum_{i=1}^{j} x_i",
        r"\sum_{i=1}^t x_i - \sum_{i=1}^{t-1} x_i = x_t + x_1",
        r"\sum_i \delta_{i,j-1} x_i = x_{j} \quad (j > 1)",
        r"\frac{\partial}{\partial x_t} \left( \sum_{i=1}^{n-1} x_i x_{i+1} \right) = x_{t+1} \quad (t > 1, t < n)",
        r"\sum_{i=1}^{t} x_i \, y = \left( \sum_{i=1}^t x_i - x_t \right) y",
    ],
)
def test_a_shift_or_a_limit_off_by_one_is_refused(formula):
    assert one(formula, NAMES).kind == "refused"


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (r"\sum_{i=1}^{n} (x_{i+1} - x_i) = x_n - x_1", "x has no element i+1 for n = 2 and i+1 = 3"),
        (
            r"\sum_{i=0}^{n-1} x_{i} = \sum_i x_i",
            "x has no element i for n = 2 and i = 0: state a condition such as i > 1; no x_{0} is declared",
        ),
        (r"\sum_j x_j x_{t-1} = x_{t-1} \sum_j x_j", "x has no element t-1 for n = 2 and t-1 = 0"),
        (r"\sum_{i=1}^k x_i = \sum_{j=1}^k x_j", "k is neither a dimension nor an index"),
        (r"2 x_n = y_m + y_m", "m is a dimension, but not that of this index, n"),
        (r"\sum_{i=i}^{n} x_i = 0", "begins at a number or at another index"),
        (r"\sum_{i=n}^{n} x_i = x_n", "begins at a number or at another index"),
        (r"\sum_{i=1}^{i} x_i = 0", "ends at a dimension or at another index"),
        (r"\sum_{i=5}^{n} x_i = 0", "begins at a number below 4"),
        (r"\sum_{i=2} x_i = 0", "needs an end"),
        (r"\sum_{i=1}^{y} x_i = 0", "must end at a dimension or at an index"),
        (
            r"\sum_{i=1}^{n} \sum_{j=1}^i x_i a_j = \sum_{j=1}^{n} \sum_{i=j}^n x_i a_j",
            "j runs over n elsewhere, but over m here",
        ),
        (r"2 x_{t-1 i} = 0", "cannot read"),
        (r"2 x_{it-1} = 0", "cannot read"),
    ],
)
def test_what_is_out_of_range_or_ambiguous_is_not_readable(formula, message):
    found = one(formula, NAMES)
    assert found.kind == "not readable"
    assert message in found.message


def test_a_sum_to_an_index_over_another_dimension_is_ill_formed_if_no_reading_makes_it_right():
    found = one(r"\sum_{i=1}^{n} \sum_{j=1}^i x_i a_j = 0", NAMES)
    assert (found.kind, "j runs over n elsewhere, but over m here" in found.message) == ("ill-formed", True)


@pytest.mark.parametrize(
    ("right", "kind"),
    [
        (r"x_i \sum_{j=2}^n x_j x_{j-1}", "not readable"),  # the i of the sum is its own
        (r"2 x_i \sum_{j=2}^n x_j x_{j-1}", "ill-formed"),
    ],
)
def test_a_sum_over_a_letter_in_use_may_also_shift_it(right, kind):
    assert one(rf"{right} = x_i \sum_{{i=2}}^n x_i x_{{i-1}} \quad (i > 1)", NAMES).kind == kind
