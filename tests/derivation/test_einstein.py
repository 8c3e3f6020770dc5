"""Under a summation convention that the text states, an index that occurs twice in a product is summed over."""

import pytest

from .judging import kinds

GIVEN = r"given x, y \in \mathbb{R}^n, A, B \in \mathbb{R}^{n \times n}; let q = \sum_i x_i^2"
STATED = "We use the Einstein summation convention.\n\n"


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"x_i x_i = q", ["equal"]),
        (r"x_i^2 = q", ["equal"]),
        (r"x_i x_i = 2 q", ["refused"]),
        (r"(A x)_i = A_{ij} x_j", ["equal"]),
        (r"(A x)_i = A_{ji} x_j", ["not readable"]),
        (r"\frac{\partial}{\partial x_k} (x_i A_{ij} x_j) = A_{kj} x_j + x_i A_{ik}", ["equal"]),
        (r"\frac{\partial}{\partial x_k} (x_i A_{ij} x_j) = A_{kj} x_j + x_i A_{ki}", ["refused"]),
        (r"A_{ii} = \operatorname{tr}(A)", ["equal"]),
        (r"A_{ij} A_{ij} = \lVert A \rVert_F^2", ["equal"]),
        (r"x_i y_i = y_j x_j", ["equal"]),
        (r"x_i y_i = 3 x_j y_j", ["not readable"]),
        (r"(A B)_{ik} = A_{ij} B_{jk}", ["equal"]),
        (r"(A B)_{ik} = A_{ij} B_{kj}", ["not readable"]),
        (r"\operatorname{tr}(A B) = A_{ij} B_{ji} = B_{ij} A_{ij}", ["equal", "not readable"]),
        (r"\delta_{ij} x_j = x_i", ["equal"]),
        (r"\delta_{ii} = n", ["not readable"]),
        (r"\delta_{ii} = 1", ["not readable"]),
        (r"z_i = A_{ij} x_j", ["definition"]),
        (r"y_i x_i^2 = x_i x_i y_i", ["equal"]),
        (r"\sum_i x_i y_i = x_i y_i", ["equal"]),
    ],
)
def test_repeated_indices_are_summed_where_the_text_says_so(formula, expected):
    assert kinds(f"{STATED}$$ {formula} $$", GIVEN) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "Repeated indices are not summed.",
        "No summation convention is used.",
        "This goes back to Einstein.",
        "We avoid the Einstein convention.",
    ],
)
def test_without_a_convention_they_are_not(sentence):
    assert kinds(f"{sentence}\n\n$$ x_i x_i = q $$", GIVEN) == ["refused"]


def test_a_definition_has_its_sums():
    text = STATED + r"$$ z_i = A_{ij} x_j $$" + "\n\n" + r"$$ z + x = A x + x = A^\top x + x $$"
    assert kinds(text, GIVEN) == ["definition", "equal", "refused"]
