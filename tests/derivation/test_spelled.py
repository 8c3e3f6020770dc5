"""A derivative by a vector equals the array of its elements, in one layout of a text; a slip in the array does not."""

import pytest

from tests.derivation.test_first_sight import displays, kinds, sight

GRADIENT = r"\nabla f(\mathbf{x}) = \begin{bmatrix} \frac{\partial f}{\partial x_1} \\ \frac{\partial f}{\partial x_2} \\ \vdots \\ \frac{\partial f}{\partial x_n} \end{bmatrix}"
ROW = r"\frac{\partial f}{\partial \mathbf{x}} = \begin{bmatrix} \frac{\partial f}{\partial x_1} & \frac{\partial f}{\partial x_2} & \cdots & \frac{\partial f}{\partial x_n} \end{bmatrix}"
SMALL = r"\nabla f = \begin{pmatrix} \frac{\partial f}{\partial x_1} \\ \frac{\partial f}{\partial x_2} \end{pmatrix}"
HESSIAN = (
    r"H = \nabla^2 f = \begin{bmatrix} \frac{\partial^2 f}{\partial x_1^2} & \cdots & \frac{\partial^2 f}{\partial x_1 \partial x_n} \\"
    r" \vdots & \ddots & \vdots \\ \frac{\partial^2 f}{\partial x_n \partial x_1} & \cdots & \frac{\partial^2 f}{\partial x_n^2} \end{bmatrix}"
)
JACOBIAN = (
    r"\frac{\partial \mathbf{y}}{\partial \mathbf{x}} = \begin{bmatrix} \frac{\partial y_1}{\partial x_1} & \cdots & \frac{\partial y_1}{\partial x_n} \\"
    r" \vdots & \ddots & \vdots \\ \frac{\partial y_m}{\partial x_1} & \cdots & \frac{\partial y_m}{\partial x_n} \end{bmatrix}"
)
TURNED = (
    r"\frac{\partial \mathbf{y}}{\partial \mathbf{x}} = \begin{bmatrix} \frac{\partial y_1}{\partial x_1} & \cdots & \frac{\partial y_m}{\partial x_1} \\"
    r" \vdots & \ddots & \vdots \\ \frac{\partial y_1}{\partial x_n} & \cdots & \frac{\partial y_m}{\partial x_n} \end{bmatrix}"
)


@pytest.mark.parametrize("text", [GRADIENT, ROW, SMALL, HESSIAN, JACOBIAN, TURNED])
def test_an_array_of_derivatives(text):
    assert kinds(displays(text))[-1] == "equal"


def test_the_layout_is_said_and_is_one_for_a_text():
    assert sight(displays(JACOBIAN))[-1].inferred == ("derivatives are in numerator layout",)
    assert sight(displays(TURNED))[-1].inferred == ("derivatives are in denominator layout",)
    both = displays(JACOBIAN, TURNED.replace("y", "u").replace("x", "v"))
    assert kinds(both) == ["equal", "not readable"]


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (GRADIENT, "x_2", "x_3"),
        (GRADIENT, "x_1", "x_2"),
        (GRADIENT, r"\frac{\partial f}{\partial x_n}", r"\frac{\partial f}{\partial y_n}"),
        (GRADIENT, r"\frac{\partial f}{\partial x_n}", r"\frac{\partial f_n}{\partial x_n}"),
        (GRADIENT, r"\frac{\partial f}{\partial x_n}", r"2 \frac{\partial f}{\partial x_n}"),
        (GRADIENT, r"\frac{\partial f}{\partial x_n}", r"\frac{\partial x_n}{\partial f}"),
        (GRADIENT, r"\vdots \\", ""),
        (GRADIENT, r" \\", " &"),
        (GRADIENT, r"\nabla f", r"\nabla g"),
        (ROW, r"\frac{\partial f}{\partial \mathbf{x}}", r"\nabla f"),
        (ROW, "x_n", "x_m x_n"),
        (SMALL, "x_2", "x_1"),
        (HESSIAN, r"\partial x_n \partial x_1", r"\partial x_n \partial x_n"),
        (HESSIAN, "x_1^2", "x_2^2"),
        (HESSIAN, "x_n^2", "x_n"),
        (HESSIAN, r"\nabla^2", r"\nabla"),
        (HESSIAN, r"\partial^2 f}{\partial x_1 \partial x_n", r"\partial^2 f}{\partial x_1 \partial x_m"),
        (JACOBIAN, r"y_1}{\partial x_n", r"y_1}{\partial x_m"),
        (JACOBIAN, r"y_m}{\partial x_1", r"y_1}{\partial x_m"),
        (JACOBIAN, r"y_m}{\partial x_n", r"y_n}{\partial x_m"),
        (JACOBIAN, r"\mathbf{y}}", r"\mathbf{u}}"),
        (TURNED, r"y_m}{\partial x_1", r"y_1}{\partial x_1"),
        (TURNED, r"y_1}{\partial x_n", r"y_n}{\partial x_1"),
    ],
)  # fmt: skip
def test_a_slip_in_an_array_is_not_equal(text, right, wrong):
    assert right in text
    assert kinds(displays(text.replace(right, wrong, 1)))[-1] not in ("equal", "refused")
