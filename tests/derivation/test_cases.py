"""Definitions by cases: each case counts where it applies, and no case is passed over."""

import pytest

from backpass.derivation import derive

from .judging import one

GIVEN = r"given x, y \in \mathbb{R}^n, c \in \mathbb{R}"


def in_cases(left, rows):
    return one(rf"{left} = \begin{{cases}} {rows} \end{{cases}}", GIVEN)


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"\max(0, c)", r"c & c > 0 \\ 0 & c \le 0", r"c & c < 0 \\ 0 & c \ge 0"),
        (r"\max(0, c)", r"c, & \text{if } c > 0, \\ 0, & \text{otherwise.}", r"c & c > 0 \\ 1 & \text{otherwise}"),
        (r"\max(x_i, y_i)", r"x_i & \text{if } x_i \ge y_i \\ y_i & \text{else}", r"y_i & x_i \ge y_i \\ x_i & \text{else}"),
        (r"\delta_{ij}", r"1 & \text{if } i = j \\ 0 & \text{if } i \neq j", r"1 & \text{if } i \ne j \\ 0 & \text{if } i = j"),
        (r"\delta_{i1} x_1", r"x_i & i = 1 \\ 0 & \text{otherwise}", r"x_i & i = 2 \\ 0 & \text{otherwise}"),
        (r"[c < 1] [c > -1]", r"1 & -1 < c < 1 \\ 0 & \text{otherwise}", r"1 & -1 < c < 2 \\ 0 & \text{otherwise}"),
        (r"\max(c, -c)", r"c & c > 0 \\ -c & c < 0", r"c & c > 0 \\ c & c < 0"),
    ],
)  # fmt: skip
def test_cases_are_compared_where_they_apply(left, right, wrong):
    assert in_cases(left, right).kind == "equal"
    assert in_cases(left, wrong).kind == "refused"


@pytest.mark.parametrize(
    ("left", "rows", "why"),
    [
        (r"\max(0, c)", r"c & c > 0 \\ 0 & c > 1", "no case applies here"),
        (r"\max(0, c)", r"c & c > 0 \\ 0 & c < -1", "no case applies here"),
        (r"\max(0, c)", r"c & c > 0 \\ c & c > 1 \\ 0 & \text{otherwise}", "more than one case applies here"),
        (r"\max(0, c)", r"0 & \text{otherwise} \\ c & c > 0", "this case must be the last one"),
        (r"\max(0, c)", r"c & c > 0 \\ 0 & c = 0 \\ 0 & c < 0", "= and \\ne are for indices"),
        (r"c", r"c & c \ne 0 \\ 0 & \text{otherwise}", "= and \\ne are for indices"),
        (r"x", r"x & c > 0 \\ x & \text{otherwise}", "a case must be a number"),
        (r"c", r"c & x > 0 \\ c & \text{otherwise}", "a case must compare numbers"),
        (r"c", r"c & c^2 + 1 > 0 \\ 0 & \text{otherwise}", "one case was not checked"),
        (r"c", r"c & c > 0 \\ c & \text{almost surely}", "cannot read this"),
    ],
)  # fmt: skip
def test_cases_that_are_not_certain_are_not_readable(left, rows, why):
    verdict = in_cases(left, rows)
    assert verdict.kind == "not readable"
    assert why in verdict.message


def test_an_array_that_an_older_text_uses_for_cases_is_read_as_cases():
    text = r"\max(0, c) = \left\{\begin{array}{ll} c & \text{if } c > 0 \\ 0 & \mbox{otherwise} \end{array}\right."
    assert one(text, GIVEN).kind == "equal"


def test_a_function_by_cases_is_differentiated_in_each():
    derive(
        r"""
        given c \in \mathbb{R}, x, \bar{y} \in \mathbb{R}^n
        let h(t) = \begin{cases} t & -1 \le t < 1 \\ 1 & t \ge 1 \\ -1 & t < -1 \end{cases}
        let y_i = h(x_i)
        \frac{\partial}{\partial c} \left( h(c) \right) = [c < 1] [c > -1]
        \bar{x}_i = \bar{y}_i [x_i < 1] [x_i > -1]
        h(c) = \max(-1, c) - \max(1, c) + 1
        """,
        name="hard-tanh",
    )


@pytest.mark.parametrize("joined", [r"\text{ and }", ",", r"\land"])
def test_a_case_may_have_several_comparisons(joined):
    cases = (
        rf"\begin{{cases}} 1 & \text{{if }} i = j {joined} x_i > 0 \\ 0 & \text{{otherwise}} \end{{cases}}"
    )
    given = r"given x \in \mathbb{R}^n; let r_i = \max(0, x_i)"
    assert one(rf"\frac{{\partial r_i}}{{\partial x_j}} = {cases}", given).kind == "equal"
    wrong = cases.replace("x_i > 0", "x_i < 0")
    assert one(rf"\frac{{\partial r_i}}{{\partial x_j}} = {wrong}", given).kind == "refused"


def test_rows_may_end_with_more_backslashes_as_in_hugo():
    right = r"1, & \text{if } i = j \\\\\\ 0, & \text{if } i \neq j"
    assert in_cases(r"\delta_{ij}", right).kind == "equal"
    assert in_cases(r"\delta_{ij}", right.replace("neq", "eq")).kind != "equal"
    assert in_cases(r"\delta_{ij}", right.replace("1,", "2,")).kind == "refused"
    assert in_cases(r"\delta_{ij}", right.replace(r"\\\\\\", "\\\\\\\\\n\\\\[2pt]")).kind == "equal"
