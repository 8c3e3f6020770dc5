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
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace, size
from backpass.contract.shapes import parse
from backpass.verify.attributes import (
    Path,
    Shared,
    copied,
    held,
    numbers,
    numbers_in,
    put,
    shared,
)
from backpass.verify.convert import as_number, is_floating, is_torch, to_kind_of
from backpass.verify.outputs import Malformed, flat
from backpass.verify.parameters import input_names, parameters_of, returned_names
from backpass.verify.seeded import the_same_numbers
from backpass.verify.subject import called

# The names that the gradient of w may have, apart from case and underscores, and those
# of a container of several gradients.
OF = ("d{}", "grad{}", "g{}", "nabla{}", "delta{}", "dld{}", "{}grad", "{}gradient")
CONTAINERS = ("grad", "grads", "gradient", "gradients", "dparams", "dparameters")
DATA = ("data", "value")
ALL = ("params", "parameters")  # one array of all parameters
WHERE = "dw, grad_w, w_grad, grads['w'], or grads[i] beside params[i]"
# Where a forward that returns nothing keeps y.
OUTPUTS = ("output", "outputs", "out", "y")
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
    start = copied(layer)
    names = input_names(layer.forward, len(inputs))
    parameters, silent, y = [], [], None
    with contextlib.suppress(_Raised):  # the check raises it again, and reports it
        tried = _once(layer, inputs, options, cotangents)
        y, returned = tried.y, tried.returned
        own = _parameters(start, tried, names)
        parameters = [parameter for parameter in own if parameter.gradient]
        several = isinstance(returned, tuple | list)
        returns, returned = _keys(returned), flat(returned)
        rest = len(returned) - len(inputs) if several else 0
        returns = returns or returned_names(layer.backward, rest)
        others = [p for p in own if not p.gradient]
        silent = [p for p in others if is_array(p.value) or _is_among(p, returns)]
        if rest > 0:  # (dx, dw, db)
            floats = [p for p in others if all(p is not other for other in silent)]
            silent = _in_the_order_of(returns, silent)
            silent = _with_a_number(silent, floats, returned[-rest:])
        if 0 < rest <= len(silent):
            parameters, silent = silent[:rest] + parameters, silent[rest:]
    listed = _names([*parameters, *silent], names)
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


def _keys(returned: Any) -> list[str]:
    """Return the names of the gradients in a dictionary, as in ``dx, {"w": dw}``."""
    several = isinstance(returned, tuple | list) and len(returned) > 1
    held = several and isinstance(returned[-1], Mapping)
    return [*map(str, returned[-1])] if held else []


class _Raised(Exception):
    """The layer's own code raised."""


class _Tried(NamedTuple):
    """The results of a forward and a backward, the paths of numbers that forward left
    as they were, and of those that it replaced by equal ones, all numbers after the
    backward, and the paths of those that it wrote."""

    y: Any
    returned: Any
    kept: set[Path]
    equal: set[Path]
    after: dict[Path, Array | float]
    written: set[Path]


def _once(
    layer: Any, inputs: Sequence[Any], options: Mapping[str, Any], cotangents: int
) -> _Tried:
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
        returned = _backward(own, dys[:cotangents])
        after = dict(numbers_in(own))
        written = {
            path
            for path, x in after.items()
            if between.get(path) is not x or not _same(numbers(x), values[path])
        }
        return _Tried(y, returned, kept, equal, after, written)
    except Malformed:
        raise
    except Exception as error:
        raise _Raised from error


