"""The negative log-likelihood."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import ROWS
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp

CLAIMS = """
G182  caveat  2  loss    operations/cross_entropy  composition
G183  false   4  loss    operations/cross_entropy  composition
G184  caveat  5  loss    operations/cross_entropy  forward
G185  false   4  loss    operations/cross_entropy  forward
G186  caveat  2  loss    operations/cross_entropy  backward
G187  caveat  1  memory  operations/cross_entropy  backward
G188  true    0  FLOPs   operations/cross_entropy  backward
"""


M, V = 6, 7
X, T = numbers(M, V), np.array([3, 0, 6, 2, 2, 5])


def torch_of(*arrays: Any) -> list[Any]:
    """Return arrays as tensors."""
    return [torch.tensor(array) for array in arrays]


def G182(it: Evidence) -> None:
    """`F.cross_entropy(logits, targets)` is `F.nll_loss` of `F.log_softmax`.

    This holds for class targets without label smoothing.
    """
    from torch.nn import functional as F

    x, t = torch_of(X, T)
    composed = F.nll_loss(F.log_softmax(x, -1), t)
    it.as_printed(same(composed, F.cross_entropy(x, t)))
    it.elsewhere(same(composed, F.cross_entropy(x, t, label_smoothing=0.1)))
    it.elsewhere(not raises(RuntimeError, lambda: F.nll_loss(x, F.softmax(x, -1))))


def G183(it: Evidence) -> None:
    """The first of the loss's two calls is `F.log_softmax(logits)`, for logits of the
    shape $(b, s, V)$.

    Without `dim`, it warns and normalises three-dimensional logits over the batch.
    `dim=-1` is needed.
    """
    from torch.nn import functional as F

    (x,) = torch_of(numbers(2, 3, V))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        printed = F.log_softmax(x)
    it.as_printed(same(printed.exp().sum(-1), np.ones((2, 3))) and not warned)
    it.right(same(printed.exp().sum(0), np.ones((3, V))))
    it.right(same(F.log_softmax(x, -1).exp().sum(-1), np.ones((2, 3))))


def G184(it: Evidence) -> None:
    """The loss takes log-probabilities $(b, s, V)$ and targets $(b, s)$.

    As a rule for each position this holds. PyTorch's calls expect the classes on the
    second axis: with these shapes they raise an error, or, if $s = V$, run and return
    another loss. Both arrays have to be reshaped, to $(bs, V)$ and $(bs)$.
    """
    from torch.nn import functional as F

    x, t = torch_of(numbers(2, 3, V), T.reshape(2, 3))
    log_p = F.log_softmax(x, -1)
    picked = -sum(log_p[i, j, t[i, j]] for i in range(2) for j in range(3)) / M
    it.as_printed(same(F.nll_loss(log_p.reshape(M, V), t.reshape(M)), picked))
    it.elsewhere(not raises((RuntimeError, ValueError), lambda: F.nll_loss(log_p, t)))
    square, classes = torch_of(
        numbers(2, V, V), (3 * np.arange(2 * V) + 1).reshape(2, V) % V
    )
    square = F.log_softmax(square, -1)
    right = F.nll_loss(square.reshape(-1, V), classes.reshape(-1))
    it.elsewhere(same(F.nll_loss(square, classes), right))


def G185(it: Evidence) -> None:
    """The negative log-likelihood picks the log-probability of each target and averages
    these values.

    The loss is minus the average, as its name and the gradient of the next sentence
    say. Without the sign a step of descent lowers the targets' probabilities.
    """
    x, t = torch_of(X, T)
    log_p = torch.log_softmax(x, -1)
    average = sum(log_p[i, t[i]] for i in range(M)) / M
    expected = torch.nn.functional.nll_loss(log_p, t)
    it.as_printed(same(average, expected))
    it.right(same(-average, expected))


def G186(it: Evidence) -> None:
    r"""The likelihood's gradient is 0 except at the targets, where it is
    $-\frac{1}{b \times s}$.

    This holds for the mean over all positions. Ignored targets have the gradient 0 and
    are left out of the divisor.
    """
    from torch.nn import functional as F

    (t,) = torch_of(T)
    printed = -np.eye(V)[T] / M
    it.as_printed(same(printed, vjp(lambda p: F.nll_loss(p, t), X, 1.0)))
    ignored = t.clone()
    ignored[1] = -100
    found = vjp(lambda p: F.nll_loss(p, ignored), X, 1.0)
    it.elsewhere(same(printed, found))
    it.right(same(printed * M / (M - 1) * (np.arange(M) != 1)[:, None], found))


def G187(it: Evidence) -> None:
    """The likelihood's backward builds a sparse tensor.

    Few of its elements are nonzero, but it is stored as a dense array of $bsV$
    elements.
    """
    x, t = torch_of(X, T)
    x.requires_grad_()
    torch.nn.functional.nll_loss(x, t).backward()
    assert x.grad is not None
    it.as_printed(int((x.grad != 0).sum()) == M)
    it.elsewhere(x.grad.is_sparse)
    it.right(x.grad.untyped_storage().nbytes() == 8 * M * V)


def G188(it: Evidence) -> None:
    """The likelihood's backward performs no FLOPs, since it indexes and assigns.

    Computing the constant takes one division, however many positions there are.
    """
    from backpass import cost

    ran = {
        rows: cost.count("nll", numbers(rows, V), np.arange(rows) % V).backward.total
        for rows in (3, 60)
    }
    it.as_printed(ROWS["nll"].at() == 0 and ran[60] - ran[3] == 0)
    it.right(ran[3] <= 1)
