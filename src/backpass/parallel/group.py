"""The interface by which a rank exchanges arrays with the other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from backpass.arrays import Array
from backpass.values import check_natural


class Group(Protocol):
    """The ranks that run a scheme, as one of them sees them.

    All ranks call the same collectives in the same order, with arrays of one shape and
    dtype. ``x`` and the result are what this rank holds. Inputs are not modified. The
    result may be shared with other ranks and must not be written to.
    """

    rank: int  # of this rank, from 0
    size: int  # the number of ranks

    def all_reduce(self, x: Array) -> Array:
        """Return the sum of all ranks' ``x[*]``."""

    def all_gather(self, x: Array) -> Array:
        """Return ``y[size, *]``, every rank's ``x[*]``."""

    def reduce_scatter(self, x: Array) -> Array:
        """Return this rank's part ``y[*]`` of the sum of all ranks' ``x[size, *]``."""

    def all_to_all(self, x: Array) -> Array:
        """Return ``y[size, *]``: from every rank, the part of its ``x[size, *]`` that
        is meant for this rank."""

    def broadcast(self, x: Array, *, root: int = 0) -> Array:
        """Return the root's ``x[*]``."""

    def reduce(self, x: Array, *, root: int = 0) -> Array:
        """Return the sum of all ranks' ``x[*]`` on the root, and 0 on the others."""

    def shift(self, x: Array, *, places: int = 1) -> Array:
        """Return the ``x[*]`` of the rank ``places`` before this one on the ring."""


Scheme = Callable[..., Any]  # scheme(group, *arguments)


class RankError(RuntimeError):
    """A rank failed, or did not answer. ``rank`` is its number."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(rank, message)
        self.rank = rank

    def __str__(self) -> str:
        return "rank {}: {}".format(*self.args)


def check_ranks(ranks: object) -> None:
    """Raise TypeError or ValueError unless ``ranks`` is an integer of at least 1."""
    check_natural(ranks=ranks)
    if not ranks:
        raise ValueError("ranks: expected an integer of at least 1; got 0")
