"""PyTorch's version of each operation.

The public functions above ``STEMS`` are the references: each has the name of its
operation, and ``forward``'s arguments. It is PyTorch's own operator if there is one,
and otherwise a composition of PyTorch's operators that is written differently from the
operation.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

from backpass.contract.arrays import Array
from backpass.ops import dropout as dropout_op


class _OnFirstUse:
    """PyTorch, imported when a reference runs: the names need no PyTorch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch = _OnFirstUse()


def matmul(a, b):
    return torch.matmul(a, b)


def linear(x, w, b=None):
    return torch.nn.functional.linear(x, w.mT, b)


def scale(x, *, factor):
    return torch.mul(x, factor)


def fork(x, *, copies=2):
    return torch.stack([x] * copies)


def residual(x, f):
    return torch.add(x, f)


def dropout(x, *, p=0.5, seed=0, training=True):
    """Compute PyTorch's formula with the package's mask: PyTorch draws a different
    one."""
    if not training:
        return torch.nn.functional.dropout(x, p, training=False)
    return x * _not_dropped(tuple(x.shape), p, seed, x.device) * (1 / (1 - p))


def _not_dropped(shape, p, seed, device):
    return torch.asarray(dropout_op.drawn(shape, p, seed), device=device)


def softmax(x):
    return torch.softmax(x, dim=-1)


def log_softmax(x):
    return torch.log_softmax(x, dim=-1)


def layer_norm(x, w=None, b=None, *, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, eps)


def rms_norm(x, w=None, *, eps=None):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps)


def simplex_norm(x, *, mean=False):
    """Normalise by the 1-norm, the sum of a row without negative elements: PyTorch has
    no operator that divides by the sum."""
    y = torch.nn.functional.normalize(x, p=1, dim=-1, eps=0)
    return y * x.shape[-1] if mean else y


def sphere_norm(x, *, mean=False):
    y = torch.nn.functional.normalize(x, p=2, dim=-1, eps=0)
    return y * x.shape[-1] ** 0.5 if mean else y


def relu(x):
    return torch.nn.functional.relu(x)


def gelu(x, *, approximate="none"):
    return torch.nn.functional.gelu(x, approximate=approximate)


def silu(x):
    return torch.nn.functional.silu(x)


def swiglu(g, u, *, keep_sigmoid=False):
    return torch.nn.functional.silu(g) * u


def softcap(x, *, cap):
    """Compute softcap as models write it: PyTorch has no operator."""
    return cap * torch.tanh(x / cap)


def feed_forward(x, w_up, w_down, b_up, b_down, w_gate, b_gate, *, activation="gelu"):
    """Compute the block as models write it."""
    functional = torch.nn.functional
    u = functional.linear(x, w_up.mT, b_up)
    if activation == "swiglu":
        a = functional.silu(functional.linear(x, w_gate.mT, b_gate)) * u
    elif activation == "relu":
        a = functional.relu(u)
    else:
        a = functional.gelu(
            u, approximate="tanh" if activation == "gelu_tanh" else "none"
        )
    return functional.linear(a, w_down.mT, b_down)


def embedding(t, w, *, padding_idx=None):
    return torch.nn.functional.embedding(t, w, padding_idx=padding_idx)


def position_embedding(x, w, *, offset=0):
    """Embed the positions, as models do: they are the tokens of their own table."""
    positions = torch.arange(offset, offset + x.shape[-2], device=w.device)
    return x + torch.nn.functional.embedding(positions, w)


def rope(x, cos, sin, *, interleaved=False):
    """Rotate by Llama's two implementations: PyTorch has no operator. Neither is
    written like the package's."""
    if interleaved:  # pairs as complex numbers, which half precision does not have
        wide = torch.promote_types(x.dtype, torch.float32)
        pairs = torch.view_as_complex(
            x.to(wide).reshape(*x.shape[:-1], -1, 2).contiguous()
        )
        turned = pairs * torch.complex(cos.to(wide), sin.to(wide))
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    half_turned = torch.cat((-second, first), dim=-1)
    return x * torch.cat((cos, cos), dim=-1) + half_turned * torch.cat(
        (sin, sin), dim=-1
    )


def nll(x, t, weight=None, **options):
    return _of_rows("nll_loss", x, t, weight, **options)


def cross_entropy(x, t, weight=None, **options):
    return _of_rows("cross_entropy", x, t, weight, **options)


def _of_rows(loss, x, t, weight, *, reduction="mean", **options):
    """Compute the loss of all rows as one batch."""
    rows = x.reshape(-1, x.shape[-1])
    y = getattr(torch.nn.functional, loss)(
        rows, t.reshape(-1), weight, reduction=reduction, **options
    )
    return y.reshape(t.shape) if reduction == "none" else y


def soft_cross_entropy(x, q, *, reduction="mean"):
    rows, targets = (array.reshape(-1, array.shape[-1]) for array in (x, q))
    return torch.nn.functional.cross_entropy(rows, targets, reduction=reduction)


def linear_cross_entropy(x, w, t, b=None, weight=None, *, chunk=None, **options):
    return cross_entropy(linear(x, w, b), t, weight, **options)


