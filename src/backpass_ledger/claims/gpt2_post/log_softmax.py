"""Log-softmax: its derivative and its cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims.evidence import Evidence, equations_of
from backpass_ledger.claims.gpt2_post.overview import ROWS, stored_by
from backpass_ledger.claims.gpt2_post.softmax import softmax
from backpass_ledger.claims.tools import derives, numbers, same, torch, vjp

CLAIMS = """
G90   true      0  softmax     operations/cross_entropy  definition
G91   caveat    4  precision   operations/cross_entropy  definition
G92   true      0  chain rule  operations/cross_entropy  chain rule
G93   true      0  chain rule  operations/cross_entropy  through softmax
G94   true      0  softmax     operations/softmax        through softmax
G95   true      0  loss        operations/cross_entropy  derivation, lines 1 and 2
G96   true      0  loss        operations/cross_entropy  derivation, line 3
G97   true      0  loss        operations/cross_entropy  derivation, lines 4 and 5
G98   true      0  softmax     operations/cross_entropy  tensors
G99   true      0  memory      operations/cross_entropy  FLOPs, storage
G100  true      0  FLOPs       operations/cross_entropy  FLOPs, steps
G101  true      0  FLOPs       operations/cross_entropy  FLOPs, total
G102  left-out  2  loss        operations/cross_entropy  FLOPs, total
"""

X = numbers(6)
LOG_SOFTMAX = r"""
    given x \in \mathbb{R}^N
    let z_i = \text{softmax}(x)_i
    let p_i = \log(z_i)
    loss L
"""


def gradient(x: Any, dp: Any) -> Any:
    """Return the gradient of PyTorch's log-softmax over the last axis."""
    return vjp(lambda x: torch.log_softmax(x, -1), x, dp)


def G90(it: Evidence) -> None:
    r"""$\text{logSoftmax}(x)_i = x_i - \log\sum_j e^{x_j}$, and $p_i =
    \text{logSoftmax}(x)_i = \log(\text{softmax}(x)_i)$."""
    it.derives(LOG_SOFTMAX)
    it.as_printed(same(np.log(softmax(X)), torch.log_softmax(torch.tensor(X), -1)))


def G91(it: Evidence) -> None:
    r"""Log-softmax as $x_i - \log\sum_j e^{x_j}$ is for numerical stability.

    It avoids the logarithm of a probability that underflowed. As printed, it overflows:
    for (1000, 999) both results are $-\infty$. The maximum has to be subtracted."""
    low, high = np.array([0.0, -800.0]), np.array([1000.0, 999.0])
    with np.errstate(all="ignore"):
        naive = np.log(softmax(low))
        printed = [x - np.log(np.exp(x).sum()) for x in (low, high)]
    it.as_printed(bool(np.isinf(naive[1]) and np.isfinite(printed[0]).all()))
    it.elsewhere(bool((printed[1] > -np.inf).any()))
    stable = high - 1000 - np.log(np.exp(high - 1000).sum())
    it.right(same(stable, -np.log1p(np.exp([-1.0, 1.0]))))


