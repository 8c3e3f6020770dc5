"""A Function's second derivative, if it is asked for: wrong where an intermediate was saved, and not run where none is promised."""

import numpy as np
import pytest

from backpass.verify import check

torch = pytest.importorskip("torch")
X, W = (torch.tensor(np.random.default_rng(2).normal(size=shape)) for shape in ((4, 3), (3,)))
METHODS = ["contract", "finite_difference", "second_derivative"]


class FromInputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.sin(x) * w**2

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * torch.cos(x) * w**2, (dy * torch.sin(x) * 2 * w).sum(0)


class FromIntermediate(FromInputs):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.square = w**2
        return torch.sin(x) * ctx.square

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * torch.cos(x) * ctx.square, (dy * torch.sin(x) * 2 * w).sum(0)


class Once(FromInputs):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * torch.cos(x) * w**2, (dy * torch.sin(x) * 2 * w).sum(0)


def rows(op):
    return check(op, X, W, methods=METHODS, raises=False).of("second derivative")


def test_from_inputs():
    assert [(row.quantity, row.verdict) for row in rows(FromInputs)] == [("dx", "passed"), ("dw", "passed")]


def test_from_an_intermediate():
    assert check(FromIntermediate, X, W).passed  # its gradients are right
    dx, dw = rows(FromIntermediate)
    assert (dx.verdict, dw.verdict) == ("passed", "FAILED")
    assert "once_differentiable" in dw.reason


def test_what_promises_none_is_not_run():
    (row,) = rows(Once)
    assert row.verdict == "not run" and "once_differentiable" in row.reason


def test_an_object_has_none():
    (row,) = check("softmax", methods=["finite_difference", "second_derivative"]).of("second derivative")
    assert row.verdict == "not run" and "only a torch.autograd.Function" in row.reason
