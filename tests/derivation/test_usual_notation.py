"""Notation that texts use without an explanation: each right line is equal, each slip is refused."""

import pytest

from .judging import kinds, one, verdicts

GIVEN = r"""given a, b, c, s \in \mathbb{R}, x, y, \theta \in \mathbb{R}^n, A, B \in \mathbb{R}^{n \times n}
given W \in \mathbb{R}^{m \times n}, z \in \mathbb{R}^m, p, q \in \mathbb{R}_{>0}
let f(t) = e^{t^\top t}; let \pi_\theta(u, v) = e^{u v \theta^\top \theta}
"""
ASKED = "not readable"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            r"\left.\frac{\partial a^2}{\partial a}\right|_{a=1} = 2",
            r"\left.\frac{\partial a^2}{\partial a}\right|_{a=1} = 1",
        ),
        (r"\left.\frac{d}{da} e^{a b}\right|_{a=0} = b", r"\left.\frac{d}{da} e^{a b}\right|_{a=0} = a b"),
        (
            r"\frac{\partial a^2}{\partial a} \Big|_{a=b} = 2 b",
            r"\frac{\partial a^2}{\partial a} \Big|_{a=b} = 2 a",
        ),
        (r"\left. a^2 c \right|_{a=b, c=2} = 2 b^2", r"\left. a^2 c \right|_{a=b, c=2} = b^2 c"),
        (
            r"\left.\frac{\partial}{\partial x_k} \log \sum_i e^{x_i}\right|_{x=0} = \frac1n",
            r"\left.\frac{\partial}{\partial x_k} \log \sum_i e^{x_i}\right|_{x=0} = n",
        ),
        (
            r"\left.\frac{\partial \sum_i x_i^2}{\partial x}\right|_{x=y} = 2 y",
            r"\left.\frac{\partial \sum_i x_i^2}{\partial x}\right|_{x=y} = 2 x",
        ),
        (
            r"\left.\frac{d}{dc} \lVert x - c y \rVert^2\right|_{c=0} = -2 x^\top y",
            r"\left.\frac{d}{dc} \lVert x - c y \rVert^2\right|_{c=0} = 2 x^\top y",
        ),
    ],
)
def test_values_at_a_point(right, wrong):
    assert (one(right, GIVEN).kind, one(wrong, GIVEN).kind) == ("equal", "refused")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (r"\left.\frac1a\right|_{a=0} = 0", "no value at that point"),
        (r"\left.\max(0, a)\right|_{a=1} = 1", "beside comparisons"),
        (r"\left.\sqrt{p^2}\right|_{p=-1} = -1", "positive"),
        (r"\left. g \right|_{g=1} = 1", "an input"),
    ],
)
def test_a_value_that_is_not_certain_at_a_point_is_not_judged(formula, message):
    verdict = one(formula, GIVEN + "let g = a^2")
    assert verdict.kind == ASKED and message in verdict.message


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            r"\nabla_x \frac{1}{2} (x - y)^\top (x - y) = x - y",
            r"\nabla_x \frac{1}{2} (x - y)^\top (x - y) = 2 x - 2 y",
        ),
        (
            r"\nabla_x \frac{1}{2n} x^\top A x = \frac{1}{2n} (A + A^\top) x",
            r"\nabla_x \frac{1}{2n} x^\top A x = A x",
        ),
        (r"\nabla_x x^\top A x + y = (A + A^\top) x + y", r"\nabla_x x^\top A x = 2 A x"),
        (r"\nabla_x \sum_i x_i = \mathbf 1", r"\nabla_x \sum_i x_i = x"),
        (r"\nabla_x \log \sum_i e^{x_i} = \operatorname{softmax}(x)", r"\nabla_x \log \sum_i e^{x_i} = x"),
        (r"f(x) \nabla_x \log f(x) = \nabla_x f(x)", r"\nabla_x \log f(x) = \nabla_x f(x)"),
        (
            r"\nabla_\theta \pi_\theta(a \mid s) = \pi_\theta(a \mid s) \nabla_\theta \log \pi_\theta(a \mid s)",
            r"\nabla_\theta \pi_\theta(a \mid s) = \nabla_\theta \log \pi_\theta(a \mid s)",
        ),
        (
            r"\nabla_\theta \log \pi_\theta(a | s) b = b \frac{\nabla_\theta \pi_\theta(a | s)}{\pi_\theta(a | s)}",
            r"\nabla_\theta \log \pi_\theta(a | s) b = \frac{\nabla_\theta \pi_\theta(a | s)}{\pi_\theta(a | s)}",
        ),
        (
            r"\frac{\partial^2}{\partial x_i \partial x_j} x^\top A x = A_{ij} + A_{ji}",
            r"\frac{\partial^2}{\partial x_i \partial x_j} x^\top A x = 2 A_{ij}",
        ),
    ],
)
def test_gradients_without_brackets(right, wrong):
    assert (one(right, GIVEN).kind, one(wrong, GIVEN).kind) == ("equal", "refused")


