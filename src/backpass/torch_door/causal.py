"""Causal attention in blocks of queries, as a compiler should see it.

The scores of a block end at the last key that one of its queries sees. So four blocks
compute five eighths of the scores, and the scores of a block stay in the cache. Each
block is the operation ``attention`` itself: its queries are the last of the keys that
it is given, which is ``causal_variant="lower_right"``.

The module has the ``forward`` and ``backward`` of an operation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from types import ModuleType
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients, is_half, namespace
from backpass.contract.wanted import Wanted
from backpass.ops import attention

BLOCKS = 4
LEAST = 64  # queries of a block

# The options for which the blocks together are the operation.
FORMS = {"causal": True, "window": None, "dropout_p": 0.0}


class Saved(NamedTuple):
    """What ``attention`` saves of each block."""

    blocks: tuple[attention.Saved, ...]


def instead(
    op: ModuleType, inputs: Sequence[Any], options: Mapping[str, Any]
) -> ModuleType:
    """Return this module if it computes what ``op`` does for such a call, or ``op``."""
    if op is not attention:
        return op
    q, k, _, *others = inputs
    fits = (
        all(options[name] == value for name, value in FORMS.items())
        and all(x is None for x in others)
        and not is_half(q.dtype)
        and q.shape[-2] == k.shape[-2] >= BLOCKS * LEAST
    )
    return sys.modules[__name__] if fits else op


def _blocks(queries: int) -> Iterator[slice]:
    """Return the queries of each block, of which the last may have fewer."""
    length = -(-queries // BLOCKS)
    for start in range(0, queries, length):
        yield slice(start, min(start + length, queries))


def forward(
    q: Array, k: Array, v: Array, *others: None, wanted: Wanted = None, **options: Any
) -> tuple[Array, Saved]:
    """Return ``y[*, n_h, s, d_v]``, as ``attention`` does."""
    chosen = {**options, "causal_variant": "lower_right", "wanted": wanted}
    found = [
        attention.forward(
            q[..., rows, :], k[..., : rows.stop, :], v[..., : rows.stop, :], **chosen
        )
        for rows in _blocks(q.shape[-2])
    ]
    y = namespace(q).concat([y for y, _ in found], axis=-2)
    return y, Saved(tuple(saved for _, saved in found))


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dq``, ``dk``, ``dv``, and None twice, as ``attention`` does."""
    blocks = list(_blocks(dy.shape[-2]))
    found = [
        attention.backward(dy[..., rows, :], block, wanted=wanted)
        for rows, block in zip(blocks, saved.blocks, strict=True)
    ]
    dq, dk, dv, *_ = zip(*found, strict=True)
    xp = namespace(dy)

    # In the forward pass a block's queries were its own, and the first keys and values
    # belonged to all blocks from theirs on.
    def of_keys(parts: Sequence[Array]) -> Array:
        sums = [
            reduce(add, [part[..., keys, :] for part in parts[at:]])
            for at, keys in enumerate(blocks)
        ]
        return xp.concat(sums, axis=-2)

    return (
        xp.concat(dq, axis=-2) if dq[0] is not None else None,
        of_keys(dk) if dk[0] is not None else None,
        of_keys(dv) if dv[0] is not None else None,
        None,
        None,
    )
