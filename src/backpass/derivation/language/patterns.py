"""Dots: what x_1 + x_2 + ⋯ + x_n or a matrix with dots leaves out.

The first and the last term determine the term at k. They may differ only in indices
that are 1 in the first and one dimension in the last, and the terms before the dots
must follow the pattern; otherwise `Unreadable` is raised.
"""

from __future__ import annotations

from dataclasses import dataclass

from lark import Token, Tree

from backpass.derivation.language.parse import Unreadable


@dataclass(frozen=True)
class Axis:
    """The terms along a row, a column or a sum.

    They are `terms`, one after the other, or, if there is a `letter`, one term at each
    of its values from 1 to the dimension `side`.
    """

    terms: tuple[Tree, ...]
    letter: str = ""
    side: str = ""

    @property
    def length(self) -> str:
        """The number of terms, or the dimension."""
        return self.side or str(len(self.terms))


def axis(terms: list[Tree], letter: str) -> Axis:
    """Return the terms that a list with dots stands for; `letter` is a new index.

    Raises `Unreadable`.
    """
    dots = [at for at, term in enumerate(terms) if term.data == "dots"]
    if not dots:
        return Axis(tuple(terms))
    if dots != [len(terms) - 2] or len(terms) < 3:
        raise Unreadable(
            "dots must come after the first term and directly before the last term"
        )
    first, last = terms[0], terms[-1]
    ends: set[str] = set()
    general = _general(first, last, letter, ends)
    assert isinstance(general, Tree)
    if len(ends) != 1:
        raise Unreadable(
            "dots are read if the first and the last term differ only in indices that are 1 "
            "in the first and one dimension in the last"
        )
    for number, term in enumerate(terms[:-2], start=1):
        if _at(general, letter, str(number)) != term:
            raise Unreadable("the terms before the dots do not follow one pattern")
    return Axis((general,), letter, ends.pop())


def _general(
    first: Tree | Token, last: Tree | Token, letter: str, ends: set[str]
) -> Tree | Token:
    """Return the term at `letter`; add what the last one has in its place to `ends`."""
    if isinstance(first, Token) and isinstance(last, Token):
        if first == last:
            return first
        if first.type == "INDEX" and first == "1" and not last.isdigit():
            ends.add(str(last))
            return Token.new_borrow_pos("INDEX", letter, first)
    elif isinstance(first, Tree) and isinstance(last, Tree):
        if first.data == last.data and len(first.children) == len(last.children):
            pairs = zip(first.children, last.children, strict=True)
            children = [_general(*pair, letter, ends) for pair in pairs]
            return Tree(first.data, children, first.meta)
    raise Unreadable("the first and the last term differ in more than an index")


def _at(tree: Tree | Token, letter: str, number: str) -> Tree | Token:
    """Return the term with a number in place of the letter."""
    if isinstance(tree, Token):
        return Token.new_borrow_pos("INDEX", number, tree) if tree == letter else tree
    children = [_at(child, letter, number) for child in tree.children]
    return Tree(tree.data, children, tree.meta)


@dataclass(frozen=True)
class Grid:
    """The entries of a matrix: a column of rows."""

    rows: Axis
    columns: Axis  # of the first row, for their number and letter

    def entry(self, row: int, column: int) -> Tree:
        """Return the term at a place, in which letters stand for those of dots."""
        whole = self.rows.terms[0 if self.rows.letter else row]
        term = whole.children[0 if self.columns.letter else column]
        assert isinstance(term, Tree)
        return term


def grid(rows: list[Tree], letters: tuple[str, str]) -> Grid:
    """Return the entries that the rows of a matrix stand for. Raises `Unreadable`."""
    found: list[Tree] = []
    columns: list[Axis] = []
    for row in rows:
        if all(entry.data == "dots" for entry in row.children):
            found.append(Tree("dots", []))
            continue
        columns.append(axis(row.children, letters[1]))
        found.append(Tree("row", list(columns[-1].terms), row.meta))
    if len({(one.length, one.letter) for one in columns}) != 1:
        raise Unreadable("the rows of this matrix have different lengths")
    return Grid(axis(found, letters[0]), columns[0])
