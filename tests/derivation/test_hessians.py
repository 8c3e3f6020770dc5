"""Second derivatives by elements, by columns, and of functions."""

import pytest

from .judging import kinds, one

GIVEN = (
    r"given x, y, b \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, a, c \in \mathbb{R}; let q = x^\top A x; "
    r"let f(x) = b^\top x + x^\top A x; let \sigma(t) = \frac{1}{1 + e^{-t}}; let g = a^3 c^2; "
    r"let s = \log \sum_j e^{x_j}; let p_i = e^{x_i - s}; partial total"
)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            r"\frac{\partial^2 q}{\partial x_i \partial x_j} = A_{ij} + A_{ji}",
            r"\frac{\partial^2 q}{\partial x_i \partial x_j} = 2 A_{ij}",
        ),
        (r"\frac{\partial^2 q}{\partial x_i^2} = 2 A_{ii}", r"\frac{\partial^2 q}{\partial x_i^2} = A_{ii}"),
        (r"\nabla^2 f(x) = A + A^\top", r"\nabla^2 f(x) = A + A"),
        (r"\nabla^2 f = A + A^\top", r"\nabla^2 f = A^\top + A^\top"),
        (r"\nabla_x^2 q = A + A^\top", r"\nabla^2_x q = A"),
        (r"\nabla_{x}^{2} (x^\top A x) = A + A^\top", r"\nabla_{x}^{2} (x^\top A x) = 2 A"),
        (
            r"\frac{\partial^2 q}{\partial x \partial x^\top} = A + A^\top",
            r"\frac{\partial^2 q}{\partial x \partial x^T} = A",
        ),
        (
            r"\frac{\partial^2 q}{\partial x^2} = A + A^\top",
            r"\frac{\partial^2 q}{\partial x^2} = A - A^\top",
        ),
        (
            r"\frac{\partial^2 g}{\partial a \partial c} = 6 a^2 c",
            r"\frac{\partial^2 g}{\partial a \partial c} = 6 a c^2",
        ),
        (r"\frac{d^2 g}{d a^2} = 6 a c^2", r"\frac{d^2 g}{d a^2} = 3 a^2 c^2"),
        (
            r"\frac{\partial^2}{\partial a^2} \left( a^4 \right) = 12 a^2",
            r"\frac{\partial^2}{\partial a^2} \left( a^4 \right) = 12 a^3",
        ),
        (
            r"\sigma''(a) = \sigma(a) (1 - \sigma(a)) (1 - 2 \sigma(a))",
            r"\sigma''(a) = \sigma(a) (1 - \sigma(a)) (1 + 2 \sigma(a))",
        ),
        (
            r"\frac{\partial^2 s}{\partial x_i \partial x_j} = p_i (\delta_{ij} - p_j)",
            r"\frac{\partial^2 s}{\partial x_i \partial x_j} = p_i (\delta_{ij} + p_j)",
        ),
        (
            r"\nabla_x^2 s = \operatorname{diag}(p) - p p^\top",
            r"\nabla_x^2 s = \operatorname{diag}(p) + p p^\top",
        ),
    ],
)
def test_a_second_derivative_is_equal_and_its_wrong_twin_is_refused(right, wrong):
    assert one(right, GIVEN).kind == "equal"
    assert one(wrong, GIVEN).kind == "refused"


def test_the_hessian_of_a_loss():
    lines = (
        r"L(w) = \frac12 \lVert X w - t \rVert^2 + \frac{\lambda}{2} \lVert w \rVert^2",
        r"\nabla^2 L(w) = X^\top X + \lambda I",
        r"\nabla^2 L = X^\top X",
        r"H_{ij} = \frac{\partial^2 L}{\partial w_i \partial w_j}",
        r"H = X^\top X + \lambda I_n",
        r"H = X^\top X + \lambda \lambda I_n",
    )
    text = "\n\n".join(f"$$ {line} $$" for line in lines)
    declared = (
        r"given X \in \mathbb{R}^{m \times n}, w \in \mathbb{R}^n, t \in \mathbb{R}^m, "
        r"\lambda \in \mathbb{R}; loss L"
    )
    assert kinds(text, declared) == ["definition", "equal", "refused", "definition", "equal", "not readable"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (r"\nabla^2 f = \sum_i 2 A_{ii}", "this is a number"),  # as a Laplacian
        (r"\frac{\partial^2 q}{\partial x \partial b} = A", "which of the two has the rows?"),
        (r"\frac{\partial^2 q}{\partial A \partial A} = q", "by numbers, or by a column"),
        (r"\frac{\partial^2 x}{\partial a^2} = x", "only a number"),
        (r"\frac{\partial^2 \mathcal{L}}{\partial a^2} = 0", "the loss is not defined here"),
    ],
)
def test_what_has_several_meanings_is_not_readable(line, why):
    verdict = one(line, GIVEN)
    assert verdict.kind == "not readable"
    assert why in verdict.message
