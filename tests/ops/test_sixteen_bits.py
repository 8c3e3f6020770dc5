"""Half precision is computed in float32 and rounded once: to the bit what the float32 arrays give, rounded."""

import inspect

import numpy as np
import pytest
import torch

from backpass import ops
from backpass.contract.shapes import Kind, parse
from backpass.verify import draw
from backpass.verify.drawing import options_for

# A matrix product of 16 bits is rounded where it is made: linear's, and linear_cross_entropy's scores, then what
# follows from them.
PRODUCTS = ("linear", "linear_cross_entropy")
STEMS = [
    stem for stem in ops.STEMS if "widened(" in inspect.getsource(ops.load(stem)) and stem not in PRODUCTS
]
LENGTHS = {"n": 301, "V": 301}


def in_dtype(values, dtype):
    """The floating tensors of a tuple in another dtype; the rest as it is."""
    return [
        value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in values
    ]


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_one_rounding_parts_16_bits_from_float32(stem, dtype):
    op, rng = ops.load(stem), np.random.default_rng(0)
    lengths = {letter: length for letter, length in LENGTHS.items() if letter in parse(op.SHAPES).letters}
    drawn = [torch.from_numpy(3 * a if a.dtype == float else a) for a in draw(stem, rng, lengths=lengths)]
    inputs = in_dtype(drawn, dtype)

    y, saved = op.forward(*inputs, **options_for(stem))
    expected, wide = op.forward(*in_dtype(inputs, torch.float32), **options_for(stem))
    assert torch.equal(y, expected.to(dtype))

    dy = torch.from_numpy(rng.standard_normal(tuple(y.shape))).to(dtype)
    kept = (of_wide if isinstance(of_16, Kind) else of_16 for of_16, of_wide in zip(saved, wide, strict=True))
    kept = op.Saved(*in_dtype(kept, torch.float32))
    got, expected = op.backward(dy, saved), op.backward(dy.float(), kept)
    for one, other in zip(*(g if isinstance(g, tuple) else (g,) for g in (got, expected)), strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, other.to(dtype))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("stem", "parameters"),
    [
        ("linear", [(2, 2), (2,)]),
        ("position_embedding", [(1, 2)]),
        ("rms_norm", [(2,)]),
        ("layer_norm", [(2,), (2,)]),
    ],
)
def test_a_gradient_that_sums_over_rows_does_not_stall(stem, parameters, library):
    """4096 rows give 1 each. NumPy adds float16 one by one, and there 2048 + 1 is 2048."""
    op, make = ops.load(stem), np.asarray if library == "numpy" else torch.from_numpy
    ones = [make(np.ones(shape, np.float16)) for shape in [(4096, 1, 2), *parameters]]
    _, saved = op.forward(*ones)
    *_, last = op.backward(ones[0], saved)
    assert np.asarray(last).reshape(-1).tolist() == [4096, 4096]


def _in_numpy(values, dtype):
    return [
        value.astype(dtype) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
        for value in values
    ]


@pytest.mark.parametrize("stem", STEMS)
def test_numpy_rounds_once_too(stem):
    """It rounds a Python number that meets float16 before it divides by it, where PyTorch does not."""
    op, rng, options = ops.load(stem), np.random.default_rng(0), options_for(stem)
    inputs = _in_numpy(draw(stem, rng, leading={"*": (40,)}), np.float16)
    y, saved = op.forward(*inputs, **options)
    expected, wide = op.forward(*_in_numpy(inputs, np.float32), **options)
    np.testing.assert_array_equal(y, expected.astype(np.float16))

    dy = np.asarray(rng.standard_normal(y.shape), np.float16)
    kept = (of_wide if isinstance(of_16, Kind) else of_16 for of_16, of_wide in zip(saved, wide, strict=True))
    kept = op.Saved(*_in_numpy(kept, np.float32))
    got, expected = op.backward(dy, saved), op.backward(np.asarray(dy, np.float32), kept)
    for one, other in zip(*(g if isinstance(g, tuple) else (g,) for g in (got, expected)), strict=True):
        np.testing.assert_array_equal(one, other.astype(np.float16))


@pytest.mark.parametrize("stem", ["nll", "cross_entropy"])
def test_more_targets_than_the_largest_float16_are_divided_by(stem):
    op, t = ops.load(stem), np.zeros(100_000, np.int64)
    _, saved = op.forward(np.zeros((100_000, 2), np.float16), t)
    dx = op.backward(np.asarray(1000, np.float16), saved)
    assert np.abs(dx[:, 0] / (-0.01 if stem == "nll" else -0.005) - 1).max() < 2**-9
