"""Any single change of the encoder's or the decoder's backward, or of one of their layers', changes a gradient by more
than the comparison with PyTorch allows.

A changed backward is compared with the unchanged one, which ``test_stacks.py`` compares with references. The mistakes
that compositions invite are made by name as well.
"""

from dataclasses import replace

import numpy as np
import pytest

from backpass.contract.shapes import parse
from backpass.contract.spec import axis_length
from backpass.models import encoder, seq2seq, stacks
from backpass.models.layers import blocks, decoder_layer, encoder_layer, gpt2_layer, transformer_attention

from .mutating import is_noticed, put_mistake, unproved, with_gradients
from .pytorch import parameters_of
from .small import drawn

MODULES = {
    module.__name__.rsplit(".", 1)[1]: module
    for module in (encoder, seq2seq, stacks, blocks, encoder_layer, decoder_layer, transformer_attention)
}
LENGTHS = {"h": 6, "p": 18, "q": 6, "f": 5}


def runs_of_stacks():
    """For each small stack: the gradient of its output, what its forward saved, and no options."""
    rng = np.random.default_rng(0)
    for norm_first in (False, True):
        encoding = encoder.Config(6, 2, 3, 5, norm_first=norm_first, final_norm=norm_first)
        both = seq2seq.Config(6, 1, 2, 3, 5, norm_first=norm_first)
        for module, config, lengths in ((encoder, encoding, [3]), (seq2seq, both, [2, 3])):
            parameters = parameters_of(module, config)
            arrays = [rng.standard_normal((4, n, 6)) for n in lengths]
            some = [name for name in parameters if name.endswith(("1.norm1.weight", "1.linear1.bias"))]
            for wanted in (None, some, []):
                y, saved = module.forward(parameters, *arrays, config=config, flash=norm_first, wanted=wanted)
                yield module, rng.standard_normal(y.shape), saved, {}


def runs_of_language_models():
    """Operations without parameters, absent parameters, and layers that run again: what stacks of layers do not have."""
    rates = {"embedding_dropout": 0.2, "residual_dropout": 0.4}
    for name, dropped in (("gpt2", rates), ("qwen3", {})):
        module, config, parameters, batch = drawn(name)
        options = {"config": replace(config, **dropped), **({"masks": (3, 1)} if dropped else {})}
        for wanted in (None, [*parameters][1:2], [*parameters][-1:]):
            for recompute in (None, 1):
                yield (
                    module,
                    None,
                    module.forward(parameters, *batch, **options, wanted=wanted, recompute=recompute)[1],
                    {},
                )


def runs_of_layers():
    """For each layer: what its forward saved for all gradients and for each one, and the options of its backward."""
    rng = np.random.default_rng(1)
    orders = [{"norm_first": False}, {"norm_first": True}]
    layers = {encoder_layer: orders, decoder_layer: orders, transformer_attention: [{}]}
    layers[gpt2_layer] = [{"residual_dropout": 0.4, "seed": 2}]
    for layer, orders in layers.items():
        shapes = dict(shapes_of(layer))
        inputs = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
        given = [inputs]
        if layer is transformer_attention:
            given.append({name: array for name, array in inputs.items() if name != "memory"})
        for options in orders:
            for arrays in given:
                y, every = layer.forward(**arrays, **options, heads=2)
                dy = rng.standard_normal(y.shape)
                yield layer, dy, every, {}
                for name in arrays:
                    _, saved = layer.forward(**arrays, **options, heads=2, wanted=[name])
                    yield layer, dy, saved, {}
                    yield layer, dy, every, {"wanted": [name]}


def shapes_of(layer):
    rows = {"x": (2, 3, 6), "memory": (2, 5, 6)}
    for spec in parse(layer.SHAPES).inputs:
        yield spec.name, rows.get(spec.name) or tuple(axis_length(axis, LENGTHS) for axis in spec.axes)


@pytest.fixture(scope="module")
def runs():
    return with_gradients([*runs_of_layers(), *runs_of_stacks(), *runs_of_language_models()])


