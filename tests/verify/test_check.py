"""Every method sees a planted mistake; what shows nothing is not called passed; anything with the two functions will do."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass import ops
from backpass.contract.arrays import namespace
from backpass.ops import dropout, gelu, linear, matmul, softmax
from backpass.verify import METHODS, Report, Row, VerificationError, check, draw, references

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 5))
EVERY_METHOD = ("finite_difference", "complex_step", "symbolic", "autograd", "pytorch")


def with_backward(op, wrong):
    """``op`` with each gradient passed through ``wrong``."""

    def backward(dy, saved):
        gradients = op.backward(dy, saved)
        return tuple(map(wrong, gradients)) if isinstance(gradients, tuple) else wrong(gradients)

    return SimpleNamespace(**{**vars(op), "backward": backward})


def without_sum(dy, saved):
    return saved.y * dy


def one_element(gradient):
    """The gradient with its last element changed, in any library."""
    flat = gradient.reshape(-1) if hasattr(gradient, "reshape") else None
    if flat is not None:
        flat = flat.clone() if isinstance(flat, torch.Tensor) else flat.copy()
        flat[-1] = flat[-1] * 1.001
        return flat.reshape(gradient.shape)
    values = gradient.to_numpy()  # symbols
    values[(-1,) * values.ndim] *= 2
    return gradient.__array_namespace__().asarray(values)


@pytest.mark.parametrize("stem", ops.STEMS)
def test_every_operation_passes_by_every_method(stem):
    report = check(stem)
    assert report.passed
    for name in EVERY_METHOD:
        assert report.of(METHODS[name].NAME), name
        assert all(row.verdict == "passed" for row in report.of(METHODS[name].NAME))


def test_an_operation_without_a_reference_says_where_to_write_it(monkeypatch):
    monkeypatch.setattr(references, "STEMS", ())
    (row,) = check("softmax", methods=["pytorch"], raises=False).rows
    assert row.reason == (
        "no operator to compare with; write a function softmax in src/backpass/verify/references.py"
    )


@pytest.mark.parametrize("method", EVERY_METHOD)
@pytest.mark.parametrize(
    "wrong",
    [one_element, lambda g: -g, lambda g: 2 * g, lambda g: 0 * g],
    ids=["element", "sign", "factor", "zero"],
)
@pytest.mark.parametrize("op", [softmax, linear, matmul], ids=lambda op: op.__name__.rpartition(".")[2])
def test_every_method_sees_a_planted_mistake(op, wrong, method):
    report = check(with_backward(op, wrong), methods=[method], raises=False)
    assert report.failed
    gradients = [row for row in report.rows if row.quantity != "y"]
    assert {row.verdict for row in gradients} == {"FAILED"}


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_sees_a_missing_term(method):
    dropped = SimpleNamespace(**{**vars(softmax), "backward": without_sum})
    assert check(dropped, methods=[method], raises=False).failed


@pytest.mark.parametrize("method", ["finite_difference", "complex_step"])
def test_directions_see_one_wrong_element_among_many(method):
    x = RNG.standard_normal((64, 64))
    assert check(softmax, x, methods=[method]).passed
    report = check(with_backward(softmax, one_element), x, methods=[method], raises=False)
    (row,) = report.rows
    assert row.verdict == "FAILED"
    assert "8 random directions;" in row.how


def test_pytorchs_operator_sees_a_wrong_forward_that_its_backward_agrees_with():
    def forward(x):
        y, saved = softmax.forward(2 * x)
        return y, saved

    doubled = SimpleNamespace(SHAPES=softmax.SHAPES, __name__="softmax", forward=forward)
    doubled.backward = lambda dy, saved: 2 * softmax.backward(dy, saved)
    report = check(doubled, X, raises=False)
    # The kernel, which runs if an earlier test has chosen Triton's interpreter, computes softmax and disagrees too.
    assert {row.method for row in report.failed} - {"Triton kernel"} == {"PyTorch's operator"}
    assert "y" in {row.quantity for row in report.failed}


class TestVacuous:
    def test_a_zero_cotangent(self):
        report = check(
            softmax, X, dy=np.zeros_like(X), methods=["finite_difference", "autograd"], raises=False
        )
        assert [row.verdict for row in report.rows] == ["vacuous"] * 2
        assert not report.passed
        assert all("cotangent is zero" in row.reason for row in report.rows)

    def test_a_cotangent_of_ones_for_softmax(self):
        report = check(
            softmax, X, dy=np.ones_like(X), methods=["complex_step", "autograd", "pytorch"], raises=False
        )
        assert [row.verdict for row in report.rows if row.quantity == "dx"] == ["vacuous"] * 3

    def test_a_saturated_softmax(self):
        report = check(softmax, 1e4 * X, raises=False)
        assert report.having("vacuous")
        assert not report.passed

    def test_an_empty_array(self):
        report = check(linear, np.ones((0, 5)), np.ones((5, 2)), methods=["autograd"], raises=False)
        (dx, dw) = report.rows
        assert dx.verdict == "vacuous"
        assert "empty" in dx.reason
        assert dw.verdict == "vacuous"

    def test_a_gradient_that_is_identically_zero(self):
        shift = SimpleNamespace(
            forward=lambda x, b: (softmax.forward(x + b)[0], softmax.forward(x + b)[1]),
            backward=lambda dy, saved: (
                softmax.backward(dy, saved),
                np.sum(softmax.backward(dy, saved), -1, keepdims=True),
            ),
        )
        methods = ["finite_difference", "complex_step"]
        undeclared = check(shift, X, np.ones((3, 1)), methods=methods, raises=False)
        assert [row.verdict for row in undeclared.rows] == ["passed", "vacuous"] * 2
        assert check(shift, X, np.ones((3, 1)), methods=methods, zero_gradients=["b"]).passed
        shift.ZERO_GRADIENTS = ("b",)
        assert check(shift, X, np.ones((3, 1)), methods=methods).passed

    def test_a_gradient_declared_zero_that_is_not(self):
        report = check(softmax, X, methods=["complex_step"], zero_gradients=["x"], raises=False)
        assert "declared zero" in report.rows[0].reason

    def test_not_zero_where_the_reference_is(self):
        constant = SimpleNamespace(forward=lambda x: (x * 0, x), backward=lambda dy, x: dy)
        report = check(constant, X, methods=["finite_difference"], raises=False)
        assert report.failed
        assert "expected 0" in report.rows[0].reason


class TestNotFinite:
    def test_minus_infinity_is_not_a_direction(self):
        x = X.copy()
        x[0, 1] = x[2, 4] = -np.inf
        report = check(softmax, x)
        assert report.passed
        assert "no reference at 2 of 15" in report.of("finite differences")[0].note

    def test_a_row_of_minus_infinity_where_pytorch_gives_nan(self):
        x = X.copy()
        x[1] = -np.inf
        report = check(softmax, x)
        assert report.passed
        assert "no reference at 5 of 15 entries (NaN)" in report.of("PyTorch's operator")[0].note

    @pytest.mark.parametrize("value", [-np.inf, np.inf])
    def test_a_gradient_where_the_input_is_infinite(self, value):
        x = X.copy()
        x[0, 1] = value
        wrong = SimpleNamespace(
            forward=lambda x: (np.tanh(x), x),
            backward=lambda dy, x: np.where(np.isinf(x), 123.0, dy * (1 - np.tanh(x) ** 2)),
        )
        (row,) = check(wrong, x, raises=False).failed
        assert row.reason == f"dx: expected 0 where x is {value}, at index [0, 1]; got 123"
        right = SimpleNamespace(forward=wrong.forward, backward=lambda dy, x: dy * (1 - np.tanh(x) ** 2))
        assert check(right, x).passed

    def test_pytorchs_operator_may_say_otherwise(self):
        """Clipped, with the gradient of the identity: a straight-through estimator."""

        class StraightThrough(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return torch.clamp(x, -1, 1)

            @staticmethod
            def backward(ctx, dy):
                return dy

        x = torch.tensor(X)
        x[0, 1] = np.inf
        own = SimpleNamespace(forward=lambda x: (torch.clamp(x, -1, 1), None), backward=lambda dy, saved: dy)
        (row,) = check(own, x, methods=["contract"], raises=False).rows
        assert "expected 0 where x is inf" in row.reason
        operator = StraightThrough.apply
        (row,) = check(own, x, methods=["contract"], raises=False, operator=operator).rows
        assert row.verdict == "passed"

    @pytest.mark.parametrize("method", ["finite_difference", "autograd"])
    def test_nan_fails(self, method):
        def wrong(gradient):
            gradient = gradient + 0
            gradient[1, 2] = float("nan")
            return gradient

        report = check(with_backward(softmax, wrong), X, methods=[method], raises=False)
        assert report.failed
        assert "NaN at index [1, 2]" in report.rows[0].reason

    @pytest.mark.parametrize(("power", "right"), [(2, torch.sign), (4, lambda x: 2 * x)])
    def test_autograd_does_not_judge_where_it_returns_nan(self, power, right):
        x = torch.tensor([[1.5, 0.0, -2.0]], dtype=torch.float64)

        def row(factor):
            root = SimpleNamespace(forward=lambda x: ((x**power) ** 0.5, x))
            root.backward = lambda dy, x: factor * dy * right(x)
            return check(root, x, methods=["autograd"], raises=False).rows[0]

        assert "autograd returns NaN" in row(1).reason
        assert row(1.01).reason.startswith("the reference is NaN at index [0, 1]")


class TestLowPrecision:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("stem", ops.STEMS)
    def test_operations_pass(self, stem, dtype):
        from backpass.verify.convert import to_torch
        from backpass.verify.drawing import draw, options_for

        inputs = [to_torch(a, dtype=dtype) for a in draw(stem, np.random.default_rng(3))]
        # The others compute in float64, and run at every case of every operation in test_all_operations.py.
        methods = ["contract", "autograd", "pytorch", "precision"]
        report = check(stem, *inputs, methods=methods, options=options_for(stem))
        assert report.passed
        assert {row.quantity for row in report.of("low precision")} > {"y"}

    def test_an_error_of_two_per_cent_is_seen_in_bfloat16(self):
        x = torch.tensor(RNG.standard_normal((4, 64))).bfloat16()

        def backward(dy, saved):
            dx = softmax.backward(dy, saved)
            return dx * (1.05 if dx.dtype == torch.bfloat16 else 1)

        wrong = SimpleNamespace(**{**vars(softmax), "backward": backward})
        assert {row.method for row in check(wrong, x, raises=False).failed} == {"low precision"}

    def test_the_bound_follows_from_the_operations_lines(self):
        x = torch.tensor(RNG.standard_normal((3, 7))).float()
        row = check(softmax, x, methods=["precision"]).rows[0]
        assert "float32 against float64; the bound computed from the operation's own lines" in row.how
        assert row.tolerance < 1e-5

    def test_numpy_float32_without_pytorchs_operator(self):
        square = SimpleNamespace(forward=lambda x: (x * x, x), backward=lambda dy, x: 2 * x * dy)
        assert check(square, X.astype(np.float32)).passed

    def test_the_reference_knows_nothing_of_the_backward(self):
        """Also where no other method runs: GELU's own forward with the slope of its other form."""

        def backward(dy, saved):
            return gelu.backward(dy, saved._replace(approximate="tanh"))

        wrong = SimpleNamespace(forward=gelu.forward, backward=backward)
        x = torch.tensor(RNG.standard_normal((5, 8))).float()
        assert check(wrong, x, methods=["precision"], raises=False).failed


