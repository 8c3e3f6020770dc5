"""Gradients that are zero for every input, or only at the inputs given."""

import numpy as np
import pytest

from backpass.verify import check
from backpass.verify.report import VACUOUS

RNG = np.random.default_rng(7)
X = RNG.normal(size=(6, 4))


class Linear:
    def __init__(self):
        self.w, self.b = RNG.normal(size=(4, 3)), np.zeros(3)

    def forward(self, x):
        self.x = x
        return x @ self.w + self.b

    def backward(self, dy):
        self.dw, self.db = self.x.T @ dy, dy.sum(0)
        return dy @ self.w.T


class Centred:
    def forward(self, x):
        return x - x.mean(0)

    def backward(self, dy):
        return dy - dy.mean(0)


class Network:
    """The second layer subtracts the bias of the first."""

    def __init__(self):
        self.layers = [Linear(), Centred(), Linear()]
        self.layers[2].w = RNG.normal(size=(3, 2))
        self.layers[2].b = RNG.normal(size=2)

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, dy):
        for layer in reversed(self.layers):
            dy = layer.backward(dy)
        return dy


def reasons(report):
    return {row.quantity: row.reason for row in report.rows if row.verdict == VACUOUS}


def test_the_line_to_add_for_a_bias_that_has_no_effect():
    (said,) = reasons(check(Network(), X, raises=False)).values()
    assert said.endswith('if it is 0 for every input, add zero_gradients=["layers_0_b"]')
    check(Network(), X, zero_gradients=["layers_0_b"])


class Hinge:
    """At w = 0, and with as many labels of each sign, the gradients of b and x are 0."""

    of_bias = 1.0

    def __init__(self):
        self.w, self.b = np.zeros(4), np.zeros(())

    def forward(self, x, t):
        self.x, self.t, self.margin = x, t, 1 - t * (x @ self.w + self.b)
        return np.maximum(self.margin, 0).mean()

    def backward(self):
        g = np.where(self.margin > 0, -self.t, 0) / len(self.t)
        self.dw, self.db = self.x.T @ g, np.asarray(self.of_bias * g.sum())
        return g[:, None] * self.w, None


class WithoutBias(Hinge):
    of_bias = 0.0


@pytest.mark.parametrize("layer", [Hinge, WithoutBias])
def test_no_line_for_a_gradient_that_is_zero_by_coincidence(layer):
    said = reasons(check(layer(), X, np.array([1, -1, 1, -1, 1, -1]), raises=False))
    assert said.keys() == {"db", "dx"}
    for reason in said.values():
        assert "At other random inputs it is not 0" in reason
    assert ("differs from backward's" in said["db"]) == (layer is WithoutBias)
    other = check(layer(), X, np.array([1, 1, 1, -1, 1, -1]), raises=False)
    assert {row.quantity for row in other.failed} == ({"db"} if layer is WithoutBias else set())


def test_a_method_that_differences_do_not_help():
    report = check(Network(), X, raises=False, methods=["complex_step"])
    assert "otherwise give other inputs" in reasons(report)["dlayers_0_b"]
