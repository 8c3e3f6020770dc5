"""What SiLU promises beside the contract: digits in the tails, and no NaN however large x is."""

import math

import mpmath
import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.ops import silu
from backpass.verify import check

LARGEST = {torch.float16: 65504.0, torch.bfloat16: 3.3e38, torch.float32: 3.3e38, torch.float64: 1e300}


def both(x, dy):
    y, saved = silu.forward(x)
    return y, silu.backward(dy, saved)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_it_is_pytorchs(dtype):
    x = torch.linspace(-30, 30, 301, dtype=dtype, requires_grad=True)
    dy = torch.randn(301, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = torch.nn.functional.silu(x)
    (expected_dx,) = torch.autograd.grad(expected, x, dy)
    y, dx = both(x.detach(), dy)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(y, expected.detach(), rtol=tolerance, atol=0)
    torch.testing.assert_close(dx, expected_dx, rtol=0, atol=tolerance)


def test_far_below_zero_every_digit_is_right():
    """Where a sigmoid of 1 + tanh has none left: at −40 the value is 1.7e-16, and 1 + tanh(−20) is 0."""
    x = np.array([-5.0, -20.0, -40.0, -300.0, -700.0])
    y, dx = both(x, np.ones_like(x))
    with mpmath.workdps(40):
        sigmoids = [1 / (1 + mpmath.exp(-mpmath.mpf(v))) for v in x]
        slopes = [float(s * (1 + mpmath.mpf(v) * (1 - s))) for v, s in zip(x, sigmoids, strict=True)]
        values = [float(v * s) for v, s in zip(x, sigmoids, strict=True)]
    np.testing.assert_allclose(y, values, rtol=1e-15)
    np.testing.assert_allclose(dx, slopes, rtol=1e-15)
    assert 1 + np.tanh(-20.0) == 0
    assert check(silu, x).passed


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_no_x_is_too_large(dtype):
    most = LARGEST[dtype]
    x = torch.tensor([-math.inf, -most, -1e4, 1e4, most, math.inf]).to(dtype)
    y, dx = both(x, torch.ones_like(x))
    assert y[:3].tolist() == [0.0] * 3 and torch.equal(y[3:], x[3:])
    assert dx.tolist() == [0.0] * 3 + [1.0] * 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, counting.array], ids=["numpy", "counting"])
def test_nothing_overflows_on_the_way(make):
    x = np.array([-np.inf, -1e300, -1e4, 0.0, 1e4, 1e300, np.inf])
    y, dx = both(make(x), make(np.ones_like(x)))
    y, dx = (a.to_numpy() if hasattr(a, "to_numpy") else a for a in (y, dx))
    assert y.tolist() == [0, 0, 0, 0, 1e4, 1e300, np.inf]
    assert dx.tolist() == [0, 0, 0, 0.5, 1, 1, 1]


@pytest.mark.parametrize("x", [-1e4, 1e4, np.array([-1e4, 1e4, -3.0])], ids=str)
def test_every_check_that_can_see_passes_at_large_x(x):
    report = check(silu, np.asarray(x), raises=False)
    assert not report.failed


def test_the_gradient_and_its_mirror_image_sum_to_one():
    x = np.linspace(0, 8, 50)
    np.testing.assert_allclose(both(x, np.ones(50))[1] + both(-x, np.ones(50))[1], 1, rtol=1e-14)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 1, 3, 1, 2)])
def test_any_shape(shape):
    x = np.random.default_rng(0).standard_normal(shape)
    y, dx = both(x, x)
    assert y.shape == dx.shape == shape
    flat = both(x.reshape(-1), x.reshape(-1))
    assert np.array_equal(np.ravel(y), flat[0]) and np.array_equal(np.ravel(dx), flat[1])
