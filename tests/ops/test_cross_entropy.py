"""What cross-entropy promises beside the contract; its targets' tests are those of nll."""

import numpy as np
import pytest
import torch

from backpass import cost
from backpass.interpreters import counting
from backpass.ops import cross_entropy, log_softmax, nll, soft_cross_entropy

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])
OPTIONS = {
    "plain": {},
    "weighted": {"weight": np.array([0.5, 0.0, 2.0, 1.25, 0.75])},
    "smoothed": {"label_smoothing": 0.3},
    "both": {"weight": np.array([0.5, 0.0, 2.0, 1.25, 0.75]), "label_smoothing": 0.3},
}
WITH_OPTIONS = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


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


def row_of_weights(t, weight=None, label_smoothing=0.0):
    """Each target as soft_cross_entropy takes it: most of it at its class, the rest spread over all."""
    weight = np.ones(5) if weight is None else weight
    return weight * ((1 - label_smoothing) * np.eye(5)[t] + label_smoothing / 5)


@WITH_OPTIONS
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_it_is_soft_cross_entropy_of_the_targets_that_its_options_describe(options, reduction):
    rng = np.random.default_rng(2)
    x, t = rng.standard_normal((2, 3, 5)), rng.integers(0, 5, (2, 3))
    dy = rng.standard_normal((2, 3) if reduction == "none" else ())
    weight = options.get("weight", np.ones(5))
    divisor = np.sum(weight[t]) if reduction == "mean" else 1.0
    q = row_of_weights(t, **options) * np.broadcast_to(dy / divisor, t.shape)[..., None]
    expected_y, soft = soft_cross_entropy.forward(x, q, reduction="sum")
    expected, _ = soft_cross_entropy.backward(np.array(1.0), soft)
    y, saved = cross_entropy.forward(x, t, reduction=reduction, **options)
    np.testing.assert_allclose(np.sum(dy * y), expected_y, rtol=1e-12)
    np.testing.assert_allclose(cross_entropy.backward(dy, saved), expected, rtol=1e-12, atol=1e-15)


@WITH_OPTIONS
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_cost_is_that_of_the_options(options, reduction):
    x, t = np.random.default_rng(0).standard_normal((2, 3, 5)), np.array([[0, 1, -100], [4, 0, 0]])
    weight, rest = options.get("weight"), {k: v for k, v in options.items() if k != "weight"}
    table = cost.table(cross_entropy, x, t, weight, reduction=reduction, **rest)
    assert table.value == (table.cost.forward.total, table.cost.backward.total)
    if not options:
        of_mean = 1 if reduction == "mean" else 0
        assert table.value.backward == 6 * (2 * 5 + 1) + of_mean
        of_sum = 0 if reduction == "none" else 5
        assert table.value.forward == cost.formula(log_softmax, x).forward + of_sum + of_mean


@WITH_OPTIONS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_options_are_computed_in_float32_and_rounded_once(options, dtype):
    generator = torch.Generator().manual_seed(0)
    x, t = torch.randn(40, 5, generator=generator).to(dtype), torch.arange(40) % 5
    weight, rest = options.get("weight"), {k: v for k, v in options.items() if k != "weight"}
    weight = None if weight is None else torch.tensor(weight, dtype=dtype)
    y, saved = cross_entropy.forward(x, t, weight, **rest)
    dx = cross_entropy.backward(torch.ones((), dtype=dtype), saved)
    wide = None if weight is None else weight.double()
    exact_y, exact = cross_entropy.forward(x.double(), t, wide, **rest)
    exact_dx = cross_entropy.backward(torch.ones((), dtype=torch.float64), exact)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), exact_y, rtol=2 * eps, atol=0)
    torch.testing.assert_close(dx.double(), exact_dx, rtol=0, atol=8 * eps * exact_dx.abs().max().item())


@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-0.1, ValueError, "label_smoothing: expected a probability from 0 to 1; got -0.1"),
        (1.5, ValueError, "label_smoothing: expected a probability from 0 to 1; got 1.5"),
        (float("nan"), ValueError, "label_smoothing: expected a probability from 0 to 1; got nan"),
        ("0.1", TypeError, "label_smoothing: expected a probability, a real number; got str"),
    ],
)
def test_a_smoothing_that_is_not_a_share_is_rejected_before_any_arithmetic(make, value, error, message):
    with counting.tally() as tally, pytest.raises(error, match=message):
        cross_entropy.forward(make(np.ones((2, 3))), make(np.array([0, 1])), label_smoothing=value)
    assert tally.total == 0


@pytest.mark.filterwarnings("error")
def test_a_score_of_minus_infinity_is_as_in_pytorch():
    """Smoothing gives every class a share, so the loss is infinite; the gradient there is minus the share."""
    x, t = np.array([[0.0, 1.0, -np.inf], [0.5, -np.inf, 2.0]]), np.array([1, -100])
    y, saved = cross_entropy.forward(x, t, label_smoothing=0.3)
    leaf = torch.tensor(x, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(leaf, torch.tensor(t), label_smoothing=0.3)
    assert y == expected.item() == np.inf
    dx = cross_entropy.backward(np.array(2.0), saved)
    np.testing.assert_allclose(dx, torch.autograd.grad(2 * expected, leaf)[0].numpy(), rtol=1e-14)
    assert dx[0, 2] == pytest.approx(-2 * 0.3 / 3, rel=1e-14)


def test_class_weights_are_not_copied():
    weight = np.ones(7, np.float32)
    x, t = np.zeros((3, 7), np.float32), np.array([1, -100, 6])
    _, saved = cross_entropy.forward(x, t, weight)
    assert saved.weight is weight
    kept = cost.memory(cross_entropy, x, t, weight)
    assert kept.activations == 3 * 7 * 4 + 3 * 8 + 4
