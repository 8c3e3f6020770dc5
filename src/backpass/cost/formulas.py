"""Evaluate the FLOP formulas of an operation, at given shapes or in symbols."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
    return Flops(
        _call(op, op.forward_flops, values), _call(op, op.backward_flops, values)
    )


def symbolic_formula(op: Any, **known: object) -> Flops:
    """Return the formulas as SymPy expressions of positive integer symbols.

    Each letter is a symbol. Optional inputs count as given, and options that are
    strings, bools, or floats, such as a reduction, have their defaults. ``known``
    replaces a letter by a value or a different symbol, or says ``has_b=False``. Raises
    TypeError for a name that no formula has.
    """
    op = load(op)
    return Flops(
        *(
            _symbolic(op, function, known)
            for function in (op.forward_flops, op.backward_flops)
        )
    )


def latex(op: object, **known: object) -> Flops:
    """Return ``symbolic_formula(op, **known)`` in LaTeX, without delimiters."""
    import sympy

    return Flops(*map(sympy.latex, symbolic_formula(op, **known)))


def dimensions(op: Any, *inputs: object, **options: object) -> dict[str, int]:
    """Return the letters that the formulas name, and their values at these inputs."""
    op = load(op)
    values = _values(op, inputs, options)
    wanted = {**_parameters(op.forward_flops), **_parameters(op.backward_flops)}
    return {key: values[key] for key in wanted if key in values}


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
    wanted = {*_parameters(op.forward_flops), *_parameters(op.backward_flops)}
    of_output = wanted & {*shapes.letters} - {*values}
    if of_output:  # such as fork's k: run forward to get it
        y, _ = op.forward(*arrays.values(), **options)
        values |= shapes.dimensions({**arrays, shapes.outputs[0].name: y})
    return values


def _of_data(
    op: Any, shapes: Shapes, inputs: tuple[object, ...], arrays: dict[str, Any]
) -> dict[str, int]:
    """Return the counts that depend on data, if the arrays of integers are given."""
    known = all(
        is_array(value)
        for spec, value in zip(shapes.inputs, inputs, strict=False)
        if spec.integer
    )
    return (
        op.data_lengths(*arrays.values())
        if known and hasattr(op, "data_lengths")
        else {}
    )


def _call(op: Any, function: Callable, values: dict[str, Any]) -> Any:
    parameters = _parameters(function)
    missing = [
        key
        for key, p in parameters.items()
        if key not in values and p.default is p.empty
    ]
    if missing:
        raise TypeError(
            f"{Operation(op).name}.{function.__name__}: expected {', '.join(missing)} by name; "
            "got none"
        )
    return function(**{key: values[key] for key in parameters if key in values})


def _symbolic(op: Any, function: Callable, known: dict[str, object]) -> Any:
    import sympy

    unknown = sorted(
        known.keys()
        - _parameters(op.forward_flops).keys()
        - _parameters(op.backward_flops).keys()
    )
    if unknown:
        raise TypeError(f"{Operation(op).name}'s formulas have no {', '.join(unknown)}")
    values = {
        key: True
        if key.startswith("has_")
        else parameter.default
        if isinstance(parameter.default, (str, bool, float)) or key == "wanted"
        else sympy.Symbol(key, positive=True, integer=True)
        for key, parameter in _parameters(function).items()
    }
    return sympy.sympify(_call(op, function, values | known))


def _parameters(function: Callable) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)
