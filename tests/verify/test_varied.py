"""Inputs are varied only as far as the object is made for them: its declaration, its tables, the dtypes of its library."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check
from backpass.verify.vary.judging import REPEATS

RNG = np.random.default_rng(3)
BATCH, GAMMA, BETA = RNG.normal(size=(6, 4)), RNG.normal(size=4), RNG.normal(size=4)


def tried(report):
    """What the rows of varied inputs tried."""
    return {row.note or row.how for row in report.rows if row.method == "varied inputs"}


def batch_norm(x, gamma, beta):
    centred = x - x.mean(0)
    rstd = 1 / np.sqrt((centred**2).mean(0) + 1e-5)
    return centred * rstd * gamma + beta, (centred * rstd, rstd, gamma)


def batch_norm_back(dy, saved):
    x_hat, rstd, gamma = saved
    d = dy * gamma
    return rstd * (d - d.mean(0) - x_hat * (d * x_hat).mean(0)), (dy * x_hat).sum(0), dy.sum(0)


def normed(backward=batch_norm_back, **facts):
    return SimpleNamespace(forward=batch_norm, backward=backward, **facts)


def test_a_function_of_matrices_is_given_no_third_axis_that_it_does_not_declare():
    declared = normed(SHAPES="x[b, n], gamma[n], beta[n] -> y[b, n]")
    report = check(declared, BATCH, GAMMA, BETA, vary=True)
    assert {"length 293 in place of 6", "length 1061 in place of 4"} < tried(report)
    assert "one more leading axis" not in tried(report)


def test_letters_of_equal_length_vary_apart():
    square = RNG.normal(size=(4, 4))

    def wrong(dy, saved):  # a mean over the columns in place of one over the rows
        dx, dgamma, dbeta = batch_norm_back(dy, saved)
        return dx * saved[0].shape[0] / saved[0].shape[1], dgamma, dbeta

    declared = normed(wrong, SHAPES="x[b, n], gamma[n], beta[n] -> y[b, n]")
    assert check(declared, square, GAMMA, BETA, vary=False).passed
    report = check(declared, square, GAMMA, BETA, vary=True, raises=False)
    lengths = {row.how for row in report.failed}
    longer = "length 64 or 5 in place of 4", "a row of 131,108 in place of 4"
    assert lengths == {*longer, *(f"length {n} in place of 4" for n in (1, 293, 1061))}


def test_numpy_code_is_judged_in_float16_only_if_it_was_given_it():
    def kinds(report):
        return {row.variation for row in report.rows if "float16" in (row.variation or "")}

    assert not kinds(check(normed(), BATCH, GAMMA, BETA, vary=True))
    tanh = SimpleNamespace(forward=lambda x: (np.tanh(x), np.tanh(x)), backward=lambda dy, y: dy * (1 - y**2))
    assert kinds(check(tanh, BATCH.astype(np.float16), vary=True)) == {"293 rows of float16"}


def test_a_table_keeps_what_its_columns_have_in_common():
    torch = pytest.importorskip("torch")
    angles = torch.outer(
        torch.arange(5.0, dtype=torch.float64), torch.tensor([1.0, 0.3], dtype=torch.float64)
    )
    table = torch.cat([angles, angles], -1)

    def rotated(x):
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)

    rope = SimpleNamespace(
        forward=lambda q, cos, sin: (q * cos + rotated(q) * sin, (cos, sin)),
        backward=lambda dy, saved: dy * saved[0] - rotated(dy * saved[1]),
    )
    q = torch.tensor(RNG.normal(size=(5, 4)))
    report = check(rope, q, table.cos(), table.sin(), constants=["cos", "sin"], vary=True)
    assert "length 293 in place of 5" in tried(report)


def test_a_declaration_on_code_for_tensors():
    torch = pytest.importorskip("torch")
    softmax = SimpleNamespace(
        forward=lambda x: (torch.softmax(x, -1),) * 2,
        backward=lambda dy, y: y * (dy - (dy * y).sum(-1, keepdim=True)),
        SHAPES="x[*, n>0] -> y[*, n]",
    )
    report = check(softmax, torch.tensor(BATCH), vary=True)
    assert "one more leading axis" in tried(report)
    assert "an empty batch too" in report.rows[0].how


def ran(report, what):
    """The verdicts of the variation that is described like this."""
    return {
        row.verdict
        for row in report.rows
        if row.method == "varied inputs" and what in (row.note + row.how + row.reason)
    }


def pairwise(slope):
    return SimpleNamespace(forward=lambda x: (np.tanh(x), np.tanh(x)), backward=slope)


def test_so_many_rows_that_their_number_overflows():
    """A grid of at most 65,535 blocks, of two rows each, forgets the rows beyond."""

    def wrong(dy, y):
        dx = dy * (1 - y**2)
        dx.reshape(-1, dx.shape[-1])[30_000:] = 0
        return dx

    assert check(pairwise(wrong), BATCH, vary=False).passed
    report = check(pairwise(wrong), BATCH, vary=True, raises=False)
    assert {row.how for row in report.failed} == {"32,805 rows in place of 6"}
    assert ran(check(pairwise(lambda dy, y: dy * (1 - y**2)), BATCH, vary=True), "32,805 rows") == {"passed"}


def test_many_rows_only_where_they_cost_as_much_as_one_many_times():
    def recurrence(x):
        h, every = np.zeros(x.shape[1]), []
        for row in x:
            h = np.tanh(h + row)
            every.append(h)
        return np.stack(every), np.stack(every)

    def back(dy, h):
        d, dx = np.zeros(dy.shape[1]), np.zeros_like(dy)
        for t in reversed(range(len(dy))):
            d = dx[t] = (dy[t] + d) * (1 - h[t] ** 2)
        return dx

    op = SimpleNamespace(forward=recurrence, backward=back)
    assert not ran(check(op, BATCH, vary=True), "rows in place of")
    causal = SimpleNamespace(
        forward=lambda x: (np.cumsum(x, 0), None), backward=lambda dy, _: np.cumsum(dy[::-1], 0)[::-1]
    )
    assert not ran(check(causal, BATCH, vary=True), "rows in place of")


@pytest.mark.parametrize("wrong", [False, True])
def test_no_rows(wrong):
    def back(dy, y):
        dx = dy * (1 - y**2)
        return dx if dx.size or not wrong else np.zeros((1, *dx.shape[1:]))

    report = check(pairwise(back), BATCH, vary=True, raises=False)
    assert ran(report, "no rows") == {"not run" if wrong else "passed"}
    declared = pairwise(back)
    declared.SHAPES = "x[b, n] -> y[b, n]"
    assert check(declared, BATCH, raises=False).passed is not wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_row_of_a_mask_that_hides_everything(wrong):
    mask = np.array([[True, False, True, True]] * 6)

    def forward(x, mask):
        e = np.where(mask, np.exp(x), 0.0)
        total = e.sum(-1, keepdims=True)
        p = np.where(total > 0, e / np.where(total > 0, total, 1.0), 0.25)  # of nothing: the same to all
        return p, (p, mask)

    def back(dy, saved):
        p, mask = saved
        dx = p * (dy - (dy * p).sum(-1, keepdims=True))
        return np.where(mask.any(-1, keepdims=True) | wrong, dx, 0.0), None

    report = check(SimpleNamespace(forward=forward, backward=back), BATCH, mask, vary=True, raises=False)
    assert ran(report, "a row of False in mask") == ({"FAILED"} if wrong else {"passed"})
    assert ran(report, "a row of True in mask") == {"passed"}


@pytest.mark.parametrize("wrong", [False, True])
def test_the_integer_that_is_ignored(wrong):
    def forward(x, at, ignore_index=-100):
        kept = at != ignore_index
        p = np.exp(x - x.max(-1, keepdims=True))
        p = p / p.sum(-1, keepdims=True)
        losses = -np.log(p[np.arange(len(at)), np.where(kept, at, 0)])
        return (losses * kept).sum() / kept.sum(), (p, at, kept)

    def back(dy, saved):
        p, at, kept = saved
        d = p.copy()
        d[np.arange(len(at)), np.where(kept, at, 0)] -= 1
        return dy * d * kept[:, None] / (len(at) if wrong else kept.sum()), None

    op = SimpleNamespace(forward=forward, backward=back)
    at = np.array([3, 1, 1, 0, 2, 2])
    assert check(op, BATCH, at, vary=False).passed
    report = check(op, BATCH, at, vary=True, raises=False)
    assert ran(report, "ignore_index = -100 in at") == ({"FAILED"} if wrong else {"passed"})


def test_a_permutation_becomes_integers_that_occur_twice():
    """Embedding of the tokens 0 … 5: written rather than added, a gradient is wrong as soon as one occurs twice."""

    def back(dy, saved):
        shape, at = saved
        dw = np.zeros(shape)
        dw[at] = dy
        return dw, None

    op = SimpleNamespace(forward=lambda w, at: (w[at], (w.shape, at)), backward=back)
    table = RNG.normal(size=(8, 4))
    assert check(op, table, np.arange(6), vary=False).passed
    assert check(op, table, np.arange(6), vary=True).passed  # they may have to differ
    report = check(op, table, np.array([3, 0, 5, 2, 7]), vary=True)
    assert any(REPEATS in row.reason for row in report.rows)
    op.SHAPES = "w[V, d], at[n]:int<V -> y[n, d]"
    report = check(op, table, np.arange(6), raises=False)
    assert any(row.how.startswith("length 1061 in place of 6") for row in report.failed)


def test_a_length_of_one_is_not_broadcast():
    """A gate of 5 with 4 × 5 sums can be cut to 1, which NumPy broadcasts, but not lengthened."""
    sums, state = RNG.normal(size=(6, 20)), RNG.normal(size=(6, 5))

    def forward(z, c):
        i, f, g, o = np.split(z, 4, -1)
        return i * g + f * c + o, (i, f, g, c)

    def back(dy, saved):
        i, f, g, c = saved
        return np.concatenate([dy * g, dy * c, dy * i, dy], -1), dy * f

    assert check(SimpleNamespace(forward=forward, backward=back), sums, state, vary=True).passed


def affine(x, w):
    return x @ w, (x, w)


def affine_back(dy, saved):
    x, w = saved
    return dy @ w.T, x.T @ dy


def scaled_columns(x, w):
    return x * w, (x, w)


def scaled_columns_back(dy, saved):
    return dy * saved[1], (dy * saved[0]).sum(0)


@pytest.mark.parametrize(
    ("op", "inputs", "why"),
    [
        (
            normed(),
            (BATCH, GAMMA, BETA),
            "forward does not treat each slice of it as an array without it",
        ),  # normalises along the new axis
        (
            SimpleNamespace(forward=scaled_columns, backward=scaled_columns_back),
            (BATCH, GAMMA),
            "backward returns dw of shape [6, 4] for an input of shape [4]; if any leading axes are meant",
        ),  # adds over the first axis only
        (
            SimpleNamespace(forward=affine, backward=affine_back),
            (BATCH, BATCH.T.copy()),
            "backward raises an error (ValueError",
        ),
    ],
)
def test_another_axis_for_which_neither_part_is_made_is_not_run(op, inputs, why):
    report = check(op, *inputs, vary=True)
    (row,) = (row for row in report.rows if "one more leading axis" in row.reason)
    assert row.verdict == "not run" and why in row.reason


def test_a_sum_over_the_first_axis_is_wrong_where_any_axes_are_declared():
    """Each row is multiplied by w; backward adds over the first axis only, right for a matrix."""
    op = SimpleNamespace(forward=scaled_columns, backward=scaled_columns_back)
    op.SHAPES = "x[b, n], w[n] -> y[b, n]"
    assert check(op, BATCH, GAMMA, vary=True).passed
    op.SHAPES = "x[*, n], w[n] -> y[*, n]"
    assert not check(op, BATCH, GAMMA, vary=True, raises=False).passed


def test_a_misfit_of_one_gradient_hides_no_other():
    """Along a third axis dw has another shape, for which the code is not made; and dx is wrong there."""

    def wrong(dy, saved):
        dx, dw = scaled_columns_back(dy, saved)
        return dx * (3 if dx.ndim > 2 else 1), dw

    op = SimpleNamespace(forward=scaled_columns, backward=wrong)
    report = check(op, BATCH, GAMMA, vary=True, raises=False)
    assert {(row.quantity, row.how) for row in report.failed} == {("dx", "one more leading axis")}


def softmax_of(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, rows=lambda x: x.swapaxes(1, 2)):
    """Attention on [b, t, h, d]; the second and the third axis are exchanged."""
    q, k, v = rows(q), rows(k), rows(v)
    p = softmax_of(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return rows(p @ v), (q, k, v, p, rows)


def attention_back(dy, saved):
    q, k, v, p, rows = saved
    d = rows(dy)
    dp = d @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    dq, dk, dv = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d
    return rows(dq), rows(dk), rows(dv)


def unpacking(x):
    b, t, h, d = x.shape
    return x.reshape(b, t, h, d).transpose(0, 2, 1, 3)


def channel_norm(x, w):
    """Each channel of [b, c, h, w] is divided by its length, over fixed axes."""
    r = 1 / np.sqrt((x * x).sum((0, 2, 3), keepdims=True) + 1e-5)
    return w[:, None, None] * x * r, (x, w, r)


def channel_norm_back(dy, saved):
    x, w, r = saved
    d = dy * w[:, None, None]
    return r * d - x * r**3 * (d * x).sum((0, 2, 3), keepdims=True), (dy * x * r).sum((0, 2, 3))


def log_det(a):
    return np.linalg.slogdet(a)[1], a


IMAGES = RNG.normal(size=(2, 3, 2, 3))
FOUR = tuple(RNG.normal(size=(2, 4, 3, 5)) for _ in range(3))
MADE_FOR_FIXED_AXES = {
    "exchanges two axes": (attention, attention_back, FOUR),
    "unpacks the shape": (lambda *x: attention(*x, rows=unpacking), attention_back, FOUR),
    "sums over fixed axes": (channel_norm, channel_norm_back, (IMAGES, RNG.normal(size=3))),
    "takes the maximum over axis 1": (
        lambda x: (x.max(1), x),
        lambda dy, x: dy[:, None] * (np.arange(x.shape[1]) == x.argmax(1)[:, None]),
        (BATCH,),
    ),
    "inverts one matrix": (
        log_det,
        lambda dy, a: dy * np.linalg.inv(a).T,
        (RNG.normal(size=(4, 4)) + 4 * np.eye(4),),
    ),
    "is the loss of a matrix": (
        lambda x: ((x * x).sum(1).mean(), x),
        lambda dy, x: dy * 2 * x / x.shape[0],
        (BATCH,),
    ),
}


@pytest.mark.parametrize("case", MADE_FOR_FIXED_AXES)
def test_code_for_a_fixed_number_of_axes_is_right(case):
    forward, backward, inputs = MADE_FOR_FIXED_AXES[case]
    report = check(SimpleNamespace(forward=forward, backward=backward), *inputs, vary=True, raises=False)
    assert report.passed, report.findings()


def test_a_loss_and_several_outputs_that_treat_each_slice_alike():
    """The loss of a stack is the mean of those of its slices; a backward that divides by the wrong number is found."""

    def loss(x):
        return (np.tanh(x), (x * x).mean()), x

    def back(count):
        return lambda dys, x: dys[0] * (1 - np.tanh(x) ** 2) + dys[1] * 2 * x / count(x)

    right = SimpleNamespace(forward=loss, backward=back(lambda x: x.size))
    assert ran(check(right, BATCH, vary=True), "one more leading axis") == {"passed"}
    wrong = SimpleNamespace(forward=loss, backward=back(lambda x: x.shape[0] * x.shape[1]))
    assert check(wrong, BATCH).passed
    report = check(wrong, BATCH, vary=True, raises=False)
    assert {row.how for row in report.failed} == {"one more leading axis"}
    assert all(
        f'SHAPES = "{text}"' in row.reason for row in report.failed for text in ["x[b, n] -> y1[b, n], y2[]"]
    )


def test_kinks_near_many_elements_are_not_a_fault():
    w = RNG.normal(size=(4, 5))

    def forward(x, w):
        h = x @ w
        return np.maximum(h, 0).sum(-1), (x, w, h)

    def back(dy, saved):
        x, w, h = saved
        d = dy[:, None] * (h > 0)
        return d @ w.T, x.T @ d

    for seed in range(4):
        assert check(SimpleNamespace(forward=forward, backward=back), BATCH, w, vary=True, seed=seed).passed


@pytest.mark.parametrize("off", [1e-4, 1e-2])
def test_a_small_error_among_kinks_is_a_fault(off):
    """NumPy's maximum runs neither on tensors nor on complex numbers. Beyond 1,024 columns all are off by a little."""

    def forward(x):
        y = np.maximum(x, 0) + np.abs(x)
        return y, x

    def back(dy, x):
        return dy * ((x > 0) + np.sign(x))

    def wrong(dy, x):
        return back(dy, x) * (1 + off * (x.shape[-1] > 1024))

    right = SimpleNamespace(forward=forward, backward=back)
    for seed in range(4):
        assert check(right, BATCH, vary=True, seed=seed).passed
    op = SimpleNamespace(forward=forward, backward=wrong)
    assert check(op, BATCH, vary=False).passed
    report = check(op, BATCH, vary=True, raises=False, explain=False)
    assert "length 1061 in place of 4" in {row.how for row in report.failed}


