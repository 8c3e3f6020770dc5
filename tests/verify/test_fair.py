"""Nothing right fails: forwards that compute in less than they return, noisy differences, conventions, what could not run."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass.verify import VerificationError, check
from backpass.verify.case import Case
from backpass.verify.subject import subject

X = np.random.default_rng(11).standard_normal((4, 6))
F = torch.nn.functional
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def own(forward, backward):
    return SimpleNamespace(forward=forward, backward=backward)


def tanh_inside(inside, factor=1.0):
    """The form of most kernels: computed in one dtype, returned in the input's."""

    def forward(x):
        y = torch.tanh(x.to(inside)).to(x.dtype)
        return y, y

    return own(forward, lambda dy, y: factor * dy * (1 - y * y))


def verdicts(report, method):
    return [row.verdict for row in report.of(method)]


class TestPrecision:
    @staticmethod
    def computes_in(forward, *inputs, **settings):
        return Case(subject(own(forward, len), len(inputs), {}), inputs, 0, **settings).computes_in

    @pytest.mark.parametrize("inside", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
    def test_it_is_measured_where_forward_returns_more(self, inside):
        found = self.computes_in(tanh_inside(inside).forward, torch.tensor(X))
        assert found == str(inside).removeprefix("torch.")

    @pytest.mark.parametrize("shape", [(3, 5), (1, 8), (2, 3, 64), (8, 1024)], ids=str)
    def test_one_factor_in_float32_is_measured(self, shape):
        """The mean of squares in float32, everything else in float64."""
        for seed in range(5):
            x = np.random.default_rng(seed).standard_normal(shape)
            w = np.random.default_rng(seed + 100).standard_normal(shape[-1])

            def forward(x, w):
                rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
                return (w * (x * rstd)).to(x.dtype), rstd

            given = torch.tensor(x), torch.tensor(w)
            assert self.computes_in(forward, *given) == "float32"
            exact = self.computes_in(lambda x, w: (w * x * torch.rsqrt((x * x).mean()), x), *given)
            assert exact == "float64"

    @pytest.mark.parametrize("seed", range(5))
    def test_float64_that_looks_like_less_is_float64(self, seed):
        x = np.random.default_rng(seed).standard_normal((4, 6))
        x32 = x.astype(np.float32).astype(np.float64)
        forwards = [
            lambda x: (np.maximum(x, 0), None),  # float32's numbers in, float32's numbers out
            lambda x: (np.round(x), None),
            lambda x: (np.round(x * 64) / 64, None),
            lambda x: (np.linalg.solve(x[:, :4] + 0.01 * np.eye(4), x), None),
            lambda x: (np.exp(20 * x) / np.exp(20 * x).sum(), None),
            lambda x: (np.mean(x), None),
            lambda x: (np.zeros_like(x) * x, None),
            lambda x: (np.clip(x, -0.5, 0.5), None),
            lambda x: (np.abs(x - x.mean()), None),
            lambda x: (np.sin(50 * x), None),
        ]
        for forward in forwards:
            for given in (x, x32, np.where(x32 < 0, 0.0, x32)):
                assert self.computes_in(forward, given) == "float64"

    def test_a_part_in_float32_is_seen_through_the_rest(self):
        a, b = torch.tensor(X), torch.tensor(X[::-1].copy())
        assert self.computes_in(lambda a, b: (F.silu(a.float()).to(a.dtype) * b, None), a, b) == "float32"

    def test_sums_of_short_numbers_may_lie_between_two_numbers_of_float32(self):
        """Any step from there, however small, reaches the next float32 number."""

        def forward(q, k, v):
            weights = torch.softmax((q @ k.mT).float(), -1)
            return weights.to(v.dtype) @ v, None

        for seed in range(10):
            rng = np.random.default_rng(seed)
            given = [torch.tensor(rng.standard_normal((2, 7, 8))).half() for _ in range(3)]
            assert self.computes_in(forward, *given) == "float32"

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_a_right_kernel_passes_and_a_wrong_one_fails(self, dtype):
        x = torch.tensor(X).to(dtype)
        report = check(tanh_inside(torch.float32), x, operator=torch.tanh)
        assert set(verdicts(report, "low precision")) == {"passed"}
        assert "computes in float32, as measured" in report.of("complex step")[0].reason
        assert not check(tanh_inside(torch.float32, 1.1), x, operator=torch.tanh, raises=False).passed

    def test_it_may_be_declared(self):
        report = check(tanh_inside(torch.float32), torch.tensor(X), precision="float32")
        assert "as declared" in report.of("complex step")[0].reason
        assert "float32" in report.of("finite differences")[0].how
        with pytest.raises(ValueError, match=r"precision: expected float64, .* got 'half'"):
            check(tanh_inside(torch.float32), torch.tensor(X), precision="half")


def single(array):
    return array.float() if isinstance(array, torch.Tensor) else array.astype(np.float32)


def in_dtype_of(array, like):
    return array.to(like.dtype) if isinstance(like, torch.Tensor) else array.astype(like.dtype)


def rms_norm(part=None, factor=1.0, missing=1.0):
    """RMS norm in the dtype it is given, except for a part of its backward in float32."""

    def forward(x, w):
        rstd = ((x * x).mean(-1)[..., None] + 1e-5) ** -0.5
        return x * rstd * w, (x, w, rstd)

    def backward(dy, saved):
        g, (x, w, rstd) = dy, saved
        if part == "all":
            g, x, w, rstd = map(single, (dy, *saved))
        elif part == "rstd":
            rstd = in_dtype_of(single(rstd), dy)
        unit, q = x * rstd, g * w
        dx = rstd * (q - missing * unit * (q * unit).mean(-1)[..., None])
        terms = (g * unit).reshape(-1, unit.shape[-1])
        dw = (single(terms) if part == "dw" else terms).sum(0)
        return factor * in_dtype_of(dx, dy), factor * in_dtype_of(dw, dy)

    return own(forward, backward)


def smooth_error(dy, x):
    return 1e-9 * np.sin(3 * x) * dy


class Tanh(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @classmethod
    def backward(cls, ctx, dy):
        (y,) = ctx.saved_tensors
        return cls.factor * (dy.float() * (1 - y.float() ** 2)).to(dy.dtype)


class TestBackwardPrecision:
    """A backward that computes in float32, of a forward that does not, is judged at float32."""

    X, W = np.random.default_rng(5).standard_normal((7, 9)), np.random.default_rng(6).standard_normal(9)
    GIVEN = pytest.mark.parametrize(
        "given",
        [np.array, torch.tensor, *(lambda a, to=to: torch.tensor(a).to(to) for to in DTYPES)],
        ids=["NumPy", "float64", "float32", "bfloat16", "float16"],
    )

    @staticmethod
    def coarse(report):
        rows = report.of("torch autograd")
        return {row.quantity for row in rows if "computes it in float32, as measured" in row.reason}

    @GIVEN
    @pytest.mark.parametrize("part", ["all", "rstd", "dw"])
    def test_a_right_one_passes(self, given, part):
        report = check(rms_norm(part), given(self.X), given(self.W))
        assert self.coarse(report) == ({"dw"} if part == "dw" else {"dx", "dw"})
        shown = {row.quantity for row in report.of("low precision") if row.verdict == "passed"}
        assert shown == {"y", "dx", "dw"}

    @GIVEN
    @pytest.mark.parametrize("part", ["all", "rstd", "dw"])
    def test_a_wrong_one_fails(self, given, part):
        for wrong in (rms_norm(part, factor=1 + 1e-5), rms_norm(part, missing=0.999)):
            report = check(wrong, given(self.X), given(self.W), raises=False, explain=False)
            assert "dx" in {row.quantity for row in report.failed}

    @pytest.mark.parametrize("factor", [1.0, -1.0, 2.0])
    def test_a_wrong_row_of_small_gradients_fails(self, factor):
        """Its error is 1e-6 of the largest element, which float32 would explain there, but not in that row."""

        class Softmax(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                y = torch.softmax(x, -1)
                ctx.save_for_backward(y, scale)
                return y * scale

            @staticmethod
            def backward(ctx, dy):
                y, scale = (a.float() for a in ctx.saved_tensors)
                g = dy.float() * scale
                dx = y * (g - (g * y).sum(-1, keepdim=True))
                dx[0] *= factor
                return dx.to(dy.dtype), None

        x, scale = torch.tensor(self.X), torch.ones(7, 1, dtype=torch.float64)
        scale[0] = 1e-6
        report = check(Softmax, x, scale, constants=["scale"], raises=False, explain=False)
        assert report.passed is (factor == 1)

    @pytest.mark.parametrize("places", [4, 5, 6])
    def test_rounding_to_decimal_places_is_not_float32(self, places):
        op = own(
            lambda x: (torch.tanh(x), torch.tanh(x)),
            lambda dy, y: torch.round(dy * (1 - y**2), decimals=places),
        )
        assert not check(op, torch.tensor(self.X), raises=False, explain=False).passed

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("factor", [1.0, 2.0, 1.02])
    def test_what_autograd_cannot_follow_is_judged_by_backward_in_float64(self, dtype, factor):
        class Partly(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return torch.tanh(x) + 1e-3 * x.detach()

            @staticmethod
            def backward(ctx, dy):
                (x,) = ctx.saved_tensors
                dx = dy * (1 - torch.tanh(x) ** 2 + 1e-3)
                return dx if dy.dtype == torch.float64 else factor * dx

        report = check(Partly, torch.tensor(self.X).to(dtype), raises=False, explain=False)
        assert report.passed is (factor == 1), str(report)

    @GIVEN
    def test_what_is_wrong_in_float64_fails_beside_a_gradient_in_float32(self, given):
        report = check(
            rms_norm("dw", factor=1 + 1e-7), given(self.X), given(self.W), raises=False, explain=False
        )
        assert self.coarse(report) == {"dw"}
        assert ("torch autograd", "dx") in {(row.method, row.quantity) for row in report.failed}

    @GIVEN
    @pytest.mark.parametrize("factor", [1 + 1e-6, 1 + 1e-9])
    def test_a_small_error_in_float64_fails(self, given, factor):
        """At inputs in low precision, one that float32 does not show passes."""
        x = given(self.X)
        low = torch.is_tensor(x) and x.dtype != torch.float64
        report = check(rms_norm(None, factor), x, given(self.W), raises=False, explain=False)
        failed = {row.quantity for row in report.failed if row.method == "torch autograd"}
        assert failed == (set() if low and factor < 1 + 1e-8 else {"dx", "dw"}) and not self.coarse(report)

    @pytest.mark.parametrize("seed", range(5))
    def test_an_error_that_varies_smoothly_is_not_rounding(self, seed):
        x = np.random.default_rng(seed).standard_normal((4, 6))

        def backward(dy, x):
            return dy * np.cos(x) + smooth_error(dy, x)

        report = check(own(lambda x: (np.sin(x), x), backward), x, raises=False, explain=False)
        assert {row.method for row in report.failed} == {"complex step"}

    @pytest.mark.parametrize("dtype", [torch.float64, *DTYPES])
    def test_a_function_passes_at_other_inputs_too(self, dtype, monkeypatch):
        x = torch.tensor(self.X).to(dtype)
        report = check(Tanh, x, vary=True)
        assert self.coarse(report) == {"dx"}
        monkeypatch.setattr(Tanh, "factor", 1 + 1e-5)
        assert not check(Tanh, x, raises=False, explain=False).passed

    def test_a_sum_of_many_bfloat16_rows(self):
        """Few bfloat16 numbers add up exactly in float32: only more rows show that it is float32."""

        class AddBias(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, b):
                return x + b

            @staticmethod
            def backward(ctx, dy):
                return dy, dy.float().sum(0).to(dy.dtype)

        x, b = (torch.tensor(a).bfloat16() for a in (self.X, self.W))
        report = check(AddBias, x, b, vary=True)
        assert not self.coarse(report)

    def test_an_operator_and_differences_say_so_too(self):
        report = check(Tanh, torch.tensor(self.X), operator=torch.tanh)
        (row,) = [row for row in report.of("PyTorch's operator") if row.quantity == "dx"]
        assert row.verdict == "not run" and "computes it in float32" in row.reason
        assert verdicts(report, "low precision") == ["passed", "passed"]

        def backward(dy, y):
            return np.float64(np.float32(dy) * np.float32(1 - y * y))

        def exact_only(factor):
            op = own(lambda x: (np.tanh(x), np.tanh(x)), lambda dy, y: factor * backward(dy, y))
            return check(op, 1e-3 * self.X, raises=False, explain=False).of("finite differences")[0]

        assert exact_only(1.0).verdict == "passed"
        row = exact_only(1 + 1e-6)
        assert row.verdict == "passed" and "computes it in float32" in row.note and row.error > 9e-7
        assert exact_only(1 + 1e-4).verdict == "FAILED"

    @pytest.mark.parametrize("seed", range(8))
    def test_differences_allow_for_rounding_where_parts_cancel(self, seed):
        """Of a row of one, RMS norm's dx is almost 0, and float32 rounds the parts that cancel."""
        rng = np.random.default_rng(seed)
        x, w = torch.tensor(rng.standard_normal((7, 1))), torch.tensor(rng.standard_normal(1))
        report = check(rms_norm("all"), x, w, methods=["finite_difference"], raises=False)
        assert not report.failed
        wrong = check(rms_norm("all", missing=0.9), x, w, methods=["finite_difference"], raises=False)
        assert wrong.failed

    @pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
    def test_a_backward_in_half_precision_is_judged_there(self, to):
        def tanh(factor):
            def backward(dy, y):
                return factor * (dy.to(to) * (1 - y.to(to) ** 2)).to(dy.dtype)

            return own(lambda x: (torch.tanh(x), torch.tanh(x)), backward)

        x = torch.tensor(self.X)
        report = check(tanh(1.0), x)
        assert "too coarse for differences" in report.of("finite differences")[0].reason
        assert verdicts(report, "low precision") == ["passed", "passed"]
        assert check(tanh(1.1), x, raises=False, explain=False).failed

    def test_a_declared_precision_is_not_measured(self):
        report = check(Tanh, torch.tensor(self.X), precision="float64", raises=False, explain=False)
        assert verdicts(report, "torch autograd") == ["FAILED"]

    def test_right_float64_is_not_measured(self, monkeypatch):
        called = []

        def measured(function, inputs, y, rng):
            called.append(len(inputs))
            return "float64"

        monkeypatch.setattr("backpass.verify.case.computed_precision", measured)
        check(rms_norm(), self.X, self.W, vary=False)
        assert called == [2]  # forward, of x and w
        check(rms_norm("dw", factor=1 + 1e-6), self.X, self.W, raises=False, explain=False)
        assert called == [2, 2, 3, 3]  # and once each gradient, of x, w, and dy


class TestNoise:
    """Differences know their own error."""

    @staticmethod
    def cross_entropy(factor=1.0):
        def forward(x, t):
            p = torch.softmax(x.float(), -1)
            return F.cross_entropy(x.float(), t), (p, t)

        def backward(dy, saved):
            p, t = saved
            return dy * factor * (p - F.one_hot(t, p.shape[-1])) / len(t), None

        return own(forward, backward)

    @pytest.mark.parametrize("seed", range(4))
    def test_a_mean_of_thousands_of_rows_in_float32(self, seed):
        rng = np.random.default_rng(seed)
        x, t = torch.tensor(rng.standard_normal((4096, 16))).float(), torch.tensor(rng.integers(0, 16, 4096))
        report = check(self.cross_entropy(), x, t, operator=F.cross_entropy)
        (row,) = report.of("finite differences")
        assert row.verdict == "passed" or "too coarse here" in row.reason
        wrong = check(self.cross_entropy(1.1), x, t, methods=["finite_difference"], raises=False)
        assert wrong.of("finite differences")[0].verdict == "FAILED"

    def test_an_ill_conditioned_solve_in_float64(self):
        def forward(a, b):
            y = np.linalg.solve(a, b)
            return y, (a, y)

        def backward(dy, saved):
            a, y = saved
            db = np.linalg.solve(a.T, dy)
            return -db @ y.T, db

        for seed in range(20):
            rng = np.random.default_rng(seed)
            u, _ = np.linalg.qr(rng.standard_normal((4, 4)))
            a = u * np.array([1.0, 0.3, 0.05, 1 / 150]) @ u.T
            report = check(
                own(forward, backward),
                a,
                rng.standard_normal((4, 2)),
                methods=["finite_difference"],
                raises=False,
            )
            assert not report.failed, report


class TestConventions:
    def test_a_straight_through_estimator(self):
        class Round(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return torch.round(x)

            @staticmethod
            def backward(ctx, dy):
                return dy

        def meant(x):
            return x + (torch.round(x) - x).detach()

        x = torch.tensor(X)
        with pytest.raises(VerificationError):
            check(Round, x)
        report = check(Round, x, conventions={"x": "straight through"}, operator=meant)
        assert report.of("finite differences")[0].reason == "by convention: straight through"
        assert verdicts(report, "torch autograd") == ["not run"]

    def test_padding(self):
        def backward(dy, saved):
            shape, t = saved
            dw = np.zeros(shape)
            np.add.at(dw, t, dy)
            dw[0] = 0
            return dw, None

        embedding = own(lambda w, t: (w[t], (w.shape, t)), backward)
        t = np.array([0, 3, 1, 3])
        declared = {"conventions": {"w": "row 0 is padding"}}
        assert check(
            embedding, X, t, **declared, operator=lambda w, t: F.embedding(t, w, padding_idx=0)
        ).passed
        assert not check(
            embedding, X, t, **declared, operator=lambda w, t: F.embedding(t, w), raises=False
        ).passed
        assert not check(embedding, X, t, raises=False).passed

    def test_what_is_detached_is_judged_by_autograd(self):
        def forward(x):
            scale = x.detach().abs().max()
            return x / scale, scale

        detached = own(forward, lambda dy, scale: dy / scale)
        assert check(detached, torch.tensor(X), conventions={"x": "the scale is detached"}).passed

    def test_a_convention_alone_shows_nothing(self):
        half = own(lambda x: (np.tanh(x), x), lambda dy, x: 0.5 * dy)
        report = check(half, X, conventions={"x": "whatever"}, raises=False)
        assert not report.passed

    def test_what_cannot_be_declared(self):
        op = own(lambda x: (np.tanh(x), x), lambda dy, x: dy)
        with pytest.raises(ValueError, match="conventions: expected some of x; got w"):
            check(op, X, conventions={"w": "padding"})
        with pytest.raises(TypeError, match="expected the reason for x in words; got ''"):
            check(op, X, conventions={"x": ""})
        with pytest.raises(TypeError, match="expected a dict from inputs to reasons"):
            check(op, X, conventions=["x"])


class TestCouldNotRun:
    def test_what_raises_is_not_called_wrong_and_keeps_its_traceback(self):
        def backward(dy, x):
            return dy / (1 - 1)

        with pytest.raises(VerificationError) as caught:
            check(own(lambda x: (np.tanh(x), x), lambda dy, x: 1 // 0), X)
        report = caught.value.report
        assert not report.failed
        assert {row.verdict for row in report.rows} == {"could not run", "not run"}
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize("name", ["torch", "triton"])
    def test_a_package_that_is_missing_is_not_run(self, name, monkeypatch):
        def forward(x):
            if forward.checked:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return np.tanh(x), x

        forward.checked = True
        report = check(own(forward, lambda dy, x: dy), X, methods=["contract"], raises=False)
        assert report.rows[0].verdict == "not run" and "is not installed" in report.rows[0].reason


class TestOperator:
    """An operator that raises is not a reason to leave a method out."""

    @pytest.mark.parametrize("operator", [lambda x, w: torch.tanh(x), lambda x: F.no_such_function(x)])
    def test_a_broken_one_does_not_pass(self, operator):
        x = torch.tensor(X).bfloat16()
        with pytest.raises(VerificationError) as caught:
            check(tanh_inside(torch.float64), x, operator=operator)
        assert {row.method for row in caught.value.report.having("could not run")} == {
            "PyTorch's operator",
            "low precision",
        }

    def test_one_that_takes_no_float64_is_not_run(self):
        def single(x):
            if x.dtype == torch.float64:
                raise TypeError("float32 only")
            return torch.tanh(x)

        report = check(tanh_inside(torch.float64), torch.tensor(X).float(), operator=single)
        assert "operator= does not accept float64" in report.of("PyTorch's operator")[0].reason

    def test_one_that_rejects_varied_inputs_is_not_a_fault(self):
        def this_shape(x):
            if x.shape != X.shape:
                raise ValueError("another shape")
            return torch.tanh(x)

        assert check(tanh_inside(torch.float64), torch.tensor(X), operator=this_shape, vary=True).passed

    def test_a_cotangent_that_is_not_an_array(self):
        with pytest.raises(TypeError, match=r"dy: expected an array of the output's shape, .* got tuple"):
            check(tanh_inside(torch.float64), torch.tensor(X), dy=(1.0, 2.0))


class TestProgress:
    class Terminal:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

        def isatty(self):
            return True

    def test_what_takes_long_says_what_it_does_and_wipes_it(self, monkeypatch):
        from backpass.text import progress

        monkeypatch.setattr(progress, "PATIENCE", 0.01)
        monkeypatch.setattr(sys, "stderr", terminal := self.Terminal())
        check("softmax")
        assert "checking softmax: " in terminal.text
        assert terminal.text.endswith("\r\x1b[K")

    def test_what_is_quick_says_nothing(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", terminal := self.Terminal())
        check("softmax", methods=["contract"], raises=False)
        assert terminal.text == ""


class TestRightInLowPrecision:
    """Found by a reviewer: each was accused."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("times", [1, 20, 60])
    def test_a_softmax_that_is_saturated_and_has_no_operator(self, dtype, times):
        def forward(x):
            e = torch.exp(x - x.amax(-1, keepdim=True))
            return (e / e.sum(-1, keepdim=True),) * 2

        softmax = own(forward, lambda dy, y: y * (dy - (y * dy).sum(-1, keepdim=True)))
        x = (times * torch.tensor(X)).to(dtype)
        assert not check(softmax, x, methods=["precision"], raises=False).failed

    def test_numbers_that_pytorch_does_not_have_are_rejected(self):
        with pytest.raises(TypeError, match=r"inputs: expected float64, .*; got"):
            check(own(lambda x: (x * x, x), lambda dy, x: 2 * dy * x), X.astype(">f8"))

    def test_numpy_adds_rows_one_by_one(self):
        rng = np.random.default_rng(0)
        x, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((4096, 8), (8,)))
        assert check(own(lambda x, b: (x + b, None), lambda dy, saved: (dy, dy.sum(0))), x, b).passed
        short = own(lambda x, b: (x + b, None), lambda dy, saved: (dy, dy[1:].sum(0)))
        assert check(short, x, b, methods=["precision"], raises=False).failed

    def test_rows_far_from_zero(self):
        def forward(x):
            c = x - x.mean(-1, keepdims=True)
            r = (c * c).mean(-1, keepdims=True) ** -0.5
            return c * r, (c * r, r)

        def backward(dy, saved):
            y, r = saved
            return r * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True))

        far = np.random.default_rng(0).standard_normal((4, 64)) + 1e4
        assert check(own(forward, backward), far).passed
        assert check(own(forward, backward), torch.tensor(far)).passed

    def test_float32_that_is_summed_in_another_order_for_other_strides(self):
        class Softmax(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = torch.softmax(x.float(), -1).to(x.dtype)
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, dy):
                (y,) = ctx.saved_tensors
                y, d = y.float(), dy.float()
                return (y * (d - (d * y).sum(-1, keepdim=True))).to(dy.dtype)

        x = torch.tensor(np.random.default_rng(0).standard_normal((8, 33)))
        assert check(Softmax, x, operator=lambda x: torch.softmax(x, -1)).passed

    def test_a_small_error_of_float32_alone_is_seen(self):
        def softmax(factor):
            def forward(x):
                e = np.exp((x - x.max(-1, keepdims=True)).astype(np.float32))
                y = e / e.sum(-1, keepdims=True)
                return y, y

            def backward(dy, y):
                return y * (dy - np.float32(factor) * (y * dy).sum(-1, keepdims=True))

            return own(forward, backward)

        assert check(softmax(1), X).passed
        assert not check(softmax(0.999), X, raises=False).passed


class TestAnotherFunction:
    def test_a_forward_that_autograd_follows_in_part(self):
        class Cut(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * torch.from_numpy(np.tanh(x.detach().numpy()))

            @staticmethod
            def backward(ctx, dy):
                (x,) = ctx.saved_tensors
                t = torch.tanh(x)
                return dy * (t + x * (1 - t * t))

        report = check(Cut, torch.tensor(X))
        assert "does not follow all of forward" in report.of("torch autograd")[0].reason

    def test_numpys_variance_is_not_pytorchs(self):
        def forward(x):
            return x.var(axis=-1), x

        def backward(dy, x):
            return 2 * dy[..., None] * (x - x.mean(axis=-1, keepdims=True)) / x.shape[-1]

        rows = np.random.default_rng(0).standard_normal((4, 2048)).astype(np.float32)
        for x in (X, rows):
            report = check(own(forward, backward), x, methods=["finite_difference", "autograd"])
            assert "a different y on tensors" in report.of("torch autograd")[0].reason

    def test_an_object_called_as_an_operation_is_not_taken_for_it(self):
        class linear:
            SHAPES = "x[*, i], w[o, i] -> y[*, o]"

            @staticmethod
            def forward(x, w):
                return x @ w.mT, (x, w)

            @staticmethod
            def backward(dy, saved):
                x, w = saved
                return dy @ w, dy.mT @ x

        assert check(linear, X, X[:3], vary=False).passed

    def test_a_function_that_writes_over_its_input_and_says_so(self):
        class Relu(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                x.relu_()
                ctx.mark_dirty(x)
                ctx.save_for_backward(x)
                return x

            @staticmethod
            def backward(ctx, dy):
                (y,) = ctx.saved_tensors
                return dy * (y > 0)

        assert check(Relu, torch.tensor(X)).passed
