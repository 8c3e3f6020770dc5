"""The interface by which a rank exchanges arrays with the other ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from backpass.contract.arrays import Array, is_array, namespace
from backpass.contract.shapes import kind
from backpass.training._numbers import check_count, check_integer


class Group(Protocol):
    """The ranks that run a scheme, as one of them sees them.

    All ranks call the same collectives in the same order, with arrays of one shape,
    dtype, and library, of floating-point numbers, and with the same options. No tensor
    requires a gradient. ``x`` and the result are what this rank holds. Inputs are not
    modified. The result may be shared with other ranks and must not be written to.
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

    def split(self, colour: int) -> Group:
        """Return the group of the ranks that give the same ``colour``, an integer, in
        the order of their ranks. All ranks call it."""


class ByName:
    """A ``Group`` that runs each collective by its name."""

    def _run(self, name: str, x: Array, **options: int) -> Array:
        """Return what the collective of that name returns."""
        raise NotImplementedError

    def all_reduce(self, x: Array) -> Array:
        return self._run("all_reduce", x)

    def all_gather(self, x: Array) -> Array:
        return self._run("all_gather", x)

    def reduce_scatter(self, x: Array) -> Array:
        return self._run("reduce_scatter", x)

    def all_to_all(self, x: Array) -> Array:
        return self._run("all_to_all", x)

    def broadcast(self, x: Array, *, root: int = 0) -> Array:
        return self._run("broadcast", x, root=root)

    def reduce(self, x: Array, *, root: int = 0) -> Array:
        return self._run("reduce", x, root=root)

    def shift(self, x: Array, *, places: int = 1) -> Array:
        return self._run("shift", x, places=places)


Scheme = Callable[..., Any]  # scheme(group, *arguments)


class RankError(RuntimeError):
    """A rank failed, or did not answer. ``rank`` is its number."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(rank, message)
        self.rank = rank

    def __str__(self) -> str:
        return "rank {}: {}".format(*self.args)


def mesh(group: Group, **sizes: int) -> dict[str, Group]:
    """Return this rank's group along each axis of a mesh, by the axis's name.

    The ranks are laid out in a block of these sizes, of which the last varies fastest.
    So ``mesh(group, data=2, tensor=4)`` has the ranks 0 to 3 in one group "tensor", and
    the ranks 0 and 4 in one group "data". All ranks call it.

    Raises TypeError for something else than a group; TypeError or ValueError if a size
    is not an integer of at least 1, and ValueError if their product is not the number
    of ranks.
    """
    if not hasattr(group, "split"):
        raise TypeError(
            "group: expected a Group, such as on_threads passes to a scheme; "
            f"got {type(group).__name__}"
        )
    check_count(**sizes)
    if math.prod(sizes.values()) != group.size:
        came = " × ".join(f"{name} = {size}" for name, size in sizes.items())
        raise ValueError(
            f"mesh: expected sizes whose product is {group.size}, the number of ranks; "
            f"got {came or 'none'}"
        )
    groups, stride = {}, group.size
    for name, size in sizes.items():
        stride //= size
        # The ranks of a group differ in this coordinate only, so without it they agree.
        groups[name] = group.split(group.rank - group.rank // stride % size * stride)
    return groups


def members(group: Group, colour: int) -> list[int]:
    """Return the ranks of the group that give this rank's colour. All ranks call it.
    Raises TypeError if the colour is not an integer, and ValueError if it is beyond
    ±2⁵³: colours travel as float64."""
    check_integer(colour=colour)
    if abs(int(colour)) > 2**53:
        raise ValueError(
            f"colour: expected an integer from −2**53 to 2**53; got {colour}"
        )
    colours = group.all_gather(np.asarray(float(colour)))
    return [rank for rank in range(group.size) if colours[rank] == float(colour)]


def check_ranks(ranks: object) -> None:
    """Raise TypeError or ValueError unless ``ranks`` is an integer of at least 1."""
    check_count(ranks=ranks)


def check_scheme(scheme: object) -> None:
    """Raise TypeError unless ``scheme`` can be called."""
    if not callable(scheme):
        raise TypeError(
            "scheme: expected a function that takes a group; "
            f"got {type(scheme).__name__}"
        )


def check_array(x: Any) -> None:
    """Raise TypeError unless ``x``, which is to be exchanged, is an array of real or
    complex floating-point numbers; ValueError for a tensor of which autograd would
    follow the exchange: it does not reach other processes."""
    if not is_array(x):
        raise TypeError(f"x: expected an array; got {type(x).__name__}")
    if not namespace(x).isdtype(x.dtype, ("real floating", "complex floating")):
        raise TypeError(f"x: expected floating-point numbers; got {kind(x).dtype}")
    if getattr(x, "requires_grad", False):
        import torch

        if torch.is_grad_enabled():
            raise ValueError(
                "x: expected a tensor that requires no gradient, because autograd does "
                "not reach other processes; detach it"
            )


def described(name: str, x: Array, **options: object) -> str:
    """Return a call of a collective in words. Calls that fit have the same words."""
    given = "".join(f", {key}={value}" for key, value in options.items())
    of_kind = " ".join(map(str, kind(x)))
    return f"{name}(x{list(x.shape)} {of_kind}{given})"


def check_calls(calls: Sequence[str]) -> None:
    """Raise ValueError unless the calls of all ranks, in words, are the same."""
    for rank, call in enumerate(calls):
        if call != calls[0]:
            raise ValueError(
                "every rank has to call the same collective, with an array of the same "
                f"shape and kind; rank 0 called {calls[0]}, rank {rank} {call}"
            )
