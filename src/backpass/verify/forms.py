"""Convert the forms in which people write a backward into one: an object whose
``forward(*inputs)`` returns ``(y, saved)`` and whose ``backward(dy, saved)`` returns
the gradients.

The other forms are a layer that keeps its state, with ``backward(dy)`` and the
parameters' gradients in attributes; several outputs or several saved objects side by
side, ``(y1, y2, saved)`` or ``(y, x, w)``; and the saved object first, as JAX has it.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace
from backpass.verify.convert import is_floating
from backpass.verify.outputs import Malformed
from backpass.verify.subject import input_names

# The names that a gradient of w has, apart from case and underscores, and those of a
# container with the gradients of several.
OF = ("d{}", "grad{}", "g{}", "{}grad", "{}gradient", "delta{}")
CONTAINERS = ("grad", "grads", "gradient", "gradients", "dparams", "dparameters")
SAVED_FIRST = ("res", "residual", "residuals", "saved", "cache", "ctx", "context")
DATA = ("data", "value")
WHERE = "dw, grad_w, w_grad, grads['w'], or grads[i] beside params[i]"
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Form(NamedTuple):
    """An object to check, its inputs, and the attributes that hold parameters whose
    gradient was not found."""

    op: Any
    inputs: tuple[Any, ...]
    without: tuple[str, ...] = ()


def usual(op: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> Form:
    """Return the object in the usual form, or the object itself if it has that form
    already or an unknown one. A layer runs once, on copies of the inputs, to find its
    gradients; what it raises is left to the check itself."""
    if "torch" in sys.modules:
        from backpass.verify import torch_forms

        if torch_forms.is_custom_op(op):
            return Form(torch_forms.function_of(op), tuple(inputs))
        if torch_forms.is_module(op) and (found := torch_forms.of_module(op, inputs)):
            return Form(found, (*inputs, *op.parameters()))
    forward: Any = getattr(op, "forward", None)
    backward: Any = getattr(op, "backward", None)
    if isinstance(op, ModuleType | type) or not (callable(forward) and inputs):
        return Form(op, tuple(inputs))
    taken = _positional(backward)
    if len(taken) == 1:
        return _of_layer(op, tuple(inputs), options)
    if len(taken) == 2 and taken[0].strip("_").lower() in SAVED_FIRST:
        exchanged = _like(op, forward, lambda dy, saved: backward(saved, dy))
        return Form(exchanged, tuple(inputs))
    if len(taken) > 2:
        apart = _apart(forward, backward, max(1, _cotangents(taken)), len(taken))
        return Form(_like(op, *apart), tuple(inputs))
    return Form(op, tuple(inputs))


def _positional(function: Any) -> list[str]:
    """Return the names of the positional parameters that have no default; none for
    ``*args`` or without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return []
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


def _like(op: Any, forward: Callable, backward: Callable) -> Any:
    """Return an object with the same name and facts, and other functions."""
    names = (name for name in dir(op) if name.isupper() and len(name) > 1)
    facts = {name: getattr(op, name) for name in names}
    name = getattr(op, "__name__", type(op).__name__)
    if isinstance(op, SimpleNamespace):
        name = "forward and backward"
    return SimpleNamespace(forward=forward, backward=backward, __name__=name, **facts)


def _cotangents(names: Sequence[str]) -> int:
    """Return how many of the first parameters of a backward are cotangents, by their
    names; the last parameter is never one."""
    like = [re.match(r"d|g(?![a-fh-z])|grad|ct|bar", name.strip("_")) for name in names]
    return next((at for at, found in enumerate(like[:-1]) if not found), len(names) - 1)


def _apart(
    forward: Callable, backward: Callable, outputs: int, count: int
) -> tuple[Callable, Callable]:
    """Return a forward with all outputs in one tuple and all saved objects in another,
    and the backward that takes the two. The given backward takes ``count`` arguments:
    first the cotangents of the outputs, then the saved objects."""
    saves = count - outputs

    def together(*inputs: Any, **options: Any) -> tuple[Any, Any]:
        returned = forward(*inputs, **options)
        parts = len(returned) if isinstance(returned, tuple) else 0
        if parts == 2 and outputs == 1 and isinstance(returned[1], tuple):
            returned = (returned[0], *returned[1])
        if not isinstance(returned, tuple) or len(returned) != count:
            objects = "the saved object" if saves == 1 else f"{saves} saved objects"
            of = "1 output" if outputs == 1 else f"{outputs} outputs"
            kind = type(returned).__name__
            raise Malformed(
                f"forward: expected {of} and {objects}, because backward takes {count} "
                f"arguments; got {f'{kind} of {parts}' if parts else kind}"
            )
        y = returned[0] if outputs == 1 else returned[:outputs]
        return y, returned[outputs:]

    def apart(dy: Any, saved: Any) -> Any:
        return backward(*(dy if outputs > 1 else [dy]), *saved)

    together.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    return together, apart


# A layer that keeps its state

Path = tuple[Any, ...]


class _Parameter(NamedTuple):
    """A parameter's places among the attributes, which are one array; its value; and
    the place of its gradient, or None if backward returns it."""

    paths: list[Path]
    value: Array
    gradient: Path | None

    @property
    def name(self) -> str:
        """The name of its attribute, or of its key."""
        first, last = min(self.paths, key=len)[0], min(self.paths, key=len)[-1]
        if isinstance(last, int):
            return f"{first}_{last}"
        return str(first if last in DATA else last)


