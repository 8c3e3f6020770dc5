"""A gradient that is not finite in low precision, where y is finite and float64's gradient is too."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
X[0, 0], X[1, 1] = -5.5, 5.25  # times 20, exp overflows in float32


def sigmoid(x):
    with np.errstate(all="ignore"):
        return 1 / (1 + np.exp(-x)), x


def overflows(dy, x):
    with np.errstate(all="ignore"):
        e = np.exp(-x)
        return dy * e / (1 + e) ** 2


def finite(dy, x):
    y, _ = sigmoid(x)
    return dy * y * (1 - y)


def own(forward, backward):
    return SimpleNamespace(forward=forward, backward=backward)


def test_nan_far_from_zero_fails():
    assert check(own(sigmoid, finite), X).passed
    report = check(own(sigmoid, overflows), X, raises=False)
    assert {row.variation for row in report.failed} == {"x × 20"}
    assert "is nan at index [0, 0] in float32, where y is finite" in report.failed[0].reason
    assert check(own(sigmoid, overflows), X.astype(np.float64)).passed


def test_at_the_inputs_given():
    for dtype in (np.float32, np.float16):
        report = check(own(sigmoid, overflows), (20 * X).astype(dtype), methods=["contract"], raises=False)
        assert f"in {np.dtype(dtype)}, where y is finite" in report.failed[0].reason


def test_forward_that_overflows_is_not_a_fault_of_backward():
    """Exp without the row's maximum: y is not finite there, and the row of the variation says so."""

    def forward(x):
        with np.errstate(all="ignore"):
            e = np.exp(x)
            y = e / e.sum(-1, keepdims=True)
        return y, y

    softmax = own(forward, lambda dy, y: y * (dy - (y * dy).sum(-1, keepdims=True)))
    report = check(softmax, X)
    said = [row.reason for row in report.rows if row.variation == "x × 20"]
    assert report.passed and any("forward overflows in float" in reason for reason in said)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_gradient_that_is_too_large_for_its_dtype_is_infinite(dtype):
    most = np.finfo(dtype).max
    x = np.array([[1.0, -2.0, 3.0]], dtype)
    times = own(lambda x: (np.where(x > 2, 0, x) * most / 4, x), lambda dy, x: dy * (x <= 2) * (most / 4) * 8)
    with np.errstate(all="ignore"):
        report = check(times, x, dy=np.ones((1, 3), dtype), methods=["contract"], raises=False)
    assert not report.failed
