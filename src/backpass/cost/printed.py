"""Read what texts and tools print: formulas in this project's letters, and the TOML
files that hold them.

A file lists the ``columns`` of each kind of record. The records of a kind are in
blocks. A block gives the fields that its rows share, a row the other columns in their
order, and then a table of any further fields. A block without rows is one record.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

Record = TypeVar("Record")

LETTERS = {
    "b": "batch",
    "s": "sequence",
    "h": "width of the model",
    "n_h": "query heads",
    "n_kv": "key-value heads",
    "d": "width of a head",
    "f": "width inside the feed-forward block",
    "V": "vocabulary",
    "L": "layers",
    "N": "parameters, as the source of the formula counts them",
    "F": "FLOPs of the forward",
    "w": "keys in a sliding window, the query's own among them",
    "n_e": "experts",
    "n_a": "experts that a token uses",
    "k": "layers between two checkpoints",
    "m": "rows of the left factor of a product",
    "n": "columns of the left factor",
    "p": "columns of the right factor",
}
# What a formula may consist of.
_ARITHMETIC = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
_FORMULAS = ("expression", "printed", "right", "usual", "off", "terms")


@cache
def symbolic(expression: str) -> Any:
    """Return the expression in SymPy's symbols.

    Raises ValueError if it has a letter that ``LETTERS`` lacks.
    """
    import sympy

    letters = {
        letter: sympy.Symbol(letter, positive=True, integer=True) for letter in LETTERS
    }
    parsed = sympy.sympify(expression, locals=letters)
    _check_letters(expression, {*map(str, parsed.free_symbols - {*letters.values()})})
    return parsed


def value(expression: str, **lengths: Any) -> Any:
    """Evaluate the expression exactly.

    Integers give an int, or a Fraction if a division leaves a remainder; SymPy's
    symbols give an expression. Lengths that the expression does not contain are
    ignored, so one mapping serves all formulas. Raises TypeError if a letter is missing
    or is not one of ``LETTERS``.
    """
    import sympy

    unknown = sorted(lengths.keys() - LETTERS.keys())
    if unknown:
        raise TypeError(
            f"{', '.join(unknown)}: expected letters of LETTERS, {', '.join(LETTERS)}"
        )
    parsed = symbolic(expression)
    missing = sorted({letter.name for letter in parsed.free_symbols} - lengths.keys())
    if missing:
        raise TypeError(
            f"{expression}: expected {', '.join(missing)} by name; got none"
        )
    known = {letter: lengths[letter.name] for letter in parsed.free_symbols}
    result = sympy.sympify(parsed.subs(known, simultaneous=True))
    if result.is_Integer:
        return int(result)
    return Fraction(int(result.p), int(result.q)) if result.is_Rational else result


class Printed:
    """A record of a formula, its ``expression``."""

    expression: str

    def symbolic(self) -> Any:
        """Return the formula in SymPy's symbols."""
        return symbolic(self.expression)

    def at(self, **lengths: Any) -> Any:
        """Evaluate the formula exactly: see ``value``."""
        return value(self.expression, **lengths)


def records(
    kind: Callable[..., Record], contents: dict[str, Any], name: str
) -> tuple[Record, ...]:
    """Return the records of the blocks ``[[name]]`` of a file, in its order. ``kind``
    creates one from its fields.

    Raises ValueError, naming the row, if it does not have the columns that its block
    leaves to it, or if a formula is not arithmetic of ``LETTERS``.
    """
    found = []
    for block in contents[name]:
        shared = {key: block[key] for key in block if key != "rows"}
        columns = contents["columns"].get(name, ())
        left = [column for column in columns if column not in shared]
        for row in block.get("rows", ((),)):
            cells = [cell for cell in row if not isinstance(cell, dict)]
            if len(cells) != len(left):
                raise ValueError(f"{row}: expected {', '.join(left)}")
            fields = {**shared, **dict(zip(left, cells, strict=True))}
            fields |= {} if len(row) == len(cells) else row[-1]
            for each in _FORMULAS:
                check_arithmetic(fields.get(each, ""))
            found.append(kind(**fields))
    return tuple(found)


def contents_of(file: Path) -> dict[str, Any]:
    """Return what a TOML file holds, its arrays as tuples."""
    return _frozen(tomllib.loads(file.read_text(encoding="utf-8")))


def check_arithmetic(formula: str | tuple[str, ...]) -> None:
    """Raise ValueError unless these formulas are arithmetic of numbers and of letters
    of ``LETTERS``. An empty text stands for no formula."""
    for each in filter(None, [formula] if isinstance(formula, str) else formula):
        try:
            nodes = [*ast.walk(ast.parse(each, mode="eval"))]
        except SyntaxError as fault:
            raise ValueError(f"{each}: expected arithmetic") from fault
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        _check_letters(each, names - LETTERS.keys())
        for node in nodes:
            if not isinstance(node, (*_ARITHMETIC, ast.Name, ast.Load, ast.Constant)):
                raise ValueError(
                    f"{each}: expected arithmetic; got {type(node).__name__}"
                )


def _check_letters(expression: str, unknown: set[str]) -> None:
    if unknown:
        raise ValueError(
            f"{expression}: expected letters of LETTERS; "
            f"got {', '.join(sorted(unknown))}"
        )


def _frozen(found: Any) -> Any:
    if isinstance(found, list):
        return tuple(map(_frozen, found))
    if isinstance(found, dict):
        return {key: _frozen(each) for key, each in found.items()}
    return found
