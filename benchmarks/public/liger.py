"""Liger-Kernel: operators of training."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from public import Case, Draw, Project

LIGER = Project("liger_kernel", "liger_kernel", bare=("liger_kernel.ops",))


def _function(name: str):
    return LIGER.get(name).apply


@LIGER.program("ops.rms_norm:LigerRMSNormFunction")
def rms_norm(it: Draw) -> Case:
    apply = _function("ops.rms_norm:LigerRMSNormFunction")
    return it.case(
        lambda x, w: apply(x, w, 1e-6),
        lambda x, w: F.rms_norm(x, (70,), w, 1e-6),
        it.normal(7, 70, mean=1.0),
        it.normal(70),
    )


@LIGER.program("ops.layer_norm:LigerLayerNormFunction")
def layer_norm(it: Draw) -> Case:
    apply = _function("ops.layer_norm:LigerLayerNormFunction")
    return it.case(
        lambda x, w, b: apply(x, w, b, 1e-6),
        lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-6),
        it.normal(7, 70, mean=1.0),
        it.normal(70),
        it.normal(70),
    )


@LIGER.program("ops.fused_add_rms_norm:LigerFusedAddRMSNormFunction")
def fused_add_rms_norm(it: Draw) -> Case:
    apply = _function("ops.fused_add_rms_norm:LigerFusedAddRMSNormFunction")
    return it.case(
        lambda x, r, w: apply(x, r, w, 1e-6),
        lambda x, r, w: (F.rms_norm(x + r, (70,), w, 1e-6), x + r),
        it.normal(7, 70),
        it.normal(7, 70),
        it.normal(70),
    )


@LIGER.program("ops.modulated_rms_norm:LigerModulatedRMSNormFunction")
def modulated_rms_norm(it: Draw) -> Case:
    apply = _function("ops.modulated_rms_norm:LigerModulatedRMSNormFunction")
    return it.case(
        lambda x, w, scale, shift: apply(x, w, scale, shift, 1e-6),
        lambda x, w, scale, shift: (1 + scale[:, None]) * F.rms_norm(x, (38,), w, 1e-6) + shift[:, None],
        it.normal(2, 5, 38),
        it.normal(38),
        it.normal(2, 38),
        it.normal(2, 38),
    )


@LIGER.program("ops.group_norm:LigerGroupNormFunction")
def group_norm(it: Draw) -> Case:
    apply = _function("ops.group_norm:LigerGroupNormFunction")
    return it.case(
        lambda x, w, b: apply(x, w, b, 6, 3, 1e-6),
        lambda x, w, b: F.group_norm(x, 3, w, b, 1e-6),
        it.normal(2, 6, 35, mean=1.0),
        it.normal(6),
        it.normal(6),
    )


@LIGER.program("ops.poly_norm:LigerPolyNormFunction")
def poly_norm(it: Draw) -> Case:
    apply = _function("ops.poly_norm:LigerPolyNormFunction")

    def reference(x, w, b):
        parts = [F.rms_norm(x**power, (38,), None, 1e-6) for power in (3, 2, 1)]
        return sum(w[i] * part for i, part in enumerate(parts)) + b

    return it.case(
        lambda x, w, b: apply(x, w, b, 1e-6), reference, it.normal(5, 38), it.normal(3), it.normal()
    )


@LIGER.program("ops.softmax:LigerSoftmaxFunction")
def softmax(it: Draw) -> Case:
    apply = _function("ops.softmax:LigerSoftmaxFunction")
    return it.case(apply, lambda x: x.softmax(-1), it.normal(7, 70))


@LIGER.program("ops.sparsemax:LigerSparsemaxFunction")
def sparsemax(it: Draw) -> Case:
    apply = _function("ops.sparsemax:LigerSparsemaxFunction")

    def reference(x):
        ordered, _ = x.double().sort(-1, descending=True)
        count = torch.arange(1, x.shape[-1] + 1)
        held = (1 + count * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        threshold = (ordered.cumsum(-1).gather(-1, held - 1) - 1) / held
        return (x - threshold).clamp(min=0).to(x.dtype)

    return it.case(lambda x: apply(x, -1), reference, it.normal(7, 70))


@LIGER.program("ops.swiglu:LigerSiLUMulFunction")
def swiglu(it: Draw) -> Case:
    apply = _function("ops.swiglu:LigerSiLUMulFunction")
    return it.case(apply, lambda a, b: F.silu(a) * b, it.normal(7, 70), it.normal(7, 70))


@LIGER.program("ops.geglu:LigerGELUMulFunction")
def geglu(it: Draw) -> Case:
    apply = _function("ops.geglu:LigerGELUMulFunction")
    return it.case(apply, lambda a, b: F.gelu(a, approximate="tanh") * b, it.normal(7, 70), it.normal(7, 70))


@LIGER.program("ops.relu_squared:LigerReLUSquaredFunction")
def relu_squared(it: Draw) -> Case:
    apply = _function("ops.relu_squared:LigerReLUSquaredFunction")
    return it.case(apply, lambda x: x.relu().square(), it.normal(7, 70))


@LIGER.program("ops.dyt:LigerDyTFunction")
def dyt(it: Draw) -> Case:
    apply = _function("ops.dyt:LigerDyTFunction")
    return it.case(
        apply,
        lambda x, alpha, gamma, beta: gamma * torch.tanh(alpha * x) + beta,
        it.normal(7, 70),
        it.normal(1),
        it.normal(70),
        it.normal(70),
    )


def _tables(it: Draw, tokens: int, width: int) -> torch.Tensor:
    angles = torch.arange(tokens)[:, None] * 100.0 ** (-torch.arange(width // 2) / (width // 2))
    return torch.cat([angles, angles], -1)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


@LIGER.program("ops.rope:LigerRopeFunction")
def rope(it: Draw) -> Case:
    apply, angles = _function("ops.rope:LigerRopeFunction"), _tables(it, 5, 32)[None]
    return it.case(
        apply,
        lambda q, k, cos, sin: (
            _rotated(q, cos[:, None], sin[:, None]),
            _rotated(k, cos[:, None], sin[:, None]),
        ),
        it.normal(2, 3, 5, 32),
        it.normal(2, 1, 5, 32),
        it.of(angles.cos(), False),
        it.of(angles.sin(), False),
    )


@LIGER.program("ops.qwen2vl_mrope:LigerQwen2VLMRopeFunction")
def multimodal_rope(it: Draw) -> Case:
    apply = _function("ops.qwen2vl_mrope:LigerQwen2VLMRopeFunction")
    angles = torch.stack([_tables(it, 5, 32) * factor for factor in (1.0, 2.0, 3.0)])[:, None]
    section = [4, 6, 6]

    def reference(q, k, cos, sin):
        cos, sin = (
            torch.cat([part[i % 3] for i, part in enumerate(table.split(section * 2, -1))], -1)[:, None]
            for table in (cos, sin)
        )
        return _rotated(q, cos, sin), _rotated(k, cos, sin)

    return it.case(
        lambda q, k, cos, sin: apply(q, k, cos, sin, section),
        reference,
        it.normal(1, 3, 5, 32),
        it.normal(1, 1, 5, 32),
        it.of(angles.cos(), False),
        it.of(angles.sin(), False),
    )


@LIGER.program("ops.llama4_rope:LigerLlama4RopeFunction")
def llama4_rope(it: Draw) -> Case:
    apply = _function("ops.llama4_rope:LigerLlama4RopeFunction")
    angles = torch.arange(5)[:, None] * 100.0 ** (-torch.arange(16) / 16)

    def turned(x, factors):
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * factors[None, :, None]).flatten(-2).to(x.dtype)

    return it.case(
        apply,
        lambda q, k, factors: (turned(q, factors), turned(k, factors)),
        it.normal(2, 5, 3, 32),
        it.normal(2, 5, 1, 32),
        it.of(torch.polar(torch.ones_like(angles), angles).to(torch.complex64)),
    )


@LIGER.program("ops.cross_entropy:LigerCrossEntropyFunction")
def cross_entropy(it: Draw) -> Case:
    apply = _function("ops.cross_entropy:LigerCrossEntropyFunction")
    return it.case(
        lambda x, target: apply(x, target, None, -100, 0.0, 0.1)[0],
        lambda x, target: F.cross_entropy(x, target, label_smoothing=0.1),
        it.normal(7, 101),
        it.below(101, 7),
    )


@LIGER.program("ops.fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction")
def fused_linear_cross_entropy(it: Draw) -> Case:
    apply = _function("ops.fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction")
    return it.case(
        lambda x, w, target: apply(x, w, target)[0],
        lambda x, w, target: F.cross_entropy(x @ w.T, target),
        it.normal(7, 16),
        it.normal(53, 16, scale=0.3),
        it.below(53, 7),
    )


@LIGER.program("ops.vocab_parallel_cross_entropy:LigerVocabParallelCEFunction")
def vocab_parallel_cross_entropy(it: Draw) -> Case:
    apply = _function("ops.vocab_parallel_cross_entropy:LigerVocabParallelCEFunction")
    return it.case(
        lambda x, target: apply(x, target, None, -100, 0.0, "megatron", "mean"),
        lambda x, target: F.cross_entropy(x.flatten(0, 1), target.flatten(), reduction="none").view(
            target.shape
        ),
        it.normal(3, 2, 101),
        it.below(101, 3, 2),
    )


def _jsd(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """With both weights one half; p is the student's."""
    mean = torch.logaddexp(log_p, log_q) - torch.tensor(2.0).log()
    return 0.5 * sum((x.exp() * (x - mean)).sum() for x in (log_p, log_q)) / len(log_p)


