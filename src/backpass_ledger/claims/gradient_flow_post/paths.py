"""The section on the gradient's path in pre-norm and in post-norm."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from backpass.ops import feed_forward, layer_norm
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.heads import tensors
from backpass_ledger.claims.tools import jacobian, numbers, same, torch, vjp

CLAIMS = """
F138  true    0  norms     numerics/gradient_flow      §2.1, formulas
F139  true    0  norms     numerics/gradient_flow      §2.1, formulas
F140  true    0  residual  operations/residual_stream  §2.1, pre-norm's Jacobian
F141  false   7  residual  numerics/gradient_flow      §2.1, pre-norm's Jacobian
F142  caveat  2  residual  operations/residual_stream  §2.1, L layers
F143  true    0  norms     numerics/gradient_flow      §2.1, post-norm's Jacobian
F144  true    0  norms     numerics/gradient_flow      §2.1, post-norm's Jacobian
F145  caveat  5  norms     numerics/gradient_flow      §2.1, the norm's Jacobian
F146  caveat  4  norms     numerics/gradient_flow      §2.1, L layers
"""


W = numbers(7, 7, seed=3)
X = 0.8 * numbers(7, seed=4)
SEEDS = range(3)


def block(x: Any) -> Any:
    """Some sublayer."""
    return (x @ tensors(W)[0]).tanh()


def of_layer_norm(x: Any) -> Any:
    """PyTorch's layer norm, without ε."""
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), eps=0)


@cache
def descend(
    order: str, blocks: int, seed: int, scale: float = 1.0
) -> tuple[Any, float]:
    """Return the length of the stream's gradient before each block and after the last,
    relative to that after the last, and the product of the norms' mean factors 1/σ. The
    blocks are random feed-forward blocks of width 128 on 8 rows. Each gives a row of
    variance ``scale``² for a normalised row."""
    draw = np.random.default_rng([seed, blocks])
    x, g = draw.normal(size=(2, 8, 128))
    kept: list[Any] = []
    for _ in range(blocks):
        up, down = (
            draw.normal(size=(2, 128, 128)) * np.sqrt([2 / 128, 1 / 128])[:, None, None]
        )
        a, of_norm = layer_norm.forward(x) if order == "pre" else (x, None)
        a, of_block = feed_forward.forward(a, up, scale * down, activation="relu")
        x = x + a
        if order == "post":
            x, of_norm = layer_norm.forward(x)
        kept.append((of_norm, of_block))
    lengths = [np.linalg.norm(g)]
    for of_norm, of_block in reversed(kept):
        if order == "post":
            g = layer_norm.backward(g, of_norm)[0]
        da = feed_forward.backward(g, of_block)[0]
        g = g + (layer_norm.backward(da, of_norm)[0] if order == "pre" else da)
        lengths.append(np.linalg.norm(g))
    factors = [np.mean(of_norm.rstd) for of_norm, _ in kept]
    return np.array(lengths)[::-1] / lengths[0], float(np.prod(factors))


def at_bottom(order: str, blocks: int, scale: float = 1.0) -> list[float]:
    """Return the gradient at the bottom relative to the top, for three draws."""
    return [float(descend(order, blocks, seed, scale)[0][0]) for seed in SEEDS]


