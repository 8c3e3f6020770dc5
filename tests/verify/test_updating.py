"""Layers whose forward updates what its result depends on, each beside a wrong twin."""

import numpy as np
import pytest
import torch

from backpass.verify import check
from backpass.verify.report import NOT_RUN

RNG = np.random.default_rng(5)
X, W, U = RNG.normal(size=(5, 4)), RNG.normal(size=(4, 3)), RNG.normal(size=4)


def of_length_1(a):
    return a / (a * a).sum() ** 0.5


class Spectral:
    """The power iteration of a spectral norm, whose vectors get no gradient."""

    through_the_norm = 1.0

    def __init__(self, x=X):
        self.w, self.u = W.astype(x.dtype), of_length_1(U.astype(x.dtype))

    def forward(self, x):
        self.v = of_length_1(self.u @ self.w)
        self.u = of_length_1(self.w @ self.v)
        self.norm, self.x = self.u @ self.w @ self.v, x
        return x @ (self.w / self.norm)

    def backward(self, dy):
        dw = self.x.T @ dy
        of_norm = -(dw * self.w).sum() / self.norm**2 * self.through_the_norm
        self.dw = dw / self.norm + of_norm * np.outer(self.u, self.v)
        return dy @ self.w.T / self.norm


class WithoutTheNorm(Spectral):
    through_the_norm = 0.0


class OfTheOldNorm(Spectral):
    """The gradient of x divides by the norm before the update, which does not depend on x."""

    def forward(self, x):
        self.old = self.u @ self.w @ of_length_1(self.u @ self.w)
        return super().forward(x)

    def backward(self, dy):
        return super().backward(dy) * self.norm / self.old


def test_an_input_on_which_the_update_does_not_depend_is_judged_where_it_is():
    report = check(OfTheOldNorm(), X, raises=False)
    assert {row.quantity for row in report.failed} == {"dx"}


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, u, v):
        norm = u @ w @ v
        ctx.save_for_backward(w, u, v, norm)
        return w / norm

    @staticmethod
    def backward(ctx, g):
        w, u, v, norm = ctx.saved_tensors
        return g / norm - (g * w).sum() / norm**2 * torch.outer(u, v), None, None


class Constant(Scale):
    @staticmethod
    def backward(ctx, g):
        return g / ctx.saved_tensors[3], None, None


class Module(torch.nn.Module):
    def __init__(self, function, buffers, dtype):
        super().__init__()
        self.function, self.buffered = function, buffers
        self.w = torch.nn.Parameter(torch.tensor(W, dtype=dtype))
        for name, length in (("u", 4), ("v", 3)):
            vector = torch.tensor(of_length_1(U[:length]), dtype=dtype)
            if buffers:
                self.register_buffer(name, vector)
            else:
                setattr(self, name, vector)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                v = torch.nn.functional.normalize(self.u.to(x) @ self.w, dim=0)
                u = torch.nn.functional.normalize(self.w @ v, dim=0)
                if self.buffered:
                    self.u.copy_(u), self.v.copy_(v)
                else:
                    self.u, self.v = u, v
        return x @ self.function.apply(self.w, self.u.clone().to(x), self.v.clone().to(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_vectors_of_a_spectral_norm(dtype):
    x = X.astype(dtype)
    report = check(Spectral(x), x, raises=False)
    assert not report.failed
    row = report.of("finite differences")[1]
    assert row.verdict == NOT_RUN and "forward updates u in each call" in row.reason
    wrong = check(WithoutTheNorm(x), x, raises=False)
    assert {row.quantity for row in wrong.failed} == {"dw"}


def test_a_layer_whose_vectors_no_longer_change_passes():
    layer = Spectral()
    for _ in range(200):
        layer.forward(X)
    check(layer, X)


@pytest.mark.parametrize("buffers", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_in_training_mode(buffers, dtype):
    x = torch.tensor(X, dtype=dtype)
    module = Module(Scale, buffers, dtype)
    check(module, x)
    assert not buffers or torch.equal(module.u, torch.tensor(of_length_1(U), dtype=dtype))
    check(Module(Scale, buffers, dtype).eval(), x)
    for wrong in (Module(Constant, buffers, dtype), Module(Constant, buffers, dtype).eval()):
        report = check(wrong, x, raises=False)
        assert {row.quantity for row in report.failed} == {"dw"}


def test_the_diagnosis_does_not_include_the_update():
    (finding,) = check(WithoutTheNorm(), X, raises=False).findings()
    assert "reference − got" in finding[1]


class Running:
    """A running mean that forward subtracts, and that does not settle to a value which
    is independent of x."""

    factor = 0.0

    def __init__(self):
        self.mean = np.zeros(4)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean

    def backward(self, dy):
        return dy - self.factor * dy.mean(0)


class Whole(Running):
    factor = 0.1


def test_an_update_that_depends_on_the_input_is_judged():
    check(Whole(), X)
    assert check(Running(), X, raises=False).failed[0].quantity == "dx"


class Growing:
    """A level that never settles, and of which backward has no gradient."""

    def __init__(self):
        self.w, self.level = W.copy(), 0.0

    def forward(self, x):
        self.level = self.level + float(self.w.sum())
        self.x = x
        return x @ self.w + self.level

    def backward(self, dy):
        self.dw = self.x.T @ dy
        return dy @ self.w.T


def test_where_nothing_settles_a_note_names_the_update():
    report = check(Growing(), X, raises=False, methods=["finite_difference"])
    (row,) = report.failed
    assert row.quantity == "dw" and "forward updates level" in row.note


class Recurrent:
    """A state that depends on x. Its settled value hides which of two states is used."""

    def __init__(self):
        self.u, self.h = 0.3 * W[:3], np.array([0.5, -0.2, 0.1])

    def forward(self, x):
        self.before = self.h
        self.h = np.tanh(x + self.h @ self.u)
        return self.h

    def backward(self, dy):
        da = dy * (1 - self.h**2)
        self.du = np.outer(self.state(), da)
        return da

    def state(self):
        return self.before


class OfTheNextState(Recurrent):
    def state(self):
        return self.h


def test_a_recurrent_state_is_judged_where_it_is():
    check(Recurrent(), X[0, :3])
    (row,) = check(OfTheNextState(), X[0, :3], raises=False, methods=["finite_difference"]).failed
    assert row.quantity == "du" and not row.note
