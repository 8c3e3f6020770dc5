"""Run a layer once, to see which of its numbers forward reads and backward writes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace, size
from backpass.verify.attributes import Path, copied, held, numbers, numbers_in, put
from backpass.verify.gradient_names import names_gradient, plain
from backpass.verify.outputs import Malformed
from backpass.verify.seeded import the_same_numbers
from backpass.verify.signatures import parameters_of

# Where a forward that returns nothing keeps y.
OUTPUTS = ("output", "outputs", "out", "y")


class Raised(Exception):
    """The layer's own code raised."""


class Tried(NamedTuple):
    """The results of a forward and a backward, the paths of numbers that forward left
    as they were, and of those that it replaced by equal ones, all numbers after the
    backward, the paths of those that it wrote, and the shapes of inputs and outputs."""

    y: Any
    returned: Any
    kept: set[Path]
    equal: set[Path]
    after: dict[Path, Array | float]
    written: set[Path]
    shapes: set[tuple[int, ...]]


def once(
    layer: Any, inputs: Sequence[Any], options: Mapping[str, Any], cotangents: int
) -> Tried:
    own = copied(layer)
    before = dict(numbers_in(own))
    values = {path: numbers(x) for path, x in before.items()}
    try:
        y = output_of(run_copy(own, inputs, options), cotangents)
        between = dict(numbers_in(own))
        unchanged = {
            path
            for path in before
            if path in between and same(numbers(between[path]), values[path])
        }
        kept = {path for path in unchanged if between[path] is before[path]}
        equal = {
            path
            for path in unchanged - kept
            if _matters(layer, path, inputs, options, numbers(_first(y)))
        }
        values = {path: numbers(x) for path, x in between.items()}
        parts = y if isinstance(y, tuple) else (y,)
        dys = [namespace(part).ones_like(part) for part in parts]
        returned = backward_of(own, dys[:cotangents])
        after = dict(numbers_in(own))
        written = {
            path
            for path, x in after.items()
            if between.get(path) is not x or not same(numbers(x), values[path])
        }
        shapes = {tuple(x.shape) for x in (*inputs, *parts) if is_array(x)}
        return Tried(y, returned, kept, equal, after, written, shapes)
    except Malformed:
        raise
    except Exception as error:
        raise Raised from error


def run_copy(layer: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    with the_same_numbers():
        return forward_of(layer, [*map(copy.deepcopy, inputs)], options)


def forward_of(layer: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return y, which a forward that returns nothing keeps in an attribute."""
    y = layer.forward(*inputs, **options)
    kept = vars(layer) if y is None and hasattr(layer, "__dict__") else {}
    return next((kept[name] for name in OUTPUTS if name in kept), y)


def backward_of(layer: Any, dys: Sequence[Any]) -> Any:
    """Return the gradients of the inputs, which a backward that returns nothing may
    keep in attributes. Those of a dictionary come first, and then the others."""
    returned = layer.backward(*dys)
    if isinstance(returned, Mapping):
        return _in_order(layer, returned)
    kept = vars(layer) if returned is None and hasattr(layer, "__dict__") else {}
    found = {
        key: value
        for names in _names_of_inputs(layer)
        for name in names
        for key, value in kept.items()
        if names_gradient(key, name) and is_array(value)
    }
    return tuple(found.values()) or returned


def _names_of_inputs(layer: Any) -> list[list[str]]:
    """Return the names of each input of forward; a single one may have usual names."""
    names = [p.name for p in parameters_of(layer.forward) or []]
    return [[of] for of in names] if len(names) > 1 else [[*names, "x", "input"]]


def _in_order(layer: Any, returned: Mapping[str, Any]) -> Any:
    """Return the gradients of the inputs in their order, and those of the parameters
    as a dictionary; the dictionary itself if it has no gradient of a parameter."""
    rest, first = dict(returned), []
    for names in _names_of_inputs(layer):
        keys = (
            key
            for name in names
            for key in rest
            if names_gradient(key, name) or plain(key) == plain(name)
        )
        key = next(keys, None)
        first.append(None if key is None else rest.pop(key))
    if len(rest) == 1 and isinstance(only := next(iter(rest.values())), Mapping):
        rest = dict(only)
    return (*first, rest) if rest else returned


def _first(y: Any) -> Any:
    return y[0] if isinstance(y, tuple) else y


def _matters(
    layer: Any,
    path: Path,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    y: np.ndarray,
) -> bool:
    """Whether forward reads the array that a path holds before the forward."""
    other = copied(layer)
    put(other, path, 1.5 * held(other, path) + 0.5)
    try:
        changed = numbers(_first(run_copy(other, inputs, options)))
    except Exception:
        return False
    return not same(changed, y)


def same(x: np.ndarray, other: np.ndarray) -> bool:
    return x.shape == other.shape and np.array_equal(x, other, equal_nan=True)


def output_of(y: Any, cotangents: int) -> Any:
    """Return y, with a loss as an array. Of more outputs than cotangents, those without
    one are left out. Raise Malformed if there are fewer."""
    if isinstance(y, tuple) and 0 < cotangents <= len(y) and is_array(y[0]):
        return y[:cotangents] if cotangents > 1 else y[0]
    if cotangents > 1:
        wanted = f"{cotangents} outputs"
    elif is_array(y) and (cotangents or size(y.shape) == 1):
        return y
    elif isinstance(y, float | np.floating):
        return np.asarray(y, np.result_type(y, np.float64))
    else:
        wanted = "y, or an attribute output," if cotangents else "a loss of one element"
    takes = f"{cotangents} cotangents" if cotangents > 1 else "only dy"
    takes = takes if cotangents else "no dy"
    got = f"an array of shape {list(y.shape)}" if is_array(y) else type(y).__name__
    raise Malformed(
        f"forward: expected {wanted} because backward takes {takes}, as in a layer "
        f"that keeps its state; got {got}"
    )
