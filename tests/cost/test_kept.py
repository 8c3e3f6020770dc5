"""The bytes of `saved`: each storage once, parameters apart."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from backpass import cost


class Saved(NamedTuple):
    """Whatever a test puts there."""

    parts: tuple


def test_tables_of_constants_are_not_activations():
    """RoPE's cosines and sines: a step does not add to them."""
    kept = cost.memory("rope", (2, 3, 5, 8), (5, 4), (5, 4))
    assert (kept.activations, kept.parameters) == (0, 2 * 5 * 4 * 8)
    assert cost.saved_bytes("rope", (2, 3, 5, 8), (5, 4), (5, 4)) == 0


def keeping(*make):
    """An operation that saves what the functions make of its input."""

    class Op:
        forward = staticmethod(lambda x: (x, Saved(tuple(part(x) for part in make))))
        backward = staticmethod(lambda dy, saved: dy)

    return Op


def both(*shape):
    x = np.random.default_rng(0).standard_normal(shape)
    return [x, torch.tensor(x)]


@pytest.mark.parametrize(
    ("stem", "shapes", "wanted", "elements"),
    [
        ("linear", [(6, 5), (5, 4)], ("x",), 0),
        ("linear", [(6, 5), (5, 4)], ("w",), 6 * 5),
        ("layer_norm", [(6, 5), (5,), (5,)], ("w", "b"), 6 * 5),
        ("layer_norm", [(6, 5), (5,), (5,)], ("b",), 0),
        ("matmul", [(6, 5), (5, 4)], ("b",), 6 * 5),
        ("attention", [(1, 3, 2), (1, 5, 2), (1, 5, 4)], ("v",), 3 * 5),
        ("attention", [(1, 3, 2), (1, 5, 2), (1, 5, 4)], ("k",), 3 * 2 + 5 * 4 + 3 * 5),
        ("flash_attention", [(1, 3, 2), (1, 5, 2), (1, 5, 4)], ("v",), 3 * 2 + 5 * 2 + 3),
        ("feed_forward", [(6, 5), (5, 7), (7, 5)], ("w_down",), 6 * 7),
        ("feed_forward", [(6, 5), (5, 7), (7, 5)], ("x",), 6 * 7),
    ],
)
def test_what_only_an_unwanted_gradient_needs_is_not_kept(stem, shapes, wanted, elements):
    assert cost.saved_bytes(stem, *shapes, wanted=wanted) == 8 * elements


@pytest.mark.parametrize(
    ("stem", "shapes", "elements"),
    [
        ("softmax", [(6, 5)], 30),
        ("linear", [(2, 3, 5), (5, 4), (4,)], 30),
        ("matmul", [(2, 1, 3, 4), (5, 4, 2)], 24 + 40),
        ("residual", [(3, 4), (3, 4)], 0),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_operations(stem, shapes, elements, dtype):
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    expected = elements * np.dtype(dtype).itemsize
    assert cost.saved_bytes(stem, *arrays) == expected
    assert cost.saved_bytes(stem, *map(torch.tensor, arrays)) == expected
    if dtype == "float64":
        assert cost.saved_bytes(stem, *shapes) == expected


def test_options_that_are_not_arrays_take_no_bytes():
    assert cost.saved_bytes("scale", (3, 4), factor=0.5) == 0
    assert cost.saved_bytes("fork", (3, 4), copies=3) == 0


def test_parameters_are_listed_apart():
    found = cost.memory("linear", (2, 5), (5, 4), (4,))
    assert (found.activations, found.parameters) == (2 * 5 * 8, 5 * 4 * 8)
    assert [str(kept) for kept in found.arrays] == ["x[2, 5] float64", "w[5, 4] float64"]


def test_bytes_at_any_size_without_the_memory():
    meta = torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta")
    found = cost.memory("linear", meta, torch.empty(8192, 4096, dtype=torch.bfloat16, device="meta"))
    assert (found.activations, found.parameters) == (8192 * 8192 * 2, 8192 * 4096 * 2)


@pytest.mark.parametrize("x", both(6, 4), ids=["numpy", "torch"])
def test_views_share(x):
    transposed, row, again = (lambda x: x.swapaxes(0, 1)), (lambda x: x[2]), (lambda x: x)
    assert cost.saved_bytes(keeping(again, transposed, row), x) == 6 * 4 * 8
    assert cost.saved_bytes(keeping(row), x) == 6 * 4 * 8  # a view keeps its whole storage alive
    assert cost.saved_bytes(keeping(lambda x: x + 1, lambda x: x + 2), x) == 2 * 6 * 4 * 8


def test_an_expanded_view_counts_its_base():
    x, t = both(6, 1)
    assert cost.saved_bytes(keeping(lambda x: np.broadcast_to(x, (5, 6, 100))), x) == 6 * 8
    assert cost.saved_bytes(keeping(lambda t: t.expand(5, 6, 100)), t) == 6 * 8


def test_what_parts_of_a_composite_save_is_found():
    inner = Saved((np.ones(3), 7, None, "text", True))
    found = cost.memory(keeping(lambda x: inner, lambda x: [x, (x.T,)]), (2, 3))
    assert found.activations == 3 * 8 + 6 * 8
    assert [kept.name for kept in found.arrays] == ["parts.0.parts.0", "parts.1.0"]


@dataclass
class Kept:
    x: np.ndarray
    n: int


def saving(make):
    return SimpleNamespace(forward=lambda x: (x * 2, make(x)), backward=lambda dy, saved: 2 * dy)


@pytest.mark.parametrize(
    "make",
    [lambda x: {"x": x, "n": 3}, lambda x: Kept(x, 3), lambda x: [(x, 3), {"again": x}]],
    ids=["dict", "dataclass", "nested"],
)
def test_arrays_in_any_container_are_counted(make):
    assert cost.saved_bytes(saving(make), np.ones((4, 5))) == 4 * 5 * 8


def test_an_object_that_hides_arrays_is_rejected():
    with pytest.raises(
        TypeError, match=r"saved: expected arrays, alone or in a tuple, .*; got SimpleNamespace"
    ):
        cost.saved_bytes(saving(lambda x: SimpleNamespace(x=x)), np.ones((4, 5)))


def test_a_strided_view_counts_the_storage_behind_it():
    strided = np.lib.stride_tricks.as_strided
    op = saving(lambda x: strided(x, (50, 20), (0, 8)))
    assert cost.saved_bytes(op, np.ones((4, 5))) == 4 * 5 * 8
