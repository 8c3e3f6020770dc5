"""What dropout promises beside the contract: one mask for every library, PyTorch's edges, an unchanged mean."""

import numpy as np
import pytest
import torch

from backpass import cost
from backpass.contract import philox
from backpass.interpreters import counting, symbolic
from backpass.ops import dropout


def drawn(shape=(40, 50), dtype=np.float64):
    rng = np.random.default_rng(7)
    return tuple((rng.standard_normal(shape) + 3).astype(dtype) for _ in range(2))


def test_one_seed_gives_one_mask_in_every_library():
    x, _ = drawn((4, 5))
    masks = [
        dropout.forward(values, p=0.3, seed=11)[1].mask
        for values in (x, torch.tensor(x), counting.array(x), symbolic.array("x", (4, 5)))
    ]
    first, *others = (mask.to_numpy() if hasattr(mask, "to_numpy") else np.asarray(mask) for mask in masks)
    assert first.dtype == np.bool_ and first.any() and not first.all()
    assert all(np.array_equal(first, other) for other in others)


def test_another_seed_gives_another_mask():
    x, _ = drawn()
    masks = [dropout.forward(x, seed=seed)[1].mask for seed in (0, 1, 2)]
    assert not np.array_equal(masks[0], masks[1]) and not np.array_equal(masks[1], masks[2])
    assert np.array_equal(masks[0], dropout.forward(x, seed=0)[1].mask)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_dropped_is_p(p):
    x = np.ones((400, 250))
    y, saved = dropout.forward(x, p=p, seed=3)
    deviation = np.sqrt(p * (1 - p) / x.size)
    assert abs(saved.mask.mean() - (1 - p)) < 5 * deviation
    assert abs(y.mean() - 1) < 5 * deviation / (1 - p)


