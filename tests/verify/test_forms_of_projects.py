"""Forms in which public projects write a layer or a loss, each beside a wrong twin."""

import logging
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass.verify import check

RNG = np.random.default_rng(3)
X, W, B = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5)), RNG.normal(size=5)


class Dense:
    factor = 1.0

    def __init__(self):
        self.w, self.b = W.copy(), B.copy()

    def forward(self, x):
        self.x = x
        return x @ self.w + self.b

    def parts(self, dy):
        return dy @ self.w.T, self.factor * self.x.T @ dy, dy.sum(0)


class Nested(Dense):
    def backward(self, dy):
        dx, dw, db = self.parts(dy)
        return dx, [dw, db]


class NestedElsewhere(Nested):
    """The order of the gradients is not that of the attributes."""

    def backward(self, dy):
        dx, dw, db = self.parts(dy)
        return dx, [db, dw]


class Dictionary(Dense):
    def backward(self, dy):
        dx, dw, db = self.parts(dy)
        return dx, {"b": db, "w": dw}


class OnlyDictionary(Dense):
    def backward(self, dy):
        dx, dw, db = self.parts(dy)
        return {"w": dw, "b": db, "x": dx}


class OnlyDictionaryOfNames(Dense):
    def backward(self, dy):
        return dict(zip(("dx", "dw", "db"), self.parts(dy), strict=True))


class Twice(Dense):
    """Gradients are returned and kept."""

    def backward(self, dy):
        dx, self.dw, self.db = self.parts(dy)
        return dx, self.dw, self.db


class Keeping(Dense):
    """Neither function returns anything."""

    def forward(self, inputs):
        self.x = inputs
        self.output = inputs @ self.w + self.b

    def backward(self, dvalues):
        self.dinputs, self.dw, self.db = self.parts(dvalues)


class Accumulating(Dense):
    """Inputs are kept until the gradients are dropped."""

    def __init__(self):
        super().__init__()
        self.kept = []
        self.flush_gradients()

    def flush_gradients(self):
        self.dw, self.db = np.zeros_like(W), np.zeros_like(B)
        self.kept.clear()

    def forward(self, x):
        self.kept.append(x)
        return np.tanh(x) @ self.w + self.b

    def backward(self, dy):
        t = np.tanh(self.kept[0])
        self.dw += self.factor * t.T @ dy
        self.db += dy.sum(0)
        return dy @ self.w.T * (1 - t * t)


class WithState(Dense):
    """Of the two outputs, one has a cotangent."""

    def forward(self, x):
        y = super().forward(x)
        return y, np.tanh(y)

    def backward(self, dy):
        dx, self.dw, self.db = self.parts(dy)
        return dx


@pytest.mark.parametrize(
    "layer",
    [
        Nested,
        NestedElsewhere,
        Dictionary,
        OnlyDictionary,
        OnlyDictionaryOfNames,
        Twice,
        Keeping,
        Accumulating,
        WithState,
    ],
)
def test_a_layer(layer):
    report = check(layer(), X)
    assert {row.quantity for row in report.rows if row.error is not None} >= {"dw", "db"}
    wrong = type("Wrong", (layer,), {"factor": 1.01, "backward": layer.backward})
    assert {row.quantity for row in check(wrong(), X, raises=False).failed} == {"dw"}


class Cell:
    """Two outputs, whose cotangents are named after them."""

    factor = 1.0

    def __init__(self):
        self.params, self.grads = [W[:, :3].copy()], [np.zeros((3, 3))]

    def forward(self, x, h, c):
        a = (x + h) @ self.params[0]
        c_next = c * np.tanh(a)
        h_next = np.sin(c_next)
        self.cache = x, h, c, np.tanh(a), c_next
        return h_next, c_next

    def backward(self, dh_next, dc_next):
        x, h, c, t, c_next = self.cache
        dc = self.factor * dc_next + dh_next * np.cos(c_next)
        da = dc * c * (1 - t * t)
        self.grads[0][...] = (x + h).T @ da
        dx = da @ self.params[0].T
        return dx, dx, dc * t