def _of_layer(op: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Form:
    """Return a layer as an object whose inputs are those of its forward and then its
    parameters: the arrays among its attributes whose gradient is there after a
    backward."""
    try:
        start, after = copy.deepcopy(op), copy.deepcopy(op)
        y = _output(after.forward(*map(copy.deepcopy, inputs), **options))
        returned = after.backward(namespace(y).ones_like(y))
    except Malformed:
        raise
    except Exception:  # the check runs into it too, and says where
        return Form(op, inputs)
    names = input_names(op.forward, len(inputs))
    own = [p for p in _parameters(start, dict(_leaves(after))) if p.name not in names]
    found = [p for p in own if p.gradient]
    silent = [p for p in own if not p.gradient]
    rest = len(returned) - len(inputs) if isinstance(returned, tuple | list) else 0
    if 0 < rest <= len(silent):  # (dx, dw, db), in the order of the attributes
        found, silent = silent[:rest] + found, silent[rest:]
    forward, backward = _functions(start, names, found)
    values = (parameter.value for parameter in found)
    without = tuple(parameter.name for parameter in silent)
    return Form(_like(op, forward, backward), (*inputs, *values), without)


def _functions(
    start: Any, names: Sequence[str], parameters: Sequence[_Parameter]
) -> tuple[Callable, Callable]:
    """Return a forward and a backward whose inputs are those of the layer's forward,
    and then its parameters. ``start`` is the layer before its first forward."""
    count = len(names)

    def forward(*inputs: Any, **options: Any) -> tuple[Any, Any]:
        layer = copy.deepcopy(start)
        for parameter, value in zip(parameters, inputs[count:], strict=True):
            for path in parameter.paths:
                _set(layer, path, value)
            # A backward may add to the gradient that is there.
            if parameter.gradient and is_array(old := _get(layer, parameter.gradient)):
                old[...] = 0
        return _output(layer.forward(*inputs[:count], **options)), layer

    def backward(dy: Any, saved: Any) -> tuple[Any, ...]:
        layer = copy.deepcopy(saved)
        returned = layer.backward(dy)
        given = returned if isinstance(returned, tuple | list) else [returned]
        places = (parameter.gradient for parameter in parameters)
        return (*given, *(_get(layer, place) for place in places if place))

    own = list(inspect.signature(start.forward).parameters.values())
    only, keyword = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
    listed = [*names, *(parameter.name for parameter in parameters)]
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, only) for name in listed]
        + [p.replace(kind=keyword) for p in own[count:] if p.kind not in VARIADIC]
    )
    return forward, backward


def _output(returned: Any) -> Array:
    if is_array(returned) or isinstance(returned, float | np.floating):
        return returned if is_array(returned) else np.asarray(returned, np.float64)
    raise Malformed(
        "forward: expected only y, because a backward with one argument is taken for "
        f"that of a layer with state; got {type(returned).__name__}"
    )


def _leaves(layer: Any) -> Iterator[tuple[Path, Array]]:
    """Yield the floating-point arrays of a layer, each with its path: those that are
    attributes, or elements of a dictionary, a list, or an object that is one."""
    for name, value in _entries(layer):
        if is_floating(value):
            yield (name,), value
        elif not is_array(value):
            for key, inner in _entries(value):
                if is_floating(inner):
                    yield (name, key), inner


def _entries(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, Mapping):
        return list(holder.items())
    if isinstance(holder, list):
        return list(enumerate(holder))
    return list(getattr(holder, "__dict__", {}).items())


def _parameters(start: Any, after: Mapping[Path, Array]) -> list[_Parameter]:
    """Return the parameters of a layer, given its arrays after a backward."""
    places: dict[int, list[Path]] = {}
    before = dict(_leaves(start))
    for path, value in before.items():
        places.setdefault(id(value), []).append(path)
    found = []
    for paths in places.values():
        value = before[paths[0]]
        gradients = (_place_of_gradient(path, value, after) for path in paths)
        found.append(_Parameter(paths, value, next(filter(None, gradients), None)))
    taken = {parameter.gradient for parameter in found}
    return [parameter for parameter in found if not taken & {*parameter.paths}]


def _place_of_gradient(
    path: Path, x: Array, found: Mapping[Path, Array]
) -> Path | None:
    """Return where the gradient of the parameter at ``path`` is, or None."""
    name = path[-1]
    for place, value in found.items():
        if place == path or tuple(value.shape) != tuple(x.shape):
            continue
        *outer, last = place
        if len(place) == len(path) == 2 and path[1] in DATA:
            if place[0] == path[0] and last in CONTAINERS:  # w.data and w.grad
                return place
        of_container = bool(outer) and _plain(outer[0]) in CONTAINERS
        same_key = last == name or _plain(last) == _plain(name)
        if of_container and (same_key or _names_gradient(last, name)):
            return place
        if not of_container and _names_gradient(last, name):
            return place
    return None


def _names_gradient(of: Any, name: Any) -> bool:
    """Whether ``of`` is a name for the gradient of ``name``."""
    return isinstance(of, str) and _plain(of) in [g.format(_plain(name)) for g in OF]


def _plain(name: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def _get(layer: Any, path: Path) -> Any:
    for key in path:
        if isinstance(layer, Mapping | list):
            known = key in layer if isinstance(layer, Mapping) else key < len(layer)
            layer = layer[key] if known else None
        else:
            layer = getattr(layer, key, None)
    return layer


def _set(layer: Any, path: Path, value: Any) -> None:
    *outer, last = path
    holder = _get(layer, tuple(outer))
    if isinstance(holder, MutableMapping | list):
        holder[last] = value
    else:
        setattr(holder, last, value)
