"""Derivations that the tests share: of operations of the book and of later ones."""

import pytest

from backpass.derivation.book import derivation


@pytest.fixture(autouse=True)
def first_derivation(monkeypatch):
    """Each test numbers its lines from 1, as each notebook does."""
    monkeypatch.setattr(derivation, "_numbered", {})


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

LOG_SOFTMAX = r"""
    given x, \bar{y} \in \mathbb{R}^n
    let z_i = \frac{e^{x_i}}{\sum_j e^{x_j}}
    let y_i = \log z_i
    y_i = x_i - \log \sum_j e^{x_j}
    \frac{\partial y_j}{\partial z_j} = \frac{1}{z_j}
    \bar{x}_i = \bar{y}_i \frac{\partial y_i}{\partial z_i} \frac{\partial z_i}{\partial x_i}
                    + \sum_{j \neq i} \bar{y}_j \frac{\partial y_j}{\partial z_j} \frac{\partial z_j}{\partial x_i}
        = \bar{y}_i \frac{1}{z_i} z_i (1 - z_i) + \sum_{j \neq i} \bar{y}_j \frac{1}{z_j} (-z_j z_i)
        = \bar{y}_i (1 - z_i) - z_i \sum_{j \neq i} \bar{y}_j
        = \bar{y}_i - z_i \sum_j \bar{y}_j
        = \bar{y}_i - e^{y_i} \sum_j \bar{y}_j
"""

LAYER_NORM = r"""
    given     x, \gamma, \beta, \bar{y} \in \mathbb{R}^n
    constant  \epsilon \in \mathbb{R}_{>0}
    let  \mu = \frac{1}{n} \sum_j x_j
    let  \sigma^2 = \frac{1}{n} \sum_j (x_j - \mu)^2
    let  \hat{x}_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}}
    let  y_i = \gamma_i \hat{x}_i + \beta_i

    \frac{\partial \mu}{\partial x_i} = \frac{1}{n}

    \frac{\partial \sigma^2}{\partial x_i} = \frac{1}{n} \frac{\partial}{\partial x_i} \left[ \sum_j (x_j - \mu)^2 \right]
        = \frac{1}{n} \frac{\partial}{\partial x_i} \left[ (x_i - \mu)^2 + \sum_{j \neq i} (x_j - \mu)^2 \right]
        = \frac{1}{n} \left[ 2 (1 - \frac{\partial \mu}{\partial x_i}) (x_i - \mu)
              - 2 \sum_{j \neq i} \frac{\partial \mu}{\partial x_i} (x_j - \mu) \right]
        = \frac{2}{n} \left[ (1 - \frac{1}{n}) (x_i - \mu) + \sum_{j \neq i} (-\frac{1}{n}) (x_j - \mu) \right]
        = \frac{2}{n} \left[ x_i - \mu - \frac{1}{n} \sum_j (x_j - \mu) \right]
        = \frac{2 (x_i - \mu)}{n}

    \frac{\partial \hat{x}_i}{\partial x_i} = \frac{(1 - \frac{\partial \mu}{\partial x_i}) \sqrt{\sigma^2 + \epsilon}
              - (x_i - \mu) \frac{1}{2 \sqrt{\sigma^2 + \epsilon}} \frac{\partial \sigma^2}{\partial x_i}}{(\sqrt{\sigma^2 + \epsilon})^2}
        = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \left( 1 - \frac{1}{n} - \frac{\hat{x}_i^2}{n} \right)
    \frac{\partial \hat{x}_j}{\partial x_i} = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \left( -\frac{1}{n} - \frac{\hat{x}_j \hat{x}_i}{n} \right) \quad (j \ne i)

    \bar{\hat{x}}_i = \bar{y}_i \frac{\partial y_i}{\partial \hat{x}_i}
        = \bar{y}_i \gamma_i
    \bar{\gamma}_i = \bar{y}_i \hat{x}_i
    \bar{\beta}_i = \bar{y}_i
    \bar{x}_i = \bar{\hat{x}}_i \frac{\partial \hat{x}_i}{\partial x_i} + \sum_{j \neq i} \bar{\hat{x}}_j \frac{\partial \hat{x}_j}{\partial x_i}
        = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \left( \bar{\hat{x}}_i - \frac{1}{n} \bar{\hat{x}}_i - \frac{\hat{x}_i^2}{n} \bar{\hat{x}}_i
              - \sum_{j \neq i} \left( \frac{1}{n} + \frac{\hat{x}_i \hat{x}_j}{n} \right) \bar{\hat{x}}_j \right)
        = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \left( \bar{\hat{x}}_i - \frac{1}{n} \sum_j \bar{\hat{x}}_j - \frac{\hat{x}_i}{n} \sum_j \bar{\hat{x}}_j \hat{x}_j \right)
"""

