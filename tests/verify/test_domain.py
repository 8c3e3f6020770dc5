"""A declaration states values, options, dtypes, and kinks; checks, drawn inputs, and variations obey it."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from backpass import cli
from backpass.commands.subject import load
from backpass.contract.shapes import parse
from backpass.operation import Operation
from backpass.verify import check
from backpass.verify.case import Case
from backpass.verify.drawing import calls, draw, draw_like
from backpass.verify.methods import contract, symbolic
from backpass.verify.subject import subject
from backpass.verify.vary import kinds
from backpass.verify.vary.inputs import variations

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 6))


def tried(report):
    """What the rows of varied inputs and calls tried."""
    return {
        row.note or row.how or row.reason
        for row in report.rows
        if row.method.startswith("varied") and "SHAPES does not" not in row.reason
    }


def failed(report):
    return {row.how for row in report.failed if row.method.startswith("varied")}


def forward_of_loss(x, t, reduction="mean"):
    """A cross entropy that ignores −100."""
    kept = t != -100
    p = np.exp(x - x.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    losses = np.where(kept, -np.log(p[np.arange(len(t)), np.where(kept, t, 0)]), 0.0)
    count = max(1, kept.sum()) if reduction == "mean" else 1
    return np.asarray(losses.sum() / count), (p, t, kept, count)


def backward_of_loss(dy, saved, *, masked=True):
    p, t, kept, count = saved
    d = p.copy()
    d[np.arange(len(t)), np.where(kept, t, 0)] -= 1
    return dy * d * (kept[:, None] if masked else 1) / count, None


LOSS = "x[b, V>0], t[b]:int<V,-100 -> y[]"


def loss(shapes=LOSS, **facts):
    def backward(dy, saved):
        return backward_of_loss(dy, saved, **facts)

    return SimpleNamespace(forward=forward_of_loss, backward=backward, SHAPES=shapes)


def unmasked():
    return loss(masked=False)


T = np.array([5, 0, 3, 3])


# Integers


@pytest.mark.parametrize(
    ("t", "error", "message"),
    [
        (
            [0, 6, 1, 1],
            ValueError,
            r"t: expected integers from 0 to V − 1 = 5 or -100, as SHAPES declares; got 6 at index \[1\]",
        ),
        (
            [0, -1, 1, 1],
            ValueError,
            r"t: expected integers from 0 to V − 1 = 5 or -100, .* got -1 at index \[1\]",
        ),
        ([0.0, 1.0, 1.0, 1.0], TypeError, "t: expected integers, as SHAPES declares; got float64"),
    ],
)
def test_integers_outside_the_range_are_named(t, error, message):
    with pytest.raises(error, match=message):
        check(loss(), X, np.array(t))
    assert check(loss(), X, np.array([0, -100, 5, 1])).passed


def test_a_range_up_to_a_number():
    with pytest.raises(ValueError, match="t: expected integers from 0 to 2, as SHAPES declares; got 3 at"):
        check(loss("x[b, n], t[b]:int<3 -> y[]"), X, np.array([0, 1, 3, 2]))


def test_drawn_integers_are_in_the_range_and_include_each_sentinel():
    x, t = draw(loss(), np.random.default_rng(0), lengths={"b": 40, "V": 4})
    assert {*t.tolist()} == {0, 1, 2, 3, -100} and (t == -100).sum() == 1
    assert x.shape == (40, 4)
    (few,) = draw(
        SimpleNamespace(SHAPES="t[]:int<3,-1,-2 -> y[]", forward=None), np.random.default_rng(0)
    )  # no room
    assert few in (0, 1, 2)


def test_other_lengths_draw_integers_of_the_new_range():
    report = check(loss(), X, T, vary=True)
    assert {"length 1 in place of 4", "length 1061 in place of 6"} < tried(report) | {
        row.reason.split(":")[0] for row in report.rows
    }
    ranges = {}

    def watching(x, t, reduction="mean"):
        ranges.setdefault(x.shape, set()).update(t.tolist())
        return forward_of_loss(x, t, reduction)

    op = SimpleNamespace(forward=watching, backward=backward_of_loss, SHAPES=LOSS)
    check(op, X, T, vary=True)
    assert ranges[1061, 6] >= {*range(6)}  # one that was not given, too
    assert max(ranges[4, 1061]) > 5 and ranges[4, 1] <= {0, -100}


def test_each_sentinel_is_put_in_one_place_and_in_a_row():
    assert check(unmasked(), X, T, vary=False).passed
    report = check(unmasked(), X, T, raises=False)
    assert failed(report) == {"-100 in t", "only -100 in a row of t"}
    report = check(loss(), X, T, vary=True)
    assert "-100 in t" in tried(report)
    (row,) = (row for row in report.rows if "only -100 in a row of t" in row.reason)
    assert row.verdict == "not run"  # the gradient is 0 everywhere


def segments(x, cu):
    return np.stack([x[a:b].sum(0) for a, b in itertools.pairwise(cu)]), cu


def segments_back(dy, cu):
    return np.repeat(dy, np.diff(cu), 0), None


class Segments:
    SHAPES = "x[n, d], cu[g+1]:offsets<n -> y[g, d]"
    forward, backward = staticmethod(segments), staticmethod(segments_back)


@pytest.mark.parametrize(
    ("cu", "got"),
    [([0, 2, 3], "0 … 3"), ([1, 2, 4], "1 … 4"), ([0, 3, 2, 4], "0 … 4 in another order")],
)
def test_offsets_ascend_from_0_to_a_length(cu, got):
    expected = "cu: expected integers in ascending order from 0 to n = 4, as SHAPES declares; got "
    with pytest.raises(ValueError, match=expected + got):
        check(Segments, X, np.array(cu))


def test_offsets_are_drawn_again_for_another_length():
    report = check(Segments, X, np.array([0, 1, 4]), vary=True)
    # n, d, and g, each longer
    assert {f"length {n} in place of {old}" for n, old in ((293, 4), (1061, 6), (1061, 2))} < tried(report)
    assert check(Segments, vary=True).passed


# Tables and masks


def rotated(x):
    a, b = np.split(x, 2, -1)
    return np.concatenate([-b, a], -1)


class Rope:
    SHAPES = "q[*, s, d], cos[s, d]:halves, sin[s, d]:halves -> y[*, s, d]"

    def forward(q, cos, sin):
        return q * cos + rotated(q) * sin, (cos, sin)

    def backward(dy, saved):
        return dy * saved[0] - rotated(dy * saved[1])


class RopeOfPairs:
    SHAPES = "q[*, s, d], cos[s, d]:pairs, sin[s, d]:pairs -> y[*, s, d]"

    def forward(q, cos, sin):
        turned = np.stack([-q[..., 1::2], q[..., ::2]], -1).reshape(q.shape)
        return q * cos + turned * sin, (cos, sin)

    def backward(dy, saved):
        d = dy * saved[1]
        return dy * saved[0] - np.stack([-d[..., 1::2], d[..., ::2]], -1).reshape(d.shape)


@pytest.mark.parametrize("op", [Rope, RopeOfPairs])
def test_tables_keep_their_structure_at_every_width(op):
    report = check(op, vary=True)
    assert {"length 2 in place of 8", "length 1062 in place of 8"} < tried(report)


def test_a_table_without_a_declared_structure_keeps_the_one_it_has():
    plain = SimpleNamespace(
        forward=Rope.forward, backward=Rope.backward, SHAPES=Rope.SHAPES.replace(":halves", ":table")
    )
    angles = RNG.normal(size=(4, 3))
    table = np.concatenate([angles, angles], -1)
    report = check(plain, X, np.cos(table), np.sin(table), vary=True)
    assert any("1061 in place of 6" in what for what in tried(report))  # an odd width: forward rejects it


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Rope, "cos: expected two equal halves of the last axis, as SHAPES declares; got "),
        (
            RopeOfPairs,
            "cos: expected pairs of equal neighbours along the last axis, as SHAPES declares; got ",
        ),
    ],
)
def test_a_table_of_another_structure_is_named(op, message):
    with pytest.raises(ValueError, match=message):
        check(op, X, X, X)


def test_a_table_needs_no_constants():
    assert Operation(Rope).constants == ("cos", "sin")
    both = SimpleNamespace(SHAPES=Rope.SHAPES, CONSTANTS=("sin", "w"))
    assert Operation(both).constants == ("sin", "w", "cos")
    assert {row.quantity for row in check(Rope, vary=False).rows if row.error is not None} == {"dq"}


def test_symbols_have_the_structure_of_a_table():
    """The backward reads the other half of the table, which holds the same numbers."""

    class OtherHalf:
        SHAPES = Rope.SHAPES

        def forward(q, cos, sin):
            a, b = q[..., : q.shape[-1] // 2], q[..., q.shape[-1] // 2 :]
            c, s = cos[..., : a.shape[-1]], sin[..., : a.shape[-1]]
            xp = q.__array_namespace__() if hasattr(q, "__array_namespace__") else np
            return xp.concat([a * c - b * s, b * c + a * s], axis=-1), (cos, sin)

        def backward(dy, saved):
            a, b = dy[..., : dy.shape[-1] // 2], dy[..., dy.shape[-1] // 2 :]
            c, s = (table[..., a.shape[-1] :] for table in saved)
            xp = dy.__array_namespace__() if hasattr(dy, "__array_namespace__") else np
            return xp.concat([a * c + b * s, b * c - a * s], axis=-1)

    verdicts = [row.verdict for row in check(OtherHalf).rows if row.method == symbolic.NAME]
    assert verdicts == ["passed"]


def every_try(op, inputs):
    """The inputs of every variation."""
    case = Case(subject(op, len(inputs), {}), inputs, seed=0)
    return [one for variation in variations(case, kinds.ASKED_FOR) for one in variation.tries]


def masked_softmax(shapes, wrong=False):
    def forward(x, mask):
        e = np.exp(x - x.max(-1, keepdims=True)) * mask
        total = e.sum(-1, keepdims=True)
        p = e / np.where(total > 0, total, 1.0)
        return p, p

    def backward(dy, p):
        dx = p * (dy - (dy * p).sum(-1, keepdims=True))
        return (dx + (p.sum(-1, keepdims=True) == 0) if wrong else dx), None

    return SimpleNamespace(forward=forward, backward=backward, SHAPES=shapes)


MASKED = "x[b, n], mask[b, n]:mask=0|1 -> y[b, n]"


def test_a_mask_has_only_the_declared_values():
    mask = (RNG.random(X.shape) < 0.7).astype(float)
    mask[:, 0] = 1
    report = check(masked_softmax(MASKED), X, mask, vary=True)
    assert {"a row of 0 in mask", "a row of 1 in mask", "length 1061 in place of 6"} < tried(report)
    varied = every_try(masked_softmax(MASKED), (X, mask))
    assert {*np.unique(np.concatenate([mask.ravel() for _, mask in varied]))} == {0.0, 1.0}
    wrong = masked_softmax(MASKED, wrong=True)
    assert check(wrong, X, mask, vary=False).passed
    assert "a row of 0 in mask" in failed(check(wrong, X, mask, vary=True, raises=False))
    with pytest.raises(ValueError, match="mask: expected only 0 and 1, as SHAPES declares; got 2 at index"):
        check(masked_softmax(MASKED), X, 2 * mask)


def test_a_drawn_mask_hides_no_row():
    op = SimpleNamespace(SHAPES="m[b, n]:mask=0|-inf -> y[b, n]")
    (mask,) = draw(op, np.random.default_rng(0), lengths={"b": 400, "n": 2})
    assert {*np.unique(mask)} == {0.0, -np.inf} and (mask == 0).any(-1).all()
    (plain,) = draw(SimpleNamespace(SHAPES="m[b, n]:mask -> y[b, n]"), np.random.default_rng(0))
    assert {*np.unique(plain)} == {0.0, 1.0}


def test_no_row_of_a_mask_hides_everything_if_it_is_declared():
    """The forward replaces hidden scores by a large negative number, and the backward forgets that: the gradients
    differ where a row hides everything, for which neither is made."""

    def forward(x, mask):
        z = np.where(mask, x, -1e9)
        e = np.exp(z - z.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        return p, p

    def backward(dy, p):
        return p * (dy - (dy * p).sum(-1, keepdims=True)), None

    mask = RNG.random(X.shape) < 0.5
    mask[:, 0] = True
    op = SimpleNamespace(forward=forward, backward=backward, SHAPES="x[b, n], mask[b, n]:bool -> y[b, n]")
    assert "a row of False in mask" in failed(check(op, X, mask, vary=True, raises=False))
    op.SHAPES = op.SHAPES.replace(":bool", ":bool:some")
    report = check(op, X, mask, vary=True)
    assert "a row of True in mask" in tried(report) and "a row of False in mask" not in tried(report)
    assert all(one.any(-1).all() for _, one in every_try(op, (X, mask)))
    assert draw(op, np.random.default_rng(0), lengths={"b": 500, "n": 2})[1].any(-1).all()
    mask[2] = False
    with pytest.raises(
        ValueError, match=r"mask: expected a True in each row, as SHAPES declares; got none in row \[2\]"
    ):
        check(op, X, mask)
    floats = SimpleNamespace(SHAPES="m[b, n]:mask:some -> y[b, n]")
    assert draw(floats, np.random.default_rng(0), lengths={"b": 500, "n": 2})[0].any(-1).all()


# Clauses


def power(wrong=()):
    def forward(x, kind="square", *, twice=False):
        y = np.sin(x) if kind == "sine" else x ** (2 if kind == "square" else 3)
        return y * (1 + twice), (x, kind, twice)

    def backward(dy, saved):
        x, kind, twice = saved
        slope = np.cos(x) if kind == "sine" else 2 * x if kind == "square" else 3 * x**2
        return dy * slope * (1 if kind in wrong else 1 + twice) * (0.5 if kind in wrong else 1)

    shapes = "x[*] -> y[*]; options kind=square|cube"
    return SimpleNamespace(forward=forward, backward=backward, SHAPES=shapes)


def test_the_declared_values_of_an_option_are_tried_and_no_others():
    report = check(power(), X, vary=True)
    assert {what for what in tried(report) if "=" in what} == {"kind='cube'"}
    assert failed(check(power(["cube"]), X, vary=True, raises=False)) == {"kind='cube'"}
    assert check(power(["sine"]), X, vary=True).passed  # it is not made for that
    with pytest.raises(ValueError, match="kind: expected 'square' or 'cube', as SHAPES declares; got 'sine'"):
        check(power(), X, kind="sine")


def test_mutate_tries_each_declared_option(tmp_path, capsys):
    assert [options for _, options in calls(power(), (X,), {})] == [{}, {"kind": "cube"}]
    source = """
