"""What log-softmax promises beside the contract: extreme scores, masked ones, rows of nothing else."""

import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.interpreters.closed_world import Array
from backpass.ops import log_softmax, softmax

MAKERS = pytest.mark.parametrize(
    "make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"]
)
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)


def plain(x):
    return x.to_numpy() if isinstance(x, Array) else np.asarray(x)


@pytest.mark.filterwarnings("error")
@DTYPES
def test_it_is_stable_at_scores_of_ten_thousand(dtype):
    x = torch.tensor([[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4], [0, -torch.inf, 1e4]]).to(dtype)
    y, saved = log_softmax.forward(x)
    expected = torch.log_softmax(x.double(), dim=-1)
    torch.testing.assert_close(
        y.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-3 if dtype.itemsize == 2 else 1e-6
    )
    dx = log_softmax.backward(torch.ones_like(y), saved)
    assert torch.isfinite(dx).all()


def test_a_probability_that_underflows_keeps_its_logarithm():
    """What softmax and a logarithm after it lose: at a distance of 1000 the weight is 0 and its logarithm −∞."""
    x = np.array([0.0, -1000.0])
    with np.errstate(divide="ignore"):
        assert np.log(softmax.forward(x)[0])[1] == -np.inf
    assert log_softmax.forward(x)[0][1] == -1000


@pytest.mark.filterwarnings("error")
@MAKERS
def test_masked_entries_stay_minus_infinity_and_leave_the_others_alone(make):
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    x[1, 1:3] = -np.inf
    x[2] = -np.inf
    y, saved = log_softmax.forward(make(x))
    y, dx = plain(y), plain(log_softmax.backward(make(dy), saved))
    assert np.array_equal(np.isneginf(y), np.isneginf(x))
    np.testing.assert_allclose(np.exp(y).sum(axis=1), [1, 1, 0], rtol=1e-15)
    np.testing.assert_allclose(y[1, [0, 3]], plain(log_softmax.forward(x[1, [0, 3]])[0]), rtol=1e-14)
    assert np.array_equal(dx[np.isneginf(x)], dy[np.isneginf(x)])  # a weight of 0 shares in nothing


def test_one_class_has_probability_1_whatever_its_score():
    y, saved = log_softmax.forward(np.array([[3.0], [-1e4]]))
    assert not y.any()
    assert not log_softmax.backward(np.array([[2.0], [5.0]]), saved).any()
