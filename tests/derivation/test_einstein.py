"""Under a summation convention that the text states, an index that occurs twice in a product is summed over."""

import pytest

from .judging import kinds, one

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
        (r"x_i y_i = 3 x_j y_j", ["ill-formed"]),
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
        "Repeated indices are not summed.",
        "No summation convention is used.",
        "We avoid the Einstein convention.",
    ],
)
def test_where_the_text_denies_it_they_are_not(sentence):
    assert kinds(f"{sentence}\n\n$$ x_i x_i = q $$", GIVEN) == ["refused"]


def test_a_definition_has_its_sums():
    text = STATED + r"$$ z_i = A_{ij} x_j $$" + "\n\n" + r"$$ z + x = A x + x = A^\top x + x $$"
    assert kinds(text, GIVEN) == ["definition", "equal", "refused"]


@pytest.mark.parametrize(
    "formula, wrong",
    [
        (r"x_i x_i = q", "x_i x_i = 2 q"),
        (r"(A x)_i = A_{ij} x_j", "(A x)_i = 2 A_{ij} x_j"),
        (r"q = x_i x_i", "q = x_i y_i"),
        (r"\frac{\partial q}{\partial x_j} = \frac{\partial q}{\partial x_i} \delta_{ij}",
         r"\frac{\partial q}{\partial x_j} = 2 \frac{\partial q}{\partial x_i} \delta_{ij}"),
    ],
)  # fmt: skip
def test_a_sum_that_may_be_implied_is_asked_about_and_read_where_a_comment_says_so(formula, wrong):
    text = r"$$ \sum_i x_i = \sum_j x_j $$" + f"\n\n$$ {formula} $$"
    assert kinds(text, GIVEN) == ["equal", "not readable"]
    assert kinds(text, GIVEN + "; sums implied") == ["equal", "equal"]
    assert "say: sums implied" in one(formula, GIVEN).message
    assert one(wrong, GIVEN).kind in ("refused", "ill-formed")
    assert one(wrong, GIVEN + "; sums implied").kind == "refused"


@pytest.mark.parametrize(
    "formula, kind",
    [
        (r"(A B)_{ik} = A_{ij} B_{jk}", "equal"),
        (r"(A B)_{ik} = A_{ij} B_{kj}", "refused"),
        (r"(A B)_{ik} = A_{ij} B_{lk}", "ill-formed"),
        (r"A_{ij} x_j y_i = y^T A x", "equal"),
        (r"A_{ij} x_j y_i = y^T A^T x", "refused"),
        (r"0 = x_i y_i - x^T y", "equal"),
        (r"\frac{\partial x_i^3}{\partial x_i} = 3 x_i^2", "equal"),
        (r"\frac{\partial}{\partial x_i} \sum_j x_j^2 y_j = 2 x_i y_i", "equal"),
        (r"\frac{\partial u_i}{\partial x_i} = 2 x_i", "equal"),
        (r"\frac{\partial u_i}{\partial x_i} = 3 x_i", "refused"),
    ],
)
def test_implied_sums_are_judged(formula, kind):
    assert one(formula, GIVEN + "; let u_i = x_i^2; sums implied").kind == kind


def test_an_index_that_is_alone_on_one_side_is_free_on_all():
    text = r"$$ \frac{\partial u_i}{\partial x_i} = 2 x_i + u_i - u_i = x_i (2 + 1) - x_i = x_i (1 + 2) $$"
    assert kinds(text, GIVEN + "; let u_i = x_i^2; sums implied") == ["equal", "equal", "refused"]


def test_a_definition_in_a_comment_has_its_sums():
    assert one("u = A x", "sums implied; " + GIVEN + "; let u_i = A_{ij} x_j").kind == "equal"
    assert one("u = A^T x", "sums implied; " + GIVEN + "; let u_i = A_{ij} x_j").kind == "refused"
