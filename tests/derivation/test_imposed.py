"""An equation that a text imposes, such as a gradient set to 0, claims nothing if that is marked; unmarked, it is refused, and the
message says how to mark it."""

import pytest

from .judging import kinds, one, verdicts
from .test_relations import rows

GIVEN = r"""
given x, y \in \mathbb{R}^n, A \in \mathbb{R}^{m \times n}, c \in \mathbb{R}^m
let q = \sum_i x_i^2; let p = \sum_i ((A x)_i - c_i)^2
"""
LEFT = r"\frac{\partial q}{\partial x_i}"
NOTHING, OTHER = "nothing claimed", "not readable"
SIGNS = [
    r"\overset{!}{=}",
    r"\stackrel{!}{=}",
    r"\stackrel!=",
    r"\overset{!}=",
    r"\stackrel{\text{set}}{=}",
    r"\overset{\mathrm{set}}{=}",
]


@pytest.mark.parametrize("sign", SIGNS)
def test_a_marked_equation_claims_nothing(sign):
    assert kinds(f"$$ {LEFT} = 2 x_i {sign} 0 $$", GIVEN) == ["equal", NOTHING]
    assert kinds(f"$$ {LEFT} = 3 x_i {sign} 0 $$", GIVEN) == ["refused", NOTHING]


def test_a_derivative_is_assigned_zero():
    assert one(rf"{LEFT} := 0", GIVEN).kind == NOTHING
    assert one(r"q := \sum_i x_i^2", GIVEN).kind == "equal"
    assert one(rf"{LEFT} := 3 x_i", GIVEN).kind == "refused"


@pytest.mark.parametrize(
    "sentence",
    [
        "Setting the gradient to zero gives",
        "We set the derivative equal to $0$:",
        "At the optimum,",
        "At a stationary point we have",
        "The derivative must vanish.",
    ],
)
def test_the_sentence_before_imposes_a_side_that_is_0(sentence):
    assert kinds(f"{sentence}\n\n$$ {LEFT} = 2 x_i = 0 $$", GIVEN) == ["equal", NOTHING]
    assert kinds(f"{sentence}\n\n$$ {LEFT} = 3 x_i = 0 $$", GIVEN) == ["refused", NOTHING]


def test_a_sentence_may_leave_it_open():
    text = f"A minimiser satisfies\n\n$$ {LEFT} = 0 $$"
    (verdict,) = verdicts(text, GIVEN)
    assert verdict.kind == OTHER
    assert "is it imposed?" in verdict.message


@pytest.mark.parametrize("sentence", ["", "The second set of gradients follows.", "We subtract zero."])
def test_an_unmarked_equation_is_refused_with_how_to_mark_it(sentence):
    (verdict,) = verdicts(f"{sentence}\n\n$$ {LEFT} = 0 $$", GIVEN)
    assert verdict.kind == "refused"
    assert r"write \overset{!}{=}" in verdict.message


def test_what_may_follow_from_an_imposed_equation_is_not_refused():
    normal, wrong = r"$$ A^\top A x = A^\top c $$", r"$$ 2 q = 3 q $$"
    gradient = r"$$ \nabla_x p = 2 A^\top (A x - c) = 0 $$"
    start = f"Setting the gradient to zero gives\n\n{gradient}\n\n"
    assert kinds(start + f"hence\n\n{normal}", GIVEN) == ["equal", NOTHING, OTHER]
    assert kinds(start + f"hence\n\n{normal}\n\nand so\n\n{normal}", GIVEN)[-1] == OTHER
    assert kinds(start + f"The norm is\n\n{wrong}", GIVEN)[-1] == "refused"
    assert kinds(f"At the optimum,\n\n{normal}", GIVEN) == [OTHER]
    assert kinds(normal, GIVEN) == ["refused"]
    found = rows(r"\nabla_x p &= 2 A^\top (A x - c) \overset{!}{=} 0", r"A^\top A x &= A^\top c")
    assert kinds(found, GIVEN) == ["equal", NOTHING, OTHER]


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"x - x = 0", ["equal"]),
        (r"x - y = 0", ["refused"]),
        (r"0 = A x - A x", ["equal"]),
        (r"0 = A x - c", ["refused"]),
        (r"c - c = \mathbf{0}", ["equal"]),
        (r"A x - A x = 0 = c - c", ["equal", "equal"]),
        (r"A x - A x = 0 = c + c", ["equal", "refused"]),
        (r"\nabla_x q = 0", ["refused"]),
        (r"A^\top A = 0", ["refused"]),
    ],
)
def test_0_is_an_array_of_zeros_where_it_is_set_equal_to_an_array(formula, expected):
    assert kinds(f"$$ {formula} $$", GIVEN) == expected


def test_what_may_follow_from_an_equation_that_may_be_imposed_is_not_refused():
    text = "We minimise the squared error:\n\n" + rows(r"2 A^\top (A x - c) &= 0", r"A^\top A x &= A^\top c")
    assert kinds(text, GIVEN) == [OTHER, OTHER]
    assert kinds(rows(r"2 A^\top (A x - c) &= 0", r"A^\top A x &= A^\top c"), GIVEN) == ["refused", "refused"]


@pytest.mark.parametrize(
    "zero", [r"0 = \frac{{\partial}}{{\partial w}} {}", r"\frac{{\partial}}{{\partial w}} {} = 0"]
)
def test_a_paragraph_may_impose_a_derivative_of_0_on_either_side(zero):
    square, given = r"\sum_i (c_i - d_i w)^2", r"constant c, d \in \mathbb{R}^n; given w \in \mathbb{R}"
    display = f"$$ {zero.format(square)} $$"
    (asked,) = verdicts(f"It has a minimum where the derivative is zero. To work!\n\n{display}", given)
    assert asked.kind == "not readable" and "is it imposed" in asked.message
    assert kinds(f"It is a sum of squares.\n\n{display}", given) == ["refused"]
