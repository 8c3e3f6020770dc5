"""Inverses and determinants, by cofactors: right identities and derivatives are equal, their wrong twins refused."""

import pytest

from .judging import kinds, one, verdicts

SQUARE = r"given A, B \in \mathbb{R}^{n \times n}, x, b \in \mathbb{R}^n, X \in \mathbb{R}^{m \times n}, c \in \mathbb{R}"
KALMAN = r"""
constant P \in \mathbb{R}^{n \times n}, R \in \mathbb{R}^{m \times m}
given H \in \mathbb{R}^{m \times n}
assume P = P^\top; assume R = R^\top
let S = H P H^\top + R
let K = P H^\top S^{-1}
factor P
"""
FILTER = r"""
range t = 1, \dots, T
given A, Q, P_0 \in \mathbb{R}^{n \times n}, R \in \mathbb{R}^{m \times m}, H \in \mathbb{R}^{m \times n}
given y_t \in \mathbb{R}^m, x_0 \in \mathbb{R}^n
let M_t = A P_{t-1} A^\top + Q
let K_t = M_t H^\top (H M_t H^\top + R)^{-1}
let P_t = (I - K_t H) M_t
let x_t = A x_{t-1} + K_t (y_t - H A x_{t-1})
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"A A^{-1} = I_n", r"A A^{-\top} = I_n"),
        (r"(A B)^{-1} = B^{-1} A^{-1}", r"(A B)^{-1} = A^{-1} B^{-1}"),
        (r"(A^\top)^{-1} = A^{-T}", r"(A^\top)^{-1} = A^{-1}"),
        (r"A^{-\top} = (A^{-1})^\top", r"A^{-\top} = A^{-1}"),
        (r"(c A)^{-1} = c^{-1} A^{-1}", r"(c A)^{-1} = c A^{-1}"),
        (r"\det(A B) = \det(A) \det(B)", r"\det(A + B) = \det(A) + \det(B)"),
        (r"\det(c A^\top) = c^n \det(A)", r"\det(c A) = c \det(A)"),
        (r"\mathrm{det}(A^{-1}) = \frac{1}{\operatorname{det}(A)}", r"\det(A^{-1}) = \det(A)"),
        (r"\log \det(A B) = \log \det(A) + \log \det(B)", r"\log \det(A B) = \log \det(A) - \log \det(B)"),
        (r"\log \det(A^{-1}) = -\log \det A", r"\log \det(A^{-1}) = \log \det A"),
        (r"\operatorname{tr}(A^{-1} B) = \operatorname{tr}(B A^{-1})", r"A^{-1} B = B A^{-1}"),
        (r"(A^{-1})_{ij} = \sum_k (A^{-1})_{ik} \delta_{kj}", r"(A^{-1})_{12} = \frac{1}{A_{12}}"),
        (
            r"(A + x b^\top)^{-1} = A^{-1} - \frac{A^{-1} x b^\top A^{-1}}{1 + b^\top A^{-1} x}",
            r"(A + x b^\top)^{-1} = A^{-1} - \frac{A^{-1} x b^\top A^{-1}}{1 - b^\top A^{-1} x}",
        ),
        (
            r"\det(A + x b^\top) = \det(A) (1 + b^\top A^{-1} x)",
            r"\det(A + x b^\top) = \det(A) (1 + x^\top A^{-1} b)",
        ),
    ],
)
def test_an_identity_is_equal_and_its_wrong_twin_is_refused(right, wrong):
    assert [one(right, SQUARE).kind, one(wrong, SQUARE).kind] == ["equal", "refused"]


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (r"X^{-1} X = I_n", "only a square matrix has an inverse"),
        (r"x^{-\top} = x", "only a square matrix has an inverse"),
        (r"c^{-\top} = c", "only a matrix has a transpose of its inverse"),
        (r"\det X = 1", "a determinant needs a square matrix"),
        (r"A_{ij}^{-1} = 1", "an element of the inverse, or the inverse of the element"),
        (r"A^{-2} = A^{-1} A^{-1}", "only numbers and square matrices have powers"),
        (r"((x + b) x^\top + (x + b) b^\top)^{-1} = I_n", "this matrix has no inverse at the sizes tried"),
        (r"(x x^\top)^{-1} x x^\top = I_n", "this matrix has no inverse"),
        (r"(A - A)^{-1} = I_n", "this matrix has no inverse"),
    ],
)
def test_what_has_no_inverse_is_not_readable(formula, message):
    found = one(formula, SQUARE)
    assert found.kind == "not readable"
    assert message in found.message


def test_the_derivatives_of_log_det_and_of_an_inverse():
    text = r"""