import numpy as np
SHAPES = "x[*] -> y[*]; options cubed=False|True"
def forward(x, cubed=False):
    return (x**3 if cubed else np.sin(x)), (x, cubed)
def backward(dy, saved):
    x, cubed = saved
    if cubed:
        return dy * 3 * x * x
    return dy * np.cos(x)
"""
    file = tmp_path / "power_of_option.py"
    file.write_text(source)
    assert cli.main(["mutate", str(file)]) == 0  # no change of the other branch survives
    assert "survived" not in capsys.readouterr().out


def test_a_required_option_has_its_first_declared_value():
    op = power()
    op.forward = lambda x, *, kind: (x**2 if kind == "square" else x**3, (x, kind, False))
    assert check(op).passed


class Tanh:
    SHAPES = "x[b, n] -> y[b, n]; dtypes float32, float16"

    def forward(x):
        return np.tanh(x), np.tanh(x)

    def backward(dy, y):
        return dy * (1 - y * y)


def test_dtypes_are_those_declared():
    message = "x: expected float32 or float16, as SHAPES declares; got float64"
    with pytest.raises(TypeError, match=message):
        check(Tanh, X)
    assert draw(Tanh, RNG)[0].dtype == np.float32
    assert any("293 rows of float16" in what for what in tried(check(Tanh, X.astype(np.float32), vary=True)))
    single = type("Single", (Tanh,), {"SHAPES": Tanh.SHAPES.replace(", float16", "")})
    assert not any("float16" in what for what in tried(check(single, X.astype(np.float32), vary=True)))


def relu(shapes, factor=1.0):
    return SimpleNamespace(
        forward=lambda x: (np.maximum(x, 0), x > 0),
        backward=lambda dy, on: dy * on * factor,
        SHAPES=shapes,
    )


def test_values_keep_away_from_declared_kinks():
    op = relu("x[b, n] -> y[b, n]; kinks x=0|0.7")
    x = np.where(np.abs(X) < 0.1, 0.3, X)
    x = np.where(np.abs(x - 0.7) < 0.1, 0.3, x)
    report = check(op, x, vary=True)
    assert "ties in x" in tried(report) and "a row of zeros in x" not in tried(report)
    values = np.concatenate([one.ravel() for (one,) in every_try(op, (x,))])
    assert values.size > 1000 and np.abs(values).min() > 0.06 and np.abs(values - 0.7).min() > 0.06
    assert np.abs(draw(op, np.random.default_rng(0), lengths={"b": 99})[0]).min() >= 1 / 16


def test_a_small_error_is_not_excused_where_kinks_are_declared():
    """1 % among many elements, in one of which an undeclared kink may be."""
    shapes = "x[b, n] -> y[b, n]"

    def only_where_long(shapes):
        op = relu(shapes)
        op.backward = lambda dy, on: dy * on * (1.01 if on.size > 128 else 1.0)
        return op

    x = np.where(np.abs(X) < 0.1, 0.3, X)
    methods = ["contract", "finite_difference"]
    report = check(only_where_long(f"{shapes}; kinks x=0"), x, vary=True, methods=methods, raises=False)
    assert {"length 293 in place of 4", "length 1061 in place of 6"} <= failed(report)


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        ("options kinds=1|2", "SHAPES: options of .*: expected some of kind, twice; got kinds"),
        ("kinks z=0", "SHAPES: kinks of .*: expected some of x; got z"),
    ],
)
def test_names_that_the_object_does_not_have(clause, message):
    op = power()
    op.SHAPES = f"x[*] -> y[*]; {clause}"
    with pytest.raises(ValueError, match=message):
        check(op, X)


# Every form


def test_an_input_is_left_out_only_if_it_is_declared_optional():
    def forward(x, b=None):
        return x + (0 if b is None else b), b is not None

    op = SimpleNamespace(forward=forward, backward=lambda dy, given: (dy, dy.sum(0) if given else None))
    for mark, out in (("?", True), ("", False)):
        op.SHAPES = f"x[m, n], b[n]{mark} -> y[m, n]"
        assert ("without b" in tried(check(op, X, X[0], vary=True))) == out


def test_the_empty_batch_has_declared_values():
    seen = []

    def forward(x, t, w):
        assert ((t >= 0) & (t < len(w))).all()  # −1 would read the last row
        seen.append(t.shape)
        return x * w[t][..., None], (x, t, w)

    def backward(dy, saved):
        x, t, w = saved
        dw = np.zeros_like(w)
        np.add.at(dw, t, (dy * x).sum(-1))
        return dy * w[t][..., None], None, dw

    op = SimpleNamespace(forward=forward, backward=backward, SHAPES="x[*, n], t[*]:int<3, w[3] -> y[*, n]")
    assert check(op, X, np.array([2, 0, 1, 1]), np.ones(3)).passed
    assert (0,) in seen
    given = (X, np.array([2, 0, 1, 1]), np.ones(3))
    _, t, _ = draw_like(parse(op.SHAPES), RNG, given, leading={"*": (50,)})
    assert {*t} == {0, 1, 2}
    assert contract.EMPTY["*"] == (0,)


DEVIATION = """
import numpy as np

