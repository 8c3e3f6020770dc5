"""Symbols through forward and backward: the backward is the symbolic derivative of Σ dy·forward, exactly.

Run at a tiny shape, where it is a proof for every value at once. ``max`` returns a fresh symbol there, and
the derivative of the forward with respect to it is proved 0, which is why the derivative may hold it fixed.
"""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import numpy as np

from backpass.arrays import Array, is_array
from backpass.verify.case import Case, NotRun, first_line
from backpass.verify.diagnosis import diagnose
from backpass.verify.drawing import draw_like
from backpass.verify.report import FAILED, PASSED, VACUOUS, Row

NAME = "symbolic"
ELEMENTS = 24  # of all inputs together, where the shape cannot be made smaller: beyond, expressions grow long
LENGTHS = (3, 2, 3, 2, 3)  # at most, for a declaration's letters
LEADING = {"*": (2,), "*a": (2,), "*b": (1,)}  # for its groups of leading axes, where they are not empty


def run(case: Case) -> list[Row]:
    """One row a gradient. Raises NotRun where forward cannot compute with symbols, or SymPy is missing."""
    if importlib.util.find_spec("sympy") is None:
        raise NotRun("sympy is not installed")
    import sympy

    from backpass.interpreters import symbolic
    from backpass.interpreters.closed_world import Array

    inputs = _symbols(case)
    with symbolic.session() as session:
        y, saved = _computed(case, "forward", inputs)
        dy = symbolic.array("dy", y.shape)
        gradients = case.by_position(_computed(case, "backward", (dy, saved)))
    y, dy = y.to_numpy(), dy.to_numpy()
    _refuse_if_max_matters(y.flat, session.fresh)
    loss = sum((a * b for a, b in zip(dy.flat, y.flat, strict=True)), start=sympy.Integer(0))

    proved = "; ∂y/∂max = 0 proved" if session.fresh else ""
    names = zip(case.subject.input_names, inputs, strict=False)
    terms = {name: value.to_numpy() for name, value in names if isinstance(value, Array)}
    return [
        _row(case, at, inputs[at].to_numpy(), gradients[at], loss, {**terms, "y": y, "dy": dy}, proved)
        for at in case.differentiable
    ]


def _symbols(case: Case) -> tuple[Any, ...]:
    """The inputs as symbols: of the given shapes, cut down where a declaration allows it."""
    from backpass.interpreters import symbolic

    if case.subject.torch_only:
        raise NotRun("an autograd.Function computes with tensors, not with symbols")
    values = _cut_down(case) if case.subject.shapes else case.float64
    if sum(value.size for value in values if is_array(value)) > ELEMENTS and not case.subject.shapes:
        raise NotRun(f"without SHAPES it runs at the inputs' own shape, and on at most {ELEMENTS} elements")
    return tuple(
        symbolic.array(case.subject.input_names[at], value.shape)
        if is_array(value) and np.issubdtype(value.dtype, np.floating)
        else symbolic.xp.asarray(value)
        if is_array(value)
        else value
        for at, value in enumerate(values)
    )


def _cut_down(case: Case) -> tuple[np.ndarray | None, ...]:
    """Inputs of the same structure, every length at most a few."""
    shapes = case.subject.shapes
    given = shapes.bind(dict(zip(case.subject.input_names, case.float64, strict=False)))
    leading = {group: () if given.get(group) == () else shape for group, shape in LEADING.items()}
    most = dict(zip(shapes.letters, itertools.cycle(LENGTHS), strict=False))
    return draw_like(shapes, case.rng, case.inputs, leading=leading, most=most)


def _computed(case: Case, part: str, arguments: tuple[Any, ...]) -> Any:
    """What forward or backward makes of symbols. A reader's function that cannot compute with them is not run."""
    from backpass.interpreters.symbolic import Undecided

    try:
        return getattr(case.subject, part)(*arguments)
    except Undecided as error:
        raise NotRun(f"{part} branches on values ({first_line(error)})") from None
    except Exception as error:
        if case.subject.shapes is not None:
            raise
        raise NotRun(f"{part} does not compute with symbols ({first_line(error)})") from None


def _refuse_if_max_matters(y, fresh) -> None:
    from backpass.interpreters import exact

    for symbol in fresh:
        if not all(exact.is_zero(element.diff(symbol)) for element in y if element.has(symbol)):
            raise NotRun("y depends on a maximum, and the symbols do not know which input is the largest")


def _row(case: Case, at: int, x: np.ndarray, gradient: Array | None, loss, terms, proved: str) -> Row:
    from backpass.interpreters import exact

    quantity = case.quantity(at)
    how = f"every element, exactly, at shape {list(x.shape)}{proved}"
    expected = np.array([loss.diff(symbol) for symbol in x.flat], dtype=object).reshape(x.shape)
    got = np.zeros(x.shape, dtype=object) if gradient is None else gradient.to_numpy()
    same = got.shape == x.shape and all(map(exact.equal, got.flat, expected.flat))
    if not same:
        reason = _explained(case, got, expected, terms)
        return Row(NAME, quantity, FAILED, tolerance=0.0, how=how, reason=reason)
    zero = all(map(exact.is_zero, expected.flat))
    if zero and case.subject.input_names[at] not in case.subject.zero_gradients:
        return Row(
            NAME, quantity, VACUOUS, how=how, reason="the gradient is identically zero, and not declared so"
        )
    return Row(NAME, quantity, PASSED, error=0.0, tolerance=0.0, how=how)


def _explained(case: Case, got: np.ndarray, expected: np.ndarray, terms: dict[str, np.ndarray]) -> str:
    """How it is wrong, judged at random numbers in place of the symbols."""
    if not case.explain:
        return "wrong"
    arrays = [got, expected, *terms.values()]
    symbols = sorted(
        {s for array in arrays for e in array.flat for s in getattr(e, "free_symbols", ())}, key=str
    )
    values = dict(zip(symbols, case.rng.standard_normal(len(symbols)), strict=True))
    got, expected, *numbers = (_evaluated(array, values) for array in arrays)
    return str(diagnose(expected, got, dict(zip(terms, numbers, strict=True))))


def _evaluated(array: np.ndarray, values: dict[Any, float]) -> np.ndarray:
    import sympy

    flat = [float(sympy.sympify(element).evalf(subs=values)) for element in array.flat]
    return np.array(flat).reshape(array.shape)
