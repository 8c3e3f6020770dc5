"""Convert a layer that keeps its state into a forward and a backward of its inputs and
its parameters.

A parameter is an array or a Python float that the layer or a sub-layer holds, in an
attribute or in its lists, tuples, and dictionaries. Forward leaves it as it was, and
after a backward its gradient is held there too, or is returned.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace, size
from backpass.contract.shapes import parse
from backpass.verify.attributes import (
    Path,
    copied,
    held,
    numbers,
    numbers_in,
    put,
    shared,
)
from backpass.verify.convert import is_floating, is_torch, to_kind_of
from backpass.verify.outputs import Malformed
from backpass.verify.parameters import (
    Parameter,
    Tried,
    aliases,
    in_the_order_of,
    is_among,
    names_of,
    parameters_of,
    returned_by,
    with_a_number,
)
from backpass.verify.subject import called, input_names

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Layer(NamedTuple):
    """The two functions of a layer, its parameters, the declaration of all shapes, and
    the names of arrays like parameters whose gradient was not found.

    ``again(first, values, dy, **options)`` calls forward and backward on one layer, at
    the inputs ``first`` and then at ``values``, and returns y, the gradients, and how
    many of the inputs are not parameters.
    """

    forward: Callable[..., tuple[Any, Any]]
    backward: Callable[[Any, Any], Any]
    again: Callable[..., tuple[Any, Any, int]]
    parameters: tuple[Array, ...]
    shapes: str
    without: tuple[str, ...]


def functions_of(
    layer: Any, inputs: Sequence[Any], options: Mapping[str, Any], cotangents: int
) -> Layer:
    """Return the functions of a layer whose backward takes that many cotangents.

    The layer does not change, because each forward runs on a copy of it. Raises
    Malformed if forward does not return as many outputs.
    """
    start = copied(layer)
    names = input_names(layer.forward, len(inputs))
    parameters, silent, y = [], [], None
    with contextlib.suppress(_Raised):  # the check raises it again, and reports it
        tried = _once(layer, inputs, options, cotangents)
        y, returned = tried.y, tried.returned
        _reject_dictionary(returned)
        own = parameters_of(start, tried, names)
        parameters = [parameter for parameter in own if parameter.gradient]
        rest = len(returned) - len(inputs) if isinstance(returned, tuple | list) else 0
        returns = returned_by(layer.backward, rest)
        others = [p for p in own if not p.gradient]
        silent = [p for p in others if is_array(p.value) or is_among(p, returns)]
        if rest > 0:  # (dx, dw, db)
            floats = [p for p in others if all(p is not other for other in silent)]
            silent = in_the_order_of(returns, silent)
            silent = with_a_number(silent, floats, returned[-rest:])
        if 0 < rest <= len(silent):
            parameters, silent = silent[:rest] + parameters, silent[rest:]
    listed = names_of([*parameters, *silent], names)
    parts = _functions(start, names, parameters, listed, cotangents)
    like = next(filter(is_floating, inputs), np.zeros(()))
    found = {
        name: p.value if is_array(p.value) else to_kind_of(like, np.array(p.value))
        for name, p in zip(listed, parameters, strict=False)
    }
    shapes = getattr(layer, "SHAPES", "")
    if shapes and y is not None:
        given = dict(zip(names, inputs, strict=True))
        shapes = declaration(called(layer), shapes, given, found, y)
    without = tuple(listed[len(parameters) :])
    return Layer(*parts, tuple(found.values()), shapes, without)


def _reject_dictionary(returned: Any) -> None:
    """Raise TypeError for the gradients of parameters in a dictionary beside dx."""
    several = isinstance(returned, tuple | list) and len(returned) > 1
    if several and isinstance(returned[-1], Mapping):
        keys = ", ".join(map(str, returned[-1]))
        raise TypeError(
            "backward: expected the parameters' gradients in attributes, such as "
            "self.grads, or one by one, as in return dx, dw, db; got a dictionary of "
            f"{keys} after dx"
        )


class _Raised(Exception):
    """The layer's own code raised."""


