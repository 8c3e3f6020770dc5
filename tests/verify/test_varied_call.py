"""With `vary`, the call is varied too: each variation finds a backward that is wrong only there, and passes its twin."""

from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest

from backpass.verify import check
from backpass.verify.vary.options import other_values
from backpass.verify.vary.words import words_of

RNG = np.random.default_rng(5)
X, W, B = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5)), RNG.normal(size=5)


def judged(op, *inputs, **keywords):
    """Check without and with `vary`; return what the varied call says of a backward that passes without it."""
    assert check(op, *inputs, vary=False, **keywords).passed
    return check(op, *inputs, vary=True, raises=False, **keywords)


def found(report):
    return {row.how or row.reason.split(":")[0] for row in report.failed if row.method == "varied call"}


def pair(forward, right, wrong):
    return [SimpleNamespace(forward=forward, backward=backward) for backward in (right, wrong)]


def test_zero_does_not_become_negative():
    assert [[*other_values(value)] for value in (0, 3, -1)] == [[1], [4, 2], [0, -2]]


def affine(x, w, b=None, *, scaled=True, factor=0.5):
    y = (factor if scaled else 1.0) * (x @ w) + (0 if b is None else b)
    return y, (x, w, factor if scaled else 1.0, b)


def affine_back(dy, saved):
    x, w, factor, b = saved
    return factor * dy @ w.T, factor * x.T @ dy, None if b is None else dy.sum(0)


def test_options_are_flipped():
    def wrong(dy, saved):
        dx, dw, db = affine_back(dy, (*saved[:2], 0.5, saved[3]))  # always scaled
        return dx, dw, db

    right, other = pair(affine, affine_back, wrong)
    assert judged(right, X, W, B).passed
    assert found(judged(other, X, W, B)) == {"scaled=False", "factor=0.375"}


def test_optional_inputs_are_left_out():
    def wrong(dy, saved):
        x, w, factor, b = saved
        return (
            factor * dy @ w.T * (2 if b is None else 1),
            factor * x.T @ dy,
            None if b is None else dy.sum(0),
        )

    _, other = pair(affine, affine_back, wrong)
    assert found(judged(other, X, W, B)) == {"without b"}


def test_an_output_that_nobody_uses():
    def forward(x):
        return (np.tanh(x), x**2), x

    def right(dys, x):
        return dys[0] * (1 - np.tanh(x) ** 2) + dys[1] * 2 * x

    def wrong(dys, x):
        return right(dys, x) if np.any(dys[1]) else 0 * x  # returns early

    one, other = pair(forward, right, wrong)
    assert judged(one, X).passed
    assert found(judged(other, X)) == {"output 2 is not used"}


@pytest.mark.parametrize("handled", [True, False])
def test_a_function_whose_second_output_is_not_used(handled):
    torch = pytest.importorskip("torch")

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x)
            return 3 * x, x * x

        @staticmethod
        def backward(ctx, first, second):
            (x,) = ctx.saved_tensors
            if handled and second is None:
                return 3 * first
            return 2 * x * second if handled and first is None else 3 * first + 2 * x * second

    assert judged(Two, torch.tensor(X)).passed is handled


@pytest.mark.parametrize("right", [True, False])
def test_one_tensor_given_twice(right):
    torch = pytest.importorskip("torch")

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.same = a is b
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, dy):
            a, b = ctx.saved_tensors
            return dy * b, None if ctx.same and not right else dy * a

    assert judged(Product, torch.tensor(X), torch.tensor(X + 1)).passed is right


def test_a_cotangent_of_a_scaled_loss():
    right, wrong = pair(
        lambda x: (np.tanh(x), np.tanh(x)),
        lambda dy, y: dy * (1 - y**2),
        lambda dy, y: np.clip(dy, -1e3, 1e3) * (1 - y**2),
    )
    assert judged(right, X).passed
    assert {row.reason.split(":")[0] for row in judged(wrong, X).failed} == {"dy × 65,536"}


def test_a_length_of_one():
    def wrong(dy, saved):
        x, w, factor, _ = saved
        return np.squeeze(factor * dy @ w.T), factor * x.T @ dy, dy.sum(0)

    report = judged(SimpleNamespace(forward=affine, backward=wrong), X, W, B)
    assert {row.how for row in report.failed if row.method == "varied inputs"} >= {"length 1 in place of 4"}


def test_a_backward_that_raises_with_another_option_is_not_accused():
    class Dropout:
        def __init__(self):
            self.mask = None

        def forward(self, x, train=True):
            if not train:
                return 0.7 * x
            self.mask = np.random.rand(*x.shape) > 0.3
            return x * self.mask

        def backward(self, dout):
            return dout * self.mask

    report = check(Dropout(), X, vary=True)
    (row,) = (row for row in report.rows if "train=False" in row.reason)
    assert row.verdict == "not run" and "backward raises an error (TypeError" in row.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_a_word_of_an_option(wrong):
    def forward(x, t, reduction="mean"):
        each = (x - t) ** 2
        reduced = {"mean": each.mean, "sum": each.sum, "none": each.copy}[reduction]()
        return np.asarray(reduced), (x, t, reduction)

    def back(dy, saved):
        x, t, reduction = saved
        count = x.size if reduction == "mean" or (wrong and reduction == "sum") else 1
        return dy * 2 * (x - t) / count, -dy * 2 * (x - t) / count

    op = SimpleNamespace(forward=forward, backward=back)
    report = check(op, X, X + 1 + X**2, vary=True, raises=False)
    assert found(report) == ({"reduction='sum'"} if wrong else set()), str(report)


