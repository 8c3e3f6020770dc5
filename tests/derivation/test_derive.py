"""Derivations of real operations pass; the same with one wrong line do not."""

import pytest

from backpass.derivation import DerivationError, derive

SOFTMAX = r"""
    given  x, \bar{y} \in \mathbb{R}^n
    let    S = \sum_j e^{x_j}
    let    y_i = \frac{e^{x_i}}{S}

    note   An output and its own score.
    \frac{\partial y_i}{\partial x_i} = \frac{\partial}{\partial x_i} \left( \frac{e^{x_i}}{S} \right)
        = \frac{e^{x_i} S - e^{x_i} e^{x_i}}{S^2}                             | quotient rule
        = \frac{e^{x_i}}{S} \cdot \frac{S - e^{x_i}}{S}
        = y_i (1 - y_i)

    \frac{\partial y_j}{\partial x_i} = \frac{0 \cdot S - e^{x_j} e^{x_i}}{S^2} \quad (j \ne i)
        = -y_j y_i

    \bar{x}_i = \sum_j \bar{y}_j \frac{\partial y_j}{\partial x_i}            | every output depends on $x_i$
        = \bar{y}_i \frac{\partial y_i}{\partial x_i} + \sum_{j \ne i} \bar{y}_j \frac{\partial y_j}{\partial x_i}
        = \bar{y}_i y_i (1 - y_i) - \sum_{j \ne i} \bar{y}_j y_j y_i
        = y_i \left( \bar{y}_i - \bar{y}_i y_i - \sum_{j \ne i} \bar{y}_j y_j \right)
        = y_i \left( \bar{y}_i - \sum_j \bar{y}_j y_j \right)
"""


def test_softmax_from_its_forward_to_its_backward() -> None:
    derivation = derive(SOFTMAX, name="softmax", operation="softmax")
    assert len(derivation.chains) == 3


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"= -y_j y_i", r"= y_j y_i"),
        (r"y_i (1 - y_i) - \sum", r"y_i (1 - y_i) + \sum"),
        (r"\sum_{j \ne i} \bar{y}_j y_j y_i", r"\sum_j \bar{y}_j y_j y_i"),
        (r"e^{x_i} S - e^{x_i} e^{x_i}", r"e^{x_i} S - e^{x_i}"),
        (r"\sum_j \bar{y}_j y_j \right)", r"\sum_j \bar{y}_j y_i \right)"),
    ],
)
def test_a_wrong_line_is_caught(right: str, wrong: str) -> None:
    assert right in SOFTMAX
    with pytest.raises(DerivationError, match="does not equal the line above it"):
        derive(SOFTMAX.replace(right, wrong), name="softmax")
