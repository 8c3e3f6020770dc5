"""What simplex_norm promises beside the contract: rows of zeros, rejections, the mean, and that softmax is made of it."""

import numpy as np
import pytest
import torch

from backpass.cost import count, memory
from backpass.interpreters import counting
from backpass.interpreters.closed_world import Array
from backpass.ops import simplex_norm, softmax


def drawn(shape=(4, 7), seed=0):
    rng = np.random.default_rng(seed)
    return np.abs(rng.standard_normal(shape)), rng.standard_normal(shape)


def plain(x):
    return x.to_numpy() if isinstance(x, Array) else np.asarray(x)


def both(x, dy, **options):
    y, saved = simplex_norm.forward(x, **options)
    return y, simplex_norm.backward(dy, saved)


def test_rows_sum_to_1_and_with_the_mean_to_n():
    x, _ = drawn()
    np.testing.assert_allclose(simplex_norm.forward(x)[0].sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(simplex_norm.forward(x, mean=True)[0].sum(axis=1), 7, rtol=1e-15)


def test_the_mean_makes_output_and_gradient_n_times_as_large():
    x, dy = drawn()
    for one, other in zip(both(x, dy), both(x, dy, mean=True), strict=True):
        np.testing.assert_allclose(other, 7 * one, rtol=1e-12)


def test_of_exponentials_it_is_softmax():
    scores = np.random.default_rng(2).standard_normal((4, 7))
    _, dy = drawn()
    expected, saved = softmax.forward(scores)
    y, dexps = both(np.exp(scores), dy)
    np.testing.assert_allclose(y, expected, rtol=1e-14)
    np.testing.assert_allclose(dexps * np.exp(scores), softmax.backward(dy, saved), rtol=1e-12, atol=1e-16)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
def test_a_row_of_zeros_has_output_and_gradient_zero(make, mean):
    x, dy = drawn()
    x[1] = 0
    y, dx = map(plain, both(make(x), make(dy), mean=mean))
    assert not y[1].any() and not dx[1].any()
    others = [0, 2, 3]
    for ours, alone in zip((y, dx), both(x[others], dy[others], mean=mean), strict=True):
        np.testing.assert_allclose(ours[others], alone, rtol=1e-13)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_a_row_whose_mean_is_too_small_for_the_dtype_has_output_and_gradient_zero(make):
    x, dy = np.array([[5e-324, 0.0, 0.0], [1.0, 2.0, 3.0]]), np.array([[1.0, -2.0, 3.0]] * 2)
    y, dx = map(plain, both(make(x), make(dy), mean=True))
    assert not y[0].any() and not dx[0].any()
    assert y[1].tolist() == [0.5, 1.0, 1.5] and dx[1].any()
    assert plain(simplex_norm.forward(make(x))[0])[0].tolist() == [1, 0, 0]  # over the sum, which is not 0


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("mean", [False, True])
def test_a_row_whose_sum_is_past_the_dtype_has_output_and_gradient_zero_as_in_pytorch(mean):
    x, dy = np.array([1e308, 1e308, 1.0]), np.array([1.0, -2.0, 3.0])
    t = torch.tensor(x, requires_grad=True)
    theirs = t / (t.mean() if mean else t.sum())
    (dx,) = torch.autograd.grad(theirs, t, torch.tensor(dy))
    for ours, its in zip(both(x, dy, mean=mean), (theirs.detach(), dx), strict=True):
        assert ours.tolist() == its.tolist() == [0, 0, 0]


def test_entries_may_be_negative_where_the_sum_is_positive():
    x, dy = drawn()
    x[:, 0] = -0.5 * x[:, 1]
    t = torch.tensor(x, requires_grad=True)
    y = t / t.sum(dim=-1, keepdim=True)
    (dx,) = torch.autograd.grad(y, t, torch.tensor(dy))
    for ours, theirs in zip(both(x, dy), (y.detach(), dx), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [[1.0, 2.0], [1.0, -1.5]],
            r"x: expected rows whose sums are positive; got a sum of -0.5 in row \[1\]",
        ),
        ([[[1.0, 2.0], [1.0, -1.0]]], r"got a sum of 0.0 in row \[0, 1\]"),
        ([-1.0, 0.5], "got a sum of -0.5 in the only row"),
    ],
)
def test_a_sum_that_is_not_positive_is_rejected(make, rows, message):
    with pytest.raises(ValueError, match=message):
        simplex_norm.forward(make(np.array(rows)))


def test_nan_passes_in_both_directions():
    x, dy = drawn()
    x[2, 3] = np.nan
    y, dx = both(x, dy)
    assert np.isnan(y[2]).all() and np.isnan(dx[2]).all()
    assert np.isfinite(y[[0, 1, 3]]).all() and np.isfinite(dx[[0, 1, 3]]).all()


@pytest.mark.parametrize("factor", [1e-300, 1e-3, 1e300])
def test_a_factor_changes_nothing_and_divides_the_gradient(factor):
    """1/σ would overflow before x/σ does: so x is divided."""
    x, dy = drawn()
    y, dx = both(x, dy)
    y_of_scaled, dx_of_scaled = both(x * factor, dy)
    np.testing.assert_allclose(y_of_scaled, y, rtol=1e-14)
    np.testing.assert_allclose(dx_of_scaled, dx / factor, rtol=1e-12)


def test_it_keeps_its_output_and_one_number_a_row():
    x, _ = drawn()
    y, saved = simplex_norm.forward(x)
    assert saved.y is y and saved.divisor.shape == (4, 1)
    assert memory(simplex_norm, x).activations == y.nbytes + 4 * 8


def test_where_only_a_shape_is_given_the_numbers_drawn_are_positive():
    assert count(simplex_norm, (50, 3)).forward.total == 50 * 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_sum_beyond_float16_does_not_overflow(dtype):
    x = torch.full((2, 300), 300.0).to(dtype)
    y, saved = simplex_norm.forward(x)
    assert y.dtype == dtype and saved.divisor.dtype == torch.float32
    torch.testing.assert_close(y, torch.full((2, 300), 1 / 300).to(dtype), rtol=0, atol=0)
