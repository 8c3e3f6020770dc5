"""LayerNorm: the derivation of its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence, equations_of
from backpass_ledger.claims.tools import derives, jacobian, numbers, same, torch, vjp

CLAIMS = """
G103  true          0  norms       operations/layer_norm  definition
G104  true          0  norms       operations/layer_norm  definition
G105  true          0  norms       operations/layer_norm  parameters
G106  true          0  norms       operations/layer_norm  parameters
G107  true          0  norms       operations/layer_norm  indirect effects
G108  true          0  chain rule  operations/layer_norm  chain rule
G109  true          0  norms       operations/layer_norm  quotient rule, i, line 1
G110  true          0  norms       operations/layer_norm  quotient rule, i, line 2
G111  true          0  norms       operations/layer_norm  quotient rule, i, line 3
G112  true          0  norms       operations/layer_norm  quotient rule, j, line 1
G113  true          0  norms       operations/layer_norm  quotient rule, j, lines 2 and 3
G114  true          0  norms       operations/layer_norm  mean
G115  true          0  norms       operations/layer_norm  variance, lines 1 and 2
G116  false         6  norms       operations/layer_norm  variance, line 3
G117  true          0  norms       operations/layer_norm  variance, line 4
G118  false         3  norms       operations/layer_norm  variance, line 5
G119  true          0  norms       operations/layer_norm  variance, line 6
G120  true          0  norms       operations/layer_norm  inserted, i
G121  true          0  norms       operations/layer_norm  inserted, j
G122  true          0  norms       operations/layer_norm  together, line 1
G123  false         6  norms       operations/layer_norm  together, line 2
G124  inconsistent  1  notation    operations/layer_norm  together, line 2
G125  true          0  norms       operations/layer_norm  together, line 3
G126  true          0  norms       operations/layer_norm  together, line 4
G127  true          0  norms       operations/layer_norm  matrices
G128  true          0  norms       operations/layer_norm  matrices
G129  true          0  norms       operations/layer_norm  tensors
"""

N, EPS = 7, 0.1
X = numbers(N) + 2  # a mean that is not 0
W, B, DY = numbers(N, seed=1), numbers(N, seed=2), numbers(N, seed=3)
ROOT = np.sqrt(X.var() + EPS)
X_HAT = (X - X.mean()) / ROOT
DX_HAT = DY * W  # the gradient of x̂
X3, DY3 = numbers(2, 3, N), numbers(2, 3, N, seed=1)
LAYER_NORM = r"""
    given x, \gamma, \beta \in \mathbb{R}^N
    constant \epsilon \in \mathbb{R}_{>0}
    let \mu = \frac{1}{N}\sum_{j=1}^N x_j
    let \sigma^2 = \frac{1}{N}\sum_{j=1}^N (x_j - \mu)^2
    let \hat{x}_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}}
    let y_i = \gamma_i \hat{x}_i + \beta_i
    loss L
"""
ROWS = r"""
    given \hat{x} \in \mathbb{R}^{M \times N}, \gamma, \beta \in \mathbb{R}^N
    let y_{ri} = \gamma_i \hat{x}_{ri} + \beta_i
    loss L
"""


def norm(x: Any, w: Any = W, b: Any = B) -> Any:
    """Return PyTorch's LayerNorm."""
    w, b = (torch.as_tensor(parameter) for parameter in (w, b))
    return torch.nn.functional.layer_norm(x, (N,), w, b, EPS)


def all_gradients(x: Any, dy: Any) -> Any:
    """Return the gradients of x, γ, and β by PyTorch."""
    return vjp(norm, (x, W, B), dy)


def G103(it: Evidence) -> None:
    r"""$y_i = \gamma_i \hat{x}_i + \beta_i$ with $\hat{x}_i = (x_i - \mu)/
    \sqrt{\sigma^2 + \epsilon}$."""
    it.as_printed(same(W * X_HAT + B, norm(torch.tensor(X))))


def G104(it: Evidence) -> None:
    r"""$\mu = \frac1N\sum_j x_j$ and $\sigma^2 = \frac1N\sum_j (x_j - \mu)^2$.

    The variance divides by $N$, not by $N - 1$, as in PyTorch's LayerNorm."""
    centred = X - sum(X) / N
    x_hat = norm(torch.tensor(X), np.ones(N), np.zeros(N))
    it.as_printed(same(centred / np.sqrt(sum(centred**2) / N + EPS), x_hat))
    it.right(not same(centred / np.sqrt(sum(centred**2) / (N - 1) + EPS), x_hat))


