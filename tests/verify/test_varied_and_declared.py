"""What a declaration adds to the variations that run by default, and what it excludes: masks, fixed lengths, options. A
row names each variation that is excluded, and a fault at one more axis comes with a declaration that excludes it."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check
from backpass.verify.case import Case
from backpass.verify.subject import subject
from backpass.verify.vary import work
from backpass.verify.vary.suggested import declaration

RNG = np.random.default_rng(38)
X, SQUARE = RNG.normal(size=(4, 6)), RNG.normal(size=(4, 4))
MASK = np.array([1, 1, 0, 1, 1, 1] * 4, bool).reshape(4, 6)


def own(forward, backward, **facts):
    return SimpleNamespace(forward=forward, backward=backward, **facts)


def found(report):
    return {row.variation for row in report.failed}


def excluded(report):
    return {row.variation for row in report.rows if row.reason.endswith("SHAPES does not allow it")}


def passed(report):
    return {row.variation for row in report.rows if row.verdict == "passed"}


def probabilities(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def of_scores(dy, p):
    return p * (dy - (dy * p).sum(-1, keepdims=True))


def filled(s, m):
    p = probabilities(np.where(m, s, -1e9))
    return p, (p, m)


def right(dy, saved):
    p, m = saved
    return np.where(m, of_scores(dy, p), 0.0), None


def wrong(dy, saved):  # p is 0 where m hides, but not in a row that is hidden
    return of_scores(dy, saved[0]), None


class TestRowsOfMasks:
    BOOL = "x[b, n], m[b, n]:bool{} -> y[b, n]"

    def test_a_row_that_hides_everything_is_tried_by_default_if_it_is_declared(self):
        report = check(own(filled, right, SHAPES=self.BOOL.format("")), X, MASK)
        assert {"a row of False in m", "a row of True in m"} <= passed(report)
        report = check(own(filled, wrong, SHAPES=self.BOOL.format("")), X, MASK, raises=False)
        assert "a row of False in m" in found(report)
        (reason,) = {row.reason for row in report.failed if row.variation == "a row of False in m"}
        assert reason.endswith(
            "if each row of m has True in it, declare this by :some after m's axes in SHAPES"
        )

    def test_not_if_each_row_shows_something(self):
        report = check(own(filled, wrong, SHAPES=self.BOOL.format(":some")), X, MASK)
        assert "a row of False in m" in excluded(report)

    def test_not_without_a_declaration(self):
        assert not any("row of False" in row.variation for row in check(own(filled, wrong), X, MASK).rows)
        assert "a row of False in m" in found(check(own(filled, wrong), X, MASK, vary=True, raises=False))

    def test_a_mask_of_only_true_is_drawn(self):
        def everywhere(dy, saved):  # the mask is forgotten
            return dy * np.cos(saved[0]), None

        def forward(x, m):
            return np.where(m, np.sin(x), 0.0), (x, m)

        all_true = np.ones_like(MASK)
        declared = own(forward, everywhere, SHAPES=self.BOOL.format(":some"))
        assert check(declared, X, all_true, vary=False).passed
        assert "False and True in m" in found(check(declared, X, all_true, raises=False))


class TestAdditiveMasks:
    def forward(s, m):
        p = probabilities(s + m)
        return p, (p, m)

    def visible(dy, saved):  # as if nothing were hidden
        p, m = saved
        return np.where(m < 0, 1.0, of_scores(dy, p)), None

    @pytest.mark.parametrize("mark", [":mask", ":mask=0|-inf", ":mask=0|-1e9"])
    def test_a_mask_of_only_zeros_is_drawn(self, mark):
        text = f"x[b, n], m[b, n]{mark}:some -> y[b, n]"
        zeros = np.zeros_like(X)
        report = check(
            own(TestAdditiveMasks.forward, lambda dy, s: right(dy, (s[0], s[1] == 0)), SHAPES=text), X, zeros
        )
        assert any(what.endswith(" and 0 in m") for what in passed(report))
        report = check(
            own(TestAdditiveMasks.forward, TestAdditiveMasks.visible, SHAPES=text), X, zeros, raises=False
        )
        assert any("length 293" in what for what in found(report))

    def test_many_values_add_two_variations(self):
        text = "x[b, n], m[b, n]:mask -> y[b, n]"
        op = own(TestAdditiveMasks.forward, lambda dy, s: (of_scores(dy, s[0]), None), SHAPES=text)
        assert sum("a row of" in what and "in m" in what for what in passed(check(op, X, -np.abs(X)))) == 2


class TestExcluded:
    def test_an_axis_and_a_fixed_length(self):
        op = own(lambda x: (np.sin(x), x), lambda dy, x: dy * np.cos(x), SHAPES="x[b, 6] -> y[b, 6]")
        assert {"one more leading axis", "a length other than 6 along axis 1 of x"} <= excluded(check(op, X))

    def test_zeros_at_a_declared_kink(self):
        op = own(lambda x: (np.abs(x), x), lambda dy, x: dy * np.sign(x), SHAPES="x[*] -> y[*]; kinks x=0")
        assert "a row of zeros in x" in excluded(check(op, X))

    def test_an_option(self):
        def forward(x, scale=0.5, reduction="sum"):
            y = scale * np.sin(x)
            return (y.sum() if reduction == "sum" else y.mean()), (x, scale, reduction)

        def backward(dy, saved):  # right for the values that are declared
            return dy * 0.5 * np.cos(saved[0])

        declared = "x[*] -> y[]; options reduction=sum"
        report = check(own(forward, backward, SHAPES=declared), X)
        assert {"scale=0.375", "reduction='mean'"} <= excluded(report)
        assert {"scale=0.375", "reduction='mean'"} <= found(check(own(forward, backward), X, raises=False))

    def test_the_table_sums_them_up(self):
        op = own(lambda x: (np.sin(x), x), lambda dy, x: dy * np.cos(x), SHAPES="x[b, n] -> y[b, n]")
        (row,) = (
            row for row in check(op, X).shown if row.method == "variations" and row.verdict == "not run"
        )
        assert row.reason == "2 variations: one more leading axis, one axis fewer: SHAPES does not allow it"


class TestSquares:
    """Two axes of one input have the same length, so that a wrong one of them does not show."""

    def batch_norm(x, gamma):
        scale = np.sqrt(x.var(0) + 1e-5)
        h = (x - x.mean(0)) / scale
        return gamma * h, (h, scale, gamma)

    def back_of(axis):
        def backward(dy, saved):
            h, scale, gamma = saved
            n, d = h.shape[axis], dy * gamma
            return (d - d.sum(0) / n - h * (d * h).sum(0) / n) / scale, (dy * h).sum(0)

        return backward

    def test_the_columns_of_batch_norm(self):
        op = own(TestSquares.batch_norm, TestSquares.back_of(0))
        gamma = RNG.normal(size=4)
        what = "shape [4, 7] of x in place of [4, 4]"
        assert what in passed(check(op, SQUARE, gamma))
        op.backward = TestSquares.back_of(1)
        assert check(op, SQUARE, gamma, vary=False).passed
        report = check(op, SQUARE, gamma, raises=False)
        assert found(report) == {what}
        assert report.failed[0].reason.endswith('declare them: SHAPES = "x[n, n], gamma[n] -> y[n, n]"')
        op.SHAPES = "x[n, n], gamma[n] -> y[n, n]"
        assert check(op, SQUARE, gamma).passed

    @pytest.mark.parametrize("axis", [0, 1])
    def test_the_rows_of_a_softmax(self, axis):
        def forward(x):
            p = probabilities(x)
            return p, p

        def backward(dy, p):  # a mean as the sum, over n of the wrong axis
            return p * (dy - (dy * p).mean(-1, keepdims=True) * p.shape[axis])

        report = check(own(forward, backward), SQUARE, raises=False)
        assert ("shape [7, 4] of x in place of [4, 4]" in found(report)) is (axis == 0)

    @pytest.mark.parametrize(
        ("forward", "backward"),
        [
            (lambda x: (np.linalg.inv(x), np.linalg.inv(x)), lambda dy, y: -y.T @ dy @ y.T),
            (lambda x: (np.asarray(np.trace(x)), len(x)), lambda dy, n: dy * np.eye(n)),
            (lambda x: ((x + x.T) / 2, None), lambda dy, _: (dy + dy.T) / 2),
            (lambda x: (np.tril(x), len(x)), lambda dy, n: dy * np.tri(n)),
            (
                lambda k: (k - k.mean(0) - k.mean(1)[:, None] + k.mean(), len(k)),
                lambda dy, n: dy - dy.sum(0) / n - dy.sum(1)[:, None] / n + dy.sum() / n**2,
            ),
        ],
        ids=["inverse", "trace", "symmetric", "triangle", "centred kernel"],
    )
    def test_a_function_of_squares_stays_square(self, forward, backward):
        report = check(own(forward, backward), SQUARE)
        assert not any("shape" in row.variation for row in report.rows)


@pytest.mark.parametrize(
    ("forward", "inputs", "text"),
    [
        (lambda x, g: (x * g, 0), (SQUARE, SQUARE[0]), "x[b, n], g[n] -> y[b, n]"),
        (lambda x, w: (x @ w, 0), (X, X[0][:, None] * np.ones(3)), "x[b, n], w[n, k] -> y[b, k]"),
        (lambda x, t: (x[np.arange(4), t].sum(), 0), (X, np.arange(4)), "x[b, n], t[b]:int -> y[]"),
        (lambda a, b: (a @ b, 0), (SQUARE, SQUARE), "a[m, n], b[m, n] -> y[m, n]"),
        (lambda x: ((x.mean(-1, keepdims=True), x.T), 0), (X,), "x[b, n] -> y1[b, 1], y2[n, b]"),
        (lambda x, n: (x[:, 2:], 0), (X, np.ones(3)), "x[b, k], n[m] -> y[b, p]"),
        (lambda x, keep: (x * keep, 0), (X, MASK), "x[b, n], keep[b, n]:bool -> y[b, n]"),
    ],
)
def test_a_declaration_is_suggested_from_the_shapes(forward, inputs, text):
    op = own(forward, lambda dy, saved: None)
    assert declaration(Case(subject(op, len(inputs), {}), inputs, 0)) == text
    op.SHAPES = text
    assert subject(op, len(inputs), {}).complete(inputs)


class TestTrueHides:
    """A mask as torch's key_padding_mask: its True hides."""

    TEXT = "x[b, n], m[b, n]:bool:some=False -> y[b, n]"

    def forward(x, m):
        p = probabilities(np.where(m, -1e9, x))
        return p, (p, m)

    def backward(dy, saved):  # right unless a row hides everything
        return of_scores(dy, saved[0]), None

    def test_no_row_hides_everything(self):
        report = check(
            own(TestTrueHides.forward, TestTrueHides.backward, SHAPES=self.TEXT), X, ~MASK, vary=True
        )
        assert "a row of True in m" in excluded(report)
        assert "a row of False in m" in passed(report)

    def test_the_hint_without_a_declaration_names_it(self):
        op = own(TestTrueHides.forward, TestTrueHides.backward)
        report = check(op, X, ~MASK, vary=True, raises=False)
        (row,) = [row for row in report.failed if row.variation == "a row of True in m"]
        assert row.reason.endswith(
            "if True hides, and each row of m has False in it, declare this by :bool:some=False after m's axes in SHAPES"
        )

    def test_a_mask_that_does_not_fit_is_rejected(self):
        op = own(TestTrueHides.forward, TestTrueHides.backward, SHAPES=self.TEXT)
        with pytest.raises(
            ValueError, match="m: expected a False in each row, as SHAPES declares; got none in row"
        ):
            check(op, X, np.ones_like(MASK))


