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
    return {row.quantity: row.reason for row in report.failed if row.quantity != "all"}


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
        near = reasons(forward, lambda dy, saved: backward(dy, saved, lambda h: 1 - h**3), *inputs)
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
        assert sum("is 1; its line" in says for says in found) == MOST_OPERATIONS
        assert len(found) < 7 * MOST_OPERATIONS

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


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gates(x, v):
    z = x @ v
    a = sigmoid(z)
    b = sigmoid(2 * z)
    return a * b, (x, v, a, b)


def of_gates(slope):
    def backward(dy, saved):
        x, v, a, b = saved
        dz = dy * b * slope(a) + 2 * dy * a * b * (1 - b)
        return dz @ v.T, x.T @ dz

    return backward


SLOPES = {
    "1": lambda y: 1.0,
    "y, its result": lambda y: y,
    "1 − y, where y is its result": lambda y: 1 - y,
    "1 − y², where y is its result": lambda y: 1 - y * y,
}


class TestOfHelpers:
    @pytest.mark.parametrize("slope", SLOPES)
    def test_a_helper_with_another_derivative(self, slope):
        found = reasons(gates, of_gates(SLOPES[slope]), X, V)
        says = f"got is forward's gradient if the derivative of sigmoid (operations 2 to 5) is {slope}; its call: a = sigmoid(z)"
        assert found == {"dx": says, "dv": says}

    def test_any_other_derivative_is_not_named(self):
        found = reasons(gates, of_gates(lambda y: y * (1 - y) * 1.001), X, V)
        assert len(found) == 2
        assert not any(map(named, found.values()))
        assert not reasons(gates, of_gates(lambda y: y * (1 - y)), X, V)

    def test_a_line_of_several_operations(self):
        def forward(x, v):
            a = 1 / (1 + np.exp(-(x @ v)))
            return np.tanh(a) * a, (x, v, a)

        def backward(dy, saved):
            x, v, a = saved
            dz = dy * (np.tanh(a) + a * (1 - np.tanh(a) ** 2)) * a  # a for a·(1 − a)
            return dz @ v.T, x.T @ dz

        found = reasons(forward, backward, X, V)
        says = (
            "got is forward's gradient if the derivative of negative to divide (operations 2 to 5) is y, its result; "
            "its line: a = 1 / (1 + np.exp(-(x @ v)))"
        )
        assert found == {"dx": says, "dv": says}

    @pytest.mark.parametrize("xp", [np, torch], ids=lambda xp: xp.__name__)
    def test_the_derivative_of_another_function(self, xp):
        def forward(x, v):
            h = xp.tanh(x @ v)
            return xp.sin(h) * h, (x, v, h)

        def backward(dy, saved):
            x, v, h = saved
            dz = dy * (xp.sin(h) + h * xp.cos(h)) * h  # that of exp
            return dz @ v.T, x.T @ dz

        found = reasons(forward, backward, xp.asarray(X), xp.asarray(V))
        says = (
            "got is forward's gradient if the derivative of tanh (the 2nd operation) is y, its result; "
            "its line: h = xp.tanh(x @ v)"
        )
        assert found == {"dx": says, "dv": says}


def recurrence(x, h):
    """All states of a recurrence, and the last one."""
    states = []
    for row in x:
        h = np.tanh(row + h)
        states.append(h)
    return (np.stack(states), h * h), np.stack(states)


def of_recurrence(change):
    def backward(dy, states):
        dstates, dlast = change(*dy)
        dx, d = np.zeros_like(states), 2 * dlast * states[-1]
        for t in reversed(range(len(states))):
            dx[t] = d = (d + dstates[t]) * (1 - states[t] ** 2)
        return dx, d

    return backward


def product_and_quotient(x, w):
    return (x * w, x / w), (x, w)


def of_product_and_quotient(change):
    def backward(dy, saved):
        (x, w), (done, dtwo) = saved, change(*dy)
        return done * w + dtwo / w, done * x - dtwo * x / w**2

    return backward


