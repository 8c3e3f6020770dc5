"""A backward of NumPy code that computes in float32, for more than 128 elements: its error along each random direction
has to be one of rounding."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check

RNG = np.random.default_rng(21)
ROWS = RNG.normal(size=(4, 300))


def in_dtype(backward, dtype=np.float32):
    """Round dy and the saved arrays, and return float64."""

    def rounded(dy, saved):
        return backward(dy.astype(dtype), [value.astype(dtype) for value in saved]).astype(float)

    return rounded


def layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(variance + 1e-5)
    return centred * rstd, (centred * rstd, rstd, variance)


def layer_norm_back(dy, saved):
    x_hat, rstd, _ = saved
    return rstd * (dy - dy.mean(-1, keepdims=True) - x_hat * (dy * x_hat).mean(-1, keepdims=True))


def without_epsilon(dy, saved):
    x_hat, _, variance = saved
    return layer_norm_back(dy, (x_hat, 1 / np.sqrt(variance), variance))


def off_by_a_factor(dy, saved):
    return layer_norm_back(dy, saved) * np.float32(1 + 6e-6)


def judged(forward, backward, x, seed=0):
    op = SimpleNamespace(forward=forward, backward=backward)
    (row,) = check(op, x, seed=seed, methods=["complex_step"], explain=False, raises=False).rows
    return row


@pytest.mark.parametrize("wrong", [without_epsilon, off_by_a_factor])
def test_a_wrong_gradient_is_not_excused_as_rounding(wrong):
    assert judged(layer_norm, wrong, ROWS).verdict == "FAILED"  # in float64
    assert judged(layer_norm, in_dtype(wrong), ROWS).verdict == "FAILED"


def tanh(x):
    return np.tanh(x), (np.tanh(x),)


def tanh_back(dy, saved):
    return dy * (1 - saved[0] ** 2)


def sums(x):
    return np.cumsum(x, 0), ()


def sums_back(dy, saved):
    return np.cumsum(dy[::-1], 0)[::-1]


def softmax(x):
    e = np.exp(x - x.real.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), (e / e.sum(-1, keepdims=True),)


def softmax_back(dy, saved):
    (y,) = saved
    return y * (dy - (dy * y).sum(-1, keepdims=True))


RIGHT = {
    "layer_norm": (layer_norm, layer_norm_back, ROWS),
    "cancelling": (tanh, tanh_back, 6 + RNG.random((9, 40))),
    "long_sums": (sums, sums_back, RNG.normal(size=(4000, 3))),
    "softmax": (softmax, softmax_back, 4 * RNG.normal(size=(40, 30))),
    "mixed": (lambda x: (x / 8, ()), lambda dy, _: dy * np.float32(0.125), ROWS),
    "widened": (lambda x: (0.1 * x, ()), lambda dy, _: dy * np.float32(0.1), ROWS),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, np.float32) for name in RIGHT),
        ("layer_norm", np.float16),
        ("mixed", np.float16),
        ("widened", np.float16),
    ],
)
def test_a_right_gradient_is_excused(name, dtype):
    forward, backward, x = RIGHT[name]
    for seed in range(3):
        row = judged(forward, in_dtype(backward, dtype), x, seed)
        assert row.verdict != "FAILED", row
