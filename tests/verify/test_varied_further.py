"""Lengths, axes, signs, and integers that are varied: each finds a backward that is wrong only there, and passes its
right twin; where forward has no use for such inputs, they are not tried."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check

RNG = np.random.default_rng(11)
BATCH, ODD = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5))
TARGETS = np.array([3, 1, 1, 0, 2, 2])


def pair(forward, right, wrong, **facts):
    return [SimpleNamespace(forward=forward, backward=backward, **facts) for backward in (right, wrong)]


def found(op, *inputs, **keywords):
    """What the varied inputs say is wrong with a backward that passes without them."""
    assert check(op, *inputs, vary=False, **keywords).passed
    report = check(op, *inputs, vary=True, raises=False, explain=False, **keywords)
    return {row.how for row in report.failed if row.method == "varied inputs"}


def tried(op, *inputs, **keywords):
    """The variations of a right backward that passed."""
    report = check(op, *inputs, vary=True, **keywords)
    return {row.note for row in report.rows if row.method == "varied inputs" and row.verdict == "passed"}


def tanh(x):
    y = np.tanh(x)
    return y, y


def tanh_back(dy, y):
    return dy * (1 - y**2)


def test_an_axis_fewer():
    """The rows' number is taken from the first axis, which is that of the columns if there is only one."""

    def rms(x):
        r = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return x * r, (x, r)

    def back(dy, saved):
        x, r = saved
        return r * dy - x * r**3 * (dy * x).mean(-1, keepdims=True)

    def wrong(dy, saved):
        return back(dy, saved) if dy.ndim > 1 else dy * saved[1]

    right, other = pair(rms, back, wrong)
    assert "one axis fewer" in tried(right, BATCH)
    assert found(other, BATCH) == {"one axis fewer"}


def test_an_axis_fewer_only_where_forward_treats_slices_alike_and_shapes_fit():
    centred = SimpleNamespace(forward=lambda x: (x - x.mean(0), None), backward=lambda dy, _: dy - dy.mean(0))
    assert "one axis fewer" not in tried(centred, BATCH)
    bias = SimpleNamespace(forward=lambda x, b: (x + b, None), backward=lambda dy, _: (dy, dy.sum(0)))
    report = check(bias, BATCH, BATCH[0], vary=True, raises=False)
    assert "one axis fewer" in {row.note for row in report.rows}  # dx is right; db is [], for matrices
    assert "one axis fewer" not in {row.how for row in report.failed}
    declared = SimpleNamespace(**vars(bias), SHAPES="x[*, n], b[n] -> y[*, n]")
    report = check(declared, BATCH, BATCH[0], vary=True, raises=False)
    assert "one axis fewer" in {row.how for row in report.failed}


def test_a_sum_over_no_axes_is_judged_on_the_arrays_that_were_given():
    """PyTorch's sum over no axes is one over all."""
    pytest.importorskip("torch")
    op = SimpleNamespace(
        forward=lambda x, s: (x * s, (x, s)),
        backward=lambda dy, saved: (dy * saved[1], (dy * saved[0]).sum(tuple(range(dy.ndim - 1)))),
        SHAPES="x[*, n], s[n] -> y[*, n]",
    )
    assert "one axis fewer" in tried(op, BATCH, BATCH[0])


def test_a_length_of_one_becomes_three():
    weights = RNG.normal(size=(3, 2))

    def back(dy, saved):
        x, w = saved
        return dy @ w.T, x.T @ dy

    def wrong(dy, saved):
        x, w = saved
        return dy @ w.T, np.outer(x[0], dy[0])

    right, other = pair(lambda x, w: (x @ w, (x, w)), back, wrong)
    name = "length 3 in place of 1 along axis 0"
    assert name in tried(right, BATCH[:1], weights)
    assert found(other, BATCH[:1], weights) == {name}


def test_a_broadcast_length_of_one_is_excused_or_left_alone():
    """Two arrays of one row each: one of them is lengthened, and the other's gradient is not summed."""
    op = SimpleNamespace(forward=lambda x, z: (x * z, (x, z)), backward=lambda dy, s: (dy * s[1], dy * s[0]))
    assert check(op, BATCH[:1], BATCH[1:2], vary=True).passed
    declared = SimpleNamespace(**vars(op), SHAPES="x[b, n], z[b, n] -> y[b, n]")
    assert "length 3 in place of 1 along axis 0" in tried(declared, BATCH[:1], BATCH[1:2])