class Recurrent:
    """No attribute before the first forward; its inputs stay in the layer until the next one."""

    def forward(self, x):
        self.x = x
        return np.array([np.tanh(row) for row in x]), x.sum()

    def backward(self, dout, dlast):
        return dout * (1 - np.tanh(self.x) ** 2) + dlast


class Named(Recurrent):
    """The object does not show that its second output is none that is saved."""

    def backward(self, dout, last):
        return dout * (1 - np.tanh(self.x) ** 2)


def test_a_layer_that_keeps_what_was_watched():
    assert check(Recurrent(), X).passed
    assert check(Named(), X, raises=False).rows  # and no error


def test_a_cell_with_two_outputs():
    inputs = RNG.normal(size=(3, 4, 3))
    assert check(Cell(), *inputs).passed
    wrong = type("Wrong", (Cell,), {"factor": 2.0})
    assert not check(wrong(), *inputs, raises=False).passed


class Squares:
    """A loss; its backward takes dy = 1 by default, and changes a number in place."""

    factor = 2.0

    def forward(self, x):
        self.x = x
        return np.sum(x * x) / len(x)

    def backward(self, dout=1):
        dout *= self.factor / len(self.x)
        return dout * self.x


def test_a_loss_whose_cotangent_is_a_number():
    assert check(Squares(), X).passed
    wrong = type("Wrong", (Squares,), {"factor": 1.0})
    assert not check(wrong(), X, raises=False).passed


GENERATOR = np.random.default_rng()


def drawn(x):
    mask = np.random.rand(*x.shape) < 0.5
    return 2 * mask * x, mask


def drawn_by_a_generator(x):
    mask = GENERATOR.random(x.shape) < 0.5
    return 2 * mask * x, mask


def drawn_by_python(x):
    mask = np.array([[random.random() < 0.5 for _ in row] for row in x])
    return 2 * mask * x, mask


def drawn_by_torch(x):
    mask = torch.rand_like(x) < 0.5
    return 2 * mask * x, mask


class Drawn(torch.autograd.Function):
    factor = 2

    @classmethod
    def forward(cls, ctx, x):
        y, mask = drawn_by_torch(x)
        ctx.save_for_backward(mask)
        return y

    @classmethod
    def backward(cls, ctx, dy):
        return cls.factor * dy * ctx.saved_tensors[0]


@pytest.mark.parametrize(
    ("forward", "x"),
    [(drawn, X), (drawn_by_a_generator, X), (drawn_by_python, X), (drawn_by_torch, torch.from_numpy(X))],
    ids=["numpy", "generator", "python", "torch"],
)
def test_dropout_that_draws_its_mask(forward, x):
    before = np.random.get_state()[2], torch.random.get_rng_state()
    for factor in (2, 1):
        op = SimpleNamespace(forward=forward, backward=lambda dy, mask, factor=factor: factor * dy * mask)
        report = check(op, x, raises=False)
        assert report.passed is (factor == 2)
        assert {row.method for row in report.rows if row.error is not None} >= {"finite differences"}
    assert np.random.get_state()[2] == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])


def test_a_function_that_draws_its_mask():
    x = torch.from_numpy(X)
    assert check(Drawn, x).passed
    wrong = type("Wrong", (Drawn,), {"factor": 1})
    assert not check(wrong, x, raises=False).passed


def test_numbers_that_cannot_be_repeated_accuse_nothing():
    def forward(x):
        mask = np.random.default_rng().random(x.shape) < 0.5
        return 2 * mask * x, mask

    report = check(SimpleNamespace(forward=forward, backward=lambda dy, mask: 2 * dy * mask), X, raises=False)
    assert not [row for row in report.failed if row.method != "contract"]


