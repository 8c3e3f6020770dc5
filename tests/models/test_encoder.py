"""What the encoder promises beside agreeing with PyTorch: the bias on the keys, faults, and its layers' own checks."""

import dataclasses

import numpy as np
import pytest

from backpass.models import encoder, gpt2
from backpass.models.layers import encoder_layer, transformer_attention
from backpass.verify import check

from .small import drawn
from .stacks import drawn_stack, step
from .test_layers import draw

Config = encoder.Config


def test_the_bias_on_the_keys_has_gradient_0():
    config, parameters, x, dy = drawn_stack("encoder, heads")
    _, _, gradients = step(parameters, x, dy, config=config)
    db_q, db_k, db_v = np.split(gradients["layers.1.self_attn.in_proj_bias"], 3)
    assert (db_k == 0).all() and (db_q != 0).all() and (db_v != 0).all()


def test_faults_of_the_parameters_are_named_at_once():
    config, parameters, x, _ = drawn_stack("encoder, final norm")
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
    config, parameters, x, dy = drawn_stack("encoder, heads")
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
    config, parameters, x, dy = drawn_stack("encoder, heads")
    _, saved = encoder.forward(parameters, x, config=config)
    with pytest.raises(ValueError, match="dy: expected the output's shape"):
        encoder.backward(dy[:1], saved)
    dx, _ = encoder.backward(dy, saved)
    assert dx.shape == x.shape
