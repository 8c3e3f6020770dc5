"""A layer's FLOP formulas equal what is counted, with every option and for every gradient that is wanted."""

import numpy as np
import pytest

from backpass import cost
from backpass.contract.shapes import parse
from backpass.models.layers import (
    decoder_layer,
    encoder_layer,
    gpt2_attention,
    gpt2_layer,
    llama_attention,
    llama_layer,
    output_head,
    transformer_attention,
)

from .test_layers import GPT2, LLAMA, LLAMAS, QWEN2, draw

STACK = {"*": (2,), "s": 3, "t": 5, "h": 4, "p": 12, "f": 7}
DROPOUT = {"attention_dropout": 0.2, "residual_dropout": 0.3}
ALONE = ("memory",)
CASES = [
    (output_head, {"*": (2, 3), "h": 4, "V": 5}, (), {}),
    (output_head, {"*": (2, 3), "h": 4, "V": 5}, (), {"chunked": False}),
    (gpt2_attention, GPT2, (), {"heads": 2}),
    (gpt2_attention, GPT2, (), {"heads": 2, "flash": False, "dropout_p": 0.3}),
    (gpt2_attention, GPT2, (), {"heads": 2, "dropout_p": 0.3}),
    (gpt2_layer, GPT2, (), {"heads": 2}),
    (gpt2_layer, GPT2, (), {"heads": 1, "flash": False, **DROPOUT}),
    (llama_attention, LLAMA, LLAMAS, {}),
    (llama_attention, LLAMA, (), {"flash": False}),
    (llama_layer, LLAMA, QWEN2, {"flash": False}),
    (llama_layer, LLAMA, (), {}),
    (transformer_attention, STACK, (), {"heads": 2}),
    (transformer_attention, STACK, ALONE, {"heads": 4, "causal": True, "flash": False}),
    (encoder_layer, STACK, (), {"heads": 2}),
    (encoder_layer, STACK, (), {"heads": 2, "norm_first": True, "flash": False}),
    (decoder_layer, STACK, (), {"heads": 2}),
    (decoder_layer, STACK, (), {"heads": 2, "norm_first": True, "flash": False}),
]


@pytest.mark.parametrize(
    ("layer", "lengths", "left_out", "options"), CASES, ids=lambda part: getattr(part, "__name__", "")[-15:]
)
def test_the_formulas_are_what_is_counted(layer, lengths, left_out, options):
    inputs = draw(layer, lengths, left_out)
    names = [spec.name for spec in parse(layer.SHAPES).inputs if spec.name not in left_out]
    given = [name for name in names if name not in ("cos", "sin", "t")]
    rng = np.random.default_rng(0)
    chosen = [None, *([name] for name in rng.permutation(given)[:4]), ["x", given[-1]], given[1:]]
    for wanted in chosen:
        counted = cost.count(layer, *inputs, **options, wanted=wanted)
        formula = cost.formula(layer, *inputs, **options, wanted=wanted)
        assert (counted.forward.total, counted.backward.total) == formula, wanted


def test_symbols_need_plain_attention():
    with pytest.raises(ValueError, match="flash: expected False where lengths are symbols, as m is"):
        cost.symbolic_formula(gpt2_layer)
    forward, backward = cost.symbolic_formula(gpt2_layer, flash=False)
    at = {"m": 2, "s": 3, "h": 4, "q": 8, "f": 5, "heads": 2}
    expected = cost.formula(gpt2_layer, *draw(gpt2_layer, GPT2, ()), heads=2, flash=False)
    symbols = {symbol: at[symbol.name] for symbol in forward.free_symbols}
    assert (forward.subs(symbols), backward.subs(symbols)) == expected
