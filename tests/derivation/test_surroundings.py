"""Prose may say what a line rests on: a line that is right in its text is not refused, and a wrong one is, beside any prose."""

import pytest

from .judging import verdicts

GIVEN = r"""
given x, y, u, v, d, g, b \in \mathbb{R}^n, A, H, P, Q, S, B \in \mathbb{R}^{n \times n}, X \in \mathbb{R}^{m \times n}
given a, c, h, s, t, \lambda, \tau \in \mathbb{R}
let p_i = \frac{e^{x_i / \tau}}{\sum_k e^{x_k / \tau}}; let q = \frac12 x^\top A x - b^\top x; let r = t^3; let f = \max(0, t)
"""

RESTRICTED = [
    # a form of an input
    ("Let $Q$ be orthogonal. Then", r"Q^\top Q x = x", "Q is orthogonal"),
    ("Rotations preserve lengths, so", r"\|Q x\|^2 = \|x\|^2", "Q is orthogonal"),
    ("As $P$ is a permutation matrix,", r"P^\top P x = x", "P is orthogonal"),
    ("If $\\|u\\| = 1$, then", r"u u^\top u = u", "u has length 1"),
    ("Both matrices are diagonal:", r"A B = B A", "A is diagonal and B is diagonal"),
    ("If $A$ and $B$ commute,", r"A B x = B A x", "A and B commute"),
    ("The projection $P$ is idempotent:", r"P P x = P x", "P is a projection"),
    ("For a skew-symmetric $S$", r"x^\top S x = 0", r"S = -S^\top"),
    ("With a precision matrix $A$", r"\nabla_x q = A x - b", r"A = A^\top"),
    ("For an eigenvector $v$ with eigenvalue $\\lambda$", r"A A v = \lambda^2 v", "v is an eigenvector of A"),
    ("The data are centred, therefore", r"\sum_i (x_i - a) = -n a", "the elements of x sum to 0"),
    ("As $u \\perp v$, we have", r"\|u + v\|^2 = \|u\|^2 + \|v\|^2", r"u \perp v"),
    ("Because $t \\in \\{0, 1\\}$,", r"t^2 = t", "the elements of t are 0 or 1"),
    ("Each row of $P$ is a distribution, so", r"\sum_j P_{ij} = 1", "the rows or columns of P sum to 1"),
    ("where $B$ is the inverse of $A$. Then", r"A B x = x", "is the inverse of"),
    ("If both variances are the same,", r"a c = a^2", "a = c"),
    ("At temperature one", r"\frac{\partial p_i}{\partial x_j} = p_i (\delta_{ij} - p_j)", r"\tau = 1"),
    ("Since $B$ is a polynomial in $A$,", r"A B = B A", "Since $B$ is a polynomial"),
    ("By the singular value decomposition of $X$,", r"x^\top P^\top P x = x^\top x", "P is orthogonal"),
    # an equation in the prose
    ("Let $s = a + c$. Then", r"s^2 = a^2 + 2 a c + c^2", "s = a + c, as the text says"),
    ("With $a = 2$ and $c = 3$:", r"a c + 1 = 7", "a = 2 and c = 3, as the text says"),
    ("Substituting $A = u v^\\top$ gives", r"x^\top A x = (x^\top u) \cdot (v^\top x)", r"A = u v^\top"),
    ("Consider $n = 2$.", r"\sum_i x_i = x_1 + x_2", "n = 2"),
    ("For a single sample", r"\frac{1}{m} \sum_i X_{ij} = X_{1j}", "m = 1"),
    ("Setting the derivative to zero gives, for a positive definite $A$,", r"\nabla_x q = A x - b", r"A = A^\top"),
    # a region
    ("In the linear regime", r"\frac{\partial f}{\partial t} = 1", "for some signs"),
    ("**Case 1:** $t > 0$.", r"\max(0, t) = t", "for some signs"),
    # an approximation, a value, a mistake, a condition
    ("To first order,", r"\sin(t) = t", "does not hold exactly"),
    ("For small $t$ we can use", r"e^t = 1 + t", "does not hold exactly"),
    ("Dropping constants, this is", r"\log(2 e^{-t^2}) = -t^2", "does not hold exactly"),
    ("For our example we get", r"\frac{\partial r}{\partial t} = 12", "its value at one point"),
    ("It is not true that", r"(a + c)^2 = a^2 + c^2", "“not true”"),
    ("The step solves the Newton system", r"H d = -g", "is it imposed?"),
    ("so we need", r"n \lambda^2 = 1", "is it imposed?"),
]  # fmt: skip