MATMUL = r"""
    given A \in \mathbb{R}^{s \times n}, B \in \mathbb{R}^{n \times p}
    let Y_{ij} = \sum_k A_{ik} B_{kj}
    \bar{A}_{ik} = \sum_{r,j} \bar{Y}_{rj} \frac{\partial Y_{rj}}{\partial A_{ik}}
        = \sum_{r,j} \bar{Y}_{rj} \delta_{ri} B_{kj}                          | row $i$ of $A$ enters row $i$ of $Y$ alone
        = \sum_{j=1}^{p} \bar{Y}_{ij} B_{kj}
    \bar{B}_{kj} = \sum_i A_{ik} \bar{Y}_{ij}
"""

LINEAR = r"""
    given X \in \mathbb{R}^{m \times n}, W \in \mathbb{R}^{n \times p}, b \in \mathbb{R}^p
    let Y = X W + \mathbf{1}_m b^\top
    \langle \bar{Y}, \dot{Y} \rangle = \langle \bar{Y}, \dot{X} W + X \dot{W} + \mathbf{1}_m \dot{b}^\top \rangle
        = \operatorname{tr}(\bar{Y}^\top \dot{X} W) + \operatorname{tr}(\bar{Y}^\top X \dot{W}) + \operatorname{tr}(\bar{Y}^\top \mathbf{1}_m \dot{b}^\top)
        = \langle \bar{Y} W^\top, \dot{X} \rangle + \langle X^\top \bar{Y}, \dot{W} \rangle + \langle \bar{Y}^\top \mathbf{1}_m, \dot{b} \rangle
    \bar{X} = \bar{Y} W^\top
    \bar{W} = X^\top \bar{Y}
    \bar{b} = \bar{Y}^\top \mathbf{1}_m
"""

ATTENTION = r"""
    given A \in \mathbb{R}^{s \times t}, V \in \mathbb{R}^{t \times d}
    let Y = A V
    \dot{\mathcal{L}} = \langle \bar{Y}, \dot{Y} \rangle
        = \langle \bar{Y}, \dot{A} V \rangle + \langle \bar{Y}, A \dot{V} \rangle
        = \operatorname{tr}(\bar{Y}^\top \dot{A} V) + \operatorname{tr}(\bar{Y}^\top A \dot{V})
        = \operatorname{tr}(V \bar{Y}^\top \dot{A}) + \operatorname{tr}((A^\top \bar{Y})^\top \dot{V})      | cyclic
        = \langle \bar{Y} V^\top, \dot{A} \rangle + \langle A^\top \bar{Y}, \dot{V} \rangle
    \dot{Y} = A \dot{V} \quad (\dot{A} = 0)
    \bar{V} = A^\top \bar{Y}
    \bar{A} = \bar{Y} V^\top
"""

SOURCES = {
    "softmax": SOFTMAX,
    "log-softmax": LOG_SOFTMAX,
    "layer-norm": LAYER_NORM,
    "matmul": MATMUL,
    "linear": LINEAR,
    "attention": ATTENTION,
}


@pytest.fixture(scope="session")
def sources() -> dict[str, str]:
    """The texts of derivations that are right, by name."""
    return SOURCES
