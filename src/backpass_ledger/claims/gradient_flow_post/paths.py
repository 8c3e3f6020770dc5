"""The section on the gradient's path in pre-norm and in post-norm."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..evidence import Evidence
from ..tools import jacobian, numbers, same, torch, vjp
from .setting import tensors

CLAIMS = """
F138  true    0  norms     numerics/gradient_flow      §2.1, formulas
F139  true    0  norms     numerics/gradient_flow      §2.1, formulas
F140  true    0  residual  operations/residual_stream  §2.1, pre-norm's Jacobian
F141  false   7  residual  numerics/gradient_flow      §2.1, pre-norm's Jacobian
F142  true    0  residual  operations/residual_stream  §2.1, L layers
F143  true    0  norms     numerics/gradient_flow      §2.1, post-norm's Jacobian
F144  true    0  norms     numerics/gradient_flow      §2.1, post-norm's Jacobian
F145  caveat  5  norms     numerics/gradient_flow      §2.1, the norm's Jacobian
F146  caveat  4  norms     numerics/gradient_flow      §2.1, L layers
"""

W = numbers(7, 7, seed=3)
X, G = 0.8 * numbers(7, seed=4), numbers(7, seed=5)
SEEDS, KINDS = range(3), (False, True)


def block(x: Any) -> Any:
    """Some sublayer."""
    return (x @ tensors(W)[0]).tanh()


def of_layer_norm(x: Any) -> Any:
    """PyTorch's layer norm, without ε."""
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), eps=0)


@cache
def descend(
    order: str, blocks: int, seed: int, scale: float = 1.0, attention: bool = False
) -> tuple[Any, float]:
    """Return the length of the stream's gradient before each block and after the last,
    relative to that after the last, and the product of the norms' mean factors 1/σ. The
    blocks are random feed-forward blocks of width 128 on 8 rows, each of which gives a
    row of variance ``scale``² for a normalised row. With ``attention``, every second
    one is causal attention with 4 heads, whose matrices keep variances."""
    draw, factors = torch.Generator().manual_seed(1000 * seed + blocks), []

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=draw).double()

    def drawn(count: int) -> Any:
        return normal(count, 128, 128).mul_(128**-0.5)

    def attend(a: Any) -> Any:
        *projections, out = drawn(4)
        heads = ((a @ w).view(8, 4, 32).transpose(0, 1) for w in projections)
        o = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return o.transpose(0, 1).reshape(8, 128) @ out

    def feed(a: Any) -> Any:
        up, down = drawn(2)
        return torch.relu(a @ up) * 2**0.5 @ down

    x, g = normal(2, 8, 128)
    stream = [x.requires_grad_()]
    for i in range(blocks):
        sublayer = attend if attention and i % 2 == 0 else feed
        h = stream[-1]
        h = h + scale * sublayer(of_layer_norm(h) if order == "pre" else h)
        if order == "post":
            factors.append(float((1 / h.detach().std(-1, correction=0)).mean()))
            h = of_layer_norm(h)
        stream.append(h)
    lengths = [float(dh.norm()) for dh in torch.autograd.grad(h, stream, g)]
    return np.array(lengths) / lengths[-1], float(np.prod(factors))


def at_bottom(order: str, blocks: int, scale: float = 1.0, kinds: Any = KINDS) -> Any:
    """Return the gradient at the bottom relative to the top, for three draws of each
    kind of stack: without attention, and with it."""
    draws = [descend(order, blocks, s, scale, kind) for kind in kinds for s in SEEDS]
    return np.array([lengths[0] for lengths, _ in draws])


def norms_alone(blocks: int) -> Any:
    """Return the product of the norms' factors of the same post-norm stacks."""
    draws = [descend("post", blocks, s, 1.0, kind) for kind in KINDS for s in SEEDS]
    return np.array([factor for _, factor in draws])


def has_order(*, norm_first: bool) -> bool:
    """Whether PyTorch's layer of the original transformer computes the formula."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    layer.norm1.weight.data = 1 + layer.linear1.bias.data[:8]
    h = x = tensors(numbers(2, 5, 8))[0]
    for norm, sublayer in (
        (layer.norm1, lambda h: layer.self_attn(h, h, h, need_weights=False)[0]),
        (layer.norm2, lambda h: layer.linear2(torch.relu(layer.linear1(h)))),
    ):
        h = h + sublayer(norm(h)) if norm_first else norm(h + sublayer(h))
    return same(h.detach().numpy(), layer(x).detach().numpy())


def F138(it: Evidence) -> None:
    r"""Post-norm, the original transformer's order, is $h_\text{out} = \text{Norm}(x +
    \text{Sublayer}(x))$."""
    it.as_printed(has_order(norm_first=False))


def F139(it: Evidence) -> None:
    r"""Pre-norm is $h_\text{out} = x + \text{Sublayer}(\text{Norm}(x))$."""
    it.as_printed(has_order(norm_first=True))


def F140(it: Evidence) -> None:
    r"""$\frac{\partial h_\text{out}}{\partial x} = I + \frac{\partial
    \text{Sublayer}(\text{Norm}(x))}{\partial x}$."""
    inner = jacobian(lambda x: block(of_layer_norm(x)), X)
    whole = jacobian(lambda x: x + block(of_layer_norm(x)), X)
    it.as_printed(same(whole, np.eye(7) + inner))


def F141(it: Evidence) -> None:
    """The identity guarantees that the gradient passes with magnitude 1, whatever the
    sublayer's Jacobian is.

    One term of the sum does. The sum can be 0, and in random pre-norm stacks, with and
    without attention, it grows about as the square root of their number of blocks, to
    more than 5 times at 80."""
    halves = []
    for slope in (-1.0, 1.0):
        dx = vjp(lambda x, slope=slope: x + slope * x, X, G)
        halves.append(np.linalg.norm(dx) / np.linalg.norm(G))
    it.as_printed(all(abs(length - 1) < 0.01 for length in halves))
    it.right(halves[0] == 0 and np.isclose(halves[1], 2))
    for blocks in (32, 80, 128):
        found = at_bottom("pre", blocks) / np.sqrt(1 + blocks)
        it.right(((0.6 < found) & (found < 1.6)).all())
    it.right(min(at_bottom("pre", 80)) > 5)


def F142(it: Evidence) -> None:
    """Over L layers, the gradient that reaches the input always contains a part that is
    the product of L identities, which is the identity.

    It is one of 2ᴸ terms. The Jacobian of the norm before the output head, which the
    text never names, multiplies it too."""
    J = [numbers(5, 5, seed=i) for i in range(3)]
    terms = [np.eye(5)]
    for j in J:
        terms += [term @ j for term in terms]
    whole = np.linalg.multi_dot([np.eye(5) + j for j in J])
    it.as_printed(same(sum(terms), whole) and same(terms[0], np.eye(5)))
    it.right(len(terms) == 2**3)
    it.right(not same(jacobian(of_layer_norm, X), np.eye(7)))


def F143(it: Evidence) -> None:
    r"""$\frac{\partial h_\text{out}}{\partial x} = \frac{\partial \text{Norm}}{\partial
    (\cdot)} \cdot \left( I + \frac{\partial \text{Sublayer}(x)}{\partial x}
    \right)$."""
    at = X + block(tensors(X)[0]).numpy()
    expected = jacobian(of_layer_norm, at) @ (np.eye(7) + jacobian(block, X))
    it.as_printed(same(jacobian(lambda x: of_layer_norm(x + block(x)), X), expected))


def F144(it: Evidence) -> None:
    """The norm's Jacobian multiplies the whole sum, the identity included."""
    still = jacobian(lambda x: of_layer_norm(x + 0 * block(x)), X)
    it.as_printed(same(still, jacobian(of_layer_norm, X)))
    it.as_printed(not same(still, np.eye(7)))


def F145(it: Evidence) -> None:
    """The norm's Jacobian has eigenvalues below 1, because it projects out the part
    along the mean.

    RMSNorm, which the text derives, does not project out the mean but the row. How a
    gradient's length changes depends on the row: all other singular values are 1/σ,
    below 1 for a long row and above 1 for a short one."""
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

    The norms alone can. Their sublayers lengthen what they shorten: in 80 random
    post-norm blocks, the norms alone would shorten the gradient by more than 10⁹, and
    in most of them it arrives with at least a tenth of its length."""
    it.as_printed(max(norms_alone(80)) < 1e-9)
    it.elsewhere((at_bottom("post", 80) < 0.1).mean() > 0.5)
