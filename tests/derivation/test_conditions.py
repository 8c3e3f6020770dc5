"""Conditions beside a row are read in the forms that authors write, and hold for the rows that they are written for."""

import pytest

from .judging import kinds, one, verdicts
from .test_relations import rows

GIVEN = r"""
given x \in \mathbb{R}^n, a, b \in \mathbb{R}
let q = \sum_i x_i^2; let S = \sum_j e^{x_j}; let y_i = \frac{e^{x_i}}{S}
"""
LEFT = r"\frac{\partial y_i}{\partial x_j}"
FIRST, SECOND, WRONG = r"&= -\frac{e^{x_i} e^{x_j}}{S^2}", "&= -y_i y_j", "&= y_i y_j"
OTHER = "not readable"


AFTER = [
    r"&& (i \ne j)",
    r"&& \text{for } i \ne j",
    r"\quad \text{if } i \neq j",
    r"\qquad i \not= j",
    r", \; i \ne j.",
    r", i \ne j",
    r"\text{ if } i \ne j",
    r"\quad \text{($i \ne j$)}",
    r"\quad \text{for all } i \ne j",
    r"\quad \forall\, i \ne j",
    r"\quad (\text{for } i \ne j)",
    r"\quad [i \ne j]",
    r"\quad \text{whenever $i \ne j$}",
    r"~~(i \ne j)",
    r"\; (i \ne j)",
    r"\,,\quad i \ne j",
    r"\hspace{1cm} (i \ne j)",
    r", \quad i, j = 1, \dots, n, \; i \ne j",
    r"\quad \forall i, j : i \ne j",
    r"\quad \text{(chain rule)} \quad (i \ne j)",
    r"\quad (i \ne j) \quad \text{(chain rule)}",
    r"\tag{$i \ne j$}",
    r", \quad i < j \le n",
]


@pytest.mark.parametrize("condition", AFTER)
def test_a_condition_on_the_first_or_the_last_row_holds_for_the_chain(condition):
    first = f"{LEFT} {FIRST}"
    assert kinds(rows(f"{first} {condition}", SECOND), GIVEN) == ["equal", "equal"]
    assert kinds(rows(first, f"{SECOND} {condition}"), GIVEN) == ["equal", "equal"]
    assert kinds(rows(f"{first} {condition}", WRONG), GIVEN) == ["equal", "refused"]
    assert kinds(rows(first, f"{WRONG} {condition}"), GIVEN) == ["equal", "refused"]


@pytest.mark.parametrize(
    "condition",
    [
        r"i \ne j: \;",
        r"\text{For } i \ne j: \quad",
        r"\text{For $i \ne j$: }",
        r"\text{for } i \ne j, \quad",
        r"\forall i \ne j: \;",
        r"(i \ne j) \quad",
        r"\text{If $i \ne j$, then } ",
    ],
)
def test_a_condition_may_stand_before_the_equation(condition):
    assert kinds(rows(f"{condition} {LEFT} {FIRST}", SECOND), GIVEN) == ["equal", "equal"]
    assert kinds(rows(f"{condition} {LEFT} {FIRST}", WRONG), GIVEN) == ["equal", "refused"]


def test_a_condition_excuses_only_what_violates_it():
    assert kinds(rows(f"{LEFT} {FIRST}", SECOND), GIVEN) == ["refused", "follows"]
    assert kinds(rows(rf"{LEFT} {FIRST} \quad (i = j)", SECOND), GIVEN) == ["refused", "follows"]


def test_the_verdict_says_under_which_condition_a_line_was_compared():
    found = verdicts(rows(rf"{LEFT} {FIRST} \quad \text{{for }} i \neq j", WRONG), GIVEN)
    assert [verdict.basis.condition for verdict in found] == [r"i \ne j", r"i \ne j"]
    assert found[1].counterexample.where == ("n = 2", "i = 1", "j = 2")


