"""Operations that take ``wanted`` and do not do what it says."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.ops import attention, layer_norm, linear
from backpass.verify import check

RNG = np.random.default_rng(0)
X, W, B = RNG.standard_normal((3, 5)), RNG.standard_normal((5, 7)), RNG.standard_normal(7)


def contract(op, *inputs):
    """What the contract's row says of an operation whose gradients are right."""
    report = check(op, *inputs, raises=False, methods=["contract", "finite_difference"])
    (row,) = report.of("contract")
    assert [failed.method for failed in report.failed] in ([], ["contract"])
    return row.reason


def changed(op=linear, **parts):
    return SimpleNamespace(**{**vars(op), **parts})


def backward(then, op=linear):
    """The operation with ``then`` applied to its gradients and to what is wanted."""

    def of_all(dy, saved, *, wanted=None):
        return tuple(then(op.backward(dy, saved, wanted=wanted), saved.wanted if wanted is None else wanted))

    return changed(op, backward=of_all)


def test_the_operations_do():
    assert contract(linear, X, W, B) == contract(linear, X, W) == ""


def test_it_need_not_be_taken():
    plain = SimpleNamespace(
        forward=lambda x, w: linear.forward(x, w),
        backward=lambda dy, saved: linear.backward(dy, saved)[:2],
    )
    assert contract(plain, X, W) == ""


def test_an_unwanted_gradient_is_none():
    def all_of_them(dy, saved, *, wanted=None):
        return linear.backward(dy, saved)

    says = contract(changed(backward=all_of_them), X, W)
    assert "dx: expected None when backward is given wanted=(); got an array" in says
    assert "when forward is given wanted=();" not in says


def test_a_wanted_gradient_is_not_left_out():
    nothing = backward(lambda found, wanted: found if len(wanted) > 1 else [None] * 3)
    assert "dw differs when forward is given wanted=('w',)" in contract(nothing, X, W)


def test_a_wanted_gradient_stays_the_same():
    doubled = backward(lambda found, wanted: [g if "w" in wanted or g is None else 2 * g for g in found])
    assert contract(doubled, X, W).split("; ") == [
        "dx differs when forward is given wanted=('x',)",
        "dx differs when backward is given wanted=('x',)",
        "dx differs when forward is given wanted=('x', 'w') and backward is given wanted=('x',)",
    ]


def test_what_forward_does_not_keep_is_missed():
    def keeps_too_little(x, w, b=None, *, wanted=None):
        y, saved = linear.forward(x, w, b, wanted=wanted)
        return y, saved if len(saved.wanted) > 1 else saved._replace(x=None)

    says = contract(changed(forward=keeps_too_little), X, W)
    assert "fails when forward is given wanted=('w',): " in says


def everything(dy, saved, *, wanted=None):
    """Computes all gradients and returns those that are wanted."""
    wanted = saved.wanted if wanted is None else wanted
    found = layer_norm.backward(dy, saved)
    return tuple(g if name in wanted else None for name, g in zip("xwb", found, strict=True))


def test_what_is_not_wanted_is_not_computed():
    op = changed(layer_norm, backward=everything)
    w = RNG.standard_normal(5)
    says = contract(op, X, w, w)
    assert says.endswith("operations when backward is given wanted=(); backward_flops says 0")


def test_without_a_formula_or_shapes_nothing_is_counted():
    op = {**vars(layer_norm), "backward": everything}
    w = RNG.standard_normal(5)
    for part in ("backward_flops", "SHAPES"):
        without = SimpleNamespace(**{key: value for key, value in op.items() if key != part})
        assert contract(without, X, w, w) == ""


def test_a_formula_that_is_wrong_of_all_gradients_says_nothing_of_some():
    w = RNG.standard_normal(5)
    wrong = changed(layer_norm, backward_flops=lambda m, n, wanted=None: 0)
    assert contract(wrong, X, w, w) == ""


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_an_option_of_that_name_in_one_part_alone_is_an_option(part):
    op = changed(**{part: lambda *args: getattr(linear, part)(*args)})
    assert contract(op, X, W) == ""