def _once(
    layer: Any, inputs: Sequence[Any], options: Mapping[str, Any], cotangents: int
) -> Tried:
    own = copied(layer)
    before = dict(numbers_in(own))
    values = {path: numbers(x) for path, x in before.items()}
    try:
        y = _output(_run(own, inputs, options), cotangents)
        between = dict(numbers_in(own))
        same = {
            path
            for path in before
            if path in between and _same(numbers(between[path]), values[path])
        }
        kept = {path for path in same if between[path] is before[path]}
        equal = {
            path
            for path in same - kept
            if _matters(layer, path, inputs, options, numbers(_first(y)))
        }
        values = {path: numbers(x) for path, x in between.items()}
        parts = y if isinstance(y, tuple) else (y,)
        dys = [namespace(part).ones_like(part) for part in parts]
        returned = own.backward(*dys[:cotangents])
        after = dict(numbers_in(own))
        written = {
            path
            for path, x in after.items()
            if between.get(path) is not x or not _same(numbers(x), values[path])
        }
        shapes = {tuple(x.shape) for x in (*inputs, *parts) if is_array(x)}
        return Tried(y, returned, kept, equal, after, written, shapes)
    except Malformed:
        raise
    except Exception as error:
        raise _Raised from error


def _run(layer: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    with the_same_numbers():
        return layer.forward(*map(copy.deepcopy, inputs), **options)


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
        changed = numbers(_first(_run(other, inputs, options)))
    except Exception:
        return False
    return not _same(changed, y)


def _same(x: np.ndarray, other: np.ndarray) -> bool:
    return x.shape == other.shape and np.array_equal(x, other, equal_nan=True)


def _output(y: Any, cotangents: int) -> Any:
    """Return y, with a loss as an array. Raise Malformed if the outputs do not match
    the cotangents."""
    if cotangents > 1:
        if isinstance(y, tuple) and len(y) == cotangents:
            return y
        wanted = f"{cotangents} outputs"
    elif is_array(y) and (cotangents or size(y.shape) == 1):
        return y
    elif isinstance(y, float | np.floating):
        return np.asarray(y, np.float64)
    else:
        wanted = "y alone" if cotangents else "a loss of one element"
    takes = f"{cotangents} cotangents" if cotangents > 1 else "only dy"
    takes = takes if cotangents else "no dy"
    got = f"an array of shape {list(y.shape)}" if is_array(y) else type(y).__name__
    raise Malformed(
        f"forward: expected {wanted}, because backward takes {takes}, as in a layer "
        f"that keeps its state; got {got}"
    )


def _functions(
    start: Any,
    inputs: Sequence[str],
    parameters: Sequence[Parameter],
    names: Sequence[str],
    cotangents: int,
) -> tuple[Callable, Callable, Callable]:
    """Return a forward and a backward whose inputs are those of the layer's forward and
    then its parameters, and ``again``. ``start`` is the layer before its first
    forward."""
    count = len(inputs)
    names = [*inputs, *names[: len(parameters)]]
    leaves = dict(numbers_in(start))
    buffers = [aliases(leaves, parameter.gradient) for parameter in parameters]
    groups = shared(leaves)

    def holding(values: Sequence[Any]) -> Any:
        """Return a copy of the layer with these parameters."""
        layer = copied(start)
        new: dict[Path, Any] = {}
        own = zip(parameters, buffers, values[count:], strict=True)
        for parameter, buffer, value in own:
            if parameter.gradient == (*parameter.paths[0], "grad"):
                value = value.detach()  # the same numbers, with a gradient of its own
            # A backward may add to a gradient that is already there.
            zero = namespace(value).zeros_like(value)
            if not is_array(parameter.value) and not is_torch(value):
                value, zero = value.item(), 0.0
            new |= {path: value for path in parameter.paths}
            new |= {path: zero for path in buffer}
        for group in groups:
            new |= group.replaced(new)
        for path, value in new.items():
            put(layer, path, value)
        return layer

    def run(layer: Any, values: Sequence[Any], options: Mapping[str, Any]) -> Any:
        with the_same_numbers():
            return _output(layer.forward(*values[:count], **options), cotangents)

    def forward(*values: Any, **options: Any) -> tuple[Any, Any]:
        layer = holding(values)
        return run(layer, values, options), layer

    def backward(dy: Any, saved: Any) -> Any:
        return gradients_of(copied(saved), dy)

    def again(
        first: Sequence[Any], values: Sequence[Any], dy: Any, **options: Any
    ) -> tuple[Any, Any, int]:
        layer = holding(values)
        run(layer, first, options)
        gradients_of(layer, dy)
        return run(layer, values, options), gradients_of(layer, dy), count

    def gradients_of(layer: Any, dy: Any) -> Any:
        given = [*dy] if cotangents > 1 else [dy][:cotangents]
        returned = layer.backward(*given)
        places = {
            name: parameter.gradient
            for name, parameter in zip(names[count:], parameters, strict=True)
        }
        own = {name: held(layer, place) for name, place in places.items() if place}
        own = {
            name: to_kind_of(dy, np.array(g)) if type(g) is float else g
            for name, g in own.items()
        }
        if isinstance(returned, Mapping):
            return {**returned, **own}
        first = returned if isinstance(returned, tuple | list) else [returned]
        first = [
            to_kind_of(dy, np.array(g)) if isinstance(g, float) else g for g in first
        ]
        gradients = (*first, *own.values())
        if cotangents:
            return gradients
        return tuple(g if g is None else dy * g for g in gradients)  # of the loss

    of_layer = list(inspect.signature(start.forward).parameters.values())
    only, keyword = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
    forward.__wrapped__ = start.forward  # type: ignore[attr-defined]
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, only) for name in names]
        + [p.replace(kind=keyword) for p in of_layer[count:] if p.kind not in VARIADIC]
    )
    return forward, backward, again


