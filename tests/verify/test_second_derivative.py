"""A Function's second derivative: wrong where an intermediate was saved, and not run where none is promised. It fails
only if the method is named, and is reported otherwise."""

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
    assert [(row.quantity, row.verdict) for row in rows(FromInputs)] == [
        (quantity, "passed") for quantity in ("ddy", "dx", "dw")
    ]


def test_from_an_intermediate():
    assert check(FromIntermediate, X, W).passed  # its gradients are right
    _, dx, dw = rows(FromIntermediate)
    assert (dx.verdict, dw.verdict) == ("passed", "FAILED")
    assert "once_differentiable" in dw.reason


def test_what_promises_none_is_not_run():
    (row,) = rows(Once)
    assert row.verdict == "not run" and "once_differentiable" in row.reason


def test_an_object_has_none():
    (row,) = check("softmax", methods=["finite_difference", "second_derivative"]).of("second derivative")
    assert row.verdict == "not run" and "only a torch.autograd.Function" in row.reason


def test_a_wrong_one_is_reported_by_default_and_does_not_fail():
    report = check(FromIntermediate, X, W)
    (row,) = report.of("second derivative")
    assert report.passed and row.verdict == "not run" and row.quantity == ""
    assert "wrong with respect to w: save only inputs and outputs on ctx" in row.reason
    for op in (FromInputs, Once):
        assert not check(op, X, W).of("second derivative")
    assert not check(FromIntermediate, X, W, methods=["finite_difference"]).of("second derivative")


class Kinked(torch.autograd.Function):
    """The gradient jumps at 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x**2, -3 * x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * torch.where(x > 0, 2 * x, -3.0)


class Saved(Kinked):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = torch.where(x > 0, 2 * x, -3.0)
        return torch.where(x > 0, x**2, -3 * x)

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.slope


@pytest.mark.parametrize(("near", "right"), [(1e-3, ["passed", "passed"]), (2e-5, ["passed", "not run"])])
def test_a_kink_within_a_step_is_not_a_fault(near, right):
    x = X.clone()
    x[0, 0] = (
        near  # times the largest element, differences reach 2e-3 with the first step, 2e-4 with the second
    )
    named = ["finite_difference", "second_derivative"]

    def verdicts(op):
        return [row.verdict for row in check(op, x, methods=named, raises=False).of("second derivative")]

    assert verdicts(Kinked) == right
    assert not check(Kinked, x, vary=False, raises=False).of("second derivative")
    assert verdicts(Saved)[1] in ("FAILED", "not run")


def test_a_graph_of_saved_outputs_is_not_freed():
    class Tanh(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.tanh(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, dy):
            (y,) = ctx.saved_tensors
            return dy * (1 - y * y)

    assert check(Tanh, X).passed
    named = ["second_derivative", "contract", "finite_difference"]
    assert [row.verdict for row in check(Tanh, X, methods=named).of("second derivative")] == ["passed"] * 2


@pytest.mark.parametrize("factor", [1.0, 1 / 3])
def test_the_derivative_with_respect_to_dy(factor):
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, dy, x):
            ctx.save_for_backward(dy, x)
            return dy * torch.cos(x)

        @staticmethod
        def backward(ctx, g):
            dy, x = ctx.saved_tensors
            return factor * g * torch.cos(x), -g * dy * torch.sin(x)

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.sin(x)

        @staticmethod
        def backward(ctx, dy):
            return Backward.apply(dy, *ctx.saved_tensors)

    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    report = check(Sine, x, methods=["finite_difference", "second_derivative"], raises=False)
    failed = {row.quantity for row in report.failed}
    assert failed == (set() if factor == 1 else {"ddy"}), str(report)
