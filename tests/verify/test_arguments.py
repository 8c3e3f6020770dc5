"""What makes no sense is rejected in one line that says what was expected and what came, before anything runs."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass import kernels
from backpass.ops import linear, scale, softmax
from backpass.verify import METHODS, check, draw

X = np.random.default_rng(7).standard_normal((3, 5))
W = np.random.default_rng(8).standard_normal((5, 7))


class Own:
    """An object to be checked, of which somebody gives the class."""

    def forward(self, x):
        return x, None

    def backward(self, dy, saved):
        return dy


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy


@pytest.mark.parametrize(
    ("op", "inputs", "given", "kind", "message"),
    [
        ("softmax", [X], {"dim": 1}, TypeError, "options of softmax: expected none; got dim"),
        ("scale", [X], {"factr": 2.0}, TypeError, "options of scale: expected some of factor; got factr"),
        ("scale", [X], {}, TypeError, "options of scale: expected factor; got none"),
        ("softmax", [X, X], {}, TypeError, "inputs: softmax takes x[*, n]; got 2 arrays"),
        ("linear", [X], {}, TypeError, "w: expected an array w[n, p]; got nothing"),
        ("linear", [X, 3.0], {}, TypeError, "w: expected an array w[n, p]; got float"),
        ("linear", [X, X], {}, ValueError, "w: expected w[n, p] with n = 5, as in x; got shape [3, 5]"),
        (Own, [X], {}, TypeError, "op: expected an instance of Own, whose forward takes self; got the class: give Own()"),
        (Doubled, [torch.from_numpy(X)] * 2, {}, TypeError, "inputs: Doubled's forward takes (x); got 2 (too many positional arguments)"),
        (Own(), [X, X], {}, TypeError, "inputs: Own's forward takes (x); got 2 (too many positional arguments)"),
        (Own(), [X], {"p": 1}, TypeError, "options of Own: expected none; got p"),
        ("softmax", [X], {"seed": "a"}, TypeError, "seed: expected an integer; got 'a'"),
        ("softmax", [X], {"seed": -1}, ValueError, "seed: expected 0 or more; got -1"),
        ("softmax", [X], {"operator": "softmax"}, TypeError, "operator: expected a function on PyTorch's tensors; got 'softmax'"),
        ("softmax", [X], {"zero_gradients": ["q"]}, ValueError, "zero_gradients: expected some of x; got q"),
        ("softmax", [X], {"zero_gradients": "x"}, TypeError, "zero_gradients: expected a list of names; got 'x'"),
        ("softmax", [X], {"methods": "symbolic"}, TypeError, "methods: expected a list of names; got 'symbolic'"),
        ("softmax", [X], {"methods": 3}, TypeError, "methods: expected a list of names; got 3"),
        ("softmax", [X], {"methods": []}, ValueError, f"methods: expected some of {', '.join(METHODS)}; got none"),
        ("softmax", [X], {"methods": ["symbolik", 3]}, ValueError, f"methods: expected some of {', '.join(METHODS)}; got symbolik, 3"),
        (
            "softmax",
            [X],
            {"tolerances": {"contract": (1.0, "")}},
            ValueError,
            "tolerances: expected some of finite_difference, complex_step, autograd, pytorch, precision, second_derivative; got contract",
        ),
        (
            "softmax",
            [X],
            {"tolerances": {"autograd": 1e-3}},
            TypeError,
            "tolerances: expected a pair (number, reason) for autograd; got 0.001",
        ),
        ("softmax", [X], {"tolerances": [1]}, TypeError, "tolerances: expected a dict from methods to pairs (number, reason); got [1]"),
    ],
)  # fmt: skip
def test_check_rejects_in_one_line(op, inputs, given, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        check(op, *inputs, raises=False, **given)


@pytest.mark.parametrize("x", [X, torch.from_numpy(X).float()], ids=["NumPy", "PyTorch"])
def test_a_kernel_is_checked_by_its_operation(x):
    pytest.importorskip("triton")
    message = "op: expected an operation, with which its kernel is compared; got the kernel: give 'softmax' and methods=['kernel']"
    with pytest.raises(TypeError, match=re.escape(message)):
        check(kernels.load("softmax"), x)


def test_what_forward_takes_is_not_rejected():
    check(linear, X, W, np.zeros(7), methods=["symbolic"])
    check(linear, X, W, methods=("symbolic",), seed=np.int64(3))
    check(scale, X, factor=2.0, methods=iter(["contract", "symbolic"]))

    def forward(x, *others, power=2, **settings):
        return x * power, power

    own = SimpleNamespace(forward=forward, backward=lambda dy, power: (dy * power, dy * 0))
    report = check(own, X, X, power=3, anything=1, methods=["contract"], zero_gradients=("x2",), raises=False)
    assert not report.failed


@pytest.mark.parametrize(
    ("op", "given", "kind", "message"),
    [
        (
            "softmax",
            {"rng": 0},
            TypeError,
            "rng: expected a numpy.random.Generator, such as default_rng(0); got 0",
        ),
        ("softmax", {"lengths": {"q": 3}}, ValueError, "lengths: expected some of n; got q"),
        ("softmax", {"leading": {"*c": (3,)}}, ValueError, "leading: expected some of *, *a, *b; got *c"),
        (
            "softmax",
            {"leading": {"*": 3}},
            TypeError,
            "leading: expected a shape such as (2, 3) for *; got 3",
        ),
        ("linear", {"without": ["x"]}, ValueError, "without: expected some of b; got x"),
        ("softmax", {"without": ["x"]}, ValueError, "without: expected none; got x"),
        ("linear", {"without": "b"}, TypeError, "without: expected a list of names; got 'b'"),
    ],
)
def test_draw_rejects_in_one_line(op, given, kind, message):
    rng = given.pop("rng", np.random.default_rng(0))
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        draw(op, rng, **given)


def test_what_can_be_drawn_is_not_rejected():
    x, w, b = draw(
        linear, np.random.default_rng(0), lengths={"n": 2}, leading={"*": (), "*a": (1,)}, without=["b"]
    )
    assert (x.shape, w.shape[0], b) == ((2,), 2, None)
    assert draw(softmax, np.random.default_rng(0))[0].shape == (3, 5)