class Pool:
    """A maximum of each window, in float32 throughout, as frameworks allocate it."""

    factor = 1.0

    def forward(self, x):
        self.shape = x.shape
        windows = x.reshape(2, 3, 2, 3, 2, 3).transpose(0, 1, 3, 5, 2, 4).reshape(2, 3, 3, 3, 4)
        self.at = windows.argmax(-1)[..., None]
        return np.take_along_axis(windows, self.at, -1)[..., 0].astype(np.float32)

    def backward(self, dy):
        windows = np.zeros((2, 3, 3, 3, 4), np.float32)
        np.put_along_axis(windows, self.at, self.factor * dy[..., None], -1)
        return windows.reshape(2, 3, 3, 3, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(self.shape)


@pytest.mark.parametrize("seed", range(3))
def test_maxima_in_float32(seed):
    x = np.random.default_rng(seed).normal(size=(2, 6, 6, 3))
    report = check(Pool(), x, vary=False)
    assert [row.verdict for row in report.rows if row.method == "finite differences"] == ["passed"]
    wrong = type("Wrong", (Pool,), {"factor": 1.02})
    assert not check(wrong(), x, vary=False, raises=False).passed


def test_a_number_that_an_option_need_not_have():
    def scaled(x, alpha=2):
        return x * alpha, (x, alpha)

    def backward(dy, saved):
        _, alpha = saved
        with np.errstate(all="ignore"):
            return dy * alpha * np.float64(alpha - 1) / np.float64(alpha - 1)

    report = check(SimpleNamespace(forward=scaled, backward=backward), X)
    (row,) = [row for row in report.having("not run") if row.variation == "alpha=1"]
    assert "the option need not have this value" in row.reason
    wrong = SimpleNamespace(forward=scaled, backward=lambda dy, saved: 2 * dy)
    assert {row.variation for row in check(wrong, X, raises=False).failed} == {"alpha=3", "alpha=1"}


def mean_square(p, t):
    return np.mean((p - t) ** 2)


@pytest.mark.parametrize(
    ("loss", "gradient", "inputs"),
    [
        (mean_square, lambda p, t: 2 * (p - t) / p.size, (X, X[::-1] + 1)),
        (lambda x: np.sum(x**2), lambda x: 2 * x, (X,)),
    ],
)
def test_a_loss_and_its_gradient(loss, gradient, inputs):
    constants = ["t"] if len(inputs) > 1 else []
    assert check(SimpleNamespace(forward=loss, backward=gradient), *inputs, constants=constants).passed
    wrong = SimpleNamespace(forward=loss, backward=lambda p, t: 2 * (p - t) / len(p))
    if constants:
        report = check(wrong, *inputs, constants=constants, raises=False)
        assert {row.quantity for row in report.failed} == {"dp"}


def huber(p, t, delta=1.0):
    e = np.abs(p - t)
    return np.where(e <= delta, 0.5 * e * e, delta * (e - 0.5 * delta)).mean()


@pytest.mark.parametrize("options", [{}, {"delta": 0.5}])
def test_a_loss_and_its_gradient_have_an_option(options):
    def gradient(p, t, delta=1.0):
        return np.clip(p - t, -delta, delta) / p.size

    def keyword_only(p, t, *, delta=1.0):
        return gradient(p, t, delta)

    p, t = 1.5 * RNG.normal(size=(2, 12))
    for right in (gradient, keyword_only):
        op = SimpleNamespace(forward=huber, backward=right)
        assert check(op, p, t, constants=["t"], options=options).passed
    forgetful = SimpleNamespace(forward=huber, backward=lambda p, t: gradient(p, t))
    report = check(forgetful, p, t, constants=["t"], options=options, raises=False)
    assert {row.quantity for row in report.failed} == {"dp"}


def test_a_loss_and_its_gradient_have_one_element():
    op = SimpleNamespace(forward=lambda x, w: x * w, backward=lambda x, w: (w, x))
    report = check(op, X, X + 1, raises=False)
    assert any("expected a loss of one element" in row.reason for row in report.rows)


LABELS = np.array([0, 2, 1, 1])


def cross_entropy(z, labels=LABELS):
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    return -np.log(p[np.arange(len(labels)), labels]).mean(), (p, labels)


def its_gradient(dy, saved):
    p, labels = saved
    dz = p.copy()
    dz[np.arange(len(labels)), labels] -= 1
    return dy * dz / len(labels)


@pytest.mark.parametrize("forward", [cross_entropy, lambda z: cross_entropy(z, LABELS.tolist())])
def test_labels_that_are_not_an_input(forward):
    assert check(SimpleNamespace(forward=forward, backward=its_gradient), X).passed
    wrong = SimpleNamespace(forward=forward, backward=lambda dy, saved: 2 * its_gradient(dy, saved))
    assert not check(wrong, X, raises=False).passed


def test_a_long_step_where_a_short_one_rounds():
    """Pixels that are 0 among larger ones, in a ratio of moments."""

    def forward(x, y):
        u, v = x - x.mean(), y - y.mean()
        a, b = (u * v).mean(), (u * u).mean() + (v * v).mean()
        return 2 * a / b, (u, v, a, b)

    def backward(dy, saved, factor=1.0):
        u, v, a, b = saved
        k = 2 * dy / u.size
        return factor * k * (v / b - 2 * a * u / b**2), k * (u / b - 2 * a * v / b**2)

    op = SimpleNamespace(forward=forward, backward=backward)
    wrong = SimpleNamespace(forward=forward, backward=lambda dy, saved: backward(dy, saved, 1.001))
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 256, (8, 8)).astype(float)
        y = np.clip(x + 20 * rng.standard_normal((8, 8)), 0, 255)
        assert check(op, x, y, vary=False).passed
        assert not check(wrong, x, y, vary=False, raises=False).passed


