"""The letters of indices, and the dimensions over which they run."""

from __future__ import annotations

import re


class Index:
    """An index letter in one place, with the dimension it runs over.

    It shares the dimension with the letters that it is compared with.
    """

    def __init__(self) -> None:
        self._same: Index | None = None
        self._dimension: str | None = None

    def _root(self) -> Index:
        return self._same._root() if self._same else self

    @property
    def dimension(self) -> str | None:
        return self._root()._dimension

    def runs_over(self, dimension: str) -> bool:
        """Record the dimension; return False if a different one is already known."""
        root = self._root()
        root._dimension = root._dimension or dimension
        return root._dimension == dimension

    def runs_with(self, other: Index) -> bool:
        """Record that both run over the same dimension; return False if different ones
        are already known."""
        mine, theirs = self._root(), other._root()
        if mine is theirs:
            return True
        if (
            mine._dimension
            and theirs._dimension
            and mine._dimension != theirs._dimension
        ):
            return False
        theirs._dimension = theirs._dimension or mine._dimension
        mine._same = theirs
        return True


LARGEST = 4  # the largest size that is tried


def letter_of(token: str) -> str:
    """Return the letter or the number of an index: t of t-1."""
    return re.split(r"[+-]", token, maxsplit=1)[0]


def shift_of(token: str) -> int:
    """Return what an index adds to its letter: −1 for t-1."""
    return int(token[len(letter_of(token)) :] or 0)
