"""Find the parameters of a layer, and where it keeps or returns their gradients.

A parameter is an array or a Python float that the layer holds and its forward leaves as
it was. Its gradient has a name such as ``dw``, or is the only array under a name such
as ``grad`` that has its shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.verify.attributes import Path, Shared, numbers, numbers_in, shared
from backpass.verify.convert import is_floating
from backpass.verify.gradient_names import ALL, CONTAINERS, DATA, names_gradient, plain
from backpass.verify.tried import Tried


class Parameter(NamedTuple):
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


def names_of(parameters: Sequence[Parameter], taken: Sequence[str]) -> list[str]:
    """Return a name for each parameter: that of its attribute or, if this is a number
    or belongs to another parameter or an input too, its whole path."""
    last = [str(parameter.path[-1]) for parameter in parameters]
    return [
        name
        if ([*last, *taken]).count(name) == 1 and not name.isdigit()
        else "_".join(map(str, parameter.path))
        for name, parameter in zip(last, parameters, strict=True)
    ]


def parameters_in(start: Any, tried: Tried, inputs: Sequence[str]) -> list[Parameter]:
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
        gradients = (place_of_gradient(path, value, tried) for path in paths)
        found.append(Parameter(paths, value, next(filter(None, gradients), None)))
    found = _by_shape(found, tried)
    taken = {
        path for parameter in found for path in aliases(before, parameter.gradient)
    }
    taken |= {other for path in taken for other in _overlapping(groups, path)}
    kept = [
        parameter
        for parameter in found
        if not taken & {*parameter.paths}
        and parameter.path[-1] not in inputs
        and (tried.kept | tried.equal).issuperset(parameter.paths)
        and (parameter.gradient or tried.kept.issuperset(parameter.paths))
        and (parameter.gradient or not _in_a_container(parameter))
    ]
    return _without_overlaps(kept, groups, tried.written)


def _by_shape(found: list[Parameter], tried: Tried) -> list[Parameter]:
    """Return the parameters, with gradients that backward wrote under a name that is
    not that of a parameter: ``grad``, ``grads[0]``, or ``dW`` for the weights.

    Each has the shape of one parameter of its holder that has no other gradient, and no
    other array under such a name has it. An array with the shape of an input or an
    output may be the gradient of that.
    """
    known = {parameter.gradient for parameter in found}
    silent = [
        parameter
        for parameter in found
        if not parameter.gradient
        and is_array(parameter.value)
        and tried.kept.issuperset(parameter.paths)
        and not _in_a_container(parameter)
    ]
    own = {path for parameter in silent for path in parameter.paths}
    written = {
        path: numbers(value).shape
        for path, value in tried.after.items()
        if path in tried.written - known - own and is_array(value)
    }
    choices = {
        parameter.path: [
            path
            for path, shape in written.items()
            if shape == numbers(parameter.value).shape
            and shape not in tried.shapes
            and _may_be_of(path, parameter, silent)
        ]
        for parameter in silent
    }
    counted = Counter(path for paths in choices.values() for path in paths)
    return [
        parameter._replace(gradient=paths[0])
        if len(paths := choices.get(parameter.path, [])) == 1
        and not parameter.gradient
        and counted[paths[0]] == 1
        else parameter
        for parameter in found
    ]


def _in_a_container(parameter: Parameter) -> bool:
    """Whether a container of gradients holds it, which makes it one of them."""
    return any(plain(key) in CONTAINERS for key in parameter.path)


def _may_be_of(path: Path, parameter: Parameter, silent: list[Parameter]) -> bool:
    """Whether an array may be the gradient of a parameter, by its name: that of any
    gradient, or that for the first letter of the parameter's name alone."""
    *holder, last = path
    *own, name = parameter.path
    if isinstance(last, int) and holder:  # grads[0]
        *holder, last = holder
    if holder != own:
        return False
    if plain(last) in CONTAINERS:
        return True
    initial = plain(name)[:1]
    alike = [p for p in silent if plain(p.path[-1])[:1] == initial]
    return len(alike) == 1 and names_gradient(last, initial)


def _overlapping(groups: Sequence[Shared], path: Path) -> set[Path]:
    """Return the paths of the other arrays that share memory with one."""
    return {other for group in groups for other in group.overlapping(path)}


def _without_overlaps(
    found: list[Parameter], groups: Sequence[Shared], written: set[Path]
) -> list[Parameter]:
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


def is_among(parameter: Parameter, gradients: Sequence[str]) -> bool:
    """Whether one of these names is that of the gradient of a parameter."""
    return any(_belongs(name, parameter) for name in gradients)


def _belongs(name: str, parameter: Parameter) -> bool:
    """Whether a name, or a key, is that of a parameter or of its gradient."""
    own = parameter.path[-1]
    return names_gradient(name, own) or plain(name) == plain(own) != ""


def in_the_order_of(
    names: Sequence[str], parameters: list[Parameter]
) -> list[Parameter]:
    """Return the parameters in the order of the names of their gradients; unchanged if
    a name is not that of a gradient."""
    first = [next((p for p in parameters if _belongs(name, p)), None) for name in names]
    if not first or any(p is None for p in first):
        return parameters
    rest = [p for p in parameters if all(p is not other for other in first)]
    return [p for p in first if p is not None] + rest


def with_a_number(
    parameters: list[Parameter], floats: list[Parameter], gradients: Sequence[Any]
) -> list[Parameter]:
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


def aliases(leaves: Mapping[Path, Array | float], of: Path | None) -> list[Path]:
    """Return all paths to the array at a path, or the path of a float."""
    array = leaves.get(of) if of else None
    if array is None or not is_array(array):
        return [] if array is None or of is None else [of]
    return [path for path, value in leaves.items() if value is array]


def place_of_gradient(path: Path, x: Array | float, tried: Tried) -> Path | None:
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
        if holder == outer and plain(name) in ALL and plain(last) in CONTAINERS:
            return isinstance(last, str)
        if holder == outer:
            return names_gradient(last, name)
        if not holder:
            return False
        if outer and holder[:-1] == outer[:-1] and last == name:  # ws[0] and dws[0]
            if names_gradient(holder[-1], outer[-1]):
                return True
        if plain(holder[-1]) not in CONTAINERS:
            return False
        same = plain(last) == plain(name) or names_gradient(last, name)
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
