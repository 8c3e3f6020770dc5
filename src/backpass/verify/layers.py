"""Convert a layer that keeps its state into a forward and a backward of its inputs and
its parameters.

A parameter is an array that the layer or a sub-layer holds, in an attribute or in its
lists, tuples, and dictionaries. Forward leaves it as it was, and after a backward its
gradient is held there too, or is returned.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace, size
from backpass.contract.shapes import parse
from backpass.verify.convert import is_floating, is_torch, to_numpy
from backpass.verify.outputs import Malformed
from backpass.verify.subject import called, input_names

# The names that the gradient of w may have, apart from case and underscores, and those
# of a container of several gradients.
OF = ("d{}", "grad{}", "g{}", "nabla{}", "delta{}", "dld{}", "{}grad", "{}gradient")
CONTAINERS = ("grad", "grads", "gradient", "gradients", "dparams", "dparameters")
DATA = ("data", "value")
WHERE = "dw, grad_w, w_grad, grads['w'], or grads[i] beside params[i]"
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

Path = tuple[Any, ...]


class Layer(NamedTuple):
    """The two functions of a layer, its parameters, the declaration of all shapes, and
    the names of arrays like parameters whose gradient was not found."""

    forward: Callable[..., tuple[Any, Any]]
    backward: Callable[[Any, Any], Any]
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
    start = _copied(layer)
    names = input_names(layer.forward, len(inputs))
    parameters, silent, y = [], [], None
    with contextlib.suppress(_Raised):  # the check raises it again, and reports it
        tried = _once(layer, inputs, options, cotangents)
        y, returned = tried.y, tried.returned
        own = _parameters(start, tried, names)
        parameters = [parameter for parameter in own if parameter.gradient]
        silent = [parameter for parameter in own if not parameter.gradient]
        rest = len(returned) - len(inputs) if isinstance(returned, tuple | list) else 0
        if 0 < rest <= len(silent):  # (dx, dw, db)
            silent = _in_the_order_of(layer.backward, silent, rest)
            parameters, silent = silent[:rest] + parameters, silent[rest:]
    listed = _names([*parameters, *silent], names)
    parts = _functions(start, names, parameters, listed, cotangents)
    found = {name: p.value for name, p in zip(listed, parameters, strict=False)}
    shapes = getattr(layer, "SHAPES", "")
    if shapes and y is not None:
        given = dict(zip(names, inputs, strict=True))
        shapes = declaration(called(layer), shapes, given, found, y)
    without = tuple(listed[len(parameters) :])
    return Layer(*parts, tuple(found.values()), shapes, without)


class _Raised(Exception):
    """The layer's own code raised."""


class _Tried(NamedTuple):
    """The results of a forward and a backward, the paths of arrays that forward left as
    they were, all arrays after the backward, and the paths of those that it wrote."""

    y: Any
    returned: Any
    kept: set[Path]
    after: dict[Path, Array]
    written: set[Path]


def _once(
    layer: Any, inputs: Sequence[Any], options: Mapping[str, Any], cotangents: int
) -> _Tried:
    own = _copied(layer)
    before = dict(_leaves(own))
    values = {path: to_numpy(x) for path, x in before.items()}
    try:
        with the_same_numbers():
            y = own.forward(*map(copy.deepcopy, inputs), **options)
        y = _output(y, cotangents)
        between = dict(_leaves(own))
        kept = {
            path
            for path, x in before.items()
            if between.get(path) is x and _same(to_numpy(x), values[path])
        }
        values = {path: to_numpy(x) for path, x in between.items()}
        parts = y if isinstance(y, tuple) else (y,)
        dys = [namespace(part).ones_like(part) for part in parts]
        returned = own.backward(*dys[:cotangents])
        after = dict(_leaves(own))
        written = {
            path
            for path, x in after.items()
            if between.get(path) is not x or not _same(to_numpy(x), values[path])
        }
        return _Tried(y, returned, kept, after, written)
    except Malformed:
        raise
    except Exception as error:
        raise _Raised from error


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
        wanted = "only y" if cotangents else "a loss of one element"
    takes = "no dy" if not cotangents else f"{cotangents} argument"
    takes += "s" if cotangents > 1 else ""
    got = f"an array of shape {list(y.shape)}" if is_array(y) else type(y).__name__
    raise Malformed(
        f"forward: expected {wanted}, because a backward that takes {takes} is that of "
        f"a layer that keeps its state; got {got}"
    )