def test_an_even_length():
    """A spectrum's last frequency occurs once, and only for an even length."""

    def wrong(dy, y):
        dx = tanh_back(dy, y)
        dx[..., -1] *= 1 if dx.shape[-1] % 2 else 2
        return dx

    right, other = pair(tanh, tanh_back, wrong)
    assert "length 64 or 6 in place of 5" in tried(right, ODD)
    assert "length 64 or 6 in place of 5" in found(other, ODD)


def test_whole_blocks():
    """The rest after whole blocks of 8 is cut off as [:-rest], which leaves nothing where all blocks are whole."""

    def wrong(dy, y):
        dx = tanh_back(dy, y)
        if not dx.shape[-1] % 8:
            dx[...] = 0
        return dx

    _, other = pair(tanh, tanh_back, wrong)
    assert found(other, ODD) == {"length 64 or 6 in place of 5"}


def test_a_length_of_which_forward_takes_only_multiples():
    def thirds(x):
        y = x.reshape(*x.shape[:-1], -1, 3).sum(-1)
        return y, None

    op = SimpleNamespace(forward=thirds, backward=lambda dy, _: np.repeat(dy, 3, -1))
    report = check(op, BATCH, vary=True)
    (row,) = (row for row in report.rows if "length 64 or 4 in place of 3" in row.reason)
    assert row.verdict == "not run"


def test_a_long_row():
    """An index of 16 bits: the elements beyond the 65,536th are not written."""

    def wrong(dy, y):
        dx = tanh_back(dy, y)
        dx[..., 1 << 16 :] = 0
        return dx

    right, other = pair(tanh, tanh_back, wrong)
    name = "a row of 131,109 in place of 5"
    assert name in tried(right, ODD)
    assert found(other, ODD) == {name}


def jacobian(dy, y):
    return np.einsum("...i,...ij->...j", dy, np.eye(y.shape[-1]) * (1 - y**2)[..., None])


def by_column(dy, y):
    dx = np.empty_like(dy)
    for at in range(dy.shape[-1]):
        dx[..., at] = dy[..., at] * (1 - y[..., at] ** 2)
    return dx


@pytest.mark.parametrize("backward", [jacobian, by_column])
def test_no_long_row_for_a_backward_that_fills_a_matrix_or_loops(backward):
    report = check(SimpleNamespace(forward=tanh, backward=backward), ODD, vary=True)
    assert not any(
        "a row of" in row.note + row.reason for row in report.rows if "131" in row.note + row.reason
    )


def test_a_long_row_of_tensors():
    torch = pytest.importorskip("torch")

    def softmax(x):
        y = torch.softmax(x, -1)
        return y, y

    def back(dy, y):
        return y * (dy - (dy * y).sum(-1, keepdim=True))

    def wrong(dy, y):
        return back(dy, y) if dy.shape[-1] < 1 << 16 else y * dy

    right, other = pair(softmax, back, wrong)
    x = torch.tensor(ODD)
    assert "a row of 131,109 in place of 5" in tried(right, x)
    assert found(other, x) == {"a row of 131,109 in place of 5"}
    matrix = SimpleNamespace(
        forward=softmax,
        backward=lambda dy, y: torch.einsum(
            "bi,bij->bj", dy, torch.diag_embed(y) - y[..., None] * y[..., None, :]
        ),
    )
    report = check(matrix, x, vary=True)
    assert not any("131,109" in row.note + row.reason for row in report.rows)


def test_the_other_sign():
    """|σ| in place of σ."""
    scale = np.array([0.5, 1.5, 2.0])
    right, other = pair(
        lambda x, s: (x * s, (x, s)),
        lambda dy, saved: (dy * saved[1], (dy * saved[0]).sum(tuple(range(dy.ndim - 1)))),
        lambda dy, saved: (dy * abs(saved[1]), (dy * saved[0]).sum(tuple(range(dy.ndim - 1)))),
        SHAPES="x[*, n], s[n] -> y[*, n]",
    )
    assert "−s" in tried(right, BATCH, scale)
    assert found(other, BATCH, scale) == {"−s"}


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        (lambda x: (np.log(x), x), lambda dy, x: dy / x),
        (lambda x: (np.log(np.clip(x, 1e-7, 1 - 1e-7)), x), lambda dy, x: dy / x),
    ],
)
def test_no_other_sign_beyond_forwards_domain(forward, backward):
    chances = np.abs(BATCH) / 4 + 0.1
    report = check(SimpleNamespace(forward=forward, backward=backward), chances, vary=True, raises=False)
    assert not any("−x" in row.note + row.how + row.reason for row in report.rows)