class TestOptions:
    def test_an_option_may_have_the_name_of_one_of_checks_own(self):
        x = RNG.standard_normal((3, 40))
        assert "seed=5" in check("dropout", x, options={"seed": 5}).inputs

        class MaskOfAnotherSeed:
            SHAPES, forward = dropout.SHAPES, dropout.forward

            def backward(dy, saved):
                redrawn = dropout.forward(dy, p=saved.p)[1]
                return dropout.backward(dy, saved._replace(seed=redrawn.seed))

        assert check(MaskOfAnotherSeed, x, vary=False).passed  # its seed is forward's default
        assert check(MaskOfAnotherSeed, x, options={"seed": 5}, raises=False).failed

    @pytest.mark.parametrize("wrong", [["seed"], {1: 2}, "p"])
    def test_what_are_not_options_is_rejected(self, wrong):
        with pytest.raises(TypeError, match="options: expected a dict from names to values; got "):
            check("dropout", X, options=wrong)


class TestLowPrecisionOnly:
    """A kernel that takes no float64 is judged by the float64 of the operator that it stands for."""

    class Half(torch.autograd.Function):
        factor = 1.0

        @staticmethod
        def forward(ctx, x):
            if x.dtype != torch.bfloat16:
                raise TypeError("this kernel takes bfloat16")
            ctx.save_for_backward(x)
            return torch.from_numpy(np.tanh(x.detach().float().numpy())).bfloat16()

        @classmethod
        def backward(cls, ctx, dy):
            (x,) = ctx.saved_tensors
            return cls.factor * dy * (1 - torch.tanh(x.float()) ** 2).to(dy.dtype)

    X = torch.tensor(X).bfloat16()

    def test_right(self):
        report = check(self.Half, self.X, operator=torch.tanh)
        assert report.passed
        (_, dx) = report.of("low precision")
        assert "against float64 of PyTorch's operator; twice PyTorch's operator's error" in dx.how
        assert "does not accept float64" in report.of("finite differences")[0].reason

    def test_wrong(self):
        class Wrong(self.Half):
            factor = 1.1

        report = check(Wrong, self.X, operator=torch.tanh, raises=False)
        assert [row.quantity for row in report.failed] == ["dx"]

    def test_without_an_operator_nothing_is_known(self):
        with pytest.raises(
            VerificationError, match=r"(?s)nothing was shown about dx: .* operator="
        ) as caught:
            check(self.Half, self.X)
        report = caught.value.report
        assert "an operator= would give the reference" in report.of("low precision")[0].reason
        assert "bfloat16 is too coarse for differences" in report.of("finite differences")[0].reason
        assert {row.method for row in report.having("passed")} == {"contract"}
        assert "nothing was shown about dx" in report._repr_html_()

    def test_a_forward_that_computes_in_float32_whatever_it_is_given(self):
        def forward(x):
            return torch.exp(x.float()), torch.exp(x.float())

        own = SimpleNamespace(forward=forward, backward=lambda dy, y: dy * y)
        report = check(own, torch.tensor(X).float(), operator=torch.exp)
        assert "computes in float32, given float64" in report.of("torch autograd")[0].reason
        assert report.passed


