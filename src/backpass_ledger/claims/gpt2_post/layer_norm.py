"""LayerNorm: the derivation of its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, jacobian, numbers, same, torch, vjp

CLAIMS = """
G103  true    0  norms       operations/layer_norm  definition
G104  true    0  norms       operations/layer_norm  definition
G105  true    0  norms       operations/layer_norm  parameters
G106  true    0  norms       operations/layer_norm  parameters
G107  caveat  1  norms       operations/layer_norm  indirect effects
G108  true    0  chain rule  operations/layer_norm  chain rule
G109  true    0  norms       operations/layer_norm  quotient rule, i, line 1
G110  true    0  norms       operations/layer_norm  quotient rule, i, line 2
G111  true    0  norms       operations/layer_norm  quotient rule, i, line 3
G112  true    0  norms       operations/layer_norm  quotient rule, j, line 1
G113  true    0  norms       operations/layer_norm  quotient rule, j, lines 2 and 3
G114  true    0  norms       operations/layer_norm  mean
G115  true    0  norms       operations/layer_norm  variance, lines 1 and 2
G116  false   6  norms       operations/layer_norm  variance, line 3
G117  true    0  norms       operations/layer_norm  variance, line 4
G118  false   3  norms       operations/layer_norm  variance, line 5
G119  true    0  norms       operations/layer_norm  variance, line 6
G120  true    0  norms       operations/layer_norm  inserted, i
G121  true    0  norms       operations/layer_norm  inserted, j
G122  true    0  norms       operations/layer_norm  together, line 1
G123  false   6  norms       operations/layer_norm  together, line 2
G124  false   1  notation    operations/layer_norm  together, line 2
G125  true    0  norms       operations/layer_norm  together, line 3
G126  true    0  norms       operations/layer_norm  together, line 4
G127  true    0  norms       operations/layer_norm  matrices
G128  true    0  norms       operations/layer_norm  matrices
G129  true    0  norms       operations/layer_norm  tensors
"""


N, EPS = 7, 0.1
X = numbers(N) + 2  # a mean that is not 0
W, B, DY = numbers(N, seed=1), numbers(N, seed=2), numbers(N, seed=3)
MEAN, VARIANCE = X.mean(), X.var()
ROOT = np.sqrt(VARIANCE + EPS)
X_HAT = (X - MEAN) / ROOT
DX_HAT = DY * W  # the gradient of x̂
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
    given x \in \mathbb{R}^{M \times N}, \gamma, \beta \in \mathbb{R}^N
    constant \epsilon \in \mathbb{R}_{>0}
    let \mu_r = \frac{1}{N}\sum_{j=1}^N x_{rj}
    let \sigma_r^2 = \frac{1}{N}\sum_{j=1}^N (x_{rj} - \mu_r)^2
    let \hat{x}_{ri} = \frac{x_{ri} - \mu_r}{\sqrt{\sigma_r^2 + \epsilon}}
    let y_{ri} = \gamma_i \hat{x}_{ri} + \beta_i
    loss L
"""


def normalised(x: Any) -> Any:
    """Return PyTorch's x̂."""
    return torch.nn.functional.layer_norm(x, (N,), eps=EPS)


def without(i: int) -> list[int]:
    """Return the places other than i."""
    return [j for j in range(N) if j != i]


def all_gradients(x: Any, dy: Any) -> Any:
    """Return the gradients of x, γ, and β by PyTorch."""
    return vjp(
        lambda x, w, b: torch.nn.functional.layer_norm(x, (N,), w, b, EPS),
        (x, W, B),
        dy,
    )


def G103(it: Evidence) -> None:
    r"""$y_i = \gamma_i \hat{x}_i + \beta_i$ with $\hat{x}_i = (x_i - \mu)/
    \sqrt{\sigma^2 + \epsilon}$."""
    x, w, b = map(torch.tensor, (X, W, B))
    expected = torch.nn.functional.layer_norm(x, (N,), w, b, EPS)
    it.as_printed(same(W * X_HAT + B, expected))


def G104(it: Evidence) -> None:
    r"""$\mu = \frac1N\sum_j x_j$ and $\sigma^2 = \frac1N\sum_j (x_j - \mu)^2$.

    The variance divides by $N$, not by $N - 1$, as in PyTorch's LayerNorm.
    """
    mean = sum(X) / N
    variance = sum((x - mean) ** 2 for x in X) / N
    x_hat = normalised(_tensor(X)).numpy()
    it.as_printed(same((X - mean) / np.sqrt(variance + EPS), x_hat))
    unbiased = variance * N / (N - 1)
    it.right(not same((X - mean) / np.sqrt(unbiased + EPS), x_hat))


def _tensor(x: Any) -> Any:
    return torch.tensor(x)