$$ L = \log \det(A) + x^\top A^{-1} b $$

$$ \frac{\partial L}{\partial A} = A^{-\top} - A^{-\top} x b^\top A^{-\top} $$

$$ \frac{\partial L}{\partial A} = A^{-1} - A^{-\top} x b^\top A^{-\top} $$

$$ \frac{\partial L}{\partial A} = A^{-\top} - A^{-\top} b x^\top A^{-\top} $$

$$ \frac{\partial L}{\partial A} = A^{-\top} + A^{-\top} x b^\top A^{-\top} $$

$$ Y = A^{-1} B $$

$$ \dot{Y} = A^{-1} \dot{B} - A^{-1} \dot{A} Y $$

$$ \dot{Y} = A^{-1} \dot{B} - \dot{A} A^{-1} Y $$
"""
    expected = ["definition", "equal", "refused", "refused", "refused", "definition", "equal", "refused"]
    assert kinds(text, f"loss L; dot differential; layout denominator; {SQUARE}") == expected


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        (r"(I - K H) P(I - K H)^\top + K R K^\top = (I - K H) P", "equal"),
        (r"(I - K H) P(I - K H) + K R K^\top = (I - K H) P", "refused"),
        (r"(I - K H) P = P - K S K^\top", "equal"),
        (r"(I - K H) P = P - K R K^\top", "refused"),
        (r"((I - K H) P)^{-1} = P^{-1} + H^\top R^{-1} H", "equal"),
        (r"((I - K H) P)^{-1} = P^{-1} + H^\top S^{-1} H", "refused"),
        (r"K S = (P^{-1} + H^\top R^{-1} H)^{-1} H^\top R^{-1} S", "equal"),
        (r"K S = (P + H^\top R^{-1} H)^{-1} H^\top R^{-1} S", "refused"),
    ],
)
def test_a_kalman_gain(formula, kind):
    assert one(formula, KALMAN).kind == kind


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        (r"P_t + K_t H M_t = A P_{t-1} A^\top + Q", "equal"),
        (r"P_t + K_t H M_t = A P_t A^\top + Q", "refused"),
        (r"K_t (H M_t H^\top + R) = M_t H^\top", "equal"),
        (r"K_t (H P_t H^\top + R) = M_t H^\top", "refused"),
        (r"x_t - K_t y_t = (I - K_t H) A x_{t-1}", "equal"),
        (r"x_t - K_t y_t = (I - K_t H) A x_t", "refused"),
    ],
)
def test_a_kalman_filter_in_time(formula, kind):
    assert one(formula, FILTER).kind == kind


def test_the_rows_and_columns_that_sinkhorn_scales():
    definitions = r"""
    range t = 1, \dots, T
    given K \in \mathbb{R}^{n \times m}, a \in \mathbb{R}^n, b, v_0 \in \mathbb{R}^m
    let u_{ti} = \frac{a_i}{\sum_j K_{ij} v_{t-1,j}}
    let v_{tj} = \frac{b_j}{\sum_i K_{ij} u_{ti}}
    """
    text = r"""
$$ \sum_i u_{ti} K_{ij} v_{tj} = b_j $$

$$ \sum_j u_{ti} K_{ij} v_{t-1,j} = a_i $$

