"""What is asked about a wrong line needs a reason in the text; without one, the line is wrong."""

import pytest

from .judging import kinds, verdicts

MATRICES = r"given x, w, v \in \mathbb{R}^n, A, S, T, R \in \mathbb{R}^{n \times n}"


@pytest.mark.parametrize(
    ("above", "kind"),
    [
        (r"$$ u_i = \sum_m W_{im} a_m $$ $$ z_i = \sum_m V_{im} a_m $$", "ill-formed"),
        (r"$$ u_i = \sum_m W_{im} a_m $$", "not readable"),
        (r"$$ u_i = \sum_k W_{ik} a_k $$ $$ z_i = \sum_k V_{ik} a_k $$", "not readable"),
        (
            r"$$ u_i = \sum_m W_{im} a_m $$ $$ z_i = \sum_m V_{im} a_m $$ We omit the sum below.",
            "not readable",
        ),
    ],
    ids=["written twice", "written once", "another letter", "said to be left out"],
)
def test_a_sum_that_the_text_writes_is_not_implied(above, kind):
    given = r"given a \in \mathbb{R}^n, W, V \in \mathbb{R}^{p \times n}"
    text = above + r" Twice as much is $$ 2 u_i = 2 W_{im} a_m $$"
    assert kinds(text, given)[-1] == kind


@pytest.mark.parametrize(
    ("said", "kind"),
    [("a transition matrix", "refused"), ("the covariance matrix of the state", "not readable")],
)
def test_a_matrix_is_a_moment_if_the_text_says_so(said, kind):
    text = rf"Here $T$ is {said}. $$ E[T w w^\top T^\top] = T E[w w^\top] T $$"
    given = r"given T \in \mathbb{R}^{n \times n}, w \in \mathbb{R}^n; random w"
    assert kinds(text, given) == [kind]


def test_a_term_may_be_a_moment():
    assert kinds(r"$$ E[x y] = E[x] E[y] + c $$", r"given x, y, c \in \mathbb{R}; random x, y") == [
        "not readable"
    ]


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        (r"(A + A) x = A x", "refused"),
        (r"S x = T x", "not readable"),  # S = T R
        (r"B x = A x", "not readable"),  # B is defined by S
        (r"Q x = 2 Q x", "not readable"),  # Q is not declared
    ],
)
def test_what_shares_no_name_with_an_imposed_equation_does_not_follow_from_it(formula, kind):
    text = rf"We require this to be zero: $$ S - T R = 0 $$ so that $$ {formula} $$"
    assert kinds(text, MATRICES + "; let B = 2 S")[-1] == kind


@pytest.mark.parametrize(
    ("formula", "mend"),
    [
        (r"(A x)^\top - w^\top = x^\top A^\top - w", r"w^\top"),
        (r"(v + w) v^\top = v v + w v^\top", r"v^\top"),
        (r"(A x - w)(A x - w)^\top = A x x^\top A^\top - A x w - w x^\top A^\top + w w^\top", r"w^\top"),
    ],
)
def test_a_vector_whose_transpose_is_written_beside_it_is_a_column(formula, mend):
    (verdict,) = verdicts(f"$$ {formula} $$", MATRICES)
    assert verdict.kind == "ill-formed" and f"it holds with {mend}" in verdict.message


@pytest.mark.parametrize("formula", [r"x^\top A^\top - v = (A x)^\top - v", r"(A x) v = A x v"])
def test_a_vector_that_the_line_never_transposes_may_be_a_row(formula):
    assert kinds(f"$$ {formula} $$", MATRICES) == ["not readable"]
