"""More is seen: state between calls, frozen inputs, several outputs, nondeterminism, other shapes and values."""

import resource
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from backpass.verify import check

X = np.random.default_rng(12).standard_normal((4, 6))
F = torch.nn.functional


def own(forward, backward):
    return SimpleNamespace(forward=forward, backward=backward)


def contract(op, *inputs, **settings):
    """What the contract has against it."""
    return check(op, *inputs, methods=["contract"], raises=False, **settings).rows[0].reason


class TestState:
    def test_what_the_last_forward_left_behind(self):
        class Tanh:
            def forward(self, x):
                self.y = np.tanh(x)
                return self.y, None

            def backward(self, dy, saved):
                return dy * (1 - self.y**2)

        assert contract(Tanh(), X) == "dx changes when forward is called with other inputs before backward"

    @pytest.mark.parametrize("array", [np.asarray, torch.tensor], ids=["NumPy", "PyTorch"])
    def test_what_the_first_forward_left_behind(self, array):
        class Relu:
            mask = None

            def forward(self, x):
                if self.mask is None:
                    self.mask = x > 0
                return x * (x > 0), None

            def backward(self, dy, saved):
                return dy * self.mask

        assert contract(Relu(), array(X)).startswith("dx is wrong at a second input")

    def test_what_a_module_keeps(self):
        module, kept = ModuleType("kept"), {}

        def forward(x, w):
            kept["x"] = x
            return x @ w, w

        module.forward = forward
        module.backward = lambda dy, w: (dy @ w.T, kept["x"].T @ dy)
        assert contract(module, X, X.T.copy()).startswith(
            "dw changes when forward is called with other inputs"
        )

    def test_rows_that_have_to_sum_to_one_are_not_state(self):
        def forward(x, q):
            log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
            return -(q * log_p).sum(), (log_p, q)

        def backward(dy, saved):
            log_p, q = saved
            return dy * (np.exp(log_p) - q), -dy * log_p

        q = np.exp(X) / np.exp(X).sum(-1, keepdims=True)
        assert contract(own(forward, backward), X, q) == ""

    def test_a_gradient_that_is_wrong_anyway_is_not_a_state(self):
        assert contract(own(lambda x: (np.tanh(x), x), lambda dy, x: dy), X) == ""

    def test_a_forward_that_rejects_other_inputs(self):
        def forward(x):
            if not np.array_equal(x, X):
                raise ValueError("these inputs alone")
            return np.tanh(x), x

        assert contract(own(forward, lambda dy, x: dy / np.cosh(x) ** 2), X) == ""


class TestNotDeterministic:
    def test_it_is_told_from_strides(self):
        class Tanh:
            calls = 0

            def forward(self, x):
                return np.tanh(x), x

            def backward(self, dy, x):
                self.calls += 1
                return dy / np.cosh(x) ** 2 * (1 + 0.01 * (self.calls % 4 == 0))

        assert (
            contract(Tanh(), X)
            == "dx differs between identical calls: forward and backward are not deterministic"
        )

    def test_strides_are_still_named(self):
        def backward(dy, x):
            return np.lib.stride_tricks.as_strided(dy, dy.shape, (48, 8)) / np.cosh(x) ** 2

        found = contract(own(lambda x: (np.tanh(x), x), backward), X)
        assert "dx differs for a dy that is not contiguous" in found


class TestForm:
    def test_an_undefined_output_is_said_first(self):
        op = own(lambda x: (np.sqrt(x), x), lambda dy, x: dy / (2 * np.sqrt(x)))
        with np.errstate(invalid="ignore"):
            assert contract(op, X).startswith("y is NaN at index [0, ")

    def test_what_was_saved_is_called_so(self):
        def backward(dy, saved):
            saved["dx"] += 2 * saved["x"] * dy
            return saved["dx"].copy()

        op = own(lambda x: (x * x, {"x": x, "dx": np.zeros_like(x)}), backward)
        assert "saved.dx was modified in place" in contract(op, X)

    def test_what_is_not_an_object_to_check(self):
        with pytest.raises(TypeError, match="give the class itself, Scale, not its apply"):
            check(Scale.apply, torch.tensor(X))
        with pytest.raises(TypeError, match="a module's backward is derived by PyTorch"):
            check(torch.nn.LayerNorm(6), torch.tensor(X))


class Scale(torch.autograd.Function):
    """x·w, with a shortcut that is wrong when w is frozen, for `slip` not 0."""

    slip = 0.0

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @classmethod
    def backward(cls, ctx, dy):
        x, w = ctx.saved_tensors
        frozen = not ctx.needs_input_grad[1]
        return dy * w + cls.slip * frozen, None if frozen else dy * x


