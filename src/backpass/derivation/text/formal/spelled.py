"""Derivatives by a vector that are written out as a column, a row, or a matrix."""

from __future__ import annotations

import re
from dataclasses import dataclass

from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.tokens import CELL, DOTS, ROW
from backpass.derivation.text.formal.trees import Node, Unclear

_MATRIX = r"\{ [bp] m a t r i x \}"
_ARRAY = re.compile(rf"array {_MATRIX} (.*) \\end {_MATRIX}", re.S)
_FACE = re.compile(r"\\(?:mathbf|boldsymbol|bm|vec|pmb)\{(.*)\}")
NABLA = r"\nabla"
GRADIENT = "gradients are columns"
NUMERATOR = "derivatives are in numerator layout"
DENOMINATOR = "derivatives are in denominator layout"
Place = tuple[str, ...]  # the indices of an entry


@dataclass(frozen=True)
class _Entry:
    """A derivative in an array: what of, by what, and the indices of both."""

    of: str
    by: str
    above: Place
    below: Place


Row = list[_Entry | None]


def spelled(whole: Node, array: Node, manner: Manner) -> str | None:
    """Return in words in what layout a derivative has the entries of an array; None if
    they are other ones, or some entry is not a derivative."""
    match = _ARRAY.fullmatch(array.value) if array.kind == "other" else None
    if match is None or whole.kind != "slope":
        return None
    lines_of = match[1].replace(CELL, " ").split(ROW)
    read = [_entries(row.split(), manner) for row in lines_of]
    rows = [row for row in read if row]
    lines = [[one for one in row if one is not None] for row in rows]
    if None in read or not any(lines):
        return None
    entries = [one for row in lines for one in row]
    of, by = whole.parts
    if len({(one.of, one.by) for one in entries}) > 1:
        return None
    if by.value != NABLA and _plain(by.value) != entries[0].by:
        return None
    if of.kind == "slope":
        return _hessian(whole, rows)
    name = of.parts[0] if of.kind == "apply" else of
    if name.kind != "name" or name.subs or _plain(name.value) != entries[0].of:
        return None
    if all(not one.above for one in entries):
        return _gradient(by, rows)
    if by.value == NABLA:
        return None
    return _jacobian(rows)


def _gradient(by: Node, rows: list[Row]) -> str | None:
    if all(len(row) <= 1 for row in rows):
        column = [one for row in rows for one in row]
        return (
            GRADIENT
            if _counts([one.below if one else None for one in column])
            else None
        )
    if len(rows) == 1 and by.value != NABLA:
        return (
            NUMERATOR
            if _counts([one.below if one else None for one in rows[0]])
            else None
        )
    return None


def _jacobian(rows: list[Row]) -> str | None:
    full = [row for row in rows if any(row)]
    first = [row[0] for row in full]
    if len(full) < 2 or len(full[0]) < 2 or None in first:
        return None
    for words, down, across in (
        (NUMERATOR, "above", "below"),
        (DENOMINATOR, "below", "above"),
    ):
        heads = [getattr(one, down) for one in first]
        if (
            all({getattr(one, down) for one in row if one} == {head}
                for row, head in zip(full, heads, strict=True))
            and all(_counts([getattr(one, across) if one else None for one in row]) for row in full)
            and _counts(_with_dots(rows, heads))
            and len({tuple(getattr(one, across) if one else None for one in row) for row in full}) == 1
        ):  # fmt: skip
            return words
    return None


def _hessian(whole: Node, rows: list[Row]) -> str | None:
    inner = whole.parts[0]
    name = inner.parts[0].parts[0] if inner.parts[0].kind == "apply" else inner.parts[0]
    full = [row for row in rows if any(row)]
    if inner.parts[1] != whole.parts[1] or name.kind != "name" or len(full) < 2:
        return None
    if {_plain(name.value)} != {one.of for row in rows for one in row if one}:
        return None
    for row in full:
        if row[0] is None or row[-1] is None:
            return None
    across = [one.below if one else None for one in full[0]]
    ends = [place[-1] for place in across if place]
    if any(place and place[0] != "1" for place in across):
        return None
    heads = [row[0].below[0] for row in full if row[0]]
    if across[0] != ("1", "1"):
        return None
    columns = _letters(across, ends)
    if not _counts(columns) or not _counts(_with_dots(rows, [(one,) for one in heads])):
        return None
    for head, row in zip(heads, full, strict=True):
        for one, column in zip(row, columns, strict=False):
            if (one is None) != (column is None):
                return None
            if one and column and sorted(one.below) != sorted((head, *column)):
                return None
        if len(row) != len(columns):
            return None
    return GRADIENT


def _letters(across: list[Place | None], ends: list[str]) -> list[Place | None]:
    """Return the second index of each entry of the first row."""
    found = iter(ends)
    return [None if place is None else (next(found),) for place in across]


def _with_dots(rows: list[Row], heads: list[Place]) -> list[Place | None]:
    """Return the indices of the rows, with None for a row of dots."""
    found = iter(heads)
    return [next(found) if any(row) else None for row in rows]


def _counts(places: list[Place | None]) -> bool:
    """Whether indices count from 1, with dots before the last one if it is a letter."""
    shown = [place for place in places if place is not None]
    if not shown or any(len(place) != 1 for place in shown):
        return False
    last = shown[-1][0]
    if None not in places:
        return [one for (one,) in shown] == [str(k + 1) for k in range(len(shown))]
    numbers = [one for (one,) in shown[:-1]]
    at = places.index(None)
    return (
        places.count(None) == 1
        and at == len(places) - 2
        and numbers == [str(k + 1) for k in range(len(numbers))]
        and bool(numbers)
        and (last.isalpha() or (last.isdigit() and int(last) > len(numbers) + 1))
    )


def _entries(tokens: list[str], manner: Manner) -> Row | None:
    """Return the entries of a row, None for dots; None if one is something else."""
    found: Row = []
    while tokens:
        if tokens[0] in DOTS or tokens[0] == r"\vdots":
            found.append(None)
            tokens = tokens[1:]
            continue
        size = _size(tokens)
        try:
            node = read_formula(" ".join(tokens[:size]), manner)
        except Unclear:
            return None
        entry = _entry(node)
        if entry is None:
            return None
        found.append(entry)
        tokens = tokens[size:]
    return found


def _size(tokens: list[str]) -> int:
    """Return how many tokens a fraction has."""
    at = 1
    for _ in range(2):
        depth = 0
        while at < len(tokens):
            depth += (tokens[at] == "{") - (tokens[at] == "}")
            at += 1
            if not depth:
                break
    return at


def _entry(node: Node) -> _Entry | None:
    below: list[str] = []
    by = ""
    while node.kind == "slope":
        node, variable = node.parts
        place = _place(variable)
        if place is None or not place or (by and variable.value != by):
            return None
        by = variable.value
        below = [*below, *place]
    name = node.parts[0] if node.kind == "apply" else node
    above = _place(name)
    if above is None or not by:
        return None
    return _Entry(_plain(name.value), _plain(by), above, tuple(below))


def _place(name: Node) -> Place | None:
    """Return the one index of a name, () if it has none, None if it is not clear."""
    if name.kind != "name" or len(name.subs) > 1 or any(len(g) != 1 for g in name.subs):
        return None
    return name.subs[0] if name.subs else ()


def _plain(name: str) -> str:
    match = _FACE.fullmatch(name)
    return match[1] if match else name
