"""What a mapping of parameters may hold, the gradients that are wanted, and what backward frees."""

import dataclasses
import gc
import re
import weakref

import numpy as np
import pytest
import torch

from backpass.models import llama

from .small import NETWORKS, drawn

EVERY = pytest.mark.parametrize("name", NETWORKS)


def step(name, **options):
    """Loss and gradients with these options."""
    module, config, parameters, batch = drawn(name)
    loss, saved = module.forward(parameters, *batch, config=config, **options)
    return loss, module.backward(saved)


def layer_of(module, config):
    return module.FAMILY.stack(config).layers[0].operation


def run(name, parameters):
    module, config, _, batch = drawn(name)
    loss, saved = module.forward(parameters, *batch, config=config)
    return loss, module.backward(saved)


@EVERY
def test_a_prefix_stays_in_the_names_of_the_gradients(name):
    module, _, parameters, _ = drawn(name)
    prefixed = {n if n == "lm_head.weight" else module.PREFIX + n: p for n, p in parameters.items()}
    (loss, gradients), (same, found) = run(name, parameters), run(name, prefixed)
    assert loss == same
    assert [*found] == [*prefixed]
    for own, gradient in gradients.items():
        np.testing.assert_array_equal(found[own if own in found else module.PREFIX + own], gradient)


@EVERY
def test_old_buffers_are_ignored(name):
    module, _, parameters, _ = drawn(name)
    buffers = (
        "h.0.attn.bias",
        "h.1.attn.masked_bias",
        "layers.0.self_attn.rotary_emb.inv_freq",
        "rotary_emb.inv_freq",
    )
    more = {module.PREFIX + buffer: np.ones(3, bool) for buffer in buffers}
    assert [*run(name, parameters | more)[1]] == [*parameters]


def test_a_tied_head_may_be_given_and_must_be_equal():
    _, _, parameters, _ = drawn("gpt2")
    loss, gradients = run("gpt2", parameters)
    same, found = run("gpt2", {**parameters, "lm_head.weight": parameters["wte.weight"].copy()})
    assert loss == same and [*found] == [*gradients]
    with pytest.raises(ValueError, match=r"lm_head.weight: is tied to wte.weight, but differs"):
        run("gpt2", {**parameters, "lm_head.weight": parameters["wte.weight"] + 1e-6})


def test_every_fault_is_named_at_once():
    module, config, parameters, batch = drawn("llama")
    norm, q = "layers.0.input_layernorm.weight", "layers.0.self_attn.q_proj.weight"
    wrong = dict(parameters)
    del wrong[norm]
    wrong["model.norm.weight"] = wrong["norm.weight"]
    wrong["layers.1.mlp.up.weight"] = wrong.pop("layers.1.mlp.up_proj.weight")
    wrong[q] = wrong[q].T
    wrong["layers.1.self_attn.o_proj.weight"] = wrong["layers.1.self_attn.o_proj.weight"].astype(np.float32)
    wrong["layers.1.mlp.down_proj.weight"] = wrong["layers.1.mlp.down_proj.weight"].astype(int)
    wrong["layers.0.self_attn.k_proj.weight"] = [1.0]
    with pytest.raises(ValueError) as raised:
        module.forward(wrong, *batch, config=config)
    assert str(raised.value).splitlines() == [
        "parameters: they do not fit the configuration:",
        "    model.norm.weight: is also given as norm.weight",
        "    layers.1.mlp.up.weight: is not a parameter; did you mean 'layers.1.mlp.up_proj.weight'?",
        "    layers.0.input_layernorm.weight: is missing",
        "    layers.1.mlp.up_proj.weight: is missing",
        "    layers.0.self_attn.q_proj.weight: expected shape [16, 6]; got shape [6, 16]",
        "    layers.0.self_attn.k_proj.weight: expected an array; got list",
        "    layers.1.mlp.down_proj.weight: expected floating-point numbers; got dtype int64",
        "    layers.1.self_attn.o_proj.weight: expected numpy cpu float64, as embed_tokens.weight; "
        "got numpy cpu float32",
    ]