@LIGER.program("ops.jsd:LigerJSDFunction")
def jsd(it: Draw) -> Case:
    apply = _function("ops.jsd:LigerJSDFunction")
    p, q = (it.normal(7, 53).value.log_softmax(-1) for _ in range(2))
    return it.case(apply, _jsd, it.of(p), it.of(q, False))


@LIGER.program("ops.fused_linear_jsd:LigerFusedLinearJSDFunction")
def fused_linear_jsd(it: Draw) -> Case:
    apply = _function("ops.fused_linear_jsd:LigerFusedLinearJSDFunction")
    return it.case(
        apply,
        lambda x, w, x_teacher, w_teacher: _jsd(
            (x @ w.T).log_softmax(-1), (x_teacher @ w_teacher.T).log_softmax(-1)
        ),
        it.normal(5, 16),
        it.normal(53, 16, scale=0.3),
        it.fixed(5, 16),
        it.fixed(53, 16, scale=0.3),
    )


@LIGER.program("ops.kl_div:LigerKLDivLossFunction")
def kl_div(it: Draw) -> Case:
    apply = _function("ops.kl_div:LigerKLDivLossFunction")
    return it.case(
        apply,
        lambda log_p, q: F.kl_div(log_p, q, reduction="batchmean"),
        it.of(it.normal(7, 53).value.log_softmax(-1)),
        it.of(it.normal(7, 53).value.softmax(-1), False),
    )