class TestSinglePrecisionOnly:
    """Where there is no float64, finite differences are taken in what there is."""

    class Tanh(torch.autograd.Function):
        gradient = staticmethod(lambda dy, y: dy * (1 - y * y))

        @staticmethod
        def forward(ctx, x):
            y = torch.from_numpy(np.tanh(x.detach().float().numpy()))
            ctx.save_for_backward(y)
            return y

        @classmethod
        def backward(cls, ctx, dy):
            (y,) = ctx.saved_tensors
            return cls.gradient(dy, y)

    class Wrong(Tanh):
        gradient = staticmethod(lambda dy, y: dy * 17)

    class SlightlyWrong(Tanh):
        gradient = staticmethod(lambda dy, y: 1.01 * dy * (1 - y * y))

    class WithoutDy(Tanh):
        gradient = staticmethod(lambda dy, y: 0 * dy + 17)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_right(self, dtype):
        report = check(self.Tanh, torch.tensor(X, dtype=dtype))
        (row,) = report.of("finite differences")
        assert row.verdict == "passed"
        assert row.tolerance < 2e-3
        assert "ε^⅔ of float32" in row.how and row.note == "forward computes in float32, given float64"
        said = "forward returned float32 for float64" in report.of("contract")[0].how
        assert said == (dtype == torch.float64)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("op", [Wrong, SlightlyWrong, WithoutDy], ids=lambda op: op.__name__)
    def test_wrong(self, op, dtype):
        report = check(op, torch.tensor(X, dtype=dtype), raises=False)
        assert [(row.method, row.quantity) for row in report.failed] == [("finite differences", "dx")]
        assert not report.passed

    def test_a_gradient_that_ignores_dy_is_called_that(self):
        report = check(self.WithoutDy, torch.tensor(X).float(), raises=False)
        assert report.failed[0].reason == "got does not depend on dy"

    def test_on_numpy(self):
        def forward(x):
            y = np.tanh(np.asarray(x, dtype=np.float32))
            return y, y

        right = SimpleNamespace(forward=forward, backward=lambda dy, y: dy * (1 - y * y))
        wrong = SimpleNamespace(forward=forward, backward=lambda dy, y: dy * np.float32(17))
        for x in (X, X.astype(np.float32)):
            assert check(right, x).passed
            with pytest.raises(VerificationError):
                check(wrong, x)


def cube(x):
    return x * x * x, x