def G92(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial p_i}\frac{\partial
    p_i}{\partial x_i} + \sum_{j \neq i}\frac{\partial L}{\partial p_j}\frac{\partial
    p_j}{\partial x_i}$."""
    it.derives(LOG_SOFTMAX)


def G93(it: Evidence) -> None:
    r"""$\frac{\partial p_i}{\partial x_i} = \frac{\partial p_i}{\partial
    z_i}\frac{\partial z_i}{\partial x_i}$ with $\frac{\partial p_i}{\partial z_i} =
    \frac{1}{z_i}$."""
    it.derives(LOG_SOFTMAX)


def G94(it: Evidence) -> None:
    r"""From softmax, $\frac{\partial z_i}{\partial x_i} = z_i(1-z_i)$ and, for $j \ne
    i$, $\frac{\partial z_j}{\partial x_i} = -z_jz_i$."""
    own, other = equations_of(it.says)
    it.as_printed(derives(own, LOG_SOFTMAX))
    it.as_printed(derives(other, LOG_SOFTMAX + r"when j \neq i"))


def G95(it: Evidence) -> None:
    r"""For log-softmax, $\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial
    p_i}\frac{\partial p_i}{\partial z_i} \frac{\partial z_i}{\partial x_i} + \sum_{j
    \neq i}\frac{\partial L}{\partial p_j} \frac{\partial p_j}{\partial
    z_j}\frac{\partial z_j}{\partial x_i} = \frac{\partial L}{\partial
    p_i}\frac{1}{z_i}z_i(1-z_i) + \sum_{j \neq i}\frac{\partial L}{\partial
    p_j}\frac{1}{z_j}(-z_jz_i)$."""
    it.derives(LOG_SOFTMAX)


def G96(it: Evidence) -> None:
    r"""For log-softmax, $\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial
    p_i}(1-z_i) - z_i\sum_{j \neq i}\frac{\partial L}{\partial p_j}$."""
    it.derives(LOG_SOFTMAX)


def G97(it: Evidence) -> None:
    r"""For log-softmax, $\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial
    p_i} - z_i\sum_{j}\frac{\partial L}{\partial p_j} = \frac{\partial L}{\partial p_i}
    - e^{p_i}\sum_{j}\frac{\partial L}{\partial p_j}$."""
    it.derives(LOG_SOFTMAX)


def G98(it: Evidence) -> None:
    """Log-softmax treats matrices and tensors row by row, as softmax does."""
    x, dp = numbers(2, 3, 6), numbers(2, 3, 6, seed=1)
    rows = [[gradient(x[i, j], dp[i, j]) for j in range(3)] for i in range(2)]
    it.as_printed(same(np.array(rows), gradient(x, dp)))


def G99(it: Evidence) -> None:
    r"""The backward of log-softmax needs the upstream gradient and the logarithms of
    the probabilities, both $(b, s, V)$.

    The forward stores the second."""
    y, stored = stored_by(lambda x: torch.log_softmax(x, -1), numbers(2, 3, 7))
    it.as_printed(len(stored) == 1 and torch.equal(stored[0], y))


def G100(it: Evidence) -> None:
    """In log-softmax's backward a row takes $V$ FLOPs for the sum, $V$ exponentials,
    $V$ products, and $V$ differences.

    The sum has $V - 1$ additions. The text does not state that an exponential counts as
    one."""
    kinds = cost.count("log_softmax", (1, 7)).backward.by_kind
    it.as_printed(kinds["exp"] == kinds["multiply"] == kinds["subtract"] == 7)
    it.right(kinds["add"] == 7 - 1)


def G101(it: Evidence) -> None:
    r"""Log-softmax's backward takes $4bsV$ FLOPs in total.

    It takes exactly $bs(4V - 1)$. The network's total leaves it out."""
    b, s, V = 2, 3, 7
    ran = cost.count("log_softmax", (b, s, V)).backward.total
    it.as_printed(ROWS["log_softmax"].at(b=b, s=s, V=V) == ran + b * s)
    it.right(ran == b * s * (4 * V - 1))


def G102(it: Evidence) -> None:
    r"""Log-softmax in a loss needs the sum of $V$ upstream gradients.

    With the likelihood's gradient of the last section, that sum is the constant
    $-1/(bs)$, and the whole gradient is $(\mathrm{softmax} - \text{one-hot})/(bs)$. The
    text never reaches this form, which takes 2V + 1 operations per row, not 4V."""
    x, one_hot, V = numbers(3, 7), np.eye(7)[[3, 0, 6]], 7
    dp, loss = -one_hot / 3, torch.nn.functional.cross_entropy
    expected = vjp(lambda x: loss(x, x.new_tensor(one_hot)), x, 1.0)
    it.right(same(dp.sum(-1), -np.ones(3) / 3) and same(gradient(x, dp), expected))
    it.right(same((softmax(x) - one_hot) / 3, expected))
    it.left_out(4 * V - (2 * V + 1))
    ran = cost.tally("gpt2", 1, 8).only(lambda row: row.term.call == "loss").flops()
    it.right(ran["backward"] == 8 * (2 * 50257 + 1) + 1)