def test_a_mean_over_rows_is_not_judged_on_one_more_axis():
    def forward(a, b):
        m = np.maximum(1 - (a - b), 0)
        return m.mean(), m

    def backward(dy, m):
        d = dy * (m > 0) / len(m)
        return -d, d

    a, b = RNG.normal(size=(2, 12))
    assert check(SimpleNamespace(forward=forward, backward=backward), a, b, vary=True).passed


def test_ties_among_few_elements():
    def forward(x):
        windows = x.reshape(1, 2, 2, 2, 2, 2)
        y = windows.max(axis=(3, 5))
        return y, (windows, y)

    def each(dy, saved):
        windows, y = saved
        y, dy = (of[:, :, :, None, :, None] for of in (y, dy))
        return (dy * (windows == y)).reshape(1, 2, 4, 4)

    report = check(
        SimpleNamespace(forward=forward, backward=each), RNG.normal(size=(1, 2, 4, 4)), raises=False
    )
    assert {row.variation for row in report.failed} == {"ties in x"}


def test_probabilities_stay_below_1():
    def forward(p):
        return -np.log1p(-np.minimum(p, 1 - 1e-9)), p

    report = check(
        SimpleNamespace(forward=forward, backward=lambda dy, p: dy / (1 - p)),
        RNG.uniform(0.05, 0.9, (4, 5)),
        vary=True,
    )
    assert "p closer to 1" in str(report)