def test_a_condition_in_the_middle_holds_from_there_on():
    start, end = rf"{LEFT} &= y_i (\delta_{{ij}} - y_j)", r"&= -y_j y_i"
    middle = rf"{SECOND} \quad (i \ne j)"
    assert kinds(rows(start, middle, end), GIVEN) == ["equal", "equal", "equal"]
    assert kinds(rows(start, middle, "&= y_j y_i"), GIVEN) == ["equal", "equal", "refused"]
    found = verdicts(rows(f"{LEFT} {FIRST}", middle, end), GIVEN)
    assert [verdict.kind for verdict in found] == [OTHER, "equal", "equal"]
    assert r"it holds where i \ne j, which stands on a row below" in found[0].message


def test_conditions_that_exclude_each_other_are_cases_of_the_left_side():
    def cases(first, second, same="i = j", other=r"i \ne j"):
        return kinds(rows(f"{LEFT} &= {first} && {same}", f"&= {second} && {other}"), GIVEN)

    assert cases("y_i (1 - y_i)", "-y_i y_j") == ["equal", "equal"]
    assert cases("y_i (1 + y_i)", "-y_i y_j") == ["refused", "equal"]
    assert cases("y_i (1 - y_i)", "y_i y_j") == ["equal", "refused"]
    assert cases("-y_i y_j", "-y_j y_i", "i < j", "i > j") == ["equal", "equal"]
    # These may hold alone or together.
    assert cases("-y_i y_j", "-y_j y_i", "i < j", r"i \ne j") == [OTHER, OTHER]


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"\frac{\partial q}{\partial x_i} = 2 x_i, \; i = 1, \dots, n", "equal"),
        (r"\frac{\partial q}{\partial x_i} = 3 x_i, \; i = 1, \dots, n", "refused"),
        (r"\frac{\partial q}{\partial x_i} = 2 x_i \quad \forall i \in \{1, \dots, n\}", "equal"),
        (r"\forall i: \frac{\partial q}{\partial x_i} = 3 x_i", "refused"),
        (r"\delta_{i1} = 0, \quad i = 2, \dots, n", "equal"),
        (r"\delta_{i1} = 0, \quad i = 1, 2, \dots, n", "refused"),
        (r"x_{i+1} - x_i = -x_i + x_{i+1}, \quad i = 1, \dots, n-1", "equal"),
        (r"x_{i+1} - x_i = x_i - x_{i+1}, \quad i = 1, \dots, n-1", "refused"),
        (r"x_{i+1} - x_i = -x_i + x_{i+1}, \quad i = 1, \dots, n", OTHER),
        (r"\sqrt{a^2} = a \quad (a > 0)", "equal"),
        (r"\sqrt{a^2} = a, \; 0 \le a", "equal"),
        (r"\sqrt{a^2} = -a, \; a \ge 0", "refused"),
        (r"\sqrt{a^2} = a \quad (b > 0)", "refused"),
        (r"a > 0: \; \sqrt{a^2 b^2} = a b", "refused"),
        (r"a > 0, b > 0: \; \sqrt{a^2 b^2} = a b", "equal"),
        (r"\sqrt{x_i^2} = x_i \quad (x_i > 0)", "equal"),
        (r"\sqrt{x_i^2 x_j^2} = x_i x_j \quad (x_i > 0)", OTHER),
        (r"\sum_j \sqrt{x_j^2} = \sum_j x_j \quad (x > 0)", "equal"),
        (r"\frac{a^2}{a} = a \quad (a \ne 0)", "equal"),
        (r"\frac{a^2}{a} = 2 a \quad (a \ne 0)", "refused"),
        (r"\frac{a - b}{a - b} = 1, \quad a \ne b", "equal"),
        (r"\frac{a - b}{a - b} = 2, \quad a \ne b", "refused"),
        (r"2 a = 3 a \quad (a < 0)", "refused"),
        (r"2 a = a + a \quad (i \ne j \text{ only})", OTHER),
        (r"x_i (i < 2) = x_i", OTHER),
        (r"2 a = 3 a (i < 2)", OTHER),
        (r"[a > 0] = 1 - \mathbb{1}(a < 0)", "equal"),
    ],
)
def test_ranges_and_signs(formula, expected):
    assert one(formula, GIVEN).kind == expected


