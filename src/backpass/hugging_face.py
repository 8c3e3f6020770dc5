"""Run a model of Hugging Face's transformers on the operations of this package.

    from backpass.hugging_face import patch

    model = patch(AutoModelForCausalLM.from_config(config))

The model keeps its parameters, its names, and its methods. The functions of
``backpass.functional`` replace its linear layers, embeddings, norms, activations, gated
feed-forward blocks, rotary positions, attention, and the loss of a language model. So
its backward is the hand-written one. The page ``reference/from_pytorch`` shows it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from backpass import functional as B
from backpass.ops import rope

__all__ = ["left", "patch"]
Module = torch.nn.Module
Forward = Callable[..., Any]

# Folders of transformers.models whose classes were compared with the functions below.
# In other families, the same name may mean a different computation: several families
# rotate only a part of each head in a function named apply_rotary_pos_emb.
FAMILIES = "bert", "gemma2", "gpt2", "gpt_oss", "llama", "mistral", "qwen2", "qwen3"

# If a head has at most this many scores, the weights of attention are saved. If it has
# more, the backward recomputes the weights.
FEW_SCORES = 128 * 128


def patch(model: Module) -> Module:
    """Replace the computations of ``model`` in place, and return the model.

    The model's configuration becomes a copy, which names the attention "backpass". A
    copy or a pickle of the model is patched too. All models of a family share the
    function of rotary positions, so it changes in every model of that family. Raises
    TypeError unless ``model`` is one of transformers' models, and ValueError if its
    family is not one of ``FAMILIES``.
    """
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import sdpa_mask

    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model: expected a model of transformers; got {type(model).__name__}"
        )
    family = type(model).__module__.split(".")[-2]
    if family not in FAMILIES:
        raise ValueError(
            f"model: expected one of the families {', '.join(FAMILIES)}; got "
            f"{type(model).__name__} of {family}"
        )
    # Models that were made from one configuration share it.
    shared, own = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = own  # type: ignore[assignment]  # not a module
    AttentionInterface.register("backpass", attention)
    AttentionMaskInterface.register("backpass", sdpa_mask)  # its masks are boolean
    model.set_attn_implementation("backpass")
    if type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        model.loss_function = language_model_loss
    for module in model.modules():
        if (forward := replacement(module)) is not None:
            # Unlike a method, it can be copied.
            module.forward = partial(forward, module)
    functions = sys.modules[type(model).__module__]
    if hasattr(functions, "apply_rotary_pos_emb"):
        functions.apply_rotary_pos_emb = rotated  # type: ignore[attr-defined]
    return model


def left(model: Module) -> set[str]:
    """Return the names of the classes of those modules in ``model`` that have no
    submodules and were not replaced."""
    return {
        type(module).__name__
        for module in model.modules()
        if not any(True for _ in module.children()) and "forward" not in vars(module)
    }


def replacement(module: Module) -> Forward | None:
    """Return the function that replaces the ``forward`` of ``module``, a function of
    the module and its arguments. Return None if the module stays as it is."""
    kind = type(module)
    if kind is torch.nn.Embedding and (module.max_norm or module.sparse):
        return None
    if kind in _TORCHS:
        return _TORCHS[kind]
    if kind.__name__.endswith("RMSNorm"):
        return _gemma_norm if kind.__name__.startswith("Gemma") else _rms_norm
    if kind.__name__.endswith("MLP") and hasattr(module, "gate_proj"):
        silu = type(module.act_fn).__name__ in ("SiLU", "SiLUActivation")
        return _gated if silu else None
    return _TRANSFORMERS.get(kind.__name__)


def _linear(self: Any, input: torch.Tensor) -> torch.Tensor:
    return B.linear(input, self.weight.T, self.bias)


def _conv1d(self: Any, x: torch.Tensor) -> torch.Tensor:
    return B.linear(x, self.weight, self.bias)  # GPT-2's weight is [in, out]


def _embedding(self: Any, input: torch.Tensor) -> torch.Tensor:
    return B.embedding(input, self.weight, padding_idx=self.padding_idx)


def _scaled_embedding(self: Any, input_ids: torch.Tensor) -> torch.Tensor:
    scale = self.embed_scale.to(self.weight.dtype)
    return B.embedding(input_ids, self.weight, padding_idx=self.padding_idx) * scale


def _layer_norm(self: Any, input: torch.Tensor) -> torch.Tensor:
    return B.layer_norm(input, self.weight, self.bias, eps=self.eps)


def _rms_norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return B.rms_norm(hidden_states, self.weight, eps=self.variance_epsilon)


def _gemma_norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    # Gemma stores each weight as its difference from 1.
    return B.rms_norm(x, 1 + self.weight, eps=self.eps)


def _dropout(self: Any, input: torch.Tensor) -> torch.Tensor:
    if not (self.training and self.p):
        return input  # B.dropout would return a copy
    return B.dropout(input, p=self.p)


def _gated(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(B.swiglu(self.gate_proj(x), self.up_proj(x)))


def _gelu(self: Any, input: torch.Tensor) -> torch.Tensor:
    return B.gelu(input)


def _gelu_by_tanh(self: Any, input: torch.Tensor) -> torch.Tensor:
    return B.gelu(input, approximate="tanh")


def _silu(self: Any, input: torch.Tensor) -> torch.Tensor:
    return B.silu(input)


_TORCHS: dict[type[Module], Forward] = {
    torch.nn.Dropout: _dropout,
    torch.nn.Embedding: _embedding,
    torch.nn.LayerNorm: _layer_norm,
    torch.nn.Linear: _linear,
}
_TRANSFORMERS: dict[str, Forward] = {
    "Conv1D": _conv1d,
    "GELUActivation": _gelu,
    "GELUTanh": _gelu_by_tanh,
    "Gemma2TextScaledWordEmbedding": _scaled_embedding,
    "NewGELUActivation": _gelu_by_tanh,
    "SiLUActivation": _silu,
}


def rotated(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys ``[b, n, s, d]``, rotated by tables ``[b, s, d]``, in
    which each number occurs twice, or ``[b, s, d / 2]``."""
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

    A boolean ``attention_mask`` is True where a query may see a key; it includes the
    window and the padding. A floating-point mask is added to the scores. Without a
    mask, a causal module uses a causal one.
    """
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", False))
    few = query.shape[-2] * key.shape[-2] <= FEW_SCORES
    average = B.attention if few else B.flash_attention
    added = attention_mask is not None and attention_mask.is_floating_point()
    y = average(
        query,
        key,
        value,
        bias=attention_mask if added else None,
        mask=None if added else attention_mask,
        sink=s_aux,
        causal=attention_mask is None and is_causal and query.shape[-2] > 1,
        causal_variant="upper_left",  # without a mask, the cache is empty
        scale=scaling,
        softcap=softcap,
        dropout_p=dropout,
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
    The loss is float32 if the scores are in half precision.

    The sum over tokens is divided by ``num_items_in_batch`` if it is given, as with
    accumulated gradients, and by the number of counted tokens otherwise.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if shift_labels is None:
        padded = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)
        shift_labels = padded[..., 1:]
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = B.cross_entropy(
        logits, shift_labels, ignore_index=ignore_index, reduction=reduction
    )
    return loss if num_items_in_batch is None else loss / num_items_in_batch