def test_the_mean_over_seeds_is_x():
    x, dy = drawn((3, 4))
    runs = [dropout.forward(x, p=0.4, seed=seed) for seed in range(4000)]
    spread = np.sqrt(0.4 / 0.6 / len(runs))  # of one element over its own size
    assert np.abs(np.mean([y for y, _ in runs], axis=0) / x - 1).max() < 5 * spread
    dx = np.mean([dropout.backward(dy, saved) for _, saved in runs], axis=0)
    assert np.abs(dx / dy - 1).max() < 5 * spread


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_with_pytorchs_mask_it_is_pytorchs_dropout(p, dtype, monkeypatch):
    """Their mask, drawn in place of ours: the kept values are theirs, and so is the gradient."""
    x, dy = (torch.tensor(a).to(dtype) for a in drawn())
    leaf = x.clone().requires_grad_()
    torch.manual_seed(0)
    theirs = torch.nn.functional.dropout(leaf, p)
    theirs.backward(dy)
    mask = theirs != 0  # no element of x is 0
    monkeypatch.setattr(dropout.philox, "mask_for", lambda *_: mask)
    y, saved = dropout.forward(x, p=p)
    dx = dropout.backward(dy, saved)
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(y, theirs.detach(), rtol=unit, atol=0)
    torch.testing.assert_close(dx, leaf.grad, rtol=unit, atol=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
@pytest.mark.parametrize(
    ("options", "expected"), [({"p": 0}, 1), ({"p": 1}, 0), ({"training": False}, 1)], ids=str
)
def test_where_nothing_is_random(make, options, expected):
    x, dy = map(make, drawn())
    y, saved = dropout.forward(x, **options)
    dx = dropout.backward(dy, saved)
    for found, of in ((y, x), (dx, dy)):
        found, of = (a.to_numpy() if hasattr(a, "to_numpy") else np.asarray(a) for a in (found, of))
        assert np.array_equal(found, expected * of)


def test_identity_costs_nothing():
    x, _ = drawn()
    for options in ({"p": 0.0}, {"training": False}):
        assert cost.saved_bytes("dropout", x, **options) == 0
        assert cost.formula("dropout", x, **options) == (0, 0)
        counted = cost.count("dropout", x, **options)
        assert (counted.forward.total, counted.backward.total) == (0, 0)


def test_no_mask_is_saved():
    assert cost.saved_bytes("dropout", drawn()[0], seed=5) == 0
    assert cost.saved_bytes("dropout", torch.ones(40, 50), seed=torch.tensor(5)) == 8


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (3, 16), (2, 3, 13), (0, 4), (3, 0)], ids=str)
def test_the_backward_draws_the_forwards_mask(shape):
    x, dy = drawn(shape)
    for make in (np.asarray, torch.as_tensor):
        y, saved = dropout.forward(make(x), p=0.4, seed=21)
        dx, mask = dropout.backward(make(dy), saved), saved.mask
        assert mask.shape == shape and y.shape == shape
        assert np.array_equal(np.asarray(y), np.where(mask, x / 0.6, 0))
        assert np.array_equal(np.asarray(dx), np.where(mask, dy / 0.6, 0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_no_dtype_changes_the_mask(dtype):
    y, _ = dropout.forward(torch.ones(40, 50, dtype=dtype), p=0.3, seed=11)
    assert np.array_equal(y != 0, dropout.drawn((40, 50), 0.3, 11))


def test_a_seed_in_a_tensor_is_read_when_the_mask_is_drawn():
    """So that a captured graph can draw another mask each time."""
    x, seed = torch.ones(40, 50), torch.tensor(11)
    y, saved = dropout.forward(x, seed=seed)
    assert saved.seed is seed and torch.equal(y, dropout.forward(x, seed=11)[0])
    seed.fill_(12)
    assert torch.equal(dropout.backward(x, saved), dropout.forward(x, seed=12)[0])


def test_a_tensor_without_values_has_no_mask():
    x = torch.ones(40, 50, device="meta")
    y, saved = dropout.forward(x)
    assert y.is_meta and dropout.backward(x, saved).shape == x.shape


def test_rows_are_those_of_a_larger_array():
    whole = dropout.drawn((6, 5, 13), 0.4, 3)
    rows = [range(2, 4), range(10, 12)]
    part = dropout.drawn((2, 2, 13), 0.4, 3, rows)
    assert np.array_equal(part, whole.reshape(30, 13)[[2, 3, 10, 11]].reshape(2, 2, 13))
    x = np.ones((2, 2, 13))
    saved = dropout.forward(x, p=0.4, seed=3)[1]._replace(part=philox.Part(x.shape[-1], rows))
    assert np.array_equal(dropout.backward(x, saved) != 0, part)


def test_a_dropped_element_is_0_also_where_x_is_infinite():
    x = np.full((4, 5), np.inf)
    y, saved = dropout.forward(x)
    assert (y[~saved.mask] == 0).all() and (y[saved.mask] == np.inf).all()


def test_a_numpy_scalar_for_p_brings_no_dtype_along():
    x, dy = drawn(dtype=np.float32)
    y, saved = dropout.forward(x, p=np.float64(0.3), seed=np.int64(2))
    assert y.dtype == dropout.backward(dy, saved).dtype == np.float32


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"p": "half"}, TypeError, "p: expected a probability, a real number; got str"),
        ({"p": 1.5}, ValueError, "p: expected a probability from 0 to 1; got 1.5"),
        ({"p": -0.1}, ValueError, "p: expected a probability from 0 to 1; got -0.1"),
        ({"p": float("nan")}, ValueError, "p: expected a probability from 0 to 1; got nan"),
        ({"seed": 0.5}, TypeError, "seed: expected an integer; got float"),
        ({"seed": None}, TypeError, "seed: expected an integer; got NoneType"),
        ({"seed": -1}, ValueError, "seed: expected an integer of at least 0; got -1"),
        ({"seed": 2**64}, ValueError, r"seed: expected an integer below 2\^64; got 18446744073709551616"),
        (
            {"seed": np.ones(3, np.int64)},
            TypeError,
            r"seed: expected .* of shape \[\]; got int64 of shape \[3\]",
        ),
        (
            {"seed": torch.tensor(1, dtype=torch.int32)},
            TypeError,
            r"seed: expected .*; got int32 of shape \[\]",
        ),
    ],
)
def test_bad_options_are_rejected_before_any_arithmetic(options, error, message):
    with counting.tally() as t, pytest.raises(error, match=message):
        dropout.forward(counting.array(np.ones(3)), **options)
    assert t.total == 0