def angle(a, b):
    na, nb = np.sqrt((a * a).sum(-1)), np.sqrt((b * b).sum(-1))
    c = (a * b).sum(-1) / (na * nb)
    return np.arccos(np.clip(c, -1, 1)), (a, b, na, nb, c)


def angle_back(dy, saved):
    a, b, na, nb, c = saved
    dc = (-dy / np.sqrt(1 - c * c))[..., None]
    da = dc * (b / (na * nb)[..., None] - a * (c / na**2)[..., None])
    db = dc * (a / (na * nb)[..., None] - b * (c / nb**2)[..., None])
    return da, db


def test_a_gradient_of_a_constant_need_not_be_finite():
    """The angle of two vectors of length 1 is 0 or π, whatever their elements; its formula gives 0/0."""
    op = SimpleNamespace(forward=angle, backward=angle_back)
    report = check(op, BATCH, RNG.normal(size=(6, 4)), vary=True)
    (row,) = (row for row in report.rows if row.variation == "length 1 in place of 4")
    assert row.verdict == "not run" and "y does not depend on a there, and da is not finite" in row.reason


def test_a_gradient_that_is_not_finite_where_y_varies_is_wrong():
    """The divisor n − 1 is forward's n by mistake."""
    op = SimpleNamespace(
        forward=lambda x: ((x * x).mean(-1), x),
        backward=lambda dy, x: dy[:, None] * 2 * x / (x.shape[-1] if x.shape[-1] > 1 else 0),
    )
    report = check(op, BATCH, vary=True, raises=False)
    assert {row.how for row in report.failed} == {"length 1 in place of 4"}


