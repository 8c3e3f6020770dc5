"""The scale of attention, and residual connections."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import ROWS
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


def block(x: Any) -> Any:
    """Return F(x): a small block with a matrix and a nonlinearity."""
    return torch.tanh(x @ x.new_tensor(numbers(5, 5)))


def G156(it: Evidence) -> None:
    r"""Scores are divided by $\sqrt{d}$ so that they do not grow too large.

    For vectors of independent elements with variance 1, the scaled product has variance
    1 whatever $d$ is. The scale bounds nothing: longer vectors still give larger
    scores.
    """
    q, k = numbers(4000, 128), numbers(4000, 128, seed=1)
    for d in (16, 128):
        scores = (q[:, :d] * k[:, :d]).sum(-1)
        it.as_printed(0.9 < (scores / np.sqrt(d)).var() < 1.1 < scores.var() / 10)
    longer = (8 * q * k).sum(-1) / np.sqrt(128)
    it.elsewhere(longer.var() < 10)


def G157(it: Evidence) -> None:
    """The scale avoids overly sharp outputs of softmax, which keeps gradients stable
    and ensures smooth updates.

    It avoids them for random queries and keys. If these are long, softmax is as sharp
    as without the scale, so nothing is ensured. The text measures no gradient.
    """
    d = 128
    q, k = numbers(200, d), numbers(200, d, seed=1)

    def largest_weight(scores: Any) -> float:
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return float((e / e.sum(-1, keepdims=True)).max(-1).mean())

    plain, scaled = largest_weight(q @ k.T), largest_weight(q @ k.T / np.sqrt(d))
    it.as_printed(scaled < 0.1 < 0.8 < plain)
    long = largest_weight(12 * q @ k.T / np.sqrt(d))
    it.elsewhere(long < 0.5)
    it.right(long >= plain)


def G158(it: Evidence) -> None:
    r"""$y = \frac{x}{\sqrt{d}}$ and $\frac{\partial L}{\partial x} = \frac{\partial
    L}{\partial y}\frac{1}{\sqrt{d}}$."""
    given = r"given x \in \mathbb{R}, d \in \mathbb{R}_{>0}; loss L"
    it.derives(given)


def G159(it: Evidence) -> None:
    """The backward of the scale takes $bn_hs^2$ FLOPs.

    This holds if the scores are scaled. Scaling the queries instead gives the same
    gradients for $bsh$.
    """
    b, n_h, s, d = 2, 3, 5, 4
    scores = cost.count("scale", (b, n_h, s, s), factor=0.5).backward.total
    queries = cost.count("scale", (b, n_h, s, d), factor=0.5).backward.total
    it.as_printed(ROWS["scaling"].at(b=b, n_h=n_h, s=s) == scores)
    it.right(queries == b * s * (n_h * d))
    q, k, dy = numbers(s, d), numbers(s, d, seed=1), numbers(s, s)
    late = vjp(lambda q, k: (q @ k.mT) / 2, (q, k), dy)
    early = vjp(lambda q, k: (q / 2) @ k.mT, (q, k), dy)
    it.right(all(same(a, c) for a, c in zip(late, early, strict=True)))


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

    $x$ is also the input of $F$: $\frac{\partial L}{\partial x} =
    \frac{\partial L}{\partial y} + \frac{\partial L}{\partial y}
    \frac{\partial F}{\partial x}$. The printed line is the share of the addition alone.
    With the printed line, the gradient that flows back through $F$ never reaches the
    earlier layers.
    """
    printed = r"\frac{\partial L}{\partial x} = \frac{\partial L}{\partial y}"
    it.as_printed(derives(printed, RESIDUAL))
    through_f = r"\frac{\partial L}{\partial y} \frac{\partial F(x)}{\partial x}"
    it.right(derives(f"{printed} + {through_f}", RESIDUAL))
    it.right(derives(printed, r"given x, F \in \mathbb{R}; let y = x + F; loss L"))


def G162(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial F(x)} = \frac{\partial L}{\partial y}$."""
    given = r"given x, w \in \mathbb{R}; let F = \tanh(w x); let y = x + F; loss L"
    it.derives(f"{given}; read F(x) as F")


def G163(it: Evidence) -> None:
    """The backward of a residual connection has no arithmetic, because the gradient is
    assigned to both inputs.

    The assignment costs nothing. Where $x$ was used twice, the two gradients are added:
    $bsh$ for each connection, $2bsh$ a layer.
    """
    rows = cost.tally("gpt2", 2, 100).only(lambda row: row.part == "layer")
    residual = rows.only(lambda row: row.term.stem in ("residual", "fork"))
    ran = residual.flops()["backward"]
    it.as_printed(ROWS["residual"].at() == ran)
    it.right(ran == 12 * 2 * (2 * 100 * 768))
    slopes = jacobian(lambda x: x + block(x), numbers(5)) - np.eye(5)
    it.right(bool((slopes != 0).all()))  # something is there to be added
