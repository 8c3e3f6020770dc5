"""FlashAttention's kernels in Triton."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from public import Case, Draw, Project

FLASH = Project("flash_attn", "flash-attn", bare=("flash_attn", "flash_attn.ops", "flash_attn.ops.triton"))


@FLASH.program("ops.triton.layer_norm:layer_norm_fn")
def layer_norm(it: Draw) -> Case:
    call = FLASH.get("ops.triton.layer_norm:layer_norm_fn")
    return it.case(
        lambda x, w, b: call(x, w, b, eps=1e-5),
        lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-5),
        it.normal(2, 5, 70, mean=1.0),
        it.normal(70),
        it.normal(70),
    )


@FLASH.program("ops.triton.layer_norm:rms_norm_fn")
def rms_norm_with_residual(it: Draw) -> Case:
    call = FLASH.get("ops.triton.layer_norm:rms_norm_fn")
    return it.case(
        lambda x, w, r: call(x, w, None, r, eps=1e-5, prenorm=True),
        lambda x, w, r: (F.rms_norm(x + r, (70,), w, 1e-5), x + r),
        it.normal(2, 5, 70),
        it.normal(70),
        it.normal(2, 5, 70),
    )


@FLASH.program("layers.rotary:apply_rotary_emb")
def rotary(it: Draw) -> Case:
    call = FLASH.get("layers.rotary:apply_rotary_emb")
    angles = torch.arange(5)[:, None] * 100.0 ** (-torch.arange(16) / 16)

    def reference(x, cos, sin):
        a, b = x.chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    return it.case(
        call, reference, it.normal(2, 5, 3, 32), it.of(angles.cos(), False), it.of(angles.sin(), False)
    )


@FLASH.program("ops.triton.rotary:apply_rotary")
def rotary_interleaved(it: Draw) -> Case:
    call = FLASH.get("ops.triton.rotary:apply_rotary")
    angles = torch.arange(5)[:, None] * 100.0 ** (-torch.arange(16) / 16)

    def reference(x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        cos, sin = cos[:, None], sin[:, None]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    return it.case(
        lambda x, cos, sin: call(x, cos, sin, interleaved=True),
        reference,
        it.fixed(2, 5, 3, 32),
        it.of(angles.cos(), False),
        it.of(angles.sin(), False),
    )


@FLASH.program("ops.triton.cross_entropy:cross_entropy_loss")
def cross_entropy(it: Draw) -> Case:
    call = FLASH.get("ops.triton.cross_entropy:cross_entropy_loss")

    def reference(x, target):
        squares = 0.1 * x.logsumexp(-1).square()
        return F.cross_entropy(x, target, reduction="none", label_smoothing=0.1) + squares

    return it.case(
        lambda x, target: call(x, target, label_smoothing=0.1, lse_square_scale=0.1)[0],
        reference,
        it.normal(7, 101),
        it.below(101, 7),
    )


@FLASH.program("flash_attn_triton:flash_attn_func", "float16")
def attention(it: Draw) -> Case:
    call = FLASH.get("flash_attn_triton:flash_attn_func")

    def reference(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return it.case(
        lambda q, k, v: call(q, k, v, None, True), reference, *(it.normal(1, 70, 2, 32) for _ in range(3))
    )


@FLASH.program("ops.triton.linear:triton_linear_act", "float16")
def linear_gelu(it: Draw) -> Case:
    call = FLASH.get("ops.triton.linear:triton_linear_act")
    return it.case(
        lambda x, w, b: call(x, w, b, "gelu"),
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        it.fixed(40, 64),
        it.fixed(48, 64, scale=0.2),
        it.fixed(48),
    )
