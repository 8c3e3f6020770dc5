"""What sphere_norm promises beside the contract: rows of zeros, the mean, and that it is RMS normalisation without ε."""

import numpy as np
import pytest
import torch

from backpass.cost import memory
from backpass.interpreters import counting
from backpass.interpreters.closed_world import Array
from backpass.ops import rms_norm, sphere_norm


def drawn(shape=(4, 7), seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape), rng.standard_normal(shape)


def plain(x):
    return x.to_numpy() if isinstance(x, Array) else np.asarray(x)


def both(x, dy, **options):
    y, saved = sphere_norm.forward(x, **options)
    return y, sphere_norm.backward(dy, saved)


def test_with_the_mean_it_is_rms_norm_without_epsilon_and_without_it_root_n_times_smaller():
    x, dy = drawn()
    expected, saved = rms_norm.forward(x, eps=0)
    expected = expected, rms_norm.backward(dy, saved)[0]
    for ours, smaller, theirs in zip(both(x, dy, mean=True), both(x, dy), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
        np.testing.assert_allclose(np.sqrt(7) * smaller, theirs, rtol=1e-12)


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
        np.testing.assert_allclose(ours[others], alone, rtol=1e-14)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_a_row_whose_mean_square_is_too_small_for_the_dtype_has_output_and_gradient_zero(make):
    x = np.array([[4e-23, 0, 0], [1, -1, 1]], np.float32)
    dy = np.array([[1, -2, 3]] * 2, np.float32)
    y, dx = map(plain, both(make(x), make(dy), mean=True))
    assert not y[0].any() and not dx[0].any()
    assert y[1].tolist() == [1, -1, 1] and dx[1].any()
    assert plain(sphere_norm.forward(make(x))[0])[0, 0] > 0.9  # over its length, which is not 0


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("mean", [False, True])
def test_a_row_whose_squares_are_past_the_dtype_has_output_and_gradient_zero_as_in_pytorch(mean):
    x, dy = np.array([1e200, -1.0, 1.0]), np.array([1.0, -2.0, 3.0])
    t = torch.tensor(x, requires_grad=True)
    square = t.square().mean() if mean else t.square().sum()
    theirs = t / square.sqrt()
    (dx,) = torch.autograd.grad(theirs, t, torch.tensor(dy))
    for ours, its in zip(both(x, dy, mean=mean), (theirs.detach(), dx), strict=True):
        np.testing.assert_array_equal(ours, 0)
        np.testing.assert_array_equal(its, 0)


@pytest.mark.parametrize("factor", [1e-140, 0.25, -1.0, -3.0, 1e140])
def test_a_factor_leaves_its_sign_and_divides_the_gradient(factor):
    x, dy = drawn()
    y, dx = both(x, dy)
    y_of_scaled, dx_of_scaled = both(x * factor, dy)
    np.testing.assert_allclose(y_of_scaled, np.sign(factor) * y, rtol=1e-13)
    np.testing.assert_allclose(dx_of_scaled, dx / abs(factor), rtol=1e-12)


def test_the_jacobian_is_symmetric_and_kills_y_alone():
    x, _ = drawn((1, 9))
    y, saved = sphere_norm.forward(x)
    rows = np.concatenate([sphere_norm.backward(e[None], saved) for e in np.eye(9)])
    np.testing.assert_allclose(rows, rows.T, atol=1e-16)
    np.testing.assert_allclose(rows @ y[0], 0, atol=1e-15)
    np.testing.assert_allclose(np.linalg.svd(rows)[1][:8], 1 / np.linalg.norm(x), rtol=1e-12)


def test_nan_passes_in_both_directions():
    x, dy = drawn()
    x[2, 3] = np.nan
    y, dx = both(x, dy)
    assert np.isnan(y[2]).all() and np.isnan(dx[2]).all()
    assert np.isfinite(y[[0, 1, 3]]).all() and np.isfinite(dx[[0, 1, 3]]).all()


def test_it_keeps_its_output_and_one_number_a_row():
    x, _ = drawn()
    y, saved = sphere_norm.forward(x)
    assert saved.y is y and saved.divisor.shape == (4, 1)
    assert memory(sphere_norm, x).activations == y.nbytes + 4 * 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_squares_beyond_float16_do_not_overflow(dtype):
    x = torch.full((2, 4), 300.0).to(dtype)
    y, saved = sphere_norm.forward(x)
    assert y.dtype == dtype and saved.divisor.dtype == torch.float32
    torch.testing.assert_close(y, torch.full((2, 4), 0.5).to(dtype), rtol=0, atol=0)