def perceptron(x, w, v, t):
    z = x @ w
    o = np.maximum(z, 0) @ v
    p = np.exp(o - o.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return -np.log(p[np.arange(len(t)), t]).mean(), (x, w, v, t, z, p)


def its_backward(dy, saved, factor=1.0, at_zero=0.0):
    x, w, v, t, z, p = saved
    do = p.copy()
    do[np.arange(len(t)), t] -= 1
    do *= dy / len(t)
    dz = factor * (do @ v.T) * np.where(z == 0, at_zero, z > 0)
    return dz @ w.T, x.T @ dz, np.maximum(z, 0).T @ do, None


@pytest.mark.parametrize("seed", range(4))
def test_a_row_of_zeros_at_which_many_kinks_meet(seed):
    rng = np.random.default_rng(seed)
    x = np.vstack([rng.normal(size=(3, 5)), np.zeros((1, 5))])
    inputs = x, rng.normal(size=(5, 6)), rng.normal(size=(6, 3)), rng.integers(0, 3, 4)
    assert check(SimpleNamespace(forward=perceptron, backward=its_backward), *inputs).passed
    for wrong in ({"factor": 1.01}, {"at_zero": 3.0}, {"at_zero": np.nan}):
        op = SimpleNamespace(
            forward=perceptron, backward=lambda dy, saved, wrong=wrong: its_backward(dy, saved, **wrong)
        )
        assert not check(op, *inputs, raises=False, vary=False).passed


def test_targets_that_are_distributions():
    def forward(z, q):
        z = z - z.max(-1, keepdims=True)
        logs = z - np.log(np.exp(z).sum(-1, keepdims=True))
        return -(q * logs).sum(-1).mean(), (logs, q)

    def backward(dy, saved):
        return dy * (np.exp(saved[0]) - saved[1]) / len(saved[1]), None  # because each row of q sums to 1

    q = RNG.dirichlet(np.ones(5), 4)
    op = SimpleNamespace(forward=forward, backward=backward)
    (failed,) = check(op, RNG.normal(size=(4, 5)), q, constants=["q"], vary=True, raises=False).failed
    assert failed.variation == "rows of q that do not sum to 1"
    assert failed.reason.endswith("if they always sum to 1, backward may use it")
    assert check(op, RNG.normal(size=(4, 5)), q, constants=["q"]).passed


def test_a_factor_that_a_weight_of_ones_hides():
    def forward(x, w):
        r = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return w * x / r, (x, w, r)

    def backward(dy, saved, dh=None):
        x, w, r = saved
        dh = dy * w if dh is None else dh
        return dh / r - x * (dh * x).mean(-1, keepdims=True) / r**3, (dy * x / r).sum(0)

    assert check(SimpleNamespace(forward=forward, backward=backward), X, np.ones(3)).passed
    without = SimpleNamespace(forward=forward, backward=lambda dy, saved: backward(dy, saved, dy))
    (failed,) = check(without, X, np.ones(3), raises=False).failed
    assert failed.variation == "different elements of w"
    assert "the factor w is missing" in failed.reason


class Lazy:
    """The parameters are made by the first forward; a logger reaches half of the process."""

    factor = 1.0

    def __init__(self):
        self.w, self.log = None, logging.getLogger(__name__)

    def forward(self, x):
        if self.w is None:
            self.w, self.b = np.random.randn(x.shape[-1], 2), np.zeros(2)
        self.x = x
        return x @ self.w + self.b

    def backward(self, dy):
        self.dw, self.db = self.x.T @ dy, self.factor * dy.sum(0)
        return dy @ self.w.T


def test_parameters_that_the_first_forward_makes():
    report = check(Lazy(), X)
    assert {row.quantity for row in report.rows} >= {"dw", "db"}
    wrong = type("Wrong", (Lazy,), {"factor": 0.5})
    assert {row.quantity for row in check(wrong(), X, raises=False).failed} == {"db"}


class Gelu(torch.autograd.Function):
    """Constants of seven digits."""

    factor = 1.0

    @classmethod
    def forward(cls, ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.erf(x / 1.4142136))

    @classmethod
    def backward(cls, ctx, dy):
        (x,) = ctx.saved_tensors
        slope = 0.5 * (1 + torch.erf(x * 0.7071068)) + x * torch.exp(-x * x / 2) * 0.3989423
        return cls.factor * dy * slope


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_constants_of_seven_digits(dtype):
    x = torch.from_numpy(X).to(dtype)
    assert check(Gelu, x).passed
    assert not check(Gelu, x.double(), raises=False).passed
    wrong = type("Wrong", (Gelu,), {"factor": 1 + 1e-6})
    assert not check(wrong, x, raises=False).passed


class Padded(torch.nn.Module):
    """Row 0 of PyTorch's own embedding gets no gradient."""

    def __init__(self):
        super().__init__()
        self.e = torch.nn.Embedding(5, 3, padding_idx=0)

    def forward(self, ids):
        return Gelu.apply(self.e(ids))


def test_the_padding_row_of_an_embedding():
    report = check(
        Padded().double(), torch.tensor([[1, 4, 0], [2, 1, 0]]), tolerances={"autograd": (1e-6, "digits")}
    )
    assert any(row.quantity == "de_weight" and row.error is not None for row in report.rows)


def hard_swish(x):
    return x * np.clip(x + 3, 0, 6) / 6, x


def its_slope(dy, x, width=6.0):
    return dy * np.where(x < -3, 0, np.where(x > 3, 1, (2 * x + 3) / width))


def test_kinks_at_some_elements_do_not_hide_the_others():
    x = np.random.default_rng(0).integers(-4, 5, (8, 4)).astype(float)
    assert check(SimpleNamespace(forward=hard_swish, backward=its_slope), x).passed
    wrong = SimpleNamespace(forward=hard_swish, backward=lambda dy, x: its_slope(dy, x, 3.0))
    report = check(wrong, x, raises=False)
    assert any("wrong at a point nearby: got" in row.reason for row in report.failed)


def test_a_gradient_too_small_for_differences_but_not_for_complex_steps():
    def forward(x, temperature=0.01):
        e = np.exp((x - x.max(-1, keepdims=True)) / temperature)
        y = e / e.sum(-1, keepdims=True)
        return y, (y, temperature)

    def backward(dy, saved):
        y, temperature = saved
        return y * (dy - (dy * y).sum(-1, keepdims=True)) / temperature

    x = np.array([[0.0, 0.2, -1.0], [1.0, 0.75, 0.5]])
    report = check(SimpleNamespace(forward=forward, backward=backward), x, vary=False)
    assert [row.verdict for row in report.of("finite differences")] == ["not run"]


@pytest.mark.parametrize("options", [{}, {"slope": 0.3}])
def test_an_option_that_backward_names_too(options):
    def forward(x, slope=0.1):
        return np.where(x > 0, x, slope * x), x

    def backward(dy, x, slope=0.1):
        return dy * np.where(x > 0, 1, slope)

    assert check(SimpleNamespace(forward=forward, backward=backward), X, options=options).passed
    forgetful = SimpleNamespace(forward=forward, backward=lambda dy, x: backward(dy, x))
    assert not check(forgetful, X, options=options, raises=False).passed


class TwoTables(Dense):
    """No input has a gradient, and backward returns nothing."""

    def __init__(self):
        self.w, self.v = W.copy(), W[::-1].copy()

    def forward(self, i, j):
        self.at = i, j
        return np.tanh(self.w[i] * self.v[j])

    def backward(self, dy):
        i, j = self.at
        d = dy * (1 - np.tanh(self.w[i] * self.v[j]) ** 2)
        self.dw, self.dv = np.zeros_like(self.w), np.zeros_like(self.v)
        np.add.at(self.dw, i, self.factor * d * self.v[j])
        np.add.at(self.dv, j, d * self.w[i])


def test_no_input_has_a_gradient():
    places = np.array([0, 2, 1, 2]), np.array([1, 1, 0, 2])
    assert check(TwoTables(), *places).passed
    wrong = type("Wrong", (TwoTables,), {"factor": 2.0})
    assert {row.quantity for row in check(wrong(), *places, raises=False).failed} == {"dw"}


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, a):
        ctx.save_for_backward(x, w, a)
        return x @ (w + a)

    @staticmethod
    def backward(ctx, dy):
        x, w, a = ctx.saved_tensors
        return dy @ (w + a).T, x.T @ dy if ctx.needs_input_grad[1] else None, x.T @ dy


