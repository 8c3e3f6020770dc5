"""What softcap promises beside the contract: bounds, limits, half precision, and a cap that is positive."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from backpass.ops import softcap


def both(x, dy, cap):
    y, saved = softcap.forward(x, cap=cap)
    return y, softcap.backward(dy, saved)


@pytest.mark.parametrize("cap", [0.3, 1.5, 30, np.float64(2.5), Fraction(5, 2)], ids=repr)
def test_it_is_what_gemma_computes(cap):
    x = torch.linspace(-60, 60, 241, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(241, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = x / float(cap)
    scores = torch.tanh(scores)
    expected = scores * float(cap)
    (expected_dx,) = torch.autograd.grad(expected, x, dy)
    y, dx = both(x.detach(), dy, cap)
    torch.testing.assert_close(y, expected.detach(), rtol=1e-15, atol=0)
    torch.testing.assert_close(dx, expected_dx, rtol=0, atol=1e-14)


def test_small_elements_pass_and_none_exceeds_the_cap():
    x = np.array([-1e300, -1e3, -30.0, -1e-9, 0.0, 1e-9, 30.0, 1e3, 1e300])
    y, dx = both(x, np.ones_like(x), 30.0)
    assert np.abs(y).max() == 30 and np.all(np.diff(y) >= 0)
    assert y[3:6].tolist() == x[3:6].tolist()
    assert dx[3:6].tolist() == [1, 1, 1] and np.all((dx >= 0) & (dx <= 1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_infinities_are_the_caps_and_have_no_gradient(dtype):
    x = torch.tensor([-math.inf, math.inf]).to(dtype)
    y, dx = both(x, torch.ones_like(x), 1.5)
    assert y.tolist() == [-1.5, 1.5]
    assert dx.tolist() == [0, 0]


def test_the_slope_in_half_precision_is_not_that_of_the_rounded_y():
    """At four times the cap, y rounds to the cap, whose slope is 0."""
    x, cap = torch.tensor([60.0, 120.0], dtype=torch.bfloat16), 30.0
    y, dx = both(x, torch.ones_like(x), cap)
    exact = 1 - torch.tanh(x.double() / cap) ** 2
    torch.testing.assert_close(dx.double(), exact, rtol=2**-8, atol=0)
    assert y[1] == cap and exact[1] > 1e-3


@pytest.mark.parametrize(
    ("cap", "error", "message"),
    [
        ("30", TypeError, "^cap: expected a positive number; got str"),
        (None, TypeError, "^cap: expected a positive number; got NoneType"),
        (1j, TypeError, "^cap: expected a positive number; got complex"),
        (0, ValueError, "^cap: expected a positive number; got 0"),
        (-2.0, ValueError, "^cap: expected a positive number; got -2.0"),
        (math.inf, ValueError, "^cap: expected a positive number; got inf"),
        (math.nan, ValueError, "^cap: expected a positive number; got nan"),
    ],
)
def test_a_cap_that_is_not_positive_is_rejected(cap, error, message):
    with pytest.raises(error, match=message):
        softcap.forward(np.ones(3), cap=cap)


def test_the_cap_has_no_default():
    with pytest.raises(TypeError, match="cap"):
        softcap.forward(np.ones(3))
