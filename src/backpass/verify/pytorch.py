"""PyTorch's own operator, forward and backward, in float64: the one check that the forward is what its name
says.
"""

from __future__ import annotations

from collections.abc import Callable

from backpass.arrays import Array
from backpass.verify.autograd import by_hand, differentiate
from backpass.verify.case import Case, NotRun
from backpass.verify.comparison import judge_gradient, judge_y
from backpass.verify.report import Row

NAME = "PyTorch's operator"
TOLERANCE = 1e-12
WHY = "every element; rounding in another order"


def run(case: Case) -> list[Row]:
    """A row for y and one a gradient. Raises NotRun where PyTorch has no such operator."""
    operator = bound_operator(case)
    if operator is None:
        raise NotRun("no operator to compare with; give one as operator=")
    case.require_float64()
    expected_y, expected = differentiate(case, operator)
    y, got = by_hand(case)
    tolerance, why = case.tolerance("pytorch", TOLERANCE, WHY)
    rows = [judge_y(case, NAME, y, expected_y, tolerance, why)]
    return rows + [
        judge_gradient(case, NAME, at, got[at], expected[at], tolerance, why) for at in case.differentiable
    ]


def bound_operator(case: Case) -> Callable[..., Array] | None:
    """The operator that the reader gave, or PyTorch's for a stem, with the case's options."""
    if case.operator is not None:
        return case.operator
    operator = _OPERATORS.get(case.subject.stem)
    return operator and (lambda *inputs: operator(*inputs, **case.subject.options))


def _softmax(x):
    import torch

    return torch.softmax(x, dim=-1)


def _log_softmax(x):
    import torch

    return torch.log_softmax(x, dim=-1)


def _simplex_norm(x, *, mean=False):
    """PyTorch has none: each row over its 1-norm, which is its sum where there are no signs."""
    import torch

    y = torch.nn.functional.normalize(x, p=1, dim=-1, eps=0)
    return y * x.shape[-1] if mean else y


def _sphere_norm(x, *, mean=False):
    import torch

    y = torch.nn.functional.normalize(x, p=2, dim=-1, eps=0)
    return y * x.shape[-1] ** 0.5 if mean else y


def _nll(x, t, *, ignore_index=-100, reduction="mean"):
    import torch

    rows = x.reshape(-1, x.shape[-1])
    return torch.nn.functional.nll_loss(rows, t.reshape(-1), ignore_index=ignore_index, reduction=reduction)


def _cross_entropy(x, t, *, ignore_index=-100, reduction="mean"):
    import torch

    rows = x.reshape(-1, x.shape[-1])
    return torch.nn.functional.cross_entropy(
        rows, t.reshape(-1), ignore_index=ignore_index, reduction=reduction
    )


def _soft_cross_entropy(x, q, *, reduction="mean"):
    import torch

    rows, targets = (array.reshape(-1, array.shape[-1]) for array in (x, q))
    return torch.nn.functional.cross_entropy(rows, targets, reduction=reduction)


def _linear_cross_entropy(x, w, t, b=None, *, chunk=None, **options):
    return _cross_entropy(_linear(x, w, b), t, **options)


def _embedding(t, w):
    import torch

    return torch.nn.functional.embedding(t, w)


def _position_embedding(x, w, *, offset=0):
    """As models have it: positions are tokens of a table of their own."""
    import torch

    positions = torch.arange(offset, offset + x.shape[-2], device=w.device)
    return x + torch.nn.functional.embedding(positions, w)


def _linear(x, w, b=None):
    import torch

    return torch.nn.functional.linear(x, w.mT, b)


def _matmul(a, b):
    import torch

    return torch.matmul(a, b)


def _scale(x, *, factor):
    import torch

    return torch.mul(x, factor)


def _fork(x, *, copies=2):
    import torch

    return torch.stack([x] * copies)


def _residual(x, f):
    import torch

    return torch.add(x, f)


def _layer_norm(x, w=None, b=None, *, eps=1e-5):
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, eps)


def _rms_norm(x, w=None, *, eps=None):
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps)


def _dropout(x, *, p=0.5, seed=0, training=True):
    """PyTorch's own dropout draws a different mask, so its formula is applied to ours."""
    import numpy as np
    import torch

    if not training:
        return torch.nn.functional.dropout(x, p, training=False)
    mask = torch.asarray(np.random.default_rng(seed).random(tuple(x.shape)) >= p, device=x.device)
    return x * mask * (1 / (1 - p))


def _rope(x, cos, sin, *, interleaved=False):
    """PyTorch has no such operator. These are Llama's two programs for it, neither of which is written like ours."""
    import torch

    if interleaved:  # pairs as complex numbers, which there are not of 16 bits
        wide = torch.promote_types(x.dtype, torch.float32)
        pairs = torch.view_as_complex(x.to(wide).reshape(*x.shape[:-1], -1, 2).contiguous())
        turned = pairs * torch.complex(cos.to(wide), sin.to(wide))
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    half_turned = torch.cat((-second, first), dim=-1)
    return x * torch.cat((cos, cos), dim=-1) + half_turned * torch.cat((sin, sin), dim=-1)


