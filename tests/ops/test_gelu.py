"""What GELU promises beside the contract: PyTorch's two forms, its shape, and no NaN however large x is."""

import math

import mpmath
import numpy as np
import pytest
import torch

from backpass.expressions import exact
from backpass.interpreters import counting, symbolic
from backpass.ops import gelu

FORMS = pytest.mark.parametrize("approximate", ["none", "tanh"])
LARGEST = {torch.float16: 65504.0, torch.bfloat16: 3.3e38, torch.float32: 3.3e38, torch.float64: 1e300}


def both(x, dy, **options):
    y, saved = gelu.forward(x, **options)
    return y, gelu.backward(dy, saved)


@FORMS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_it_is_pytorchs(approximate, dtype):
    x = torch.linspace(-9, 9, 301, dtype=dtype, requires_grad=True)
    dy = torch.randn(301, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = torch.nn.functional.gelu(x, approximate=approximate)
    (expected_dx,) = torch.autograd.grad(expected, x, dy)
    y, dx = both(x.detach(), dy, approximate=approximate)
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(y, expected.detach(), rtol=0, atol=2 * 9 * unit)
    # At ±7 the rounding of 1 − tanh² is multiplied by 7 and by half the polynomial's slope, 3, in both.
    torch.testing.assert_close(dx, expected_dx, rtol=0, atol=4 * 21 * unit)


def test_the_exact_form_is_the_normal_distributions():
    x = np.linspace(-5, 5, 41)
    y, dx = both(x, np.ones_like(x))
    probability = [float(mpmath.ncdf(v)) for v in x]
    np.testing.assert_allclose(y, x * probability, atol=1e-15)
    np.testing.assert_allclose(dx, probability + x * [float(mpmath.npdf(v)) for v in x], atol=1e-15)


@FORMS
def test_the_gradient_and_its_mirror_image_sum_to_one(approximate):
    """The probabilities of x and −x sum to 1, so y(x) − y(−x) = x, and the derivatives sum to 1."""
    x = np.linspace(0, 8, 50)
    y, dx = both(x, np.ones_like(x), approximate=approximate)
    mirrored, mirrored_dx = both(-x, np.ones_like(x), approximate=approximate)
    np.testing.assert_allclose(y - mirrored, x, rtol=1e-15)
    np.testing.assert_allclose(dx + mirrored_dx, 1, rtol=1e-14)


@FORMS
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_no_x_is_too_large(approximate, dtype):
    most = LARGEST[dtype]
    x = torch.tensor([-math.inf, -most, -1e4, -300.0, 300.0, 1e4, most, math.inf]).to(dtype)
    y, dx = both(x, torch.ones_like(x), approximate=approximate)
    assert y[:4].tolist() == [0.0] * 4 and torch.equal(y[4:], x[4:])
    assert dx.tolist() == [0.0] * 4 + [1.0] * 4


@pytest.mark.filterwarnings("error")
@FORMS
@pytest.mark.parametrize("make", [np.array, counting.array], ids=["numpy", "counting"])
def test_nothing_overflows_on_the_way(approximate, make):
    x = np.array([-np.inf, -1e100, -1e4, 0.0, 1e4, 1e100, np.inf])
    y, dx = both(make(x), make(np.ones_like(x)), approximate=approximate)
    y, dx = (a.to_numpy() if hasattr(a, "to_numpy") else a for a in (y, dx))
    assert y.tolist() == [0, 0, 0, 0, 1e4, 1e100, np.inf]
    assert dx.tolist() == [0, 0, 0, 0.5, 1, 1, 1]


@FORMS
def test_symbols_stay_exact(approximate):
    """No rounded constant: at a rational point the result is the textbook's expression, digit for digit."""
    import sympy

    x = symbolic.array("x", ())
    y, saved = gelu.forward(x, approximate=approximate)
    (found,) = y.to_numpy().flat
    s = sympy.Symbol("x", real=True)
    inner = sympy.erf(s / sympy.sqrt(2))
    if approximate == "tanh":
        inner = sympy.tanh(sympy.sqrt(2 / sympy.pi) * (s + sympy.Rational("0.044715") * s**3))
    assert exact.equal(found, s * (1 + inner) / 2)
    (slope,) = gelu.backward(symbolic.xp.asarray(1.0), saved).to_numpy().flat
    assert exact.equal(slope, found.diff(s))


@FORMS
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 1, 3, 1, 2)])
def test_any_shape(approximate, shape):
    x = np.random.default_rng(0).standard_normal(shape)
    y, dx = both(x, x, approximate=approximate)
    assert y.shape == dx.shape == shape
    flat = both(x.reshape(-1), x.reshape(-1), approximate=approximate)
    assert np.array_equal(np.ravel(y), flat[0]) and np.array_equal(np.ravel(dx), flat[1])


@pytest.mark.parametrize("approximate", ["erf", "", None, True])
def test_another_form_is_rejected_before_any_arithmetic(approximate):
    with (
        counting.tally() as t,
        pytest.raises(ValueError, match="approximate: expected 'none' or 'tanh'; got"),
    ):
        gelu.forward(counting.array(np.ones(3)), approximate=approximate)
    assert t.total == 0