def G105(it: Evidence) -> None:
    r"""$y_i$ depends on $\hat{x}_i$, $\gamma_i$, and $\beta_i$ only, so $\frac{\partial
    L}{\partial \hat{x}_i} = \frac{\partial L}{\partial y_i}\frac{\partial y_i}{\partial
    \hat{x}_i} = \frac{\partial L}{\partial y_i}\gamma_i$."""
    x, order = torch.tensor(X), [1, 0, *range(2, N)]
    it.as_printed(same(jacobian(lambda w: norm(x, w), W), np.diag(X_HAT)))
    it.as_printed(same(jacobian(lambda b: norm(x, W, b), B), np.eye(N)))
    # Two x̂ are exchanged; mean and variance stay.
    it.as_printed(same(norm(x[order]) - norm(x), W * (X_HAT[order] - X_HAT)))
    it.derives(LAYER_NORM)


def G106(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial \gamma_i} = \frac{\partial L}{\partial
    y_i}\frac{\partial y_i}{\partial \gamma_i} = \frac{\partial L}{\partial
    y_i}\hat{x}_i$ and $\frac{\partial L}{\partial \beta_i} = \frac{\partial L}{\partial
    y_i}\frac{\partial y_i}{\partial \beta_i} = \frac{\partial L}{\partial y_i}$."""
    it.derives(LAYER_NORM)


def G107(it: Evidence) -> None:
    r"""$x_i$ acts on $\hat{x}_i$ directly, and through $\mu$ and $\sigma^2$ on all
    other $\hat{x}_j$.

    Through both it also acts on $\hat{x}_i$ itself, as the later formulas show."""
    J = jacobian(lambda x: norm(x, np.ones(N)), X)
    it.as_printed(bool((J != 0).all()))
    it.right(same(np.diag(J), (1 - 1 / N - X_HAT**2 / N) / ROOT))


def G108(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial
    \hat{x}_i}\frac{\partial \hat{x}_i}{\partial x_i} + \sum_{j \neq i} \frac{\partial
    L}{\partial \hat{x}_j} \frac{\partial \hat{x}_j}{\partial x_i}$."""
    it.derives(LAYER_NORM)


