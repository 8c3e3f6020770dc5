"""LayerNorm: the derivation of its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass.claims.evidence import CAVEAT, FALSE, TRUE, Evidence
from backpass.claims.record import claim
from backpass.claims.tools import jacobian, numbers, same, vjp

N, EPS = 7, 0.1
X = numbers(N) + 2  # a mean that is not 0
W, B, DY = numbers(N, seed=1), numbers(N, seed=2), numbers(N, seed=3)
MEAN, VARIANCE = X.mean(), X.var()
ROOT = np.sqrt(VARIANCE + EPS)
X_HAT = (X - MEAN) / ROOT
DX_HAT = DY * W  # the gradient of x̂


def normalised(x: Any) -> Any:
    """Return PyTorch's x̂."""
    import torch

    return torch.nn.functional.layer_norm(x, (N,), eps=EPS)


def without(i: int) -> list[int]:
    """Return the places other than i."""
    return [j for j in range(N) if j != i]


def all_gradients(x: Any, dy: Any) -> Any:
    """Return the gradients of x, γ, and β by PyTorch."""
    import torch

    return vjp(
        lambda x, w, b: torch.nn.functional.layer_norm(x, (N,), w, b, EPS),
        (x, W, B),
        dy,
    )


def slopes() -> tuple[Any, Any, Any]:
    """Return ∂x̂_j/∂x_i in row j and column i, ∂μ/∂x_i, and ∂σ²/∂x_i."""
    return (
        jacobian(normalised, X),
        jacobian(lambda x: x.mean(), X),
        jacobian(lambda x: x.var(unbiased=False), X),
    )


@claim("definition", TRUE, topic="norms", page="operations/layer_norm")
def G103(it: Evidence) -> None:
    r"""$y_i = \gamma_i \hat{x}_i + \beta_i$ with $\hat{x}_i = (x_i - \mu)/
    \sqrt{\sigma^2 + \epsilon}$."""
    import torch

    x, w, b = map(torch.tensor, (X, W, B))
    expected = torch.nn.functional.layer_norm(x, (N,), w, b, EPS)
    it.as_printed(same(W * X_HAT + B, expected))


@claim("definition", TRUE, topic="norms", page="operations/layer_norm")
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
    import torch

    return torch.tensor(x)


@claim("parameters", TRUE, topic="norms", page="operations/layer_norm")
def G105(it: Evidence) -> None:
    r"""$y_i$ depends on $\hat{x}_i$, $\gamma_i$, and $\beta_i$ only, so $\frac{\partial
    L}{\partial \hat{x}_i} = \frac{\partial L}{\partial y_i}\gamma_i$."""
    import torch

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
    it.as_printed(same(all_gradients(X, DY)[0], vjp(normalised, X, DX_HAT)))


@claim("parameters", TRUE, topic="norms", page="operations/layer_norm")
def G106(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial \gamma_i} = \frac{\partial L}{\partial
    y_i}\hat{x}_i$ and $\frac{\partial L}{\partial \beta_i} = \frac{\partial L}{\partial
    y_i}$.

    This is for one row; the sums over rows follow later in the text.
    """
    _, dw, db = all_gradients(X, DY)
    it.as_printed(same(DY * X_HAT, dw) and same(DY, db))


@claim("indirect effects", CAVEAT, topic="norms", page="operations/layer_norm", harm=1)
def G107(it: Evidence) -> None:
    r"""$x_i$ acts on $\hat{x}_i$ directly, and through $\mu$ and $\sigma^2$ on all
    other $\hat{x}_j$.

    Through both it also acts on $\hat{x}_i$ itself, as the later formulas show.
    """
    J = slopes()[0]
    it.as_printed(bool((J != 0).all()))
    direct_only = np.full(N, 1 / ROOT)
    it.elsewhere(same(np.diag(J), direct_only))
    it.right(same(np.diag(J), (1 - 1 / N - X_HAT**2 / N) / ROOT))


@claim("chain rule", TRUE, topic="chain rule", page="operations/layer_norm")
def G108(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial \hat{x}_i}
    \frac{\partial \hat{x}_i}{\partial x_i} + \sum_{j \ne i}
    \frac{\partial L}{\partial \hat{x}_j}\frac{\partial \hat{x}_j}{\partial x_i}$."""
    J = slopes()[0]
    found = [
        DX_HAT[i] * J[i, i] + sum(DX_HAT[j] * J[j, i] for j in without(i))
        for i in range(N)
    ]
    it.as_printed(same(found, all_gradients(X, DY)[0]))


