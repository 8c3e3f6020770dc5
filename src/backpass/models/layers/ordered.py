"""Blocks with a layer norm each, which stands before the block or after its sum with
the residual stream: what the layers of an encoder and of a decoder list of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from backpass.models._parameters import Names, wanted_in_parts
from backpass.models.layers import adding
from backpass.models.layers.calls import Call, call
from backpass.ops import layer_norm

PLACES = ("first", "second", "third")
FED = {name: name for name in ("w_up", "b_up", "w_down", "b_down")}  # feed_forward's


def wanted_in_blocks(
    blocks: Sequence[Mapping[str, str]], wanted: Collection[str], norm_first: bool
) -> list[Names]:
    """Return the wanted gradients of each block, each followed by those of its norm. A
    block is given as the layer's name of each of its inputs."""
    norms = [{c: f"norm_{i}_{c}" for c in "wb"} for i, _ in enumerate(blocks, 1)]
    pairs = zip(norms, blocks, strict=True)
    parts = [part for pair in pairs for part in (pair if norm_first else pair[::-1])]
    of = wanted_in_parts(parts, wanted, "x" in wanted)
    first, second = (1, 0) if norm_first else (0, 1)
    return [of[i + j] for i in range(0, len(of), 2) for j in (first, second)]


def calls(
    blocks: Iterable[Iterable[Call]],
    of_parts: Sequence[Names],
    norm_first: bool,
    m: Any,
    h: Any,
) -> tuple[Call, ...]:
    """Return the calls of the ``blocks``, of their norms, and of the sums. ``of_parts``
    are the wanted gradients of each block and its norm. Where the stream was read, its
    two gradients are added."""
    listed: list[Call] = []
    of = zip(PLACES, blocks, of_parts[::2], of_parts[1::2], strict=False)
    for place, block, of_block, of_norm in of:
        norm = call(f"{place} norm", layer_norm, of_norm, m=m, n=h)
        sums = adding(place, m * h, of_norm if norm_first else of_block)
        listed += (norm, *block, *sums) if norm_first else (*block, *sums, norm)
    return tuple(listed)
