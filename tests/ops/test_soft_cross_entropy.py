"""What soft_cross_entropy promises beside the contract: targets that are any weights, large scores, one and no rows."""

import numpy as np
import pytest
import torch

from backpass import cost
from backpass.interpreters import counting
from backpass.ops import cross_entropy, soft_cross_entropy

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])


def by_torch(x, q, dy, **options):
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, q)]
    y = torch.nn.functional.cross_entropy(*leaves, **options)
    return y.item(), *(g.numpy() for g in torch.autograd.grad(y, leaves, torch.tensor(dy)))


@REDUCTIONS
def test_a_distribution_of_one_class_is_a_target(reduction):
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((2, 3, 5)), rng.integers(0, 5, (2, 3))
    y, saved = soft_cross_entropy.forward(x, np.eye(5)[t], reduction=reduction)
    hard_y, hard_saved = cross_entropy.forward(x, t, reduction=reduction)
    np.testing.assert_allclose(y, hard_y, rtol=1e-14)
    dy = np.array(-1.75)
    dx, _ = soft_cross_entropy.backward(dy, saved)
    np.testing.assert_allclose(dx, cross_entropy.backward(dy, hard_saved), rtol=1e-13, atol=1e-16)


@REDUCTIONS
@pytest.mark.parametrize("total", [1.0, 2.5, 0.0, -0.5])
def test_targets_need_not_sum_to_1(reduction, total):
    """The gradient is softmax times their sum, minus them; softmax minus targets only where the sum is 1."""
    rng = np.random.default_rng(1)
    x, q = rng.standard_normal((4, 6)), rng.standard_normal((4, 6))
    q += (total - q.sum(axis=1, keepdims=True)) / 6
    y, saved = soft_cross_entropy.forward(x, q, reduction=reduction)
    dx, dq = soft_cross_entropy.backward(np.array(1.5), saved)
    expected_y, expected_dx, expected_dq = by_torch(x, q, 1.5, reduction=reduction)
    np.testing.assert_allclose(y, expected_y, rtol=1e-13)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(dq, expected_dq, rtol=1e-13)
    np.testing.assert_allclose(dx.sum(axis=1), 0, atol=1e-14)

    printed = (np.exp(saved.p) - q) * 1.5 / (4 if reduction == "mean" else 1)
    assert np.allclose(dx, printed) == (total == 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_is_stable_at_scores_of_ten_thousand(dtype):
    x = torch.tensor([[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4]]).to(dtype)
    q = torch.tensor([[0, 0.25, 0.75], [1, 0, 0]]).to(dtype)
    y, saved = soft_cross_entropy.forward(x, q, reduction="sum")
    dx, dq = soft_cross_entropy.backward(torch.ones((), dtype=dtype), saved)
    wide = soft_cross_entropy.forward(x.double(), q.double(), reduction="sum")
    exact_dx, exact_dq = soft_cross_entropy.backward(torch.ones((), dtype=torch.float64), wide[1])
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), wide[0], rtol=eps, atol=0)
    torch.testing.assert_close(dx.double(), exact_dx, rtol=0, atol=2 * eps)
    torch.testing.assert_close(dq.double(), exact_dq, rtol=2 * eps, atol=0)


def test_a_score_of_minus_infinity_is_as_in_pytorch():
    """0 · ∞ in the loss, which is NaN even where the target is 0; the gradient of that score is 0."""
    x, q = np.array([[0.0, 1.0, -np.inf]]), np.array([[0.5, 0.5, 0.0]])
    with np.errstate(invalid="ignore"):
        y, saved = soft_cross_entropy.forward(x, q)
    found = soft_cross_entropy.backward(np.array(2.0), saved)
    expected = by_torch(x, q, 2.0)
    assert np.isnan(y) and np.isnan(expected[0])
    for got, wanted in zip(found, expected[1:], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-13, atol=1e-16)
    assert found[0][0, 2] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_long_sums_neither_overflow_nor_stall(dtype):
    """In float16 a sum over 20,000 rows is past its largest number; in bfloat16 adding to it changes nothing."""
    x = torch.zeros(20_000, 8, dtype=dtype)
    x[:, 0] = 8
    q = torch.zeros_like(x)
    q[:, 1] = 1
    y, _ = soft_cross_entropy.forward(x, q)
    expected, _ = soft_cross_entropy.forward(x.double(), q.double())
    assert abs(y.double() - expected) <= torch.finfo(dtype).eps * expected


def test_no_rows():
    x = np.zeros((0, 3))
    y, saved = soft_cross_entropy.forward(x, x)
    assert np.isnan(y)  # as PyTorch's mean of nothing
    assert soft_cross_entropy.forward(x, x, reduction="sum")[0] == 0
    assert [g.shape for g in soft_cross_entropy.backward(np.array(1.0), saved)] == [(0, 3)] * 2


def test_one_class_has_no_loss():
    y, saved = soft_cross_entropy.forward(np.array([-0.5]), np.array([0.75]))
    dx, dq = soft_cross_entropy.backward(np.array(3.0), saved)
    assert (y, dx.tolist(), dq.tolist()) == (0, [0], [0])


def test_it_keeps_scores_and_targets():
    kept = cost.memory(soft_cross_entropy, np.zeros((3, 7), np.float32), np.zeros((3, 7), np.float32))
    assert [(part.name, part.bytes) for part in kept.arrays] == [("p", 84), ("q", 84)]


@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
def test_targets_of_the_wrong_kind_are_sent_to_the_other_loss(make):
    x, q = np.ones((2, 3)), np.full((2, 3), 1 / 3)
    message = (
        "t: expected integers; got dtype .*float64; targets that are distributions .* soft_cross_entropy"
    )
    with counting.tally() as tally, pytest.raises(TypeError, match=message):
        cross_entropy.forward(make(x), make(q))
    with pytest.raises(TypeError, match=r"q: expected floating-point numbers; got dtype .*int64"):
        soft_cross_entropy.forward(make(x), make(np.zeros((2, 3), np.int64)))
    assert tally.total == 0


def test_another_reduction_is_rejected():
    with pytest.raises(ValueError, match="reduction: expected 'mean' or 'sum'; got 'none'"):
        soft_cross_entropy.forward(np.ones((2, 3)), np.ones((2, 3)), reduction="none")


def test_targets_that_are_classes_are_sent_to_cross_entropy():
    with pytest.raises(TypeError, match=r"q: expected floating-point.*int64; .* are for cross_entropy"):
        soft_cross_entropy.forward(np.zeros((2, 3)), np.array([0, 1]))