def test_defaults_of_a_function_are_varied():
    torch = pytest.importorskip("torch")

    class Scaled(torch.autograd.Function):
        wrong = False

        @staticmethod
        def forward(ctx, x, factor=2.0, negate=False):
            ctx.factor = 2.0 if Scaled.wrong else factor
            ctx.sign = -1 if negate else 1
            return ctx.sign * factor * x

        @staticmethod
        def backward(ctx, dy):
            return ctx.sign * ctx.factor * dy, None, None

    assert check(Scaled, torch.tensor(X), vary=True).passed
    Scaled.wrong = True
    assert found(judged(Scaled, torch.tensor(X))) == {"factor=1.5"}


def test_a_convention_is_not_judged_by_the_operator_of_another_call():
    """A padding row gets no gradient; with another padding index neither autograd nor the operator says so."""
    torch = pytest.importorskip("torch")

    class Embedding(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, at, padding_idx=0):
            ctx.save_for_backward(at)
            ctx.shape, ctx.padding = w.shape, padding_idx
            return w[at]

        @staticmethod
        def backward(ctx, dy):
            (at,) = ctx.saved_tensors
            dw = dy.new_zeros(ctx.shape).index_add(0, at, dy)
            dw[ctx.padding] = 0
            return dw, None, None

    w, at = torch.tensor(RNG.normal(size=(5, 3))), torch.tensor([0, 2, 2, 1])

    def operator(w, at, *options):
        return torch.nn.functional.embedding(at, w, padding_idx=0)

    why = {"w": "row 0 is padding"}
    assert check(Embedding, w, at, operator=operator, conventions=why, vary=True).passed


def test_a_fault_of_a_changed_option_is_described():
    def forward(x, reduction="mean"):
        y = np.sin(x)
        return (y.mean() if reduction == "mean" else y.sum()), x

    op = SimpleNamespace(forward=forward, backward=lambda dy, x: dy * np.cos(x) / x.size)
    (row, *_) = (row for row in check(op, X, raises=False).failed if row.variation == "reduction='sum'")
    assert f"got = 1/{X.size} × reference" in row.reason


