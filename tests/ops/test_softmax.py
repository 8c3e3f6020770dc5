"""What softmax promises beside the contract: extreme and masked scores."""

import numpy as np
import pytest
import torch

from backpass import ops
from backpass.interpreters import counting
from backpass.interpreters.closed_world import Array


def plain(x):
    """A copy in NumPy, float64 where a tensor's dtype is unknown there."""
    if isinstance(x, torch.Tensor):
        return x.double().numpy().copy()
    return x.to_numpy() if isinstance(x, Array) else np.array(x)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_softmax_is_stable_at_extreme_scores(dtype):
    x = np.array([[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4 - 1], [0, -np.inf, 1e4], [-np.inf, -np.inf, 3]])
    x = x.astype(dtype) if isinstance(dtype, str) else torch.tensor(x).to(dtype)
    y, saved = ops.softmax.forward(x)
    as_numbers = plain(y)
    assert np.isfinite(as_numbers).all()
    np.testing.assert_allclose(as_numbers.sum(axis=-1), 1, rtol=1e-2 if "16" in str(dtype) else 1e-6)
    assert as_numbers[0].tolist() == [0.5, 0, 0.5]
    assert as_numbers[2].tolist() == [0, 0, 1]
    assert as_numbers[3].tolist() == [0, 0, 1]
    dx = ops.softmax.backward(y * 0 + 1, saved)
    assert np.isfinite(plain(dx)).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
def test_a_row_of_minus_infinity_gives_zero_and_gradient_zero(make):
    x = np.random.default_rng(0).standard_normal((3, 4))
    x[1] = -np.inf
    x[2, 1:3] = -np.inf
    y, saved = ops.softmax.forward(make(x))
    dx = ops.softmax.backward(make(np.random.default_rng(1).standard_normal((3, 4))), saved)
    y, dx = plain(y), plain(dx)
    assert not y[1].any() and not dx[1].any()
    assert not y[2, 1:3].any() and not dx[2, 1:3].any()
    np.testing.assert_allclose(y.sum(axis=1), [1, 0, 1], rtol=1e-15)
    assert y[0].all() and dx[0].all()
