"""The error function from the exponential beside it."""

import math

import torch

from backpass.ops._normal import erf_beside


def test_it_is_the_error_function():
    x = torch.linspace(-12, 12, 20001)
    exact = torch.erf(x.double() / math.sqrt(2))
    found = erf_beside(x, torch.exp(-x * x / 2))
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 4e-7


def test_it_has_its_limits_far_from_zero_and_keeps_nan():
    x = torch.tensor([-1e4, 1e4, math.nan])
    assert erf_beside(x, torch.exp(-x * x / 2)).nan_to_num(7).tolist() == [-1, 1, 7]