class TestMemory:
    """The contract: nothing written to, the same on another call, the same for other strides."""

    @staticmethod
    def contract(backward, x, forward=cube, **settings):
        own = SimpleNamespace(forward=forward, backward=backward)
        report = check(own, x, methods=["contract", "finite_difference"], raises=False, **settings)
        return report.of("contract")[0].reason

    INPUTS = pytest.mark.parametrize("x", [X, torch.tensor(X)], ids=["NumPy", "PyTorch"])

    @INPUTS
    def test_right(self, x):
        assert self.contract(lambda dy, x: 3 * dy * x * x, x) == ""

    @INPUTS
    def test_an_output_that_is_overwritten(self, x):
        def backward(dy, saved):
            saved["y"][...] = dy * saved["y"]
            return saved["y"]

        def forward(x):
            xp = namespace(x)
            y = xp.exp(x)
            return y, {"y": y}

        assert self.contract(backward, x, forward) == "y was modified in place"

    @INPUTS
    def test_something_saved_that_is_overwritten(self, x):
        class Saved:
            def __init__(self, x):
                self.factor = 3 * x * x

        def backward(dy, saved):
            saved.factor *= dy
            return saved.factor + 0

        faults = self.contract(backward, x, lambda x: (x * x * x, Saved(x)))
        assert faults == "saved.factor was modified in place"

    @INPUTS
    def test_a_buffer_that_the_next_call_overwrites(self, x):
        buffers = {}

        def backward(dy, x):
            buffer = buffers.setdefault((type(dy), tuple(dy.shape)), dy * 0)
            buffer[...] = 3 * dy * x * x
            return buffer

        assert "dx, already returned, changes when backward is called with a different dy" in self.contract(
            backward, x
        )

    @INPUTS
    def test_a_second_call_that_adds_to_the_first(self, x):
        def backward(dy, saved):
            saved["calls"] += 1
            return 3 * dy * saved["x"] ** 2 * saved["calls"]

        faults = self.contract(backward, x, lambda x: (x * x * x, {"x": x, "calls": 0}))
        assert "dx changes when backward is called a second time with the same dy" in faults

    def test_a_saved_gradient_that_each_call_scales(self):
        """Whose error would count as the effect of rounding, if it were measured from the array that is returned."""

        class Squares(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.dx = 2 * x
                return (x * x).sum()

            @staticmethod
            def backward(ctx, dy):
                return ctx.dx.mul_(dy)

        report = check(Squares, torch.from_numpy(X), methods=["contract"], raises=False)
        assert "dx changes when backward is called a second time with the same dy" in report.rows[0].reason

    @staticmethod
    def as_if_contiguous(value):
        """What a kernel reads that takes every array for a contiguous one."""
        if isinstance(value, torch.Tensor):
            return torch.as_strided(value, value.shape, torch.empty(value.shape).stride())
        strides = np.empty(value.shape, value.dtype).strides
        return np.lib.stride_tricks.as_strided(value, value.shape, strides)

    @INPUTS
    def test_strides_of_dy(self, x):
        faults = self.contract(lambda dy, x: 3 * self.as_if_contiguous(dy) * x * x, x)
        assert (
            faults
            == "dx differs for a dy that is not contiguous; dx differs for a dy that is expanded along axis 0"
        )

    def test_an_input_read_in_the_order_of_memory(self):
        faults = self.contract(lambda dy, x: 3 * dy * (x.ravel("K") ** 2).reshape(x.shape), X)
        assert faults == "dx differs when x is laid out with its axes in another order"

    @INPUTS
    def test_strides_of_an_input(self, x):
        faults = self.contract(lambda dy, x: 3 * dy * self.as_if_contiguous(x) ** 2, x)
        assert faults == "dx differs when x is not contiguous"

    def test_strides_of_another_input(self):
        """Both are the first columns of wider arrays, but not of the same width."""
        for right in (True, False):

            class Product(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x, z):
                    (strides,) = ctx.strides = ((z if right else x).stride(),)  # noqa: B023
                    ctx.save_for_backward(x, z)
                    return x * z.as_strided(z.shape, strides)

                @staticmethod
                def backward(ctx, dy):
                    x, z = ctx.saved_tensors
                    return dy * z.as_strided(z.shape, ctx.strides[0]), dy * x

            failed = check(Product, torch.tensor(X), torch.tensor(X + 1), raises=False, vary=False).failed
            if right:
                assert not failed
            else:
                (row,) = failed
                assert "y differs when z is the first columns of a wider array" in row.reason

    def test_heads_and_positions_in_the_other_order(self):
        def backward(dy, x):
            if dy.stride(-1) != 1:
                dy = dy.contiguous()
            has_gaps = dy.untyped_storage().nbytes() > dy.nbytes
            return 3 * (dy if has_gaps else self.as_if_contiguous(dy)) * x * x

        faults = self.contract(backward, torch.tensor(np.stack([X, X + 1])))
        assert faults.startswith(
            "dx differs for a dy that is laid out with the two axes before the last in the other order"
        )

    def test_rows_of_dy_that_are_not_adjacent(self):
        def backward(dy, x):
            if dy.stride(-1) != 1:
                dy = dy.contiguous()
            return 3 * self.as_if_contiguous(dy) * x * x

        faults = self.contract(backward, torch.tensor(X))
        assert faults.startswith("dx differs for a dy that is the first columns of a wider array")

    @INPUTS
    def test_strides_in_forward(self, x):
        faults = self.contract(lambda dy, x: 3 * dy * x * x, x, lambda x: (self.as_if_contiguous(x) ** 3, x))
        assert faults == "y differs when x is not contiguous"

    def test_strides_of_what_a_function_is_given(self):
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx, dy):
                (x,) = ctx.saved_tensors
                return 3 * dy * self.as_if_contiguous(x) ** 2

        (row,) = check(Cube, torch.tensor(X), raises=False).failed
        assert row.reason == "dx differs when x is not contiguous"

    def test_a_dy_that_is_rejected(self):
        def backward(dy, x):
            if not dy.is_contiguous():
                raise ValueError("dy is not contiguous")
            return 3 * dy * x * x

        faults = self.contract(backward, torch.tensor(X))
        assert (
            "backward fails for a dy that is expanded along axis 0: ValueError: dy is not contiguous"
            in faults
        )

    def test_inputs_may_be_rejected(self):
        def forward(x):
            if not x.is_contiguous():
                raise ValueError("x is not contiguous")
            return x * x * x, x

        assert self.contract(lambda dy, x: 3 * dy * x * x, torch.tensor(X), forward) == ""

    @pytest.mark.parametrize("x", [X[0], X[0, 0].reshape(()), X[:, :0], X.reshape(3, 1, 5)], ids=np.shape)
    def test_any_number_of_axes(self, x):
        assert self.contract(lambda dy, x: 3 * dy * x * x, x) == ""
        assert self.contract(lambda dy, x: 3 * dy * x * x, torch.tensor(x)) == ""