def _relu(x):
    import torch

    return torch.nn.functional.relu(x)


def _gelu(x, *, approximate="none"):
    import torch

    return torch.nn.functional.gelu(x, approximate=approximate)


def _silu(x):
    import torch

    return torch.nn.functional.silu(x)


def _swiglu(g, u, *, keep_sigmoid=False):
    import torch

    return torch.nn.functional.silu(g) * u


def _feed_forward(x, w_up, w_down, b_up, b_down, w_gate, b_gate, *, activation="gelu"):
    import torch

    functional = torch.nn.functional
    u = functional.linear(x, w_up.mT, b_up)
    if activation == "swiglu":
        a = functional.silu(functional.linear(x, w_gate.mT, b_gate)) * u
    elif activation == "relu":
        a = functional.relu(u)
    else:
        a = functional.gelu(u, approximate="tanh" if activation == "gelu_tanh" else "none")
    return functional.linear(a, w_down.mT, b_down)


def _attention(
    q,
    k,
    v,
    bias=None,
    *,
    causal=False,
    causal_variant="upper_left",
    scale=None,
    head_order="consecutive",
    tile=None,
):
    """PyTorch's own, with each key head repeated for the queries that share it. A query that sees no key is left out,
    where PyTorch's ways to compute it differ."""
    import torch

    heads, s_q, n_kv, s_k = *q.shape[-3:-1], *k.shape[-3:-1]
    repeat = torch.repeat_interleave if head_order == "consecutive" else _tiled
    k, v = repeat(k, heads // n_kv, dim=-3), repeat(v, heads // n_kv, dim=-3)
    mask = torch.zeros(s_q, s_k, dtype=q.dtype, device=q.device)
    if causal:
        below = torch.ones(s_q, s_k, dtype=torch.bool, device=q.device)
        below = below.tril(s_k - s_q if causal_variant == "lower_right" else 0)
        mask = mask.masked_fill(~below, -torch.inf)
    mask = mask.expand(*q.shape[:-2], s_q, s_k) if bias is None else mask + bias
    blind = (mask == -torch.inf).all(dim=-1, keepdim=True)
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.masked_fill(blind, 0.0), scale=scale
    )
    return y.masked_fill(blind, 0.0)


def _multilinear_attention(
    q, k, v, *, p=1, normalization="softmax", causal=False, causal_variant="upper_left"
):
    """PyTorch has none: all factors at once, and hidden scores taken out of the sums by multiplying with 0."""
    import torch

    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    q, k = (x.unflatten(-1, (p, -1)) for x in (q, k))
    scores = torch.einsum("...imc,...jmc->...ijm", q, k).prod(dim=-1)
    seen = torch.ones_like(scores)
    if causal:
        seen = seen.tril(scores.shape[-1] - scores.shape[-2] if causal_variant == "lower_right" else 0)
    if normalization == "softmax":
        scores = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    scores = scores * seen
    length = torch.linalg.vector_norm(scores, 2 if normalization == "sphere" else 1, dim=-1, keepdim=True)
    return (scores / length.masked_fill(length == 0, 1.0)) @ v


def _linear_attention(q, k, v, *, causal=False, chunk=64):
    """PyTorch has none: the scores of all pairs, of which this operation has none."""
    import torch

    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum("...ic,...jc->...ij", q.to(wide), k.to(wide))
    scores = scores.tril() if causal else scores
    return torch.nn.functional.normalize(scores, p=1, dim=-1, eps=0) @ v.to(wide)


def _tiled(x, times, dim):
    import torch

    return torch.cat([x] * times, dim=dim)


def _multi_head_attention(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, memory, **options):
    """PyTorch's own takes one width for everything and no shared heads: its attention, between sums of products."""
    import torch

    rows = x if memory is None else memory
    q, k, v = (
        torch.einsum("...sh,hnd->...nsd", array, w) + (0 if b is None else b[:, None])
        for array, w, b in ((x, w_q, b_q), (rows, w_k, b_k), (rows, w_v, b_v))
    )
    y = torch.einsum("...nsd,ndh->...sh", _attention(q, k, v, **options), w_o)
    return y if b_o is None else y + b_o


_OPERATORS: dict[str | None, Callable[..., Array]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "simplex_norm": _simplex_norm,
    "sphere_norm": _sphere_norm,
    "nll": _nll,
    "cross_entropy": _cross_entropy,
    "soft_cross_entropy": _soft_cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
    "embedding": _embedding,
    "position_embedding": _position_embedding,
    "linear": _linear,
    "matmul": _matmul,
    "scale": _scale,
    "fork": _fork,
    "residual": _residual,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "dropout": _dropout,
    "relu": _relu,
    "gelu": _gelu,
    "silu": _silu,
    "swiglu": _swiglu,
    "feed_forward": _feed_forward,
    "attention": _attention,
    "flash_attention": _attention,
    "multilinear_attention": _multilinear_attention,
    "linear_attention": _linear_attention,
    "multi_head_attention": _multi_head_attention,
}
