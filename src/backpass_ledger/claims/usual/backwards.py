"""What a backward needs, and what its gradient is."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backpass import cost
from backpass.ops import attention, cross_entropy, rope
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
U30  false   1  norms      operations/layer_norm       a common reading of framework interfaces that save x
U31  false   2  softmax    operations/softmax          heard in lectures; no source cited
U32  true    0  softmax    operations/softmax          stable implementations of softmax
U33  false   4  softmax    operations/softmax          posts on attention that collapses
U34  caveat  5  loss       operations/cross_entropy    nearly every text
U35  false   2  residual   operations/residual_stream  texts on residual connections
U36  true    0  positions  operations/rope             framework interfaces
U37  true    0  attention  attention/grouped_query     texts on grouped attention
"""


def U30(it: Evidence) -> None:
    r"""Every backward of LayerNorm needs the mean and the variance of each row.

    It needs x̂ and 1/σ. A backward that saves x uses the mean to rebuild x̂; one that
    saves x̂ does not need it. If no weight is 0, x̂ also follows from the output, the
    weight, and the bias."""
    (x, dy), parameters = numbers(2, 5, 7), numbers(2, 7)
    w, b = parameters

    def norm(x: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (7,), *torch.tensor(parameters), 1e-5)

    def centred(a: Any) -> Any:
        return a - a.mean(-1, keepdims=True)

    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def backward(x_hat: Any) -> Any:
        g = dy * w
        return rstd * (centred(g) - x_hat * (g * x_hat).mean(-1, keepdims=True))

    of_output = backward((norm(torch.tensor(x)).numpy() - b) / w)
    it.as_printed(not same(of_output, vjp(norm, x, dy), 1e-8))
    it.right(same(of_output, vjp(norm, x, dy), 1e-8))
    other_mean = backward(centred(x + 3) * rstd)  # another mean, the same x̂
    it.right(same(other_mean, vjp(norm, x, dy), 1e-8))


def U31(it: Evidence) -> None:
    r"""Softmax's backward needs the scores.

    It needs only its output. A constant added to a row of scores changes neither."""
    x, dy = numbers(2, 4, 6)
    softmax = partial(torch.softmax, dim=-1)
    y = softmax(torch.tensor(x)).numpy()
    found = y * (dy - (dy * y).sum(-1, keepdims=True))
    it.right(same(found, vjp(softmax, x, dy)))
    it.as_printed(not same(found, vjp(softmax, x + 5, dy)))


def U32(it: Evidence) -> None:
    r"""The gradient of softmax is unchanged if the maximum that the forward subtracts
    is treated as a constant."""

    def gradient(seen: Any) -> Any:
        def softmax(x: Any) -> Any:
            e = torch.exp(x - seen(x.max(-1, keepdim=True).values))
            return e / e.sum(-1, keepdim=True)

        return vjp(softmax, *numbers(2, 4, 6))

    it.as_printed(same(gradient(lambda m: m.detach()), gradient(lambda m: m), 1e-12))


def U33(it: Evidence) -> None:
    r"""Sharp attention, with weights near 0 and 1, has large gradients of the scores.

    The Jacobian's entries are a(1 − a) and −a·a′. They approach 0 as one weight
    approaches 1; the Jacobian's norm is 1/2 when two weights are 1/2 each."""

    def largest(a: Any) -> float:
        return float(np.abs(np.linalg.eigvalsh(np.diag(a) - np.outer(a, a))).max())

    weights = [np.exp(k * np.array([0, -1.5, -3.0, -3.5])) for k in (1, 4, 16)]
    sizes = [largest(e / e.sum()) for e in weights]
    it.as_printed(sizes[2] > sizes[1])
    it.right(sizes[0] > sizes[1] > sizes[2] and sizes[2] < 1e-9)
    it.right(largest(np.array([0.5, 0.5, 0, 0])) == 0.5)


def U34(it: Evidence) -> None:
    r"""Cross-entropy's gradient with respect to the scores is softmax minus one-hot.

    This is right for a sum over targets. A mean divides by the number of counted
    targets, and a row with an ignored target has gradient 0."""
    x, t = numbers(5, 7), np.array([3, 0, 6, 2, 2])
    printed = np.exp(x) / np.exp(x).sum(-1, keepdims=True) - np.eye(7)[t]

    def gradient(t: Any, reduction: str) -> Any:
        saved = cross_entropy.forward(x, t, reduction=reduction)[1]
        return cross_entropy.backward(np.array(1.0), saved)

    ignored = np.where(t == 2, -100, t)
    it.as_printed(same(printed, gradient(t, "sum")))
    it.elsewhere(same(printed, gradient(t, "mean")))
    it.elsewhere(same(printed, gradient(ignored, "sum")))
    it.right(same(printed / 5, gradient(t, "mean")))
    it.right(same(printed / 3 * (ignored >= 0)[:, None], gradient(ignored, "mean")))


def U35(it: Evidence) -> None:
    """A residual connection passes the gradient on at no cost in the backward.

    The stream is used twice, so two gradients are added there: bsh additions a
    block."""
    forks = cost.tally("gpt2", 2, 100).only(lambda row: row.term.stem == "fork")
    it.as_printed(forks.flops("counted")["backward"] == 0)
    it.right(forks.flops("counted")["backward"] == 24 * 2 * 100 * 768)


def U36(it: Evidence) -> None:
    """The backward of RoPE is the rotation by the opposite angle."""
    cos, sin = np.cos(numbers(3, 4)), np.sin(numbers(3, 4))
    x, dy = numbers(2, 2, 3, 8)
    found = rope.backward(dy, rope.forward(x, cos, sin)[1])
    it.as_printed(same(found, rope.forward(dy, cos, -sin)[0]))


def U37(it: Evidence) -> None:
    """Shared keys' and values' gradients are sums over the query heads that share
    them."""
    (q, dy), (k, v) = numbers(2, 1, 6, 5, 4), numbers(2, 1, 2, 5, 4)

    def gradients(*shared: Any) -> Any:
        return attention.backward(dy, attention.forward(q, *shared)[1])[1:3]

    own = gradients(*(np.repeat(a, 3, axis=1) for a in (k, v)))
    for found, of_heads in zip(gradients(k, v), own, strict=True):
        it.as_printed(same(found, np.reshape(of_heads, (1, 2, 3, 5, 4)).sum(2)))
