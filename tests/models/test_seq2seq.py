"""The encoder and decoder agree with PyTorch's ``Transformer``: the output, the gradients of source and target, and every
parameter's gradient. Without PyTorch, they agree with a complex step through both stacks."""

import functools

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.models import encoder, seq2seq
from backpass.models.layers import decoder_layer
from backpass.verify import check

from .pytorch import (
    arrays_of,
    assert_as_exact,
    assert_equal,
    by_autograd,
    parameters_of,
    slopes,
    with_parameters,
)
from .test_layers import draw

Config = seq2seq.Config
# Configuration, leading axes, and the lengths of source and target.
CASES = {
    "one head": (Config(6, 1, 1, 1, 9), (2,), 5, 3),
    "heads": (Config(12, 1, 2, 3, 7), (2,), 4, 7),
    "three layers": (Config(8, 2, 3, 4, 5, eps=1e-3), (2,), 7, 5),
    "one row": (Config(6, 2, 2, 2, 5), (3,), 1, 1),
    "one head, norm first": (Config(6, 1, 1, 1, 9, norm_first=True), (2,), 3, 5),
    "heads, norm first": (Config(12, 2, 1, 3, 7, norm_first=True), (2,), 7, 4),
    "three layers, norm first": (Config(8, 1, 3, 8, 5, norm_first=True, eps=1e-3), (), 5, 9),
    "one target, norm first": (Config(6, 1, 2, 3, 5, norm_first=True), (3,), 5, 1),
}
EVERY = pytest.mark.parametrize("name", CASES)
SMALL = pytest.mark.parametrize("name", ["one row", "heads, norm first"])


def drawn_stacks(name, seed=1):
    """The configuration, the parameters, the source, the target, and the gradient of the output."""
    config, leading, t, s = CASES[name]
    rng = np.random.default_rng(seed)
    source, target, dy = (rng.standard_normal((*leading, n, config.width)) for n in (t, s, s))
    return config, parameters_of(seq2seq, config), source, target, dy


def step(parameters, source, target, dy, **options):
    """The output, the gradients of source and target, and the parameters' gradients."""
    y, saved = seq2seq.forward(parameters, source, target, **options)
    return y, *seq2seq.backward(dy, saved)


def pytorchs(config, parameters):
    c = config
    stacks = torch.nn.Transformer(
        c.width,
        c.heads,
        c.encoder_layers,
        c.decoder_layers,
        c.feed_forward,
        dropout=0.0,
        layer_norm_eps=c.eps,
        norm_first=c.norm_first,
        batch_first=True,
        dtype=torch.float64,
    )
    return with_parameters(stacks, parameters)


def autograds(stacks, source, target, dy):
    mask = torch.nn.Transformer.generate_square_subsequent_mask(target.shape[-2], dtype=target.dtype)
    return by_autograd(stacks, [source, target], dy, tgt_mask=mask)


pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")


@EVERY
def test_it_is_pytorchs(name):
    config, parameters, *arrays = drawn_stacks(name)
    before = {name: array.copy() for name, array in parameters.items()}
    tensors = {name: torch.tensor(array) for name, array in parameters.items()}
    of_torch = [*map(torch.tensor, arrays)]
    expected = autograds(pytorchs(config, parameters), *of_torch)
    for options in ({}, {"flash": False}):
        found = step(parameters, *arrays, config=config, **options)
        assert all(type(d) is np.ndarray and d.dtype == np.float64 for d in found[3].values())
        assert_equal(found, expected)
        assert_equal(step(tensors, *of_torch, config=config, **options), expected)
    for name, array in parameters.items():
        np.testing.assert_array_equal(array, before[name])


@EVERY
def test_parameters_have_pytorchs_names_shapes_and_order(name):
    config, parameters, *_ = drawn_stacks(name)
    expected = {name: tuple(p.shape) for name, p in pytorchs(config, parameters).named_parameters()}
    assert [*seq2seq.parameter_shapes(config).items()] == [*expected.items()]


@EVERY
def test_complex_step(name):
    config, parameters, source, target, dy = drawn_stacks(name)
    found = slopes(
        functools.partial(seq2seq.forward, config=config),
        lambda saved: seq2seq.backward(dy, saved),
        {**parameters, "source": source, "target": target},
        parameters,
        dy,
    )
    for name, step, slope, size in found:
        assert size > 0
        assert step == pytest.approx(slope, abs=1e-12 * size), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
def test_as_exact_as_autograd(norm_first, dtype):
    config = Config(48, 1, 2, 4, 80, norm_first=norm_first)
    draws = []
    for seed in range(8):
        stacks = pytorchs(config, parameters_of(seq2seq, config, seed)).to(dtype)
        rows = np.random.default_rng(seed + 8).standard_normal((3, 3, 24, config.width))
        arrays = torch.tensor(rows).to(dtype)
        state = {name: p.detach().clone() for name, p in stacks.named_parameters()}
        found = [step(state, *arrays, config=config, flash=flash) for flash in (True, False)]
        autograd = autograds(stacks, *arrays)
        exact = autograds(stacks.double(), *arrays.double())
        assert all(d.dtype == dtype for ours in found for d in arrays_of(ours))
        draws.append([(ours, autograd, exact) for ours in found])
    for of_option in zip(*draws, strict=True):
        assert_as_exact(of_option)


