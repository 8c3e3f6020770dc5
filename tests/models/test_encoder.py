"""The encoder agrees with PyTorch's ``TransformerEncoder``: output, input's gradient, and every parameter's gradient.
Without PyTorch, it agrees with a complex step through the whole stack."""

import dataclasses
import functools

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.models import encoder, gpt2
from backpass.models.layers import encoder_layer, transformer_attention
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
from .small import drawn
from .test_layers import draw

Config = encoder.Config
CASES = {
    "one head": (Config(6, 1, 1, 9), (2, 5)),
    "heads": (Config(12, 2, 3, 7), (2, 7)),
    "three layers": (Config(8, 3, 4, 5, eps=1e-3), (2, 9)),
    "final norm": (Config(6, 2, 2, 5, final_norm=True), (3,)),
    "one row": (Config(6, 2, 2, 5), (3, 1)),
    "one head, norm first": (Config(6, 1, 1, 9, norm_first=True), (2, 5)),
    "heads, norm first": (Config(12, 2, 3, 7, norm_first=True), (2, 7)),
    "three layers, norm first": (Config(8, 3, 8, 5, norm_first=True, eps=1e-3), (9,)),
    "final norm, norm first": (Config(6, 2, 2, 5, norm_first=True, final_norm=True), (2, 3)),
    "one row, norm first": (Config(6, 2, 3, 5, norm_first=True), (3, 1)),
}
EVERY = pytest.mark.parametrize("name", CASES)
SMALL = pytest.mark.parametrize("name", ["final norm", "final norm, norm first"])


def drawn_stack(name, seed=1):
    """The configuration, the parameters, the rows, and the gradient of the output."""
    config, leading = CASES[name]
    x, dy = np.random.default_rng(seed).standard_normal((2, *leading, config.width))
    return config, parameters_of(encoder, config), x, dy


def step(parameters, x, dy, **options):
    """The output, the input's gradient, and the parameters' gradients."""
    y, saved = encoder.forward(parameters, x, **options)
    return y, *encoder.backward(dy, saved)


def pytorchs(config, parameters):
    c = config
    layer = torch.nn.TransformerEncoderLayer(
        c.width,
        c.heads,
        c.feed_forward,
        dropout=0.0,
        layer_norm_eps=c.eps,
        norm_first=c.norm_first,
        batch_first=True,
        dtype=torch.float64,
    )
    norm = torch.nn.LayerNorm(c.width, eps=c.eps, dtype=torch.float64) if c.final_norm else None
    stack = torch.nn.TransformerEncoder(layer, c.layers, norm=norm, enable_nested_tensor=False)
    return with_parameters(stack, parameters)


@EVERY
def test_it_is_pytorchs(name):
    config, parameters, x, dy = drawn_stack(name)
    before = {name: array.copy() for name, array in parameters.items()}
    tensors = {name: torch.tensor(array) for name, array in parameters.items()}
    stack = pytorchs(config, parameters)
    expected = by_autograd(stack, [torch.tensor(x)], torch.tensor(dy))
    for options in ({}, {"flash": False}):
        found = step(parameters, x, dy, config=config, **options)
        assert all(type(d) is np.ndarray and d.dtype == np.float64 for d in found[2].values())
        assert_equal(found, expected)
        assert_equal(step(tensors, torch.tensor(x), torch.tensor(dy), config=config, **options), expected)
    for name, array in parameters.items():
        np.testing.assert_array_equal(array, before[name])


@EVERY
def test_parameters_have_pytorchs_names_shapes_and_order(name):
    config, parameters, *_ = drawn_stack(name)
    expected = {name: tuple(p.shape) for name, p in pytorchs(config, parameters).named_parameters()}
    assert [*encoder.parameter_shapes(config).items()] == [*expected.items()]


def test_the_bias_on_the_keys_has_gradient_0():
    config, parameters, x, dy = drawn_stack("heads")
    _, _, gradients = step(parameters, x, dy, config=config)
    db_q, db_k, db_v = np.split(gradients["layers.1.self_attn.in_proj_bias"], 3)
    assert (db_k == 0).all() and (db_q != 0).all() and (db_v != 0).all()


