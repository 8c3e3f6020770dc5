"""PyTorch's ``scaled_dot_product_attention``, with the key heads repeated.

Each is repeated for the query heads that share it. A query that sees no key is masked
out and gets 0, because PyTorch's implementations disagree there. With dropout it is the
same formula written out, with the package's mask: PyTorch draws a different one.
"""

import math

import numpy as np
import torch


def operator(
    q,
    k,
    v,
    bias=None,
    *,
    causal=False,
    causal_variant="upper_left",
    scale=None,
    head_order="consecutive",
    dropout_p=0.0,
    seed=0,
):
    (heads, s_q), (n_kv, s_k) = q.shape[-3:-1], k.shape[-3:-1]
    repeat = torch.repeat_interleave if head_order == "consecutive" else _tiled
    k, v = repeat(k, heads // n_kv, dim=-3), repeat(v, heads // n_kv, dim=-3)
    mask = torch.zeros(s_q, s_k, dtype=q.dtype, device=q.device)
    if causal:
        below = torch.ones(s_q, s_k, dtype=torch.bool, device=q.device)
        below = below.tril(s_k - s_q if causal_variant == "lower_right" else 0)
        mask = mask.masked_fill(~below, -torch.inf)
    mask = mask.expand(*q.shape[:-2], s_q, s_k) if bias is None else mask + bias
    blind = (mask == -torch.inf).all(dim=-1, keepdim=True)
    mask = mask.masked_fill(blind, 0.0)
    if dropout_p == 0:
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale
        )
    else:
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        weights = torch.softmax(q @ k.mT * scale + mask, dim=-1)
        shape = (*q.shape[:-3], n_kv, heads // n_kv, s_q, s_k)
        kept = torch.asarray(
            np.random.default_rng(seed).random(shape) >= dropout_p, device=q.device
        )
        if head_order == "interleaved":
            kept = kept.transpose(-4, -3)
        y = weights * kept.flatten(-4, -3) * (1 / (1 - dropout_p)) @ v
    return y.masked_fill(blind, 0.0)


def _tiled(x, times, dim):
    return torch.cat([x] * times, dim=dim)