def long_convolution(x, k):
    n = x.shape[-1]
    a, b = np.fft.rfft(x, 2 * n), np.fft.rfft(k, 2 * n)
    return np.fft.irfft(a * b, 2 * n)[..., :n], (x, k)


def long_convolution_back(dy, saved):
    x, k = saved
    n = x.shape[-1]
    d, a, b = (np.fft.rfft(of, 2 * n) for of in (dy, x, k))
    return np.fft.irfft(d * b.conj(), 2 * n)[..., :n], np.fft.irfft(d * a.conj(), 2 * n)[..., :n].sum(0)


@pytest.mark.parametrize("wrong", [False, True])
def test_lengths_that_forward_pads_need_not_differ(wrong):
    """The kernel is as long as the rows; rfft accepts other lengths, for which dk has the rows' length."""

    def back(dy, saved):
        dx, dk = long_convolution_back(dy, saved)
        return dx * (2 if wrong and saved[0].shape[-1] != saved[1].shape[-1] else 1), dk

    op = SimpleNamespace(forward=long_convolution, backward=back)
    report = check(op, BATCH, GAMMA, raises=False)
    assert report.passed is not wrong, list(report.findings())
    assert {row.quantity for row in report.failed} == ({"dx"} if wrong else set())


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        ("float32", "forward overflows in float32 there: y is finite in float64"),
        ("float64", "y is not finite"),
    ],
)
def test_a_forward_that_overflows_is_not_run(dtype, reason):
    steep = 1.0 if dtype == "float32" else 20.0
    op = SimpleNamespace(
        forward=lambda x: (np.exp(steep * x), steep * np.exp(steep * x)), backward=lambda dy, y: dy * y
    )
    report = check(op, (2.5 * BATCH / np.abs(BATCH).max() * 2).astype(dtype), raises=False)
    (row,) = (row for row in report.rows if row.variation == "x × 20")
    assert (row.verdict, row.reason) == ("not run", f"x × 20: {reason}")


def test_tensors_and_a_missing_gradient_raise_no_error_of_the_check():
    torch = pytest.importorskip("torch")
    summed = SimpleNamespace(
        forward=lambda x: (torch.cumsum(x, 0), None), backward=lambda dy, _: dy.flip(0).cumsum(0).flip(0)
    )
    assert check(summed, torch.tensor(BATCH[0]), vary=True).passed
    loss = SimpleNamespace(
        forward=lambda x, t: (((x - t) ** 2).mean(), x - t), backward=lambda dy, d: dy * 2 * d / d.size
    )
    assert check(loss, BATCH, BATCH + 1, vary=True, raises=False).failed
