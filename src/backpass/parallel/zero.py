r"""Parameters and the optimiser's state divided among the ranks of data parallelism, as
in ZeRO (Rajbhandari et al., 2020, arXiv:1910.02054) and FSDP.

Each array is flattened, filled up with zeros to a multiple of the number of ranks, and
cut: so any shape can be divided among any number of ranks. A rank keeps its shard of
each parameter. Before a step the shards are gathered; after it each rank's gradients
are summed and cut by a reduce-scatter; AdamW updates each shard by itself::

    whole = zero.gathered(group, own, shapes)
    loss, saved = network.forward(whole, tokens, targets)
    gradients = zero.reduced(group, network.partial(saved))
    gradients, _ = clip(gradients, 1.0, of_each=zero.norms(group, gradients))
    adamw.update(own, gradients, state, decayed=adamw.with_axes(whole))

The two collectives are the adjoints of each other, and an all-reduce is one after the
other: it moves as many bytes. Between two steps a rank stores 1/r of everything. During
a step it has the whole parameters here. ``backpass.parallel.sharded`` gathers them
layer by layer instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from backpass.contract.arrays import Array, namespace, size, widened
from backpass.parallel.group import Group
from backpass.training import clipping

Shape = tuple[int, ...]


def shard_length(shape: Shape, ranks: int) -> int:
    """Return the number of elements of a rank's shard of an array of this shape."""
    return -(-size(shape) // ranks)


def shard(group: Group, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the rank's shards ``[n]`` of whole arrays ``[*]``, as copies."""
    return {
        name: namespace(x).asarray(_cut(x, group.size)[group.rank, :], copy=True)
        for name, x in arrays.items()
    }


def gathered(
    group: Group, shards: Mapping[str, Array], shapes: Mapping[str, Shape]
) -> dict[str, Array]:
    """Return the whole arrays, of these shapes, from the ranks' shards ``[n]``. They
    may be shared with other ranks and must not be written to.

    Raises ValueError for a shard whose length does not fit its shape.
    """
    found = {}
    for name, x in shards.items():
        shape = shapes[name]
        expected = shard_length(shape, group.size)
        if tuple(x.shape) != (expected,):
            raise ValueError(
                f"shards: {name}: expected shape [{expected}], a part of "
                f"{list(shape)} on {group.size} ranks; got {list(x.shape)}"
            )
        xp = namespace(x)
        flat = xp.reshape(group.all_gather(x), (-1,))
        found[name] = xp.reshape(flat[: size(shape)], shape)
    return found


def reduced(group: Group, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Return the rank's shards ``[n]`` of the sum of all ranks' gradients ``[*]``.

    In the forward pass the shards were gathered; so now the gradients are summed and
    cut. Half precision is summed in float32.
    """
    return {
        name: group.reduce_scatter(_cut(widened(g), group.size))
        for name, g in gradients.items()
    }


def norms(
    group: Group,
    parts: Mapping[str, Array],
    counted: Mapping[str, bool] | None = None,
) -> dict[str, float]:
    """Return the norm of each whole gradient from the ranks' parts, the same on every
    rank. ``counted`` has all names. Where it is False for one, this rank has no part,
    or another rank has the same, and it is left out.

    Raises FloatingPointError on every rank if one is not finite.
    """
    try:
        own = clipping.norms(parts)
    except FloatingPointError:
        own = dict.fromkeys(parts, math.nan)
    if counted is not None:
        own = {name: own[name] if mine else 0.0 for name, mine in counted.items()}
    every = np.asarray(group.all_gather(np.asarray([*own.values()])))
    found = {name: math.hypot(*every[:, i]) for i, name in enumerate(own)}
    if not all(map(math.isfinite, found.values())):
        raise FloatingPointError("gradients: on some ranks their norm is not finite")
    return found


def bytes_moved(shapes: Mapping[str, Shape], ranks: int, itemsize: int) -> int:
    """Return the bytes that a rank sends in a step: one all-gather of the parameters,
    of ``itemsize`` bytes per element, and one reduce-scatter of the gradients. Half
    precision is summed in float32."""
    each = sum(shard_length(shape, ranks) for shape in shapes.values())
    return (ranks - 1) * each * (itemsize + max(itemsize, 4))


def bytes_stored(shapes: Mapping[str, Shape], ranks: int, itemsize: int) -> int:
    """Return the bytes that a rank stores between two steps: its shards of the
    parameters and of AdamW's two moments, of ``itemsize`` bytes per element."""
    each = sum(shard_length(shape, ranks) for shape in shapes.values())
    return 3 * each * itemsize


def _cut(x: Array, ranks: int) -> Array:
    """Return ``y[r, n]``, the elements of ``x[*]`` and zeros after them."""
    xp = namespace(x)
    flat = xp.reshape(x, (-1,))
    missing = ranks * shard_length(tuple(x.shape), ranks) - flat.shape[0]
    if missing:
        zeros = xp.zeros((missing,), dtype=x.dtype, device=x.device)
        flat = xp.concat([flat, zeros])
    return xp.reshape(flat, (ranks, -1))
