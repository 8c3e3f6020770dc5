"""Forwards of which autograd follows a part, each beside a wrong backward."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass.verify import check
from backpass.verify.report import NOT_RUN, PASSED
from backpass.verify.vary import work


def branch(factor):
    """tanh by NumPy, which autograd does not follow."""

    class Branch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gain):
            ctx.save_for_backward(x, gain)
            return torch.from_numpy(np.tanh(x.detach().numpy())) * gain

        @staticmethod
        def backward(ctx, dy):
            x, gain = ctx.saved_tensors
            t = torch.tanh(x)
            return factor * dy * gain * (1 - t * t), (dy * t).sum(0)

    return Branch


class Residual(torch.nn.Module):
    """x and a small branch, as a network starts with LayerScale."""

    def __init__(self, factor, gain):
        super().__init__()
        self.branch = branch(factor)
        self.gain = torch.nn.Parameter(torch.full((3,), gain, dtype=torch.float64))

    def forward(self, x):
        return x + self.branch.apply(x, self.gain)


@pytest.mark.parametrize("gain", [1e-4, 1e-6, 1e-7])
@pytest.mark.parametrize("seed", range(2))
def test_a_small_branch_that_autograd_does_not_follow(gain, seed):
    x = torch.tensor(np.random.default_rng(seed).normal(size=(4, 3)))
    report = check(Residual(1.0, gain), x, seed=seed, vary=False)
    assert {row.verdict for row in report.of("torch autograd") if row.quantity == "dx"} == {NOT_RUN}
    if gain > 1e-6:  # differences see an error of 2e-4 · gain
        assert not check(Residual(1.2, gain), x, seed=seed, vary=False, raises=False).passed


class WithoutGraph(torch.autograd.Function):
    """Recomputes in the backward, as checkpoints do."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx, dy):
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            y = ctx.function(*leaves)
        return None, *torch.autograd.grad(y, leaves, dy)


class Recomputed(torch.nn.Module):
    def __init__(self, size, wrong=False):
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(-1, 2, 6, dtype=torch.float64).reshape(3, 2))
        self.b = torch.nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))
        self.size, self.wrong = size, wrong

    def forward(self, x):
        def inner(x, w, b):
            return torch.tanh(x @ (w.detach() if self.wrong and torch.is_grad_enabled() else w) + b).sum(
                -1, keepdim=True
            )

        return x + self.size * WithoutGraph.apply(inner, x, self.w, self.b)


@pytest.mark.parametrize("size", [1.0, 1e-8])
def test_a_checkpoint_beside_a_residual(size):
    """A bias that autograd does not follow at all has a reference of 0."""
    for seed in range(3):
        x = torch.tensor(np.random.default_rng(seed).normal(size=(4, 3)))
        check(Recomputed(size), x, seed=seed, vary=False)
    assert not check(Recomputed(1.0, wrong=True), x, vary=False, raises=False).passed


def two_outputs(factor):
    class Two(torch.autograd.Function):
        """None for an input that only an unused output needs."""

        @staticmethod
        def forward(ctx, x, w):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x, w)
            return x * w, x.sin()

        @staticmethod
        def backward(ctx, a, b):
            x, w = ctx.saved_tensors
            dx, dw = torch.zeros_like(x), None
            if a is not None:
                dx, dw = dx + a * w, (a * x).sum(0)
            if b is not None and (factor or a is not None):
                dx = dx + b * x.cos()
            return dx if factor or a is not None else None, dw

    return Two


def test_none_for_an_output_that_is_not_used():
    x, w = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    assert "output 1 is not used" in str(check(two_outputs(1), x, w))
    (failed,) = check(two_outputs(0), x, w, raises=False).failed
    assert failed.variation == "output 1 is not used" and failed.quantity == "dx"


class Biased:
    """A layer whose tensors keep their gradients."""

    def __init__(self, seed, terms=None):
        self.bias = torch.tensor(np.random.default_rng(seed).normal(size=4))
        self.terms = terms
        self.zero_grad()

    def zero_grad(self):
        self.bias.grad = torch.zeros_like(self.bias)

    def forward(self, x):
        return x + self.bias

    def backward(self, dy):
        rows = dy if self.terms is None else dy[: self.terms]
        self.bias.grad += rows.sum(0)
        return dy


def test_a_tensor_that_keeps_its_gradient_is_followed():
    for seed in range(3):
        x = torch.tensor(np.random.default_rng(seed).normal(size=(5, 4)))
        report = check(Biased(seed), x, seed=seed, vary=True)
        assert {row.verdict for row in report.of("torch autograd")} == {PASSED}
    assert not check(Biased(0, terms=4), x, raises=False).passed


def log_det(gradient):
    def forward(a):
        return 2 * np.log(np.diagonal(np.linalg.cholesky(a))).sum(), a

    return SimpleNamespace(forward=forward, backward=lambda dy, a: dy * gradient(np.linalg.inv(a)))


def test_a_symmetric_matrix_of_which_one_triangle_is_read():
    b = np.random.default_rng(0).normal(size=(4, 7))
    a = b @ b.T
    report = check(log_det(lambda inverse: inverse), a)
    (row,) = report.of("finite differences")
    assert (
        row.note == "a is symmetric, and forward reads one of its triangles: compared for symmetric changes"
    )
    both = np.tril(np.ones((4, 4)), -1) + np.tril(np.ones((4, 4)))
    check(log_det(lambda inverse: inverse * both), a, vary=False)  # the derivative by what is read
    for wrong in (
        lambda inverse: 2 * inverse,
        lambda inverse: np.tril(inverse),
        lambda inverse: inverse * both.T,
    ):
        assert not check(log_det(wrong), a, raises=False).passed


def test_a_function_of_both_triangles_is_compared_as_usual():
    v, w = np.random.default_rng(0).normal(size=(2, 4))

    def bilinear(gradient):
        return SimpleNamespace(forward=lambda a: (v @ a @ w, a), backward=lambda dy, a: dy * gradient)

    right = np.outer(v, w)
    check(bilinear(right), np.eye(4) + 1.0)
    assert not check(bilinear((right + right.T) / 2), np.eye(4) + 1.0, raises=False).passed


def test_a_call_of_pytorch_counts_as_several_lines():
    def forward(x):
        for _ in range(100):
            x = torch.sin(x)
        return x

    y, count = work.lines(forward, torch.ones(2))
    assert y.shape == (2,) and 100 * work.TORCH < count < 102 * work.TORCH + 300
    with pytest.raises(work.TooMuch):
        work.lines(forward, torch.ones(2), most=50 * work.TORCH)
    assert work.lines(lambda x: sum([x] * 100, x), np.ones(2))[1] < 2 * work.TORCH
