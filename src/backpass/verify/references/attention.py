"""PyTorch's ``scaled_dot_product_attention``, with the key heads repeated.

Each is repeated for the query heads that share it. A query that sees no key is masked
out and gets 0, because PyTorch's implementations disagree there.
"""

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
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.masked_fill(blind, 0.0), scale=scale
    )
    return y.masked_fill(blind, 0.0)


def _tiled(x, times, dim):
    return torch.cat([x] * times, dim=dim)
