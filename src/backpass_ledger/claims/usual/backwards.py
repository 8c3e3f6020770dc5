"""What a backward needs, and what its gradient is."""

from __future__ import annotations

import numpy as np

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
    weight, and the bias.
    """
    x, w, b, dy = (
        numbers(5, 7),
        numbers(7, seed=1),
        numbers(7, seed=2),
        numbers(5, 7, seed=3),
    )
    y = torch.nn.functional.layer_norm(
        torch.tensor(x), (7,), torch.tensor(w), torch.tensor(b), 1e-5
    ).numpy()
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def backward(x_hat: np.ndarray) -> np.ndarray:
        g = dy * w
        return rstd * (
            g - g.mean(-1, keepdims=True) - x_hat * (g * x_hat).mean(-1, keepdims=True)
        )

    expected = vjp(
        lambda x: torch.nn.functional.layer_norm(x, (7,), torch.tensor(w), None, 1e-5),
        x,
        dy,
    )
    shifted = (
        x + 3 - (x + 3).mean(-1, keepdims=True)
    ) * rstd  # another mean, the same x̂
    it.right(same(backward((y - b) / w), expected, 1e-8))
    it.right(same(backward(shifted), expected, 1e-8))
    it.as_printed(not same(backward((y - b) / w), expected, 1e-8))


def U31(it: Evidence) -> None:
    r"""Softmax's backward needs the scores.

    It needs only its output. Adding a constant to a row of scores changes neither the
    output nor the gradient.
    """
    x, dy = numbers(4, 6), numbers(4, 6, seed=1)
    expected = vjp(lambda x: torch.softmax(x, -1), x, dy)
    y = torch.softmax(torch.tensor(x), -1).numpy()
    found = y * (dy - (dy * y).sum(-1, keepdims=True))
    it.right(same(found, expected))
    it.as_printed(not same(found, vjp(lambda x: torch.softmax(x, -1), x + 5, dy)))


def U32(it: Evidence) -> None:
    r"""The gradient of softmax is unchanged if the maximum that the forward subtracts
    is treated as a constant."""
    x, dy = numbers(4, 6), numbers(4, 6, seed=1)

    def ignored(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.max(-1, keepdim=True).values.detach())
        return e / e.sum(-1, keepdim=True)

    def differentiated(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.max(-1, keepdim=True).values)
        return e / e.sum(-1, keepdim=True)

    it.as_printed(same(vjp(ignored, x, dy), vjp(differentiated, x, dy), 1e-12))


def U33(it: Evidence) -> None:
    r"""Sharp attention, with weights near 0 and 1, produces large gradients of the
    row's scores.

    The Jacobian's entries are a(1 − a) and −a·a′. They approach 0 as one weight
    approaches 1; the Jacobian's norm is 1/2 when two weights are 1/2 each.
    """

    def largest(sharpness: float) -> float:
        e = np.exp(sharpness * (np.array([2.0, 0.5, -1.0, -1.5]) - 2))
        a = e / e.sum()
        return float(np.abs(np.linalg.eigvalsh(np.diag(a) - np.outer(a, a))).max())

    sizes = [largest(sharpness) for sharpness in (1, 4, 16)]
    it.as_printed(sizes[2] > sizes[1])
    it.right(sizes[0] > sizes[1] > sizes[2] and sizes[2] < 1e-9)
    half = np.array([0.5, 0.5, 0, 0])
    it.right(
        np.abs(np.linalg.eigvalsh(np.diag(half) - np.outer(half, half))).max() == 0.5
    )


def U34(it: Evidence) -> None:
    r"""The gradient of cross-entropy with respect to the scores is softmax minus
    one-hot.

    This is right for a sum over targets. A mean divides by the number of counted
    targets, and a row with an ignored target has gradient 0.
    """
    x, t = numbers(5, 7), np.array([3, 0, 6, 2, 2])
    e = np.exp(x)
    printed = e / e.sum(-1, keepdims=True) - np.eye(7)[t]

    def gradient(t: np.ndarray, reduction: str) -> np.ndarray:
        return cross_entropy.backward(
            np.array(1.0), cross_entropy.forward(x, t, reduction=reduction)[1]
        )

    it.as_printed(same(printed, gradient(t, "sum")))
    it.elsewhere(same(printed, gradient(t, "mean")))
    it.right(same(printed / 5, gradient(t, "mean")))
    ignored = np.where(t == 2, -100, t)
    it.elsewhere(same(printed, gradient(ignored, "sum")))
    it.right(same(printed / 3 * (ignored >= 0)[:, None], gradient(ignored, "mean")))


def U35(it: Evidence) -> None:
    """A residual connection passes the gradient on at no cost in the backward.

    The stream is used twice, so two gradients are added there: bsh additions for each
    block.
    """
    from backpass import cost

    forks = cost.tally("gpt2", 2, 100).only(lambda row: row.term.stem == "fork")
    it.as_printed(forks.flops("counted")["backward"] == 0)
    it.right(forks.flops("counted")["backward"] == 24 * 2 * 100 * 768)


def U36(it: Evidence) -> None:
    """The backward of RoPE is the rotation by the opposite angle."""
    angles = numbers(3, 4)
    cos, sin = np.cos(angles), np.sin(angles)
    dy = numbers(2, 3, 8)
    _, saved = rope.forward(numbers(2, 3, 8, seed=1), cos, sin)
    it.as_printed(same(rope.backward(dy, saved), rope.forward(dy, cos, -sin)[0]))


def U37(it: Evidence) -> None:
    """The gradients of shared keys and values are sums over the query heads that share
    them."""
    q, k, v, dy = (
        numbers(1, 6, 5, 4),
        numbers(1, 2, 5, 4),
        numbers(1, 2, 5, 4, seed=1),
        numbers(1, 6, 5, 4, seed=2),
    )
    _, dk, dv, *_ = attention.backward(dy, attention.forward(q, k, v)[1])
    wide = [np.repeat(a, 3, axis=1) for a in (k, v)]
    own = [
        np.asarray(a)
        for a in attention.backward(dy, attention.forward(q, *wide)[1])[1:3]
    ]
    sums = [a.reshape(1, 2, 3, 5, 4).sum(2) for a in own]
    it.as_printed(same(dk, sums[0]) and same(dv, sums[1]))