def _functions(
    start: Any,
    inputs: Sequence[str],
    parameters: Sequence[_Parameter],
    names: Sequence[str],
    cotangents: int,
) -> tuple[Callable, Callable]:
    """Return a forward and a backward whose inputs are those of the layer's forward and
    then its parameters. ``start`` is the layer before its first forward."""
    count = len(inputs)
    names = [*inputs, *names[: len(parameters)]]
    leaves = dict(_leaves(start))
    buffers = [_aliases(leaves, parameter.gradient) for parameter in parameters]

    def forward(*values: Any, **options: Any) -> tuple[Any, Any]:
        layer = _copied(start)
        own = zip(parameters, buffers, values[count:], strict=True)
        for parameter, buffer, value in own:
            if parameter.gradient == (*parameter.paths[0], "grad"):
                value = value.detach()  # the same numbers, with a gradient of its own
            for path in parameter.paths:
                _set(layer, path, value)
            # A backward may add to a gradient that is already there.
            zero = namespace(value).zeros_like(value)
            for path in buffer:
                _set(layer, path, zero)
        with the_same_numbers():
            return _output(layer.forward(*values[:count], **options), cotangents), layer

    def backward(dy: Any, saved: Any) -> Any:
        layer = _copied(saved)
        given = [*dy] if cotangents > 1 else [dy][:cotangents]
        returned = layer.backward(*given)
        places = {
            name: parameter.gradient
            for name, parameter in zip(names[count:], parameters, strict=True)
        }
        own = {name: _get(layer, place) for name, place in places.items() if place}
        if isinstance(returned, Mapping):
            return {**returned, **own}
        first = returned if isinstance(returned, tuple | list) else [returned]
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
    return forward, backward


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


# The parameters


class _Parameter(NamedTuple):
    """The paths at which a layer holds one array, the array, and the path of its
    gradient; None if no attribute holds it."""

    paths: list[Path]
    value: Array
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
    """Return the parameters of a layer: arrays that its forward does not write. An
    attribute with the name of an input counts as one that an earlier forward saved."""
    places: dict[int, list[Path]] = {}
    before = dict(_leaves(start))
    for path, value in before.items():
        places.setdefault(id(value), []).append(path)
    found = []
    for paths in places.values():
        value = before[paths[0]]
        gradients = (_place_of_gradient(path, value, tried) for path in paths)
        found.append(_Parameter(paths, value, next(filter(None, gradients), None)))
    taken = {
        path for parameter in found for path in _aliases(before, parameter.gradient)
    }
    return [
        parameter
        for parameter in found
        if not taken & {*parameter.paths}
        and parameter.path[-1] not in inputs
        and tried.kept.issuperset(parameter.paths)
    ]


