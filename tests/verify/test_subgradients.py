"""At a kink any number between the slopes on the two sides is a right gradient, and no other is."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from backpass.verify import check  # noqa: E402
from backpass.verify.report import FAILED  # noqa: E402


def pair(forward, backward):
    return SimpleNamespace(forward=lambda x: (forward(x), x), backward=backward)


def relu(at_0):
    return pair(torch.relu, lambda dy, x: dy * torch.where(x == 0, at_0, (x > 0).to(x.dtype)))


def absolute(at_0):
    return pair(torch.abs, lambda dy, x: dy * torch.where(x == 0, at_0, torch.sign(x)))


def largest(shares):
    def backward(dy, x):
        tied = (x == x.amax(1, keepdim=True)).to(x.dtype)
        return dy[:, None] * shares(tied)

    return pair(lambda x: x.amax(1), backward)


X = torch.tensor(np.random.default_rng(3).normal(size=(4, 3)))
X[1] = 0.0
X[2, :2] = 2.5  # the largest of its row


@pytest.mark.parametrize("at_0", [0.0, 0.3, 1.0])
def test_each_subgradient_is_right(at_0):
    report = check(relu(at_0), X)
    (row,) = report.of("torch autograd")
    assert ("between those of the two sides" in row.note) == (at_0 != 0)
    assert check(absolute(2 * at_0 - 1), X).passed


@pytest.mark.parametrize("at_0", [-0.1, 1.1, torch.nan, torch.inf])
def test_a_number_beyond_the_slopes_is_wrong(at_0):
    assert check(relu(at_0), X, raises=False).of("torch autograd")[0].verdict == FAILED
    assert not check(absolute(2 * at_0 - 1), X, raises=False).passed


def first(tied):
    return (tied.cumsum(1) == 1) * tied


@pytest.mark.parametrize("shares", [first, lambda tied: tied / tied.sum(1, keepdim=True)])
def test_shares_of_a_tie_that_sum_to_1_are_right(shares):
    assert check(largest(shares), X).passed


@pytest.mark.parametrize("shares", [lambda tied: tied, lambda tied: tied * (tied.sum(1, keepdim=True) == 1)])
def test_shares_of_a_tie_with_another_sum_are_wrong(shares):
    for x in (X, X.clamp(max=0)):  # ties among zeros alone, too
        assert not check(largest(shares), x, raises=False).passed


def test_a_wrong_element_beside_kinks_is_wrong():
    right = relu(1.0).backward
    wrong = pair(torch.relu, lambda dy, x: right(dy, x) * (1 + 1e-9 * (x > 1).to(x.dtype)))
    assert check(wrong, X, raises=False).of("torch autograd")[0].verdict == FAILED


def test_sixteen_bits_that_fall_on_a_kink():
    hard_swish = pair(
        lambda x: x * (x + 3).clamp(0, 6) / 6,
        lambda dy, x: dy * torch.where(x <= -3, 0.0, torch.where(x <= 3, (2 * x + 3) / 6, 1.0)).to(x.dtype),
    )
    x = (2 * torch.randn(40, generator=torch.Generator().manual_seed(0))).bfloat16()
    x[:3] = torch.tensor([3.0, -3.0, 3.0])
    assert not check(hard_swish, x, raises=False).failed
