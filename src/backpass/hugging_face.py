"""Run a model of Hugging Face's transformers on the operations of this package.

    from backpass.hugging_face import patch

    model = patch(AutoModelForCausalLM.from_config(config))

The model keeps its parameters, its names and its methods. What computes in it is
replaced: linear layers, embeddings, norms, activations, gated feed-forward blocks,
rotary positions, attention with its masks, and the loss. Each replacement is one of
``backpass.functional``, whose backward is the hand-written one. A class that is not
known here is left as it is, and ``left`` lists them. Shown on the page
``reference/real_models``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from backpass import functional as B
from backpass.ops import rope

Module = torch.nn.Module
Forward = Callable[..., Any]


def patch(model: Module) -> Module:
    """Replace what ``model`` computes with, and return it.

    Rotary positions are a function that all models of a family share, so they change in
    every model of that family. Raises TypeError unless ``model`` is one of
    transformers' models.
    """
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import sdpa_mask

    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model: expected a model of transformers; got {type(model).__name__}"
        )
    AttentionInterface.register("backpass", attention)
    AttentionMaskInterface.register("backpass", sdpa_mask)  # of booleans
    model.set_attn_implementation("backpass")
    model.loss_function = language_model_loss
    for module in model.modules():
        if (forward := replacement(module)) is not None:
            module.forward = forward
        family = sys.modules[type(module).__module__]
        if hasattr(family, "apply_rotary_pos_emb"):
            family.apply_rotary_pos_emb = rotated  # type: ignore[attr-defined]
    return model


def left(model: Module) -> set[str]:
    """Return the names of the classes in ``model`` that compute something themselves
    and are not replaced."""
    names = set()
    for module in model.modules():
        composed = any(True for _ in module.children())
        if not composed and "forward" not in vars(module):
            names.add(type(module).__name__)
    return names


def replacement(module: Module) -> Forward | None:
    """Return the forward that replaces that of ``module``, or None."""
    kind = type(module)
    if kind in _TORCHS:
        return _TORCHS[kind](module)
    for ending, build in _TRANSFORMERS.items():
        if kind.__name__.endswith(ending):
            return build(module)
    return None


def _linear(module: Any) -> Forward:
    return lambda x: B.linear(x, module.weight.T, module.bias)


def _conv1d(module: Any) -> Forward:  # of GPT-2: a linear layer of weight [in, out]
    return lambda x: B.linear(x, module.weight, module.bias)


def _embedding(module: Any) -> Forward:
    return lambda t: B.embedding(t, module.weight, padding_idx=module.padding_idx)


def _scaled_embedding(module: Any) -> Forward:  # of Gemma
    return lambda t: B.embedding(t, module.weight) * module.embed_scale


def _layer_norm(module: Any) -> Forward:
    return lambda x: B.layer_norm(x, module.weight, module.bias, eps=module.eps)


def _rms_norm(module: Any) -> Forward:
    if type(module).__name__.startswith("Gemma"):  # which learns what is added to 1
        return lambda x: B.rms_norm(x, 1 + module.weight, eps=module.eps)
    return lambda x: B.rms_norm(x, module.weight, eps=module.variance_epsilon)


def _dropout(module: Any) -> Forward:
    return lambda x: B.dropout(x, p=module.p, training=module.training)


def _gated(module: Any) -> Forward | None:
    """The feed-forward block of Llama and its relatives, if its gate is a SiLU."""
    if type(getattr(module, "act_fn", None)).__name__ not in ("SiLU", "SiLUActivation"):
        return None
    return lambda x: module.down_proj(B.swiglu(module.gate_proj(x), module.up_proj(x)))


def _gelu(_: Any) -> Forward:
    return B.gelu


def _gelu_by_tanh(_: Any) -> Forward:
    return lambda x: B.gelu(x, approximate="tanh")


_TORCHS: dict[type[Module], Callable[[Any], Forward]] = {
    torch.nn.Dropout: _dropout,
    torch.nn.Embedding: _embedding,
    torch.nn.LayerNorm: _layer_norm,
    torch.nn.Linear: _linear,
}
# By the end of a class's name, without which each family would have a line.
_TRANSFORMERS: dict[str, Callable[[Any], Forward | None]] = {
    "Conv1D": _conv1d,
    "NewGELUActivation": _gelu_by_tanh,
    "GELUActivation": _gelu,
    "GELUTanh": _gelu_by_tanh,
    "SiLUActivation": lambda _: B.silu,
    "RMSNorm": _rms_norm,
    "ScaledWordEmbedding": _scaled_embedding,
    "MLP": _gated,
}


def rotated(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys ``[b, n, s, d]``, rotated by tables ``[b, s, d]``, which
    have each number twice, or ``[b, s, d / 2]``."""
    if cos.shape[-1] == q.shape[-1]:
        cos, sin = rope.narrow(cos), rope.narrow(sin)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return B.rope(q, cos, sin), B.rope(k, cos, sin)


def attention(
    module: Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the averages ``[b, s, n_h, d]`` for transformers' attention interface.

    ``attention_mask`` is of booleans, and contains the window and the padding. None is
    a causal mask where the module is causal.
    """
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", False))
    # FlashAttention saves no weights, and drops none.
    average, dropped = B.flash_attention, {}
    if dropout:
        average, dropped = B.attention, {"dropout_p": dropout}
    y = average(
        query,
        key,
        value,
        mask=attention_mask,
        sink=s_aux,
        causal=attention_mask is None and is_causal and query.shape[-2] > 1,
        causal_variant="lower_right",
        scale=scaling,
        softcap=softcap,
        **dropped,
    )
    return y.transpose(1, 2), None


def language_model_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *_: Any,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **__: Any,
) -> torch.Tensor:
    """Return the loss of scores ``[b, s, V]`` for the next token of ``labels[b, s]``.

    The sum over tokens is divided by ``num_items_in_batch`` if it is given, as with
    accumulated gradients, and by the number of counted tokens otherwise.
    """
    if shift_labels is None:
        padded = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)
        shift_labels = padded[..., 1:]
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = B.cross_entropy(
        logits, shift_labels, ignore_index=ignore_index, reduction=reduction
    )
    return loss if num_items_in_batch is None else loss / num_items_in_batch
