"""Unsloth: kernels of fine-tuning."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from public import Case, Draw, Project

UNSLOTH = Project(
    "unsloth",
    "unsloth",
    bare=("unsloth", "unsloth.kernels", "unsloth_zoo"),
    facts={"DEVICE_TYPE": "cuda", "DEVICE_TYPE_TORCH": "cuda", "DEVICE_COUNT": 1},
)


def _function(name: str):
    return UNSLOTH.get(name).apply


@UNSLOTH.program("kernels.rms_layernorm:Fast_RMS_Layernorm")
def rms_norm(it: Draw) -> Case:
    apply = _function("kernels.rms_layernorm:Fast_RMS_Layernorm")
    return it.case(
        lambda x, w: apply(x, w, 1e-6, False),
        lambda x, w: F.rms_norm(x, (70,), w, 1e-6),
        it.normal(2, 5, 70),
        it.of(it.normal(70).value, False),
    )


@UNSLOTH.program("kernels.layernorm:Fast_Layernorm")
def layer_norm(it: Draw) -> Case:
    apply = _function("kernels.layernorm:Fast_Layernorm")
    return it.case(
        lambda x, w, b: apply(x, w, b, 1e-6),
        lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-6),
        it.normal(2, 5, 70, mean=1.0),
        it.fixed(70),
        it.fixed(70),
    )


@UNSLOTH.program("kernels.rope_embedding:Fast_RoPE_Embedding")
def rope(it: Draw) -> Case:
    apply = _function("kernels.rope_embedding:Fast_RoPE_Embedding")
    angles = torch.arange(5)[:, None] * 100.0 ** (-torch.arange(16) / 16)
    angles = torch.cat([angles, angles], -1)

    def reference(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]

    return it.case(
        apply, reference, it.normal(2, 5, 3, 32), it.of(angles.cos(), False), it.of(angles.sin(), False)
    )


@UNSLOTH.program("kernels.cross_entropy_loss:Fast_CrossEntropyLoss")
def cross_entropy(it: Draw) -> Case:
    apply = _function("kernels.cross_entropy_loss:Fast_CrossEntropyLoss")
    return it.case(
        lambda x, target: apply(x, target, 0, 0),
        lambda x, target: F.cross_entropy(x, target, reduction="none"),
        it.normal(7, 101),
        it.below(101, 7),
    )


@UNSLOTH.program("kernels.cross_entropy_loss:Fast_CrossEntropyLoss")
def cross_entropy_in_chunks(it: Draw) -> Case:
    apply = _function("kernels.cross_entropy_loss:Fast_CrossEntropyLoss")
    return it.case(
        lambda x, target: apply(x, target, 30.0, 0),
        lambda x, target: F.cross_entropy(30 * torch.tanh(x / 30), target, reduction="none"),
        it.normal(2, 70_001),
        it.below(70_001, 2),
    )


def _gradients(forward, backward):
    """Return an operator of a kernel that returns h and one that returns h, df, and de in place of its inputs."""

    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, e, g):
            ctx.save_for_backward(e, g)
            return forward(e, g)

        @staticmethod
        def backward(ctx, dh):
            e, g = ctx.saved_tensors
            flat = [x.reshape(-1, x.shape[-1]).clone() for x in (dh, e, g)]
            _, by_gate, by_activation = backward(*flat)
            return by_activation.view(e.shape), by_gate.view(g.shape)

    return Gated.apply


@UNSLOTH.program("kernels.swiglu:swiglu_fg_kernel, swiglu_DWf_DW_dfg_kernel")
def swiglu(it: Draw) -> Case:
    forward, backward = (
        UNSLOTH.get(f"kernels.swiglu:{name}") for name in ("swiglu_fg_kernel", "swiglu_DWf_DW_dfg_kernel")
    )
    return it.case(
        _gradients(forward, backward), lambda e, g: F.silu(e) * g, it.normal(2, 5, 70), it.normal(2, 5, 70)
    )


@UNSLOTH.program("kernels.geglu:geglu_exact_forward_kernel, geglu_exact_backward_kernel")
def geglu_exact(it: Draw) -> Case:
    forward, backward = (
        UNSLOTH.get(f"kernels.geglu:geglu_exact_{way}_kernel") for way in ("forward", "backward")
    )
    return it.case(
        _gradients(forward, backward), lambda e, g: F.gelu(e) * g, it.normal(2, 5, 70), it.normal(2, 5, 70)
    )


@UNSLOTH.program("kernels.geglu:geglu_approx_forward_kernel, geglu_approx_backward_kernel")
def geglu_approximate(it: Draw) -> Case:
    forward, backward = (
        UNSLOTH.get(f"kernels.geglu:geglu_approx_{way}_kernel") for way in ("forward", "backward")
    )
    return it.case(
        _gradients(forward, backward),
        lambda e, g: F.gelu(e, approximate="tanh") * g,
        it.normal(2, 5, 70),
        it.normal(2, 5, 70),
    )


@UNSLOTH.program("kernels.fp8:act_quant", capability=(8, 9))
def quantise_to_fp8(it: Draw) -> Case:
    call = UNSLOTH.get("kernels.fp8:act_quant")

    def called(x):
        y, scale = call(x)
        return y.float().to(x.dtype), scale

    def reference(x):
        scale = (x.double().abs().max(-1, keepdim=True).values.float() / 448).to(torch.float32)
        y = (x.float() / scale).to(torch.float8_e4m3fn)
        return y.float().to(x.dtype), scale

    return it.case(called, reference, it.fixed(3, 128))


@UNSLOTH.program("kernels.fp8:weight_dequant", "bfloat16", capability=(8, 9))
def dequantise_from_fp8(it: Draw) -> Case:
    call = UNSLOTH.get("kernels.fp8:weight_dequant")
    w = it.normal(130, 140).value.to(torch.float8_e4m3fn)
    scale = it.of(it.normal(2, 2).value.abs(), False, torch.float32)

    def reference(scale):
        wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:130, :140]
        return w.to(scale.dtype) * wide

    return it.case(lambda scale: call(w.clone(), scale), reference, scale)
