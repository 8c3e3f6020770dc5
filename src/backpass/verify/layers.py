"""Convert a layer that keeps its state into a forward and a backward of its inputs and
its parameters.

A parameter is an array or a Python float that the layer or a sub-layer holds, in an
attribute or in its lists, tuples, and dictionaries. Forward leaves it as it was, and
after a backward its gradient is held there too, or is returned.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace
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
from backpass.verify.convert import as_number, is_floating, is_torch, to_kind_of
from backpass.verify.layer_parameters import (
    Parameter,
    aliases,
    in_the_order_of,
    is_among,
    names_of,
    parameters_in,
    place_of_gradient,
    with_a_number,
)
from backpass.verify.outputs import flat
from backpass.verify.seeded import the_same_numbers
from backpass.verify.signatures import input_names, returned_names
from backpass.verify.subject import called
from backpass.verify.tried import (
    Raised,
    Tried,
    backward_of,
    forward_of,
    once,
    output_of,
    run_copy,
    same,
)

# Methods that drop gradients, or what earlier steps have left.
FORGETS = r"(zero|flush|clear|reset)(_?grads?|_?gradients|_?states?|_?cache)?"
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
    names = input_names(layer.forward, len(inputs))
    start = layer = _built(layer, inputs, options, cotangents)
    parameters, silent, y, kept = [], [], None, 0
    with contextlib.suppress(Raised):  # the check raises it again, and reports it
        tried = once(layer, inputs, options, cotangents)
        y, returned = tried.y, tried.returned
        own = parameters_in(start, tried, names)
        parameters = [parameter for parameter in own if parameter.gradient]
        several = isinstance(returned, tuple | list)
        returns, returned = _keys(returned), flat(returned)
        rest = len(returned) - len(inputs) if several else 0
        returns = returns or returned_names(layer.backward, rest)
        others = [p for p in own if not p.gradient]
        silent = [p for p in others if is_array(p.value) or is_among(p, returns)]
        if rest > 0:  # (dx, dw, db)
            floats = [p for p in others if all(p is not other for other in silent)]
            silent = in_the_order_of(returns, silent)
            silent = with_a_number(silent, floats, returned[-rest:])
        if 0 < rest <= len(silent):
            parameters, silent = silent[:rest] + parameters, silent[rest:]
        elif rest > 0 and _are_kept(returned[-rest:], parameters, tried):
            kept = rest
    listed = names_of([*parameters, *silent], names)
    parts = _functions(start, names, parameters, listed, cotangents, kept)
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


def _built(
    layer: Any, inputs: Sequence[Any], options: Mapping[str, Any], cotangents: int
) -> Any:
    """Return a copy of the layer; after a forward, if that makes arrays that have a
    gradient and that a forward of other inputs leaves as they are."""
    start = copied(layer)
    try:
        tried = once(layer, inputs, options, cotangents)
        before = {path for path, _ in numbers_in(start)}
        made = [path for path in tried.after if path not in before]
        named = [p for p in made if place_of_gradient(p, tried.after[p], tried)]
        if not named:
            return start
        first, other = copied(layer), copied(layer)
        run_copy(first, inputs, options)
        run_copy(other, inputs, options)
        run_copy(other, [1.5 * x if is_floating(x) else x for x in inputs], options)
    except Exception:  # the first call reports it
        return start
    kept = [
        path
        for path in named
        if same(numbers(held(first, path)), numbers(held(other, path)))
    ]
    return first if kept else start


def _are_kept(
    returned: Sequence[Any], parameters: Sequence[Parameter], tried: Tried
) -> bool:
    """Whether each of the gradients returned is in an attribute too."""
    own = [numbers(tried.after[p.gradient]) for p in parameters if p.gradient]
    return all(
        is_array(one) and any(same(numbers(one), gradient) for gradient in own)
        for one in returned
    )


def _keys(returned: Any) -> list[str]:
    """Return the names of the gradients in a dictionary, as in ``dx, {"w": dw}``."""
    several = isinstance(returned, tuple | list) and len(returned) > 1
    held = several and isinstance(returned[-1], Mapping)
    return [*map(str, returned[-1])] if held else []


def _functions(
    start: Any,
    inputs: Sequence[str],
    parameters: Sequence[Parameter],
    names: Sequence[str],
    cotangents: int,
    kept: int,
) -> tuple[Callable, Callable, Callable]:
    """Return a forward and a backward whose inputs are those of the layer's forward and
    then its parameters, and ``again``. ``start`` is the layer before its first forward,
    and ``kept`` how many of the last gradients that it returns it also keeps."""
    count = len(inputs)
    names = [*inputs, *names[: len(parameters)]]
    leaves = dict(numbers_in(start))
    buffers = [aliases(leaves, parameter.gradient) for parameter in parameters]
    groups = shared(leaves)

    def holding(values: Sequence[Any]) -> Any:
        """Return a copy of the layer with these parameters."""
        layer = copied(start, leaves, groups)
        new: dict[Path, Any] = {}
        own = zip(parameters, buffers, values[count:], strict=True)
        for parameter, buffer, value in own:
            own_grad = parameter.gradient == (*parameter.paths[0], "grad")
            if own_grad and not value.requires_grad:
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
            return output_of(forward_of(layer, values[:count], options), cotangents)

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
        _forget(layer)
        return run(layer, values, options), gradients_of(layer, dy), count

    def gradients_of(layer: Any, dy: Any) -> Any:
        given = [*dy] if cotangents > 1 else [as_number(dy)][:cotangents]
        returned = backward_of(layer, given)
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
            own = {**returned, **own}
            if cotangents:
                return own
            return {key: g if g is None else dy * g for key, g in own.items()}
        first = [
            to_kind_of(dy, np.array(g)) if isinstance(g, float) else g
            for g in (flat(returned) if returned is not None else [None] * count)
        ]
        first = first[: len(first) - kept]
        gradients = (*first, *own.values())
        if cotangents:
            return gradients
        return tuple(g if g is None else dy * g for g in gradients)  # of the loss

    of_layer = list(inspect.signature(start.forward).parameters.values())
    forward.__wrapped__ = start.forward  # type: ignore[attr-defined]
    only, keyword = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, only) for name in names]
        + [p.replace(kind=keyword) for p in of_layer[count:] if p.kind not in VARIADIC]
    )
    return forward, backward, again


def _forget(layer: Any) -> None:
    """Call the methods of a layer that a training loop calls between two steps."""
    for name in dir(layer):
        if re.fullmatch(FORGETS, name) and callable(method := getattr(layer, name)):
            with contextlib.suppress(TypeError):  # it takes arguments
                method()


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