def G105(it: Evidence) -> None:
    r"""$y_i$ depends on $\hat{x}_i$, $\gamma_i$, and $\beta_i$ only, so $\frac{\partial
    L}{\partial \hat{x}_i} = \frac{\partial L}{\partial y_i}\gamma_i$."""

    def norm(x: Any, w: Any = W, b: Any = B) -> Any:
        x, w, b = map(torch.as_tensor, (x, w, b))
        return torch.nn.functional.layer_norm(x, (N,), w, b, EPS).numpy()

    first = np.arange(N) < 1
    for moved in (norm(X, w=W + first), norm(X, b=B + first)):
        it.as_printed(
            same((moved - norm(X))[1:], np.zeros(N - 1)) and not same(moved, norm(X))
        )
    swapped = X[[1, 0, *range(2, N)]]  # mean and variance stay: two x̂ are exchanged
    x_hat = X_HAT[[1, 0, *range(2, N)]]
    it.as_printed(same(norm(swapped) - norm(X), W * (x_hat - X_HAT)))
    printed = r"""
        \frac{\partial L}{\partial \hat{x}_i}
        &= \frac{\partial L}{\partial y_i}\frac{\partial y_i}{\partial \hat{x}_i}
        = \frac{\partial L}{\partial y_i}\gamma_i
    """
    it.as_printed(derives(printed, LAYER_NORM))