@pytest.mark.parametrize("sign", [1, -1])
def test_all_elements_of_one_sign(sign):
    """A maximum that starts at 0, of a row in which all elements have one sign."""

    def wrong(dy, y):
        dx = tanh_back(dy, y)
        dx[(sign * y > 0).all(-1)] = 0
        return dx

    x = np.array([[1.2, -0.7, 0.4], [-0.8, 0.9, -1.1], [0.5, -0.6, 1.4], [-1.3, 0.2, 0.7]])
    right, other = pair(tanh, tanh_back, wrong)
    name = "|x|" if sign > 0 else "−|x|"
    assert name in tried(right, x)
    assert name in found(other, x)


def test_a_distribution_keeps_its_sign():
    """Softmax and cross-entropy: the gradient p − t holds for targets that sum to 1."""

    def forward(x, t):
        e = np.exp(x - x.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        return -(t * np.log(p)).sum(-1), (p, t)

    def back(dy, saved):
        p, t = saved
        return dy[..., None] * (p - t), -dy[..., None] * np.log(p)

    one_hot = np.eye(3)[[0, 2, 1, 1]]
    report = check(SimpleNamespace(forward=forward, backward=back), BATCH, one_hot, vary=True, raises=False)
    assert not any("−t" in row.note + row.how for row in report.rows)


def test_numbers_close_to_0():
    """A threshold below which a slope counts as 0."""

    def wrong(dy, y):
        return np.where(np.abs(y) < 1e-3, 0.0, tanh_back(dy, y))

    right, other = pair(tanh, tanh_back, wrong)
    assert "x × 2⁻²⁰" in tried(right, BATCH)
    assert "x × 2⁻²⁰" in found(other, BATCH)


def test_what_cancels_close_to_0_is_rounding():
    """1 − cos x from which backward computes the sine is right, and loses half its digits close to 0."""
    op = SimpleNamespace(
        forward=lambda x: (1 - np.cos(x), (1 - np.cos(x), x)),
        backward=lambda dy, s: dy * np.sign(s[1]) * np.sqrt(s[0] * (2 - s[0])),
    )
    report = check(op, BATCH, vary=True, raises=False)
    assert not any("2⁻²⁰" in row.how for row in report.failed)


def losses(x, at):
    p = np.exp(x - x.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return -np.log(p[np.arange(len(at)), at]), (p, at)


def losses_back(dy, saved):
    p, at = saved
    d = p.copy()
    d[np.arange(len(at)), at] -= 1
    return dy[:, None] * d, None


@pytest.mark.parametrize(
    ("is_wrong", "name"),
    [
        (lambda at: len(set(at.tolist())) == 1, "equal integers in at"),
        (lambda at: 3 not in at and len(set(at.tolist())) > 1 and len(at) == 6, "no 3 in at"),
    ],
)
def test_integers_that_are_equal_and_a_class_that_does_not_occur(is_wrong, name):
    def wrong(dy, saved):
        dx, _ = losses_back(dy, saved)
        return dx * (0 if is_wrong(saved[1]) else 1), None

    right, other = pair(losses, losses_back, wrong)
    x = RNG.normal(size=(6, 4))
    assert name in tried(right, x, TARGETS)
    assert name in found(other, x, TARGETS)


def test_a_permutation_stays_one():
    op = SimpleNamespace(
        forward=lambda x, at: (x[at], at), backward=lambda dy, at: (dy[np.argsort(at)], None)
    )
    report = check(op, BATCH, np.array([2, 0, 3, 1]), vary=True, raises=False)
    assert not any("integers in" in row.how for row in report.failed)


def segment_sum(x, offsets):
    if offsets[0] != 0 or offsets[-1] != len(x) or x.ndim != 2:
        raise ValueError("segments of all rows of a matrix")
    return np.stack([x[a:b].sum(0) for a, b in itertools.pairwise(offsets)]), offsets


def by_counts(x, counts):
    return segment_sum(x, np.concatenate([[0], np.cumsum(counts)]))


@pytest.mark.parametrize(("forward", "integers"), [(segment_sum, [0, 1, 4, 6]), (by_counts, [1, 3, 2])])
def test_an_empty_segment(forward, integers):
    def back(dy, offsets):
        return np.repeat(dy, np.diff(offsets), 0), None

    def wrong(dy, offsets):  # a row belongs to the segment of as many starts before it
        at = np.zeros(offsets[-1] + 1, dtype=int)
        at[offsets[1:]] = 1
        return dy[np.cumsum(at)[:-1]], None

    right, other = pair(forward, back, wrong)
    x = RNG.normal(size=(6, 3))
    assert "an empty segment in" in str(tried(right, x, np.array(integers)))
    report = check(other, x, np.array(integers), vary=True, raises=False, explain=False)
    assert any("an empty segment in" in row.how for row in report.failed)


def test_no_empty_segment_where_forward_gives_it_an_element():
    op = SimpleNamespace(
        forward=lambda x, at: (np.add.reduceat(x, at[:-1], 0), at),
        backward=lambda dy, at: (np.repeat(dy, np.diff(at), 0), None),
    )
    report = check(op, RNG.normal(size=(6, 3)), np.array([0, 1, 4, 6]), vary=True, raises=False)
    assert not any("an empty segment" in row.note + row.how + row.reason for row in report.rows)


def test_one_true_in_each_row_of_a_mask():
    mask = np.array([[True, True, False], [True, True, True], [False, True, True], [True, False, True]])

    def forward(x, mask):
        if x.shape != mask.shape or not mask.any(-1).all():
            raise ValueError("a mask with a True in each row")
        e = np.where(mask, np.exp(x), 0.0)
        p = e / e.sum(-1, keepdims=True)
        return p * x, (p, x)

    def back(dy, saved):
        p, x = saved
        d = dy * x
        return dy * p + p * (d - (d * p).sum(-1, keepdims=True)), None

    def wrong(dy, saved):
        p, _ = saved
        return back(dy, saved)[0] * (0 if (p == 1).any(-1).all() and len(p) == 4 else 1), None

    right, other = pair(forward, back, wrong)
    name = "one True in each row of mask"
    assert name in tried(right, BATCH, mask)
    assert found(other, BATCH, mask) == {name}


def test_a_long_multiple_is_tried_beside_a_length_that_is_none():
    def forward(x):
        return np.tanh(x), np.tanh(x)

    def right(dy, y):
        return dy * (1 - y * y)

    def wrong(dy, y):  # of whole groups of three, a few hundred of them
        return right(dy, y) * (1 if y.shape[-1] % 3 or not 512 < y.shape[-1] < 2048 else 2)

    one, other = pair(forward, right, wrong)
    assert {"length 1061 in place of 3", "length 1065 in place of 3"} <= tried(one, BATCH)
    assert found(other, BATCH) == {"length 1065 in place of 3"}


def every_second(x, start=0, stop=6):
    return x[start:stop:2], (x.shape, start, stop)


def every_second_back(dy, saved):
    shape, start, stop = saved
    dx = np.zeros(shape)
    dx[start:stop:2] = dy
    return dx


def test_a_function_of_a_vector_may_treat_columns_alike():
    """With two rows, a slice selects one row, and its step is forgotten."""

    def wrong(dy, saved):
        shape, start, stop = saved
        dx = np.zeros(shape)
        dx[start : stop : 1 if len(dy) == 1 else 2] = dy
        return dx

    right, other = pair(every_second, every_second_back, wrong)
    x = RNG.normal(size=6)
    assert "one more leading axis" in tried(right, x)
    assert "one more leading axis" in found(other, x)


@pytest.mark.parametrize("wrong", [False, True])
def test_bounds_remain_in_order(wrong):
    """Of a lower and an upper bound, one alone gets no other sign, because they would change places."""

    def back(dy, saved):
        x, lo, hi = saved
        dx, d_lo, d_hi = dy * ((x > lo) & (x < hi)), dy * (x < lo), dy * (x > hi)
        return (dx * np.where((x > 0).all(), 2, 1) if wrong else dx), d_lo, d_hi

    op = SimpleNamespace(
        forward=lambda x, lo, hi: (np.minimum(np.maximum(x, lo), hi), (x, lo, hi)), backward=back
    )
    x, lo, hi = RNG.normal(size=(4, 5)), -0.5 - RNG.uniform(size=(4, 5)), 0.5 + RNG.uniform(size=(4, 5))
    report = check(op, x, lo, hi, vary=True, raises=False)
    hows = {row.how for row in report.failed}
    assert "|x|" in hows if wrong else not hows, list(report.findings())