class TestDeclared:
    """An object with SHAPES is held to them: the output too, and its dtype."""

    @staticmethod
    def fault(forward, x, backward=lambda dy, saved: 2 * dy):
        own = SimpleNamespace(SHAPES="x[*, n] -> y[*, n]", forward=forward, backward=backward)
        (row,) = check(own, x, methods=["contract"], raises=False).rows
        return row.reason

    def test_right(self):
        assert self.fault(lambda x: (2 * x, None), X) == ""

    def test_an_output_of_another_shape(self):
        said = self.fault(lambda x: ((2 * x)[..., None], None), X, lambda dy, saved: 2 * dy[..., 0])
        assert "y: expected y[*, n] with leading axes [3], as in x; got shape [3, 5, 1]" in said

    def test_an_output_of_another_dtype(self):
        x = X.astype(np.float32)
        said = self.fault(
            lambda x: (2 * x.astype(np.float64), None), x, lambda dy, saved: (2 * dy).astype(np.float32)
        )
        assert said.startswith("forward returned float64 for float32")

    def test_a_complex_gradient_is_rejected(self):
        own = SimpleNamespace(forward=lambda x: (2 * x, None), backward=lambda dy, saved: 2 * dy + 0j)
        report = check(own, X, raises=False)
        assert {row.method for row in report.failed} >= {"contract", "finite differences", "complex step"}
        assert "dx: expected real floating-point numbers; got complex128" in report.failed[0].reason


class TestTheReadersOwn:
    def test_plain_functions_on_numpy(self):
        def forward(x):
            return np.tanh(x), x

        def backward(dy, x):
            return dy / np.cosh(x) ** 2

        report = check(SimpleNamespace(forward=forward, backward=backward), X)
        assert report.passed
        not_run = {row.method: row.reason for row in report.having("not run")}
        assert set(not_run) == {"symbolic", "torch autograd", "PyTorch's operator"}
        assert "operator=" in not_run["PyTorch's operator"]

    def test_a_class_on_torch_with_an_operator(self):
        class Normalise:
            def __init__(self, eps):
                self.eps = eps

            def forward(self, x):
                scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
                return x * scale, {"x": x, "scale": scale}

            def backward(self, dy, saved):
                x, scale = saved["x"], saved["scale"]
                return scale * dy - x * scale**3 * (x * dy).mean(-1, keepdim=True)

        x = torch.tensor(X)
        report = check(
            Normalise(1e-5), x, operator=lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5)
        )
        assert report.passed
        assert {row.method for row in report.having("passed")} >= {
            "complex step",
            "torch autograd",
            "PyTorch's operator",
        }

    def test_a_forward_that_is_not_analytic(self):
        own = SimpleNamespace(forward=lambda x: (np.abs(x), np.sign(x)), backward=lambda dy, sign: dy * sign)
        (row,) = check(own, X, methods=["complex_step"], raises=False).rows
        assert "real" in row.reason
        own = SimpleNamespace(forward=lambda x: (x * np.abs(x), x), backward=lambda dy, x: 2 * dy * np.abs(x))
        report = check(own, X)
        assert (
            report.of("complex step")[0].reason == "forward is not analytic as written: it calls np.absolute"
        )
        assert report.of("finite differences")[0].verdict == "passed"

    def test_a_variance_of_complex_numbers_is_why_a_forward_is_not_analytic(self):
        """The variance itself is analytic, and its complex step exists where it is written out."""

        def backward(dy, x):
            return 2 * dy[..., None] * (x - x.mean(-1, keepdims=True)) / x.shape[-1]

        as_numpy_has_it = SimpleNamespace(forward=lambda x: (np.var(x, axis=-1), x), backward=backward)
        (row,) = check(as_numpy_has_it, X, methods=["complex_step"], raises=False).rows
        assert (row.verdict, "into real ones" in row.reason) == ("not run", True)
        assert "np.var or np.std" in row.reason
        written_out = lambda x: (((x - x.mean(-1, keepdims=True)) ** 2).mean(-1), x)  # noqa: E731
        assert check(
            SimpleNamespace(forward=written_out, backward=backward), X, methods=["complex_step"]
        ).passed

    def test_an_input_of_no_gradient(self):
        def forward(table, rows, scale):
            return table[rows] * scale, (table.shape, rows, scale)

        def backward(dy, saved):
            shape, rows, scale = saved
            dtable = np.zeros(shape)
            np.add.at(dtable, rows, dy * scale)
            return dtable, None, None

        rows = np.array([0, 2, 2])
        report = check(
            SimpleNamespace(forward=forward, backward=backward), RNG.standard_normal((4, 3)), rows, 0.5
        )
        assert report.passed
        assert {row.quantity for row in report.of("finite differences")} == {"dtable"}

    def test_modified_inputs_are_seen(self):
        def backward(dy, x):
            dy *= 2 * x
            return dy

        report = check(SimpleNamespace(forward=lambda x: (x * x, x), backward=backward), X, raises=False)
        assert "dy was modified in place" in report.of("contract")[0].reason

    def test_what_is_none(self):
        with pytest.raises(TypeError, match=r"op: expected .* got int, which has no forward"):
            check(3, X)
        with pytest.raises(TypeError, match="backward"):
            check(SimpleNamespace(forward=lambda x: (x, None)), X)
        with pytest.raises(LookupError, match="did you mean 'softmax'"):
            check("sofmax")
        with pytest.raises(ValueError, match="declares no SHAPES"):
            check(SimpleNamespace(forward=len, backward=len))
        with pytest.raises(TypeError, match=r"x: expected an array x\[\*, n\]; got list"):
            check(softmax, [1.0, 2.0])
        with pytest.raises(ValueError, match=r"dy: expected the output's shape \[3, 5\]; got \[2\]"):
            check(softmax, X, dy=np.ones(2))
        with pytest.raises(ValueError, match="methods: expected some of"):
            check(softmax, methods=["finite"])

    def test_a_wrong_number_of_gradients(self):
        own = SimpleNamespace(forward=lambda x, w: (x * w, (x, w)), backward=lambda dy, saved: (dy,) * 3)
        report = check(own, X, X + 1, raises=False)
        assert "expected 2 gradients (dx, dw); got 3" in report.rows[0].reason

    def test_forward_must_return_a_pair(self):
        report = check(SimpleNamespace(forward=lambda x: x, backward=lambda dy, saved: dy), X, raises=False)
        assert "expected it to return (y, saved)" in report.rows[0].reason


