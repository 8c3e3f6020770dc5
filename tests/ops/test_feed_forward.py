"""What the feed-forward block promises beside the contract: every activation with every choice of biases, and a gate only
where it belongs."""

import itertools

import numpy as np
import pytest
import torch

from backpass import cost
from backpass.interpreters import counting
from backpass.ops import feed_forward, linear
from backpass.verify import check

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "swiglu")
NAMES = ("x", "w_up", "w_down", "b_up", "b_down", "w_gate", "b_gate")
SHAPES = {
    "x": (2, 4, 5),
    "w_up": (5, 7),
    "w_down": (7, 5),
    "b_up": (7,),
    "b_down": (5,),
    "w_gate": (5, 7),
    "b_gate": (7,),
}
OPTIONAL_BIASES = [
    tuple(name for name, given in zip(("b_up", "b_down", "b_gate"), chosen, strict=True) if given)
    for chosen in itertools.product((True, False), repeat=3)
]
CASES = [
    (activation, biases)
    for activation in ACTIVATIONS
    for biases in OPTIONAL_BIASES
    if activation == "swiglu" or "b_gate" not in biases
]
EVERY = pytest.mark.parametrize(("activation", "biases"), CASES, ids=lambda part: str(part))


def given(activation, biases):
    return {"x", "w_up", "w_down", *biases} | ({"w_gate"} if activation == "swiglu" else set())


def drawn(activation, biases, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    return [arrays[name] if name in given(activation, biases) else None for name in NAMES]


def in_torch(x, w_up, w_down, b_up, b_down, w_gate, b_gate, activation):
    """The block in PyTorch's own functions, written here a second time."""
    functional = torch.nn.functional
    u = functional.linear(x, w_up.T, b_up)
    a = {
        "relu": lambda: functional.relu(u),
        "gelu": lambda: functional.gelu(u),
        "gelu_tanh": lambda: functional.gelu(u, approximate="tanh"),
        "swiglu": lambda: functional.silu(functional.linear(x, w_gate.T, b_gate)) * u,
    }[activation]()
    return functional.linear(a, w_down.T, b_down)


@EVERY
def test_it_and_its_gradients_are_pytorchs(activation, biases):
    inputs = drawn(activation, biases)
    leaves = [a if a is None else torch.tensor(a, requires_grad=True) for a in inputs]
    expected = in_torch(*leaves, activation)
    dy = np.random.default_rng(1).standard_normal(SHAPES["x"])
    expected.backward(torch.tensor(dy))

    y, saved = feed_forward.forward(*inputs, activation=activation)
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-12, atol=1e-12)
    for leaf, gradient in zip(leaves, feed_forward.backward(dy, saved), strict=True):
        assert (leaf is None) == (gradient is None)
        if leaf is not None:
            np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-11, atol=1e-12)


@EVERY
def test_the_formulas_are_the_counts(activation, biases):
    inputs = drawn(activation, biases)
    table = cost.table(feed_forward, *inputs, activation=activation)
    assert table.agrees, table


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_check_passes(activation):
    inputs = drawn(activation, ("b_up", "b_down") + (("b_gate",) if activation == "swiglu" else ()))
    report = check(feed_forward, *inputs, activation=activation)
    assert {row.method for row in report.having("not run")} <= {"Triton kernel"}


@pytest.mark.parametrize(("activation", "wide"), [("relu", 1), ("gelu", 2), ("gelu_tanh", 2), ("swiglu", 3)])
def test_it_saves_x_once_and_the_wide_arrays(activation, wide):
    inputs = [None if a is None else a.astype(np.float32) for a in drawn(activation, ("b_up", "b_down"))]
    m, h, f = 8, 5, 7
    kept = cost.count(feed_forward, *inputs, activation=activation).memory
    assert kept.activations == 4 * m * (h + wide * f)
    assert kept.parameters == 4 * h * f * (3 if activation == "swiglu" else 2)


def test_a_bias_gradient_is_the_sum_over_all_rows():
    inputs = drawn("gelu", ("b_up", "b_down"))
    dy = np.random.default_rng(1).standard_normal(SHAPES["x"])
    _, saved = feed_forward.forward(*inputs, activation="gelu")
    db_down = feed_forward.backward(dy, saved)[4]
    np.testing.assert_allclose(db_down, dy.reshape(-1, 5).sum(axis=0), rtol=1e-14)


def test_without_an_activation_between_it_would_be_one_matrix():
    """Where every u is far above 0 all three functions are the identity there, and the block a product of matrices."""
    rng = np.random.default_rng(0)
    x, w_up, w_down = rng.random((3, 5)), 50 + rng.random((5, 7)), rng.standard_normal((7, 5))
    dy = rng.standard_normal((3, 5))
    for activation in ("relu", "gelu", "gelu_tanh"):
        y, saved = feed_forward.forward(x, w_up, w_down, activation=activation)
        expected, linear_saved = linear.forward(x, w_up @ w_down)
        np.testing.assert_allclose(y, expected, rtol=1e-11)
        np.testing.assert_allclose(
            feed_forward.backward(dy, saved)[0], linear.backward(dy, linear_saved)[0], rtol=1e-11
        )


@pytest.mark.parametrize(
    ("activation", "names", "message"),
    [
        ("silu", set(), "activation: expected one of relu, gelu, gelu_tanh, swiglu; got 'silu'"),
        (None, set(), "activation: expected one of relu, gelu, gelu_tanh, swiglu; got None"),
        ("swiglu", set(), r"w_gate: expected an array w_gate\[h, f\] with activation='swiglu'; got None"),
        (
            "swiglu",
            {"b_gate"},
            r"w_gate: expected an array w_gate\[h, f\] with activation='swiglu'; got None",
        ),
        ("gelu", {"w_gate"}, "w_gate: expected None with activation='gelu', which has no gate; got an array"),
        ("relu", {"b_gate"}, "b_gate: expected None with activation='relu', which has no gate; got an array"),
    ],
)
def test_a_gate_where_it_does_not_belong_is_rejected_before_any_arithmetic(activation, names, message):
    wanted = {"x", "w_up", "w_down", *names}
    inputs = [counting.array(np.ones(SHAPES[name])) if name in wanted else None for name in NAMES]
    with counting.tally() as t, pytest.raises(ValueError, match=message):
        feed_forward.forward(*inputs, activation=activation)
    assert t.total == 0


@pytest.mark.parametrize("leading", [(), (1,), (0,), (2, 0, 3), (2, 1, 3, 1)])
def test_any_leading_axes(leading):
    arrays = drawn("swiglu", ("b_up", "b_down", "b_gate"))
    arrays[0] = np.random.default_rng(2).standard_normal((*leading, 5))
    y, saved = feed_forward.forward(*arrays, activation="swiglu")
    gradients = feed_forward.backward(y, saved)
    assert [g.shape for g in gradients] == [a.shape for a in arrays]
    assert np.isfinite(np.concatenate([np.ravel(g) for g in gradients])).all()