@EVERY
def test_complex_step(name):
    config, parameters, x, dy = drawn_stack(name)
    found = slopes(
        functools.partial(encoder.forward, config=config),
        lambda saved: encoder.backward(dy, saved),
        {**parameters, "x": x},
        parameters,
        dy,
    )
    for name, step, slope, size in found:
        assert size > 0
        assert step == pytest.approx(slope, abs=1e-12 * size), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
def test_as_exact_as_autograd(norm_first, dtype):
    config = Config(48, 2, 4, 80, norm_first=norm_first, final_norm=norm_first)
    draws = []
    for seed in range(8):
        stack = pytorchs(config, parameters_of(encoder, config, seed)).to(dtype)
        rows = np.random.default_rng(seed + 8).standard_normal((2, 3, 24, config.width))
        x, dy = torch.tensor(rows).to(dtype)
        state = {name: p.detach().clone() for name, p in stack.named_parameters()}
        found = [step(state, x, dy, config=config, flash=flash) for flash in (True, False)]
        autograd = by_autograd(stack, [x], dy)
        exact = by_autograd(stack.double(), [x.double()], dy.double())
        assert all(d.dtype == dtype for ours in found for d in arrays_of(ours))
        draws.append([(ours, autograd, exact) for ours in found])
    for of_option in zip(*draws, strict=True):
        assert_as_exact(of_option)


@SMALL
def test_other_libraries_compute_the_same(name):
    config, parameters, x, dy = drawn_stack(name)
    expected = step(parameters, x, dy, config=config)
    for library, to_numpy in (
        (counting.array, lambda array: array.to_numpy()),
        (array_api_strict.asarray, np.asarray),
    ):
        ours = {name: library(array) for name, array in parameters.items()}
        y, dx, gradients = step(ours, library(x), library(dy), config=config)
        found = {name: to_numpy(d) for name, d in gradients.items()}
        assert_equal((to_numpy(y), to_numpy(dx), found), expected)


@SMALL
def test_wanted_gradients_are_those_of_all_and_the_others_are_absent(name):
    config, parameters, x, dy = drawn_stack(name)
    y, dx, gradients = step(parameters, x, dy, config=config)
    names = [*gradients]
    for wanted in [{name} for name in names] + [{*names[::3]}, set()]:
        same, same_dx, found = step(parameters, x, dy, config=config, wanted=wanted)
        np.testing.assert_array_equal(same, y)
        np.testing.assert_array_equal(same_dx, dx)
        assert found.keys() == wanted
        for name, gradient in found.items():
            np.testing.assert_array_equal(gradient, gradients[name])


def test_faults_of_the_parameters_are_named_at_once():
    config, parameters, x, _ = drawn_stack("final norm")
    wrong = dict(parameters)
    del wrong["layers.1.norm2.bias"]
    wrong["layers.0.linear3.weight"] = wrong["layers.0.linear1.weight"]
    wrong["layers.0.linear1.weight"] = wrong["layers.0.linear1.weight"].T
    wrong["layers.1.linear1.bias"] = wrong["layers.1.linear1.bias"].astype(np.float32)
    with pytest.raises(ValueError) as raised:
        encoder.forward(wrong, x, config=config)
    assert str(raised.value).splitlines() == [
        "parameters: they do not fit the configuration:",
        "    layers.0.linear3.weight: is not a parameter; did you mean 'layers.0.linear2.weight'?",
        "    layers.1.norm2.bias: is missing",
        "    layers.0.linear1.weight: expected shape [5, 6]; got shape [6, 5]",
        "    layers.1.linear1.bias: expected numpy cpu float64, as layers.0.self_attn.in_proj_weight; "
        "got numpy cpu float32",
    ]
    fewer = dataclasses.replace(config, final_norm=False)
    with pytest.raises(
        ValueError, match=r"norm.weight: is not a parameter.*\n.*norm.bias: is not a parameter"
    ):
        encoder.forward(parameters, x, config=fewer)


