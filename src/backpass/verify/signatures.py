"""Read the names and the defaults in a function's signature, and the names of what it
returns in its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any


def parameters_of(function: Callable) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin has no signature
        return None


def input_names(function: Callable, count: int) -> tuple[str, ...]:
    """Return the names of the first ``count`` positional parameters, or x1, x2, … where
    the signature has none."""
    parameters = parameters_of(function) or []
    names = [
        p.name
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ][:count]
    return (*names, *(f"x{at + 1}" for at in range(len(names), count)))


def option_names(forward: Callable, count: int, others: set[str]) -> list[str] | None:
    """Return the names of the options of a forward with ``count`` inputs, without
    ``others``; None if it takes any or has no signature."""
    parameters = parameters_of(forward)
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    if parameters is None or any(p.kind in variadic for p in parameters):
        return None
    return [p.name for p in parameters[count:] if p.name not in others]


def with_options(
    operator: Callable | None, count: int, options: Mapping[str, Any]
) -> Callable | None:
    """Return an operator of ``count`` inputs with those options that it names."""
    if operator is None:
        return None
    parameters = parameters_of(operator) or []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    inputs = {p.name for p in parameters[:count] if p.kind != p.KEYWORD_ONLY}
    named = {p.name for p in parameters if p.kind not in positional} - inputs
    taken = {name: options[name] for name in options.keys() & named}
    return partial(operator, **taken) if taken else operator


def defaults_of(forward: Callable, names: Sequence[str]) -> dict[str, Any]:
    """Return the default of each parameter of forward that has one. The first
    parameters are the inputs, which have these names."""
    parameters = parameters_of(forward) or []
    named = [*names, *(p.name for p in parameters[len(names) :])]
    return {
        name: p.default
        for name, p in zip(named, parameters, strict=False)
        if p.default is not p.empty
    }


def returned_names(function: Callable, count: int) -> list[str]:
    """Return the names of the last ``count`` values that a function returns, as in
    ``return dx, dgamma, dbeta`` or ``return dx, [dw, db]``; none if the source does not
    show them."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    returns = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    last = returns[-1] if returns else None
    listed = _elements(last) if isinstance(last, ast.Tuple) and count > 0 else []
    names = [getattr(element, "id", getattr(element, "attr", "")) for element in listed]
    return names[-count:]


def _elements(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Tuple | ast.List):
        return [node]
    return [element for part in node.elts for element in _elements(part)]
