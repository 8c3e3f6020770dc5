"""Hugging Face's models as references: random weights, float64 throughout, and gradients by torch autograd.

A model of float64 still rounds to float32 in three places of Hugging Face's code: RMS norms, the tables of the
rotary positions, and the loss. There the reference has PyTorch's own functions in float64 instead; everything else is
Hugging Face's.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional

from backpass.models import gpt2, llama

BATCH = 2
FAMILIES = {"GPT2": gpt2, "Llama": llama, "Qwen2": llama, "Qwen3": llama}  # of Hugging Face, and ours
ROUNDED = [name for name, module in FAMILIES.items() if module is not gpt2]  # to float32, in norms and tables


@dataclass(frozen=True)
class Case:
    """A configuration of one of Hugging Face's classes, and a batch."""

    name: str
    family: str  # of FAMILIES
    sizes: dict[str, Any]
    length: int
    ignored: int = 0  # how many targets are −100
    seed: int = 0

    @property
    def module(self):
        return FAMILIES[self.family]

    def config(self):
        return getattr(transformers, f"{self.family}Config")(**self.sizes)

    def model(self, dtype=torch.float64):
        """The model with random parameters: none is 0 or 1, as a bias or a norm's weight would be."""
        name = "GPT2LMHeadModel" if self.family == "GPT2" else f"{self.family}ForCausalLM"
        model = getattr(transformers, name)(self.config()).to(torch.float64)
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in model.parameters():
                spread = 1 / (parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 3)
                offset = 1 if name_of(model, parameter).endswith(("norm.weight", "ln_1.weight")) else 0
                parameter.normal_(offset, spread, generator=generator)
        return model.to(dtype)

    def batch(self):
        """Tokens and targets, as tensors."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        shape = (2, BATCH, self.length)
        tokens, targets = torch.randint(0, self.sizes["vocab_size"], shape, generator=generator)
        order = torch.randperm(targets.numel(), generator=generator)[: self.ignored]
        targets.view(-1)[order] = -100
        return tokens, targets

    def ours(self):
        """The configuration in this package, read from the JSON that transformers writes."""
        return self.module.Config.from_hugging_face(json.loads(self.config().to_json_string()))


def name_of(model, parameter):
    return next(name for name, other in model.named_parameters() if other is parameter)


def precise(monkeypatch):
    """Replace what rounds to float32 by PyTorch's own functions, in the model's dtype."""

    def norm(self, x):
        return functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)

    def angles(self, x, position_ids):
        config = self.config
        base = config.rope_parameters["rope_theta"]
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        pairs = torch.arange(0, width, 2, dtype=torch.float64)
        angle = position_ids[..., None].double() * base ** (-pairs / width)
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    for title in ROUNDED:
        module = getattr(transformers.models, title.lower())
        module = getattr(module, f"modeling_{title.lower()}")
        monkeypatch.setattr(getattr(module, f"{title}RMSNorm"), "forward", norm)
        monkeypatch.setattr(getattr(module, f"{title}RotaryEmbedding"), "forward", angles)


def loss_and_gradients(model, tokens, targets):
    """The loss, from the model's scores by PyTorch's own cross-entropy, and every parameter's gradient."""
    model.zero_grad()
    scores = model(tokens, use_cache=False).logits
    loss = functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def gpt2_case(name, length, *, ignored=0, seed=0, **sizes):
    few = {"vocab_size": 11, "n_positions": 9, "n_embd": 12, "n_layer": 2, "n_head": 3}
    none = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    return Case(name, "GPT2", few | none | sizes, length, ignored, seed)


def llama_case(name, family, length, *, ignored=0, seed=0, **sizes):
    few = {"vocab_size": 13, "hidden_size": 12, "num_hidden_layers": 2, "intermediate_size": 10}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    return Case(name, family, few | heads | sizes, length, ignored, seed)


CASES = [
    gpt2_case("gpt2", 7, ignored=3),
    gpt2_case("gpt2-one-head-one-layer", 9, n_head=1, n_layer=1, seed=1),
    gpt2_case("gpt2-untied-inner", 5, ignored=9, tie_word_embeddings=False, n_inner=17, n_layer=3, seed=2),
    gpt2_case("gpt2-one-token", 1, n_head=6, layer_norm_epsilon=1e-3, seed=3),
    gpt2_case("gpt2-five-layers", 8, ignored=1, n_layer=5, n_head=2, seed=4),
    llama_case("llama", "Llama", 7, ignored=3),
    llama_case(
        "llama-one-key-head-tied", "Llama", 9, num_key_value_heads=1, tie_word_embeddings=True, seed=1
    ),
    llama_case("llama-no-groups", "Llama", 5, ignored=9, num_key_value_heads=4, num_hidden_layers=3, seed=2),
    llama_case(
        "llama-base",
        "Llama",
        8,
        rope_parameters={"rope_type": "default", "rope_theta": 50.0},
        head_dim=6,
        seed=3,
    ),
    llama_case("llama-one-token", "Llama", 1, num_hidden_layers=1, rms_norm_eps=1e-3, seed=4),
    llama_case("qwen2", "Qwen2", 7, ignored=3),
    llama_case("qwen2-tied", "Qwen2", 9, tie_word_embeddings=True, num_key_value_heads=1, seed=1),
    llama_case("qwen2-no-groups", "Qwen2", 5, ignored=9, num_key_value_heads=4, num_hidden_layers=3, seed=2),
    llama_case("qwen2-one-layer", "Qwen2", 8, num_hidden_layers=1, rms_norm_eps=1e-3, seed=3),
    llama_case("qwen3", "Qwen3", 7, ignored=3),
    llama_case("qwen3-tied-wide-heads", "Qwen3", 9, tie_word_embeddings=True, head_dim=10, seed=1),
    llama_case(
        "qwen3-one-key-head", "Qwen3", 5, ignored=9, num_key_value_heads=1, num_hidden_layers=3, seed=2
    ),
    llama_case(
        "qwen3-one-head", "Qwen3", 8, num_attention_heads=1, num_key_value_heads=1, head_dim=2, seed=3
    ),
]


def as_numpy(tensors):
    return {name: np.asarray(tensor.detach()) for name, tensor in tensors.items()}