$$ \sum_j u_{ti} K_{ij} v_{tj} = a_i $$
"""
    assert kinds(text, definitions) == ["equal", "equal", "refused"]


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        (r"1 \cdot m_t = (1 - \beta) \sum_{s=1}^t \beta^{t-s} g_s", "equal"),
        (r"1 \cdot m_t = (1 - \beta) \sum_{s=1}^t \beta^{t-s+1} g_s", "refused"),
        (r"(1 - \beta) \sum_{s=1}^t \beta^{t-s} = 1 - \beta^t", "equal"),
        (r"(1 - \beta) \sum_{s=1}^t \beta^{t-s} = 1 - \beta^{t-1}", "refused"),
        (r"\sum_{i=1}^n i = \frac{n \, (n + 1)}{2}", "equal"),
        (r"\sum_{i=1}^{n-1} i x_{i+1} = \sum_{i=1}^n (i - 1) x_i", "equal"),
        (r"\sum_{i=1}^{n-1} i x_{i+1} = \sum_{i=1}^n i x_i", "refused"),
        (r"x_i = i x_i", "not readable"),
    ],
)
def test_an_index_of_a_sum_or_of_time_is_also_a_number(formula, kind):
    definitions = r"""
    range t = 1, \dots, T
    given g_t, \beta \in \mathbb{R}, x \in \mathbb{R}^n
    constant m_0 \in \mathbb{R}; assume m_0 = 0
    let m_t = \beta m_{t-1} + (1 - \beta) g_t
    """
    assert one(formula, definitions).kind == kind


def test_the_logarithm_of_a_sum_is_not_refused_where_the_numbers_agree():
    given = r"given a, b \in \mathbb{R}"
    (right, wrong) = verdicts(
        "$$ 2 \\log(a^2 + 2 a b + b^2) = 4 \\log(a + b) $$\n\n$$ 2 \\log(a^2 + a b + b^2) = 4 \\log(a + b) $$",
        given,
    )
    assert (right.kind, wrong.kind) == ("not readable", "refused")
    assert "it is 0 at the points tried" in right.message


def test_a_line_that_equals_a_refused_one_follows_it_beside_a_long_inverse():
    given = r"""given L \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n, b \in \mathbb{R}_{>0}
    let \Sigma = L L^\top; let d = x^\top \Sigma^{-1} x
    let p = \frac{n}{2} \log b - \frac{b + n}{2} \log(1 + \frac{d}{b})
    """
    sides = r"""\frac{\partial p}{\partial b} &= \frac{n}{2 b} SIGN \frac{b + n}{2} \left(1 + \frac{d}{b}\right)^{-1}
    \frac{d}{b^2} - \frac{1}{2} \log \left(1 + \frac{d}{b}\right) \\
    &= \frac{1}{2} \left( \frac{n}{b} SIGN \frac{(b + n) d}{b^2} \left(1 + \frac{d}{b}\right)^{-1}
    - \log \left(1 + \frac{d}{b}\right) \right)"""

    def found(text):
        return kinds(rf"$$ \begin{{aligned}} {text} \end{{aligned}} $$", given)

    assert found(sides.replace("SIGN", "-")) == ["refused", "follows"]
    assert found(sides.replace("SIGN", "-").replace(r"\frac{n}{b}", r"\frac{2}{b}")) == ["refused", "refused"]


POWERS = r"given A, B \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n, a \in \mathbb{R}, X \in \mathbb{R}^{m \times n}"


@pytest.mark.parametrize(
    "row, kind",
    [
        (r"(A + B)(A - B) = A^2 - A B + B A - B^2", "equal"),
        (r"(A + B)(A - B) = A^2 - B^2", "refused"),
        (r"(A + B)^2 = A^2 + 2 A B + B^2", "refused"),
        (r"(A^2)_{ij} = \sum_k A_{ik} A_{kj}", "equal"),
        (r"(A^2)^{-1} A = A^{-1}", "equal"),
        (r"A^2(A + B) = A^3 + A^2 B", "equal"),
        (r"(I - A)(I + A + A^2) = I - A^3", "equal"),
        (r"\operatorname{tr}(A^2) = \operatorname{tr}(A)^2", "refused"),
        (r"\det(A^2) = \det(A)^2", "equal"),
        (r"\nabla_A \operatorname{tr}(A^3) = 3 (A^\top)^2", "equal"),
        (r"\nabla_A \operatorname{tr}(A^3) = 3 A^2", "refused"),
        (r"A^2 - \operatorname{tr}(A) A + \det(A) I = A - A", "refused"),  # for 2 × 2
        (r"(X^\top X)^2 = X^\top X X^\top X", "equal"),
        (r"A^2 = A \odot A", "not readable"),  # the powers of its elements
        (r"X^2 = X \odot X", "not readable"),
        (r"x^2 = x \odot x", "not readable"),
    ],
)
def test_a_power_of_a_square_matrix(row, kind):
    assert one(row, POWERS).kind == kind
