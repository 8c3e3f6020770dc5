"""A derivative by a name that replaces an input is asked about where the chain rule holds for it, and refused elsewhere."""

import pytest

from .judging import one, verdicts

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


MOVING = r"given x, w, g \in \mathbb{R}^n; let y = x \odot w; let L = g^\top y; loss L; d differential"


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    [
        (r"dy = w \odot dx", "not readable", "it holds if w does not move"),
        (r"dL = g^\top (w \odot dx)", "not readable", "it holds if g and w do not move"),
        (r"dy = x \odot dx", "refused", ""),
        (r"dy = w \odot dx - x \odot dw", "refused", ""),
        (r"dy = w \odot dx + x \odot dw", "equal", ""),
    ],
)
def test_a_differential_by_some_inputs_alone(row, kind, said):
    found = one(row, MOVING)
    assert found.kind == kind and said in found.message


def test_a_term_that_is_dropped_in_a_chain_is_refused():
    found = verdicts(r"$$ dy = w \odot dx + x \odot dw = w \odot dx $$", MOVING)
    assert [verdict.kind for verdict in found] == ["equal", "refused"]