def test_other_faults():
    module, config, parameters, (tokens, targets) = drawn("gpt2")
    with pytest.raises(TypeError, match="parameters: expected a mapping from names to arrays; got list"):
        module.forward([*parameters], tokens, targets, config=config)
    with pytest.raises(ValueError, match=r"wte.weight: has requires_grad=True; pass it detached"):
        leaf = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
        module.forward(leaf, torch.tensor(tokens), torch.tensor(targets), config=config)
    with pytest.raises(ValueError, match=r"targets: expected targets\[\*, s\] .* got shape \[2, 4\]"):
        module.forward(parameters, tokens, targets[:, 1:], config=config)
    with pytest.raises(
        ValueError, match="tokens: expected at most 6 in a sequence, the number of positions; got 10"
    ):
        module.forward(parameters, *(np.tile(t, 2) for t in (tokens, targets)), config=config)
    with pytest.raises(TypeError, match="tokens: expected integers; got dtype float64"):
        module.forward(parameters, tokens / 1, targets, config=config)
    with pytest.raises(TypeError, match="saved: expected what forward returned second"):
        other, config, parameters, batch = drawn("llama")
        module.backward(other.forward(parameters, *batch, config=config)[1])


@EVERY
def test_wanted_gradients_are_those_of_all_and_the_others_are_absent(name):
    loss, all_gradients = step(name)
    names = [*all_gradients]
    choices = [{own} for own in names] + [{names[0], names[-1]}, {*names[3:7]}, {*names[::2]}, set()]
    for wanted in choices:
        same, gradients = step(name, wanted=wanted)
        assert same == loss
        assert {*gradients} == wanted
        for own, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, all_gradients[own])


@EVERY
def test_nothing_before_the_first_wanted_parameter_is_computed(name, monkeypatch):
    module, config, parameters, _ = drawn(name)
    layer, calls = layer_of(module, config), []
    backward = layer.backward
    monkeypatch.setattr(layer, "backward", lambda dy, saved, **o: calls.append(o) or backward(dy, saved, **o))
    norm = next(n for n in reversed(parameters) if n.endswith("norm.weight") or n == "ln_f.weight")
    last = next(n for n in reversed(parameters) if n.startswith(("h.", "layers.")))
    for wanted, expected in (((), 0), ((norm,), 0), ((last,), 1), (None, config.layers)):
        calls.clear()
        step(name, wanted=wanted)
        assert len(calls) == expected, wanted
    step(name, wanted=(last,))
    assert "x" not in calls[-1]["wanted"]


def test_wanted_names_have_to_be_parameters():
    for wanted, message in (
        (
            "wte.weight",
            "wanted: expected a collection of names of parameters, or None for all; got 'wte.weight'",
        ),
        (["h.0.ln_1.wieght"], "'h.0.ln_1.wieght'; did you mean 'h.0.ln_1.weight'?"),
        (["lm_head.weight"], "it is tied to wte.weight"),
    ):
        with pytest.raises(TypeError if wanted == "wte.weight" else ValueError, match=re.escape(message)):
            step("gpt2", wanted=wanted)


@EVERY
def test_backward_frees_each_layer_once_it_has_used_it(name, monkeypatch):
    module, config, parameters, batch = drawn(name)
    layer = layer_of(module, config)
    _, saved = module.forward(parameters, *batch, config=config)
    first = len(saved.parts) - 2 - config.layers
    arrays = [weakref.ref(saved.parts[first + i].norm_1.x_hat) for i in range(config.layers)]
    alive = []
    backward = layer.backward

    def observed(dy, part, **options):
        gc.collect()
        alive.append([array() is not None for array in arrays])
        return backward(dy, part, **options)

    monkeypatch.setattr(layer, "backward", observed)
    module.backward(saved)
    assert alive == [[i <= last for i in range(config.layers)] for last in reversed(range(config.layers))]
    assert saved.parts == []
    with pytest.raises(ValueError, match="saved: backward frees what forward saved and has already run"):
        module.backward(saved)


@EVERY
def test_the_parameters_of_a_layer_too_many_are_all_named(name):
    module, config, parameters, batch = drawn(name)
    deeper = dataclasses.replace(config, layers=config.layers + 1)
    more = module.parameter_shapes(deeper).keys() - parameters.keys()
    with pytest.raises(ValueError) as raised:
        module.forward(parameters | dict.fromkeys(more), *batch, config=config)
    assert {line.strip().partition(":")[0] for line in str(raised.value).splitlines()[1:]} == more


@pytest.mark.parametrize("other", ["gpt2", {"layers": 2}, llama.Config(8, 6, 2, 4, 2, 4, 5)], ids=str)
def test_the_configuration_of_another_model_is_rejected(other):
    module, _, parameters, batch = drawn("gpt2")
    came = "backpass.models.llama.Config" if isinstance(other, llama.Config) else type(other).__name__
    with pytest.raises(TypeError, match=f"config: expected a backpass.models.gpt2.Config; got {came}$"):
        module.forward(parameters, *batch, config=other)