class TestAutogradFunction:
    class Times(torch.autograd.Function):
        """The form with a context; returns a gradient for each input, None for the number."""

        factor = 1

        @staticmethod
        def forward(ctx, x, w, power):
            ctx.save_for_backward(x, w)
            return x @ w**power

        @classmethod
        def backward(cls, ctx, dy):
            x, w = ctx.saved_tensors
            return dy @ w.T * cls.factor, x.T @ dy, None

    class Square(torch.autograd.Function):
        """The form with setup_context."""

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return 2 * x * dy

    X, W = torch.tensor(X), torch.tensor(RNG.standard_normal((5, 2)))

    def test_right(self):
        report = check(self.Times, self.X, self.W, 1, vary=False)  # backward ignores the power
        assert report.passed
        assert {row.quantity for row in report.of("torch autograd")} == {"dx", "dw"}
        assert check(self.Square, self.X).passed

    def test_wrong(self):
        class Half(self.Times):
            factor = 0.5

        report = check(Half, self.X, self.W, 1, raises=False)
        assert {row.quantity for row in report.failed} == {"dx"}
        assert {row.method for row in report.failed} == {
            "finite differences",
            "complex step",
            "torch autograd",
        }
        assert "got = ½ × reference" in str(report)

    def test_float32_and_options(self):
        assert check(self.Square, self.X.float()).of("low precision")
        with pytest.raises(TypeError, match=r"options of Square: .*power"):
            check(self.Square, self.X, power=2)


class TestKinks:
    """|x|, with a backward that is right, wrong, or wrong and scaled."""

    def check(self, x, slope):
        def forward(x):
            return np.where(x < 0, -x, x), x

        own = SimpleNamespace(forward=forward, backward=lambda dy, x: slope(x) * dy)
        (row,) = check(own, x, methods=["finite_difference"], raises=False).rows
        return row

    @pytest.mark.parametrize("zeros", [1, 7])
    def test_at_a_kink_any_slope_between_those_of_the_sides_passes(self, zeros):
        x = X.copy()
        x.reshape(-1)[:zeros] = 0
        for at_0 in (-1.0, 0.3, 1.0):
            row = self.check(x, lambda x: np.where(x == 0, at_0, np.sign(x)))  # noqa: B023
            assert row.verdict == "passed" and "at a kink" in row.note.replace("kinks", "a kink")
        row = self.check(x, lambda x: np.where(x == 0, 1.1, np.sign(x)))
        assert row.verdict == "not run" and "y has a kink there" in row.reason

    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
    def test_elsewhere_it_is(self, scale):
        assert self.check(scale * X, np.sign).verdict == "passed"
        assert self.check(scale * X, lambda x: -np.sign(x)).verdict == "FAILED"

    @pytest.mark.parametrize(
        "forward", [np.exp, np.sin, lambda x: x * x, lambda x: 1e6 * x * x, lambda x: 1 / (1e-3 + x * x)]
    )
    def test_what_bends_smoothly_has_none(self, forward):
        own = SimpleNamespace(forward=lambda x: (forward(x), x), backward=lambda dy, x: dy)
        for x in (X, np.zeros((3, 5))):
            (row,) = check(own, x, methods=["finite_difference"], raises=False).rows
            assert row.verdict in ("FAILED", "passed", "vacuous") and "kink" not in row.reason