def attention(
    q,
    k,
    v,
    bias=None,
    mask=None,
    sink=None,
    *,
    causal=False,
    causal_variant="upper_left",
    window=None,
    scale=None,
    softcap=None,
    head_order="consecutive",
    dropout_p=0.0,
    seed=0,
):
    """Call ``scaled_dot_product_attention`` with the key heads repeated.

    Each is repeated for the query heads that share it. A sink is one more key: its
    scores are a column of the bias, and its value is 0. A query that sees no key is
    masked out and gets 0, because PyTorch's implementations disagree there. With
    dropout or a softcap it is the same formula written out, with the package's mask of
    dropout: PyTorch draws a different one.
    """
    (heads, s_q), (n_kv, s_k) = q.shape[-3:-1], k.shape[-3:-1]
    repeat = torch.repeat_interleave if head_order == "consecutive" else _tiled
    k, v = repeat(k, heads // n_kv, dim=-3), repeat(v, heads // n_kv, dim=-3)
    visible = torch.ones(s_q, s_k, dtype=torch.bool, device=q.device)
    if causal:
        ahead = s_k - s_q if causal_variant == "lower_right" else 0
        visible = visible.tril(ahead)
        visible = visible if window is None else visible.triu(ahead - window + 1)
    visible = visible if mask is None else visible & mask
    added = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, -torch.inf)
    added = added if bias is None else added + bias
    added = added.expand(*q.shape[:-2], s_q, s_k)
    blind = (added == -torch.inf).all(dim=-1, keepdim=True)
    added = added.masked_fill(blind, 0.0)
    if sink is not None:
        sinks = sink[:, None, None].expand(*q.shape[:-1], 1)
        added = torch.cat([added, sinks], dim=-1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if dropout_p == 0 and softcap is None:
        k, v = (_with_zero(x) for x in (k, v)) if sink is not None else (k, v)
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=added, scale=scale
        )
    else:
        scores = q @ k.mT * scale
        scores = scores if softcap is None else softcap * (scores / softcap).tanh()
        scores = scores if sink is None else torch.nn.functional.pad(scores, (0, 1))
        weights = torch.softmax(scores + added, dim=-1)[..., :s_k]
        shape = (*q.shape[:-3], n_kv, heads // n_kv, s_q, s_k)
        kept = _not_dropped(shape, dropout_p, seed, q.device)
        if head_order == "interleaved":
            kept = kept.transpose(-4, -3)
        y = weights * kept.flatten(-4, -3) * (1 / (1 - dropout_p)) @ v
    return y.masked_fill(blind, 0.0)


def _with_zero(x):
    """Return ``x[*, s, n]`` with a row of zeros after the last."""
    return torch.nn.functional.pad(x, (0, 0, 0, 1))


def _tiled(x, times, dim):
    return torch.cat([x] * times, dim=dim)


def flash_attention(q, k, v, bias=None, mask=None, sink=None, *, tile=None, **options):
    """Call attention: ``tile`` changes how attention is computed, not its result."""
    return attention(q, k, v, bias, mask, sink, **options)


def multi_head_attention(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, memory, **options):
    """Call attention between einsums: PyTorch's ``MultiheadAttention`` has a single
    width and cannot share heads."""
    rows = x if memory is None else memory
    q, k, v = (
        torch.einsum("...sh,hnd->...nsd", array, w) + (0 if b is None else b[:, None])
        for array, w, b in ((x, w_q, b_q), (rows, w_k, b_k), (rows, w_v, b_v))
    )
    y = torch.einsum("...nsd,ndh->...sh", attention(q, k, v, **options), w_o)
    return y if b_o is None else y + b_o


def linear_attention(q, k, v, *, causal=False, chunk=64):
    """Compute from the scores of all pairs, which the operation never computes: PyTorch
    has no operator."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum("...ic,...jc->...ij", q.to(wide), k.to(wide))
    scores = scores.tril() if causal else scores
    return torch.nn.functional.normalize(scores, p=1, dim=-1, eps=0) @ v.to(wide)


def multilinear_attention(
    q, k, v, *, p=1, normalization="softmax", causal=False, causal_variant="upper_left"
):
    """Compute all factors at once, and multiply hidden scores by 0: PyTorch has no
    operator."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    q, k = (x.unflatten(-1, (p, -1)) for x in (q, k))
    scores = torch.einsum("...imc,...jmc->...ijm", q, k).prod(dim=-1)
    seen = torch.ones_like(scores)
    if causal:
        seen = seen.tril(
            scores.shape[-1] - scores.shape[-2]
            if causal_variant == "lower_right"
            else 0
        )
    if normalization == "softmax":
        scores = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    scores = scores * seen
    length = torch.linalg.vector_norm(
        scores, 2 if normalization == "sphere" else 1, dim=-1, keepdim=True
    )
    return (scores / length.masked_fill(length == 0, 1.0)) @ v


# Collectives: the first axis is the rank.


def all_reduce(x):
    return x.sum(0).expand_as(x)


def all_gather(x):
    return x.expand(len(x), *x.shape)


def reduce_scatter(x):
    """Return a sum over the ranks that send."""
    return x.sum(0)


def all_to_all(x):
    """Exchange sender and receiver."""
    return x.transpose(0, 1)


def broadcast(x, *, root=0):
    return x[root].expand_as(x)


def reduce(x, *, root=0):
    """Put the sum into the root's row of zeros."""
    return torch.zeros_like(x).index_add(
        0, torch.full((len(x),), root, device=x.device), x
    )


def shift(x, *, places=1):
    return torch.roll(x, places, dims=0)


STEMS = tuple(
    sorted(
        name
        for name, value in globals().items()
        if inspect.isfunction(value) and not name.startswith("_")
    )
)


def load(stem: str) -> Callable[..., Array]:
    """Return the reference of a stem in ``STEMS``."""
    return globals()[stem]
