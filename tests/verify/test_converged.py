"""A difference accuses only where shorter steps agree with it, and kinks have two slopes."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check

# The check evaluates a forward outside of its domain, and a reader sees no warning of that.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

RNG = np.random.default_rng(1)
X = RNG.normal(size=(4, 3))


def own(forward, backward):
    return SimpleNamespace(forward=forward, backward=backward)


def square_mean(x):
    return (x * x).mean(-1, keepdims=True)


def rms(x):
    return x / np.sqrt(square_mean(x) + 1e-12), x


def rms_of_absolutes(x):  # complex numbers do not pass through
    return x / np.sqrt((np.abs(x) ** 2).mean(-1, keepdims=True) + 1e-12), x


def rms_back(dy, x):
    r = np.sqrt(square_mean(x) + 1e-12)
    return dy / r - x * (dy * x).mean(-1, keepdims=True) / r**3


def twice_at_zeros(dy, x):
    return rms_back(dy, x) * np.where((x == 0).all(-1, keepdims=True), 2, 1)


def normalise(x):
    return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), 1e-12), x


def normalise_back(dy, x):
    norm = np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), 1e-12)
    return dy / norm - x * (dy * x).sum(-1, keepdims=True) / norm**3


def nothing_at_zeros(dy, x):
    return normalise_back(dy, x) * np.where((x == 0).all(-1, keepdims=True), 0, 1)


def root_of_absolutes(v):
    return np.sqrt(np.abs(v)), v


def root_back(dy, v):
    return dy * np.sign(v) / (2 * np.sqrt(np.abs(v)))


def entropy(p):
    return (p * np.log(p)).sum(), p


SMALL = {  # forward, backward, wrong ones, inputs
    "rms": (rms, rms_back, [twice_at_zeros, lambda dy, x: 2 * rms_back(dy, x)], X),
    "rms of |x|": (rms_of_absolutes, rms_back, [twice_at_zeros], X),
    "normalise": (normalise, normalise_back, [nothing_at_zeros], X),
    "log": (
        lambda v: (np.log(v), v),
        lambda dy, v: dy / v,
        [lambda dy, v: dy / (v + 1e-8), lambda dy, v: dy / v * np.where(v < 1e-6, 2, 1)],
        np.array([1.0, 0.5, 1e-7]),
    ),
    "log of numbers of many sizes": (
        lambda v: (np.log(v), v),
        lambda dy, v: dy / v,
        [lambda dy, v, at=at: dy / v * np.where(v == at, 1.01, 1) for at in (1e-8, 1e-3)],
        np.array([1e-8, 1e-3, 1.0, 1e5]),
    ),
    "entropy": (
        entropy,
        lambda dy, p: dy * (np.log(p) + 1),
        [lambda dy, p: dy * np.log(p), lambda dy, p: dy * (np.log(p) + np.where(p < 1e-5, 2, 1))],
        np.array([0.7, 0.299999, 1e-6]),
    ),
    "root of |v|": (
        root_of_absolutes,
        root_back,
        [lambda dy, v, at=at: root_back(dy, v) * np.where(v == at, 1.01, 1) for at in (1.0, -0.5, 1e-6)],
        np.array([1.0, -0.5, 1e-6]),
    ),
    "many elements": (
        rms_of_absolutes,
        rms_back,
        [lambda dy, x: rms_back(dy, x) * np.where(np.abs(x) < 1e-5, 2, 1)],
        RNG.normal(size=(32, 16)) * np.where(np.arange(32) == 7, 1e-7, 1)[:, None],
    ),
    "steep": (
        lambda x: (np.tanh(1e6 * x), x),
        lambda dy, x: dy * 1e6 / np.cosh(1e6 * x) ** 2,
        [lambda dy, x: dy * 1e6 / np.cosh(1e6 * x)],
        X / 1e6,
    ),
    "an interval of 1e-8": (
        lambda x: (x * np.exp(-((np.abs(x) / 1e-8) ** 2)), x),
        lambda dy, x: dy * np.exp(-((x / 1e-8) ** 2)) * (1 - 2 * (x / 1e-8) ** 2),
        [lambda dy, x: 2 * dy * np.exp(-((x / 1e-8) ** 2)) * (1 - 2 * (x / 1e-8) ** 2)],
        np.array([0.0, 5e-9, 1.0]),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_elements_smaller_than_the_step(name):
    forward, right, wrong, x = SMALL[name]
    assert check(own(forward, right), x).passed
    for backward in wrong:
        assert check(own(forward, backward), x, raises=False, explain=False).failed


def test_log_of_tensors():
    torch = pytest.importorskip("torch")
    x = torch.tensor(RNG.uniform(1e-9, 2e-9, size=(4, 3)))
    assert check(own(lambda x: (torch.log(x), x), lambda dy, x: dy / x), x).passed


@pytest.mark.parametrize("scale", [1, 1e-7])
@pytest.mark.parametrize(
    "forward",
    [lambda x: (x * np.abs(x), x), lambda x: (x * np.conj(x) * 1.0, x), lambda x: (x * np.real(x), x)],
)
def test_a_forward_that_is_not_analytic_is_told_apart(forward, scale):
    slope = np.abs if forward(np.float64(-1))[0] < 0 else (lambda x: x)
    report = check(own(forward, lambda dy, x: 2 * dy * slope(x)), scale * X)
    assert "not analytic as written" in report.of("complex step")[0].reason


def variance(x):
    return ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1), x


def variance_back(dy, x):
    return dy[..., None] * 2 * (x - x.mean(-1, keepdims=True)) / x.shape[-1]


@pytest.mark.parametrize("offset", [1e4, 1e5, 1e6, 1e7])
def test_cancellation(offset):
    """A unit in the last place of x moves x − mean(x) by that much."""
    x = offset + X
    assert check(own(variance, variance_back), x).passed
    for factor in (1 + 1e-6, 1.5):
        wrong = own(variance, lambda dy, x, factor=factor: factor * variance_back(dy, x))
        report = check(wrong, x, raises=False)
        assert report.failed
        assert "not accurate enough" not in str(report)
    many = offset + RNG.normal(size=(20, 13))
    assert check(own(variance, variance_back), many).passed
    if offset >= 1e6:  # a tolerance that was asked for is kept
        strict = {"complex_step": (1e-16, "as strict as possible")}
        assert check(own(variance, variance_back), x, tolerances=strict, raises=False).failed


def norm(x):
    return np.sqrt((x * x).sum(-1)), x


@pytest.mark.parametrize("at_zeros", [0, np.nan, np.inf])
def test_a_gradient_that_is_not_finite_at_a_kink(at_zeros):
    def backward(dy, x):
        size = norm(x)[0][:, None]
        return np.where(size > 0, dy[:, None] * x / np.where(size > 0, size, 1), at_zeros)

    assert check(own(norm, backward), X).passed  # without a declaration, y has a kink there
    declared = own(norm, backward)
    declared.SHAPES = "x[b, n] -> y[b]"
    report = check(declared, X, raises=False)
    assert report.passed == (at_zeros == 0)
    for row in report.failed:
        assert row.variation == "a row of zeros in x"
        assert "slopes on both sides are finite" in row.reason


@pytest.mark.parametrize("power", [0.5, 0.9])
def test_an_infinite_slope(power):
    def backward(dy, x):
        size = np.where(x == 0, 1, np.abs(x))
        return dy * np.where(x == 0, np.inf, np.sign(x) * power * size ** (power - 1))

    root = own(lambda x: (np.abs(x) ** power, x), backward)
    assert not check(root, np.array([1.0, 0, -2]), raises=False).failed


KINKED = {  # forward, slopes that are right, slopes that are not
    "relu": (lambda x: (np.maximum(x, 0), x), (0, 0.5, 1), (-0.1, 1.1)),
    "abs": (lambda x: (np.abs(x), x), (-1, 0, 1), (-1.1, 2)),
}


@pytest.mark.parametrize("name", KINKED)
def test_slopes_between_those_of_the_two_sides(name):
    forward, right, wrong = KINKED[name]
    x = np.where(np.abs(X) < 0.5, 0, X)

    def backward(slope):
        left = 0 if name == "relu" else -1
        return lambda dy, x: dy * np.where(x > 0, 1, np.where(x < 0, left, slope))

    for slope in right:
        report = check(own(forward, backward(slope)), x)
        assert report.of("finite differences")[0].verdict == "passed"
    for slope in wrong:
        assert not check(own(forward, backward(slope)), x, raises=False).passed


@pytest.mark.parametrize("name", KINKED)
def test_autograd_follows_one_convention_of_several(name):
    torch = pytest.importorskip("torch")
    _, right, wrong = KINKED[name]
    function = torch.relu if name == "relu" else torch.abs

    def backward(slope):
        left = 0.0 if name == "relu" else -1.0
        return lambda dy, x: dy * torch.where(x > 0, 1.0, torch.where(x < 0, left, slope))

    x = torch.tensor(X)
    for slope in right:
        assert check(own(lambda x: (function(x), x), backward(float(slope))), x).passed
    for slope in wrong:
        report = check(own(lambda x: (function(x), x), backward(float(slope))), x, raises=False)
        assert "a row of zeros in x" in {row.variation for row in report.failed}


def test_each_of_two_largest_zeros():
    def each(dy, x):
        return dy[:, None] * (x == x.max(-1, keepdims=True))

    x = -np.abs(X)
    x[:, :2] = 0
    largest = own(lambda x: (x.max(-1), x), each)
    assert check(largest, x, methods=["finite_difference"], raises=False).failed