class TestSymbolic:
    def test_the_maximum_is_proved_not_to_matter(self):
        (row,) = check(softmax, methods=["symbolic"]).rows
        assert "∂y/∂max = 0 proved" in row.how
        assert row.error == 0

    def test_a_maximum_that_matters_is_not_run(self):
        def forward(x):
            xp = x.__array_namespace__()
            return x - xp.max(x, axis=-1, keepdims=True), None

        own = SimpleNamespace(SHAPES="x[*, n] -> y[*, n]", forward=forward, backward=lambda dy, saved: dy)
        (row,) = check(own, X, methods=["symbolic"], raises=False).rows
        assert row.verdict == "not run"
        assert "depends on a maximum" in row.reason

    def leaky(self, slope):
        """max(x, x/10), with a backward of the given slope for a positive and a negative x."""

        def forward(x):
            xp = namespace(x)
            return xp.where(x > 0, x, x / 10), x

        def backward(dy, x):
            return slope(namespace(dy), dy, x)

        return SimpleNamespace(SHAPES="x[*] -> y[*]", forward=forward, backward=backward)

    def test_a_forward_that_branches_is_proved_on_either_side(self):
        right = self.leaky(lambda xp, dy, x: xp.where(x >= 0, dy, dy / 10))
        (row,) = check(right, X[:, 0], methods=["symbolic"]).rows
        assert (row.verdict, row.error) == ("passed", 0)
        assert re.search(
            r"exactly, in each of [234] regions, all branches both ways, at shape \[2\]", row.how
        )

    def test_the_regions_are_the_same_in_every_process(self):
        """Sets of symbols have an order that hashes decide; the points drawn for them must not."""
        code = "from backpass.verify import check; print(check('feed_forward', methods=['symbolic'], activation='relu').to_json())"
        code = code.replace(
            "'feed_forward',", "'feed_forward', *draw('feed_forward', rng, without=['w_gate', 'b_gate']),"
        )
        code = f"import numpy as np; from backpass.verify import draw; rng = np.random.default_rng(0); {code}"
        outputs = [
            subprocess.run(
                [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True, text=True, check=True,
            ).stdout
            for seed in "12"
        ]  # fmt: skip
        assert outputs[0] == outputs[1] and "regions" in outputs[0]

    @pytest.mark.parametrize(
        "slope",
        [
            lambda xp, dy, x: xp.where(x < 0, dy, dy / 10),
            lambda xp, dy, x: dy,
            lambda xp, dy, x: dy / 10,
            lambda xp, dy, x: xp.where(x > 0, dy, 0.0),
            lambda xp, dy, x: xp.where(x > 1, dy, dy / 10),
        ],
    )
    def test_a_backward_that_is_wrong_on_one_side_fails(self, slope):
        (row,) = check(self.leaky(slope), X[:, 0], methods=["symbolic"], raises=False).rows
        assert row.verdict == "FAILED"

    def test_a_branch_that_goes_one_way_is_named(self):
        def forward(x):
            xp = namespace(x)
            return xp.where(x > 1000, 0.0, x), None

        own = SimpleNamespace(SHAPES="x[*] -> y[*]", forward=forward, backward=lambda dy, saved: dy)
        (row,) = check(own, X[0], methods=["symbolic"], raises=False).rows
        assert (row.verdict, row.reason) == (
            "not run",
            "a branch was taken only one way: x_0 - 1000 < 0 at 64 random points",
        )

    def test_the_shape_is_cut_down_and_the_structure_kept(self):
        report = check(
            linear, RNG.standard_normal((40, 30)), RNG.standard_normal((30, 20)), methods=["symbolic"]
        )
        assert [row.how for row in report.rows] == [
            "every element, exactly, at shape [2, 3] in place of [40, 30]",
            "every element, exactly, at shape [3, 4] in place of [30, 20]",
        ]

    def test_where_there_would_be_many_symbols_the_shape_is_cut_down_further(self):
        report = check("multi_head_attention", methods=["symbolic"])
        assert report.rows[0].how.startswith("every element, exactly, at shape [2, 1]")

    def test_lengths_that_forward_rejects_are_named(self):
        """SHAPES cannot state that n is even; the symbols have n = 3."""

        def forward(x):
            if x.shape[-1] % 2:
                raise ValueError(f"x: expected an even length; got {x.shape[-1]}")
            return x * x, x

        own = SimpleNamespace(SHAPES="x[*, n] -> y[*, n]", forward=forward, backward=lambda dy, x: 2 * x * dy)
        (row,) = check(own, RNG.standard_normal((5, 4)), methods=["symbolic"], raises=False).rows
        assert (row.verdict, row.reason) == (
            "not run",
            "forward rejects the lengths chosen for the symbols, * = (2,), n = 3, although they fit SHAPES "
            "(ValueError: x: expected an even length; got 3)",
        )

    @pytest.mark.filterwarnings("ignore:__array_wrap__")  # np.sin of a tensor
    @pytest.mark.parametrize("sin", [np.sin, torch.sin], ids=["NumPy", "PyTorch"])
    def test_lengths_are_not_blamed_for_the_library(self, sin):
        own = SimpleNamespace(
            SHAPES="x[*, n] -> y[*, n]", forward=lambda x: (sin(x), x), backward=lambda dy, x: dy * x
        )
        (row,) = check(own, torch.from_numpy(X), methods=["symbolic"], raises=False).rows
        assert row.reason.startswith("forward does not compute with symbols")

    def test_reasons_name_the_functions_that_a_forward_should_call(self):
        own = SimpleNamespace(forward=lambda x: (np.sin(x), x), backward=lambda dy, x: dy * np.cos(x))
        for row in check(own, X, methods=["symbolic", "autograd"], raises=False).rows:
            assert row.verdict == "not run"
            assert "call functions of xp" in row.reason and "not NumPy's" in row.reason

    def test_an_error_that_vanishes_for_two_entries_is_seen(self):
        """At n = 2 the factor 2 / n would be 1."""

        def backward(dy, saved):
            (y,), xp = saved, namespace(dy)
            return y * (dy - 2 * xp.sum(dy * y, axis=-1, keepdims=True) / dy.shape[-1])

        own = SimpleNamespace(**{**vars(softmax), "backward": backward})
        (row,) = check(own, methods=["symbolic"], raises=False).rows
        assert row.verdict == "FAILED"


def test_a_looser_tolerance_shows_its_reason():
    tolerances = {"finite_difference": (1e-3, "the forward is a float32 table")}
    (row,) = check(softmax, X, methods=["finite_difference"], tolerances=tolerances).rows
    assert row.tolerance == 1e-3
    assert row.how.endswith("the forward is a float32 table")


def test_what_makes_queries_and_keys_is_drawn_small_so_that_no_key_has_all_the_weight():
    x, w_q, w_k, w_v, *_ = draw("multi_head_attention", np.random.default_rng(0), lengths={"h": 400})
    np.testing.assert_allclose([x.std(), w_q.std(), w_k.std(), w_v.std()], [1, 0.05, 0.05, 1], rtol=0.05)


def test_the_same_seed_gives_the_same_table():
    assert str(check("linear", seed=5)) == str(check("linear", seed=5))
    first, second = (check("linear", seed=seed).of("finite differences")[0].error for seed in (5, 6))
    assert first != second


def test_the_cotangent_is_not_the_input_drawn_from_the_same_seed():
    x = np.random.default_rng(0).standard_normal((3, 5))
    seen = []
    recorder = SimpleNamespace(
        forward=lambda x: (x * x, x), backward=lambda dy, x: seen.append(dy) or 2 * x * dy
    )
    check(recorder, x, seed=0, methods=["finite_difference", "contract"])
    assert all(not np.isclose(dy, x).any() for dy in seen)


def test_methods_can_be_chosen():
    assert {row.method for row in check(softmax, methods=["symbolic", "autograd"]).rows} == {
        "symbolic",
        "torch autograd",
    }


def test_extreme_steps():
    """Inputs far from 1: the step of the finite difference follows them where that is more accurate."""
    cube = SimpleNamespace(forward=lambda x: (x**3, x), backward=lambda dy, x: 3 * x**2 * dy)
    for scale in (1e-5, 1e5):
        assert check(cube, scale * X, methods=["finite_difference"]).passed
    for huge in (1e150 * X, np.where(X > 0, 1e150 * X, X), 1e300 * X):
        scaled = SimpleNamespace(forward=lambda x: (3 * x, None), backward=lambda dy, saved: 3 * dy)
        assert check(scaled, huge, methods=["finite_difference"]).passed
        wrong = SimpleNamespace(forward=scaled.forward, backward=lambda dy, saved: 2 * dy)
        assert check(wrong, huge, methods=["finite_difference"], raises=False).failed
    shifted = 1e4 + RNG.standard_normal((3, 5))
    assert check(softmax, shifted).passed


class TestReport:
    report = check(with_backward(softmax, lambda g: 2 * g), X, raises=False)

    def test_a_failure_raises_and_carries_the_report(self):
        with pytest.raises(VerificationError) as caught:
            check(with_backward(softmax, lambda g: 2 * g), X)
        assert str(caught.value) == str(caught.value.report) == str(self.report)
        with pytest.raises(AssertionError):
            self.report.raise_unless_passed()

    def test_nothing_run_raises(self):
        report = check(
            SimpleNamespace(forward=lambda x: (x, 0), backward=lambda dy, s: dy),
            X,
            methods=["pytorch"],
            raises=False,
        )
        with pytest.raises(VerificationError, match="nothing was shown about dx"):
            report.raise_unless_passed()

    def test_what_is_vacuous_raises(self):
        ones = np.ones_like(X)
        with pytest.raises(VerificationError, match="vacuous"):
            check(softmax, X, dy=ones)
        assert check(softmax, X, dy=ones, raises=False).having("vacuous")

    def test_each_gradient_needs_a_row_that_passed(self):
        passed = Row("contract", "all", "passed"), Row("complex step", "dx", "passed")
        assert Report("own", "x, w", passed, ("dx",)).passed
        half = Report("own", "x, w", passed, ("dx", "dw"))
        assert half.unshown == ("dw",)
        assert not half.passed
        assert "nothing was shown about dw: " in str(half)

    def test_the_notebook_table_is_accessible(self):
        html = self.report._repr_html_()
        quantities = {row.quantity for row in self.report.rows} - {"", "all"}
        assert html.count('<th scope="col"') == 1 + len(quantities)
        assert (
            html.count('<th scope="row"')
            == html.count("<tr>") - 1
            >= len({row.method for row in self.report.rows})
        )
        assert "✗ FAILED" in html
        assert 'tabindex="0"' in html
        assert "overflow-x: auto" in html
        assert "<caption" in html

    def test_the_notebook_table_escapes(self):
        own = SimpleNamespace(
            forward=lambda x: (x * x, x), backward=lambda dy, x: 2 * x * dy, __name__="<b>&"
        )
        assert "<b>" not in check(own, X)._repr_html_()


def test_a_function_that_the_symbols_lack_is_not_held_against_an_operation():
    def forward(x):
        xp = namespace(x)
        return xp.log1p(xp.exp(x)), x

    def backward(dy, x):
        return dy / (1 + namespace(x).exp(-x))

    report = check(SimpleNamespace(forward=forward, backward=backward, SHAPES="x[*] -> y[*]"), X)
    (row,) = report.of("symbolic")
    assert row.verdict == "not run"
    assert row.reason.startswith("forward uses 'log1p', which the symbols lack; dir(backpass.interpreters.")
    assert report.passed


def test_an_autograd_function_is_given_tensors():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, dy):
            return 2 * dy

    with pytest.raises(
        TypeError, match=r"Twice is a torch.autograd.Function, which takes torch tensors; got numpy"
    ):
        check(Twice, X)
    assert check(Twice, torch.tensor(X)).passed


