"""A sum that is followed by a term with its letter."""

import pytest

from .judging import one

GIVEN = r"given v, w, x \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, \mu \in \mathbb{R}"


@pytest.mark.parametrize(
    ("line", "brackets"),
    [
        (r"\sum_i v_i - w_i = \sum_i v_i - \sum_i w_i", r"\sum_i ( v_i - w_i )"),
        (r"\sum_i v_i + \sum_i w_i = \sum_i v_i + w_i", r"\sum_i ( v_i + w_i )"),
        (
            r"\sum_{i=1}^n x_i^2 - 2 x_i \mu + \mu^2 = \sum_i x_i^2 - 2 \mu \sum_i x_i + n \mu^2",
            r"\sum_{i=1}^n ( x_i^2 - 2 x_i \mu + \mu^2 )",
        ),
        (
            r"\frac1n \sum_i x_i^2 - x_i + \mu^2 = \mu^2 + \frac1n \sum_i (x_i - 1) x_i",
            r"\frac1n \sum_i ( x_i^2 - x_i ) + \mu^2",
        ),
        (
            r"\sum_i \sum_j A_{ij} x_j - v_i = \sum_i \left( \sum_j A_{ij} x_j - v_i \right)",
            r"\sum_i ( \sum_j A_{ij} x_j - v_i )",
        ),
    ],
)
def test_the_message_says_which_brackets_make_it_right(line, brackets):
    verdict = one(line, GIVEN)
    assert verdict.kind == "not readable"
    assert f"write the brackets: {brackets}" in verdict.message


@pytest.mark.parametrize(
    "line",
    [
        r"\sum_i v_i - \sum_i w_i = \sum_i v_i + w_i",
        r"\sum_i v_i - w_i = \sum_i v_i + \sum_i w_i",
        r"\sum_i x_i + \sum_i v_i = \sum_i x_i + 2 v_i",
    ],
)
def test_what_is_wrong_with_brackets_too_is_ill_formed(line):
    assert one(line, GIVEN).kind == "ill-formed"


def test_a_whole_side_of_ones_has_the_size_of_the_side_before_it():
    declared = r"given S \in \mathbb{R}^{s \times d}; let P_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}"
    assert one(r"P \mathbf{1} = \mathbf{1}", declared).kind == "equal"
    assert one(r"P^\top \mathbf{1} = \mathbf{1}", declared).kind == "refused"


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"\sum_k - w_k q_k", r"-\sum_k w_k q_k", r"\sum_k w_k q_k"),
        (r"a \sum_{k=1}^n -2 w_k", r"-2 a \sum_k w_k", r"a - 2 \sum_k w_k"),
        (r"\sum_j \, -\frac{w_j}{q_j} (a + q_j)", r"-\sum_j \frac{w_j}{q_j} (a + q_j)", r"\sum_j \frac{w_j}{q_j} (a + q_j)"),
        (r"\sum_k -\log q_k + a", r"a - \sum_k \log q_k", r"a + \sum_k \log q_k"),
    ],
)  # fmt: skip
def test_a_minus_behind_the_limits_of_a_sum_is_that_of_the_summand(left, right, wrong):
    given = r"given w, q \in \mathbb{R}^n, a \in \mathbb{R}"
    assert one(f"{left} = {right}", given).kind == "equal"
    assert one(f"{left} = {wrong}", given).kind == "refused"


CAUSAL = r"given S \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n; let P_{ij} = \frac{e^{S_{ij}}}{\sum_{k \le i} e^{S_{ik}}}"


@pytest.mark.parametrize(
    "row, kind",
    [
        (r"\sum_{j \le i} P_{ij} = 1", "equal"),  # for each i, as it prints
        (r"1 = \sum_{j \le i} P_{ij}", "not readable"),
        (r"\sum_{j \le i} P_{ij} = n", "equal"),  # over both
        (r"\sum_{j \le i} P_{ij} = 2", "refused"),
        (r"\sum_{j < i} P_{ij} = 1", "refused"),
        (r"\sum_{i<j} x_i x_j = \frac12 (\sum_i x_i)^2 - \frac12 \sum_i x_i^2", "equal"),
        (r"\sum_{i<j} x_i x_j = (\sum_i x_i)^2 - \sum_i x_i^2", "refused"),
    ],
)
def test_a_sum_over_one_letter_of_a_pair_may_hold_for_each_value_of_the_other(row, kind):
    assert one(row, CAUSAL).kind == kind