class TestFrozen:
    def test_each_in_turn(self):
        class Slipped(Scale):
            slip = 0.5

        inputs = torch.tensor(X), torch.tensor(X + 2)
        assert contract(Scale, *inputs) == ""
        assert contract(Slipped, *inputs) == "dx differs when w does not require a gradient"

    def test_a_constant_requires_no_gradient(self):
        report = check(Scale, torch.tensor(X), torch.tensor(X + 2), constants=["w"])
        assert {row.quantity for row in report.of("torch autograd")} == {"dx"}

    def test_constants_of_an_object(self):
        op = own(lambda x, c: (x * c, c), lambda dy, c: (dy * c, None))
        assert check(op, X, X + 2, constants=("c",)).passed
        with pytest.raises(ValueError, match="constants: expected some of x, c; got w"):
            check(op, X, X + 2, constants=["w"])


class TestSeveralOutputs:
    def test_of_an_object(self):
        def forward(x):
            return (np.tanh(x), np.sin(x).sum(axis=0), np.argsort(x)), x

        def backward(dy, x):
            of_tanh, of_sum, of_order = dy
            assert of_tanh.shape == x.shape and of_sum.shape == x.shape[1:] and of_order is None
            return of_tanh / np.cosh(x) ** 2 + of_sum * np.cos(x)

        assert check(own(forward, backward), X).passed
        forgets = own(forward, lambda dy, x: dy[0] / np.cosh(x) ** 2)
        assert check(forgets, X, raises=False).of("complex step")[0].verdict == "FAILED"

    def test_a_tuple_saved_is_taken_apart_for_a_diagnosis(self):
        def backward(dy, saved):
            x, length = saved
            return dy[0] / np.cosh(x) ** 2 - dy[1] * x / length

        def forward(x):
            length = np.sqrt(np.sum(x * x))
            return (np.tanh(x), length), (x, length)

        report = check(own(forward, backward), X, raises=False)
        assert report.failed and not report.having("could not run")

    @pytest.mark.parametrize("right", [True, False])
    def test_of_a_function(self, right):
        class Norm(torch.autograd.Function):
            """Rows of length 1, their lengths, and a mask."""

            @staticmethod
            def forward(ctx, x):
                r = x.norm(dim=-1, keepdim=True)
                y = x / r
                mask = y > 0
                ctx.mark_non_differentiable(mask)
                ctx.save_for_backward(y, r)
                return y, r, mask

            @staticmethod
            def backward(ctx, dy, dr, _):
                y, r = ctx.saved_tensors
                dx = (dy - y * (dy * y).sum(-1, keepdim=True)) / r
                return dx + dr * y if right else dx

        report = check(Norm, torch.tensor(X), raises=False)
        assert report.passed == right
        assert report.of("torch autograd")[0].verdict == ("passed" if right else "FAILED")

    def test_none_of_which_is_floating(self):
        report = check(own(lambda x: ((np.argsort(x),), x), lambda dy, x: dy), X, raises=False)
        assert (
            "expected at least one floating-point array among the outputs; got ndarray"
            in report.rows[0].reason
        )


class TestVaried:
    """Each mistake shows at one variation, and not at the inputs given."""

    @staticmethod
    def varied(op, *inputs, **settings):
        methods = settings.pop("methods", ["contract", "autograd"])
        report = check(op, *inputs, methods=methods, vary=True, raises=False, **settings)
        assert all(row.verdict == "passed" for row in report.rows if row.method != "varied inputs")
        return [row.reason for row in report.of("varied inputs") if row.verdict == "FAILED"]

    @staticmethod
    def tanh(slip):
        """tanh, whose gradient is wrong where ``slip`` of the input is not 0."""

        def forward(x):
            return torch.tanh(x), x

        return own(forward, lambda dy, x: dy * (1 - torch.tanh(x) ** 2) * (1 + slip(x)))

    @pytest.mark.parametrize(
        ("what", "slip"),
        [
            ("one more leading axis", lambda x: float(x.ndim > 2)),
            ("length 1061 in place of 6", lambda x: (torch.arange(x.shape[-1]) >= 1024).to(x.dtype)),
            ("length 293 in place of 4", lambda x: (torch.arange(x.shape[-2]) >= 256).to(x.dtype)[:, None]),
            ("x × 20", lambda x: 1e10 * (x.abs() > 15)),
            ("a row of zeros in x", lambda x: (x == 0).all(-1, keepdim=True).to(x.dtype)),
        ],
    )
    def test_shapes_and_values(self, what, slip):
        found = self.varied(self.tanh(slip), torch.tensor(X))
        many = "21,882 rows" if "293" in what else "a row of 131,108" if "1061" in what else what
        assert found and all(reason.startswith((what, many)) for reason in found), found

    def test_a_right_one_passes(self):
        assert self.varied(self.tanh(lambda x: 0.0), torch.tensor(X)) == []

    def test_a_backward_that_does_not_claim_more_axes(self):
        def backward(dy, saved):
            x, w = saved
            return dy @ w.T, x.T @ dy

        report = check(own(lambda x, w: (x @ w, (x, w)), backward), X, X.T.copy(), vary=True)
        (deeper,) = [row for row in report.of("varied inputs") if "one more leading axis" in row.reason]
        assert deeper.verdict == "not run" and "backward raises an error" in deeper.reason

    def test_a_permutation_stays_one(self):
        def forward(x, p):
            y = np.empty_like(x)
            y[p] = x
            return y, p

        op = own(forward, lambda dy, p: (dy[p], None))
        assert check(op, X[0], np.array([2, 0, 4, 1, 3, 5]), vary=True).passed

    def test_lengths_that_need_not_be_equal(self):
        def forward(q, k):
            return q @ k.mT, (q, k)

        def backward(dy, saved):
            q, k = saved
            return dy @ k, dy.mT @ q * (k.shape[-2] / q.shape[-2])

        q, k = (torch.tensor(np.random.default_rng(seed).standard_normal((5, 3))) for seed in (1, 2))
        found = self.varied(own(forward, backward), q, k)
        assert any(reason.startswith("a length other than 5 in q alone") for reason in found)

    def test_many_rows_in_sixteen_bits(self):
        def forward(x, w):
            return x * w, (x, w)

        def backward(dy, saved):
            x, w = saved
            total = torch.zeros_like(w)
            for row in dy * x:
                total = total + row  # rounded to 16 bits each time
            return dy * w, total

        x = torch.tensor(X)
        found = self.varied(
            own(forward, backward), x, x[0] + 1, methods=["contract", "autograd", "precision"]
        )
        assert any(reason.startswith("293 rows of bfloat16: low precision") for reason in found)

    def test_ties_at_a_kink_are_not_held_against_a_backward(self):
        def backward(dy, saved):
            first = torch.zeros_like(saved)
            first.scatter_(-1, saved.argmax(-1, keepdim=True), dy)
            return first

        top = own(lambda x: (x.amax(-1, keepdim=True), x), backward)
        x = torch.tensor(X)
        report = check(top, x, methods=["contract", "finite_difference", "autograd"], vary=True, raises=False)
        (ties,) = [
            row for row in report.of("varied inputs") if "ties in x" in row.reason + row.how + row.note
        ]
        assert ties.verdict != "FAILED"


