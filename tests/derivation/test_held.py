"""A partial derivative goes through all definitions, or holds other names constant: the command asks which."""

import pytest

from .judging import kinds, one

GIVEN = r"""given x, g \in \mathbb{R}^n; loss l
let m = \frac{1}{n} \sum_k x_k; let v = \frac{1}{n} \sum_k x_k^2; let y_i = \frac{x_i}{v}
let l = \sum_i g_i y_i
"""
CHAIN = r"\frac{\partial l}{\partial x_p} = \frac{\partial l}{\partial v} \frac{\partial v}{\partial x_p}"


@pytest.mark.parametrize(
    "formula, wrong",
    [
        (
            r"\frac{\partial y_i}{\partial x_i} = \frac{1}{v}",
            r"\frac{\partial y_i}{\partial x_i} = \frac{2}{v}",
        ),
        (
            r"\frac{\partial y_i}{\partial x_j} = \frac{\delta_{ij}}{v}",
            r"\frac{\partial y_i}{\partial x_j} = \frac{\delta_{ij}}{v^2}",
        ),
        (
            r"\frac{\partial}{\partial x_j} (x_i - m) = \delta_{ij}",
            r"\frac{\partial}{\partial x_j} (x_i - m) = 1",
        ),
        (
            rf"{CHAIN} + \sum_h \frac{{\partial l}}{{\partial y_h}} \frac{{\partial y_h}}{{\partial x_p}}",
            rf"{CHAIN} - \sum_h \frac{{\partial l}}{{\partial y_h}} \frac{{\partial y_h}}{{\partial x_p}}",
        ),
    ],
)
def test_which_names_are_held_is_asked_and_said(formula, wrong):
    asked = one(formula, GIVEN)
    assert asked.kind == "not readable" and "partial direct" in asked.message
    assert one(formula, GIVEN + "partial direct").kind == "equal"
    assert one(formula, GIVEN + "partial total").kind == "refused"
    assert one(wrong, GIVEN).kind == one(wrong, GIVEN + "partial direct").kind == "refused"


def test_a_name_that_is_not_in_the_definition_itself_may_be_held():
    given = r"given x \in \mathbb{R}; let s = x^2; let u = 3 x; let z = u s"
    asked = one(r"\frac{\partial z}{\partial x} = 3 s", given)
    assert asked.kind == "not readable" and "constant (s)" in asked.message
    assert one(r"\frac{\partial z}{\partial x} = 4 s", given).kind == "refused"


def test_a_total_derivative_is_asked_about_under_partial_direct():
    total = r"\frac{\partial y_i}{\partial x_j} = \frac{\delta_{ij}}{v} - \frac{2 x_i x_j}{n v^2}"
    assert one(total, GIVEN).kind == "equal"
    assert "say: partial total" in one(total, GIVEN + "partial direct").message
    text = f"<!-- derive: partial direct -->\n\n<!-- derive: partial total -->\n\n$$ {total} $$"
    assert kinds(text, GIVEN) == ["equal"]


def test_the_gradient_of_the_loss_is_total():
    assert one(r"\frac{\partial l}{\partial x_p} = \frac{g_p}{v}", GIVEN + "partial direct").kind == "refused"


def test_both_a_sum_and_a_held_name_may_be_implied():
    formula = rf"{CHAIN} + \frac{{\partial l}}{{\partial y_h}} \frac{{\partial y_h}}{{\partial x_p}}"
    text = r"$$ \sum_i x_i = n m $$" + f"\n\n$$ {formula} $$"
    assert kinds(text, GIVEN) == ["equal", "not readable"]
    assert kinds(text, GIVEN + "sums implied; partial direct") == ["equal", "equal"]
    assert kinds(text.replace(" + ", " - "), GIVEN + "sums implied; partial direct")[1] == "refused"
