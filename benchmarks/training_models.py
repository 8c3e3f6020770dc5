"""The networks of the training step as one writes them for autograd, with PyTorch's fused operators.

Parameters are a mapping from Hugging Face's names; each function returns the loss.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def gpt2(p, tokens, targets, c):
    x = F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"][: tokens.shape[-1]]
    for i in range(c.layers):
        x = _gpt2_layer(
            x, {name.removeprefix(f"h.{i}."): w for name, w in p.items() if name.startswith(f"h.{i}.")}, c
        )
    x = F.layer_norm(x, (c.width,), p["ln_f.weight"], p["ln_f.bias"], c.eps)
    return F.cross_entropy(F.linear(x, p["wte.weight"]).flatten(0, 1), targets.flatten())


def _gpt2_layer(x, w, c):
    a = F.layer_norm(x, (c.width,), w["ln_1.weight"], w["ln_1.bias"], c.eps)
    q, k, v = _conv1d(a, w, "attn.c_attn").split(c.width, -1)
    q, k, v = (_heads(part, c.width // c.heads) for part in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + _conv1d(_merged(o), w, "attn.c_proj")
    a = F.layer_norm(x, (c.width,), w["ln_2.weight"], w["ln_2.bias"], c.eps)
    return x + _conv1d(F.gelu(_conv1d(a, w, "mlp.c_fc"), approximate="tanh"), w, "mlp.c_proj")


def _conv1d(x, w, name):
    weight = w[f"{name}.weight"]
    return torch.addmm(w[f"{name}.bias"], x.reshape(-1, x.shape[-1]), weight).view(
        *x.shape[:-1], weight.shape[-1]
    )


def llama(p, tokens, targets, c):
    x = F.embedding(tokens, p["embed_tokens.weight"])
    angles = _angles(tokens.shape[-1], c, x)
    for i in range(c.layers):
        prefix = f"layers.{i}."
        x = _llama_layer(
            x, {name.removeprefix(prefix): w for name, w in p.items() if name.startswith(prefix)}, angles, c
        )
    x = F.rms_norm(x, (c.width,), p["norm.weight"], c.eps)
    head = p["embed_tokens.weight" if c.tied else "lm_head.weight"]
    return F.cross_entropy(F.linear(x, head).flatten(0, 1), targets.flatten())


def _llama_layer(x, w, angles, c):
    a = F.rms_norm(x, (c.width,), w["input_layernorm.weight"], c.eps)
    q, k, v = (_heads(F.linear(a, w[f"self_attn.{name}_proj.weight"]), c.head_width) for name in "qkv")
    q, k = (_rotated(part, *angles) for part in (q, k))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + F.linear(_merged(o), w["self_attn.o_proj.weight"])
    a = F.rms_norm(x, (c.width,), w["post_attention_layernorm.weight"], c.eps)
    gate = F.silu(F.linear(a, w["mlp.gate_proj.weight"]))
    return x + F.linear(gate * F.linear(a, w["mlp.up_proj.weight"]), w["mlp.down_proj.weight"])


def _angles(s, c, like):
    d = c.head_width
    frequencies = c.base ** (-torch.arange(0, d, 2, device=like.device, dtype=torch.float64) / d)
    angles = torch.outer(torch.arange(s, device=like.device, dtype=torch.float64), frequencies).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def _heads(x, d):
    return x.unflatten(-1, (-1, d)).transpose(-3, -2)


def _merged(x):
    return x.transpose(-3, -2).flatten(-2)