def test_a_gradient_that_may_reach_further_is_asked_about():
    assert "how far" in one(r"\nabla_x \log f(x) x_1 = x_1 \nabla_x \log f(x)", GIVEN).message
    assert one(r"\nabla_x \frac{x_1}{2} x_2 = 0", GIVEN).kind == ASKED


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            r"\sum_{i<j} x_i x_j = \frac12 \left( (\sum_i x_i)^2 - \sum_i x_i^2 \right)",
            r"\sum_{i<j} x_i x_j = (\sum_i x_i)^2 - \sum_i x_i^2",
        ),
        (
            r"\sum_{i \ne j} x_i x_j = (\sum_i x_i)^2 - \sum_i x_i^2",
            r"\sum_{i \ne j} x_i x_j = (\sum_i x_i)^2",
        ),
        (r"\sum_{i<j} (x_i + x_j) = \sum_{i>j} (x_i + x_j)", r"2 a = 2 a + \sum_{i<j} (x_i - x_j)"),
        (
            r"\sum_{1 \le i < j \le n} x_i x_j = \sum_{i<j} x_i x_j",
            r"\sum_{1 \le i < j \le n} x_i x_j = \sum_{i, j} x_i x_j",
        ),
        (
            r"\sum_{i,j : i \ne j} x_i x_j = 2 \sum_{i<j} x_i x_j",
            r"\sum_{i,j : i \ne j} x_i x_j = \sum_{i<j} x_i x_j",
        ),
        (r"\sum_{j \ne i} x_j = \sum_j x_j - x_i", r"\sum_{j \ne i} x_j = \sum_j x_j"),
        (r"\sum_{j<i} x_j = \sum_j x_j - \sum_{j \ge i} x_j", r"\sum_{j<i} x_j = \sum_j x_j - x_i"),
        (r"u_j = \sum_{i \le j} x_i = x_j + \sum_{i<j} x_i", r"u_j = \sum_{i \le j} x_i = \sum_{i<j} x_i"),
    ],
)
def test_sums_over_pairs(right, wrong):
    prefix = GIVEN + r"let u_j = \sum_{i \le j} x_i"
    assert {*kinds(f"$$ {right} $$", prefix)} == {"equal"}
    assert kinds(f"$$ {wrong} $$", prefix)[-1] == "refused"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"1(i = j) x_j = \delta_{ij} x_j", r"1(i = j) x_j = x_j"),
        (
            r"x_j \left( 1(i == j) - \frac1n \right) = x_j (\delta_{ij} - \frac1n)",
            r"1(i == j) x_j = \frac1n x_j",
        ),
        (r"\mathbf{1}[i = j] x_j = \delta_{ij} x_j", r"\mathbf{1}[i \ne j] x_j = \delta_{ij} x_j"),
        (r"\mathbf{1}\{a > 0\} a = \max(0, a)", r"\mathbf{1}\{a < 0\} a = \max(0, a)"),
        (r"\mathbb{1}_{\{a > 0\}} a = \max\{0, a\}", r"1_{\{a > 0\}} a = \min\{0, a\}"),
        (r"\lVert x \rVert_1 = \sum_i |x_i|", r"\lVert x \rVert_1 = \sum_i x_i"),
        (r"x \otimes y = x y^\top", r"x \otimes y = y x^\top"),
        (r"(x \otimes y)_{ij} = x_i y_j", r"(x \otimes y)_{ij} = x_j y_i"),
        (r"x \cdot y + a = \sum_i x_i y_i + a", r"x \cdot y + a = \sum_i x_i y_i - a"),
        (r"W x \cdot z = z^\top W x", r"W x \cdot z = 2 z^\top W x"),
    ],
)
def test_indicators_norms_and_products(right, wrong):
    assert (one(right, GIVEN).kind, one(wrong, GIVEN).kind) == ("equal", "refused")


def test_a_dot_between_columns_may_be_the_product_of_the_elements():
    assert one(r"x \cdot y = x \odot y", GIVEN).kind == ASKED
    assert one(r"A \otimes B = A", GIVEN).kind == ASKED


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"|c| = -c \quad (c < 0)", r"|c| = c \quad (c < 0)"),
        (r"\max(c, a) = c \quad \text{if } c > a", r"\max(c, a) = a \quad \text{if } c > a"),
        (r"|c - 1| = 1 - c \quad \text{if } c \le 1", r"|c - 1| = c - 1 \quad \text{if } c \le 1"),
        (r"\sqrt{c^2} = -c, \quad c < 0, a > 0", r"\sqrt{c^2} = c, \quad c < 0, a > 0"),
    ],
)
def test_conditions_on_numbers(right, wrong):
    assert (one(right, GIVEN).kind, one(wrong, GIVEN).kind) == ("equal", "refused")


