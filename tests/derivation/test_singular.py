"""A matrix that is singular at some sizes is tried at others, and one that is singular at all of them is reported as such."""

import pytest

from .judging import kinds, one

GIVEN = (
    r"given X \in \mathbb{R}^{m \times n}, A \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n, t \in \mathbb{R}^m, c \in \mathbb{R}; "
    "factor X"
)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"(X^\top X)^{-1} X^\top X = I_n", r"(X^\top X)^{-1} X^\top X = 2 I_n"),
        (r"X (X^\top X)^{-1} X^\top X = X", r"X (X^\top X)^{-1} X^\top X = X + X"),
        (r"(X X^\top)^{-1} X X^\top = I", r"(X X^\top)^{-1} X X^\top = I - X X^\top"),
        (
            r"\frac{\partial}{\partial X_{ij}} (\log\det(X^\top X)) = 2 (X (X^\top X)^{-1})_{ij}",
            r"\frac{\partial}{\partial X_{ij}} (\log\det(X^\top X)) = (X (X^\top X)^{-1})_{ij}",
        ),
        (r"\frac{c}{n - 3} = \frac{2 c}{2 n - 6}", r"\frac{c}{n - 3} = \frac{2 c}{2 n + 6}"),
    ],
)
def test_a_line_is_judged_at_sizes_at_which_it_has_a_value(right, wrong):
    verdict = one(right, GIVEN)
    assert verdict.kind == "equal" and len(verdict.basis.sizes) >= 2
    assert one(wrong, GIVEN).kind == "refused"


def test_a_definition_with_an_inverse():
    text = "\n\n".join(
        f"$$ {line} $$"
        for line in (
            r"w = (X^\top X)^{-1} X^\top t",
            r"X^\top X w = X^\top t",
            r"X^\top X w = X^\top t + X^\top t",
        )
    )
    assert kinds(text, GIVEN) == ["definition", "equal", "refused"]


def test_the_sizes_of_a_verdict_are_those_at_which_the_matrix_is_regular():
    verdict = one(r"(X^\top X)^{-1} X^\top X = I_n", GIVEN)
    assert all(sizes["m"] >= sizes["n"] for sizes in verdict.basis.sizes)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (r"(x x^\top)^{-1} = A", "this matrix has no inverse at the sizes tried"),
        (r"\frac{c}{n - n} = c", "this divides by 0 at the sizes tried"),
        (r"\log \det(x x^\top) = c", "this is the logarithm of 0 at the sizes tried"),
        # the two pseudo-inverses
        (r"X^\top (X X^\top)^{-1} = (X^\top X)^{-1} X^\top", "both sides are defined only where m = n"),
    ],
)
def test_what_has_no_value_is_not_readable(line, why):
    verdict = one(line, GIVEN)
    assert verdict.kind == "not readable"
    assert why in verdict.message


def test_an_identity_that_is_a_side_has_the_size_of_the_side_before_it():
    assert one(r"A A^{-1} = I", GIVEN).kind == "equal"
    assert one(r"A A^\top = I", GIVEN).kind == "refused"
    assert one(r"X A = I", GIVEN).kind == "ill-formed"