def encoder(*, norm_first: bool) -> tuple[Any, Any, Any, Any]:
    """Return PyTorch's layer of the original transformer, an input, and its blocks."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    layer.norm1.weight.data = 1 + layer.linear1.bias.data[:8]
    x = tensors(numbers(2, 5, 8))[0]

    def attend(x: Any) -> Any:
        return layer.self_attn(x, x, x, need_weights=False)[0]

    def feed(x: Any) -> Any:
        return layer.linear2(torch.relu(layer.linear1(x)))

    return layer, x, attend, feed


def F138(it: Evidence) -> None:
    r"""Post-norm, the original transformer's order, is $h_\text{out} = \text{Norm}(x +
    \text{Sublayer}(x))$."""
    layer, x, attend, feed = encoder(norm_first=False)
    h = layer.norm1(x + attend(x))
    it.as_printed(
        same(layer.norm2(h + feed(h)).detach().numpy(), layer(x).detach().numpy())
    )


def F139(it: Evidence) -> None:
    r"""Pre-norm is $h_\text{out} = x + \text{Sublayer}(\text{Norm}(x))$."""
    layer, x, attend, feed = encoder(norm_first=True)
    h = x + attend(layer.norm1(x))
    it.as_printed(
        same((h + feed(layer.norm2(h))).detach().numpy(), layer(x).detach().numpy())
    )


def F140(it: Evidence) -> None:
    r"""$\frac{\partial h_\text{out}}{\partial x} = I + \frac{\partial
    \text{Sublayer}(\text{Norm}(x))}{\partial x}$."""
    inner = jacobian(lambda x: block(of_layer_norm(x)), X)
    whole = jacobian(lambda x: x + block(of_layer_norm(x)), X)
    it.as_printed(same(whole, np.eye(7) + inner))


def F141(it: Evidence) -> None:
    """The identity guarantees that the gradient passes with magnitude 1, whatever the
    sublayer's Jacobian is.

    One term of the sum does. The sum can be 0, and in random pre-norm stacks that keep
    variances it grows: about as the square root of the number of blocks, to more than 5
    times at 80.
    """
    g, halves = numbers(7, seed=5), []
    for slope in (-1.0, 1.0):
        dx = vjp(lambda x, slope=slope: x + slope * x, X, g)
        halves.append(np.linalg.norm(dx) / np.linalg.norm(g))
    it.as_printed(all(abs(length - 1) < 0.01 for length in halves))
    it.right(halves[0] == 0 and np.isclose(halves[1], 2))
    for blocks in (32, 80, 128):
        found = np.array(at_bottom("pre", blocks))
        it.right((0.6 < found / np.sqrt(1 + blocks)).all())
        it.right((found / np.sqrt(1 + blocks) < 1.6).all())
    it.right(min(at_bottom("pre", 80)) > 5)


def F142(it: Evidence) -> None:
    """Over L layers, the gradient that reaches the input always contains a part
    that is the product of L identities, which is the identity.

    It is one of 2ᴸ terms. A pre-norm network has one more norm before its output head,
    which the text never names: its Jacobian multiplies this term too.
    """
    J = [numbers(5, 5, seed=i) for i in range(3)]
    whole = np.linalg.multi_dot([np.eye(5) + j for j in J])
    terms = [np.eye(5)]
    for j in J:
        terms += [term @ j for term in terms]
    it.as_printed(same(sum(terms), whole) and len(terms) == 2**3)
    it.as_printed(same(terms[0], np.eye(5)))
    last = jacobian(of_layer_norm, X)
    it.elsewhere(same(last, np.eye(7)))


def F143(it: Evidence) -> None:
    r"""$\frac{\partial h_\text{out}}{\partial x} = \frac{\partial \text{Norm}}{\partial
    (\cdot)} \cdot \left( I + \frac{\partial \text{Sublayer}(x)}{\partial x} \right)$.
    """
    at = (tensors(X)[0] + block(tensors(X)[0])).numpy()
    printed = jacobian(of_layer_norm, at) @ (np.eye(7) + jacobian(block, X))
    it.as_printed(same(jacobian(lambda x: of_layer_norm(x + block(x)), X), printed))


def F144(it: Evidence) -> None:
    """The norm's Jacobian multiplies the whole sum, the identity included."""
    still = jacobian(lambda x: of_layer_norm(x + 0 * block(x)), X)
    it.as_printed(same(still, jacobian(of_layer_norm, X)))
    it.as_printed(not same(still, np.eye(7)))


def F145(it: Evidence) -> None:
    """The norm's Jacobian has eigenvalues below 1, because it projects out the part
    along the mean.

    Layer norm removes the mean and the row; RMSNorm, which the text derives, removes
    the row only. Neither is what shortens a gradient: all other singular values are
    1/σ, below 1 for a long row and above 1 for a short one.
    """
    J = jacobian(of_layer_norm, X)
    it.as_printed(np.abs(J @ np.ones(7)).max() < 1e-12)
    it.as_printed((np.linalg.eigvalsh(J) < 1).any())
    of_rms = jacobian(lambda x: torch.nn.functional.rms_norm(x, (7,), eps=0), X)
    it.elsewhere(np.abs(of_rms @ np.ones(7)).max() < 1e-12)
    it.right(np.abs(of_rms @ X).max() < 1e-12)
    for size in (0.2, 5.0):
        values = np.linalg.svd(jacobian(of_layer_norm, size * X))[1]
        it.right(same(values[:5], np.full(5, 1 / np.std(size * X))))
        it.right(bool(values[0] > 1) is (size < 1))


def F146(it: Evidence) -> None:
    """After L layers the product of L norms' Jacobians can attenuate the gradient
    strongly, though each attenuates it little.

    The norms alone can. Each comes with a sublayer, whose factor lengthens what the
    norm shortens: in 80 random post-norm blocks, the norms alone would shorten the
    gradient by more than 10⁹, and it arrives with at least a tenth of its length.
    """
    norms = [descend("post", 80, seed)[1] for seed in SEEDS]
    it.as_printed(max(norms) < 1e-9)
    it.elsewhere(min(at_bottom("post", 80)) < 0.1)
