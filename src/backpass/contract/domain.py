"""Read the parts of a declaration that are not shapes: the values that an input may
have, and the clauses after the outputs.

The docstring of ``contract.shapes`` explains the language.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Sequence
from typing import Any

DTYPES = ("float64", "float32", "float16", "bfloat16")
FLAGS = {"int": "integer", "bool": "boolean", "broadcast": "broadcast"}
FLAGS |= {"shared": "shared", "some": "some"}
TABLES = ("table", "halves", "pairs", "mask")
CLAUSES = ("options", "dtypes", "kinks")
_RANGE = re.compile(r"(int|offsets)\s*<\s*(\w+)((?:\s*,\s*(?:-?\d+|[a-zA-Z_]\w*))*)")
_MASK = re.compile(r"mask\s*=(.*)")


def marks(array: str, text: str) -> dict[str, Any]:
    """Return the facts that the marks after an array's axes state, such as
    ``:int<V,-100``, by the names of the fields of Spec.

    Raises ValueError for a mark that cannot be read.
    """
    facts: dict[str, Any] = {}
    for mark in text.split(":")[1:]:
        mark = mark.strip()
        if mark in FLAGS:
            facts[FLAGS[mark]] = True
        elif mark.replace(" ", "") == "some=False":
            facts |= {"some": True, "inverted": True}
        else:
            facts.update(_values(array, mark))
    if "some" in facts and not ("boolean" in facts or facts.get("structure") == "mask"):
        raise ValueError(
            f"SHAPES: expected :some after :bool or :mask of {array}; got {text.strip()}"
        )
    if "inverted" in facts and "boolean" not in facts:
        raise ValueError(
            f"SHAPES: expected :some=False after :bool of {array}; got {text.strip()}"
        )
    kinds = [name for name in ("integer", "boolean", "structure") if name in facts]
    if len(kinds) > 1:
        raise ValueError(
            f"SHAPES: expected one kind of values for {array}; got {text.strip()}"
        )
    return facts


def _values(array: str, mark: str) -> dict[str, Any]:
    """Return the facts of a mark that says more than one word."""
    if mark in TABLES:
        return {"structure": mark}
    if found := _RANGE.fullmatch(mark):
        kind, below, listed = found.groups()
        others = [one.strip() for one in listed.split(",")[1:]]
        named = tuple([one for one in others if one.isidentifier()])
        sentinels = tuple([int(one) for one in others if one not in named])
        if kind == "int":
            facts = {"sentinels": sentinels, "named": named}
            return {"integer": True, "below": below, **facts}
        if not others:
            return {"integer": True, "below": below, "offsets": True}
    elif found := _MASK.fullmatch(mark):
        with contextlib.suppress(ValueError):
            choices = [float(one) for one in found[1].split("|")]
            return {"structure": "mask", "choices": tuple(choices)}
    raise ValueError(
        f"SHAPES: cannot read :{mark} after {array}; expected :int, :int<V, "
        ":int<V,-100, :int<V,ignore_index, :offsets<n, :bool, :table, :halves, :pairs, "
        ":mask, :mask=0|-inf, :some, :some=False, :broadcast or :shared"
    )


def clauses(texts: Sequence[str]) -> dict[str, Any]:
    """Return the facts of the clauses after the outputs, by the names of the fields of
    Shapes.

    Raises ValueError for a clause that cannot be read.
    """
    facts: dict[str, Any] = {}
    for text in texts:
        name, _, rest = text.strip().partition(" ")
        if name not in CLAUSES or name in facts or not rest.strip():
            raise ValueError(
                f"SHAPES: cannot read the clause {text.strip()!r}; expected one each of "
                "'options reduction=mean|sum', 'dtypes float32, bfloat16', and "
                "'kinks x=0|0.7'"
            )
        items = [item.strip() for item in rest.split(",")]
        if name == "dtypes":
            facts[name] = _dtypes(text, items)
        else:
            read = _literal if name == "options" else float
            facts[name] = tuple([_several(text, item, read) for item in items])
    return facts


def _dtypes(clause: str, names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in DTYPES:
            raise ValueError(
                f"SHAPES: expected some of {', '.join(DTYPES)} in the clause "
                f"{clause.strip()!r}; got {name!r}"
            )
    return tuple(names)


def _several(clause: str, item: str, read: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the name and the values of ``name=value|value``."""
    name, equals, listed = item.partition("=")
    name = name.strip()
    try:
        if not equals or not name.isidentifier():
            raise ValueError
        return name, tuple([read(one) for one in listed.split("|")])
    except ValueError:
        what = "numbers, as in x=0|0.7" if read is float else "reduction=mean|sum"
        raise ValueError(
            f"SHAPES: cannot read {item!r} in the clause {clause.strip()!r}; "
            f"expected {what}"
        ) from None


def _literal(text: str) -> Any:
    """Return the value of a Python literal; a word without quotes is a string."""
    text = text.strip()
    if text.isidentifier() and text not in ("True", "False", "None"):
        return text
    try:
        return ast.literal_eval(text)
    except SyntaxError as error:
        raise ValueError from error