class TestOfOutputs:
    H = RNG.standard_normal(7)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda a, b: (a, 0 * b), "the cotangent of output 2 is not used"),
            (lambda a, b: (0 * a, b), "the cotangent of output 1 is not used"),
            (lambda a, b: (a, b / 2), "only half of the cotangent of output 2 is used"),
            (lambda a, b: (a, 2 * b), "the cotangent of output 2 is added twice"),
            (lambda a, b: (a, -b), "the cotangent of output 2 has the wrong sign"),
        ],
    )
    def test_a_cotangent_that_is_lost_or_counted_twice(self, change, says):
        found = reasons(recurrence, of_recurrence(change), X, self.H)
        assert found == {"dx": says, "dh": says}

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda a, b: (b, a), "the cotangents of outputs 1 and 2 are exchanged"),
            (lambda a, b: (a, a), "the cotangent of output 1 is used in place of that of output 2"),
            (lambda a, b: (b, b), "the cotangent of output 2 is used in place of that of output 1"),
        ],
    )
    def test_two_cotangents(self, change, says):
        found = reasons(product_and_quotient, of_product_and_quotient(change), X, OTHER)
        assert found == {"dx": says, "dw": says}

    def test_no_other_change_of_a_cotangent_is_named(self):
        found = reasons(recurrence, of_recurrence(lambda a, b: (a, 0.999 * b)), X, self.H)
        assert found
        assert not any("cotangent of output" in says for says in found.values())
        assert not reasons(recurrence, of_recurrence(lambda a, b: (a, b)), X, self.H)

    def test_a_function(self):
        class Both(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = torch.tanh(x)
                ctx.save_for_backward(y)
                return y, y.exp()

            @staticmethod
            def backward(ctx, dy, de):
                (y,) = ctx.saved_tensors
                return dy * (1 - y * y)

        report = check(Both, torch.tensor(X), raises=False)
        assert {row.reason for row in report.failed} == {"the cotangent of output 2 is not used"}

    def test_a_term_of_one_output_and_its_cotangent(self):
        def forward(x, w):
            return (x * w, (x * x).sum(0)), (x, w)

        def backward(dy, saved):
            (x, w), (dproduct, dsquares) = saved, dy
            return dproduct * w + dsquares * x, dproduct * x  # 2·x

        found = reasons(forward, backward, X, OTHER)
        assert found == {"dx": "only half of the cotangent of output 2 is used"}
        lost = reasons(
            forward, lambda dy, saved: (dy[0] * saved[1] + dy[1] * saved[0] ** 2, dy[0] * saved[0]), X, OTHER
        )
        assert lost == {"dx": "reference − got = 2·x·dy2 − x²·dy2"}


class TestOfPartsOfDy:
    def test_rows_that_a_sum_leaves_out(self):
        def forward(x, b):
            return x * x + b, x

        def backward(dy, x):
            return dy * 2 * x, dy[:6].sum(0)

        x = RNG.standard_normal((9, 4))
        found = reasons(forward, backward, x, RNG.standard_normal(4))
        assert found == {"db": "got is forward's gradient without dy at positions 6–8 of axis 0"}


def test_a_gradient_that_is_a_copy():
    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        y = e / e.sum(-1, keepdims=True)
        return y, y

    assert reasons(softmax, lambda dy, y: dy, X) == {
        "dx": "got is dy, and the reference is not a multiple of that"
    }
    assert reasons(softmax, lambda dy, y: dy * y, X) == {"dx": "reference − got = −y·Σ(y·dy) (Σ over axis 1)"}


def test_a_wrong_part_of_a_gradient_is_explained():
    def forward(x, v):
        h = x @ v
        return np.concatenate([sigmoid(h[:, :3]), h[:, 3:]], 1), (x, v, h)

    def backward(dy, saved):
        x, v, h = saved
        dh = dy.copy()
        dh[:, :3] *= sigmoid(h[:, :3])
        return dh @ v.T, x.T @ dh

    found = reasons(forward, backward, X, V)
    assert set(found) == {"dx", "dv"}
    assert all(
        "the derivative of sigmoid (operations 2 to 5) is y, its result" in says for says in found.values()
    )


@pytest.mark.parametrize("xp", [np, torch], ids=lambda xp: xp.__name__)
class TestOfConstants:
    """A constant that backward leaves out, or has with another value, is named."""

    def reasons(self, xp, backward):
        def forward(p, t):
            return -(t * xp.log(p + 1e-7)).sum(-1), (p, t)

        def gradient(dy, saved):
            p, t = saved
            return backward(dy[:, None], p, t)

        p, t = xp.asarray(np.abs(X)), xp.asarray(OTHER)
        return reasons(forward, gradient, p, t, constants=["t"])

    @pytest.mark.parametrize("other", ["0", "1e-09", "1e-05"])
    def test_a_small_one(self, xp, other):
        found = self.reasons(xp, lambda dy, p, t: (-dy * t / (p + float(other)), None))
        says = f"got is forward's gradient with {other} in place of 1e-07; its line: "
        assert found == {"dp": says + "return -(t * xp.log(p + 1e-7)).sum(-1), (p, t)"}

    def test_the_right_one_and_a_share_of_it(self, xp):
        assert not self.reasons(xp, lambda dy, p, t: (-dy * t / (p + 1e-7), None))
        (reason,) = self.reasons(xp, lambda dy, p, t: (-dy * t / (p + 0.3e-7), None)).values()
        assert not named(reason)

    @pytest.mark.parametrize("epsilon", [1e-8, 1e-10, 1e-12])
    @pytest.mark.parametrize("factor", [0.0, 30.0])
    def test_one_that_hardly_matters(self, xp, epsilon, factor):
        def forward(p, t):
            return -(t * xp.log(p + epsilon)).sum(-1), (p, t)

        def backward(dy, saved):
            p, t = saved
            return -dy[:, None] * t / (p + factor * epsilon), None

        p, t = xp.asarray(np.abs(X) + 1e-3), xp.asarray(np.eye(7)[[0, 2, 1, 2]])
        (reason,) = reasons(forward, backward, p, t, constants=["t"]).values()
        assert reason.startswith(f"got is forward's gradient with 0 in place of {epsilon:g};") is (
            factor == 0
        )

    def test_one_of_several_places(self, xp):
        def forward(p):
            q = xp.sqrt(p + 1e-3)
            return q * xp.log(p + 1e-3), (p, q)

        def backward(dy, saved, first=1e-3, second=1e-3):
            p, _ = saved
            q = xp.sqrt(p + first)
            return dy * (xp.log(p + second) / (2 * q) + q / (p + second))

        p = xp.asarray(np.abs(X))
        assert not reasons(forward, backward, p)
        both = reasons(forward, lambda dy, saved: backward(dy, saved, 0.0, 0.0), p)
        assert both == {"dp": "got is forward's gradient with 0 in place of 0.001"}
        one = reasons(forward, lambda dy, saved: backward(dy, saved, 0.0), p)
        assert one == {
            "dp": "got is forward's gradient with 0 in place of 0.001; its line: q = xp.sqrt(p + 1e-3)"
        }

    def test_a_factor(self, xp):
        def forward(x):
            return xp.tanh(1.702 * x) * x, x

        def forgets(dy, x):
            y = xp.tanh(x)
            return dy * (y + x * (1 - y * y))

        found = reasons(forward, forgets, xp.asarray(X))
        says = (
            "got is forward's gradient with 1 in place of 1.702; its line: return xp.tanh(1.702 * x) * x, x"
        )
        assert found == {"dx": says}


def test_a_constant_given_by_name():
    def forward(x):
        return torch.nn.functional.softplus(x, beta=1.5), x

    found = reasons(forward, lambda dy, x: dy * torch.sigmoid(x), torch.tensor(X))
    says = "got is forward's gradient with 1 in place of 1.5; its line: "
    assert found == {"dx": says + "return torch.nn.functional.softplus(x, beta=1.5), x"}


class Unused(torch.autograd.Function):
    """A backward that is wrong if the second output is not used."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return torch.tanh(x), x.sigmoid()

    @staticmethod
    def backward(ctx, dy, ds):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        if ds is None:
            return dy * torch.sqrt(2 + x**4 + s)
        return (0 if dy is None else dy * (1 - x.tanh() ** 2)) + ds * s * (1 - s)


def test_a_gradient_that_is_wrong_for_one_cotangent():
    report = check(Unused, torch.asarray(X), raises=False)
    (row,) = report.failed
    assert row.variation == "output 2 is not used"
    assert "got is forward's own gradient for a random dy, but not for this one" in row.reason


def test_a_gradient_that_differences_do_not_confirm():
    """Equal indices: autograd's own derivative of scatter sends the cotangent to each source."""

    def forward(x, at):
        return torch.zeros(4, 7, dtype=x.dtype).scatter(1, at, x), at

    at = torch.tensor([[0, 2, 2], [1, 1, 5], [3, 4, 6], [0, 0, 0]])
    found = reasons(forward, lambda dy, at: dy.gather(1, at), torch.asarray(X[:, :3]), at)
    says = "got is forward's own gradient by torch autograd for a random dy, and complex step disagrees for this one: "
    assert found["dx"].startswith(says)


def of_function(name, factor):
    """A gate of PyTorch, and a backward that takes this factor for the gate's derivative."""
    gate = getattr(torch.nn.functional, name)

    def forward(x, v):
        return gate(x + 1) * v, (x, v)

    def backward(dy, saved):
        x, v = saved
        return dy * v * factor(x + 1), dy * gate(x + 1)

    return forward, backward


def phi(z):
    return torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5


def normal(z):
    return torch.distributions.Normal(0, 1).cdf(z)


WHERE_S = "where s is the sigmoid of its argument z"
WHERE_PHI = "where Φ is the normal distribution of its argument z, and φ its density"
OWN_SLOPES = {
    ("silu", f"s, {WHERE_S}"): torch.sigmoid,
    ("silu", f"z·s·(1 − s), {WHERE_S}"): lambda z: z * torch.sigmoid(z) * torch.sigmoid(-z),
    ("silu", f"s·(1 − s), {WHERE_S}"): lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
    ("silu", f"s + s·(1 − s), {WHERE_S}"): lambda z: torch.sigmoid(z) * (1 + torch.sigmoid(-z)),
    ("silu", f"s·(1 − z·(1 − s)), {WHERE_S}"): lambda z: torch.sigmoid(z) * (1 - z * torch.sigmoid(-z)),
    ("silu", f"s·(1 + z·s), {WHERE_S}"): lambda z: torch.sigmoid(z) * (1 + z * torch.sigmoid(z)),
    ("gelu", f"Φ, {WHERE_PHI}"): normal,
    ("gelu", f"z·φ, {WHERE_PHI}"): lambda z: z * phi(z),
    ("gelu", f"φ, {WHERE_PHI}"): phi,
    ("gelu", f"Φ + φ, {WHERE_PHI}"): lambda z: normal(z) + phi(z),
    ("gelu", f"Φ − z·φ, {WHERE_PHI}"): lambda z: normal(z) - z * phi(z),
    ("softplus", f"1 − s, {WHERE_S}"): lambda z: torch.sigmoid(-z),
    ("softplus", f"s·(1 − s), {WHERE_S}"): lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
}
RIGHT_SLOPES = {
    "silu": lambda z: torch.sigmoid(z) * (1 + z * torch.sigmoid(-z)),
    "gelu": lambda z: normal(z) + z * phi(z),
    "softplus": torch.sigmoid,
}


class TestOfFunctions:
    inputs = torch.tensor(X[:, :3]), torch.tensor(OTHER[:, :3])

    @pytest.mark.parametrize(("name", "slope"), OWN_SLOPES)
    def test_a_part_of_a_derivative_is_named(self, name, slope):
        forward, backward = of_function(name, OWN_SLOPES[name, slope])
        found = reasons(forward, backward, *self.inputs, methods=["autograd"])
        says = f"got is forward's gradient if the derivative of {name} (the 2nd operation) is {slope}; its line: "
        assert found == {"dx": f"{says}return gate(x + 1) * v, (x, v)"}

    def test_the_exact_derivative_of_the_tanh_form_is_named(self):
        x, v = self.inputs

        def forward(x, v):
            return torch.nn.functional.gelu(x, approximate="tanh") * v, (x, v)

        def backward(dy, saved):
            return dy * v * RIGHT_SLOPES["gelu"](x), dy * torch.nn.functional.gelu(x, approximate="tanh")

        found = reasons(forward, backward, x, v, methods=["autograd"])
        assert f"the derivative of gelu (the 1st operation) is Φ + z·φ, {WHERE_PHI}" in found["dx"]

    @pytest.mark.parametrize("name", RIGHT_SLOPES)
    def test_a_right_derivative_is_not_accused_and_any_other_is_not_named(self, name):
        right = RIGHT_SLOPES[name]
        assert not reasons(*of_function(name, right), *self.inputs, methods=["autograd"])
        other = of_function(name, lambda z: right(z) * (1 + 1e-3 * torch.cos(7 * z)))
        (found,) = reasons(*other, *self.inputs, methods=["autograd"]).values()
        assert not named(found)