def _run(layer: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    with the_same_numbers():
        return _forward(layer, [*map(copy.deepcopy, inputs)], options)


def _forward(layer: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return y, which a forward that returns nothing keeps in an attribute."""
    y = layer.forward(*inputs, **options)
    kept = vars(layer) if y is None and hasattr(layer, "__dict__") else {}
    return next((kept[name] for name in OUTPUTS if name in kept), y)


def _backward(layer: Any, dys: Sequence[Any]) -> Any:
    """Return the gradients of the inputs, which a backward that returns nothing may
    keep in attributes."""
    returned = layer.backward(*dys)
    kept = vars(layer) if returned is None and hasattr(layer, "__dict__") else {}
    names = [p.name for p in parameters_of(layer.forward) or []]
    names = names if len(names) > 1 else [*names, "x", "input", "inputs"]
    found = {
        key: value
        for name in names
        for key, value in kept.items()
        if names_gradient(key, name) and is_array(value)
    }
    return tuple(found.values()) or returned


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
    """Return y, with a loss as an array. Of more outputs than cotangents, those without
    one are left out. Raise Malformed if there are fewer."""
    if isinstance(y, tuple) and 0 < cotangents <= len(y) and is_array(y[0]):
        return y[:cotangents] if cotangents > 1 else y[0]
    if cotangents > 1:
        wanted = f"{cotangents} outputs"
    elif is_array(y) and (cotangents or size(y.shape) == 1):
        return y
    elif isinstance(y, float | np.floating):
        return np.asarray(y, np.float64)
    else:
        wanted = "y, or an attribute output," if cotangents else "a loss of one element"
    takes = f"{cotangents} cotangents" if cotangents > 1 else "only dy"
    takes = takes if cotangents else "no dy"
    got = f"an array of shape {list(y.shape)}" if is_array(y) else type(y).__name__
    raise Malformed(
        f"forward: expected {wanted} because backward takes {takes}, as in a layer "
        f"that keeps its state; got {got}"
    )


def _functions(
    start: Any,
    inputs: Sequence[str],
    parameters: Sequence[_Parameter],
    names: Sequence[str],
    cotangents: int,
) -> tuple[Callable, Callable, Callable]:
    """Return a forward and a backward whose inputs are those of the layer's forward and
    then its parameters, and ``again``. ``start`` is the layer before its first
    forward."""
    count = len(inputs)
    names = [*inputs, *names[: len(parameters)]]
    leaves = dict(numbers_in(start))
    buffers = [_aliases(leaves, parameter.gradient) for parameter in parameters]
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
            return _output(_forward(layer, values[:count], options), cotangents)

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
        returned = _backward(layer, given)
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
        first = [
            to_kind_of(dy, np.array(g)) if isinstance(g, float) else g
            for g in flat(returned)
        ]
        gradients = (*first, *own.values())
        if cotangents:
            return gradients
        return tuple(g if g is None else dy * g for g in gradients)  # of the loss

    of_layer = list(inspect.signature(start.forward).parameters.values())
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


# The parameters


class _Parameter(NamedTuple):
    """The paths at which a layer holds one array or Python float, its value, and the
    path of its gradient; None if no attribute holds it."""

    paths: list[Path]
    value: Array | float
    gradient: Path | None

    @property
    def path(self) -> Path:
        """The shortest of its paths, without ``data``."""
        shortest = min(self.paths, key=len)
        return shortest[:-1] if shortest[-1] in DATA else shortest


def _names(parameters: Sequence[_Parameter], taken: Sequence[str]) -> list[str]:
    """Return a name for each parameter: that of its attribute or, if this is a number
    or belongs to another parameter or an input too, its whole path."""
    last = [str(parameter.path[-1]) for parameter in parameters]
    return [
        name
        if ([*last, *taken]).count(name) == 1 and not name.isdigit()
        else "_".join(map(str, parameter.path))
        for name, parameter in zip(last, parameters, strict=True)
    ]


def _parameters(start: Any, tried: _Tried, inputs: Sequence[str]) -> list[_Parameter]:
    """Return the parameters of a layer: arrays and floats that its forward does not
    write. An attribute with the name of an input counts as one that an earlier forward
    saved. Of an array and its parts, only one kind is a parameter."""
    places: dict[Any, list[Path]] = {}
    before = dict(numbers_in(start))
    groups = shared(before)
    for path, value in before.items():
        places.setdefault(id(value) if is_array(value) else path, []).append(path)
    found = []
    for paths in places.values():
        value = before[paths[0]]
        gradients = (_place_of_gradient(path, value, tried) for path in paths)
        found.append(_Parameter(paths, value, next(filter(None, gradients), None)))
    taken = {
        path for parameter in found for path in _aliases(before, parameter.gradient)
    }
    taken |= {other for path in taken for other in _overlapping(groups, path)}
    kept = [
        parameter
        for parameter in found
        if not taken & {*parameter.paths}
        and parameter.path[-1] not in inputs
        and (tried.kept | tried.equal).issuperset(parameter.paths)
        and (parameter.gradient or tried.kept.issuperset(parameter.paths))
    ]
    return _without_overlaps(kept, groups, tried.written)


def _overlapping(groups: Sequence[Shared], path: Path) -> set[Path]:
    """Return the paths of the other arrays that share memory with one."""
    return {other for group in groups for other in group.overlapping(path)}


def _without_overlaps(
    found: list[_Parameter], groups: Sequence[Shared], written: set[Path]
) -> list[_Parameter]:
    """Return the parameters without those that are parts of others, or consist of them.

    An array of all parameters is one parameter only if its parts do not cover it or
    lack a gradient that backward wrote.
    """
    for whole in sorted(found, key=lambda p: -np.size(numbers(p.value))):
        if not any(whole is p for p in found):
            continue
        near = {path for own in whole.paths for path in _overlapping(groups, own)}
        parts = [p for p in found if p is not whole and near & {*p.paths}]
        if not parts:
            continue
        covered = sum(np.size(numbers(p.value)) for p in parts)
        complete = covered >= np.size(numbers(whole.value)) and all(
            part.gradient in written for part in parts
        )
        out = parts if whole.gradient in written and not complete else [whole]
        found = [p for p in found if all(p is not other for other in out)]
    return found


def _is_among(parameter: _Parameter, gradients: Sequence[str]) -> bool:
    """Whether one of these names is that of the gradient of a parameter."""
    return any(_belongs(name, parameter) for name in gradients)


def _belongs(name: str, parameter: _Parameter) -> bool:
    """Whether a name, or a key, is that of a parameter or of its gradient."""
    own = parameter.path[-1]
    return names_gradient(name, own) or _plain(name) == _plain(own) != ""


def _in_the_order_of(
    names: Sequence[str], parameters: list[_Parameter]
) -> list[_Parameter]:
    """Return the parameters in the order of the names of their gradients; unchanged if
    a name is not that of a gradient."""
    first = [next((p for p in parameters if _belongs(name, p)), None) for name in names]
    if not first or any(p is None for p in first):
        return parameters
    rest = [p for p in parameters if all(p is not other for other in first)]
    return [p for p in first if p is not None] + rest


def _with_a_number(
    parameters: list[_Parameter], floats: list[_Parameter], gradients: Sequence[Any]
) -> list[_Parameter]:
    """Return the parameters in the order of gradients that are returned without names;
    a float takes the place of the gradient that is a single number.

    Raises TypeError if several floats may have it.
    """
    for at, gradient in enumerate(gradients):
        known = parameters[at].value if at < len(parameters) else np.zeros(1)
        single = isinstance(gradient, float) or (
            is_floating(gradient) and gradient.ndim == 0
        )
        if not single or not floats or not is_array(known) or not known.ndim:
            continue
        if len(floats) > 1:
            listed = ", ".join(str(p.path[-1]) for p in floats)
            raise TypeError(
                "backward: expected names that show whose gradients it returns, as in "
                "return dx, dw, db, because the gradient that is a single number may "
                f"be that of {listed}; got values without such names"
            )
        return [*parameters[:at], *floats, *parameters[at:]]
    return parameters


def _aliases(leaves: Mapping[Path, Array | float], of: Path | None) -> list[Path]:
    """Return all paths to the array at a path, or the path of a float."""
    array = leaves.get(of) if of else None
    if array is None or not is_array(array):
        return [] if array is None or of is None else [of]
    return [path for path, value in leaves.items() if value is array]


def _place_of_gradient(path: Path, x: Array | float, tried: _Tried) -> Path | None:
    """Return the path of the gradient of the parameter at ``path``, or None.

    It is an array named as its gradient that backward wrote, if possible one of its
    shape. Otherwise it is one of its shape that holds zeros, which backward should have
    written.
    """
    *outer, name = path

    def fits(place: Path) -> bool:
        *holder, last = place
        if holder == outer and name in DATA:  # w.data and w.grad
            return last in CONTAINERS
        if holder == outer and _plain(name) in ALL and _plain(last) in CONTAINERS:
            return isinstance(last, str)
        if holder == outer:
            return names_gradient(last, name)
        if not holder:
            return False
        if outer and holder[:-1] == outer[:-1] and last == name:  # ws[0] and dws[0]
            if names_gradient(holder[-1], outer[-1]):
                return True
        if _plain(holder[-1]) not in CONTAINERS:
            return False
        same = _plain(last) == _plain(name) or names_gradient(last, name)
        return same and holder[:-1] in (outer, outer[:-1])

    own = (*path, "grad")  # of a tensor
    fitting = [at for at in tried.after if at == own or (at != path and fits(at))]
    shapes = {at: numbers(tried.after[at]).shape for at in fitting}
    alike = [at for at in fitting if shapes[at] == numbers(x).shape]
    if not is_array(x):  # most floats are not trained
        fitting = alike
    written = [at for at in (*alike, *fitting) if at in tried.written]
    empty = [at for at in alike if not numbers(tried.after[at]).any()]
    return next(iter([*written, *empty]), None)


def names_gradient(of: Any, name: Any) -> bool:
    """Whether ``of`` is a name for the gradient of ``name``."""
    return isinstance(of, str) and _plain(of) in [g.format(_plain(name)) for g in OF]


def _plain(name: Any) -> str:
    """Return a name without case, underscores, and the class of a private one."""
    public = re.sub(r"^_\w+?__(?=\w)", "", str(name))
    return re.sub(r"[^a-z0-9]", "", public.lower())


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
