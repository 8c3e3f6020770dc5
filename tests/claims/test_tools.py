"""The judgement of a displayed derivation, as the checks of claims use it."""

import pytest

from backpass_ledger.claims.tools import derives

SOFTMAX = r"""
    given x \in \mathbb{R}^n
    let z_i = \frac{e^{x_i}}{\sum_j e^{x_j}}
    loss L
"""
RIGHT = r"""
\begin{align*}
\frac{\partial L}{\partial x_i} &= \frac{\partial L}{\partial z_i}z_i - z_i\sum_j \frac{\partial L}{\partial z_j}z_j \\
&= z_i\left(\frac{\partial L}{\partial z_i} - \sum_j \frac{\partial L}{\partial z_j}z_j\right)
\end{align*}
"""


def test_a_right_display_derives():
    assert derives(RIGHT, SOFTMAX)


@pytest.mark.parametrize("line", [1, 2])
def test_a_display_with_a_wrong_line_does_not(line):
    lines = RIGHT.split(r"\\")
    lines[line - 1] = lines[line - 1].replace("- ", "+ ")
    assert not derives(r"\\".join(lines), SOFTMAX)


def test_a_definition_beside_a_right_line_is_not_an_obstacle():
    assert derives(r"S = \sum_j e^{x_j} \\ z_i = \frac{e^{x_i}}{S}", SOFTMAX)


def test_macros_of_the_definitions_are_expanded():
    assert derives(r"\mathbf{x}_1 = x_1", rf"\renewcommand{{\mathbf}}[1]{{#1}}; {SOFTMAX}")


def test_a_line_that_cannot_be_read_is_named():
    with pytest.raises(ValueError, match=r"not readable: x_1 w: .*continue the row above"):
        derives(r"z_1 &= x_1 w \\ &\vdots", SOFTMAX)
    with pytest.raises(ValueError, match="w is not declared"):
        derives("z_1 = w", SOFTMAX)


def test_definitions_alone_are_not_derivation():
    with pytest.raises(ValueError, match="expected an equation to judge; got only definitions: S = "):
        derives(r"S = \sum_j e^{x_j}", SOFTMAX)
