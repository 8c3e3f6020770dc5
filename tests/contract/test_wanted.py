"""Which gradients are wanted: names in, names out, and what that leaves to save and to count."""

import numpy as np
import pytest
import sympy

from backpass.contract.shapes import Outline, check_cotangent, kind
from backpass.contract.wanted import check_wanted, gradients_of, kept, narrowed, needed, part_of, sum_wanted
from backpass.ops import linear, rope

SHAPES = "x[*, n], w[n, p], t[*]:int, b[p]? -> y[*, p]"


def test_none_is_all_that_have_a_gradient_and_were_given():
    assert check_wanted(SHAPES, None) == ("x", "w", "b")
    assert check_wanted(SHAPES, None, b=np.ones(2)) == ("x", "w", "b")
    assert check_wanted(SHAPES, None, b=None) == check_wanted(SHAPES, None, b=False) == ("x", "w")


@pytest.mark.parametrize("collection", [tuple, list, set, dict.fromkeys])
def test_names_come_in_any_collection_and_go_in_forwards_order(collection):
    assert check_wanted(SHAPES, collection(["b", "x"])) == ("x", "b")
    assert check_wanted(SHAPES, collection(["b", "x"]), b=None) == ("x",)
    assert check_wanted(SHAPES, collection([])) == ()


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (
            "x",
            TypeError,
            r"wanted: expected a collection of names, such as \('x',\), or None for all; got 'x'",
        ),
        (True, TypeError, "wanted: expected a collection of names, .*; got bool"),
        (("t",), ValueError, "wanted: expected names among x, w, b; got 't'"),
        (("x", 3), ValueError, "wanted: expected names among x, w, b; got 3"),
    ],
)
def test_anything_else_is_rejected(wanted, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        check_wanted(SHAPES, wanted)
    with pytest.raises(error, match=f"^{message}$"):
        sum_wanted(wanted, {"x w": 1, "b": 2})


def test_a_backward_may_be_asked_for_less_than_its_forward_and_no_more():
    _, saved = linear.forward(np.ones((2, 3)), np.ones((3, 4)), wanted=("x", "w"))
    assert narrowed(saved, linear.Saved, None) is saved and saved.wanted == ("x", "w")
    assert narrowed(saved, linear.Saved, {"w"}) == saved._replace(wanted=("w",))
    with pytest.raises(
        ValueError, match="expected names among x, w, for which forward saved what they need; got 'b'"
    ):
        narrowed(saved, linear.Saved, {"b"})
    with pytest.raises(ValueError, match=r"expected names among none, for which .*; got 'x'"):
        narrowed(saved._replace(wanted=()), linear.Saved, {"x"})


def test_an_array_is_saved_if_a_wanted_gradient_needs_it():
    x, w = np.ones((2, 3)), np.ones((3, 4))
    saved = linear.Saved(x, w, ("w",))
    assert needed(saved, {"x": "w b", "w": "x"}) == saved._replace(w=kept(w, needed=False))
    assert needed(saved, {"x": "x w", "w": "w"}) is saved
    assert needed(saved._replace(w=None), {"x": "", "w": ""}) == (kept(x, needed=False), None, ("w",), False)


def test_an_outline_is_an_array_without_its_numbers():
    x = np.ones((2, 3), np.float32)
    assert kept(x, needed=True) is x and kept(None, needed=False) is None
    outline = kept(x, needed=False)
    assert outline == Outline((2, 3), *kind(x)) and kind(outline) == kind(x)
    check_cotangent(np.ones(4, np.float32), (4,), like=outline)
    with pytest.raises(TypeError, match="dy: expected forward's dtype, float32; got float64"):
        check_cotangent(np.ones(4), (4,), like=outline)


def test_a_part_is_asked_for_what_lies_behind_the_wanted_gradients():
    parts = {"x": "x w_up", "w": "w_down"}
    assert part_of(("w_up",), **parts) == ("x",)
    assert part_of(("w_down", "x"), **parts) == ("x", "w")
    assert part_of(("b",), **parts) == part_of((), **parts) == ()


def test_a_part_of_which_nothing_is_wanted_is_not_called():
    assert gradients_of(linear, None, None, ()) == (None, None, None)
    x, w = np.ones((2, 3)), np.ones((3, 4))
    y, saved = linear.forward(x, w)
    dx, dw, db = gradients_of(linear, y, saved, ("x",))
    assert dx.shape == x.shape and dw is db is None


def test_a_constant_of_a_part_has_no_gradient_to_leave_out():
    assert gradients_of(rope, None, None, ()) == (None,)


def test_a_cost_counts_once_if_one_of_its_gradients_is_wanted():
    n = sympy.Symbol("n")
    costs = {"x w": n, "x": 2, "w": 3 * n}
    assert sum_wanted(None, costs) == 4 * n + 2
    assert sum_wanted(("x",), costs) == n + 2
    assert sum_wanted(("x", "w"), costs) == 4 * n + 2
    assert sum_wanted((), costs) == 0
