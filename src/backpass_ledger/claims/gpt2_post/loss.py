"""The negative log-likelihood."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from backpass import cost
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


@cache
def given() -> tuple[Any, Any, Any]:
    """Return the logits, their logarithms of probabilities, and the targets."""
    x = torch.tensor(X)
    return x, torch.log_softmax(x, -1), torch.tensor(T)


def nll(log_p: Any, t: Any) -> Any:
    """Return PyTorch's negative log-likelihood."""
    return torch.nn.functional.nll_loss(log_p, t)


def G182(it: Evidence) -> None:
    """`F.cross_entropy(logits, targets)` is `F.nll_loss` of `F.log_softmax`.

    This holds for class targets without label smoothing."""
    x, log_p, t = given()
    whole = torch.nn.functional.cross_entropy
    it.as_printed(same(nll(log_p, t), whole(x, t)))
    it.elsewhere(same(nll(log_p, t), whole(x, t, label_smoothing=0.1)))
    it.elsewhere(not raises(RuntimeError, lambda: nll(log_p, log_p.exp())))


def G183(it: Evidence) -> None:
    """The loss's first call is `F.log_softmax(logits)`, for logits $(b, s, V)$.

    Without `dim=-1`, it warns and normalises these logits over the batch."""
    x = torch.tensor(numbers(2, 3, V))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        printed = torch.nn.functional.log_softmax(x).exp()
    it.as_printed(same(printed.sum(-1), np.ones((2, 3))) and not warned)
    it.right(same(printed.sum(0), np.ones((3, V))) and bool(warned))
    it.right(same(torch.log_softmax(x, -1).exp().sum(-1), np.ones((2, 3))))


def G184(it: Evidence) -> None:
    """The loss takes log-probabilities $(b, s, V)$ and targets $(b, s)$.

    As a rule for each position this holds. PyTorch's calls expect the classes on the
    second axis: with these shapes they raise an error, or, if $s = V$, run and return
    another loss. Both arrays have to be reshaped, to $(bs, V)$ and $(bs)$."""
    _, log_p, t = given()
    picked = -sum(log_p[i, T[i]] for i in range(M)) / M
    it.as_printed(same(nll(log_p, t), picked))
    whole, targets = log_p.reshape(2, 3, V), t.reshape(2, 3)
    it.elsewhere(not raises((RuntimeError, ValueError), lambda: nll(whole, targets)))
    square = torch.log_softmax(torch.tensor(numbers(2, V, V)), -1)
    classes = (3 * torch.arange(2 * V) + 1).reshape(2, V) % V
    right = nll(square.reshape(-1, V), classes.reshape(-1))
    it.elsewhere(same(nll(square, classes), right))


def G185(it: Evidence) -> None:
    """The negative log-likelihood is the average of the targets' log-probabilities.

    The loss is minus the average, as its name and the gradient of the next sentence
    say. Without the sign a step of descent lowers the targets' probabilities."""
    _, log_p, t = given()
    average = sum(log_p[i, T[i]] for i in range(M)) / M
    it.as_printed(same(average, nll(log_p, t)))
    it.right(same(-average, nll(log_p, t)))


def G186(it: Evidence) -> None:
    r"""The likelihood's gradient is 0 except at targets, where it is $-\frac{1}{b
    \times s}$.

    This holds for the mean over all positions. Ignored targets have the gradient 0 and
    are left out of the divisor."""
    printed, first = -np.eye(V)[T] / M, np.arange(M) == 0
    it.as_printed(same(printed, vjp(lambda p: nll(p, given()[2]), X, 1.0)))
    ignored = torch.tensor(np.where(first, -100, T))
    found = vjp(lambda p: nll(p, ignored), X, 1.0)
    it.elsewhere(same(printed, found))
    it.right(same(printed * M / (M - 1) * ~first[:, None], found))


def G187(it: Evidence) -> None:
    """The likelihood's backward builds a sparse tensor.

    Few of its elements are nonzero, but all $bsV$ are stored."""
    x = torch.tensor(X, requires_grad=True)
    (dx,) = torch.autograd.grad(nll(x, given()[2]), x)
    it.as_printed(int((dx != 0).sum()) == M)
    it.elsewhere(dx.is_sparse)
    it.right(dx.untyped_storage().nbytes() == 8 * M * V)


def G188(it: Evidence) -> None:
    """The likelihood's backward performs no FLOPs, since it indexes and assigns.

    Computing the constant takes one division, however many positions there are."""
    few, many = (
        cost.count("nll", numbers(rows, V), np.arange(rows) % V).backward.total
        for rows in (3, 60)
    )
    it.as_printed(ROWS["nll"].at() == 0 == many - few)
    it.right(few <= 1)