SHAPES = "x[b>{rows}, n>{least}] -> y[b]"

def forward(x):
    if x.shape[1] <= {least} or x.shape[0] <= {rows}:
        raise ValueError(f"too short: {{x.shape}}")
    centred = x - x.mean(1, keepdims=True)
    return (centred**2).sum(1) / (x.shape[1] - {least}), (centred, x.shape[1])

def backward(dy, saved):
    centred, n = saved
    return 2 * dy[:, None] * centred / (n - {least})
"""


@pytest.mark.parametrize("least", [1, 4, 6, 40])
def test_a_least_length_is_drawn_varied_and_mutated(least, tmp_path):
    """The variance of one element is 0/0, so code for at least two is not tried with one."""
    (file := tmp_path / f"deviation_{least}.py").write_text(DEVIATION.format(least=least, rows=2))
    op = load("op", str(file))
    (x,) = draw(op, RNG)
    assert x.shape[1] > least and x.shape[0] != x.shape[1]
    report = check(op, raises=False)
    assert report.passed, list(report.findings())
    assert (
        f"length {least + 1} in place of {x.shape[1]}" in {row.note for row in report.rows}
        or x.shape[1] == least + 1
    )
    assert "length 3 in place of 5" in {row.note for row in report.rows}
    assert not [row for row in report.rows if "too short" in row.reason]
    (rows,) = (row for row in report.rows if row.variation == "no rows")
    assert rows.reason.endswith("SHAPES does not allow it")
    with pytest.raises(ValueError, match=rf"n of at least {least + 1}; got shape \[3, {least}\]"):
        check(op, np.ones((3, least)))
    survived = cli.main(["mutate", str(file)])
    assert not survived or x.shape[1] - least == 1  # a divisor of 1 has no effect
    given = draw_like(parse(op.SHAPES), RNG, (np.ones((9, 50)),), leading={}, most={"b": 1, "n": 1})
    assert given[0].shape == (3, least + 1)


def test_fixed_lengths():
    op = SimpleNamespace(
        forward=lambda a, b: (a + b, None),
        backward=lambda dy, _: (dy, dy.sum(0, keepdims=True)),
        SHAPES="a[n, c], b[1, c] -> y[n, c]",
    )
    report = check(op, X, X[:1], vary=True)
    assert "length 1 in place of 4" in tried(report) and "one more leading axis" not in tried(report)
    with pytest.raises(ValueError, match=r"b: expected b\[1, c\]; got shape \[4, 6\]"):
        check(op, X, X)


def test_a_length_of_one_is_lengthened_where_it_is_declared():
    """A backward that sums all rows is right for one row."""
    op = SimpleNamespace(
        forward=lambda x: (np.tile(x, (2, 1)), None),
        backward=lambda dy, _: dy.sum(0, keepdims=True),
        SHAPES="x[n, c] -> y[m, c]",
    )
    assert check(op, X[:1], methods=["finite_difference"]).passed
    report = check(op, X[:1], vary=True, methods=["finite_difference", "contract"], raises=False)
    assert "length 293 in place of 1" in failed(report)


def test_a_layer():
    class PRelu:
        SHAPES = "x[b, n] -> y[b, n]; kinks x=0, gamma=1; options train=True|False"

        def __init__(self):
            self.gamma = np.full(6, 0.25)

        def forward(self, x, train=True):
            self.x = x
            return np.where(x > 0, x, self.gamma * x)

        def backward(self, dy):
            self.dgamma = np.where(self.x > 0, 0, dy * self.x).sum(0)
            return np.where(self.x > 0, dy, self.gamma * dy)

    x = np.where(np.abs(X) < 0.1, 0.3, X)
    report = check(PRelu(), x, vary=True)
    assert {"length 293 in place of 4", "length 1061 in place of 6", "train=False"} < tried(report)
    assert "one more leading axis" not in tried(report)


class TestTensors:
    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch")

    def embedding(self, shapes, wrong=False):
        torch = self.torch

        class Embedding(torch.autograd.Function):
            SHAPES = shapes

            @staticmethod
            def forward(ctx, w, t, scale=1.0):
                ctx.save_for_backward(t, w)
                ctx.scale = scale
                kept = (t >= 0)[..., None]
                return torch.where(kept, w[t.clamp(min=0)], 0) * scale

            @staticmethod
            def backward(ctx, dy):
                t, w = ctx.saved_tensors
                kept = (t >= 0)[..., None] | wrong
                dw = torch.zeros_like(w)
                dw.index_add_(0, t.clamp(min=0).ravel(), (dy * kept).reshape(-1, w.shape[1]) * ctx.scale)
                return dw, None, None

        return Embedding

    def test_a_function(self):
        shapes = "w[V>0, h], t[b, s]:int<V,-1 -> y[b, s, h]; options scale=1.0|3.0; dtypes float64, float32"
        w, t = self.torch.tensor(X), self.torch.tensor([[0, 3, 1], [2, 2, 0]])
        report = check(self.embedding(shapes), w, t, vary=True)
        assert {"-1 in t", "only -1 in a row of t", "scale=3.0", "length 293 in place of 4"} < tried(report)
        assert not any("bfloat16" in what for what in tried(report))
        report = check(self.embedding(shapes, wrong=True), w, t, vary=True, raises=False)
        assert failed(report) == {"-1 in t", "only -1 in a row of t"}
        assert check(self.embedding(shapes), vary=True).passed  # drawn
        with pytest.raises(ValueError, match="t: expected integers from 0 to V − 1 = 3 or -1"):
            check(self.embedding(shapes), w, t + 4)

    def test_half_precision_only_if_declared(self):
        torch = self.torch
        tanh = SimpleNamespace(
            forward=lambda x: (torch.tanh(x),) * 2,
            backward=lambda dy, y: dy * (1 - y * y),
            SHAPES="x[b, n] -> y[b, n]",
        )
        x = torch.tensor(X)
        assert "293 rows of bfloat16" in tried(check(tanh, x, vary=True))
        tanh.SHAPES += "; dtypes float64, float16"
        report = check(tanh, x, vary=True)
        assert {what for what in tried(report) if "rows of" in what} == {"293 rows of float16"}

    @pytest.mark.parametrize(("factor", "right"), [(1, True), (1.001, False), (1.05, False)])
    def test_an_object_that_is_not_made_for_float64(self, factor, right):
        """Its backward computes in float32, where 1 − y cancels at large inputs."""
        torch = self.torch

        class Softmax(torch.autograd.Function):
            SHAPES = "x[*, n] -> y[*, n]; dtypes float32, bfloat16"

            @staticmethod
            def forward(ctx, x):
                y = torch.softmax(x, -1)
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, dy):
                y, dy32 = ctx.saved_tensors[0].float(), dy.float()
                return (factor * y * (dy32 - (dy32 * y).sum(-1, keepdim=True))).to(dy.dtype)

        x = torch.tensor(np.random.default_rng(3).normal(size=(2, 6, 8))).bfloat16()
        assert check(Softmax, x, vary=True, raises=False, explain=False).passed == right

    def test_a_kink_in_half_precision_is_excused_only_without_a_clause(self):
        """At the bound, bfloat16 rounds 0.7 itself. A clause lists every kink, and 0.7 is missing in it."""
        torch = self.torch
        x = torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(8, 5).bfloat16()
        x[3, 2] = 0.7
        x = torch.where(x.abs() < 0.1, 0.25, x)
        bound = torch.tensor(0.7).bfloat16()
        clamped = SimpleNamespace(
            forward=lambda x: (x.clamp(max=0.7), x),
            backward=lambda dy, x: dy * (x < (bound if x.dtype == torch.bfloat16 else 0.7)),
            SHAPES="x[b, n] -> y[b, n]",
        )
        assert check(clamped, x, methods=["precision"]).passed
        clamped.SHAPES += "; kinks x=0"
        assert not check(clamped, x, methods=["precision"], raises=False).passed

    def test_a_module(self):
        torch = self.torch

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return 2 * x

            @staticmethod
            def backward(ctx, dy):
                return 2 * dy

        class Scaled(torch.nn.Module):
            SHAPES = "x[b, n] -> y[b, n]; dtypes float64"

            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.ones(6, dtype=torch.float64))

            def forward(self, x):
                return Double.apply(x) * self.w

        report = check(Scaled(), torch.tensor(X), vary=True)
        assert {"length 293 in place of 4", "length 1061 in place of 6"} < tried(report)
        assert not any("more leading axis" in what or "bfloat16" in what for what in tried(report))


def test_the_command_draws_declared_inputs(tmp_path, capsys):
    file = tmp_path / "sums_of_segments.py"
    file.write_text(
        "import numpy as np\n"
        'SHAPES = "x[n, d], cu[g+1]:offsets<n -> y[g, d]; dtypes float32"\n'
        "def forward(x, cu):\n"
        "    assert x.dtype == np.float32 or x.dtype == np.float64 or x.dtype == complex\n"
        "    return np.stack([x[a:b].sum(0) for a, b in zip(cu[:-1], cu[1:])]), cu\n"
        "def backward(dy, cu):\n"
        "    return np.repeat(dy, np.diff(cu), 0), None\n"
    )
    assert cli.main(["check", str(file), "--vary"]) == 0
    assert "float32, int64" in capsys.readouterr().out


FUNCTION = """
import torch