def _in_the_order_of(
    backward: Any, parameters: list[_Parameter], count: int
) -> list[_Parameter]:
    """Return the parameters in the order in which backward returns their gradients, as
    in ``return dx, dgamma, dbeta``; unchanged if the source does not show it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(backward)))
    except (OSError, TypeError, SyntaxError):
        return parameters
    returns = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    listed = returns[-1].elts[-count:] if isinstance(returns[-1], ast.Tuple) else []
    names = [getattr(element, "id", getattr(element, "attr", "")) for element in listed]
    first = [
        next((p for p in parameters if _names_gradient(name, p.path[-1])), None)
        for name in names
    ]
    if not first or any(p is None for p in first):
        return parameters
    rest = [p for p in parameters if all(p is not other for other in first)]
    return [p for p in first if p is not None] + rest


def _aliases(leaves: Mapping[Path, Array], of: Path | None) -> list[Path]:
    """Return all paths to the array at a path."""
    array = leaves.get(of) if of else None
    return [path for path, value in leaves.items() if value is array is not None]


def _place_of_gradient(path: Path, x: Array, tried: _Tried) -> Path | None:
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
        if holder == outer:
            return _names_gradient(last, name)
        if not holder:
            return False
        if outer and holder[:-1] == outer[:-1] and last == name:  # ws[0] and dws[0]
            if _names_gradient(holder[-1], outer[-1]):
                return True
        if _plain(holder[-1]) not in CONTAINERS:
            return False
        same = _plain(last) == _plain(name) or _names_gradient(last, name)
        return same and holder[:-1] in (outer, outer[:-1])

    own = (*path, "grad")  # of a tensor
    fitting = [at for at in tried.after if at == own or (at != path and fits(at))]
    alike = [at for at in fitting if tuple(tried.after[at].shape) == tuple(x.shape)]
    written = [at for at in (*alike, *fitting) if at in tried.written]
    empty = [at for at in alike if not to_numpy(tried.after[at]).any()]
    return next(iter([*written, *empty]), None)


def _names_gradient(of: Any, name: Any) -> bool:
    """Whether ``of`` is a name for the gradient of ``name``."""
    return isinstance(of, str) and _plain(of) in [g.format(_plain(name)) for g in OF]


def _plain(name: Any) -> str:
    """Return a name without case, underscores, and the class of a private one."""
    public = re.sub(r"^_\w+?__(?=\w)", "", str(name))
    return re.sub(r"[^a-z0-9]", "", public.lower())


# The attributes of a layer


def _copied(layer: Any) -> Any:
    """Return a deep copy, in which a tensor keeps its gradient."""
    try:
        made = copy.deepcopy(layer)
    except Exception as error:
        raise TypeError(
            f"op: expected a layer that can be copied, because each forward runs on a "
            f"copy; {called(layer)} cannot ({error}): give its two functions, as an "
            "object whose forward returns (y, saved)"
        ) from error
    of_tensors = [path for path, _ in _leaves(layer) if path[-1:] == ("grad",)]
    for path in of_tensors:
        if is_torch(_get(layer, path[:-1])):
            _set(made, path, _get(layer, path).clone())
    return made


def _leaves(
    holder: Any, path: Path = (), within: tuple[int, ...] = ()
) -> Iterator[tuple[Path, Array]]:
    """Yield the floating-point arrays of a layer and of the objects that it holds, each
    with its path."""
    for key, value in _entries(holder):
        place = (*path, key)
        if is_floating(value):
            yield place, value
            if is_torch(value) and value.is_leaf and value.grad is not None:
                yield (*place, "grad"), value.grad
        elif not is_array(value) and id(value) not in within:
            yield from _leaves(value, place, (*within, id(value)))


def _entries(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, Mapping):
        return list(holder.items())
    if isinstance(holder, list | tuple):
        return list(enumerate(holder))
    if isinstance(holder, ModuleType | type) or inspect.isroutine(holder):
        return []
    slots = (getattr(of, "__slots__", ()) for of in type(holder).__mro__)
    names = [name for of in slots for name in ([of] if isinstance(of, str) else of)]
    own = {name: getattr(holder, name) for name in names if hasattr(holder, name)}
    of_class = {
        name: value
        for of in reversed(type(holder).__mro__)
        for name, value in vars(of).items()
        if is_floating(value)
    }
    return list({**of_class, **own, **getattr(holder, "__dict__", {})}.items())


def _get(layer: Any, path: Path) -> Any:
    for key in path:
        if isinstance(layer, Mapping | list | tuple):
            known = key in layer if isinstance(layer, Mapping) else key < len(layer)
            layer = layer[key] if known else None
        else:
            layer = getattr(layer, key, None)
    return layer


def _set(holder: Any, path: Path, value: Any) -> Any:
    """Put a value in its place; return the holder, which is a new one for a tuple."""
    key, *rest = path
    if rest:
        value = _set(_get(holder, (key,)), tuple(rest), value)
    if isinstance(holder, tuple):
        parts = [*holder[:key], value, *holder[key + 1 :]]
        return type(holder)(*parts) if hasattr(holder, "_fields") else tuple(parts)
    if isinstance(holder, MutableMapping | list):
        holder[key] = value
    else:
        setattr(holder, key, value)
    return holder


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
                either = " or ".join(letters[length])
                raise ValueError(
                    f"SHAPES: expected the parameters of {name} too, because an axis "
                    f"of {parameter} has the length of {either}; got {text!r}"
                )
            axes += letters[length]
        specs.append(f"{parameter}[{', '.join(axes)}]")
    left, _, right = text.partition("->")
    return f"{left.rstrip()}, {', '.join(specs)} ->{right}"
