"""A derivative by a name that replaces an input is asked about where the chain rule holds for it, and refused elsewhere."""

import pytest

from .judging import one

NUMBERS = r"given x \in \mathbb{R}_{>0}; let r = x^2; let s = x^3; let t = r s"
COLUMNS = r"given x, g \in \mathbb{R}^n; let r = 2 x; let v = x^\top x; let p_i = \frac{e^{x_i}}{\sum_j e^{x_j}}; let L = \sum_i g_i p_i"


@pytest.mark.parametrize(
    ("given", "left", "right", "wrong"),
    [
        (NUMBERS, r"\frac{\partial s}{\partial r}", r"\frac32 x", "3 x"),
        (NUMBERS, r"\frac{\partial r}{\partial s}", r"\frac{2}{3 x}", r"\frac32 x"),
        (NUMBERS, r"\frac{\partial t}{\partial s}", r"\frac53 r", r"\frac43 r"),  # t = s^{5/3}
        (COLUMNS, r"\frac{\partial v}{\partial r_i}", r"\frac12 r_i", "r_i"),
        (COLUMNS, r"\frac{\partial v}{\partial r_i}", "x_i", "2 x_i"),
    ],
)
def test_a_name_in_place_of_an_input(given, left, right, wrong):
    found = one(f"{left} = {right}", given)
    assert found.kind == "not readable" and "is the variable in place of" in found.message
    assert one(f"{left} = {wrong}", given).kind == "refused"


def test_what_the_chain_rule_does_not_determine_is_refused():
    """A constant shift of a softmax's gradient gives the same gradient of its input."""
    line = r"\frac{\partial L}{\partial p_i} = g_i"
    assert one(line, COLUMNS).kind == "equal"
    assert one(f"{line} + 1", COLUMNS).kind == "refused"