@LIGER.program("ops.tvd:LigerTVDLossFunction")
def tvd(it: Draw) -> Case:
    apply = _function("ops.tvd:LigerTVDLossFunction")
    p = it.normal(7, 53).value.softmax(-1)
    q = p * (
        1 + 0.25 * it.normal(7, 53).value.sign()
    )  # p and q differ everywhere, because the gradient does not exist where they are equal
    return it.case(apply, lambda p, q: 0.5 * (p - q).abs().sum() / len(p), it.of(p), it.of(q, False))


@LIGER.program("ops.experimental.embedding:LigerEmbeddingFunction")
def embedding(it: Draw) -> Case:
    apply = _function("ops.experimental.embedding:LigerEmbeddingFunction")
    return it.case(apply, lambda w, at: w[at], it.normal(11, 38), it.below(11, 2, 5))


@LIGER.program("ops.multi_token_attention:LigerMultiTokenAttentionFunction")
def multi_token_attention(it: Draw) -> Case:
    apply = _function("ops.multi_token_attention:LigerMultiTokenAttentionFunction")

    def reference(scores, w):
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        probabilities = scores.masked_fill(future, float("-inf")).softmax(-1)
        return F.conv2d(probabilities, w, padding=1).masked_fill(future, 0)

    return it.case(
        lambda scores, w: apply(scores, w, None, 1, 1),
        reference,
        it.normal(1, 2, 11, 11),
        it.normal(2, 2, 3, 3),
    )


@LIGER.program("ops.fused_neighborhood_attention:LigerFusedNeighborhoodAttentionFunction")
def neighborhood_attention(it: Draw) -> Case:
    apply = _function("ops.fused_neighborhood_attention:LigerFusedNeighborhoodAttentionFunction")

    def reference(q, k, v):
        at = torch.arange(q.shape[2])
        far = (at[:, None] - at).abs() > 2
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(far, float("-inf"))
        return scores.softmax(-1) @ v

    return it.case(lambda q, k, v: apply(q, k, v, 5), reference, *(it.normal(1, 2, 13, 16) for _ in range(3)))


