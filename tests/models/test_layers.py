"""A layer is an operation: ``check`` accepts it, with every option and every optional input."""

import numpy as np
import pytest

from backpass.contract.shapes import parse
from backpass.contract.spec import axis_length
from backpass.models.layers import gpt2_attention, gpt2_layer, llama_attention, llama_layer, output_head
from backpass.ops import rope
from backpass.verify import check

GPT2 = {"*": (2,), "s": 3, "h": 4, "q": 8, "p": 24, "f": 5}
LLAMA = {"*": (2,), "s": 3, "h": 5, "k": 2, "q": 8, "p": 4, "f": 6}
QWEN2 = ("norm_q_w", "norm_k_w")
LLAMAS = (*QWEN2, "b_q", "b_k", "b_v")
CASES = [
    (output_head, {"*": (2, 3), "h": 4, "V": 5}, (), {}),
    (output_head, {"*": (2, 3), "h": 4, "V": 5}, (), {"chunked": False}),
    (gpt2_attention, GPT2, (), {"heads": 2}),
    (gpt2_attention, GPT2, (), {"heads": 1, "flash": False}),
    (gpt2_attention, GPT2, (), {"heads": 2, "flash": False, "dropout_p": 0.3, "seed": 4}),
    (gpt2_attention, GPT2, (), {"heads": 2, "dropout_p": 0.3, "seed": 4}),
    (gpt2_layer, GPT2, (), {"heads": 2}),
    (
        gpt2_layer,
        GPT2,
        (),
        {"heads": 2, "flash": False, "attention_dropout": 0.2, "residual_dropout": 0.3, "seed": 5},
    ),
    (gpt2_layer, GPT2 | {"*": ()}, (), {"heads": 4, "flash": False, "eps": 1e-3}),
    (llama_attention, LLAMA, (), {}),
    (llama_attention, LLAMA, LLAMAS, {"flash": False}),
    (llama_attention, LLAMA | {"p": 8}, QWEN2, {}),
    (llama_layer, LLAMA, LLAMAS, {}),
    (llama_layer, LLAMA | {"*": ()}, (), {"eps": 1e-3, "flash": False}),
]


def draw(layer, lengths, left_out, seed=0):
    """Random inputs; weights are divided by the root of their number of columns, and angles are those of positions."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for spec in parse(layer.SHAPES).inputs:
        axes = [lengths["*"] if axis == "*" else (axis_length(axis, lengths),) for axis in spec.axes]
        shape = sum(axes, ())
        if spec.integer:
            inputs[spec.name] = rng.integers(0, 3, shape)
        else:
            inputs[spec.name] = rng.standard_normal(shape) / (
                np.sqrt(shape[-1]) if spec.name[0] == "w" else 1
            )
    if "cos" in inputs:
        inputs["cos"], inputs["sin"] = rope.tables(lengths["s"], 2 * lengths["k"], like=inputs["x"])
    return [None if name in left_out else array for name, array in inputs.items()]


@pytest.mark.parametrize(
    ("layer", "lengths", "left_out", "options"), CASES, ids=lambda part: getattr(part, "__name__", "")[-15:]
)
def test_check_accepts_it(layer, lengths, left_out, options):
    inputs = draw(layer, lengths, left_out)
    methods = ["contract", "finite_difference", "complex_step", "autograd"]
    report = check(layer, *inputs, methods=methods, options=options)
    given = sum(array is not None for array in inputs)
    constants = len(getattr(layer, "CONSTANTS", ())) + (layer is output_head)
    assert sum(row.verdict == "passed" for row in report.rows) == 1 + 3 * (given - constants)


def test_the_head_is_equal_with_symbols():
    report = check(output_head, *draw(*CASES[0][:3]), methods=["symbolic"])
    assert "at shape [2, 3] in place of [2, 3, 4]" in report.rows[0].how


def test_symbols_that_do_not_fit_a_layer_are_not_taken_for_its_inputs():
    inputs = draw(gpt2_attention, GPT2, ())
    (row,) = check(gpt2_attention, *inputs, methods=["symbolic"], options={"heads": 2}, raises=False).rows
    assert row.verdict == "not run"
    assert row.reason == (
        "forward rejects the lengths chosen for the symbols, * = (2,), s = 3, h = 3, p = 5, q = 6, although they fit "
        "SHAPES (ValueError: w_qkv: expected w_qkv[h, 3q] with 3q = 18; got shape [3, 5])"
    )


def test_a_bias_on_gpt2s_keys_has_gradient_0():
    inputs = draw(gpt2_attention, GPT2, ())
    y, saved = gpt2_attention.forward(*inputs, heads=2)
    _, _, db, *_ = gpt2_attention.backward(np.random.default_rng(1).standard_normal(y.shape), saved)
    np.testing.assert_array_equal(db[8:16], 0)
    assert (db[:8] != 0).all() and (db[16:] != 0).all()


def test_faults():
    x, w_qkv, *rest = draw(gpt2_attention, GPT2, ())
    with pytest.raises(ValueError, match=r"dropout_p: expected a probability from 0 to 1; got 1\.1"):
        gpt2_attention.forward(x, w_qkv, *rest, heads=2, dropout_p=1.1)
    every = draw(gpt2_layer, GPT2, ())
    for options, message in (
        ({"attention_dropout": 2}, "attention_dropout: expected a probability from 0 to 1; got 2"),
        ({"residual_dropout": -1}, "residual_dropout: expected a probability from 0 to 1; got -1"),
        ({"seed": -1}, "seed: expected an integer of at least 0; got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            gpt2_layer.forward(*every, heads=2, **options)
    with pytest.raises(ValueError, match="heads: expected a divisor of q = 8; got 3"):
        gpt2_attention.forward(x, w_qkv, *rest, heads=3)
    with pytest.raises(ValueError, match=r"w_qkv: expected w_qkv\[h, 3q\] with 3q = 24; got shape \[4, 8\]"):
        gpt2_attention.forward(x, w_qkv[:, :8], rest[0][:8], *rest[1:], heads=2)
    with pytest.raises(ValueError, match=r"w_k: expected a number of rows that is a multiple of .* width 4"):
        llama_attention.forward(*draw(llama_attention, LLAMA | {"p": 6}, ()))
    with pytest.raises(
        ValueError, match="w_q: expected a number of heads that is a multiple of the 2 of w_k; got 3"
    ):
        llama_attention.forward(*draw(llama_attention, LLAMA | {"q": 12, "p": 8}, ()))