class Loss(torch.autograd.Function):
    SHAPES = "x[b, V>1], t[b]:int<V,ignore_index -> y[]"

    @staticmethod
    def forward(ctx, x, t, ignore_index=-100):
        if not (t == ignore_index).any():
            raise ValueError("no target is ignored")
        kept = t != ignore_index
        p, at = torch.softmax(x, -1), torch.where(kept, t, 0)
        ctx.save_for_backward(p, at, kept)
        return -(p[torch.arange(len(t)), at].log() * kept).sum()

    @staticmethod
    def backward(ctx, dy):
        p, at, kept = ctx.saved_tensors
        d = p.clone()
        d[torch.arange(len(at)), at] -= 1
        return dy * d * kept[:, None], None, None
"""


def test_inputs_are_drawn_for_the_option_that_is_given(tmp_path, capsys):
    pytest.importorskip("torch")
    (file := tmp_path / "ignoring_loss.py").write_text(FUNCTION)
    function = load("op", f"{file}:Loss")
    for ignored in ({}, {"ignore_index": -1}):
        assert check(function, **ignored, methods=["finite_difference"]).passed
    command = ["check", f"{file}:Loss", "--option", "ignore_index=-1", "--method", "finite_difference"]
    assert cli.main(command) == 0, capsys.readouterr().out


class TestTheIntegerOfAnOption:
    """The integer that is ignored is the value of an option."""

    SHAPES = "x[b, V>0], t[b]:int<V,ignore_index -> y[]"
    T = np.array([0, 2, -100, 5])

    def op(self, right=True, shapes=SHAPES):
        def forward(x, t, ignore_index=-100):
            kept = t != ignore_index
            at = np.arange(len(t)), np.where(kept, t, 0)
            p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
            return -(np.log(p[at]) * kept).sum(), (p, at, kept if right else t != -100)

        def backward(dy, saved):
            p, at, kept = saved
            dx = p.copy()
            dx[at] -= 1
            return dy * dx * kept[:, None], None

        return SimpleNamespace(forward=forward, backward=backward, SHAPES=shapes)

    def test_it_is_checked(self):
        assert check(self.op(), X, self.T).passed
        with pytest.raises(
            ValueError, match=r"from 0 to V − 1 = 5 or -7, as SHAPES declares; got -100 at index"
        ):
            check(self.op(), X, self.T, ignore_index=-7)

    @pytest.mark.parametrize("ignored", [-7, 2])
    def test_it_is_drawn(self, ignored):
        seen = set()
        op = self.op()
        op.forward = lambda x, t, ignore_index=-100: (
            seen.update(map(int, t)) or self.op().forward(x, t, ignore_index)
        )
        assert check(op, ignore_index=ignored, vary=False).passed
        assert ignored in seen

    def test_it_is_varied_with_the_option(self):
        names = tried(check(self.op(), X, self.T))
        assert {"-100 in t", "ignore_index=-99", "ignore_index=-101"} <= names
        assert not any("ignore_index = " in name for name in names)  # that of the declaration, once
        assert check(self.op(right=False), X, self.T, vary=False).passed
        report = check(self.op(right=False), X, self.T, raises=False)
        assert failed(report) == {"ignore_index=-99", "ignore_index=-101"}

    def test_it_may_be_none(self):
        op = self.op()
        op.forward = lambda x, t, ignore_index=None: self.op().forward(x, t, ignore_index)
        with pytest.raises(ValueError, match="from 0 to V − 1 = 5, as"):
            check(op, X, self.T)
        assert check(op, X, np.abs(self.T) % 6).passed

    def test_an_option_that_forward_does_not_have_is_named(self):
        with pytest.raises(
            ValueError, match="SHAPES: integers of forward and backward: expected some of ignore_index"
        ):
            check(self.op(shapes=self.SHAPES.replace("ignore_index", "ignored")), X, self.T)

    def test_a_function_for_tensors(self):
        torch = pytest.importorskip("torch")

        class Loss(torch.autograd.Function):
            SHAPES = TestTheIntegerOfAnOption.SHAPES

            @staticmethod
            def forward(ctx, x, t, ignore_index=-100):
                ctx.kept = t != ignore_index
                ctx.at = torch.arange(len(t)), torch.where(ctx.kept, t, 0)
                ctx.save_for_backward(torch.softmax(x, -1))
                return -(torch.log_softmax(x, -1)[ctx.at] * ctx.kept).sum()

            @staticmethod
            def backward(ctx, dy):
                dx = ctx.saved_tensors[0].clone()
                dx[ctx.at] -= 1
                return dy * dx * ctx.kept[:, None], None, None

        t = torch.tensor(self.T)
        assert "ignore_index=-99" in tried(check(Loss, torch.tensor(X), t))
        assert check(Loss, torch.tensor(X), torch.where(t < 0, 2, t), ignore_index=2).passed
