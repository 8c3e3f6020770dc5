"""What the encoder and decoder promise together beside agreeing with PyTorch: the memory's gradient, faults, and the
layer's own check."""

import numpy as np
import pytest

from backpass.models import encoder, seq2seq
from backpass.models.layers import decoder_layer
from backpass.verify import check

from .stacks import drawn_stack, step
from .test_layers import draw

Config = seq2seq.Config


def test_the_memorys_gradient_is_the_sum_over_the_layers(monkeypatch):
    """The encoder receives it, and no layer's share is 0."""
    config, parameters, *arrays = drawn_stack("both, three layers")
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


def test_faults():
    config, parameters, source, target, dy = drawn_stack("both, heads")
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
