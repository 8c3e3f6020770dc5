"""Numbers that count themselves: the same values as NumPy, and a count known by hand."""

import numpy as np
import pytest

from backpass import ops
from backpass.interpreters import counting

OPTIONS = {"scale": {"factor": -1.75}, "fork": {"copies": 3}}
SHAPES = {
    "softmax": [(2, 3, 5)],
    "linear": [(2, 3, 5), (5, 4), (4,)],
    "matmul": [(2, 1, 3, 4), (3, 4, 2)],
    "scale": [(2, 3)],
    "fork": [(2, 3)],
    "residual": [(2, 3), (2, 3)],
    "layer_norm": [(2, 3), (3,), (3,)],
    "rms_norm": [(2, 3), (3,)],
}


def drawn(*shape, seed=0):
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return counting.array(numbers), numbers


@pytest.mark.parametrize("stem", ops.STEMS)
def test_values_are_numpys(stem):
    op, rng = ops.load(stem), np.random.default_rng(3)
    inputs = [rng.standard_normal(shape) for shape in SHAPES[stem]]
    y, saved = op.forward(*inputs, **OPTIONS.get(stem, {}))
    counted_y, counted_saved = op.forward(*map(counting.array, inputs), **OPTIONS.get(stem, {}))
    np.testing.assert_allclose(counted_y.to_numpy(), y, rtol=1e-13)
    dy = rng.standard_normal(y.shape)
    gradients = op.backward(dy, saved)
    counted_gradients = op.backward(counting.array(dy), counted_saved)
    if not isinstance(gradients, tuple):
        gradients, counted_gradients = (gradients,), (counted_gradients,)
    for expected, found in zip(gradients, counted_gradients, strict=True):
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda xp, x: x + x, {"add": 12}),
        (lambda xp, x: 1 - x, {"subtract": 12}),
        (lambda xp, x: x * 2.0, {"multiply": 12}),
        (lambda xp, x: x / xp.sum(x, axis=1, keepdims=True), {"add": 9, "divide": 12}),
        (lambda xp, x: xp.sum(x), {"add": 11}),
        (lambda xp, x: xp.sum(x[:, :1], axis=1), {}),
        (lambda xp, x: xp.sum(x[:, :0]), {}),
        (lambda xp, x: x @ xp.matrix_transpose(x), {"multiply": 36, "add": 27}),
        (lambda xp, x: xp.exp(x) + xp.tanh(x), {"exp": 12, "tanh": 12, "add": 12}),
        (lambda xp, x: xp.log(xp.sqrt(x * x)), {"multiply": 12, "sqrt": 12, "log": 12}),
        (lambda xp, x: xp.erf(xp.sin(xp.cos(x))), {"cos": 12, "sin": 12, "erf": 12}),
        (lambda xp, x: x + x[:, :1], {"add": 12}),
        (lambda xp, x: -x, {}),
        (lambda xp, x: xp.where(x > 0, x, 0.0), {}),
        (lambda xp, x: xp.max(x, axis=1), {}),
        (lambda xp, x: xp.stack([xp.permute_dims(x, (1, 0))[::2], xp.ones((2, 3))]), {}),
    ],
)
def test_counts_known_by_hand(run, expected):
    x, _ = drawn(3, 4)
    with counting.tally() as t:
        run(counting.xp, x)
    assert t.by_kind == expected
    assert t.total == sum(expected.values())


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sqrt", "sin", "cos"])
def test_functions_are_numpys(name):
    x = np.abs(np.random.default_rng(4).standard_normal(50)) * 3
    assert np.array_equal(getattr(counting.xp, name)(counting.array(x)).to_numpy(), getattr(np, name)(x))


def test_tallies_nest_and_stop_counting_when_they_close():
    x, _ = drawn(4)
    with counting.tally() as outer:
        x + x
        with counting.tally() as inner:
            x * x
            assert inner.total == 4
        x * x
    x + x
    assert inner.by_kind == {"multiply": 4}
    assert outer.by_kind == {"add": 4, "multiply": 8}
    assert repr(outer) == "Tally(12: add 4, multiply 8)"


def test_a_tally_closes_when_its_block_fails():
    x, _ = drawn(4)
    with pytest.raises(KeyError), counting.tally() as t:
        x + x
        raise KeyError
    x + x
    assert t.total == 4


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value", "ignore:overflow")
def test_extreme_values_are_those_of_ieee():
    x = np.array([1.0, -1.0, 0.0, np.inf, -np.inf, np.nan, 1e308, 1e-320])
    a, xp = counting.array(x), counting.xp
    for run in (
        lambda xp, a: a / 0.0,
        lambda xp, a: 1.0 / (a * 1e300),
        lambda xp, a: xp.exp(a),
        lambda xp, a: xp.log(a),
        lambda xp, a: xp.sqrt(a),
        lambda xp, a: a - a,
        lambda xp, a: xp.max(a),
        lambda xp, a: xp.max(a[:5]),
    ):
        assert np.array_equal(run(xp, a).to_numpy(), run(np, x), equal_nan=True)
    for relation in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        found = getattr(a[:, None], relation)(a[None, :])
        assert np.array_equal(found.to_numpy(), getattr(x[:, None], relation)(x[None, :]))


def test_a_branch_on_data_runs_as_on_numbers():
    x, numbers = drawn(7)
    mask = x > 0
    assert np.array_equal(mask.to_numpy(), numbers > 0)
    assert bool(counting.xp.any(mask))
