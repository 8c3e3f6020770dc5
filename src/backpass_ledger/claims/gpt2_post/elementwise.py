"""The scale of attention, and residual connections."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims.evidence import Evidence, equations_of
from backpass_ledger.claims.gpt2_post.overview import ROWS, X, residual
from backpass_ledger.claims.tools import derives, jacobian, numbers, same, torch, vjp

CLAIMS = """
G156  caveat  1  attention  attention/scaled_dot_product  scale, purpose
G157  caveat  2  attention  attention/scaled_dot_product  scale, purpose
G158  true    0  attention  attention/scaled_dot_product  scale, formulas
G159  true    0  FLOPs      attention/scaled_dot_product  scale, FLOPs
G160  true    0  residual   operations/residual_stream    residual, formula
G161  false   8  residual   operations/residual_stream    residual, gradient of x
G162  true    0  residual   operations/residual_stream    residual, gradient of F(x)
G163  false   5  FLOPs      operations/residual_stream    residual, FLOPs
"""

RESIDUAL = r"""
    given x, w \in \mathbb{R}
    let F(t) = \tanh(w t)
    let y = x + F(x)
    loss L
"""


def G156(it: Evidence) -> None:
    r"""Scores are divided by $\sqrt{d}$ so that they do not grow too large.

    For vectors of independent elements with variance 1, the scaled product has variance
    1 whatever $d$ is. The scale bounds nothing: longer vectors give larger scores."""
    q, k = numbers(4000, 128), numbers(4000, 128, seed=1)
    for d in (16, 128):
        scores = (q[:, :d] * k[:, :d]).sum(-1)
        it.as_printed(0.9 < (scores / np.sqrt(d)).var() < 1.1 < scores.var() / 10)
    it.elsewhere((8 * q * k).sum(-1).var() / 128 < 10)


def G157(it: Evidence) -> None:
    """The scale avoids overly sharp outputs of softmax, which keeps gradients stable
    and ensures smooth updates.

    It avoids them for random queries and keys. If these are long, softmax is as sharp
    as without the scale, so nothing is ensured. The text measures no gradient."""
    scores = numbers(200, 128) @ numbers(200, 128, seed=1).T

    def largest_weight(scores: Any) -> float:
        return float(torch.softmax(torch.tensor(scores), -1).amax(-1).mean())

    plain, scaled = largest_weight(scores), largest_weight(scores / np.sqrt(128))
    it.as_printed(scaled < 0.1 < 0.8 < plain)
    long = largest_weight(12 * scores / np.sqrt(128))
    it.elsewhere(long < 0.5)
    it.right(long >= plain)


def G158(it: Evidence) -> None:
    r"""$y = \frac{x}{\sqrt{d}}$ and $\frac{\partial L}{\partial x} = \frac{\partial
    L}{\partial y}\frac{1}{\sqrt{d}}$."""
    it.derives(r"given x \in \mathbb{R}, d \in \mathbb{R}_{>0}; loss L")


def G159(it: Evidence) -> None:
    """The backward of the scale takes $bn_hs^2$ FLOPs.

    This holds if scores are scaled. Scaling the queries gives the same for $bsh$."""
    b, n_h, s, d = 2, 3, 5, 4
    scores = cost.count("scale", (b, n_h, s, s), factor=0.5).backward.total
    queries = cost.count("scale", (b, n_h, s, d), factor=0.5).backward.total
    it.as_printed(ROWS["scaling"].at(b=b, n_h=n_h, s=s) == scores)
    it.right(queries == b * s * (n_h * d))
    given = (numbers(s, d), numbers(s, d, seed=1)), numbers(s, s)
    late = vjp(lambda q, k: (q @ k.mT) / 2, *given)
    it.right(all(map(same, late, vjp(lambda q, k: (q / 2) @ k.mT, *given))))


def G160(it: Evidence) -> None:
    """A residual connection adds a module's input to its output: y = x + F(x)."""
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0, norm_first=True).double()
    x = torch.tensor(numbers(3, 1, 4))
    with torch.no_grad():
        n = layer.norm1(x)
        y = x + layer.self_attn(n, n, n)[0]
        y = y + layer.linear2(torch.relu(layer.linear1(layer.norm2(y))))
        it.as_printed(same(y, layer(x)))


def G161(it: Evidence) -> None:
    r"""For $y = x + F(x)$, $\frac{\partial L}{\partial x} = \frac{\partial L}{\partial
    y}$.

    $x$ is also the input of $F$: $\frac{\partial L}{\partial x} = \frac{\partial
    L}{\partial y} + \frac{\partial L}{\partial y} \frac{\partial F(x)}{\partial x}$.
    The printed line is the share of the addition alone. With the printed line, the
    gradient that flows back through $F$ never reaches the earlier layers."""
    it.derives(RESIDUAL)
    it.derives_right(RESIDUAL)
    _, printed = equations_of(it.says)
    it.right(derives(printed, r"given x, F \in \mathbb{R}; let y = x + F; loss L"))


def G162(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial F(x)} = \frac{\partial L}{\partial y}$."""
    given = r"given x, w \in \mathbb{R}; let F = \tanh(w x); let y = x + F; loss L"
    it.derives(f"{given}; read F(x) as F")


def G163(it: Evidence) -> None:
    """A residual connection's backward only assigns the gradient: it has no arithmetic.

    The assignment costs nothing. Where $x$ was used twice, the two gradients are added:
    $bsh$ for each connection, $2bsh$ a layer."""
    rows = cost.tally("gpt2", 2, 100).only(lambda row: row.part == "layer")
    ran = rows.only(lambda row: row.term.stem in ("residual", "fork")).flops()[
        "backward"
    ]
    it.as_printed(ROWS["residual"].at() == ran)
    it.right(ran == 12 * 2 * (2 * 100 * 768))
    slopes = jacobian(residual, X) - np.eye(5)
    it.right(bool((slopes != 0).all()))  # something is there to be added
