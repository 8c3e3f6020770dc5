"""Right code that rounding, a complex step or an unusual input once made look wrong, each beside a wrong twin."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from backpass.verify import check
from backpass.verify.report import FAILED, NOT_RUN


def own(forward, backward, **facts):
    return SimpleNamespace(forward=forward, backward=backward, **facts)


def judged(forward, right, wrong, *inputs, **options):
    """Assert that the right backward passes, and return the report of the wrong one."""
    report = check(own(forward, right), *inputs, raises=False, **options)
    assert report.passed, str(report)
    report = check(own(forward, wrong), *inputs, raises=False, **options)
    assert not report.passed
    return report


# Calls that drop the imaginary part, of a size that differences can hardly see


def penalised(penalty, slope, wrong=1.0):
    def forward(x, w):
        e = x @ w
        return 0.5 * (e * e).mean() + penalty(w), (x, w, e)

    def backward(dy, saved):
        x, w, e = saved
        k = dy * e / len(e)
        return np.outer(k, w), wrong * (x.T @ k) + dy * slope(w)

    return forward, backward


@pytest.mark.parametrize("weight", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize(
    ("penalty", "slope"),
    [
        (lambda w: np.abs(w).sum(), np.sign),
        (np.linalg.norm, lambda w: w / np.linalg.norm(w)),
        (lambda w: np.sqrt(np.var(w)), lambda w: (w - w.mean()) / w.size / np.std(w)),
        (lambda w: np.vdot(w, w), lambda w: 2 * w),
    ],
    ids=["abs", "norm", "var", "vdot"],
)
def test_a_small_part_that_is_not_analytic(penalty, slope, weight):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(6, 3)), rng.normal(size=3)
    parts = (lambda w: weight * penalty(w)), (lambda w: weight * slope(w))
    forward, right = penalised(*parts)
    report = judged(forward, right, penalised(*parts, wrong=1 + 1e-5)[1], *inputs, vary=False)
    assert any(row.method == "finite differences" and row.verdict == FAILED for row in report.rows)


def test_the_row_says_which_call_is_not_analytic():
    forward, right = penalised(lambda w: 1e-6 * np.abs(w).sum(), lambda w: 1e-6 * np.sign(w))
    rng = np.random.default_rng(0)
    report = check(own(forward, right), rng.normal(size=(6, 3)), rng.normal(size=3), vary=False)
    (row,) = [row for row in report.of("complex step") if row.quantity == "dw"]
    assert row.verdict == NOT_RUN
    assert row.reason == "forward is not analytic as written: it calls np.absolute"


def cholesky(m):
    low = np.linalg.cholesky(m @ m.T + np.eye(len(m)))
    return low, (m, low)


def cholesky_back(dy, saved, factor=1.0):
    m, low = saved
    phi = np.tril(low.T @ dy)
    phi[np.diag_indices(len(phi))] *= 0.5
    inverse = np.linalg.inv(low)
    s = inverse.T @ phi @ inverse
    return factor * (s + s.T) @ m


@pytest.mark.parametrize("scale", [1.0, 2.0**-20])
def test_a_cholesky_factor(scale):
    m = scale * np.random.default_rng(0).normal(size=(3, 4))
    report = check(own(cholesky, cholesky_back), m, raises=False, vary=False)
    assert not report.failed


def gravity(x, m):
    r = np.linalg.norm(x, axis=1)
    return -(4e14 * m / r).sum(), (x, m, r)


def gravity_back(dy, saved, factor=1.0):
    x, m, r = saved
    return factor * dy * (4e14 * m / r**3)[:, None] * x, -dy * 4e14 / r


@pytest.mark.parametrize("seed", [0, 2])
def test_metres(seed):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(4, 3)) * 7e6, rng.uniform(500, 2000, 4)
    judged(gravity, gravity_back, lambda dy, s: gravity_back(dy, s, 1.001), *inputs, vary=False)


# Rounding inside forward


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def focal(x, t):
    p = np.where(t == 1, sigmoid(x), 1 - sigmoid(x))
    return (-((1 - p) ** 2) * np.log(p)).sum(), (p, t)


def focal_back(dy, saved):
    p, t = saved
    slope = 2 * (1 - p) * np.log(p) - (1 - p) ** 2 / p
    return dy * slope * p * (1 - p) * np.where(t == 1, 1, -1), None


@pytest.mark.parametrize("seed", [2, 4, 6])
def test_one_minus_a_sigmoid_far_from_0(seed):
    rng = np.random.default_rng(seed)
    x, t = rng.normal(size=(4, 3)), rng.integers(0, 2, (4, 3))
    judged(focal, focal_back, lambda dy, s: (focal_back(dy, s)[0] * (1 + 1e-3 * (s[0] < 0.01)), None), x, t)


def bins(mean, log_scale, x):
    c, i = x - mean, np.exp(-log_scale)
    a, b = sigmoid(i * (c + 1 / 255)), sigmoid(i * (c - 1 / 255))
    return -np.log(a - b).sum(), (c, i, a, b)


def bins_back(dy, saved, factor=1.0):
    c, i, a, b = saved
    k, da, db = -dy / (a - b), a * (1 - a), b * (1 - b)
    return factor * -k * i * (da - db), -k * i * (da * (c + 1 / 255) - db * (c - 1 / 255)), None


@pytest.mark.parametrize("seed", range(4))
def test_a_difference_of_sigmoids(seed):
    rng = np.random.default_rng(seed)
    inputs = (
        rng.normal(size=(3, 4)) * 0.3,
        rng.normal(size=(3, 4)) * 0.3 - 2,
        rng.integers(0, 256, (3, 4)) / 127.5 - 1,
    )
    judged(bins, bins_back, lambda dy, s: bins_back(dy, s, 1.01), *inputs, constants=["x"], vary=False)


def divergence(p, q):
    return (p * np.log(p / q)).sum() - p.sum() + q.sum(), (p, q)


def divergence_back(dy, saved, factor=1.0):
    p, q = saved
    return factor * dy * np.log(p / q), dy * (1 - p / q)


def test_terms_that_cancel_in_y():
    rng = np.random.default_rng(0)
    p = rng.random(6) + 0.1
    q = p * (1 + 1e-5 * rng.normal(size=6))
    judged(divergence, divergence_back, lambda dy, s: divergence_back(dy, s, 1.001), p, q, vary=False)


def test_a_maximum_over_a_long_row_is_not_taken_for_a_forward_in_float32():
    def forward(c, x):
        z = x[:, None] * c
        return z.max(-1), (c, x, z.argmax(-1))

    def backward(dy, saved):
        c, x, k = saved
        dc = np.zeros_like(c)
        np.add.at(dc, k, dy * x)
        return dc, dy * c[k]

    inputs = np.random.default_rng(0).normal(size=5), np.random.default_rng(1).normal(size=6)
    report = check(own(forward, backward), *inputs, seed=2, vary=True, raises=False)
    assert report.passed, list(report.findings())


# Inputs at which a backward need not be defined


def distances(x):
    d = x[:-1] - x[1:]
    r = np.sqrt((d * d).sum(-1))
    return r, (d, r)


def distances_back(dy, saved):
    d, r = saved
    g = (dy / r)[:, None] * d
    return np.pad(g, ((0, 1), (0, 0))) - np.pad(g, ((1, 0), (0, 0)))


def test_two_points_that_coincide():
    x = np.random.default_rng(0).normal(size=(8, 1))  # ties make points of one axis equal
    judged(distances, distances_back, lambda dy, s: 2 * distances_back(dy, s), x)


class Moments:
    def forward(x):
        mean, std = x.mean(0), np.sqrt(((x - x.mean(0)) ** 2).mean(0))
        return (mean, std), (x, mean, std)

    def backward(dy, saved):
        x, mean, std = saved
        return np.broadcast_to(dy[0], x.shape) / len(x) + dy[1] * (x - mean) / std / len(x)


def test_an_output_that_is_constant_at_length_1():
    report = check(Moments, np.random.default_rng(0).normal(size=(5, 3)), vary=True, raises=False)
    assert report.passed, list(report.findings())


@pytest.mark.parametrize(
    ("forward", "backward", "inputs"),
    [
        (
            lambda x: (np.stack([np.convolve(r, [1.0, 2.0, 3.0], "valid") for r in x]), x.shape),
            lambda dy, shape: np.stack([np.convolve(r, [3.0, 2.0, 1.0]) for r in dy]),
            [(2, 8)],
        ),
        (
            lambda p: (np.diff(p) ** 2, np.diff(p)),
            lambda dy, e: np.r_[0, 2 * dy * e] - np.r_[2 * dy * e, 0],
            [(7,)],
        ),
    ],
    ids=["a filter longer than the signal", "a difference of nothing"],
)
def test_a_gradient_of_another_shape_at_length_1_or_0(forward, backward, inputs):
    drawn = [np.random.default_rng(0).normal(size=shape) for shape in inputs]
    judged(forward, backward, lambda dy, s: backward(dy, s) * 1.1, *drawn, vary=True)


class Labelled:
    """A loss that holds the labels of its batch."""

    def __init__(self, factor=1.0):
        self.t, self.factor = np.array([2, 0, 3]), factor

    def forward(self, x):
        e = np.exp(x - x.max(-1, keepdims=True))
        self.p = e / e.sum(-1, keepdims=True)
        q = np.zeros_like(x)
        q[np.arange(len(self.t)), self.t] += 1
        self.q = q
        return -(q * np.log(self.p)).sum() / len(x)

    def backward(self):
        return self.factor * (self.p - self.q) / len(self.q)


def test_a_layer_that_holds_the_labels_of_a_batch():
    x = np.random.default_rng(0).normal(size=(3, 4))
    report = check(Labelled(), x)
    reasons = [row.reason for row in report.rows if row.verdict == NOT_RUN]
    assert any("the layer holds as many integers" in reason for reason in reasons)
    assert not check(Labelled(1.01), x, raises=False).passed


def test_a_python_float_for_which_backward_returns_a_gradient():
    def forward(x, p, eps=1e-6):
        return (x + eps) ** p, (x, p, eps)

    def backward(dy, saved):
        x, p, eps = saved
        return dy * p * (x + eps) ** (p - 1), float((dy * (x + eps) ** p * np.log(x + eps)).sum())

    x = np.random.default_rng(0).uniform(0.5, 2, (3, 4))
    report = judged(forward, backward, lambda dy, s: (backward(dy, s)[0], 2.0), x, 2.5)
    assert {row.quantity for row in report.failed} >= {"dp"}


def test_an_operator_that_is_nan_where_forward_is_not():
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, t):
            kept = t != -100
            n = kept.sum().clamp(min=1)
            logs = torch.log_softmax(x @ w.T, -1)
            at = t.clamp(min=0)
            ctx.save_for_backward(x, w, logs, at, kept, n)
            return -(logs.gather(-1, at[:, None])[:, 0] * kept).sum() / n

        @staticmethod
        def backward(ctx, dy):
            x, w, logs, at, kept, n = ctx.saved_tensors
            g = logs.exp()
            g[torch.arange(len(at)), at] -= 1
            g = dy * g * kept[:, None] / n
            return g @ w, g.T @ x, None

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 3, dtype=torch.float64, generator=generator) for n in (5, 6))
    t = torch.tensor([-100, 1, 4, 0, 2])
    report = check(
        Loss, x, w, t, operator=lambda x, w, t: F.cross_entropy(x @ w.T, t), vary=True, raises=False
    )
    assert report.passed, list(report.findings())


def test_starts_of_segments():
    def forward(x, starts):
        return np.add.reduceat(x, starts, axis=0), (x, starts)

    def backward(dy, saved):
        x, starts = saved
        return np.repeat(dy, np.diff(np.append(starts, len(x))), axis=0), None

    x = np.random.default_rng(0).normal(size=(7, 2))
    report = check(own(forward, backward), x, np.array([0, 2, 3]), vary=True, raises=False)
    assert report.passed, list(report.findings())


def springs(x, ends):
    i, j = ends.T
    v = x[i] - x[j]
    r = np.sqrt((v * v).sum(1))
    return ((r - 1) ** 2).sum(), (x, i, j, v, r)


def springs_back(dy, saved, factor=1.0):
    x, i, j, v, r = saved
    force = (factor * dy * 2 * (r - 1) / r)[:, None] * v
    dx = np.zeros_like(x)
    np.add.at(dx, i, force)
    np.subtract.at(dx, j, force)
    return dx, None


@pytest.mark.parametrize("vary", [None, True])
def test_edges_whose_ends_differ(vary):
    x = np.random.default_rng(0).normal(size=(5, 3))
    ends = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    judged(springs, springs_back, lambda dy, s: springs_back(dy, s, 1.1), x, ends, vary=vary)


def test_different_places_to_write_to():
    def forward(x, at):
        y = np.zeros((9, x.shape[1]))
        y[at] = np.tanh(x)
        return y, (x, at)

    def backward(dy, saved):
        return dy[saved[1]] / np.cosh(saved[0]) ** 2, None

    x = np.random.default_rng(0).normal(size=(4, 2))
    report = check(own(forward, backward), x, np.array([7, 1, 4, 2]), vary=True, raises=False)
    assert report.passed, list(report.findings())
    assert any("the integers drawn repeat" in row.reason for row in report.rows)


def test_a_norm_at_a_row_of_zeros():
    def forward(x, a):
        y = np.sqrt((x @ a * x).sum(1))
        return y, (x, a, y)

    def backward(dy, saved):
        x, a, y = saved
        return (dy / y / 2)[:, None] * (x @ (a + a.T)), x.T @ ((dy / y / 2)[:, None] * x)

    rng = np.random.default_rng(0)
    a = rng.normal(size=(3, 3))
    wrong = lambda dy, s: tuple(1.1 * of for of in backward(dy, s))  # noqa: E731
    judged(forward, backward, wrong, rng.normal(size=(4, 3)), a @ a.T + np.eye(3))


def test_a_mean_of_logarithms_at_a_row_of_zeros():
    def forward(x):
        y = np.exp(np.log(x).mean(1))
        return y, (x, y)

    def backward(dy, saved):
        x, y = saved
        return (dy * y)[:, None] / x / x.shape[1]

    x = np.random.default_rng(0).uniform(1, 2, (4, 3))
    judged(forward, backward, lambda dy, s: 1.1 * backward(dy, s), x, vary=True)


def test_a_label_of_each_row_among_the_constants():
    def forward(x, y):
        e = np.exp(x - x.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        return -(y * np.log(p)).sum() / len(x), (p, y)

    def backward(dy, saved):
        p, y = saved
        return dy * (p - y) / len(p), None

    x = np.random.default_rng(0).normal(size=(4, 3))
    report = check(
        own(forward, backward), x, np.eye(3)[[0, 2, 1, 1]], constants=["y"], vary=True, raises=False
    )
    assert {row.variation for row in report.failed} == {"rows of y that do not sum to 1"}


@pytest.mark.parametrize("seed", range(3))
def test_a_gate_that_is_almost_open(seed):
    def forward(x, w):
        y = sigmoid(x @ w + 12)
        return y, (x, w, y)

    def backward(dy, saved, factor=1.0):
        x, w, y = saved
        d = factor * dy * y * (1 - y)  # 1 − y has lost digits
        return d @ w.T, x.T @ d

    rng = np.random.default_rng(seed)
    inputs = 0.3 * rng.normal(size=(5, 3)), rng.normal(size=(3, 4))
    judged(forward, backward, lambda dy, s: backward(dy, s, 1.001), *inputs, vary=False)


@pytest.mark.parametrize("z", [36.0, 1.8, 1.83])
def test_a_logarithm_of_one_minus_a_sigmoid(z):
    def forward(z):
        return np.log(1 - sigmoid(z)), z

    report = check(own(forward, lambda dy, z: -dy * sigmoid(z)), np.array([z, 0.3, -0.4]), raises=False)
    assert not report.failed, list(report.findings())
    assert not check(
        own(forward, lambda dy, z: -1.1 * dy * sigmoid(z)), np.array([1.8, 0.3]), raises=False
    ).passed


def test_several_outputs_of_tensors_at_a_kink():
    def forward(x):
        return (2 * x, x.norm(dim=-1)), x

    def backward(dy, x):
        return 2 * dy[0] + (dy[1] / x.norm(dim=-1))[:, None] * x

    x = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)
    assert check(own(forward, backward), x).passed


# One more leading axis for code that is made for the axes given


def judged_with_vary(forward, right, wrong, *inputs, **options):
    """Assert that the right backward passes with vary=True too, and the wrong one at the inputs given; return the
    variations at which the wrong one fails."""
    report = check(own(forward, right), *inputs, vary=True, raises=False, **options)
    assert report.passed, str(report)
    assert check(own(forward, wrong), *inputs, vary=False, **options).passed
    report = check(own(forward, wrong), *inputs, vary=True, raises=False, explain=False, **options)
    return {row.variation for row in report.failed}


def gaussian_nll(mu, log_scale, x):
    z = (x - mu) * np.exp(-log_scale)
    return (0.5 * z * z + log_scale).sum(-1).mean(), (z, log_scale)


def gaussian_nll_back(dy, saved, rows=len):
    z, log_scale = saved
    d = dy * z * np.exp(-log_scale) / rows(z)
    return -d, dy * (1 - z * z) / rows(z), d


def test_a_mean_over_the_rows_of_a_matrix():
    def wrong(dy, saved):
        d, *others = gaussian_nll_back(dy, saved)
        return d * (1 if len(d) < 64 else saved[0]), *others

    inputs = np.random.default_rng(4).normal(size=(3, 4, 3))
    seen = judged_with_vary(gaussian_nll, gaussian_nll_back, wrong, *inputs)
    assert "length 293 in place of 4" in seen and "one more leading axis" not in seen


def test_a_mean_of_a_loss_with_a_bias_of_no_axes():
    def forward(x, w, b, y):
        z = x @ w + b
        return (np.logaddexp(0, z) - z * y).mean(), (x, w, 1 / (1 + np.exp(-z)), y)

    def right(dy, saved):
        x, w, p, y = saved
        e = dy * (p - y) / len(y)
        return np.outer(e, w), x.T @ e, e.sum(), None

    def wrong(dy, saved):
        dx, dw, db, _ = right(dy, saved)
        return dx, dw, db * (1 if len(saved[0]) < 9 else 2), None

    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(8, 3)), rng.normal(size=3), np.array(0.3), rng.integers(0, 2, 8)
    assert "length 1061 in place of 8" in judged_with_vary(forward, right, wrong, *inputs)


def test_a_sum_over_all_elements_of_a_vector():
    def forward(t, w):
        d = t - t[0]
        return np.sin(w * d), (d, w)

    def right(dy, saved):
        d, w = saved
        c = dy * np.cos(w * d)
        dt = w * c
        dt[0] -= (w * c).sum()
        return dt, (c * d).sum()

    def wrong(dy, saved):
        dt, dw = right(dy, saved)
        return dt * (1 if len(dt) < 7 else 2), dw

    t = np.cumsum(np.random.default_rng(6).uniform(0.5, 2, 6))
    assert judged_with_vary(forward, right, wrong, t, np.array(0.3))


def test_a_symmetric_table_remains_symmetric():
    rng = np.random.default_rng(7)
    k = rng.normal(size=(4, 4))

    def forward(x, k):
        return x @ k, k

    x = torch.asarray(rng.normal(size=(3, 4)))
    right = own(forward, lambda dy, k: dy @ k)
    assert check(right, x, torch.asarray(k + k.T), constants=["k"], vary=True).passed
    assert not check(right, x, torch.asarray(k), constants=["k"], raises=False, vary=False).passed


# A matrix whose longer axis becomes the shorter one


@pytest.mark.parametrize("xp", [np, torch], ids=lambda xp: xp.__name__)
def test_a_pseudoinverse_of_a_tall_matrix(xp):
    def forward(a, b):
        x = xp.linalg.pinv(a) @ b
        return x, (a, b, x)

    def right(dy, saved, factor=1.0):
        a, b, x = saved
        back = xp.linalg.pinv(a).T @ dy
        du = xp.linalg.inv(a.T @ a) @ dy
        return (b - a @ x)[:, None] * du - factor * back[:, None] * x, back

    def wrong(dy, saved):
        return right(dy, saved, 1.0 if len(saved[0]) < 7 else 2.0)

    rng = np.random.default_rng(8)
    inputs = xp.asarray(rng.normal(size=(6, 3))), xp.asarray(rng.normal(size=6))
    report = check(own(forward, right), *inputs, raises=False)
    assert report.passed, str(report)
    (row,) = (row for row in report.rows if row.variation == "length 1065 in place of 3")
    assert "forward calls pinv, and the longer of two axes of a becomes the shorter one" in row.reason
    report = check(own(forward, wrong), *inputs, raises=False, explain=False)
    assert {row.variation for row in report.failed} == {"length 1062 in place of 6"}


def test_a_wide_matrix_of_a_product_is_tried():
    def wrong(dy, saved):
        a, b = saved
        return np.outer(dy, b) * (1 if a.shape[1] < a.shape[0] else 2), a.T @ dy

    rng = np.random.default_rng(9)
    op = own(lambda a, b: (a @ b, (a, b)), wrong)
    report = check(op, rng.normal(size=(6, 3)), rng.normal(size=3), raises=False, explain=False)
    assert report.failed


# Slopes of a gradient that almost vanishes


def test_a_kernel_of_points_far_apart():
    def forward(x, y):
        k = np.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1))
        return k, (x, y, k)

    def right(dy, saved, near=1.0):
        x, y, k = saved
        g = (dy * k)[..., None] * (x[:, None] - y[None])
        return -near * g.sum(1), g.sum(0)

    def wrong(dy, saved):
        dx, dy_ = right(dy, saved)
        return dx + (dx.shape[1] > 64), dy_

    rng = np.random.default_rng(10)
    inputs = rng.normal(size=(5, 2)), rng.normal(size=(3, 2))
    assert check(own(forward, right), *inputs, vary=True).passed
    report = check(own(forward, wrong), *inputs, vary=True, raises=False, explain=False)
    assert "length 1061 in place of 2" in {row.variation for row in report.failed}


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_norm_of_numbers_far_from_0(seed):
    def forward(x):
        c = x - x.mean(0)
        s = 1 / np.sqrt((c * c).mean(0) + 1e-5)
        return c * s, (c * s, s)

    def backward(dy, saved, factor=1.0):
        h, s = saved
        return s * (dy - dy.mean(0) - factor * h * (dy * h).mean(0))

    def wrong(dy, saved):
        return backward(dy, saved, 1 + 1e-6)

    x = 1e6 + np.random.default_rng(seed).normal(size=(6, 3))
    judged(forward, backward, wrong, x, vary=False, explain=False)


def test_digits_that_forward_loses_are_not_called_an_absolute_value():
    def forward(z):
        return np.log(1 - 1 / (1 + np.exp(-z))), z

    op = own(forward, lambda dy, z: -dy / (1 + np.exp(-z)))
    report = check(op, np.array([30, 0.3, 1.0]), vary=False, raises=False)
    assert report.of("complex step")[0].reason.startswith("forward loses digits there, or converts numbers")
    assert not report.failed


class NegativeSampling:
    """log(1 − σ(z)), which loses digits where a long row makes z large."""

    factor = 1.0

    def __init__(self):
        rng = np.random.default_rng(0)
        self.w, self.at = rng.normal(size=(8, 3)), rng.integers(0, 8, (4, 3))

    def forward(self, h):
        self.h, self.s = h, sigmoid(np.einsum("bd,bkd->bk", h, self.w[self.at]))
        return -np.log(1 - self.s).sum()

    def backward(self, dy=1):
        d = self.factor * dy * self.s
        self.dw = np.zeros_like(self.w)
        np.add.at(self.dw, self.at, d[..., None] * self.h[:, None])
        return np.einsum("bk,bkd->bd", d, self.w[self.at])


@pytest.mark.parametrize("seed", [100, 101, 109, 110])
def test_a_loss_that_loses_digits_at_long_rows(seed):
    h = np.random.default_rng(seed).normal(size=(4, 3))
    assert check(NegativeSampling(), h).passed
    wrong = type("Wrong", (NegativeSampling,), {"factor": 1.01})
    assert not check(wrong(), h, raises=False).passed


def correlation(x, t):
    """The concordance of two rows; on tensors, var() divides by one element fewer."""
    mx, mt = x.mean(), t.mean()
    covariance = ((x - mx) * (t - mt)).mean()
    spread = x.var() + t.var() + (mx - mt) ** 2
    return 1 - 2 * covariance / spread, (x, t, covariance, spread)


def correlation_back(factor):
    def of_one(x, t, covariance, spread):
        mx, mt = x.mean(), t.mean()
        of_spread = covariance / spread**2 * (2 * (x - mx) + 2 * factor * (mx - mt)) / x.size
        return -2 * ((t - mt) / x.size / spread - of_spread)

    def back(dy, saved):
        x, t, *rest = saved
        return dy * of_one(x, t, *rest), dy * of_one(t, x, *rest)

    return back


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_variance_that_tensors_compute_otherwise_is_not_judged_by_them(factor):
    rng = np.random.default_rng(0)
    pair = SimpleNamespace(forward=correlation, backward=correlation_back(factor))
    x, t = rng.normal(size=64), rng.normal(size=64) + 1
    report = check(pair, x, t, vary=True, raises=False)
    assert report.passed == (factor == 1.0)
    assert all(row.quantity in ("dx", "dt") for row in report.failed)


class AddedUp:
    """A layer for matrices that adds to its gradient: for vectors, one number."""

    power = 2

    def __init__(self):
        self.w = np.random.default_rng(1).normal(size=(4, 4)) / 2
        self.zero_grad()

    def zero_grad(self):
        self.dw = np.zeros((4, 4))

    def forward(self, x):
        self.x, self.y = x, np.tanh(x @ self.w)
        return self.y

    def backward(self, dy):
        da = dy * (1 - self.y**self.power)
        self.dw = self.dw + self.x.T @ da
        return da @ self.w.T


def test_one_axis_fewer_of_a_layer_that_adds_up():
    x = np.random.default_rng(0).normal(size=(8, 4))
    check(AddedUp(), x, vary=True)
    wrong = type("Wrong", (AddedUp,), {"power": 3})
    assert {row.quantity for row in check(wrong(), x, raises=False).failed} == {"dx", "dw"}


def length_of_a_path(p):
    d = p[1:] - p[:-1]
    lengths = np.sqrt((d * d).sum(1))
    return lengths.sum(), (d, lengths)


def path_back(dy, saved, most=np.inf):
    d, lengths = saved
    step = dy * d / lengths[:, None] * np.sqrt(1.0 if len(d) < most else np.nan)
    dp = np.zeros((len(d) + 1, 2))
    dp[1:] += step
    dp[:-1] -= step
    return dp


def test_points_that_the_check_draws_may_coincide():
    grid = np.array([[0.0, 0], [1, 0], [1, 2], [3, 2], [3, 5], [2, 4]])
    check(SimpleNamespace(forward=length_of_a_path, backward=path_back), grid)
    wrong = SimpleNamespace(forward=length_of_a_path, backward=lambda dy, saved: path_back(dy, saved, 50))
    smooth = np.random.default_rng(0).normal(size=(6, 2))
    for points in (grid, smooth):
        report = check(wrong, points, raises=False)
        assert any("NaN" in row.reason for row in report.failed)
