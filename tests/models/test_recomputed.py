"""What runs again in the backward gives the same bits, and saves what it should."""

from dataclasses import replace

import numpy as np
import pytest

from backpass import cost
from backpass.cost.networks import network_memory
from backpass.interpreters import counting
from backpass.models import encoder, gpt2, llama, seq2seq, stacks
from backpass.models.layers import recomputed
from backpass.models.layers.recomputed import Recomputed, Saved, Segment
from backpass.ops import attention, feed_forward, layer_norm
from backpass.verify.mutation import mutants
from pairwise import pairs

from .small import batch_of, parameters_of

RATES = {"embedding_dropout": 0.2, "attention_dropout": 0.3, "residual_dropout": 0.4}
CONFIGS = {
    "gpt2": (gpt2, gpt2.Config(7, 6, 6, 5, 3, 5)),
    "gpt2, dropout": (gpt2, gpt2.Config(7, 6, 6, 5, 3, 5, **RATES)),
    "qwen3": (llama, llama.Config(8, 6, 5, 4, 2, 4, 5, query_key_norm=True)),
    "encoder": (encoder, encoder.Config(6, 5, 2, 5)),
    "seq2seq": (seq2seq, seq2seq.Config(6, 3, 4, 2, 5)),
}
CHOICES = [1, 2, 3, 4, 5, 9, ("attention",), ("feed_forward",), ("attention", "feed_forward", "norms")]


def drawn(name, dtype="float64"):
    """A network, its parameters, its inputs, and the gradient of its output if it has no loss."""
    module, config = CONFIGS[name]
    rng = np.random.default_rng(5)
    rows = [rng.standard_normal((2, s, 6)).astype(dtype) for s in (4, 3, 3)]
    w = {key: value.astype(dtype) for key, value in parameters_of(module, config).items()}
    if module is seq2seq:
        return module, config, w, tuple(rows[:2]), rows[2]
    if module is encoder:
        return module, config, w, tuple(rows[1:2]), rows[2]
    return module, config, w, batch_of(config), None


def step(name, dtype="float64", flash=False, wanted=None, **options):
    """The output and the gradients."""
    module, config, w, inputs, dy = drawn(name, dtype)
    options |= {"masks": (3, 1)} if "dropout" in name else {}
    y, saved = module.forward(w, *inputs, config=config, flash=flash, wanted=wanted, **options)
    found = module.backward(saved) if dy is None else module.backward(dy, saved)
    *arrays, gradients = found if isinstance(found, tuple) else (found,)
    return [y, *arrays, *(gradients[key] for key in sorted(gradients))]


def equal(found, expected):
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