def G106(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial \gamma_i} = \frac{\partial L}{\partial
    y_i}\frac{\partial y_i}{\partial \gamma_i} = \frac{\partial L}{\partial
    y_i}\hat{x}_i$ and $\frac{\partial L}{\partial \beta_i} = \frac{\partial L}{\partial
    y_i}\frac{\partial y_i}{\partial \beta_i} = \frac{\partial L}{\partial y_i}$.

    This is for one row; the sums over rows follow later in the text.
    """
    it.derives(LAYER_NORM)


def G107(it: Evidence) -> None:
    r"""$x_i$ acts on $\hat{x}_i$ directly, and through $\mu$ and $\sigma^2$ on all
    other $\hat{x}_j$.

    Through both it also acts on $\hat{x}_i$ itself, as the later formulas show.
    """
    J = jacobian(normalised, X)
    it.as_printed(bool((J != 0).all()))
    direct_only = np.full(N, 1 / ROOT)
    it.elsewhere(same(np.diag(J), direct_only))
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
    \epsilon})^2}$, a prime being $\partial/\partial x_i$."""
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
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac1N\left[2(1 - \mu')(x_i - \mu) +
    2\sum_{j \ne i} \mu'\,(x_j - \mu) \right]$.

    The derivative of $x_j - \mu$ is $-\mu'$: the sum needs a minus sign, and the next
    line has it. As printed the line is $1 - 2/N$ times the right value, 0 for two
    elements.
    """
    printed = r"""
        \frac{\partial \sigma^2}{\partial x_i}
        &= \frac{1}{N} \left[
        2(1 - \frac{\partial \mu}{\partial x_i})(x_i - \mu)
        + 2\sum_{j\neq i} (\frac{\partial \mu}{\partial x_i})(x_j - \mu)
        \right]
    """
    it.as_printed(derives(printed, LAYER_NORM))
    it.right(derives(printed.replace("+ 2", "- 2"), LAYER_NORM))
    it.right(derives(rf"(1 - \frac{{2}}{{N}}) {printed}", LAYER_NORM))


def G117(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac{2}{N} \left[ (1-\frac{1}{N})(x_i
    - \mu) + \sum_{j\neq i} (-\frac{1}{N})(x_j - \mu) \right]$.

    The line is right, but does not follow from the one before it.
    """
    it.derives(LAYER_NORM)


def G118(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac2N\left[x_i - \mu - \frac1N\sum_j
    x_j - \mu\right]$.

    Brackets are missing: $\frac1N\sum_j(x_j - \mu)$, which is 0. Read literally, the
    line is $\frac2N(x_i - 3\mu)$, which is right only if the mean is 0.
    """
    left = r"\frac{\partial \sigma^2}{\partial x_i}"
    printed = r"\frac{2}{N} \left[x_i - \mu - \frac{1}{N} \sum_j x_j - \mu\right]"
    it.as_printed(derives(f"{left} &= {printed}", LAYER_NORM))
    bracketed = printed.replace(r"x_j - \mu", r"(x_j - \mu)")
    it.right(derives(f"{left} &= {bracketed}", LAYER_NORM))
    it.right(derives(rf"\frac{{2}}{{N}}(x_i - 3\mu) &= {printed}", LAYER_NORM))


def G119(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac{2(x_i - \mu)}{N}$."""
    it.derives(LAYER_NORM)


def G120(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{1}{\sqrt{\sigma^2 + \epsilon}}
    \left(1-\frac{1}{N} - \frac{\hat{x}_i^2}{N}\right)$.

    It is exact for any ε.
    """
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
    r"""LayerNorm's gradient is $\frac{\partial L}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(\frac{\partial L}{\partial \hat{x}_i} -
    \frac1N\frac{\partial L}{\partial \hat{x}_i} - \frac{\hat{x}_i^2}{N} \frac{\partial
    L}{\partial \hat{x}_i} + \sum_{j \ne i}\left[\frac1N \frac{\partial L}{\partial
    \hat{x}_j} - \frac{\hat{x}_i\hat{x}_j}{N} \frac{\partial L}{\partial
    \hat{x}_j}\right]\right)$.

    The sum's first term needs a minus sign; the next line has it. As printed the line
    is too large by $\frac{2}{N\sqrt{\sigma^2 + \epsilon}}\sum_{j \ne i} \partial
    L/\partial \hat{x}_j$. A line that is commented out in the LaTeX, and not shown, has
    the sign right.
    """
    bracketed = r"""
        \frac{\partial L}{\partial x_i}
        &= \frac{1}{\sqrt{\sigma^2+\epsilon}}\left(\frac{\partial L}{\partial \hat{x}_i}
        - \frac{1}{N}\frac{\partial L}{\partial \hat{x}_i}
        - \frac{\hat{x}_i^2}{N}\frac{\partial L}{\partial \hat{x}_i}
        + \sum_{j\neq i} \left[\frac{1}{N}\frac{\partial L}{\partial \hat{x}_j}
        - \frac{\hat{x}_i\hat{x}_j}{N}\frac{\partial L}{\partial \hat{x}_j}\right]\right)
    """
    it.as_printed(derives(bracketed, LAYER_NORM))
    it.right(derives(bracketed.replace(r"[\frac{1}{N}", r"[-\frac{1}{N}"), LAYER_NORM))
    excess = r"""
        \frac{2}{N\sqrt{\sigma^2+\epsilon}}
        \sum_{j\neq i} \frac{\partial L}{\partial \hat{x}_j}
    """
    it.right(derives(bracketed.replace("&=", f"+ {excess} ="), LAYER_NORM))
    commented = r"""
        \frac{\partial L}{\partial x_i}
        &= \frac{1}{\sqrt{\sigma^2+\epsilon}}\left(
        \frac{n-1-\hat{x}_i^2}{n}\frac{\partial L}{\partial \hat{x}_i}
        + \sum_{j\neq i} \frac{-1-\hat{x}_i\hat{x}_j}{n}
        \frac{\partial L}{\partial \hat{x}_j}\right)
    """
    n_is_the_width = r"let n = N; given \bar{y} \in \mathbb{R}^N"
    it.right(derives(commented, LAYER_NORM + n_is_the_width))


def G124(it: Evidence) -> None:
    r"""The sum over $j \ne i$ has two terms, printed without brackets: $\sum_{j \ne i}
    \frac1N \bar{x}_j - \frac{\hat{x}_i\hat{x}_j}{N}\bar{x}_j$, with $\bar{x}$ for the
    gradient of $\hat{x}$.

    A sum extends to the next sign, so the second term stands outside, with an index $j$
    that has no value: each $j$ gives another result. Brackets round both are meant.
    """
    i, dx = 2, all_gradients(X, DY)[0]
    own = (1 - 1 / N - X_HAT[i] ** 2 / N) * DX_HAT[i]
    first, second = (
        -DX_HAT / N,
        X_HAT[i] * X_HAT / N * DX_HAT,
    )  # the first's sign mended
    literal = [(own + first[without(i)].sum() - second[j]) / ROOT for j in range(N)]
    it.as_printed(any(same(value, dx[i]) for value in literal))
    it.right(len(set(literal)) == N)
    it.right(same((own + (first - second)[without(i)].sum()) / ROOT, dx[i]))


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
    x, dy = numbers(5, N), numbers(5, N, seed=1)
    dx, dw, db = all_gradients(x, dy)
    rows = [all_gradients(x[r], dy[r]) for r in range(5)]
    it.as_printed(same(np.stack([row[0] for row in rows]), dx))
    it.as_printed(not same(rows[0][1], dw) and dw.shape == db.shape == (N,))


def G128(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial \gamma_i} = \sum_{r=1}^M \frac{\partial L}{\partial
    y_{ri}}\hat{x}_{ri}$ and $\frac{\partial L}{\partial \beta_i} = \sum_{r=1}^M
    \frac{\partial L}{\partial y_{ri}}$."""
    it.derives(ROWS)


def G129(it: Evidence) -> None:
    """LayerNorm treats a $(K, M, N)$ tensor as a $(KM, N)$ matrix, whose rows all share
    the parameters."""
    x, dy = numbers(2, 3, N), numbers(2, 3, N, seed=1)
    whole = all_gradients(x, dy)
    rows = all_gradients(x.reshape(6, N), dy.reshape(6, N))
    it.as_printed(same(whole[0], rows[0].reshape(2, 3, N)))
    it.as_printed(same(whole[1], rows[1]) and same(whole[2], rows[2]))