class TestQuick:
    def test_a_quantity_is_diagnosed_once_and_alike(self, monkeypatch):
        from backpass.verify import comparison

        calls = []
        real = comparison.diagnose
        monkeypatch.setattr(comparison, "diagnose", lambda *a, **k: calls.append(1) or real(*a, **k))
        op = own(lambda x: (torch.tanh(x), x), lambda dy, x: 2 * dy * (1 - torch.tanh(x) ** 2))
        report = check(op, torch.tensor(X), operator=torch.tanh, raises=False)
        assert len(report.failed) == 4 and len(calls) == 1
        assert {row.reason for row in report.failed} == {"got = 2 × reference"}

    def test_without_an_explanation(self):
        op = own(lambda x: (torch.tanh(x), x), lambda dy, x: 2 * dy * (1 - torch.tanh(x) ** 2))
        report = check(op, torch.tensor(X), explain=False, raises=False)
        assert {row.reason for row in report.failed} == {"wrong"}

    def test_a_large_layer_norm(self):
        """Within 5 seconds on a quiet machine. Most of that is forward and backward, so their calls are limited, and so
        is the memory that the kernel has to clear: with glibc 340,000 pages; 1,130,000 if every array is mapped anew."""
        calls = Counter()

        def forward(x, w):
            calls["forward"] += 1
            centred = x - x.mean(-1, keepdim=True)
            r = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
            return centred * r * w, (centred * r, w, r)

        def backward(dy, saved):
            calls["backward"] += 1
            x, w, r = saved
            g = dy * w
            return r * (g - g.mean(-1, keepdim=True) - x * (g * x).mean(-1, keepdim=True)), (dy * x).sum(0)

        rng = np.random.default_rng(0)
        x, w = (torch.tensor(rng.standard_normal(shape)).float() for shape in ((4096, 1024), (1024,)))
        before = resource.getrusage(resource.RUSAGE_SELF)
        check(own(forward, backward), x, w, operator=lambda x, w: F.layer_norm(x, w.shape, w))
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert calls["forward"] <= 22 and calls["backward"] <= 11
        assert (
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 12
        )  # 4 s; machines differ twofold
        if sys.platform == "linux":
            assert after.ru_minflt - before.ru_minflt < 900_000  # more in a process that has run many tests


def test_cotangents_of_two_outputs_have_strides_of_their_own():
    def forward(x):
        return (2 * x, 3 * x), None

    def backward(dy, saved):
        first, second = dy
        if second.stride() != first.stride():
            second = torch.as_strided(second.reshape(-1), second.shape, first.stride())
        return 2 * first + 3 * second

    x = torch.from_numpy(X)
    assert not contract(own(forward, lambda dy, saved: 2 * dy[0] + 3 * dy[1]), x)
    assert "backward fails for a dy that is not contiguous" in contract(own(forward, backward), x)