class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.from_numpy(W).float(), requires_grad=False)
        self.a = torch.nn.Parameter(torch.from_numpy(W[::-1].copy()).float())

    def forward(self, x):
        return Product.apply(x, self.w, self.a)


def test_a_frozen_parameter_is_not_an_input():
    report = check(Adapted(), torch.from_numpy(X).float())
    assert {row.quantity for row in report.rows if row.error is not None} >= {"dx", "da"}
    assert not any(row.quantity == "dw" for row in report.rows)


class Scaled:
    """A norm with a weight of ones, which a backward may forget."""

    factor = True

    def __init__(self):
        self.gamma = np.ones(5)

    def forward(self, x):
        c = x - x.mean(-1, keepdims=True)
        self.s = np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)
        self.n = c / self.s
        return self.gamma * self.n

    def backward(self, dy):
        self.dgamma = (dy * self.n).sum(0)
        d = dy * self.gamma if self.factor else dy
        n = self.n
        return (d - d.mean(-1, keepdims=True) - n * (d * n).mean(-1, keepdims=True)) / self.s


def test_a_factor_that_a_layer_of_ones_hides():
    x = np.random.default_rng(0).normal(size=(8, 5))
    assert check(Scaled(), x).passed
    wrong = type("Wrong", (Scaled,), {"factor": False})
    (failed,) = check(wrong(), x, raises=False).failed
    assert failed.variation == "different elements of gamma"