def test_columns_of_equations_are_apart():
    two = rows(r"2 a &= a + a & 2 b &= b + b", r"3 a &= 2 a + a & 3 b &= 2 b + b")
    assert kinds(two, GIVEN) == 4 * ["equal"]
    two = rows(r"2 a &= a + a & 2 b &= b + a", r"3 a &= 2 a + b & 3 b &= 2 b + b")
    assert kinds(two, GIVEN) == ["equal", "refused", "refused", "equal"]
    one_column = rows(r"2 a &= a & + a", r"&= (a & + a)")
    assert kinds(one_column, GIVEN) == ["equal", "equal"]
    condition = rows(rf"{LEFT} {FIRST} & i \ne j", SECOND)
    assert kinds(condition, GIVEN) == ["equal", "equal"]


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"x_i y_i = x_1 y_1, \quad i = 1", ["equal"]),
        (r"x_i y_i = x_2 y_1, \; i = 1", ["refused"]),
        (r"\text{(i)} \quad 2 a = a + a", ["equal"]),
        (r"(a) \quad 2 a = a + b", ["refused"]),
        (r"2 a = a + a \qquad \blacksquare", ["equal"]),
        (r"\forall x \in \mathbb{R}^n: \; q = x^\top x", ["equal"]),
        (r"\forall x \in \mathbb{R}^n: \; q = 2 x^\top x", ["refused"]),
        (r"\forall x \in \mathbb{R}^m: \; 2 q = 2 x^\top x", [OTHER]),
        (r"\text{for any } a, b: \; (a + b)^2 = a^2 + b^2 + 2 a b", ["equal"]),
        (r"\text{for any } a, b: \; (a + b)^2 = a^2 + b^2", ["refused"]),
        (r"f: \mathbb{R}^n \to \mathbb{R}, \quad f(x) = x^\top x", ["definition"]),
        (r"\sum_{i < j} x_i x_j = \frac12 \sum_{i \ne j} x_i x_j", ["equal"]),
        (r"\sum_{i < j} x_i x_j = \sum_{i \ne j} x_i x_j", ["refused"]),
    ],
)
def test_what_is_beside_an_equation_is_not_one(formula, expected):
    assert kinds(f"$$ {formula} $$", GIVEN) == expected


def test_messages_say_what_to_do():
    (verdict,) = verdicts(rf"$$ {LEFT} = -y_i y_j $$", GIVEN)
    assert r"write \quad (i \ne j) beside it" in verdict.message
    assert "A second equation needs a display" in one(r"2 q = q + q, \quad a = b", GIVEN).message
    assert r"\begin{cases}" in one(r"u_i = x_i \quad (i \ne 1)", GIVEN).message
    assert r"declare a \in \mathbb{R}_{>0}" in one(r"u = a^2, \quad a > 0", GIVEN).message


def test_a_sign_holds_for_its_own_line_only():
    text = r"$$ \sqrt{a^2} = a \quad (a > 0) $$" + "\n\n" + r"$$ \sqrt{a^2} = a $$"
    assert kinds(text, GIVEN) == ["equal", "refused"]


def test_other_words_do_not_join_the_row_below():
    found = kinds(rows(rf"{LEFT} {FIRST} \quad \text{{in most cases}}", SECOND), GIVEN)
    assert found == [OTHER, OTHER]


def test_a_clause_that_defines_a_name_is_not_a_condition():
    text = r"$$ 2 u = 4 a \quad \text{where } u = 2 a $$"
    assert kinds(text, r"given a \in \mathbb{R}") == ["equal", "definition"]