def test_a_group_after_a_letter():
    def backward(dy, shape):
        return np.broadcast_to(dy, shape).copy()

    report = check(own(lambda x: (x.sum(0), x.shape), backward, SHAPES="x[n, *] -> y[*]"), np.ones((5, 3, 2)))
    assert {"length 293 in place of 5", "length 293 in place of 3"} <= passed(report)


def test_a_loop_too_long_for_long_lengths_is_tried_a_little_longer(monkeypatch):
    monkeypatch.setattr(work, "BY_DEFAULT", work.Bound(one=240_000, every=960_000))

    def forward(x):
        y = np.zeros_like(x)
        for i in range(len(x)):
            for j in range(i + 1):
                y[i] += x[j] * x[j]
        return y, x

    def backward(dy, x):  # by chunks of four, without the last part of one
        dx = np.zeros_like(x)
        for i in range(len(x) // 4 * 4):
            for j in range(i + 1):
                dx[j] += 2 * x[j] * dy[i]
        return dx

    report = check(own(forward, backward, SHAPES="x[n>1] -> y[n]"), np.linspace(-1, 1, 8), raises=False)
    assert "length 11 in place of 8" in found(report)
    assert "it would exceed the work limit" in next(
        r.reason for r in report.rows if r.variation == "length 1061 in place of 8"
    )