@contextlib.contextmanager
def the_same_numbers() -> Iterator[None]:
    """Seed the global generators of NumPy and of PyTorch on the CPU, so that a layer's
    dropout draws the same numbers each time. Restore their state afterwards."""
    state = np.random.get_state()
    np.random.seed(0)
    torch = sys.modules.get("torch")
    try:
        with torch.random.fork_rng(devices=[]) if torch else contextlib.nullcontext():
            if torch:
                torch.random.default_generator.manual_seed(0)
            yield
    finally:
        np.random.set_state(state)


# The declaration of its shapes


def declaration(
    name: str,
    text: str,
    inputs: Mapping[str, Array],
    parameters: Mapping[str, Array],
    y: Any,
) -> str:
    """Return a declaration that includes the parameters. An axis of a parameter gets
    the letter of its length, or a new letter if no letter has that length.

    Raises ValueError if two letters have its length.
    """
    shapes = parse(text)
    declared = [spec.name for spec in shapes.inputs]
    missing = [name for name in parameters if name not in declared]
    if not missing or len(declared) != len(inputs):
        return text
    ys = y if isinstance(y, tuple) else (y,)
    outputs = {spec.name: of for spec, of in zip(shapes.outputs, ys, strict=False)}
    lengths = shapes.bind({**inputs, **outputs})
    letters: dict[int, list[str]] = {}
    for letter, length in lengths.items():
        if not letter.startswith("*"):
            letters.setdefault(length, []).append(letter)
    free = (letter for letter in "abcdefghijklmnopqrstuvwxyz" if letter not in lengths)
    specs = []
    for parameter in missing:
        axes = []
        for length in parameters[parameter].shape:
            if length not in letters:
                letters[length] = [next(free)]
            if len(letters[length]) > 1:
                several = " and ".join(letters[length])
                raise ValueError(
                    f"SHAPES: expected the parameters of {name} too, because an axis "
                    f"of {parameter} has length {length}, and so have {several}; got "
                    f"{text!r}"
                )
            axes += letters[length]
        specs.append(f"{parameter}[{', '.join(axes)}]")
    left, _, right = text.partition("->")
    return f"{left.rstrip()}, {', '.join(specs)} ->{right}"
