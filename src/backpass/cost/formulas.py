"""Evaluate the FLOP formulas of an operation, at given shapes or in symbols."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from backpass.contract.arrays import is_array
from backpass.contract.shapes import Shapes, parse
from backpass.cost.inputs import load, stand_ins
from backpass.operation import Operation


class Flops(NamedTuple):
    """A pair of FLOP formulas, for the forward and the backward: as numbers, in
    symbols, or in LaTeX."""

    forward: Any
    backward: Any


def formula(op: Any, *inputs: object, **options: object) -> Flops:
    """Evaluate ``forward_flops`` and ``backward_flops`` at the shapes of ``inputs``.

    Each formula is passed what its signature names: letters of SHAPES, ``m`` for the
    product of the leading lengths, ``has_b`` for an optional input b, and options.
    ``inputs`` are shapes or arrays. Of an array, only the shape matters, except that a
    count that depends on data, such as the number of distinct tokens, is taken from
    arrays of integers; it can also be given by name. Raises ValueError if the shapes do
    not fit, and TypeError if a formula needs a value that is not given.
    """
    op = load(op)
    values = _values(op, inputs, options)
    return Flops(*(_call(op, each, values) for each in _formulas(op)))


def symbolic_formula(op: Any, **known: object) -> Flops:
    """Return the formulas as SymPy expressions of positive integer symbols.

    Each letter is a symbol. Optional inputs count as given, and options that are
    strings, bools, or floats, such as a reduction, have their defaults. ``known``
    replaces a letter by a value or a different symbol, or says ``has_b=False``. Raises
    TypeError for a name that no formula has.
    """
    op = load(op)
    unknown = sorted(known.keys() - _names(op))
    if unknown:
        raise TypeError(f"{Operation(op).name}'s formulas have no {', '.join(unknown)}")
    return Flops(*(_symbolic(op, each, known) for each in _formulas(op)))


def latex(op: object, **known: object) -> Flops:
    """Return ``symbolic_formula(op, **known)`` in LaTeX, without delimiters."""
    import sympy

    return Flops(*map(sympy.latex, symbolic_formula(op, **known)))


def dimensions(op: Any, *inputs: object, **options: object) -> dict[str, int]:
    """Return the letters that the formulas name, and their values at these inputs."""
    op = load(op)
    values = _values(op, inputs, options)
    return {key: values[key] for key in _names(op) if key in values}


def _values(
    op: Any, inputs: tuple[object, ...], options: dict[str, object]
) -> dict[str, Any]:
    for part in ("SHAPES", "forward_flops", "backward_flops"):
        if not hasattr(op, part):
            raise TypeError(
                f"{Operation(op).name}: expected {part}, which its FLOP formulas need; got none"
            )
    shapes = parse(op.SHAPES)
    arrays = stand_ins(op, inputs)
    values = {
        **_of_data(op, shapes, inputs, arrays),
        **options,
        **shapes.dimensions(arrays),
    }
    of_output = _names(op).keys() & {*shapes.letters} - {*values}
    if of_output:  # such as fork's k: run forward to get it
        y, _ = op.forward(*arrays.values(), **options)
        values |= shapes.dimensions({**arrays, shapes.outputs[0].name: y})
    return values


def _of_data(
    op: Any, shapes: Shapes, inputs: tuple[object, ...], arrays: dict[str, Any]
) -> dict[str, int]:
    """Return the counts that depend on data, if the arrays of integers are given."""
    pairs = zip(shapes.inputs, inputs, strict=False)
    known = all(is_array(value) for spec, value in pairs if spec.integer)
    if not known or not hasattr(op, "data_lengths"):
        return {}
    return op.data_lengths(*arrays.values())


def _call(op: Any, function: Callable, values: dict[str, Any]) -> Any:
    parameters = _parameters(function)
    required = [key for key, p in parameters.items() if p.default is p.empty]
    if missing := ", ".join(key for key in required if key not in values):
        name = f"{Operation(op).name}.{function.__name__}"
        raise TypeError(f"{name}: expected {missing} by name; got none")
    return function(**{key: values[key] for key in parameters if key in values})


def _symbolic(op: Any, function: Callable, known: dict[str, object]) -> Any:
    import sympy

    values = {
        key: True
        if key.startswith("has_")
        else parameter.default
        if isinstance(parameter.default, (str, bool, float)) or key == "wanted"
        else sympy.Symbol(key, positive=True, integer=True)
        for key, parameter in _parameters(function).items()
    }
    return sympy.sympify(_call(op, function, values | known))


def _formulas(op: Any) -> tuple[Callable, Callable]:
    return op.forward_flops, op.backward_flops


def _names(op: Any) -> dict[str, None]:
    """Return the names of the formulas' arguments, in order."""
    return dict.fromkeys(key for each in _formulas(op) for key in _parameters(each))


def _parameters(function: Callable) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters
