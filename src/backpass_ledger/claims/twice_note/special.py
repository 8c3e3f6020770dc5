"""Activation functions, attention, and layer normalization as special cases."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp
from backpass_ledger.claims.twice_note.product import product_flops
from backpass_ledger.claims.twice_note.transformers import attend

CLAIMS = """
W33  true    0  FLOPs        cost/ratio                    the section as a whole
W34  true    0  activations  operations/activations        1, activation functions
W35  true    0  activations  operations/activations        1, listing, line 2
W36  false   9  activations  operations/activations        1, listing, line 2
W37  true    0  activations  operations/activations        1, listing, line 3
W38  caveat  3  attention    attention/scaled_dot_product  2, listing, line 1
W39  caveat  4  attention    attention/scaled_dot_product  2, listing, line 1
W40  true    0  attention    attention/scaled_dot_product  2, listing, line 2
W41  false   5  softmax      operations/softmax            2, listing, line 3
W42  true    0  norms        operations/layer_norm         3, listing, line 1
W43  caveat  1  norms        operations/layer_norm         3, listing, line 2
W44  caveat  3  norms        operations/layer_norm         3, listing, line 2
"""

SCORES = tuple(numbers(2, 3, 5, 4, seed=i) for i in range(3))  # q, k, v
X, DY = numbers(5, 7), numbers(5, 7, seed=1)


def silu(x: Any) -> Any:
    """Return PyTorch's SiLU."""
    return torch.nn.functional.silu(x)


def silu_slope(x: np.ndarray) -> np.ndarray:
    """Return SiLU's derivative, as autograd computes it."""
    return vjp(silu, x, np.ones_like(x))


def share_of(stem: str, s: int) -> float:
    """Return an operation's percentage of the backward of GPT-2 at s tokens."""
    step = cost.tally("gpt2", 1, s)
    part = step.only(lambda row: row.term.stem == stem)
    return float(100 * part.flops()["backward"] / step.flops()["backward"])


def W33(it: Evidence) -> None:
    """Activation functions, softmax, and LayerNorm are exceptions to the factor 2.

    Only GELU with erf has a ratio above 2, 11/5. SiLU's is 5/3, SwiGLU's 13/7, GELU's
    with tanh 15/8, and softmax's 1, so in GPT-2 they lower the network's ratio.
    Recomputation raises it above 2."""
    x = 5, 7
    norm = cost.count("layer_norm", x, (7,), (7,)).ratio
    swiglu = cost.count("swiglu", x, x).ratio
    silu, softmax, erf = (cost.count(f, x).ratio for f in ("silu", "softmax", "gelu"))
    tanh = cost.count("gelu", x, approximate="tanh").ratio
    it.as_printed(2 not in (norm, swiglu, silu, softmax, erf, tanh))
    it.right((silu, swiglu, softmax, erf, tanh) == (5 / 3, 13 / 7, 1, 11 / 5, 15 / 8))
    it.right(norm < 2 and cost.tally("gpt2", 1, 1024).ratio() < 2)
    it.right(cost.tally("gpt2", 1, 1024, recompute=1).ratio() > 2)


def W34(it: Evidence) -> None:
    """Some activation functions cost arithmetic.

    SiLU and GELU compute exponentials or similar functions; ReLU only compares. GELU's
    share of GPT-2's backward at 1,024 tokens is 0.1 %."""
    for stem, costs in (("silu", True), ("gelu", True), ("relu", False)):
        it.as_printed((cost.count(stem, (5, 7)).backward.total > 0) == costs)
    it.right(round(share_of("gelu", 1024), 1) == 0.1)


def W35(it: Evidence) -> None:
    """For y = SiLU(x), `dx = dy * SiLU'(x)`, element by element."""
    it.as_printed(same(DY * silu_slope(X), vjp(silu, X, DY)))


def W36(it: Evidence) -> None:
    r"""$\mathrm{SiLU}'(x) = \mathrm{SiLU}(x)\,(1 - \mathrm{SiLU}(x)) + \sigma(x)$.

    The bracket has to be $1 - \sigma(x)$. As printed, the slope is right only at 0 and
    at 1; at $x = 2$ it is −0.461 instead of 1.091, and it falls like $-x^2$ for large
    $x$."""
    x = np.concatenate([numbers(50), [0.0, 1.0, 2.0, 30.0]])
    s = 1 / (1 + np.exp(-x))
    printed, right = x * s * (1 - x * s) + s, x * s * (1 - s) + s
    it.as_printed(same(printed, silu_slope(x)))
    it.right(same(right, silu_slope(x)))
    at_0, at_1, at_2, at_30 = zip(printed[-4:], right[-4:], strict=True)
    it.right(same(*at_0) and same(*at_1))
    it.right(np.round(at_2, 3).tolist() == [-0.461, 1.091])
    it.right(abs(at_30[0] / -(30.0**2) - 1) < 0.05)
    it.right(bool((np.abs(printed - right)[:-4] > 1e-6).all()))


def W37(it: Evidence) -> None:
    """SiLU's backward can cost more than its forward.

    It takes 10 operations per element and the forward 6, so less than twice as many."""
    counted = cost.count("silu", (5, 7))
    it.as_printed(counted.backward.total > counted.forward.total)
    it.right((counted.forward.total, counted.backward.total) == (6 * 35, 10 * 35))