def pooled(x, size=(2, 3)):
    """The sum over windows of this size."""
    (h, w), (rows, columns) = size, x.shape
    return x.reshape(rows // h, h, columns // w, w).sum((1, 3)), size


def padded(x, width=((0, 1), (2, 0))):
    return np.pad(x, width), (x.shape, width)


OPTIONS = {
    "a window's two lengths are exchanged": (
        pooled,
        lambda dy, size: dy.repeat(size[0], 0).repeat(size[1], 1),
        lambda dy, _: dy.repeat(2, 0).repeat(3, 1),
        (RNG.normal(size=(6, 6)),),
        {"size=(3, 2)", "size=(1, 3)"},
    ),
    "an order of axes that is not its own inverse": (
        lambda x, axes=(0, 2, 1): (x.transpose(axes), axes),
        lambda dy, axes: dy.transpose(np.argsort(axes)),
        lambda dy, axes: dy.transpose(axes),
        (RNG.normal(size=(2, 2, 2)),),
        {"axes=(1, 2, 0)"},
    ),
    "axes of a sum": (
        lambda x, dims=(0, 1): (x.sum(dims), (x.shape, dims)),
        lambda dy, saved: np.broadcast_to(np.expand_dims(dy, saved[1]), saved[0]).copy(),
        lambda dy, saved: np.broadcast_to(dy, saved[0]).copy(),
        (RNG.normal(size=(3, 3, 3)),),
        {"dims=(0, 2)", "dims=(-1, 1)"},
    ),
    "widths of a border": (
        padded,
        lambda dy, saved: dy[tuple(slice(a, a + n) for n, (a, _) in zip(*saved, strict=True))],
        lambda dy, saved: dy[: saved[0][0], 2 : 2 + saved[0][1]],
        (X,),
        {"width=((2, 0), (0, 1))", "width=((0, 1), (0, 2))", "width=((0, 1), (1, 0))"},
    ),
    "the lower of two bounds": (
        lambda x, bounds=(-0.5, 0.5): (np.clip(x, *bounds), (x, bounds)),
        lambda dy, saved: dy * ((saved[0] > saved[1][0]) & (saved[0] < saved[1][1])),
        lambda dy, saved: dy * ((saved[0] > -0.5) & (saved[0] < 0.5)),
        (RNG.normal(size=(9, 9)),),
        {"bounds=(-0.375, 0.5)"},
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_several_numbers(case):
    forward, right, wrong, inputs, seen = OPTIONS[case]
    right, wrong = pair(forward, right, wrong)
    assert check(right, *inputs, vary=True).passed
    assert check(wrong, *inputs, vary=False).passed
    assert found(check(wrong, *inputs, raises=False, explain=False)) == seen


def test_what_cannot_be_tried_is_listed():
    def forward(x, act="gelu", weight=None, scale=2.0):
        return scale * np.tanh(x), (x, scale)

    def backward(dy, saved):
        return dy * saved[1] / np.cosh(saved[0]) ** 2

    report = check(SimpleNamespace(forward=forward, backward=backward), np.ones((2, 3)))
    reasons = {row.variation: row.reason for row in report.rows if row.verdict == "not run" and row.variation}
    assert "its other values are not known" in reasons["act other than 'gelu'"]
    assert reasons["with weight"] == "with weight: it was not given"


# Words of an option that only forward's source shows


TABLE = {"sinh": np.sinh, "twice": lambda x: 2 * x}
KINDS = ["sinh", "twice"]
Kind = Literal["sinh", "twice"]


def by_table(x, kind="sinh"):
    return TABLE[kind](x), (x, kind)


def by_own_table(x, kind="sinh"):
    functions = {"sinh": np.sinh, "twice": lambda x: 2 * x}
    return functions.get(kind)(x), (x, kind)


def by_comparison(x, kind="sinh"):
    if kind.lower() == "sinh":
        y = np.sinh(x)
    elif "twice" == kind:
        y = 2 * x
    else:
        raise ValueError(f"kind: expected one of {KINDS}; got {kind}")
    return y, (x, kind)


def by_membership(x, kind="sinh"):
    if kind not in KINDS:
        raise ValueError(kind)
    return np.sinh(x) if kind[1] == "i" else 2 * x, (x, kind)


def by_match(x, kind="sinh"):
    match kind:
        case "sinh":
            y = np.sinh(x)
        case "twice" | "double":
            y = 2 * x
        case _:
            raise ValueError(kind)
    return y, (x, kind)


def by_annotation(x, kind: Literal["sinh", "twice"] | None = "sinh"):
    return np.sinh(x) if kind[1] == "i" else 2 * x, (x, kind)


def by_the_name_of_an_annotation(x, kind: Kind = "sinh"):
    return np.sinh(x) if kind[1] == "i" else 2 * x, (x, kind)


def chosen(z, of):
    return np.sinh(z) if of == "sinh" else by_comparison(z, of)[0]


def by_a_helper(x, kind="sinh"):
    return chosen(x, of=kind), (x, kind)


WRITTEN = [
    by_table,
    by_own_table,
    by_comparison,
    by_membership,
    by_match,
    by_annotation,
    by_the_name_of_an_annotation,
    by_a_helper,
    lambda x, kind="sinh": ({"sinh": np.sinh, "twice": lambda x: 2 * x}[kind](x), (x, kind)),
]


@pytest.mark.parametrize("forward", WRITTEN, ids=lambda forward: forward.__name__)
def test_words_that_the_source_shows(forward):
    def backward(factor):
        return lambda dy, saved: dy * np.cosh(saved[0]) if saved[1] == "sinh" else factor * dy

    right = check(SimpleNamespace(forward=forward, backward=backward(2)), X)
    assert "kind='twice'" in {row.variation for row in right.rows if row.verdict == "passed"}
    assert not [row for row in right.rows if "its other values are not known" in row.reason]
    wrong = check(SimpleNamespace(forward=forward, backward=backward(3)), X, raises=False)
    assert found(wrong) == {"kind='twice'"} | ({"kind='double'"} if forward is by_match else set())


def test_words_of_a_layer():
    class Layer:
        def forward(self, x, kind="sinh"):
            y, self.saved = by_comparison(x, kind)
            return y

        def backward(self, dy):
            x, kind = self.saved
            return dy * np.cosh(x) if kind == "sinh" else 3 * dy

    assert found(check(Layer(), X, raises=False)) == {"kind='twice'"}


def test_strings_of_other_names_are_not_words():
    def forward(x, kind="tanh", other="sum"):
        if other == "product" or kind is None:
            raise ValueError("kind: unknown")
        return np.einsum("ij->ij", np.tanh(x)), x

    assert words_of(forward, "kind") == ()
    assert words_of(forward, "other") == ("product",)
    assert words_of(np.tanh, "x") == ()
    assert words_of(None, "x") == ()


def test_a_forgotten_word_is_named():
    def forward(x, kind="tanh"):
        return x * {"tanh": np.tanh, "sine": np.sin}[kind](x), x

    op = SimpleNamespace(forward=forward, backward=lambda dy, x: dy * (np.sin(x) + x * np.cos(x)))
    report = check(op, X, raises=False, vary=False)
    assert {row.reason for row in report.failed} == {
        "got is forward's gradient with kind='sine' in place of 'tanh'"
    }
