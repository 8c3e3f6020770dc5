"""Any single change of a model's backward, or of a layer's, changes a gradient by more than the comparison with Hugging
Face allows.

Here a changed backward is compared with the unchanged one, which `test_hugging_face.py` and `test_derivatives.py`
compare with references. The mistakes that compositions invite are made by name as well.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from backpass.contract.shapes import parse
from backpass.contract.spec import axis_length
from backpass.models import gpt2, language_model, llama
from backpass.models.layers import (
    blocks,
    gpt2_attention,
    gpt2_layer,
    llama_attention,
    llama_layer,
    output_head,
)
from backpass.ops import rope

from .mutating import is_noticed, put_mistake, unproved, with_gradients
from .small import NETWORKS, drawn

LAYERS = (gpt2_attention, gpt2_layer, llama_attention, llama_layer, output_head)
MODULES = {module.__name__.rsplit(".", 1)[1]: module for module in (language_model, *LAYERS)}
OPTIONS = {
    gpt2_attention: [{"heads": 3}],
    gpt2_layer: [{"heads": 3}, {"heads": 3, "residual_dropout": 0.4, "seed": 2}],
    output_head: [{"chunked": True}, {"chunked": False}],
}


@pytest.fixture(scope="module")
def runs():
    return with_gradients([*runs_of_networks(), *runs_of_layers()])


def runs_of_networks():
    """For each small network: what its forward saved for some sets of parameters."""
    for name in NETWORKS:
        module, config, parameters, (tokens, targets) = drawn(name)
        for wanted in wanted_sets(parameters):
            for flash in (True, False):
                options = {"config": config, "flash": flash, "chunked": flash, "wanted": wanted}
                yield module, None, module.forward(parameters, tokens, targets, **options)[1], {}
        if name == "gpt2":  # the others have no dropout
            rates = {"embedding_dropout": 0.2, "attention_dropout": 0.3, "residual_dropout": 0.4}
            options = {"config": replace(config, **rates), "flash": False, "masks": (3, 1)}
            yield module, None, module.forward(parameters, tokens, targets, **options)[1], {}


def runs_of_layers():
    """For each layer: what its forward saved for all gradients and for each one, and the options of its backward."""
    rng = np.random.default_rng(2)
    cos, sin = rope.tables(3, 2, like=rng.standard_normal(1))
    lengths = {"h": 6, "p": 18, "q": 8, "k": 1, "f": 5, "V": 7}
    for layer in LAYERS:
        known = {
            "x": rng.standard_normal((2, 3, 6)),
            "t": np.array([[1, 0, 3], [6, 6, -100]]),
            "cos": cos,
            "sin": sin,
        }
        own = lengths | ({"q": 9, "p": 27} if layer in (gpt2_attention, gpt2_layer) else {"p": 4})
        inputs = {
            spec.name: known[spec.name]
            if spec.name in known
            else rng.standard_normal([axis_length(axis, own) for axis in spec.axes])
            for spec in parse(layer.SHAPES).inputs
        }
        for options in OPTIONS.get(layer, [{}]):
            y, every = layer.forward(**inputs, **options)
            dy = rng.standard_normal(y.shape)
            yield layer, dy, every, {}
            yield layer, dy, every, {"wanted": []}
            names = [name for name in inputs if name not in ("t", "cos", "sin")]
            for wanted in [*([name] for name in names), *([*{*names} - {name}] for name in names)]:
                yield layer, dy, layer.forward(**inputs, **options, wanted=wanted)[1], {}
                yield layer, dy, every, {"wanted": wanted}


def wanted_sets(parameters):
    """All; one norm of the last layer; the positions or the first query weight; nothing before the last norm."""
    names = [*parameters]
    norms = [name for name in names if re.search(r"1\.(ln_2|post_attention_layernorm)\.weight$", name)]
    early = [name for name in names if re.search(r"wpe|0\.(attn\.c_attn|self_attn\.q_proj)\.weight$", name)]
    last = [name for name in names if re.fullmatch(r"(ln_f|norm)\.weight", name)]
    return [None, *(each for each in (norms, early, last) if each)]


# Changes that compute the same, each with the proof.
ONLY_CHECKS = "It only rejects a second run; test_parameters.py has that."
OF_THE_SCALE = "It only rejects a scale; test_derivatives.py has that."
THREE_OF_ONE_LENGTH = "The three have one length."
EQUIVALENT: dict[str, dict[str, str]] = {
    "language_model": {
        "check_loss_scale(scale): check_loss_scale(scale) → scale": OF_THE_SCALE,
        "check_unused(parts, len(pieces) + 2): check_unused(parts, len(pieces) + 2) → parts": ONLY_CHECKS,
        "_check_family(c, family): _check_family(c, family) → c": "It only rejects what a different network saved; "
        "test_parameters.py has that.",
    },
    "gpt2_attention": {
        "db_qkv = xp.concat([db_q, xp.zeros_like(db_k), db_v]): xp.zeros_like(db_k) → xp.zeros_like(db_q)": THREE_OF_ONE_LENGTH,
        "db_qkv = xp.concat([db_q, xp.zeros_like(db_k), db_v]): xp.zeros_like(db_k) → xp.zeros_like(db_v)": THREE_OF_ONE_LENGTH,
        "db_qkv = xp.concat([db_q, xp.zeros_like(db_k), db_v]): xp.zeros_like(db_k) → db_k": "It is 0 except for rounding; "
        "tests/training/test_twin.py has that it is 0.",
        "if not of_heads:: not of_heads → not of_qkv": "The first projection has a gradient where attention has.",
    },
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MODULES)
def test_every_change_of_a_backward_is_noticed(name, runs, monkeypatch, proof):
    assert unproved(MODULES[name], runs, monkeypatch, proof, {*EQUIVALENT.get(name, {})}) == set()


# The network that must notice it, a part of a backward's source, and what a mistake puts there.
BACK = "stacks.backward(piece, dx, parts.pop(), d)"
MISTAKES = {
    "the tied weight's second share is forgotten": (gpt2, language_model, "table.backward_onto(dhead, dx, tokens)", "table.backward(dx, tokens)"),
    "the tied weight's first share is forgotten": (gpt2, language_model, "table.backward_onto(dhead, dx, tokens)", "dhead"),
    "a layer's gradients are its neighbour's": (gpt2, language_model, "reversed(pieces)", "pieces"),
    "the final norm is skipped": (gpt2, language_model, BACK, f"(dx, {BACK})[piece is not pieces[-1]]"),
    "positions are off by one": (gpt2, language_model, BACK, BACK.replace(
        "dx", "dx[..., [*range(1, dx.shape[-2]), 0], :] if piece.name == 'wpe' else dx")),
    "the residual's gradient is overwritten": (gpt2, blocks, "ds=dx", "ds=None"),
    "the first block's gradient is dropped": (llama, blocks, "dx = _through(*norm, da", "_ = _through(*norm, da"),
    "a layer of Llama takes its neighbour's gradients": (llama, language_model, "reversed(pieces)", "pieces"),
    "Llama's tied weight has one share": (llama, language_model, "table.backward_onto(dhead, dx, tokens)", "table.backward(dx, tokens)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_composition_is_noticed(mistake, runs, monkeypatch):
    network, module, right, wrong = MISTAKES[mistake]
    put_mistake(monkeypatch, module, right, wrong)
    assert is_noticed([run for run in runs if run[0] is network], module)
