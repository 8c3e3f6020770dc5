"""A wrong gradient that is forward's own under a change is named by that change, and no other gradient is."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass.verify import check, diagnose
from backpass.verify.case import Case
from backpass.verify.diagnosis import missing
from backpass.verify.reruns import MOST_OPERATIONS, reruns
from backpass.verify.subject import subject

RNG = np.random.default_rng(38)
X = RNG.standard_normal((4, 7))
V = RNG.standard_normal((7, 7))
OTHER = RNG.standard_normal((4, 7))


def reasons(forward, backward, *inputs, **keywords):
    """The diagnosis of each wrong gradient."""
    op = SimpleNamespace(forward=forward, backward=backward)
    report = check(op, *inputs, raises=False, **keywords)
    return {row.quantity: row.reason for row in report.failed}


def named(reason):
    return reason.startswith("got is forward's")


def value_used_twice(xp):
    def forward(x):
        h = xp.tanh(x)
        return 2 * h + xp.exp(h), h

    return forward


@pytest.mark.parametrize("xp", [np, torch], ids=lambda xp: xp.__name__)
class TestOfOperations:
    """NumPy's operations are followed by complex steps, PyTorch's by autograd."""

    def x(self, xp):
        return xp.asarray(X)

    def test_a_value_whose_second_use_is_forgotten(self, xp):
        found = reasons(value_used_twice(xp), lambda dy, h: dy * 2 * (1 - h * h), self.x(xp))
        says = (
            "got is forward's gradient if the result of exp (the 3rd operation) is constant; "
            "its line: return 2 * h + xp.exp(h), h"
        )
        assert found == {"dx": says}

    def test_a_second_use_that_is_off_by_a_thousandth_is_not(self, xp):
        def near(dy, h):
            return dy * (2 + 1e-3 * xp.exp(h)) * (1 - h * h)

        (reason,) = reasons(value_used_twice(xp), near, self.x(xp)).values()
        assert not named(reason)

    def test_a_derivative_that_is_forgotten_inside_a_chain(self, xp):
        def forward(x, v):
            h = xp.tanh(x @ v)
            return h @ v, (x, v, h)

        def backward(dy, saved, slope=lambda h: 1.0):
            x, v, h = saved
            dh = (dy @ v.T) * slope(h)
            return dh @ v.T, x.T @ dh + h.T @ dy

        inputs = self.x(xp), xp.asarray(V)
        says = "got is forward's gradient if the derivative of tanh (the 2nd operation) is 1; its line: h = xp.tanh(x @ v)"
        assert reasons(forward, backward, *inputs) == {"dx": says, "dv": says}
        near = reasons(forward, lambda dy, saved: backward(dy, saved, lambda h: 1 - h), *inputs)
        assert len(near) == 2
        assert not any(map(named, near.values()))
        assert not reasons(forward, lambda dy, saved: backward(dy, saved, lambda h: 1 - h * h), *inputs)

    def test_one_of_two_uses_of_an_input(self, xp):
        """The input itself is an operand, so no result can stand for it."""

        def forward(x):
            return x * xp.cos(x) + xp.exp(x), x

        def without_its_first_use(dy, x):
            return dy * (-x * xp.sin(x) + xp.exp(x))

        found = reasons(forward, without_its_first_use, self.x(xp))
        name = "multiply" if xp is np else "mul"
        says = (
            f"got is forward's gradient if the 1st operand of {name} (the 2nd operation) is constant; "
            "its line: return x * xp.cos(x) + xp.exp(x), x"
        )
        assert found == {"dx": says}


class TestOfTheCall:
    @staticmethod
    def rotation(start_of):
        def angles(x, start):
            return (start + torch.arange(len(x), dtype=x.dtype))[:, None]

        def forward(x, start=0, turned=True):
            at = angles(x, start)
            return x * at.cos() + x.flip(-1) * at.sin() if turned else x * at.cos(), start

        def backward(dy, start):
            at = angles(dy, start_of(start))
            return dy * at.cos() + (dy * at.sin()).flip(-1)

        return forward, backward

    def test_an_option_that_backward_forgot(self):
        found = reasons(*self.rotation(lambda start: 0), torch.asarray(X), start=3)
        assert found == {"dx": "got is forward's gradient with start=0 in place of 3"}

    def test_an_option_that_backward_has_wrong(self):
        (reason,) = reasons(*self.rotation(lambda start: start + 0.5), torch.asarray(X), start=3).values()
        assert not named(reason)

    def test_an_option_flipped(self):
        forward, _ = self.rotation(lambda start: start)

        def without_turning(dy, start):
            at = (start + torch.arange(len(dy), dtype=dy.dtype))[:, None]
            return dy * at.cos()

        found = reasons(forward, without_turning, torch.asarray(X))
        assert found == {"dx": "got is forward's gradient with turned=False in place of True"}

    @pytest.mark.parametrize("as_input", [False, True])
    def test_a_number_without_a_default_that_backward_takes_as_1(self, as_input):
        """It is an option, or an input that is not an array."""

        def forward(x, factor):
            return np.tanh(factor * x) * np.exp(x), (x, factor)

        def backward(factor_of, dy, saved):
            x, factor = saved[0], factor_of(saved[1])
            h = np.tanh(factor * x)
            dx = dy * np.exp(x) * (factor * (1 - h * h) + h)
            return (dx, None) if as_input else dx

        def found(factor_of):
            inputs, options = ((X, 0.7), {}) if as_input else ((X,), {"factor": 0.7})
            return reasons(forward, lambda dy, saved: backward(factor_of, dy, saved), *inputs, **options)

        assert found(lambda factor: 1) == {"dx": "got is forward's gradient with factor=1.0 in place of 0.7"}
        assert not named(found(lambda factor: 0.9)["dx"])
        assert not found(lambda factor: factor)

    def test_an_optional_input_that_backward_forgot(self):
        def forward(x, bias=None):
            z = np.sin(x) if bias is None else np.sin(x + np.exp(bias))
            return z * z, (x, bias)

        def backward(dy, saved, times):
            x, bias = saved
            z = x + times * np.exp(bias)
            return 2 * dy * np.sin(z) * np.cos(z), 2 * dy * np.sin(x + np.exp(bias)) * np.cos(
                x + np.exp(bias)
            )

        wrong, near, right = (
            reasons(forward, lambda dy, saved, times=times: backward(dy, saved, times)[:1] * 2, X, OTHER)
            for times in (0, 0.5, 1)
        )
        assert wrong["dx"] == "got is forward's gradient without bias"
        assert not named(near["dx"])
        assert "dx" not in right

    def test_a_forward_that_is_not_the_operator(self):
        """Backward is right; forward computes something else."""
        op = SimpleNamespace(
            forward=lambda x: (torch.tanh(x) * x.sigmoid(), x),
            backward=lambda dy, x: (
                dy * ((1 - x.tanh() ** 2) * x.sigmoid() + x.tanh() * x.sigmoid() * (1 - x.sigmoid()))
            ),
        )
        report = check(op, torch.asarray(X), operator=lambda x: torch.tanh(x) * x, raises=False)
        found = {row.quantity: row.reason for row in report.failed}
        assert found["dx"] == "got is forward's own gradient, and the reference is not"
        assert not named(found["y"])


class TestOfChance:
    @staticmethod
    def long(xp):
        def forward(x, scale=2.0, causal=False, shift=1):
            h = x
            for n in range(1, 9):
                h = xp.tanh(h * n) + xp.sin(h + shift) * scale
            return h if causal else h.sum(-1), x

        return forward

    @pytest.mark.parametrize("xp", [np, torch], ids=lambda xp: xp.__name__)
    @pytest.mark.parametrize("shape", [(2,), (3, 5)])
    def test_a_random_gradient_is_explained_by_none_of_many_changes(self, xp, shape):
        for seed in range(4):
            rng = np.random.default_rng(seed)
            x, factor = xp.asarray(rng.standard_normal(shape)), xp.asarray(rng.standard_normal(shape))
            found = reasons(self.long(xp), lambda dy, x, by=factor: dy[..., None] * by, x)
            assert found
            assert not any(map(named, found.values())), found

    def test_more_changes_require_more_evidence(self):
        """One wrong number, known to 23 bits, is evidence for the first of a few changes, not for the hundredth."""
        reference, got = np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.0, 3.0])

        def diagnosed(tries):
            tried = [("another change", got, None)] * (tries - 1) + [("this change", got, got + 1e-9)]
            return str(diagnose(reference, got, accuracy=2.0**-26, reruns=tried))

        assert diagnosed(1) == diagnosed(4) == "got is this change"
        assert diagnosed(100).startswith("no simple relation found")

    def test_changes_are_limited(self):
        def forward(x):
            for _ in range(MOST_OPERATIONS + 20):
                x = np.sin(x)
            return x, x

        case = Case(subject(SimpleNamespace(forward=forward, backward=lambda dy, x: dy), 1, {}), (X,), 0)
        found = [rerun.says for rerun in reruns(case, 0)]
        assert sum("the result of" in says for says in found) == MOST_OPERATIONS
        assert (
            f"the derivative of sin (the {MOST_OPERATIONS}th operation) is 1; its line: x = np.sin(x)"
            in found[-1]
        )

    def test_a_line_without_its_source_is_left_out(self):
        names = {"np": np}
        exec("def forward(x):\n    return np.sin(np.tanh(x)), x", names)
        found = reasons(names["forward"], lambda dy, x: dy * np.cos(np.tanh(x)), X)
        assert found == {"dx": "got is forward's gradient if the derivative of tanh (the 1st operation) is 1"}

    def test_a_forward_that_cannot_be_followed_yields_nothing(self):
        op = SimpleNamespace(forward=lambda x: (np.abs(x) * float(x[0, 0]), x), backward=lambda dy, x: dy)
        assert list(reruns(Case(subject(op, 1, {}), (X,), 0), 0)) == []


def test_time_remains_for_reruns_after_a_long_search(monkeypatch):
    """Pairs of terms are searched for in a part of the time only."""

    def endless(pair, count):
        both = tuple(pair.dictionary.made(entry) for entry in pair.dictionary.simplest[0][:2])
        while True:
            yield both, (0.0, 0.0)

    monkeypatch.setattr(missing, "_pair_fits", endless)
    found = diagnose(X * OTHER, X + 1, {"x": X, "dy": OTHER}, reruns=[("this change", X, X)], seconds=0.3)
    assert str(found) == "got is this change"
