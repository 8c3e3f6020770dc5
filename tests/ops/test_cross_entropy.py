"""What cross-entropy promises beside the contract; its targets' tests are those of nll."""

import numpy as np
import pytest
import torch

from backpass import cost
from backpass.ops import cross_entropy, log_softmax, nll

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])


@REDUCTIONS
def test_it_is_its_two_parts_in_one(reduction):
    """The same loss, bit for bit, and the gradient that the two backwards make one after the other."""
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((2, 3, 5)), rng.integers(0, 5, (2, 3))
    t[1, 2] = -100
    y, saved = cross_entropy.forward(x, t, reduction=reduction)

    logs, saved_logs = log_softmax.forward(x)
    parts_y, saved_nll = nll.forward(logs, t, reduction=reduction)
    dy = np.array(-1.75)
    expected = log_softmax.backward(nll.backward(dy, saved_nll), saved_logs)
    assert y == parts_y
    np.testing.assert_allclose(cross_entropy.backward(dy, saved), expected, rtol=1e-13, atol=1e-16)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_is_stable_at_scores_of_ten_thousand(dtype):
    x = torch.tensor([[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4], [0, -torch.inf, 1e4]]).to(dtype)
    t = torch.tensor([1, 0, 2])
    y, saved = cross_entropy.forward(x, t, reduction="sum")
    dx = cross_entropy.backward(torch.ones((), dtype=dtype), saved)
    leaf = x.double().requires_grad_()
    expected_y = torch.nn.functional.cross_entropy(leaf, t, reduction="sum")
    expected = torch.autograd.grad(expected_y, leaf)[0]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), expected_y.detach(), rtol=2 * eps, atol=0)
    torch.testing.assert_close(dx.double(), expected, rtol=0, atol=4 * eps)


@REDUCTIONS
def test_the_gradient_of_a_counted_row_sums_to_zero(reduction):
    rng = np.random.default_rng(1)
    x, t = rng.standard_normal((4, 6)), np.array([5, 0, -100, 0])
    _, saved = cross_entropy.forward(x, t, reduction=reduction)
    dx = cross_entropy.backward(np.array(2.0), saved)
    np.testing.assert_allclose(dx.sum(axis=1), 0, atol=1e-15)
    assert (dx < 0).sum(axis=1).tolist() == [1, 1, 0, 1]  # the target's score alone is to rise


def test_it_keeps_one_array_of_the_scores_size():
    kept = cost.memory(cross_entropy, np.zeros((3, 7), np.float32), np.array([1, -100, 6]))
    assert [(part.name, part.bytes) for part in kept.arrays] == [("p", 3 * 7 * 4), ("t", 3 * 8)]


def test_nll_keeps_no_log_probability():
    kept = cost.memory(nll, np.zeros((3, 7), np.float32), np.array([1, -100, 6]))
    assert [(part.name, part.bytes) for part in kept.arrays] == [("t", 3 * 8)]