ONLY_CHECKS = "It only rejects a second run, which has a test of its own."
AS_MANY = "An operation has as many gradients as differentiable inputs."
ONE_EACH = "What a layer saved has a value for each block."
STILL_DX = "Before this line da is dx."
UNCHECKED = (
    "check_unused(parts, len(pieces)) → parts",
    "check_unused(parts, len(pieces)) → check_unused(pieces, len(pieces))",
    "len(pieces) → len(parts)",
)
# Changes that compute the same, each with the proof.
EQUIVALENT = {
    "encoder": {f"check_unused(parts, len(pieces)): {change}": ONLY_CHECKS for change in UNCHECKED},
    "seq2seq": {
        f"check_unused(parts, len(pieces)): {change}": ONLY_CHECKS
        for change in (
            *UNCHECKED,
            "len(pieces) → len(shape)",
            "len(pieces) → len(like)",
            "check_unused(parts, len(pieces)) → check_unused(shape, len(pieces))",
            "check_unused(parts, len(pieces)) → check_unused(like, len(pieces))",
        )
    },
    "stacks": {
        "for argument, share in zip(arguments, shares, strict=True):: strict=True → strict=False": AS_MANY,
        "for argument, share in zip(arguments, shares, strict=True):: zip(arguments, shares, strict=True) → "
        "zip(arguments, shares)": AS_MANY,
    },
    "blocks": {
        "for block, its, (of_norm, of_part) in zip(blocks[::-1], saved[::-1], of_parts[::-1], strict=True):: "
        "strict=True → strict=False": ONE_EACH,
        "for block, its, (of_norm, of_part) in zip(blocks[::-1], saved[::-1], of_parts[::-1], strict=True):: "
        "zip(blocks[::-1], saved[::-1], of_parts[::-1], strict=True) → "
        "zip(blocks[::-1], saved[::-1], of_parts[::-1])": ONE_EACH,
        "if dx is not None and its.dropped is not None:: dx is not None → da is not None": STILL_DX,
        "da = gradient_of(dropout, dx, its.dropped): gradient_of(dropout, dx, its.dropped) → "
        "gradient_of(dropout, da, its.dropped)": STILL_DX,
        "for argument, share in zip(differentiable(operation)[1:], shares, strict=True):: strict=True → "
        "strict=False": AS_MANY,
        "for argument, share in zip(differentiable(operation)[1:], shares, strict=True):: "
        "zip(differentiable(operation)[1:], shares, strict=True) → zip(differentiable(operation)[1:], shares)": AS_MANY,
    },
    "transformer_attention": {
        "dw_qkv = turned(xp.concat([dw_q, dw_k, dw_v], axis=-1)): -1 → 1": "A matrix has two axes.",
        "dmemory = drows_k + drows_v if 'x' in of_k else None: 'x' in of_k → 'x' in of_v": "Keys and values are "
        "computed from the same rows.",
        "db_qkv = xp.concat([db_q, xp.zeros_like(db_q), db_v]): xp.zeros_like(db_q) → xp.zeros_like(db_v)": "Both have "
        "length h.",
    },
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MODULES)
def test_every_change_of_a_backward_is_noticed(name, runs, monkeypatch, proof):
    functions = {"blocks": ("backward", "_through")}.get(name, ("backward",))
    assert unproved(MODULES[name], runs, monkeypatch, proof, {*EQUIVALENT.get(name, {})}, functions) == set()


# A part of a backward's source, and what a mistake puts there.
SHARES = "d[name] = d[name] + share if name in d else share"
BACK = "stacks.backward(each, dx, parts.pop(), d)"
MISTAKES = {
    "a layer's share of the memory is forgotten": (stacks, SHARES, "d[name] = share"),
    "only the last layer's share of the memory counts": (stacks, SHARES, SHARES.replace(" + share", "")),
    "a decoder layer's gradients are its neighbour's": (seq2seq, "reversed(pieces)", "pieces"),
    "an encoder layer's gradients are its neighbour's": (encoder, "reversed(pieces)", "pieces"),
    "the final norm is skipped": (seq2seq, BACK, f"(dx, {BACK})[each is not pieces[-1]]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_composition_is_noticed(mistake, runs, monkeypatch):
    module, right, wrong = MISTAKES[mistake]
    put_mistake(monkeypatch, module, right, wrong)
    assert is_noticed(runs, module)


@pytest.mark.parametrize("wrong", ["da", "dx"])
@pytest.mark.parametrize("layer", [encoder_layer, decoder_layer])
def test_a_residual_gradient_that_is_overwritten_is_noticed(layer, wrong, runs, monkeypatch):
    put_mistake(monkeypatch, blocks, "dx + da", wrong)
    assert is_noticed([run for run in runs if run[0] is layer], blocks)
