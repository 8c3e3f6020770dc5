"""Mamba: state space models."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from public import Case, Draw, Project

MAMBA = Project("mamba_ssm", "mamba-ssm", bare=("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"))


@MAMBA.program("ops.triton.layer_norm:layer_norm_fn")
def layer_norm(it: Draw) -> Case:
    call = MAMBA.get("ops.triton.layer_norm:layer_norm_fn")
    return it.case(
        lambda x, w, b, r: call(x, w, b, r, eps=1e-5),
        lambda x, w, b, r: F.layer_norm(x + r, (70,), w, b, 1e-5),
        it.normal(2, 5, 70, mean=1.0),
        it.normal(70),
        it.normal(70),
        it.normal(2, 5, 70),
    )


@MAMBA.program("ops.triton.layer_norm:rms_norm_fn")
def rms_norm(it: Draw) -> Case:
    call = MAMBA.get("ops.triton.layer_norm:rms_norm_fn")
    return it.case(
        lambda x, w: call(x, w, None, eps=1e-5),
        lambda x, w: F.rms_norm(x, (70,), w, 1e-5),
        it.normal(2, 5, 70),
        it.normal(70),
    )


@MAMBA.program("ops.triton.layernorm_gated:rmsnorm_fn")
def rms_norm_gated(it: Draw) -> Case:
    call = MAMBA.get("ops.triton.layernorm_gated:rmsnorm_fn")
    return it.case(
        lambda x, w, z: call(x, w, None, z, eps=1e-5, norm_before_gate=False),
        lambda x, w, z: F.rms_norm(x * F.silu(z), (70,), w, 1e-5),
        it.normal(2, 5, 70),
        it.normal(70),
        it.normal(2, 5, 70),
    )


@MAMBA.program("ops.triton.k_activations:SwiGLU")
def swiglu(it: Draw) -> Case:
    apply = MAMBA.get("ops.triton.k_activations:SwiGLU").apply

    def reference(xy):
        x, y = xy.chunk(2, -1)
        return F.silu(x) * y

    return it.case(apply, reference, it.normal(7, 140))


def _scanned(x, dt, a, b, c, d):
    state = torch.zeros(*x.shape[:1], *x.shape[2:], b.shape[-1], dtype=x.dtype)
    found = []
    for t in range(x.shape[1]):
        decay = (dt[:, t] * a).exp()[..., None, None]
        added = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        state = decay * state + added
        found.append((state * c[:, t, :, None]).sum(-1) + d[:, None] * x[:, t])
    return torch.stack(found, 1)


@MAMBA.program("ops.triton.selective_state_update:selective_state_update")
def selective_state_update(it: Draw) -> Case:
    call = MAMBA.get("ops.triton.selective_state_update:selective_state_update")

    def called(state, x, dt, a, b, c, d, bias):
        return call(state, x, dt, a, b, c, d, dt_bias=bias, dt_softplus=True), state

    def reference(state, x, dt, a, b, c, d, bias):
        dt = F.softplus(dt + bias)
        state = state * (dt[..., None] * a).exp() + (dt * x)[..., None] * b[:, None]
        return (state * c[:, None]).sum(-1) + d * x, state

    wide = torch.float32
    return it.case(
        called,
        reference,
        it.fixed(2, 38, 16),
        it.fixed(2, 38),
        it.fixed(2, 38),
        it.of(-it.normal(38, 16).value.exp(), False, wide),
        it.fixed(2, 16),
        it.fixed(2, 16),
        it.fixed(38),
        it.fixed(38),
    )


@MAMBA.program("ops.triton.ssd_combined:mamba_chunk_scan_combined")
def chunk_scan(it: Draw) -> Case:
    call = MAMBA.get("ops.triton.ssd_combined:mamba_chunk_scan_combined")

    def reference(x, dt, a, b, c, d):
        return _scanned(x, dt, a, b.expand(-1, -1, 2, -1), c.expand(-1, -1, 2, -1), d)

    wide = torch.float32
    return it.case(
        lambda x, dt, a, b, c, d: call(x, dt, a, b, c, 16, d),
        reference,
        it.normal(1, 20, 2, 16),
        it.of(F.softplus(it.normal(1, 20, 2).value - 2), True),
        it.of(-it.normal(2).value.exp(), True, wide),
        it.normal(1, 20, 1, 16),
        it.normal(1, 20, 1, 16),
        it.of(it.normal(2).value, True, wide),
    )


@MAMBA.program("ops.triton.ssd_bmm:_bmm_chunk_fwd")
def chunk_products(it: Draw) -> Case:
    call = MAMBA.get("ops.triton.ssd_bmm:_bmm_chunk_fwd")

    def reference(a, b):
        a, b = (x.unflatten(1, (2, 16)) for x in (a, b))
        return a @ b.mT

    return it.case(lambda a, b: call(a, b, 16), reference, it.fixed(2, 32, 24), it.fixed(2, 32, 24))


@MAMBA.program("ops.triton.ssd_chunk_state:_chunk_cumsum_fwd")
def chunk_cumulative_sum(it: Draw) -> Case:
    call = MAMBA.get("ops.triton.ssd_chunk_state:_chunk_cumsum_fwd")

    def reference(dt, a, bias):
        own = F.softplus(dt + bias).mT.unflatten(2, (2, 16))
        return (own * a[:, None, None]).cumsum(-1), own

    wide = torch.float32
    return it.case(
        lambda dt, a, bias: call(dt, a, 16, bias, True),
        reference,
        it.fixed(2, 32, 3),
        it.of(-it.normal(3).value.exp(), False, wide),
        it.of(it.normal(3).value, False, wide),
    )