def test_other_faults():
    config, parameters, x, dy = drawn_stack("heads")
    with pytest.raises(ValueError, match=r"x: expected x\[\*, s, h\] with h = 12.*; got shape \[2, 7, 11\]"):
        encoder.forward(parameters, x[..., 1:], config=config)
    with pytest.raises(TypeError, match="x: expected norm1's dtype, float64; got float32"):
        encoder.forward(parameters, x.astype(np.float32), config=config)
    with pytest.raises(ValueError, match="wanted: expected names of parameters; got 'x'"):
        encoder.forward(parameters, x, config=config, wanted=["x"])
    with pytest.raises(ValueError, match=r"dy: expected the output's shape \[2, 7, 12\]; got"):
        encoder.backward(dy[0], encoder.forward(parameters, x, config=config)[1])
    _, saved = encoder.forward(parameters, x, config=config)
    encoder.backward(dy, saved)
    assert saved.parts == []
    with pytest.raises(ValueError, match="saved: backward frees what forward saved and has already run"):
        encoder.backward(dy, saved)
    module, other, weights, batch = drawn("gpt2")
    assert module is gpt2
    with pytest.raises(TypeError, match="saved: expected what forward returned second"):
        encoder.backward(dy, gpt2.forward(weights, *batch, config=other)[1])


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((6, 2, 4, 5), ValueError, "heads: expected a divisor of width = 6; got 4"),
        ((6, 0, 2, 5), ValueError, "layers: expected an integer of at least 1; got 0"),
        ((6, 2, 2, 5, -1.0), ValueError, "eps: expected a finite number of at least 0; got -1.0"),
        ((6, 2, 2, 5, 0.0, 1), TypeError, "norm_first: expected True or False; got int"),
    ],
)
def test_configurations_that_do_not_fit(sizes, error, message):
    with pytest.raises(error, match=message):
        Config(*sizes)


LENGTHS = {"*": (2,), "s": 3, "t": 5, "h": 4, "p": 12, "f": 5}
LAYERS = [
    (transformer_attention, LENGTHS, ("memory",), {"heads": 2}),
    (transformer_attention, LENGTHS, ("memory",), {"heads": 1, "causal": True, "flash": False}),
    (transformer_attention, LENGTHS, (), {"heads": 4}),
    (transformer_attention, LENGTHS | {"*": ()}, (), {"heads": 2, "flash": False}),
    (encoder_layer, LENGTHS, (), {"heads": 2}),
    (encoder_layer, LENGTHS | {"*": ()}, (), {"heads": 4, "flash": False, "eps": 1e-3, "norm_first": True}),
]


@pytest.mark.parametrize(
    ("layer", "lengths", "left_out", "options"), LAYERS, ids=lambda part: getattr(part, "__name__", "")[-21:]
)
def test_check_accepts_each_layer(layer, lengths, left_out, options):
    inputs = draw(layer, lengths, left_out)
    methods = ["contract", "complex_step", "autograd"]
    report = check(layer, *inputs, methods=methods, options=options)
    given = sum(array is not None for array in inputs)
    assert sum(row.verdict == "passed" for row in report.rows) == 1 + 2 * given


def test_faults_of_the_layers():
    x, w_qkv, b_qkv, *rest = draw(transformer_attention, LENGTHS, ())
    with pytest.raises(ValueError, match="heads: expected a divisor of h = 4; got 3"):
        transformer_attention.forward(x, w_qkv, b_qkv, *rest, heads=3)
    with pytest.raises(ValueError, match=r"w_qkv: expected w_qkv\[3h, h\] with 3h = 12; got shape \[8, 4\]"):
        transformer_attention.forward(x, w_qkv[:8], b_qkv[:8], *rest, heads=2)
    with pytest.raises(TypeError, match="causal: expected True or False; got int"):
        transformer_attention.forward(x, w_qkv, b_qkv, *rest, heads=2, causal=1)
    with pytest.raises(TypeError, match="norm_first: expected True or False; got str"):
        encoder_layer.forward(*draw(encoder_layer, LENGTHS, ()), heads=2, norm_first="yes")


def test_a_wrong_cotangent_spoils_nothing():
    """It is rejected before the backward frees what the forward saved."""
    config, parameters, x, dy = drawn_stack("heads")
    _, saved = encoder.forward(parameters, x, config=config)
    with pytest.raises(ValueError, match="dy: expected the output's shape"):
        encoder.backward(dy[:1], saved)
    dx, _ = encoder.backward(dy, saved)
    assert dx.shape == x.shape