class MeanSquare:
    """A layer made for a number of rows, which its backward uses and its forward does not."""

    def __init__(self, batch_size):
        self.batch_size = batch_size

    def forward(self, z):
        self.z = z
        return (z * z).mean(0).sum()

    def backward(self):
        return 2 * self.z / self.batch_size


class OfTheArray(MeanSquare):
    def backward(self):
        return 2 * self.z / len(self.z)


def test_a_number_of_rows_that_a_layer_holds_is_named():
    check(OfTheArray(4), X)
    ((_, said),) = check(MeanSquare(4), X, raises=False).findings()
    assert "batch_size is 4, a length of the inputs given but not of these" in said


def test_a_number_of_rows_that_a_function_holds_is_named():
    rows = 4
    pair = SimpleNamespace(
        forward=lambda z: ((z * z).mean(0).sum(), z), backward=lambda dy, z: dy * 2 * z / rows
    )
    ((_, said),) = check(pair, X, raises=False).findings()
    assert "rows is 4, a length of the inputs given" in said
    fixed = SimpleNamespace(**vars(pair), SHAPES="z[4, n] -> y[]")
    check(fixed, X)


class WithANumber(Dense):
    """A dictionary of all gradients, one of which is that of a Python float."""

    def __init__(self):
        super().__init__()
        self.scale = 0.3

    def forward(self, x):
        return self.scale * super().forward(x)

    def backward(self, dy):
        dx, dw, db = self.parts(self.scale * dy)
        dscale = float((dy * (self.x @ self.w + self.b)).sum())
        return {"grads": {"w": dw, "scale": dscale, "b": db}, "dinput": dx}


class LossWithDictionary(Dense):
    def forward(self, x):
        self.x = x
        return ((x @ self.w + self.b) ** 2).sum()

    def backward(self):
        return dict(zip("xwb", self.parts(2 * (self.x @ self.w + self.b)), strict=True))


@pytest.mark.parametrize("layer", [WithANumber, LossWithDictionary])
def test_a_dictionary_of_gradients(layer):
    check(layer(), X)
    wrong = type("Wrong", (layer,), {"factor": 1.01})
    assert {row.quantity for row in check(wrong(), X, raises=False).failed} == {"dw"}
