"""Every method sees a planted mistake; what shows nothing is not called passed; anything with the two functions will do."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass import ops
from backpass.arrays import namespace
from backpass.ops import linear, matmul, softmax
from backpass.verify import METHODS, VerificationError, check

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
    assert {row.method for row in report.failed} == {"PyTorch's operator"}
    assert "y" in {row.quantity for row in report.failed}


class TestVacuous:
    def test_a_zero_cotangent(self):
        report = check(softmax, X, dy=np.zeros_like(X), methods=["finite_difference", "autograd"])
        assert [row.verdict for row in report.rows] == ["vacuous"] * 2
        assert not report.passed
        assert all("cotangent is zero" in row.reason for row in report.rows)

    def test_a_cotangent_of_ones_for_softmax(self):
        report = check(softmax, X, dy=np.ones_like(X), methods=["complex_step", "autograd", "pytorch"])
        assert [row.verdict for row in report.rows if row.quantity == "dx"] == ["vacuous"] * 3

    def test_a_saturated_softmax(self):
        report = check(softmax, 1e4 * X)
        assert report.having("vacuous")
        assert not report.passed

    def test_an_empty_array(self):
        report = check(linear, np.ones((0, 5)), np.ones((5, 2)), methods=["autograd"])
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
        undeclared = check(shift, X, np.ones((3, 1)), methods=methods)
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
    def test_minus_infinity_is_no_direction(self):
        x = X.copy()
        x[0, 1] = x[2, 4] = -np.inf
        report = check(softmax, x)
        assert report.passed
        assert "no reference at 2 of 15" in report.of("finite differences")[0].how

    def test_a_row_of_minus_infinity_where_pytorch_gives_nan(self):
        x = X.copy()
        x[1] = -np.inf
        report = check(softmax, x)
        assert report.passed
        assert "no reference at 5 of 15 entries (NaN)" in report.of("PyTorch's operator")[0].how

    @pytest.mark.parametrize("method", ["finite_difference", "autograd"])
    def test_nan_fails(self, method):
        def wrong(gradient):
            gradient = gradient + 0
            gradient[1, 2] = float("nan")
            return gradient

        report = check(with_backward(softmax, wrong), X, methods=[method], raises=False)
        assert report.failed
        assert "NaN at index [1, 2]" in report.rows[0].reason

    def test_a_reference_that_is_nan_for_finite_inputs_fails(self):
        root = SimpleNamespace(forward=lambda x: ((x * x) ** 0.5, x), backward=lambda dy, x: dy * np.sign(x))
        x = torch.tensor([[1.5, 0.0, -2.0]], dtype=torch.float64)
        root.backward = lambda dy, x: dy * torch.sign(x)
        report = check(root, x, methods=["autograd"], raises=False)
        assert "the reference is NaN at index [0, 1]" in report.rows[0].reason


class TestLowPrecision:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("stem", ops.STEMS)
    def test_operations_pass(self, stem, dtype):
        from backpass.verify.convert import to_torch
        from backpass.verify.drawing import draw, options_for

        inputs = [to_torch(a, dtype=dtype) for a in draw(stem, np.random.default_rng(3))]
        report = check(stem, *inputs, **options_for(stem))
        assert report.passed
        assert {row.quantity for row in report.of("low precision")} > {"y"}

    def test_an_error_of_two_per_cent_is_seen_in_bfloat16(self):
        x = torch.tensor(RNG.standard_normal((4, 64))).bfloat16()

        def backward(dy, saved):
            dx = softmax.backward(dy, saved)
            return dx * (1.05 if dx.dtype == torch.bfloat16 else 1)

        wrong = SimpleNamespace(**{**vars(softmax), "backward": backward})
        assert {row.method for row in check(wrong, x, raises=False).failed} == {"low precision"}

    def test_the_bound_is_pytorchs_error(self):
        x = torch.tensor(RNG.standard_normal((3, 7))).float()
        row = check(softmax, x, methods=["precision"]).rows[0]
        assert "float32 against float64; twice PyTorch's operator's error" in row.how
        assert row.tolerance < 1e-5

    def test_numpy_float32_without_pytorchs_operator(self):
        square = SimpleNamespace(forward=lambda x: (x * x, x), backward=lambda dy, x: 2 * x * dy)
        assert check(square, X.astype(np.float32)).passed


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
        assert "takes no float64" in report.of("finite differences")[0].reason

    def test_wrong(self):
        class Wrong(self.Half):
            factor = 1.1

        report = check(Wrong, self.X, operator=torch.tanh, raises=False)
        assert [row.quantity for row in report.failed] == ["dx"]

    def test_without_an_operator_nothing_is_known(self):
        report = check(self.Half, self.X)
        assert "an operator= would give the reference" in report.of("low precision")[0].reason
        assert {row.method for row in report.having("passed")} == {"contract"}

    def test_a_forward_that_computes_in_float32_whatever_it_is_given(self):
        def forward(x):
            return torch.exp(x.float()), torch.exp(x.float())

        own = SimpleNamespace(forward=forward, backward=lambda dy, y: dy * y)
        report = check(own, torch.tensor(X).float(), operator=torch.exp)
        assert "computes in float32, given float64" in report.of("torch autograd")[0].reason
        assert report.passed


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
        assert "real" in check(own, X, methods=["complex_step", "contract"]).of("complex step")[0].reason
        own = SimpleNamespace(forward=lambda x: (x * np.abs(x), x), backward=lambda dy, x: 2 * dy * np.abs(x))
        report = check(own, X)
        assert "not analytic" in report.of("complex step")[0].reason
        assert report.of("finite differences")[0].verdict == "passed"

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
        with pytest.raises(TypeError, match="at least one array of real floating-point numbers"):
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
        report = check(self.Times, self.X, self.W, 1)
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
        with pytest.raises(TypeError, match="takes no named options"):
            check(self.Square, self.X, power=2)


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

    def test_the_shape_is_cut_down_and_the_structure_kept(self):
        report = check(
            linear, RNG.standard_normal((40, 30)), RNG.standard_normal((30, 20)), methods=["symbolic"]
        )
        assert [row.how for row in report.rows] == [
            "every element, exactly, at shape [2, 3]",
            "every element, exactly, at shape [3, 2]",
        ]

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
    shifted = 1e4 + RNG.standard_normal((3, 5))
    assert check(softmax, shifted).passed


class TestReport:
    report = check(with_backward(softmax, lambda g: 2 * g), X, raises=False)

    def test_a_failure_raises_and_carries_the_report(self):
        with pytest.raises(VerificationError) as caught:
            check(with_backward(softmax, lambda g: 2 * g), X)
        assert str(caught.value) == str(caught.value.report) == str(self.report)
        with pytest.raises(AssertionError):
            self.report.raise_if_failed()

    def test_nothing_run_raises(self):
        report = check(
            SimpleNamespace(forward=lambda x: (x, 0), backward=lambda dy, s: dy),
            X,
            methods=["pytorch"],
            raises=False,
        )
        with pytest.raises(VerificationError):
            report.raise_if_failed()

    def test_the_terminal_table_is_aligned(self):
        lines = str(self.report).splitlines()
        start = lines[1].index("verdict")
        rows = lines[3 : 3 + len(self.report.rows)]
        assert all(line[start] in "✓✗○–" and line[start - 2 : start] == "  " for line in rows)
        assert lines[-1] == (
            "✗ dx (finite differences, complex step, symbolic, torch autograd, PyTorch's operator): got = 2 × reference"
        )

    def test_the_notebook_table_is_accessible(self):
        html = self.report._repr_html_()
        assert html.count('<th scope="col"') == 6
        assert html.count('<th scope="row"') == len(self.report.rows)
        assert "✗ FAILED" in html
        assert 'tabindex="0"' in html
        assert "overflow-x: auto" in html
        assert "<caption" in html

    def test_the_notebook_table_escapes(self):
        own = SimpleNamespace(
            forward=lambda x: (x * x, x), backward=lambda dy, x: 2 * x * dy, __name__="<b>&"
        )
        assert "<b>" not in check(own, X)._repr_html_()