def test_inputs_without_a_gradient_learn_how_to_be_declared():
    class Rotated:
        def forward(self, x, cos, sin):
            return x * cos + x[..., ::-1] * sin, (cos, sin)

        def backward(self, dy, saved):
            cos, sin = saved
            return dy * cos + (dy * sin)[..., ::-1], None, None

    tables = np.cos(X), np.sin(X)
    report = check(Rotated(), X, *tables, raises=False, methods=["contract"])
    assert 'declare CONSTANTS = ("cos", "sin")' in report.failed[0].reason
    Rotated.CONSTANTS = ("cos", "sin")
    assert check(Rotated(), X, *tables).passed


@pytest.mark.parametrize(
    ("returned", "quantity", "message"),
    [
        (
            lambda dx: dx,
            "",
            r"expected 2 gradients \(dx, dt\); got 1\. If t has no gradient, give constants=\['t'\]",
        ),
        (
            lambda dx: (dx, None),
            "all",
            r'dt: expected an array; got None; if .* give constants=\["t"\], or declare',
        ),
        (lambda dx: (dx, None), "dt", r'if t has no gradient, return None and give constants=\["t"\]'),
        (lambda dx: (dx, 0 * dx), "dt", r'if t has no gradient, return None and give constants=\["t"\]'),
        (lambda dx: (0 * dx, -dx), "dx", r"^got is 0, but the reference is not$"),
    ],
)
def test_a_target_that_is_not_named_leads_to_constants(returned, quantity, message):
    op = SimpleNamespace(
        forward=lambda x, t: (((x - t) ** 2).mean(), x - t),
        backward=lambda dy, d: returned(dy * 2 * d / d.size),
    )
    report = check(op, X, np.round(X), raises=False)
    reasons = [row.reason for row in report.failed if row.quantity == quantity]
    assert reasons and all(re.search(message, reason) for reason in reasons), reasons