@claim("quotient rule, i, line 1", TRUE, topic="norms", page="operations/layer_norm")
def G109(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{(1 - \mu')\sqrt{\sigma^2 +
    \epsilon} - (x_i - \mu)\frac{1}{2\sqrt{\sigma^2 + \epsilon}}(\sigma^2)'}
    {(\sqrt{\sigma^2 + \epsilon})^2}$, a prime being $\partial/\partial x_i$."""
    J, dmean, dvar = slopes()
    line = ((1 - dmean) * ROOT - (X - MEAN) / (2 * ROOT) * dvar) / ROOT**2
    it.as_printed(same(line, np.diag(J)))


@claim("quotient rule, i, line 2", TRUE, topic="norms", page="operations/layer_norm")
def G110(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{1}{\sqrt{\sigma^2 +
    \epsilon}}\left(1 - \mu' - \frac{x_i - \mu} {2(\sigma^2 +
    \epsilon)}(\sigma^2)'\right)$."""
    J, dmean, dvar = slopes()
    line = (1 - dmean - (X - MEAN) / (2 * (VARIANCE + EPS)) * dvar) / ROOT
    it.as_printed(same(line, np.diag(J)))


@claim("quotient rule, i, line 3", TRUE, topic="norms", page="operations/layer_norm")
def G111(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{1}{\sqrt{\sigma^2 +
    \epsilon}}\left(1 - \mu' - \frac{\hat{x}_i} {2\sqrt{\sigma^2 +
    \epsilon}}(\sigma^2)'\right)$."""
    J, dmean, dvar = slopes()
    it.as_printed(same((1 - dmean - X_HAT / (2 * ROOT) * dvar) / ROOT, np.diag(J)))


@claim("quotient rule, j, line 1", TRUE, topic="norms", page="operations/layer_norm")
def G112(it: Evidence) -> None:
    r"""For $j \ne i$, $\frac{\partial \hat{x}_j}{\partial x_i} = \frac{-\mu'
    \sqrt{\sigma^2 + \epsilon} - (x_j - \mu)\frac{1}{2\sqrt{\sigma^2 + \epsilon}}
    (\sigma^2)'}{(\sqrt{\sigma^2 + \epsilon})^2}$."""
    J, dmean, dvar = slopes()
    for i in range(N):
        line = (-dmean[i] * ROOT - (X - MEAN) / (2 * ROOT) * dvar[i]) / ROOT**2
        it.as_printed(same(line[without(i)], J[without(i), i]))


@claim(
    "quotient rule, j, lines 2 and 3", TRUE, topic="norms", page="operations/layer_norm"
)
def G113(it: Evidence) -> None:
    r"""For $j \ne i$, $\frac{\partial \hat{x}_j}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(-\mu' - \frac{x_j - \mu} {2(\sigma^2 +
    \epsilon)}(\sigma^2)'\right) = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \left(-\mu' -
    \frac{\hat{x}_j}{2\sqrt{\sigma^2 + \epsilon}}(\sigma^2)'\right)$."""
    J, dmean, dvar = slopes()
    for i in range(N):
        second = (-dmean[i] - (X - MEAN) / (2 * (VARIANCE + EPS)) * dvar[i]) / ROOT
        third = (-dmean[i] - X_HAT / (2 * ROOT) * dvar[i]) / ROOT
        for line in (second, third):
            it.as_printed(same(line[without(i)], J[without(i), i]))


@claim("mean", TRUE, topic="norms", page="operations/layer_norm")
def G114(it: Evidence) -> None:
    r"""$\frac{\partial \mu}{\partial x_i} = \frac1N$."""
    it.as_printed(same(slopes()[1], np.full(N, 1 / N)))


@claim("variance, lines 1 and 2", TRUE, topic="norms", page="operations/layer_norm")
def G115(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac1N \partial_i \sum_j
    (x_j - \mu)^2 = \frac1N \partial_i \left[(x_i - \mu)^2 + \sum_{j \ne i}
    (x_j - \mu)^2\right]$."""

    def split(x: Any, i: int) -> Any:
        squares = (x - x.mean()) ** 2
        return (squares[i] + sum(squares[j] for j in without(i))) / N

    found = [jacobian(lambda x: split(x, i), X)[i] for i in range(N)]  # noqa: B023
    it.as_printed(same(found, slopes()[2]))


@claim("variance, line 3", FALSE, topic="norms", page="operations/layer_norm", harm=6)
def G116(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac1N\left[2(1 - \mu')(x_i - \mu) +
    2\sum_{j \ne i} \mu'\,(x_j - \mu) \right]$.

    The derivative of $x_j - \mu$ is $-\mu'$: the sum needs a minus sign, and the next
    line has it. As printed the line is $1 - 2/N$ times the right value, 0 for two
    elements.
    """
    others = np.array([sum(X[j] - MEAN for j in without(i)) for i in range(N)])
    printed, right = (
        (2 * (1 - 1 / N) * (X - MEAN) + sign * 2 / N * others) / N for sign in (1, -1)
    )
    it.as_printed(same(printed, slopes()[2]))
    it.right(same(right, slopes()[2]))
    it.right(same(printed, (1 - 2 / N) * slopes()[2]))


@claim("variance, line 4", TRUE, topic="norms", page="operations/layer_norm")
def G117(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac2N\left[(1 - \frac1N)(x_i - \mu)
    + \sum_{j \ne i}(-\frac1N)(x_j - \mu) \right]$.

    The line is right, but does not follow from the one before it.
    """
    others = np.array([sum(-(X[j] - MEAN) / N for j in without(i)) for i in range(N)])
    it.as_printed(same(2 / N * ((1 - 1 / N) * (X - MEAN) + others), slopes()[2]))


@claim("variance, line 5", FALSE, topic="norms", page="operations/layer_norm", harm=3)
def G118(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac2N\left[x_i - \mu - \frac1N\sum_j
    x_j - \mu\right]$.

    Brackets are missing: $\frac1N\sum_j(x_j - \mu)$, which is 0. Read literally, the
    line is $\frac2N(x_i - 3\mu)$, which is right only if the mean is 0.
    """
    printed = 2 / N * (X - MEAN - X.sum() / N - MEAN)
    it.as_printed(same(printed, slopes()[2]))
    it.right(same(2 / N * (X - MEAN - (X - MEAN).sum() / N), slopes()[2]))
    it.right(same(printed, 2 / N * (X - 3 * MEAN)))


@claim("variance, line 6", TRUE, topic="norms", page="operations/layer_norm")
def G119(it: Evidence) -> None:
    r"""$\frac{\partial \sigma^2}{\partial x_i} = \frac{2(x_i - \mu)}{N}$."""
    it.as_printed(same(2 * (X - MEAN) / N, slopes()[2]))


@claim("inserted, i", TRUE, topic="norms", page="operations/layer_norm")
def G120(it: Evidence) -> None:
    r"""$\frac{\partial \hat{x}_i}{\partial x_i} = \frac{1}{\sqrt{\sigma^2 + \epsilon}}
    \left(1 - \frac1N - \frac{\hat{x}_i^2}{N}\right)$.

    It is exact for any ε.
    """
    it.as_printed(same((1 - 1 / N - X_HAT**2 / N) / ROOT, np.diag(slopes()[0])))


@claim("inserted, j", TRUE, topic="norms", page="operations/layer_norm")
def G121(it: Evidence) -> None:
    r"""For $j \ne i$, $\frac{\partial \hat{x}_j}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(-\frac1N - \frac{\hat{x}_j \hat{x}_i}{N}
    \right)$."""
    apart = (-1 / N - np.outer(X_HAT, X_HAT) / N) / ROOT
    off = ~np.eye(N, dtype=bool)
    it.as_printed(same(apart[off], slopes()[0][off]))


@claim("together, line 1", TRUE, topic="norms", page="operations/layer_norm")
def G122(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial \hat{x}_i}
    \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(1 - \frac1N - \frac{\hat{x}_i^2}{N}\right)
    + \sum_{j \ne i}\frac{\partial L}{\partial \hat{x}_j}
    \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(-\frac1N - \frac{\hat{x}_i\hat{x}_j}{N}
    \right)$."""
    own = DX_HAT * (1 - 1 / N - X_HAT**2 / N) / ROOT
    others = [
        sum(DX_HAT[j] * (-1 / N - X_HAT[i] * X_HAT[j] / N) / ROOT for j in without(i))
        for i in range(N)
    ]
    it.as_printed(same(own + others, all_gradients(X, DY)[0]))


@claim("together, line 2", FALSE, topic="norms", page="operations/layer_norm", harm=6)
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

    def line(sign: int) -> Any:
        sums = [
            sum(
                sign * DX_HAT[j] / N - X_HAT[i] * X_HAT[j] / N * DX_HAT[j]
                for j in without(i)
            )
            for i in range(N)
        ]
        return (DX_HAT - DX_HAT / N - X_HAT**2 / N * DX_HAT + sums) / ROOT

    dx = all_gradients(X, DY)[0]
    it.as_printed(same(line(1), dx))
    it.right(same(line(-1), dx))
    it.right(same(line(1) - dx, 2 / N / ROOT * (DX_HAT.sum() - DX_HAT)))
    commented = [
        (N - 1 - X_HAT[i] ** 2) / N * DX_HAT[i]
        + sum((-1 - X_HAT[i] * X_HAT[j]) / N * DX_HAT[j] for j in without(i))
        for i in range(N)
    ]
    it.right(same(np.array(commented) / ROOT, dx))


@claim(
    "together, line 2", FALSE, topic="notation", page="operations/layer_norm", harm=1
)
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


@claim("together, line 3", TRUE, topic="norms", page="operations/layer_norm")
def G125(it: Evidence) -> None:
    r"""LayerNorm's gradient is $\frac{\partial L}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(\frac{\partial L}{\partial \hat{x}_i} -
    \frac1N\sum_j\frac{\partial L}{\partial \hat{x}_j} -
    \frac{\hat{x}_i}{N}\sum_j\frac{\partial L}{\partial \hat{x}_j}\hat{x}_j\right)$."""
    line = (DX_HAT - DX_HAT.sum() / N - X_HAT / N * (DX_HAT @ X_HAT)) / ROOT
    it.as_printed(same(line, all_gradients(X, DY)[0]))


@claim("together, line 4", TRUE, topic="norms", page="operations/layer_norm")
def G126(it: Evidence) -> None:
    r"""LayerNorm's gradient is $\frac{\partial L}{\partial x_i} =
    \frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(\frac{\partial L}{\partial y_i} \gamma_i -
    \frac1N\sum_j\frac{\partial L}{\partial y_j}\gamma_j -
    \frac{\hat{x}_i}{N}\sum_j\frac{\partial L}{\partial y_j}\gamma_j\hat{x}_j\right)$.
    """
    sums = sum(DY[j] * W[j] for j in range(N)), sum(DY * W * X_HAT)
    line = (DY * W - sums[0] / N - X_HAT / N * sums[1]) / ROOT
    it.as_printed(same(line, all_gradients(X, DY)[0]))


@claim("matrices", TRUE, topic="norms", page="operations/layer_norm")
def G127(it: Evidence) -> None:
    """Rows are normalised one by one, so their gradients are independent; unlike
    softmax, LayerNorm has parameters, which all rows share."""
    x, dy = numbers(5, N), numbers(5, N, seed=1)
    dx, dw, db = all_gradients(x, dy)
    rows = [all_gradients(x[r], dy[r]) for r in range(5)]
    it.as_printed(same(np.stack([row[0] for row in rows]), dx))
    it.as_printed(not same(rows[0][1], dw) and dw.shape == db.shape == (N,))


@claim("matrices", TRUE, topic="norms", page="operations/layer_norm")
def G128(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial \gamma_i} = \sum_{r=1}^M
    \frac{\partial L}{\partial y_{ri}}\hat{x}_{ri}$ and
    $\frac{\partial L}{\partial \beta_i} = \sum_{r=1}^M
    \frac{\partial L}{\partial y_{ri}}$."""
    x, dy = numbers(5, N), numbers(5, N, seed=1)
    x_hat = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS)
    _, dw, db = all_gradients(x, dy)
    it.as_printed(same((dy * x_hat).sum(0), dw) and same(dy.sum(0), db))


@claim("tensors", TRUE, topic="norms", page="operations/layer_norm")
def G129(it: Evidence) -> None:
    """LayerNorm treats a $(K, M, N)$ tensor as a $(KM, N)$ matrix, whose rows all share
    the parameters."""
    x, dy = numbers(2, 3, N), numbers(2, 3, N, seed=1)
    whole = all_gradients(x, dy)
    rows = all_gradients(x.reshape(6, N), dy.reshape(6, N))
    it.as_printed(same(whole[0], rows[0].reshape(2, 3, N)))
    it.as_printed(same(whole[1], rows[1]) and same(whole[2], rows[2]))
