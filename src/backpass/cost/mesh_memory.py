"""The bytes that a training step holds on one rank of a mesh, by use.

The axes are those of ``mesh_step``: with a tensor axis the sequence is divided between
the blocks, the optimiser's states are sharded over data and context, and a pipeline
runs one forward and one backward in turn. Parameters, and the float32 sums of their
gradients, are whole along data and context. The head's scores are stored whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from backpass.contract.arrays import size
from backpass.contract.stems import entry
from backpass.cost.activations import activations
from backpass.cost.budget import Budget, Share, wide_of
from backpass.cost.cluster import Mesh, check_mesh, layers_of_stages
from backpass.cost.networks import WIDTHS
from backpass.cost.sizes import network_of
from backpass.parallel.pieces import stages
from backpass.parallel.schedules import one_f_one_b
from backpass.parallel.shares import shares, span
from backpass.parallel.zero import shard_length

INDEX = 8  # bytes of a token, a target, or a position: int64


def mesh_memory(
    config: Any,
    mesh: Mesh,
    batch: int,
    sequence: int,
    *,
    micro_batch: int = 1,
    dtype: str = "bfloat16",
    flash: bool = True,
    recompute: bool = False,
    ends: bool = True,
    place: int | None = None,
) -> Budget:
    """Return what a rank holds in a training step of ``batch`` sequences in all.

    The rank is that ``place`` of the pipeline, from 0, by default the one that holds
    most; its number along the other axes is 0. The other arguments are those of
    ``mesh_step``. With ``recompute`` only the inputs of the layers are kept, and one
    layer at a time is run again. What operations need while they run is not counted,
    nor are arrays on their way between ranks.

    Raises what ``mesh_step`` raises; LookupError for an unknown dtype, and ValueError
    for a place outside the pipeline.
    """
    flags = {"flash": flash, "recompute": recompute, "ends": ends}
    config, name = check_mesh(config, mesh, batch, sequence, micro_batch, **flags)
    p = mesh.pipeline
    if place is not None and (type(place) is not int or not 0 <= place < p):
        raise ValueError(
            f"place: expected an integer from 0 to {p - 1}, or None; got {place!r}"
        )
    rank = _Rank(config, mesh, batch, sequence, micro_batch, dtype, flash, recompute)
    layers = layers_of_stages(config.layers, p, ends=ends)
    places = range(p) if place is None else [place]
    found = {at: tuple(rank.shares(at, layers)) for at in places}
    most = max(found, key=lambda at: sum(share.bytes for share in found[at]))
    of = f", place {most} of {p} in the pipeline" if p > 1 else ""
    title = (
        f"A rank of {mesh.ranks:,}{of}: {name} in {dtype}, batch {batch:,}, "
        f"sequence {sequence:,}"
    )
    return Budget(title, found[most])


class _Rank:
    """What the ranks of a mesh hold, by their place in the pipeline."""

    def __init__(
        self,
        config: Any,
        mesh: Mesh,
        batch: int,
        sequence: int,
        micro_batch: int,
        dtype: str,
        flash: bool,
        recompute: bool,
    ) -> None:
        self.config, self.mesh, self.recompute = config, mesh, recompute
        self.width = entry("dtype", dtype, WIDTHS)
        p = mesh.pipeline
        # More micro-batches than 2p change nothing: a rank holds no more of them.
        batches = min(batch // (mesh.data * micro_batch), 2 * p)
        whole = p * math.ceil(batches / p) if mesh.chunks > 1 else batches
        self.schedule = one_f_one_b(p, whole, chunks=mesh.chunks)
        self.dtype, self.wide = dtype, wide_of(dtype)
        self.rows = micro_batch * sequence // mesh.context
        self.positions = sequence // mesh.context
        kept = activations(
            config, micro_batch, sequence, dtype=dtype, flash=flash, chunked=False
        )
        self.saved: Mapping[str, int] = kept.by_part()

    def shares(self, place: int, layers: list[int]) -> Iterator[Share]:
        """Yield what the rank at this place of the pipeline holds, if the places have
        so many layers."""
        mesh, wide = self.mesh, WIDTHS[self.wide]
        shapes = self._shapes(place, layers)
        count = sum(map(size, shapes))
        ranks = mesh.data * mesh.context
        own = sum(shard_length(shape, ranks) for shape in shapes)
        yield Share("weights", self.dtype, count, count * self.width)
        yield Share("sums of gradients", self.wide, count, count * wide)
        copies = 2 if self.width == wide else 3  # and the master weights
        what = "AdamW's moments" if copies == 2 else "master weights, AdamW's moments"
        yield Share(f"shards of {what}", self.wide, copies * own, copies * own * wide)
        held, again = self._held(place, layers)
        yield Share("activations", f"{self.dtype}, {self.wide}", None, held)
        if again:
            yield Share("one layer, recomputed", "", None, again)
        if tables := self._tables():
            yield Share("tables", self.dtype, None, tables)

    def _shapes(self, place: int, layers: list[int]) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters on the first rank of the tensor axis."""
        model, c = network_of(self.config)
        rates = [name for name in vars(c) if name.endswith("_dropout")]
        c = replace(c, **dict.fromkeys(rates, 0.0))
        of_rank = shares(model, c, 0, self.mesh.tensor)
        whole = model.parameter_shapes(c)
        pieces = stages(model, c, layers)[place]
        names = dict.fromkeys(name for piece in pieces for name in piece.names.values())
        return [of_rank[name].shape(whole[name]) for name in names]

    def _held(self, place: int, layers: list[int]) -> tuple[int, int]:
        """Return the most bytes of activations that are held at a time, and those of
        one layer that runs again."""
        p, v = self.mesh.pipeline, self.mesh.chunks
        of_stage = [self._of_ends(k, p * v) for k in range(p * v)]
        layer = self._of_layer()
        again = layer if self.recompute else 0
        kept = self.rows * self.config.width * self.width // self.mesh.tensor
        for k in range(p * v):
            start, stop = span(layers[k % p], k // p, v)
            of_stage[k] += (stop - start) * (kept if self.recompute else layer)
        return self.schedule.most(place, of_stage), again

    def _of_layer(self) -> int:
        """Return the bytes that a layer saves."""
        t, c = self.mesh.tensor, self.mesh.context
        (layer,) = {n for part, n in self.saved.items() if part.endswith(".0")}
        config, own = self.config, layer // (t * c)
        if c > 1 and config.heads > t:
            # The ring's merged output is laid out by heads; what follows keeps a copy
            # that is not, unless there is one head.
            d = getattr(config, "head_width", config.width // config.heads)
            own += self.rows * config.heads // t * d * self.width
        return own

    def _of_ends(self, stage: int, stages: int) -> int:
        """Return what is saved on a stage outside the layers."""
        t, c, config = self.mesh.tensor, self.mesh.context, self.config
        found = 0
        if stage == 0:  # tokens, and whether their rows are on this rank; positions
            found += self.rows * (INDEX + 1)
            if hasattr(config, "positions"):
                found += INDEX * self.positions // t
        if stage == stages - 1:
            norm = self.saved["ln_f" if "ln_f" in self.saved else "norm"] // (t * c)
            scores = (config.vocabulary // t + 1) * WIDTHS[self.wide]
            found += norm + self.rows * (config.width * self.width + scores + INDEX)
        return found

    def _tables(self) -> int:
        """Return the bytes of RoPE's two tables of all rows of a tensor group."""
        d = getattr(self.config, "head_width", 0)
        rotates = not hasattr(self.config, "positions")
        return self.positions * d * self.width if rotates else 0