@LIGER.program("ops.attn_res:LigerAttnResFunction")
def attention_over_depth(it: Draw) -> Case:
    apply = _function("ops.attn_res:LigerAttnResFunction")

    def reference(v, query, w):
        scores = (F.rms_norm(v, (38,), w, 1e-6) * query).sum(-1)
        return (scores.softmax(0)[..., None] * v).sum(0)

    return it.case(
        lambda v, query, w: apply(v, query, w, 1e-6),
        reference,
        it.normal(3, 2, 5, 38),
        it.normal(38),
        it.normal(38),
    )


@LIGER.program("ops.grpo_loss:GrpoLossFunction")
def grpo_loss(it: Draw) -> Case:
    apply = _function("ops.grpo_loss:GrpoLossFunction")

    def reference(logits, old, anchor, tokens, advantages, mask):
        own = logits[:, :-1].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        ratio = (own - old).exp()
        kept = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        kl = (anchor - own).exp() - (anchor - own) - 1
        return -kept + 0.04 * kl

    def call(logits, old, anchor, tokens, advantages, mask):
        settings = {"reduce": False}
        return apply(
            logits,
            old,
            anchor,
            tokens,
            advantages,
            mask,
            1.0,
            0.04,
            0.2,
            0.2,
            False,
            "grpo",
            None,
            *settings.values(),
        )[0]

    wide = torch.float32
    return it.case(
        call,
        reference,
        it.normal(2, 6, 53),
        it.of(it.normal(2, 5, scale=0.1, mean=-4.0).value, False, wide),
        it.of(it.normal(2, 5, scale=0.1, mean=-4.0).value, False, wide),
        it.below(53, 2, 5),
        it.of(it.normal(2).value, False, wide),
        it.of(torch.ones(2, 5, dtype=torch.int64)),
    )


@LIGER.program("ops.mhc:LigerMHCPreFunction")
def hyper_connections_before(it: Draw) -> Case:
    apply = _function("ops.mhc:LigerMHCPreFunction")
    weights = it.of(it.normal(5, 4).value, True, torch.float32)
    return it.case(apply, lambda x, h: (h[..., None] * x).sum(-2), it.normal(5, 4, 38), weights)


@LIGER.program("ops.mhc:LigerMHCPostResFunction")
def hyper_connections_after(it: Draw) -> Case:
    apply = _function("ops.mhc:LigerMHCPostResFunction")
    wide = torch.float32
    return it.case(
        apply,
        lambda x, f, h, mix: mix @ x + h[..., None] * f[..., None, :],
        it.normal(5, 4, 38),
        it.normal(5, 38),
        it.of(it.normal(5, 4).value, True, wide),
        it.of(it.normal(5, 4, 4).value, True, wide),
    )


@LIGER.program("ops.mlp:LigerMLPFunction")
def mlp(it: Draw) -> Case:
    apply = _function("ops.mlp:LigerMLPFunction")
    return it.case(
        apply,
        lambda x, gate, up, down: (F.silu(x @ gate.T) * (x @ up.T)) @ down.T,
        it.normal(2, 3, 32),
        it.normal(48, 32, scale=0.2),
        it.normal(48, 32, scale=0.2),
        it.normal(32, 48, scale=0.2),
    )


@LIGER.program("ops.fused_moe:LigerFusedMoEFunction")
def fused_moe(it: Draw) -> Case:
    apply = _function("ops.fused_moe:LigerFusedMoEFunction")

    def reference(x, gate_up, down, chosen, weights):
        found = torch.zeros_like(x)
        for slot in range(chosen.shape[1]):
            gate, up = torch.einsum("th,tih->ti", x, gate_up[chosen[:, slot].long()]).chunk(2, -1)
            own = torch.einsum("ti,thi->th", F.silu(gate) * up, down[chosen[:, slot].long()])
            found = found + weights[:, slot, None] * own
        return found

    chosen = torch.stack([torch.randperm(3, generator=it.random)[:2] for _ in range(6)]).int()
    return it.case(
        apply,
        reference,
        it.normal(6, 32),
        it.normal(3, 64, 32, scale=0.2),
        it.normal(3, 32, 32, scale=0.2),
        it.of(chosen),
        it.of(torch.rand(6, 2, generator=it.random, dtype=torch.float64)),
    )