@pytest.mark.parametrize("wanted", [("x",), None])
def test_it_is_not_an_option_of_check(wanted):
    for given in ({"options": {"wanted": wanted}}, {"wanted": wanted}):
        with pytest.raises(
            TypeError, match=r"^wanted: expected no value, because check itself .*; got "
        ) as raised:
            check(linear, X, W, raises=False, **given)
        assert str(raised.value).endswith(f"got {wanted!r}")


def test_it_is_one_if_backward_does_not_take_it():
    own = SimpleNamespace(
        forward=lambda x, *, wanted: (x * wanted, wanted), backward=lambda dy, factor: dy * factor
    )
    assert check(own, X, wanted=1.7).passed


def test_softmax_is_not_differentiated_for_the_values_alone():
    """The mistake that no gradient shows: attention that computes the scores' gradient for dv."""

    def backward(dy, saved, *, wanted=None):
        found = attention.backward(dy, saved)
        names = saved.wanted if wanted is None else wanted
        return tuple(
            g if name in names else None
            for name, g in zip(("q", "k", "v", "bias", "sink"), found, strict=True)
        )

    q, k, v = (RNG.standard_normal((2, s, d)) for s, d in ((3, 4), (5, 4), (5, 6)))
    assert "operations when backward is given wanted=" in contract(
        changed(attention, backward=backward), q, k, v
    )


def test_backward_may_be_asked_for_less_than_forward():
    def told_once(dy, saved, *, wanted=None):
        if wanted is not None and len(saved.wanted) < 3 and wanted != saved.wanted:
            raise RuntimeError("asked twice")
        return linear.backward(dy, saved, wanted=wanted)

    says = contract(changed(backward=told_once), X, W, B)
    assert (
        "when forward is given wanted=('x', 'w') and backward is given wanted=('x',)" not in says
        or "asked twice" in says
    )
    assert "asked twice" in says


def test_a_pair_of_four_is_tried():
    """None, each alone and all but each one do not reach it."""
    inputs = [RNG.standard_normal(shape) for shape in ((2, 4, 3), (2, 5, 3), (2, 5, 3), (2, 4, 5))]

    def wrong_for_a_pair(dy, saved, *, wanted=None):
        found = attention.backward(dy, saved, wanted=wanted)
        chosen = saved.wanted if wanted is None else wanted
        return tuple(7 * g if g is not None and len(chosen) == 2 else g for g in found)

    assert "differs when" in contract(changed(attention, backward=wrong_for_a_pair), *inputs)


def test_dy_is_not_modified_where_less_is_wanted():
    def in_place(dy, saved, *, wanted=None):
        found = linear.backward(dy, saved, wanted=wanted)
        if wanted == ("w",):
            dy *= 0
        return found

    assert "backward modifies dy when backward is given wanted=('w',)" in contract(
        changed(backward=in_place), X, W
    )


def test_an_operation_that_cannot_be_counted_is_not_accused():
    def by_einsum(x, w, *, wanted=None):
        _, saved = linear.forward(x, w, wanted=wanted)
        return np.einsum("mn,np->mp", x, w), saved

    right = changed(
        SHAPES="x[m, n], w[n, p] -> y[m, p]",
        forward=by_einsum,
        backward=lambda dy, saved, *, wanted=None: linear.backward(dy, saved, wanted=wanted)[:2],
    )
    assert contract(right, X, W) == ""
    assert contract(changed(backward_flops=lambda m, n, p: 0), X, W) == ""


def test_wanted_need_not_be_keyword_only():
    def all_of_them(dy, saved, wanted=None):
        return linear.backward(dy, saved)

    assert "expected None" in contract(changed(backward=all_of_them), X, W)
