"""Tensor parallelism: each rank runs a block on its share of the block's weights
(Shoeybi et al., 2019, arXiv:1909.08053), and between the blocks, if asked, each rank
has a part of the sequence (Korthikanti et al., 2022, arXiv:2205.05198).

A block, such as ``feed_forward`` or ``llama_attention``, is a sum over the hidden
columns or the heads, and a rank's share is some of them. So the block as it stands,
run on a rank's shares, returns a partial sum. Forward and backward both enter the
block, run it, and leave it. ``Whole`` and ``Parts`` say what entering and leaving are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, namespace
from backpass.contract.wanted import Wanted
from backpass.models.layers.kernel import (
    Instead,
    differentiable,
    gradients_of,
    implementation,
)
from backpass.parallel._sequence import cut
from backpass.parallel.group import Group


class Whole(NamedTuple):
    """Between the blocks every rank has all rows, and the whole gradient of them."""

    group: Group

    def enter(self, x: Array) -> Array:
        """Return all rows ``[*, s, h]`` from what a rank has between the blocks."""
        return x

    def leave(self, partial: Array) -> Array:
        """Return what a rank has between the blocks from its partial sum of all rows
        ``[*, s, h]``."""
        return self.group.all_reduce(partial)

    def of_rows(self, dw: Array) -> Array:
        """Return the gradient ``[*]`` of a weight that each rank applies to what it has
        between the blocks: here all rows, so it is whole."""
        return dw


class Parts(NamedTuple):
    """Between the blocks a rank has its part of the sequence, and of the gradient."""

    group: Group

    def enter(self, x: Array) -> Array:
        """Return all rows ``[*, r·s, h]`` from a rank's ``x[*, s, h]``."""
        xp = namespace(x)
        return xp.concat([*self.group.all_gather(x)], axis=-2)

    def leave(self, partial: Array) -> Array:
        """Return a rank's rows ``[*, s, h]`` of the sum of all ranks'
        ``partial[*, r·s, h]``. Raises ValueError if r does not divide the sequence."""
        return self.group.reduce_scatter(_cut(partial, self.group.size))

    def of_rows(self, dw: Array) -> Array:
        """Return the gradient ``[*]`` of a weight that each rank applies to its rows:
        the sum over the ranks."""
        return self.group.all_reduce(dw)


class _Entered(NamedTuple):
    """What a block saved, and a rank's rows of its input if ``_ROWS`` is there for
    all of them."""

    own: Any
    x: Array | None


_ROWS = object()


class Block:
    """A block on a rank's share of its weights, with the block's interface.

    ``once`` are the inputs that the whole block adds once, so only the first rank adds
    them. ``partial`` has the groups of ranks that share an input, by its name: a weight
    of query and key norms, or of a key head that several ranks use. ``kernels`` and
    ``options`` take the place of those that a layer passes.
    """

    def __init__(
        self,
        block: ModuleType,
        stream: Whole | Parts,
        *,
        once: Collection[str] = (),
        partial: Mapping[str, Group] | None = None,
        kernels: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.block, self.stream, self.once = block, stream, once
        self.partial, self.kernels = partial or {}, kernels
        self.options = options or {}
        self._tables: tuple[Any, Any] = (None, None)

    def forward(
        self, x: Array, *inputs: Array, wanted: Wanted = None, **named: Any
    ) -> tuple[Array, Instead]:
        """Return what a rank has of ``y`` after the block. Inputs in ``once``, ``cos``
        and ``sin``, and options are passed by name."""
        rank = self.stream.group.rank
        for name in self.once:
            if rank and named.get(name) is not None:
                named[name] = namespace(x).zeros_like(named[name])
        if "cos" in named:
            named["cos"], named["sin"] = self._all_rows(named["cos"], named["sin"])
        if "kernels" in named:
            named["kernels"] = self.kernels
        named |= self.options
        block, rows = implementation(self.block, self.kernels), self.stream.enter(x)
        partial, own = block.forward(rows, *inputs, **named, wanted=wanted)
        saved = _Entered(own, None)
        if rows is not x:
            # All rows are not kept: the backward gathers them again.
            without = _replaced(own, rows, _ROWS)
            saved = _Entered(without, None if without is own else x)
        return self.stream.leave(partial), Instead(self, saved, own.wanted)

    def backward(
        self, dy: Array, saved: _Entered, *, wanted: tuple[str, ...]
    ) -> tuple[Array | None, ...]:
        """Return what a rank has of the gradients, from what it has of ``dy``."""
        own = saved.own
        if saved.x is not None:
            own = _replaced(own, _ROWS, self.stream.enter(saved.x))
        found = gradients_of(self.block, self.stream.enter(dy), own, wanted)
        d = dict(zip(differentiable(self.block), found, strict=True))
        if "x" in wanted:
            d["x"] = self.stream.leave(d["x"])
        for name, group in self.partial.items():
            if name in wanted:
                d[name] = group.all_reduce(d[name])
        return tuple(d.values())

    def _all_rows(self, cos: Array, sin: Array) -> tuple[Array, Array]:
        """Return the tables of all rows, gathered once for all layers."""
        known, tables = self._tables
        if known is not cos:
            tables = self.stream.enter(cos), self.stream.enter(sin)
            self._tables = cos, tables
        return tables


class Norm:
    """A norm between the blocks, with the interface of the operation."""

    def __init__(self, norm: ModuleType, stream: Whole | Parts, kernels: Any) -> None:
        self.norm, self.stream, self.kernels = norm, stream, kernels

    def forward(
        self, *inputs: Array, wanted: Wanted = None, **options: Any
    ) -> tuple[Array, Instead]:
        """Return the norm of what a rank has of x."""
        norm = implementation(self.norm, self.kernels)
        y, saved = norm.forward(*inputs, **options, wanted=wanted)
        return y, Instead(self, saved, saved.wanted)

    def backward(
        self, dy: Array, saved: Any, *, wanted: tuple[str, ...]
    ) -> tuple[Array | None, ...]:
        """Return what a rank has of ``dx``, and the whole gradients of the weights."""
        dx, *dw = gradients_of(self.norm, dy, saved, wanted)
        return dx, *(d if d is None else self.stream.of_rows(d) for d in dw)


def _replaced(saved: Any, old: Any, new: Any) -> Any:
    """Return what a part saved with ``new`` for ``old``, or itself without ``old``."""
    if saved is old:
        return new
    if not isinstance(saved, tuple):
        return saved
    inner = [_replaced(value, old, new) for value in saved]
    if all(a is b for a, b in zip(inner, saved, strict=True)):
        return saved
    return saved._make(inner) if hasattr(saved, "_make") else tuple(inner)


def _cut(x: Array, ranks: int) -> Array:
    """Return ``y[r, *, s, h]``, the parts of ``x[*, r·s, h]`` along the sequence."""
    s = x.shape[-2]
    if s % ranks:
        raise ValueError(
            f"sequence: expected a multiple of {ranks} tokens, because each of the "
            f"{ranks} ranks has an equal part; got {s}"
        )
    return namespace(x).stack(cut(x, ranks))
