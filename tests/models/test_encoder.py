"""The encoder is PyTorch's ``TransformerEncoder``: its output, the gradient of its input, and that of every parameter.
Without PyTorch, a complex step through the whole stack."""

import dataclasses
import re

import array_api_strict
import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.models import encoder, gpt2
from backpass.models.layers import encoder_layer, transformer_attention
from backpass.verify import check

from .small import drawn
from .test_layers import draw

TOLERANCE = 1e-10  # of the largest element
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


def drawn_stack(name, seed=0):
    """The configuration, parameters of which none is 0 or 1, the rows, and the gradient of the output."""
    config, leading = CASES[name]
    rng = np.random.default_rng(seed)
    parameters = {
        name: rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 9)
        + bool(re.search(r"norm\d?\.weight", name))
        for name, shape in encoder.parameter_shapes(config).items()
    }
    x, dy = rng.standard_normal((2, *leading, config.width))
    return config, parameters, x, dy


def step(parameters, x, dy, **options):
    """The output, the input's gradient, and the parameters' gradients."""
    y, saved = encoder.forward(parameters, x, **options)
    return y, *encoder.backward(dy, saved)


def pytorchs(config, parameters, dtype=torch.float64):
    """PyTorch's stack with these parameters. It trains, so that it takes no shortcut that rounds differently."""
    c = config
    layer = torch.nn.TransformerEncoderLayer(
        c.width,
        c.heads,
        c.feed_forward,
        dropout=0.0,
        layer_norm_eps=c.eps,
        norm_first=c.norm_first,
        batch_first=True,
    )
    norm = torch.nn.LayerNorm(c.width, eps=c.eps) if c.final_norm else None
    stack = torch.nn.TransformerEncoder(layer, c.layers, norm=norm, enable_nested_tensor=False).to(dtype)
    stack.load_state_dict({name: torch.tensor(array) for name, array in parameters.items()})
    return stack


def by_autograd(stack, x, dy):
    stack.zero_grad()
    x = x.clone().requires_grad_()
    y = stack(x)
    y.backward(dy)
    return y.detach(), x.grad, {name: p.grad.clone() for name, p in stack.named_parameters()}


def parts_of(gradients):
    """The gradients by name; those of the queries, keys, and values apart."""
    parts = {}
    for name, gradient in gradients.items():
        gradient = np.asarray(gradient)
        if "in_proj" in name:
            parts |= {
                f"{name} of {of}": third for of, third in zip("qkv", np.split(gradient, 3), strict=True)
            }
        else:
            parts[name] = gradient
    return parts


def assert_equal(found, expected):
    """Within the tolerance of the largest element; for a gradient that is 0 by derivation, such as that of the bias
    on the keys, of the largest in its layer."""
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(
            np.asarray(ours), theirs, rtol=0, atol=TOLERANCE * float(np.abs(theirs).max())
        )
    assert found[2].keys() == expected[2].keys()
    gradients = parts_of(expected[2])
    largest = {name: np.abs(d).max() for name, d in gradients.items()}
    for name, gradient in parts_of(found[2]).items():
        layer = ".".join(name.split(".")[:2])
        of_layer = max(size for other, size in largest.items() if other.startswith(layer))
        scale = largest[name] if largest[name] > 1e-13 * of_layer else of_layer
        assert gradient.shape == gradients[name].shape
        assert np.abs(gradient - gradients[name]).max() <= TOLERANCE * scale, name


@EVERY
def test_it_is_pytorchs(name):
    config, parameters, x, dy = drawn_stack(name)
    before = {name: array.copy() for name, array in parameters.items()}
    tensors = {name: torch.tensor(array) for name, array in parameters.items()}
    stack = pytorchs(config, parameters)
    y, dx, gradients = by_autograd(stack, torch.tensor(x), torch.tensor(dy))
    expected = y.numpy(), dx.numpy(), gradients
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
    _, dx, gradients = step(parameters, x, dy, config=config)
    rng = np.random.default_rng(2)
    point, gradients = {**parameters, "x": x}, {**gradients, "x": dx}
    for name, gradient in gradients.items():
        along = rng.standard_normal(gradient.shape)
        moved = {other: array.astype(complex) for other, array in point.items()}
        moved[name] = moved[name] + 1e-30j * along
        y, _ = encoder.forward(moved, moved.pop("x"), config=config, wanted=())
        size = np.linalg.norm(gradient) * np.linalg.norm(along)
        assert size > 0
        assert np.sum(dy * y.imag) / 1e-30 == pytest.approx(np.sum(gradient * along), abs=1e-12 * size), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
def test_as_exact_as_autograd(norm_first, dtype):
    """The error is at most twice that of autograd, as a vector."""
    config = Config(48, 2, 4, 80, norm_first=norm_first, final_norm=norm_first)
    rng = np.random.default_rng(3)
    parameters = {
        name: rng.standard_normal(shape) / np.sqrt(shape[-1]) + (len(shape) == 1)
        for name, shape in encoder.parameter_shapes(config).items()
    }
    stack = pytorchs(config, parameters).to(dtype)
    x, dy = torch.tensor(rng.standard_normal((2, 3, 24, config.width))).to(dtype)
    state = {name: p.detach().clone() for name, p in stack.named_parameters()}
    autograd = by_autograd(stack, x, dy)
    exact = by_autograd(stack.double(), x.double(), dy.double())
    for options in ({}, {"flash": False}):
        found = step(state, x, dy, config=config, **options)
        for name in exact[2].keys() | {0, 1}:
            ours, theirs, right = (
                parts[name] if isinstance(name, int) else parts[2][name] for parts in (found, autograd, exact)
            )
            assert ours.dtype == dtype
            error, allowed = (torch.linalg.norm(d.double() - right) for d in (ours, theirs))
            assert error <= 2 * allowed, name


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
        "parameters: they do not fit:",
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
        ((6, 2, 2, 5, -1.0), ValueError, "eps: expected a number of at least 0; got -1.0"),
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
    methods = ["contract", "finite_difference", "complex_step", "autograd"]
    report = check(layer, *inputs, methods=methods, options=options)
    given = sum(array is not None for array in inputs)
    assert sum(row.verdict == "passed" for row in report.rows) == 1 + 3 * given


def test_faults_of_the_layers():
    x, w_qkv, b_qkv, *rest = draw(transformer_attention, LENGTHS, ())
    with pytest.raises(ValueError, match="heads: expected a divisor of h = 4, as in x; got 3"):
        transformer_attention.forward(x, w_qkv, b_qkv, *rest, heads=3)
    with pytest.raises(ValueError, match=r"w_qkv: expected w_qkv\[3h, h\] with 3h = 12; got shape \[8, 4\]"):
        transformer_attention.forward(x, w_qkv[:8], b_qkv[:8], *rest, heads=2)
    with pytest.raises(TypeError, match="causal: expected True or False; got int"):
        transformer_attention.forward(x, w_qkv, b_qkv, *rest, heads=2, causal=1)
    with pytest.raises(TypeError, match="norm_first: expected True or False; got str"):
        encoder_layer.forward(*draw(encoder_layer, LENGTHS, ()), heads=2, norm_first="yes")