def G109(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{ (1 - \frac{\partial
    \mu}{\partial x_i})\sqrt{\sigma^2 + \epsilon} - (x_i - \mu)\frac{1}{2\sqrt{\sigma^2
    + \epsilon}} \frac{\partial \sigma^2}{\partial x_i} }{(\sqrt{\sigma^2 +
    \epsilon})^2}$."""
    it.derives(LAYER_NORM)


def G110(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{1}{\sqrt{\sigma^2 +
    \epsilon}}\left( 1 - \frac{\partial \mu}{\partial x_i} - \frac{x_i - \mu}{2(\sigma^2
    + \epsilon)}\frac{\partial \sigma^2}{\partial x_i} \right)$."""
    it.derives(LAYER_NORM)


def G111(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{1}{\sqrt{\sigma^2 +
    \epsilon}}\left( 1 - \frac{\partial \mu}{\partial x_i} -
    \frac{\hat{x}_i}{2\sqrt{\sigma^2 + \epsilon}} \frac{\partial \sigma^2}{\partial x_i}
    \right)$."""
    it.derives(LAYER_NORM)


def G112(it: Evidence) -> None:
    r"""For $j \ne i$, $\frac{\partial \hat{x}_j}{\partial x_i} = \frac{ (-
    \frac{\partial \mu}{\partial x_i})\sqrt{\sigma^2 + \epsilon} - (x_j -
    \mu)\frac{1}{2\sqrt{\sigma^2 + \epsilon}} \frac{\partial \sigma^2}{\partial x_i}
    }{(\sqrt{\sigma^2 + \epsilon})^2}$."""
    it.derives(LAYER_NORM + r"when j \neq i")


def G113(it: Evidence) -> None:
    r"""For $j \ne i$, $\frac{\partial \hat{x}_j}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left( - \frac{\partial \mu}{\partial x_i} -
    \frac{x_j - \mu}{2(\sigma^2 + \epsilon)}\frac{\partial \sigma^2}{\partial x_i}
    \right) = \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left( - \frac{\partial \mu}{\partial
    x_i} - \frac{\hat{x}_j}{2\sqrt{\sigma^2 + \epsilon}} \frac{\partial
    \sigma^2}{\partial x_i} \right)$."""
    it.derives(LAYER_NORM + r"when j \neq i")


def G114(it: Evidence) -> None:
    r"""$\frac{\partial \mu}{\partial x_i} = \frac{1}{N}$."""
    it.derives(LAYER_NORM)


def G115(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac{1}{N} \frac{\partial}{\partial
    x_i} \left[\sum_j (x_j - \mu)^2\right] = \frac{1}{N} \frac{\partial}{\partial x_i}
    \left[ (x_i - \mu)^2 + \sum_{j\neq i} (x_j - \mu)^2 \right]$."""
    it.derives(LAYER_NORM)


def G116(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac{1}{N} \left[ 2(1 -
    \frac{\partial \mu}{\partial x_i})(x_i - \mu) + 2\sum_{j\neq i} (\frac{\partial
    \mu}{\partial x_i})(x_j - \mu) \right]$.

    The derivative of $x_j - \mu$ is $-\partial\mu/\partial x_i$: the sum needs a minus
    sign, and the next line has it. As printed the line is $1 - 2/N$ times the right
    value, 0 for two elements."""
    it.derives(LAYER_NORM)
    (printed,) = equations_of(it.says)
    it.right(derives(printed.replace("+ 2", "- 2"), LAYER_NORM))
    it.right(derives(rf"(1 - \frac{{2}}{{N}}) {printed}", LAYER_NORM))


def G117(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac{2}{N} \left[ (1-\frac{1}{N})(x_i
    - \mu) + \sum_{j\neq i} (-\frac{1}{N})(x_j - \mu) \right]$.

    The line is right, but does not follow from the one before it."""
    it.derives(LAYER_NORM)


def G118(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac{2}{N} \left[x_i - \mu -
    \frac{1}{N} \sum_j x_j - \mu\right]$.

    Brackets are missing round $x_j - \mu$, whose sum is 0. Read literally, $\frac{2}{N}
    \left[x_i - \mu - \frac{1}{N} \sum_j x_j - \mu\right] = \frac{2}{N}(x_i - 3\mu)$,
    which is right only if the mean is 0."""
    it.derives(LAYER_NORM)
    it.derives_right(LAYER_NORM)
    bracketed = equations_of(it.says)[0].replace(r"x_j - \mu", r"(x_j - \mu)")
    it.right(derives(bracketed, LAYER_NORM))


def G119(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac{2(x_i - \mu)}{N}$."""
    it.derives(LAYER_NORM)


def G120(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{1}{\sqrt{\sigma^2 + \epsilon}}
    \left(1-\frac{1}{N} - \frac{\hat{x}_i^2}{N}\right)$."""
    it.derives(LAYER_NORM)


def G121(it: Evidence) -> None:
    r"""For $j \ne i$, $\frac{\partial \hat{x}_j}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2 + \epsilon}} \left(-\frac{1}{N} -
    \frac{\hat{x}_j\hat{x}_i}{N}\right)$."""
    it.derives(LAYER_NORM + r"when j \neq i")


def G122(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial
    \hat{x}_i}\left[\frac{1}{\sqrt{\sigma^2+\epsilon}} \left(1-\frac{1}{N} -
    \frac{\hat{x}_i^2}{N}\right)\right] + \sum_{j\neq i} \frac{\partial L}{\partial
    \hat{x}_j} \left[\frac{1}{\sqrt{\sigma^2+\epsilon}} \left(-\frac{1}{N} -
    \frac{\hat{x}_i\hat{x}_j}{N}\right)\right]$."""
    it.derives(LAYER_NORM)


def G123(it: Evidence) -> None:
    r"""With brackets round the two terms of the sum, LayerNorm's gradient is
    $\frac{\partial L}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2+\epsilon}}\left(\frac{\partial L}{\partial \hat{x}_i} -
    \frac{1}{N}\frac{\partial L}{\partial \hat{x}_i} -
    \frac{\hat{x}_i^2}{N}\frac{\partial L}{\partial \hat{x}_i} + \sum_{j\neq i}
    \left[\frac{1}{N}\frac{\partial L}{\partial \hat{x}_j} -
    \frac{\hat{x}_i\hat{x}_j}{N}\frac{\partial L}{\partial \hat{x}_j}\right]\right)$.

    The sum's first term needs a minus sign; the next line has it. As printed the line
    is too large by $\frac{2}{N\sqrt{\sigma^2 + \epsilon}}\sum_{j \neq i} \frac{\partial
    L}{\partial \hat{x}_j}$."""
    it.derives(LAYER_NORM)
    (printed,) = equations_of(it.says)
    it.right(derives(printed.replace(r"[\frac{1}{N}", r"[-\frac{1}{N}"), LAYER_NORM))
    excess = it.truth.split("$")[1]
    it.right(derives(printed.replace("} =", f"}} + {excess} ="), LAYER_NORM))


def G124(it: Evidence) -> None:
    r"""The sum over $j \ne i$ has two terms, printed without brackets: $\sum_{j \ne i}
    \frac1N \bar{x}_j - \frac{\hat{x}_i\hat{x}_j}{N}\bar{x}_j$, with $\bar{x}$ for the
    gradient of $\hat{x}$.

    A sum extends to the next sign, so the second term stands outside, with an index $j$
    that has no value: each $j$ gives another result, and none is that of the next line.
    Brackets round both are meant."""
    i, dx = 2, all_gradients(X, DY)[0]
    own = (1 - 1 / N - X_HAT[i] ** 2 / N) * DX_HAT[i]
    first, second = -DX_HAT / N, X_HAT[i] * X_HAT / N * DX_HAT  # the sign mended
    others = np.arange(N) != i
    literal = [(own + first[others].sum() - second[j]) / ROOT for j in range(N)]
    it.clashes(not any(same(value, dx[i]) for value in literal))
    it.right(len(set(literal)) == N)
    it.right(same((own + (first - second)[others].sum()) / ROOT, dx[i]))


def G125(it: Evidence) -> None:
    r"""LayerNorm's gradient is $\frac{\partial L}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2+\epsilon}}\left(\frac{\partial L}{\partial \hat{x}_i} -
    \frac{1}{N}\sum_j \frac{\partial L}{\partial \hat{x}_j} - \frac{\hat{x}_i}{N}\sum_j
    \frac{\partial L}{\partial \hat{x}_j}\hat{x}_j\right)$."""
    it.derives(LAYER_NORM)


def G126(it: Evidence) -> None:
    r"""LayerNorm's gradient is $\frac{\partial L}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2+\epsilon}}\left(\frac{\partial L}{\partial y_i}\gamma_i -
    \frac{1}{N}\sum_j \frac{\partial L}{\partial y_j}\gamma_j -
    \frac{\hat{x}_i}{N}\sum_j \frac{\partial L}{\partial y_j}\gamma_j\hat{x}_j
    \right)$."""
    it.derives(LAYER_NORM)


def G127(it: Evidence) -> None:
    """Rows are normalised one by one, so their gradients are independent; unlike
    softmax, LayerNorm has parameters, which all rows share."""
    dx, dw, db = all_gradients(X3[0], DY3[0])
    rows = [all_gradients(x, dy) for x, dy in zip(X3[0], DY3[0], strict=True)]
    it.as_printed(same(np.stack([row[0] for row in rows]), dx))
    it.as_printed(not same(rows[0][1], dw) and dw.shape == db.shape == (N,))


def G128(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial \gamma_i} = \sum_{r=1}^M \frac{\partial L}{\partial
    y_{ri}}\hat{x}_{ri}$ and $\frac{\partial L}{\partial \beta_i} = \sum_{r=1}^M
    \frac{\partial L}{\partial y_{ri}}$."""
    it.derives(ROWS)


def G129(it: Evidence) -> None:
    """LayerNorm treats a $(K, M, N)$ tensor as a $(KM, N)$ matrix, with shared
    parameters."""
    dx, dw, db = all_gradients(X3, DY3)
    rows = all_gradients(X3.reshape(6, N), DY3.reshape(6, N))
    it.as_printed(all(map(same, (dx.reshape(6, N), dw, db), rows)))
