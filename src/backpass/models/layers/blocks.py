"""The blocks of a layer. Each reads the residual stream, and its output is added to the
stream; a norm stands before the block, or after the sum.

A layer says which blocks it has, as data. ``forward`` runs one after the other,
``backward`` goes back through them, ``calls`` lists what they call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from backpass.contract.arrays import Array
from backpass.models._parameters import Names, wanted_in_parts
from backpass.models.layers import adding, turned
from backpass.models.layers.calls import Call, call
from backpass.models.layers.kernel import (
    differentiable,
    forward_of_sum,
    gradient_of,
    gradients_of,
    gradients_of_sum,
    implementation,
)
from backpass.ops import dropout, residual

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Block(NamedTuple):
    """A norm, and a part that computes: attention, or a feed-forward block. Each has
    the layer's names of its parameters, by its own arguments."""

    norm: ModuleType
    norm_names: Mapping[str, str]
    part: ModuleType
    names: Mapping[str, str]
    turned: Collection[str] = ()  # the weights that the layer stores as [out, in]
    options: Mapping[str, Any] = NOTHING  # of the part, the same in each call


def named(*same: str, **others: str) -> Mapping[str, str]:
    """Return the layer's names of parameters by the arguments of a norm or a part.
    Those given by position have the same name in both."""
    return MappingProxyType({name: name for name in same} | others)


class Through(NamedTuple):
    """What a block saved. The sum saves no array."""

    norm: Any  # of the norm, or of its kernel
    part: Any  # of the part, of its kernel, or of a scheme
    dropped: Any = None  # of dropout, if there is some


def forward(
    blocks: Sequence[Block],
    x: Array,
    w: Mapping[str, Array | None],
    options: Sequence[Mapping[str, Any]],
    wanted: Collection[str],
    *,
    eps: float,
    kernels: Any,
    norm_first: bool = True,
    drops: Sequence[Mapping[str, Any]] = (),
) -> tuple[Array, list[Through]]:
    """Return the rows ``y[*, s, h]`` of the stream for the rows ``x[*, s, h]``, and
    what each block saved. ``w`` has the parameters by the layer's names, ``options``
    more options of each part. ``drops`` are those of dropout, which follows each part,
    or nothing."""
    saved: list[Through] = []
    of_parts = wanted_in_blocks(blocks, wanted, norm_first)
    a: Array | None = None  # to be added to the stream, where the next norm reads it
    for i, (block, (of_norm, of_part)) in enumerate(zip(blocks, of_parts, strict=True)):
        norm = implementation(block.norm, kernels)
        part = implementation(block.part, kernels)
        scale = [w[name] for name in block.norm_names.values()]
        of_sum = {"eps": eps, "wanted": of_norm}
        own = {
            argument: turned(w[name]) if argument in block.turned else w[name]
            for argument, name in block.names.items()
        }
        dropped = None

        if norm_first:
            a, x, normed = forward_of_sum(norm, x, a, *scale, **of_sum)
        a, computed = part.forward(
            a if norm_first else x,
            **own,
            **block.options,
            **options[i],
            wanted=of_part,
        )
        if drops:
            a, dropped = implementation(dropout, kernels).forward(a, **drops[i])
        if not norm_first:
            x, _, normed = forward_of_sum(norm, x, a, *scale, **of_sum)
        saved.append(Through(normed, computed, dropped))
    if norm_first:
        x, _ = residual.forward(x, a)
    return x, saved


def backward(
    blocks: Sequence[Block],
    dy: Array,
    saved: Sequence[Through],
    wanted: Collection[str],
    norm_first: bool = True,
) -> tuple[Array | None, dict[str, Array]]:
    """Return ``dx[*, s, h]``, and the parameters' gradients by the layer's names, from
    ``dy[*, s, h]``. A gradient that is not wanted is None, or absent."""
    dx, d = dy, {}
    of_parts = wanted_in_blocks(blocks, wanted, norm_first)
    for block, its, (of_norm, of_part) in zip(
        blocks[::-1], saved[::-1], of_parts[::-1], strict=True
    ):
        # In the forward pass the stream was read by a block and then added to its
        # output; so now the gradient that comes back through the block is added to the
        # stream's.
        norm = block.norm, block.norm_names
        if not norm_first:
            dx = _through(*norm, dx, its.norm, of_norm, d)
        da = dx
        if dx is not None and its.dropped is not None:
            da = gradient_of(dropout, dx, its.dropped)
        part = block.part, block.names
        da = _through(*part, da, its.part, of_part, d, block.turned)
        if norm_first:
            dx = _through(*norm, da, its.norm, of_norm, d, ds=dx)
        else:
            dx = None if da is None else dx + da
    return dx, d


def _through(
    operation: ModuleType,
    names: Mapping[str, str],
    dy: Array | None,
    saved: Any,
    wanted: Names,
    d: dict[str, Array],
    stored_turned: Collection[str] = (),
    ds: Array | None = None,
) -> Array | None:
    """Return the gradient of the rows that an operation read, and add those of its
    parameters to ``d``. With ``ds``, the rows' gradient from their other uses, it is
    the sum of both."""
    if ds is None:
        dx, *shares = gradients_of(operation, dy, saved, wanted)
    else:
        dx, *shares = gradients_of_sum(operation, dy, ds, saved, wanted)
    for argument, share in zip(differentiable(operation)[1:], shares, strict=True):
        if share is not None:
            d[names[argument]] = turned(share) if argument in stored_turned else share
    return dx


def wanted_in_blocks(
    blocks: Sequence[Block], wanted: Collection[str], norm_first: bool = True
) -> list[tuple[Names, Names]]:
    """Return the wanted gradients of each block's norm and part."""
    parts: list[Mapping[str, str]] = []
    for norm, part in ((block.norm_names, block.names) for block in blocks):
        parts += (norm, part) if norm_first else (part, norm)
    of = wanted_in_parts(parts, wanted, "x" in wanted)
    first, second = of[::2], of[1::2]
    return [*zip(*((first, second) if norm_first else (second, first)), strict=True)]


def calls(
    blocks: Sequence[Block],
    of_parts: Sequence[tuple[Names, Names]],
    parts: Iterable[Iterable[Call]],
    m: Any,
    h: Any,
    norm_first: bool = True,
) -> tuple[Call, ...]:
    """Return the calls of the norms, of the ``parts``, and of the sums, on m rows of h
    elements. Where the stream was read, its two gradients are added."""
    listed: list[Call] = []
    every = zip(blocks, parts, of_parts, strict=True)
    for i, (block, part, (of_norm, of_part)) in enumerate(every):
        place = ("first", "second", "third")[i] if i < 3 else f"{i + 1}th"
        norm = call(f"{place} norm", block.norm, of_norm, m=m, n=h)
        sums = adding(place, m * h, of_norm if norm_first else of_part)
        listed += (norm, *part, *sums) if norm_first else (*part, *sums, norm)
    return tuple(listed)
