"""A layer whose parameters are Python floats or views of one array, or that holds what cannot be copied."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check
from backpass.verify.report import NOT_RUN

RNG = np.random.default_rng(7)
X, W, B = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5)), RNG.normal(size=5)


class Floats:
    """One weight and one bias, as in a scalar engine; the rate is not trained."""

    factor = 1.0

    def __init__(self):
        self.w, self.b, self.dw, self.db, self.rate = 0.5, 0.5, 0.0, 0.0, 0.01

    def forward(self, x):
        self.x = x
        return self.w * x + self.b

    def backward(self, dy):
        self.dw = float(self.factor * (dy * self.x).sum())
        self.db = float(dy.sum())
        return dy * self.w


class Adding(Floats):
    def __init__(self):
        super().__init__()
        self.dw, self.db = 3.0, 3.0  # of an earlier call

    def backward(self, dy):
        self.dw += float(self.factor * (dy * self.x).sum())
        self.db += float(dy.sum())
        return dy * self.w


class Scalars(Floats):
    def __init__(self):
        self.w, self.b = np.array(0.5), np.float64(0.5)

    def backward(self, dy):
        self.dw, self.db = self.factor * (dy * self.x).sum(), np.array(dy.sum())
        return dy * self.w


class Flat:
    """Parameters and gradients are views of one array each."""

    factor = 1.0

    def __init__(self):
        self.params, self.grads = np.concatenate([W.ravel(), B]), np.ones(20)
        self.w, self.b = self.params[:15].reshape(3, 5), self.params[15:]
        self.dw, self.db = self.grads[:15].reshape(3, 5), self.grads[15:]

    def forward(self, x):
        self.x = x
        return x @ self.w + self.b

    def backward(self, dy):
        self.dw[...] = self.factor * self.x.T @ dy
        self.db[...] = dy.sum(0)
        return dy @ self.w.T


class Slices(Flat):
    """No attribute holds a view."""

    def __init__(self):
        self.params, self.grads = np.concatenate([W.ravel(), B]), np.ones(20)

    def forward(self, x):
        self.x = x
        return x @ self.params[:15].reshape(3, 5) + self.params[15:]

    def backward(self, dy):
        self.grads[:15] = (self.factor * self.x.T @ dy).ravel()
        self.grads[15:] = dy.sum(0)
        return dy @ self.params[:15].reshape(3, 5).T


class Mixed(Flat):
    """Forward reads the whole, backward a view."""

    forward = Slices.forward


class Rebinding(Flat):
    def backward(self, dy):
        self.dw, self.db = self.factor * self.x.T @ dy, dy.sum(0)
        return dy @ self.w.T


class Whole(Flat):
    """The views have no gradients of their own."""

    def __init__(self):
        super().__init__()
        del self.dw, self.db

    backward = Slices.backward


class Renamed(Flat):
    def __init__(self):
        super().__init__()
        self.theta, self.dtheta = self.params, self.grads
        del self.params, self.grads


class Columns(Flat):
    """Interleaved views: a weight and a bias in one matrix."""

    def __init__(self):
        self.wb, self.dwb = np.vstack([W, B]), np.zeros((4, 5))
        self.w, self.b, self.dw, self.db = self.wb[:3], self.wb[3], self.dwb[:3], self.dwb[3]


class Replacing(Flat):
    """Forward replaces its parameters by equal arrays; backward takes a step."""

    def __init__(self):
        self.w, self.b = W, B

    def forward(self, x):
        self.w, self.b = np.array(self.w), np.array(self.b)
        return super().forward(x)

    def backward(self, dy):
        self.dw, self.db = self.factor * self.x.T @ dy, dy.sum(0)
        dx = dy @ self.w.T
        self.w = self.w - 0.1 * self.dw
        return dx


class Holding(Replacing):
    """A module, a lock, and a callback."""

    def __init__(self):
        super().__init__()
        self.xp, self.more = np, {"lock": [threading.Lock()]}
        self.hook = lambda dy: dy

    def backward(self, dy):
        return super().backward(self.hook(dy))


LAYERS: dict[type, set[str]] = {
    of: {"dx", "dw", "db"}
    for of in (Floats, Adding, Scalars, Flat, Mixed, Rebinding, Renamed, Columns, Replacing, Holding)
}
LAYERS |= {of: {"dx", "dparams"} for of in (Slices, Whole)}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_parameters_are_found_and_judged(layer, dtype):
    of = layer()
    before = {
        name: np.array(value) for name, value in vars(of).items() if isinstance(value, np.ndarray | float)
    }
    report = check(of, X.astype(dtype), vary=False)
    assert {row.quantity for row in report.rows if row.error is not None} - {"y"} == LAYERS[layer]
    assert not report.of("form")
    assert all(np.array_equal(value, getattr(of, name)) for name, value in before.items())


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_a_wrong_gradient_of_one_is_found(layer, monkeypatch):
    monkeypatch.setattr(layer, "factor", 1.01)
    report = check(layer(), X, raises=False, explain=False)
    assert {row.quantity for row in report.failed} == ({"dw", "dparams"} & LAYERS[layer])


def test_views_of_one_tensor():
    torch = pytest.importorskip("torch")

    class Tensors(Flat):
        def __init__(self):
            self.params, self.grads = (
                torch.cat([torch.tensor(W).ravel(), torch.tensor(B)]),
                torch.zeros(20).double(),
            )
            self.w, self.b = self.params[:15].view(3, 5), self.params[15:]
            self.dw, self.db = self.grads[:15].view(3, 5), self.grads[15:]

        forward = Slices.forward

    report = check(Tensors(), torch.tensor(X))
    judged = {row.quantity for row in report.of("torch autograd") if row.verdict == "passed"}
    assert judged == {"dx", "dw", "db"}
    Tensors.factor = 2.0
    assert {row.quantity for row in check(Tensors(), torch.tensor(X), raises=False).failed} == {"dw"}


def test_floats_beside_tensors():
    torch = pytest.importorskip("torch")
    report = check(Floats(), torch.tensor(X))
    judged = {row.quantity for row in report.of("torch autograd") if row.verdict == "passed"}
    assert judged == {"dx", "dw", "db"}


def test_a_tensor_that_an_earlier_forward_kept():
    torch = pytest.importorskip("torch")

    class Kept(Replacing):
        def __init__(self):
            self.w, self.b = (torch.tensor(of).requires_grad_() for of in (W, B))
            self.y = self.w * 2  # not a leaf

        forward = Flat.forward

        def backward(self, dy):
            with torch.no_grad():
                self.dw, self.db = self.x.T @ dy, dy.sum(0)
                return dy @ self.w.T

    assert check(Kept(), torch.tensor(X)).passed


def test_what_an_earlier_forward_kept_is_not_a_parameter():
    class Kept(Replacing):
        forward = Flat.forward

        def backward(self, dy):
            self.dy = dy
            return super().backward(dy)

    class Activated(Kept):
        def forward(self, x):
            self.x = x
            self.h = x @ self.w + self.b
            return np.tanh(self.h)

        def backward(self, dy):
            self.dh = dy * (1 - np.tanh(self.h) ** 2)
            return super().backward(self.dh)

    layer = Activated()
    layer.forward(X)
    report = check(layer, X, vary=False)
    assert {row.quantity for row in report.rows if row.error is not None} == {"dx", "dw", "db"}


def test_an_iterator_is_named():
    layer = Replacing()
    layer.more = {"numbers": iter([1, 2])}.values()
    layer.rows = (n for n in range(3))
    with pytest.raises(
        TypeError, match=r"rows of Replacing cannot .*: keep its values in a list, or give its two"
    ):
        check(layer, X)


def test_an_object_that_cannot_be_copied():
    class Sealed(Replacing):
        def __deepcopy__(self, memo):
            raise ValueError("no")

    with pytest.raises(
        TypeError, match=r"Sealed cannot be copied \(no\): define its __deepcopy__, or give its two functions"
    ):
        check(Sealed(), X)


def linear(x, params):
    return x @ params["w"] + params["b"], (x, params)


def linear_back(dy, saved):
    x, params = saved
    return dy @ params["w"].T, {"w": x.T @ dy, "b": dy.sum(0)}


def test_a_dictionary_of_inputs_gets_the_next_step():
    op = SimpleNamespace(forward=linear, backward=linear_back)
    with pytest.raises(TypeError, match=r"got params, a dict of arrays: .* lambda x, w, b: forward\(x, "):
        check(op, X, {"w": W, "b": B})

    def forward(x, w, b):
        return linear(x, {"w": w, "b": b})

    def backward(dy, saved):
        dx, rest = linear_back(dy, saved)
        return {"x": dx, **rest}

    assert check(SimpleNamespace(forward=forward, backward=backward), X, W, B).passed


def test_numbers_that_are_not_arrays_get_the_next_step():
    op = SimpleNamespace(forward=lambda x: (x * x, x), backward=lambda dy, x: 2 * dy * x)
    with pytest.raises(TypeError, match=r"got float; give numpy\.array\(x\) for each"):
        check(op, 0.5)
    assert check(op, np.array(0.5)).passed


def test_a_function_that_returns_its_pullback():
    def tanh(x):
        y = np.tanh(x)
        return y, lambda dy: dy * (1 - y * y)

    assert check(SimpleNamespace(forward=tanh, backward=lambda dy, pullback: pullback(dy)), X).passed


class Returning:
    """The gradients of a float and of an array are returned after that of x."""

    def __init__(self, factor=1):
        self.w, self.b, self.factor = 0.5, np.linspace(0, 1, 3), factor

    def forward(self, x):
        self.x = x
        return self.w * x**2 + self.b

    def gradients(self, dy):
        dw = float(self.factor * (dy * self.x**2).sum())
        return 2 * dy * self.w * self.x, dw, dy.sum(0)

    def backward(self, dy):
        dx, dw, db = self.gradients(dy)
        return dx, db, dw


class Unnamed(Returning):
    def backward(self, dy):
        found = self.gradients(dy)
        return found[0], found[2], np.float64(found[1])


@pytest.mark.parametrize("layer", [Returning, Unnamed])
def test_the_gradient_of_a_float_is_returned(layer):
    report = check(layer(), X)
    assert {*report.gradients} == {"dx", "dw", "db"} and not report.unshown
    assert {row.quantity for row in check(layer(2), X, raises=False).failed} == {"dw"}


def test_a_number_that_may_be_the_gradient_of_several_floats():
    either = Unnamed()
    either.eps = 1e-5
    with pytest.raises(TypeError, match="single number may be that of w, eps"):
        check(either, X)


class Remembers:
    """A layer whose backward keeps a slope of its first call."""

    def __init__(self):
        self.w, self.slope = np.arange(1.0, 5.0), None

    def forward(self, x):
        self.x = x
        return np.sin(x) * self.w

    def backward(self, dy):
        if self.slope is None:
            self.slope = np.cos(self.x)
        self.dw = (dy * np.sin(self.x)).sum(0)
        return dy * self.slope * self.w


class AddsUp(Remembers):
    """One that adds to the gradient of its parameter, and one that takes a step are right."""

    def backward(self, dy):
        self.dw = getattr(self, "dw", 0) + (dy * np.sin(self.x)).sum(0)
        return dy * np.cos(self.x) * self.w


class TakesAStep(AddsUp):
    def backward(self, dy):
        dx = dy * np.cos(self.x) * self.w
        self.dw = (dy * np.sin(self.x)).sum(0)
        self.w -= 0.1 * self.dw
        return dx


@pytest.mark.parametrize("layer", [Remembers, AddsUp, TakesAStep])
def test_a_second_step(layer):
    report = check(layer(), np.linspace(-1, 1, 12).reshape(3, 4), raises=False)
    said = [what for _, what in report.findings()]
    assert said == (
        ["dx changes if the same layer ran forward and backward before"] if layer is Remembers else []
    )


# Gradients under a name that is not the parameter's


class Plain:
    """A weight and a bias; backward puts their gradients wherever ``keep`` does."""

    factor = 1.0

    def __init__(self):
        self.weights, self.bias = W, B

    def forward(self, x):
        self.x = x
        return x @ self.weights + self.bias

    def backward(self, dy):
        self.keep(self.factor * self.x.T @ dy, dy.sum(0))
        return dy @ self.weights.T


class InAList(Plain):
    def keep(self, *gradients):
        self.grads = [*gradients]


class InATuple(Plain):
    def __init__(self):
        super().__init__()
        self.grad = np.zeros((3, 5)), np.zeros(5)

    def keep(self, *gradients):
        self.grad = gradients[::-1]  # their shapes show which is which


class FirstLetters(Plain):
    def keep(self, dw, db):
        self.dW, self.db = dw, db


class Singular(Plain):
    def keep(self, dw, db):
        self.weight_grads, self.bias_grad = dw, db


class OfALoss(Plain):
    def keep(self, dw, db):
        self.dE_dWeights, self.gradient_bias = dw, db


class Adjoint(Plain):
    def keep(self, dw, db):
        self.weights_bar, self.bar_bias = dw, db


@pytest.mark.parametrize(
    "layer", [InAList, InATuple, FirstLetters, Singular, OfALoss, Adjoint], ids=lambda layer: layer.__name__
)
def test_gradients_by_their_shapes_and_by_other_names(layer, monkeypatch):
    report = check(layer(), X, vary=False)
    assert {row.quantity for row in report.rows if row.error is not None} - {"y"} == {
        "dx",
        "dweights",
        "dbias",
    }
    assert not report.of("form")
    monkeypatch.setattr(layer, "factor", 1.01)
    report = check(layer(), X, raises=False, explain=False, vary=False)
    assert {row.quantity for row in report.failed} == {"dweights"}


class Alone:
    """One weight, whose gradient is ``grad``."""

    factor = 1.0

    def __init__(self, first=None):
        self.w, self.grad = W, first

    def forward(self, x):
        self.x = x
        return x @ self.w

    def backward(self, dy):
        self.grad = self.factor * self.x.T @ dy
        return dy @ self.w.T


@pytest.mark.parametrize("first", [None, np.ones((3, 5)), 0.0])
def test_the_gradient_of_the_only_parameter(first, monkeypatch):
    report = check(Alone(first), X, vary=False)
    assert not report.of("form")
    monkeypatch.setattr(Alone, "factor", 1.01)
    report = check(Alone(first), X, raises=False, explain=False, vary=False)
    assert {row.quantity for row in report.failed} == {"dw"}


class Masked:
    """A mask that is not trained; ``grad`` is the gradient of what it multiplies."""

    def __init__(self):
        self.mask = np.arange(12.0).reshape(4, 3)

    def forward(self, x):
        self.h = x * self.mask
        return np.tanh(self.h)

    def backward(self, dy):
        self.grad = dy * (1 - np.tanh(self.h) ** 2)
        return self.grad * self.mask


class Twins(Plain):
    """Two parameters of one shape, whose gradients a list holds last first."""

    def __init__(self):
        self.first, self.second = W[:, :3], W[:, :3] + 1

    def forward(self, x):
        self.x = x
        return np.tanh(x @ self.first) @ self.second

    def backward(self, dy):
        h = np.tanh(self.x @ self.first)
        dh = (dy @ self.second.T) * (1 - h * h)
        self.grads = [h.T @ dy, self.x.T @ dh]
        return dh @ self.first.T


class Delta(Plain):
    """``grad`` has the parameter's shape by chance: that of the input."""

    def __init__(self):
        self.scale = np.arange(12.0).reshape(4, 3)

    def forward(self, x):
        self.x = x
        return (x * self.scale).sum(0)

    def backward(self, dy):
        self.grad = np.broadcast_to(dy, (4, 3)) * self.scale
        return self.grad


@pytest.mark.parametrize("layer", [Masked, Twins, Delta], ids=lambda layer: layer.__name__)
def test_an_array_that_may_be_another_gradient(layer):
    report = check(layer(), X)
    assert {row.verdict for row in report.of("form")} == {NOT_RUN}