@pytest.mark.parametrize(("prose", "line", "asked"), RESTRICTED)
def test_prose_that_may_restrict_a_line(prose, line, asked):
    (*_, found) = verdicts(f"{prose}\n\n$$ {line} $$", GIVEN)
    assert found.kind == "not readable" and asked in found.message
    assert verdicts(f"$$ {line} $$", GIVEN)[-1].kind == "refused"


@pytest.mark.parametrize(
    ("line", "prose", "asked"),
    [
        (r"Q^\top Q x = x", "because $Q$ is orthogonal.", "Q is orthogonal"),
        (r"(1 + t)^2 = 1 + 2 t", "where we neglected the quadratic term.", "does not hold exactly"),
        (r"(a + c)^2 = a^2 + c^2", "but this is wrong.", "“wrong”"),
    ],
)
def test_prose_behind_a_line(line, prose, asked):
    (found,) = verdicts(f"We write\n\n$$ {line}, $$\n\n{prose}", GIVEN)
    assert found.kind == "not readable" and asked in found.message


WRONG = [
    ("For a symmetric matrix $A$", r"\nabla_x q = 2 A x - b"),
    ("For a symmetric matrix $S$", r"\nabla_x q = A x - b"),
    ("Assuming that $A$ and $B$ are invertible,", r"(A B)^{-1} = A^{-1} B^{-1}"),
    ("Let $A$ be diagonal.", r"(A B)^\top = A^\top B^\top"),
    ("Since the trace is cyclic,", r"\operatorname{tr}(A B S) = \operatorname{tr}(B A S)"),
    ("Because $y$ is one-hot,", r"\sum_i p_i y_i = \sum_i p_i + \sum_i y_i"),
    ("For $t > 0$ we have", r"\max(0, t) = 2 t"),
    ("Expanding the square of a first-order term,", r"(a + c)^2 = a^2 + a c + c^2"),
    ("The norm of a large vector is", r"\nabla_x (x^\top x) = x"),
    ("The line $y = a x + c$ has", r"\sum_i (x_i y_i - a) = \sum_i x_i y_i - a"),
    ("Of all values that it takes,", r"\frac{21}{6} = 3.6"),
    ("One can show that", r"\frac{\partial r}{\partial t} = 2 t^2"),
]


@pytest.mark.parametrize(("prose", "line"), WRONG)
def test_a_wrong_line_is_refused_beside_prose(prose, line):
    assert verdicts(f"{prose}\n\n$$ {line} $$", GIVEN)[-1].kind == "refused"


@pytest.mark.parametrize(
    "prose",
    ["Let the input be $x$, where", "We need a theorem:", "For any two vectors,", "Let $c$ be a number and"],
)
def test_a_name_that_the_sentence_introduces_may_have_another_shape(prose):
    (found,) = verdicts(f"{prose}\n\n$$ x^\\top u c = A u x $$", GIVEN)
    (alone,) = verdicts("We see that\n\n$$ x^\\top u c = A u x $$", GIVEN)
    assert (found.kind, alone.kind) == ("not readable", "ill-formed") and "restart" in found.message


def test_a_vector_that_the_prose_gives_a_value():
    text = r"Here $v = S w$. $$ v^\top x = w^\top S^\top x $$"
    given = r"given w, v, x \in \mathbb{R}^n, S \in \mathbb{R}^{n \times n}"
    (verdict,) = verdicts(text, given)
    assert verdict.kind == "not readable" and "it holds if v = S w, as the text says" in verdict.message
    assert verdicts(text.replace("Here $v = S w$.", ""), given)[0].kind == "refused"


def test_words_about_a_part_of_a_matrix_say_nothing_of_the_matrix():
    given = r"given S, A \in \mathbb{R}^{n \times n}; let S_{\text{S}} = \frac12 (S + S^\top)"
    said, line = r"It is seen that ${}$ is symmetric.", "\n\n" + r"$$ S A = S^\top A $$"
    assert [one.kind for one in verdicts(said.format(r"S_{\text{S}}") + line, given)] == ["refused"]
    assert [one.kind for one in verdicts(said.format("S") + line, given)] == ["not readable"]