def test_a_condition_does_not_reach_into_definitions_and_derivatives():
    more = GIVEN + r"let g = |c|; let k(u) = |c| + u - u"
    for formula in (r"g = -c", r"k(c) = -c", r"\frac{\partial |c|}{\partial c} = -1"):
        assert one(rf"{formula} \quad \text{{if }} c < 0", more).kind == ASKED


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"d(AB) = dA \, B + A \, dB", r"d(AB) = dA \, B + B \, dA"),
        (
            r"d(x^\top A x) = x^\top (A + A^\top) dx + x^\top dA \, x",
            r"d(x^\top A x) = 2 x^\top A \, dx + x^\top dA \, x",
        ),
        (r"\mathrm{d}(A^{-1}) = -A^{-1} \, \mathrm{d}A \, A^{-1}", r"d(A^{-1}) = A^{-1} \, dA \, A^{-1}"),
        (r"d \log\det(A) = \operatorname{tr}(A^{-1} dA)", r"d \log\det(A) = \operatorname{tr}(A \, dA)"),
        (
            r"d\operatorname{tr}(A B) = \operatorname{tr}(B \, dA) + \operatorname{tr}(A \, dB)",
            r"d\operatorname{tr}(A B) = \operatorname{tr}(dA \, dB)",
        ),
        (r"d \lVert x \rVert^2 = 2 x^\top dx", r"d \lVert x \rVert^2 = x^\top dx"),
        (r"d(A B)^\top = dB^\top A^\top + B^\top dA^\top", r"d(A B)^\top = dA^\top B^\top + A^\top dB^\top"),
        (r"d \log p = \frac{dp}{p}", r"d \log p = \frac{dp}{p^2}"),
        (r"d(g b) = dg \, b + g \, db", r"d(g b) = a \, b \, da + g \, db"),
    ],
)
def test_differentials_of_expressions(right, wrong):
    more = GIVEN + "d differential; let g = a^2"
    assert (one(right, more).kind, one(wrong, more).kind) == ("equal", "refused")


def test_a_brace_with_an_equals_sign_is_an_equation_of_its_own():
    text = "$$ {} $$"
    right = r"\begin{align} a &= a + \underbrace{b - b}_{=0} \\ &= a \end{align}"
    assert kinds(text.format(right), GIVEN) == ["equal", "equal", "equal"]
    wrong = r"\begin{align} b &= a + \underbrace{b - a}_{=0} \\ &= b \end{align}"
    assert kinds(text.format(wrong), GIVEN) == ["equal", "equal", "refused"]
    named = kinds(text.format(r"2 a = \underbrace{a + a}_{= u}") + "\n\n" + text.format("u = 2 a"), GIVEN)
    assert named == ["equal", "definition", "equal"]
    of_index = text.format(r"x_i + x_j = \underbrace{(x_i - x_i + 1)}_{=1} \cdot (x_i + x_j)")
    assert kinds(of_index, GIVEN) == ["equal", "equal"]
    declared = verdicts(text.format(r"2 a = \underbrace{a + a}_{= b}"), GIVEN)
    assert [verdict.kind for verdict in declared] == ["equal", ASKED]
    assert "b is declared" in declared[1].message


FILTER = r"""given F_k, Q_k, P_{k-1|k-1} \in \mathbb{R}^{n \times n}, K_k \in \mathbb{R}^{n \times m}, H_k \in \mathbb{R}^{m \times n}
given \hat{x}_{k|k-1} \in \mathbb{R}^n, r_k \in \mathbb{R}^m
let P_{k|k-1} = F_k P_{k-1|k-1} F_k^\top + Q_k; let P_{k|k} = (I - K_k H_k) P_{k|k-1}
let \hat{x}_{k|k} = \hat{x}_{k|k-1} + K_k \cdot (r_k - H_k \hat{x}_{k|k-1})
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"P_{k|k} = P_{k|k-1} - K_k H_k P_{k \mid k-1}", r"P_{k|k} = P_{k|k-1} + K_k H_k P_{k|k-1}"),
        (
            r"P_{k|k}^\top = P_{k|k-1}^\top (I - K_k H_k)^\top",
            r"P_{k|k}^\top = (I - K_k H_k)^\top P_{k|k-1}^\top",
        ),
        (
            r"\hat{x}_{k|k} = (I - K_k H_k) \hat{x}_{k|k-1} + K_k r_k",
            r"\hat{x}_{k|k} = (I - K_k H_k) \hat{x}_{k|k-1}",
        ),
    ],
)
def test_subscripts_of_a_filter(right, wrong):
    assert (one(right, FILTER).kind, one(wrong, FILTER).kind) == ("equal", "refused")


def test_a_minus_above_a_step_is_a_part_of_the_name():
    given = r"given P_k^- \in \mathbb{R}^{n \times n}, K_k, H_k \in \mathbb{R}^{n \times n}; let P_k = (I - K_k H_k) P_k^-"
    assert one("P_k = P_k^{-} - K_k H_k P_k^-", given).kind == "equal"
    assert one("P_k = P_k^- - K_k P_k^-", given).kind == "refused"
