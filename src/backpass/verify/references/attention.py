"""PyTorch's ``scaled_dot_product_attention``, with the key heads repeated.

Each is repeated for the query heads that share it. A sink is one more key: its scores
are a column of the bias, and its value is 0. A query that sees no key is masked out and
gets 0, because PyTorch's implementations disagree there. With dropout or a softcap it
is the same formula written out, with the package's mask of dropout: PyTorch draws a
different one.
"""

import math

import numpy as np
import torch


def operator(
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
        kept = torch.asarray(
            np.random.default_rng(seed).random(shape) >= dropout_p, device=q.device
        )
        if head_order == "interleaved":
            kept = kept.transpose(-4, -3)
        y = weights * kept.flatten(-4, -3) * (1 / (1 - dropout_p)) @ v
    return y.masked_fill(blind, 0.0)


def _with_zero(x):
    """Return ``x[*, s, n]`` with a row of zeros after the last."""
    return torch.nn.functional.pad(x, (0, 0, 0, 1))


def _tiled(x, times, dim):
    return torch.cat([x] * times, dim=dim)