def W38(it: Evidence) -> None:
    """The scores are `Q @ K.T`.

    This holds for matrices. With a batch and heads, `K.T` reverses all axes and the
    product raises an error; `K.mT` is right."""
    q, k, _ = SCORES
    it.as_printed(same(q[0, 0] @ k[0, 0].T, np.einsum("id,jd->ij", q[0, 0], k[0, 0])))
    it.elsewhere(not raises(ValueError, lambda: q @ k.T))
    it.right(same(q @ torch.tensor(k).mT.numpy(), np.einsum("bhid,bhjd->bhij", q, k)))


def W39(it: Evidence) -> None:
    r"""Attention is the softmax of the scores, times V.

    Transformers scale the scores by $1/\sqrt{d}$, which is also a factor of the
    gradients of Q and K. Decoders also mask the scores."""
    q, k, v = map(torch.tensor, SCORES)
    usual = torch.nn.functional.scaled_dot_product_attention
    printed = torch.softmax(q @ k.mT, -1) @ v
    it.as_printed(same(printed, usual(q, k, v, scale=1.0)))
    it.elsewhere(same(printed, usual(q, k, v)))
    it.right(same(torch.softmax(q @ k.mT / 2, -1) @ v, usual(q, k, v)))
    it.elsewhere(same(printed, usual(q, k, v, is_causal=True, scale=1.0)))


def W40(it: Evidence) -> None:
    """Gradients flow through the scores, the softmax, and the product with V.

    The backward has four products: two for the gradients of the attention weights and
    V, and two for those of Q and K."""
    q, k, v, dy = (numbers(5, 4, seed=i) for i in range(4))
    e = np.exp(q @ k.T / 2)
    a, da = e / e.sum(-1, keepdims=True), dy @ v.T
    ds = a * (da - (a * da).sum(-1, keepdims=True)) / 2
    expected = vjp(attend, (q, k, v), dy)
    it.as_printed(all(map(same, (ds @ k, ds.T @ q, a.T @ dy), expected)))
    forward, backward = product_flops(attend, (5, 4), (5, 4), (5, 4))
    it.right(backward == 4 * (2 * 5 * 5 * 4) == 2 * forward)


def W41(it: Evidence) -> None:
    """The gradient of softmax is particularly expensive.

    It costs $4s - 1$ FLOPs per row, as many as softmax itself and fewer per element
    than SiLU's backward. Relative to attention's backward products, its share is about
    $1/(2d)$: 0.78 % at $d = 64$. Unfused, it is slow because of the bytes it moves."""
    s, d = 1024, 64
    counted = cost.count("softmax", (5, 7))
    it.right(counted.backward.total == counted.forward.total == 5 * (4 * 7 - 1))
    share = s * (4 * s - 1) / (4 * 2 * s * s * d)
    it.right(round(100 * share, 2) == 0.78)
    silu = cost.count("silu", (5, 7)).backward.total
    it.as_printed(counted.backward.total > silu or share > 0.05)


def W42(it: Evidence) -> None:
    """The forward of LayerNorm is relatively cheap.

    It takes 7 operations per element and 3 a row; a product from 1600 to 1600 columns
    takes 3199 an element."""
    norm = cost.formula("layer_norm", (1024, 1600), (1600,), (1600,)).forward
    product = cost.formula("matmul", (1024, 1600), (1600, 1600)).forward
    it.as_printed(norm < 0.003 * product)
    it.right(norm == 1024 * (7 * 1600 + 3) and product == 1024 * 1600 * 3199)


def W43(it: Evidence) -> None:
    """The backward of LayerNorm involves computations of mean and variance.

    It computes two means of each row, of the gradient and of the gradient times x̂. The
    mean and the variance of the input are saved by the forward."""
    expected = vjp(lambda x: torch.nn.functional.layer_norm(x, (7,), eps=0.1), X, DY)
    mean, rstd = X.mean(-1, keepdims=True), 1 / np.sqrt(X.var(-1, keepdims=True) + 0.1)
    x_hat = (X - mean) * rstd
    two = DY.mean(-1, keepdims=True) + x_hat * (DY * x_hat).mean(-1, keepdims=True)
    it.as_printed(same(rstd * (DY - two), expected) and not same(rstd * DY, expected))

    def native(mean: Any) -> Any:
        dy, x, *saved = map(torch.tensor, (DY, X, mean, rstd))
        backward = torch.ops.aten.native_layer_norm_backward
        return backward(dy, x, [7], *saved, None, None, [True, False, False])[0]

    it.right(same(native(mean), expected))
    it.elsewhere(same(native(mean + 1), expected))  # PyTorch's is given the mean


def W44(it: Evidence) -> None:
    """The backward of LayerNorm can be expensive.

    It costs more than its forward: 11 operations per element against 7, or 13 if x̂ is
    recomputed. This is less than twice as much, and LayerNorm takes 0.04 % of GPT-2's
    backward at 1,024 tokens."""
    norm = cost.formula("layer_norm", (1024, 768), (768,), (768,))
    it.right(norm.forward == 1024 * (7 * 768 + 3))
    it.right(norm.backward == 1024 * 11 * 768 - 2 * 768)
    it.as_printed(norm.backward > norm.forward)
    it.elsewhere(norm.backward + 2 * 1024 * 768 > 2 * norm.forward)
    it.elsewhere(share_of("layer_norm", 1024) > 1)
    it.right(round(share_of("layer_norm", 1024), 2) == 0.04)