WANTED = {
    "all": lambda names: None,
    "last": lambda names: names[-1:],
    "second half": lambda names: names[len(names) // 2 :],
    "last but one": lambda names: names[-2:-1],
    "every third": lambda names: names[1::3],
}


@pytest.mark.parametrize(
    ("name", "recompute", "wanted", "dtype", "flash"),
    pairs(CONFIGS, CHOICES, WANTED, ("float64", "float32"), (False, True), of=("backpass.models",)),
    ids=str,
)
def test_the_bits_are_those_of_the_plain_run(name, recompute, wanted, dtype, flash):
    module, config = CONFIGS[name]
    options = {"wanted": WANTED[wanted]([*module.parameter_shapes(config)])}
    options |= {"dtype": dtype, "flash": flash}
    assert equal(step(name, recompute=recompute, **options), step(name, **options))


@pytest.mark.parametrize(
    ("name", "recompute", "wanted"),
    pairs(
        ("gpt2", "gpt2, dropout", "qwen3"),
        CHOICES,
        ("all", "second half", "last but one"),
        of=("backpass.models",),
    ),
    ids=str,
)
def test_it_costs_the_flops_of_the_tally(name, recompute, wanted):
    """Those of a frozen layer, or of an operation without a gradient, are not among them."""
    module, config, w, inputs, _ = drawn(name)
    wanted = WANTED[wanted]([*w])
    distinct = {"distinct": len(np.unique(inputs[0]))}
    masks, dropped = ({"masks": (3, 1)}, {"masks": True}) if "dropout" in name else ({}, {})
    options = {"config": config, "flash": False, "chunked": False, "wanted": wanted, **masks}
    arrays = {key: counting.array(value) for key, value in w.items()}
    with counting.tally() as forward:
        _, saved = module.forward(arrays, *map(counting.array, inputs), recompute=recompute, **options)
    with counting.tally() as backward:
        module.backward(saved)
    expected = cost.tally(config, 2, 5, recompute=recompute, wanted=wanted, **distinct, **dropped).flops()
    assert forward.total == expected["forward"]
    assert backward.total == expected["backward"] + expected["recomputation"]


def bytes_of(name, **options):
    module, config, w, inputs, _ = drawn(name)
    options |= {"masks": (3, 1)} if "dropout" in name else {}
    _, saved = module.forward(w, *inputs, config=config, flash=False, **options)
    return network_memory(config, saved, w).activations


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["gpt2", "gpt2, dropout", "qwen3"])
def test_a_segment_saves_its_input(name, k):
    module, config = CONFIGS[name]
    none = (module, replace(config, layers=1))
    rows = 8 * 2 * 5 * config.width
    layer = (bytes_of(name) - _bytes_at(none, name)) // 4
    assert bytes_of(name) - bytes_of(name, recompute=k) == 5 * layer - rows * -(-5 // k)


def _bytes_at(network, name):
    module, config = network
    _, _, _, inputs, _ = drawn(name)
    w = parameters_of(module, config)
    options = {"masks": (3, 1)} if "dropout" in name else {}
    _, saved = module.forward(w, *inputs, config=config, flash=False, **options)
    return network_memory(config, saved, w).activations


@pytest.mark.parametrize(
    "operation, shapes, options",
    [
        (attention, [(2, 3, 4, 5)] * 3, {"causal": True}),
        (feed_forward, [(4, 6), (6, 9), (9, 6), (9,), (6,)], {"activation": "gelu_tanh"}),
        (layer_norm, [(4, 6), (6,), (6,)], {"eps": 1e-5}),
    ],
)
def test_an_operation_saves_its_inputs(operation, shapes, options):
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(shape) for shape in shapes]
    wanted = operation.forward(*inputs, **options)[1].wanted
    y, saved = Recomputed(operation).forward(*inputs, wanted=wanted, **options)
    plain, own = operation.forward(*inputs, **options)
    dy = rng.standard_normal(y.shape)
    assert np.array_equal(y, plain)
    assert all(found is given for found, given in zip(saved.inputs, inputs, strict=True))
    found, expected = (operation.backward(dy, each) for each in (saved.again(), own))
    assert all(a is b or np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "recompute, error, words",
    [
        (0, ValueError, "recompute: expected a segment of at least 1 layer; got 0"),
        (True, TypeError, "recompute: expected the number of layers"),
        ("attention", TypeError, "such as .'attention',.*got 'attention'"),
        (2.0, TypeError, "got 2.0"),
        (
            ("attention", "gelu"),
            ValueError,
            "expected names among attention, feed_forward, norms; got 'gelu'",
        ),
    ],
)
def test_what_is_invalid_is_rejected(recompute, error, words):
    with pytest.raises(error, match=words):
        step("gpt2", recompute=recompute)


def observed():
    """Gradients, saved bytes, and FLOPs of steps, with layers and with operations that run again."""
    found = []
    for name, recompute in (("gpt2, dropout", 2), ("qwen3", ("attention", "norms"))):
        module, config, w, inputs, _ = drawn(name)
        arrays = {key: counting.array(value) for key, value in w.items()}
        for wanted in (None, [*w][len(w) // 3 :]):
            found += step(name, recompute=recompute, wanted=wanted)
            options = {"config": config, "flash": False, "recompute": recompute, "wanted": wanted}
            found.append(network_memory(config, module.forward(w, *inputs, **options)[1], w).activations)
            _, saved = module.forward(arrays, *map(counting.array, inputs), **options)
            with counting.tally() as backward:
                module.backward(saved)
            found.append(backward.total)
    return found


# Why no observation can tell these changes from the original.
EQUIVALENT = {
    "stacked": {
        "layer(x, wanted=()) → layer(x)": "What the layer saves is dropped at once.",
        "tuple(layers[start:start + every]) → layers[start:start + every]": "Only its order is read.",
    },
    "forward": {
        "self.operation.forward(*inputs, wanted=(), **options) → self.operation.forward(*inputs, **options)": (
            "What the operation saves is dropped at once."
        ),
    },
}


@pytest.fixture(scope="module")
def as_it_is():
    """The observations of the unchanged code."""
    return observed()


@pytest.mark.parametrize(
    ("owner", "name"),
    [(recomputed, "stacked"), (Segment, "pop"), (Saved, "again"), (Recomputed, "forward")],
    ids=lambda value: getattr(value, "__name__", value).rpartition(".")[2],
)
def test_every_change_is_noticed(owner, name, as_it_is, monkeypatch, proof):
    equivalent, survivors = EQUIVALENT.get(name, {}).keys(), set()
    key = f"recomputed.{name}"
    for mutant in proof.part(key, mutants(getattr(owner, name)), of=[getattr(owner, name)]):
        scope = dict(vars(recomputed))
        try:
            exec(compile(mutant.tree, f"<{name}>", "exec"), scope)
        except SyntaxError:  # a starred expression by itself
            continue
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, scope[name])
            if name == "stacked":
                patched.setattr(stacks, name, scope[name])
            try:
                noticed = not equal(observed(), as_it_is)
            except Exception:
                noticed = True
            if not noticed:
                survivors.add(mutant.change)
    assert survivors == equivalent if proof.whole else survivors <= equivalent