def test_the_memorys_gradient_is_the_sum_over_the_layers(monkeypatch):
    """The encoder receives it, and no layer's share is 0."""
    config, parameters, *arrays = drawn_stacks("three layers")
    shares, received = [], []
    of_layer, of_encoder = decoder_layer.backward, encoder.backward

    def observed(dy, saved, **options):
        gradients = of_layer(dy, saved, **options)
        shares.append(gradients[1])
        return gradients

    def receives(dy, saved):
        received.append(dy)
        return of_encoder(dy, saved)

    monkeypatch.setattr(decoder_layer, "backward", observed)
    monkeypatch.setattr(encoder, "backward", receives)
    step(parameters, *arrays, config=config)
    assert len(shares) == 3 and all((share != 0).all() for share in shares)
    np.testing.assert_allclose(received[0], sum(shares), rtol=1e-14)


@SMALL
def test_other_libraries_compute_the_same(name):
    config, parameters, *arrays = drawn_stacks(name)
    expected = step(parameters, *arrays, config=config)
    for library, to_numpy in (
        (counting.array, lambda array: array.to_numpy()),
        (array_api_strict.asarray, np.asarray),
    ):
        ours = {name: library(array) for name, array in parameters.items()}
        *found, gradients = step(ours, *map(library, arrays), config=config)
        found.append({name: to_numpy(d) for name, d in gradients.items()})
        assert_equal([*map(to_numpy, found[:3]), found[3]], expected)


@SMALL
def test_wanted_gradients_are_those_of_all_and_the_others_are_absent(name):
    config, parameters, *arrays = drawn_stacks(name)
    *expected, gradients = step(parameters, *arrays, config=config)
    names = [*gradients]
    for wanted in [{name} for name in names] + [{*names[::3]}, set()]:
        *found, some = step(parameters, *arrays, config=config, wanted=wanted)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert some.keys() == wanted
        for name, gradient in some.items():
            np.testing.assert_array_equal(gradient, gradients[name])


def test_faults():
    config, parameters, source, target, dy = drawn_stacks("heads")
    wrong = dict(parameters)
    del wrong["encoder.norm.bias"]
    wrong["decoder.layers.0.linear1.weight"] = wrong["decoder.layers.0.linear1.weight"].T
    wrong["decoder.layers.2.linear1.weight"] = wrong["decoder.layers.1.linear1.weight"]
    with pytest.raises(ValueError) as raised:
        seq2seq.forward(wrong, source, target, config=config)
    assert str(raised.value).splitlines() == [
        "parameters: they do not fit the configuration:",
        "    decoder.layers.2.linear1.weight: is not a parameter; did you mean "
        "'decoder.layers.1.linear1.weight'?",
        "    encoder.norm.bias: is missing",
        "    decoder.layers.0.linear1.weight: expected shape [7, 12]; got shape [12, 7]",
    ]
    for arrays, message in (
        (
            (source[..., 1:], target),
            r"source: expected source\[\*, t, h\] with h = 12.*; got shape \[2, 4, 11\]",
        ),
        (
            (source, target[..., 1:]),
            r"target: expected target\[\*, s, h\] with h = 12.*; got shape \[2, 7, 11\]",
        ),
        ((source[:1], target), r"target: expected target\[\*, s, h\] .*; got shape \[2, 7, 12\]"),
    ):
        with pytest.raises(ValueError, match=message):
            seq2seq.forward(parameters, *arrays, config=config)
    _, saved = seq2seq.forward(parameters, source, target, config=config)
    seq2seq.backward(dy, saved)
    assert saved.parts == saved.encoded.parts == []
    with pytest.raises(ValueError, match="saved: backward frees what forward saved and has already run"):
        seq2seq.backward(dy, saved)
    for sizes, error, message in (
        ((6, 2, 2, 4, 5), ValueError, "heads: expected a divisor of width = 6; got 4"),
        ((6, 2, 0, 2, 5), ValueError, "decoder_layers: expected an integer of at least 1; got 0"),
        ((6, 2, 2, 2, 5, 0.0, 1), TypeError, "norm_first: expected True or False; got int"),
    ):
        with pytest.raises(error, match=message):
            Config(*sizes)


LENGTHS = {"*": (2,), "s": 3, "t": 5, "h": 4, "p": 12, "f": 5}


@pytest.mark.parametrize("options", [{"heads": 2}, {"heads": 4, "flash": False, "norm_first": True}], ids=str)
def test_check_accepts_a_layer_of_the_decoder(options):
    inputs = draw(decoder_layer, LENGTHS, ())
    methods = ["contract", "complex_step", "autograd"]
    report = check(decoder_layer, *inputs, methods=methods, options=options)
    assert sum(row.verdict == "passed" for row in report.rows) == 1 + 2 * len(inputs)
