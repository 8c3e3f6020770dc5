"""flash-linear-attention: linear attention, its recurrences, and their layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from public import Case, Draw, Input, Project

FLA = Project("fla", "flash-linear-attention", bare=("fla", "fla.modules", "fla.ops"))
T, H, K = 20, 2, 16  # tokens, heads, head width


def read(q, k, v, decay=None, beta=None, scale=None, bonus=None, erased=None):
    """Return the outputs ``[b, t, h, d]`` of a state S that each token updates to a S + β k (v − kᵀ (a S))ᵀ, or to
    a S + k vᵀ without β, and reads as scale · qᵀ S. ``decay`` holds log a ``[b, t, h]`` or ``[b, t, h, k]``.

    With ``bonus``, a token reads the state before its update, and its own k vᵀ times the bonus ``[h, k]``. ``erased``
    is a pair of vectors (x, y) of each token: S loses y (xᵀ S) with a negative sign, as in RWKV-7.
    """
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    state = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1], dtype=v.dtype)
    found = []
    for t in range(k.shape[1]):
        now_q, now_k, now_v = q[:, t], k[:, t], v[:, t]
        before = state
        if decay is not None:
            factor = decay[:, t].exp()
            state = state * (factor[..., None, None] if factor.ndim == 2 else factor[..., None])
        if erased is not None:
            x, y = (part[:, t] for part in erased)
            state = state + y[..., None] * (x[..., None] * before).sum(-2, keepdim=True)
        if beta is not None:
            now_v = beta[:, t, :, None] * (now_v - (now_k[..., None] * state).sum(-2))
        added = now_k[..., None] * now_v[..., None, :]
        if bonus is not None:
            found.append(scale * (now_q[..., None] * (before + bonus[..., None] * added)).sum(-2))
            state = state + added
            continue
        state = state + added
        found.append(scale * (now_q[..., None] * state).sum(-2))
    return torch.stack(found, 1)


def unit(it: Draw, *shape: int) -> Input:
    """Return rows of length 1."""
    return it.of(F.normalize(it.normal(*shape).value, dim=-1))


def log_decays(it: Draw, *shape: int) -> Input:
    """Return logarithms of numbers between 0 and 1."""
    return it.of(F.logsigmoid(it.normal(*shape).value + 2))


def _recurrent(
    name: str, function: str, *arguments: str, dtypes=(), differentiable: bool = True, **options
) -> None:
    """Declare a program on q, k, and v, with further arguments of ``read``. ``options`` give the names under which the
    program takes them, and more arguments."""

    def create(it: Draw) -> Case:
        call = FLA.get(function)
        shape = (1, T, H, K)
        own = {
            "q": lambda: it.normal(*shape),
            "k": lambda: unit(it, *shape),
            "v": lambda: it.normal(*shape),
            "decay": lambda: log_decays(it, *shape[:3]),
            "decays": lambda: log_decays(it, *shape),
            "beta": lambda: it.of(torch.sigmoid(it.normal(*shape[:3]).value)),
        }
        kept = ("q", "k", "v", *arguments)

        def reference(*values):
            return read(**{name.rstrip("s"): x for name, x in zip(kept, values, strict=True)})

        def called(*values):
            names = [options.get(name, name) for name in kept]
            found = call(**dict(zip(names, values, strict=True)), **options.get("more", {}))
            return found[0] if isinstance(found, tuple) else found

        inputs = (own[name]()._replace(differentiable=differentiable) for name in kept)
        case = it.case(called, reference, *inputs)
        case.given = kept
        return case

    create.__name__ = name
    FLA.program(function, *dtypes)(create)


_recurrent("fused_recurrent_linear_attn", "ops.linear_attn.fused_recurrent:fused_recurrent_linear_attn")
_recurrent("chunk_linear_attn", "ops.linear_attn.chunk:chunk_linear_attn", more={"normalize": False})
_recurrent("chunk_simple_gla", "ops.simple_gla.chunk:chunk_simple_gla", "decay", decay="g")
_recurrent("parallel_simple_gla", "ops.simple_gla.parallel:parallel_simple_gla", "decay", decay="g")
_recurrent("fused_recurrent_gla", "ops.gla.fused_recurrent:fused_recurrent_gla", "decays", decays="gk")
_recurrent("chunk_gla", "ops.gla.chunk:chunk_gla", "decays", decays="g")
_recurrent("fused_recurrent_delta_rule", "ops.delta_rule.fused_recurrent:fused_recurrent_delta_rule", "beta")
_recurrent("chunk_delta_rule", "ops.delta_rule.chunk:chunk_delta_rule", "beta", dtypes=("bfloat16",))
_recurrent(
    "fused_recurrent_gated_delta_rule",
    "ops.gated_delta_rule.fused_recurrent:fused_recurrent_gated_delta_rule",
    "decay",
    "beta",
    differentiable=False,
    decay="g",
)
_recurrent(
    "chunk_gated_delta_rule",
    "ops.gated_delta_rule.chunk:chunk_gated_delta_rule",
    "decay",
    "beta",
    decay="g",
)
_recurrent(
    "fused_recurrent_kda",
    "ops.kda.fused_recurrent:fused_recurrent_kda",
    "decays",
    "beta",
    differentiable=False,
    decays="g",
)


@FLA.program("ops.retention.chunk:chunk_retention")
def chunk_retention(it: Draw) -> Case:
    call = FLA.get("ops.retention.chunk:chunk_retention")
    decay = torch.log1p(-(2.0 ** (-5 - torch.arange(H, dtype=torch.float64))))

    def reference(q, k, v):
        return read(q, k, v, decay.to(q.dtype).expand(1, T, H))

    return it.case(lambda q, k, v: call(q, k, v)[0], reference, *(it.normal(1, T, H, K) for _ in range(3)))


@FLA.program("ops.rwkv6.fused_recurrent:fused_recurrent_rwkv6")
def fused_recurrent_rwkv6(it: Draw) -> Case:
    call = FLA.get("ops.rwkv6.fused_recurrent:fused_recurrent_rwkv6")
    shape = (1, T, H, K)
    return it.case(
        lambda r, k, v, w, u: call(r, k, v, w, u, 1.0)[0],
        lambda r, k, v, w, u: read(r, k, v, w, scale=1.0, bonus=u),
        *(it.normal(*shape) for _ in range(3)),
        log_decays(it, *shape),
        it.normal(H, K),
    )


@FLA.program("ops.rwkv7.fused_recurrent:fused_recurrent_rwkv7")
def fused_recurrent_rwkv7(it: Draw) -> Case:
    call = FLA.get("ops.rwkv7.fused_recurrent:fused_recurrent_rwkv7")
    shape = (1, T, H, K)
    erased = F.normalize(it.normal(*shape).value, dim=-1)
    return it.case(
        lambda r, w, k, v, a, b: call(r, w, k, v, a, b, scale=1.0)[0],
        lambda r, w, k, v, a, b: read(r, k, v, w, scale=1.0, erased=(a, b)),
        it.fixed(*shape),
        it.of(log_decays(it, *shape).value, False),
        it.fixed(*shape),
        it.fixed(*shape),
        it.of(-erased, False),
        it.of(0.5 * erased, False),
    )


def _hgrn(x, g):
    state, found = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = g[:, t].exp() * state + x[:, t]
        found.append(state)
    return torch.stack(found, 1)


@FLA.program("ops.hgrn.fused_recurrent:fused_recurrent_hgrn")
def fused_recurrent_hgrn(it: Draw) -> Case:
    call = FLA.get("ops.hgrn.fused_recurrent:fused_recurrent_hgrn")
    return it.case(lambda x, g: call(x, g)[0], _hgrn, it.normal(2, T, 38), log_decays(it, 2, T, 38))


@FLA.program("ops.hgrn.chunk:chunk_hgrn")
def chunk_hgrn(it: Draw) -> Case:
    call = FLA.get("ops.hgrn.chunk:chunk_hgrn")
    return it.case(lambda x, g: call(x, g)[0], _hgrn, it.normal(2, T, 38), log_decays(it, 2, T, 38))


def _heads_first(*tensors):
    return [x.transpose(1, 2) for x in tensors]


@FLA.program("ops.attn.parallel:parallel_attn")
def parallel_attn(it: Draw) -> Case:
    call = FLA.get("ops.attn.parallel:parallel_attn")

    def reference(q, k, v):
        q, k, v = _heads_first(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return it.case(call, reference, *(it.normal(1, T, H, K) for _ in range(3)))


@FLA.program("ops.forgetting_attn.parallel:parallel_forgetting_attn")
def parallel_forgetting_attn(it: Draw) -> Case:
    call = FLA.get("ops.forgetting_attn.parallel:parallel_forgetting_attn")

    def reference(q, k, v, g):
        q, k, v = _heads_first(q, k, v)
        total = g.cumsum(1).mT
        bias = (total[..., :, None] - total[..., None, :]).masked_fill(
            torch.ones(T, T).triu(1).bool(), float("-inf")
        )
        return ((q @ k.mT * K**-0.5 + bias).softmax(-1) @ v).transpose(1, 2)

    return it.case(call, reference, *(it.normal(1, T, H, K) for _ in range(3)), log_decays(it, 1, T, H))


@FLA.program("ops.rebased.parallel:parallel_rebased")
def parallel_rebased(it: Draw) -> Case:
    call = FLA.get("ops.rebased.parallel:parallel_rebased")

    def reference(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = (K**-0.5 * q @ k.mT).square().tril()
        return (scores @ v / (scores.sum(-1, keepdim=True) + 1e-5)).transpose(1, 2)

    return it.case(call, reference, *(it.normal(1, T, H, K) for _ in range(3)))


@FLA.program("modules.layernorm:layer_norm")
def layer_norm(it: Draw) -> Case:
    call = FLA.get("modules.layernorm:layer_norm")
    return it.case(
        call,
        lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-5),
        it.normal(2, 5, 70, mean=1.0),
        it.normal(70),
        it.normal(70),
    )


@FLA.program("modules.layernorm:rms_norm")
def rms_norm(it: Draw) -> Case:
    call = FLA.get("modules.layernorm:rms_norm")
    return it.case(
        lambda x, w: call(x, w, None),
        lambda x, w: F.rms_norm(x, (70,), w, 1e-5),
        it.normal(2, 5, 70),
        it.normal(70),
    )


@FLA.program("modules.fused_norm_gate:rms_norm_gated")
def rms_norm_gated(it: Draw) -> Case:
    call = FLA.get("modules.fused_norm_gate:rms_norm_gated")
    return it.case(
        lambda x, g, w: call(x, g, w, None),
        lambda x, g, w: F.rms_norm(x, (70,), w, 1e-6) * F.silu(g),
        it.normal(2, 5, 70),
        it.normal(2, 5, 70),
        it.normal(70),
    )


@FLA.program("modules.l2norm:l2norm")
def l2norm(it: Draw) -> Case:
    call = FLA.get("modules.l2norm:l2norm")
    return it.case(call, lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt(), it.normal(2, 5, 70))


@FLA.program("modules.rotary:rotary_embedding")
def rotary_embedding(it: Draw) -> Case:
    call = FLA.get("modules.rotary:rotary_embedding")
    angles = torch.arange(5)[:, None] * 100.0 ** (-torch.arange(16) / 16)

    def reference(x, cos, sin):
        a, b = x.chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    return it.case(
        call, reference, it.normal(2, 5, 3, 32), it.of(angles.cos(), False), it.of(angles.sin(), False)
    )


@FLA.program("modules.activations:swiglu")
def swiglu(it: Draw) -> Case:
    call = FLA.get("modules.activations:swiglu")
    return it.case(call, lambda x, y: F.silu(x) * y, it.normal(7, 70), it.normal(7, 70))


@FLA.program("modules.activations:logsigmoid")
def logsigmoid(it: Draw) -> Case:
    call = FLA.get("modules.activations:logsigmoid")
    return it.case(call, lambda x: F.logsigmoid(x), it.normal(7, 70))


@FLA.program("modules.fused_cross_entropy:cross_entropy_loss")
def cross_entropy_loss(it: Draw) -> Case:
    call = FLA.get("modules.fused_cross_entropy:cross_entropy_loss")
    return it.case(
        lambda x, target: call(x, target, 0.1)[0],
        lambda x, target: F.cross_entropy(x, target, reduction="none", label_smoothing=0.1),
        it.normal(7, 101),
        it.below(101, 7),
    )


@FLA.program("modules.fused_kl_div:fused_kl_div_loss")
def fused_kl_div_loss(it: Draw) -> Case:
    call = FLA.get("modules.fused_kl_div:fused_kl_div_loss")

    def reference(x, x_teacher, w, w_teacher):
        own, other = (x @ w.T).log_softmax(-1), (x_teacher @ w_teacher.T).log_softmax(-1)
        return F.kl_div(own, other, reduction="batchmean", log_target=True)

    return it.case(
        call,
        reference,
        it.normal(5, 16),
        it.fixed(5, 16),
        it.normal(53, 16, scale=0.3),
        it.fixed(53, 16, scale=0.3),
    )


@FLA.program("modules.token_shift:token_shift")
def token_shift(it: Draw) -> Case:
    call = FLA.get("modules.token_shift:token_shift")
    return it.case(call, lambda x: F.pad(x, (0, 0, 1, -1)) - x, it.normal(2, 7, 38))


@FLA.program("modules.conv.causal_conv1d:causal_conv1d")
def causal_conv1d(it: Draw) -> Case:
    call = FLA.get("modules.conv.causal_conv1d:causal_conv1d")

    def reference(x, w, b):
        y = F.conv1d(F.pad(x.mT, (w.shape[1] - 1, 0)), w[:, None], b, groups=len(w)).mT
        return F.silu(y)

    return it.case(
        lambda x, w, b: call(x, w, b, activation="swish")[0],
        reference,
        it.normal(2, 13, 38),
        it.normal(38, 4),
        it.normal(38),
    )
