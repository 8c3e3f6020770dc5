"""What calls NumPy's own functions is known without PyTorch; what calls those of its arrays is not taken for it."""

import subprocess
import sys

import numpy as np
import pytest
from array_api_compat import array_namespace

from backpass.verify.numpy_only import function_of_numpy

X = np.random.default_rng(1).normal(size=(3, 4))


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (lambda x: np.exp(x), "np.exp"),
        (lambda x: 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), "np.sqrt"),
        (lambda x: np.where(x > 0, x, 0.0), "np.asarray"),
        (lambda x: next(np.tanh(row) for row in x.T @ x), "np.tanh"),
        (lambda x: x * np.sqrt(x.shape[-1]) - x.sum(-1, keepdims=True) / 2, ""),
        (lambda x: x[:, 1:].reshape(-1) ** 2 * np.arange(9), ""),
        (lambda x: array_namespace(x).exp(x), ""),
        (lambda x: x.nothing, ""),
    ],
)
def test_the_first_function_is_named(forward, name):
    assert function_of_numpy(forward, (X,), (0,)) == name


def test_a_table_may_go_through_any_function():
    def forward(x, positions):
        return x * np.cos(positions)

    assert function_of_numpy(forward, (X, X), (0,)) == ""
    assert function_of_numpy(forward, (X, X), (0, 1)) == "np.cos"


def test_numpy_code_is_checked_without_importing_torch():
    program = """
import sys, numpy as np
from types import SimpleNamespace
from backpass.verify import check
op = SimpleNamespace(forward=lambda x: (np.tanh(x), np.tanh(x)), backward=lambda dy, y: dy * (1 - y**2))
report = check(op, np.linspace(-1, 1, 12).reshape(3, 4), vary=True)
assert report.passed and "np.tanh" in str(report)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
