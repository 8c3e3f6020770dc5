"""How long a training step takes on a mesh of ranks: the rooflines of one rank's calls,
and what its collectives move over the links.

Each rank has one device. The tensor axis splits heads, feed-forward widths, and the
vocabulary, and with them the rows between the blocks: sequence parallel. The context
axis splits the rows of a sequence so that every rank computes as many scores. The
pipeline axis splits the layers; unless told otherwise, embedding and output head count
as a layer each when the stages are divided. The data axis splits the batch, with the
states of the optimiser sharded over data and context.

What is not predicted: overlap of collectives with arithmetic, stragglers, failures, and
the loading of data. Every collective counts in full. The exchange of a tied table's
gradient between the ends of a pipeline is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from backpass.contract.stems import entry
from backpass.contract.values import check_bool
from backpass.cost.calls import calls_of
from backpass.cost.duration import (
    FLOPS_OF_ADAMW,
    MACHINES,
    Machine,
    Work,
    adamw_width,
    works_of,
)
from backpass.cost.letters import check_length
from backpass.cost.networks import WIDTHS
from backpass.cost.shown import Sheet, Shown
from backpass.cost.sizes import configuration, network_of
from backpass.cost.tally import CONVENTIONS, tally
from backpass.models import gpt2, llama
from backpass.models.layers import gpt2_layer
from backpass.models.layers.calls import Part
from backpass.parallel.traffic import Moved, moved
from backpass.training._numbers import check_count, check_positive, check_rate

GRADIENT = 4  # bytes of an element of the gradients that the data axis sums: float32
# How the names of the calls on shards of the rows begin.
_ON_SHARDS = ("first norm", "first residual", "second norm", "second residual", "last")
# The all-gathers and reduce-scatters of a part.
COLLECTIVES: dict[str, Any] = {
    # Along the tensor axis, each of the two blocks of a layer gathers its input and
    # scatters the sum of its outputs; the backward does the reverse, and gathers the
    # input again, of which a shard was saved.
    "layer": (6, 4),
    # If a layer runs again, the input of each block is gathered then, and the sum of
    # its outputs is scattered once more.
    "again": (6, 6),
    # The embedding has no input to gather, and the output head no output to scatter.
    "embedding": (1, 1),
    "head": (2, 1),
    # Along the context axis, keys and values are gathered in the forward and again in
    # the backward, and the sums of their gradients are scattered.
    "context": (2, 1),
    "shards": _ON_SHARDS,
}


@dataclass(frozen=True)
class Mesh:
    """How many ranks share a step along each axis.

    ``tensor`` varies fastest, then ``context``, ``pipeline``, and ``data``: ranks that
    exchange most are neighbours. ``chunks`` is the number of pieces into which a stage
    of an interleaved pipeline is divided. Raises TypeError or ValueError unless each is
    an integer of at least 1.
    """

    data: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    chunks: int = 1

    def __post_init__(self) -> None:
        check_count(**vars(self))

    @property
    def ranks(self) -> int:
        """The product of the four axes."""
        return self.data * self.tensor * self.context * self.pipeline


@dataclass(frozen=True)
class Cluster:
    """Machines of ``node`` devices each, and the links between devices.

    ``inside`` and ``between`` are the bytes/s that a device sends, and receives at the
    same time, within a machine and between machines. ``latency`` is the time in seconds
    of a message of almost no bytes. Raises TypeError or ValueError for a rate that is
    not above 0.
    """

    device: Machine
    inside: float
    between: float
    node: int = 8
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.device, Machine):
            came = type(self.device).__name__
            raise TypeError(f"device: expected a Machine; got {came}")
        check_positive(inside=self.inside, between=self.between)
        check_count(node=self.node)
        check_rate(latency=self.latency)

    def seconds(self, name: str, bytes: float, axis: int, span: int) -> float:
        """Return the time of a collective along an axis of so many ranks, which lie
        among ``span`` successive ones, if each rank calls it with so many ``bytes``. It
        runs on a ring, over the links between machines unless one machine holds it."""
        rate = self.inside if span <= self.node else self.between
        found: Moved = moved(name, math.ceil(bytes), axis)
        return found.messages * self.latency + found.moved / rate


# Published rates: NVIDIA's H100 SXM5 with fourth-generation NVLink, 900 GB/s in both
# directions together, and a network of 400 Gbit/s a device, as the Llama 3 herd (2024)
# trained on; the A100's third-generation NVLink, 600 GB/s, and 200 Gbit/s a device, as
# Narayanan et al. (2021) trained on.
CLUSTERS = {
    "h100": Cluster(MACHINES["h100"], inside=450e9, between=50e9),
    "a100": Cluster(MACHINES["a100"], inside=300e9, between=25e9),
}


class Share(NamedTuple):
    """What takes a part of the step's time."""

    name: str
    seconds: float


@dataclass(frozen=True, repr=False)
class MeshStep(Shown):
    """The predicted time of a training step on a mesh, by what takes it."""

    name: str
    mesh: Mesh
    dtype: str
    peak: float  # FLOP/s of products on one device
    tokens: int  # of the whole batch
    flops: dict[str, int]  # of the whole batch, by convention, without recomputation
    shares: tuple[Share, ...]

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return sum(share.seconds for share in self.shares)

    def rate(self, convention: str = "products-whole") -> float:
        """Return the FLOP/s of one rank: the model's FLOPs by that convention of
        ``cost.tally``. Raises LookupError for an unknown one."""
        flops = entry("convention", convention, self.flops)
        return flops / self.mesh.ranks / self.seconds

    def mfu(self, convention: str = "products-whole") -> float:
        """Return ``rate`` over the device's peak."""
        return self.rate(convention) / self.peak

    def _in_text(self) -> Sheet:
        title = (
            f"{self.name} on {ranks_of(self.mesh)}, {self.dtype}: "
            f"{self.seconds:.4g} s a step, MFU {self.mfu():.1%}"
        )
        rows = [
            (share.name, f"{share.seconds:.4f}", f"{share.seconds / self.seconds:.1%}")
            for share in self.shares
        ]
        rows.append(("total", f"{self.seconds:.4f}", ""))
        return Sheet(title, ("what", "seconds", "share"), rows, right=(1, 2))


def mesh_step(
    config: Any,
    mesh: Mesh,
    cluster: Cluster | str,
    batch: int,
    sequence: int,
    *,
    micro_batch: int = 1,
    dtype: str = "bfloat16",
    flash: bool = True,
    recompute: bool = False,
    ends: bool = True,
) -> MeshStep:
    """Return the predicted time of a training step of ``batch`` sequences in all.

    Each rank of the data axis runs its part of the batch in micro-batches of so many
    sequences. ``cluster`` is a Cluster, or the name of one with published peaks: "h100"
    or "a100". ``config`` is that of a Llama or a GPT-2, or the name of its preset. With
    ``recompute`` each layer runs again in the backward. ``ends`` is an option of
    ``layers_of_stages``.

    Raises LookupError for an unknown name; TypeError for another model or argument;
    ValueError, naming every fault, if the mesh does not divide the heads, the key
    heads, the widths, the vocabulary, the batch, or the sequence, or has more stages
    than layers.
    """
    flags = {"flash": flash, "recompute": recompute, "ends": ends}
    config, name = check_mesh(config, mesh, batch, sequence, micro_batch, **flags)
    if isinstance(cluster, str):
        cluster = entry("cluster", cluster, CLUSTERS)
    if not isinstance(cluster, Cluster):
        came = type(cluster).__name__
        raise TypeError(f"cluster: expected a Cluster, or the name of one; got {came}")
    peak = cluster.device.product_rate(dtype)

    p = mesh.pipeline
    stages = layers_of_stages(config.layers, p, ends=ends)
    micro_batches = batch // (mesh.data * micro_batch)
    own = _MicroBatch(
        config, mesh, cluster, micro_batch, sequence, dtype, flash, recompute
    )
    layer, embedding, head = own.arithmetic()
    on_tensor = own.tensor("again" if recompute else "layer")
    on_context = own.context()
    whole = layer + on_tensor + on_context
    at_ends = {stage: (0.0, 0.0) for stage in range(p)}
    for stage, seconds, part in ((0, embedding, "embedding"), (p - 1, head, "head")):
        arithmetic, collectives = at_ends[stage]
        at_ends[stage] = arithmetic + seconds, collectives + own.tensor(part)
    busiest = max(range(p), key=lambda i: stages[i] * whole + sum(at_ends[i]))
    layers, (end, on_end) = stages[busiest], at_ends[busiest]

    parameters = own.parameters(layers)
    n = micro_batches
    shares = (
        Share("layers", n * layers * layer),
        Share("embedding and output head", n * end),
        Share("tensor collectives", n * (layers * on_tensor + on_end)),
        Share("context collectives", n * layers * on_context),
        Share("sends between stages", n * own.sends()),
        Share("bubble", (p - 1) / mesh.chunks * (layers * whole + end + on_end)),
        Share("gradients and parameters", own.data(parameters)),
        Share("update", own.update(parameters / (mesh.data * mesh.context))),
    )
    one = tally(config, 1, sequence, flash=flash).model()
    flops = {each: batch * one.total(each) for each in CONVENTIONS}
    name = f"{name}, batch {batch:,}, sequence {sequence:,}"
    return MeshStep(name, mesh, dtype, peak, batch * sequence, flops, shares)


def check_mesh(
    config: Any,
    mesh: Mesh,
    batch: int,
    sequence: int,
    micro_batch: int,
    **flags: bool,
) -> tuple[Any, str]:
    """Return the configuration and its name, or that of its family. Raises what
    ``mesh_step`` raises for these arguments."""
    name, config = config, configuration(config)
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a Mesh; got {type(mesh).__name__}")
    family = type(config).__module__.rpartition(".")[2]
    if not isinstance(config, llama.Config | gpt2.Config):
        raise TypeError(
            f"config: expected that of a Llama or a GPT-2; got one of {family}"
        )
    check_bool(**flags)
    check_count(batch=batch, micro_batch=micro_batch)
    check_length("sequence", sequence)
    _check_divides(config, mesh, batch, sequence, micro_batch)
    return config, name if isinstance(name, str) else family


def ranks_of(mesh: Mesh) -> str:
    """Return the number of ranks, in words."""
    return "1 rank" if mesh.ranks == 1 else f"{mesh.ranks:,} ranks"


def layers_of_stages(layers: int, stages: int, *, ends: bool = True) -> list[int]:
    """Return how many layers each stage of a pipeline has.

    Of several stages, the first also has the embedding and the last the output head.
    With ``ends`` these count as a layer each, as in Llama 3's training. Raises
    TypeError or ValueError unless both are integers of at least 1, and there is a layer
    for each stage.
    """
    check_count(layers=layers, stages=stages)
    if stages > layers:
        raise ValueError(
            f"stages: expected at most {layers}, the number of layers; got {stages}"
        )
    also = {0, stages - 1} if stages > 1 and ends else set()
    counts = [1] * stages
    for _ in range(layers - stages):
        order = [(count + (i in also), i in also, i) for i, count in enumerate(counts)]
        counts[min(order)[-1]] += 1
    return counts


class _MicroBatch(NamedTuple):
    """What one rank does with a micro-batch."""

    config: Any
    mesh: Mesh
    cluster: Cluster
    micro_batch: int
    sequence: int
    dtype: str
    flash: bool
    recompute: bool

    @property
    def rows(self) -> float:
        """The rows of a micro-batch on one rank of the context axis."""
        return self.micro_batch * self.sequence / self.mesh.context

    @property
    def stream(self) -> float:
        """The bytes of these rows in the residual stream."""
        return self.rows * self.config.width * WIDTHS[self.dtype]

    def parts(self) -> list[Part]:
        """Return the calls of a network of one layer, on one rank of the tensor axis
        and on all rows."""
        c, t, heads = self.config, self.mesh.tensor, {}
        if isinstance(c, llama.Config):
            heads = {"heads": c.heads // t, "key_heads": c.key_heads // t}
        split = {name: getattr(c, name) // t for name in ("feed_forward", "vocabulary")}
        local = replace(c, **split, **heads, layers=1)
        parts = calls_of(local, self.micro_batch, self.sequence, flash=self.flash).parts
        if heads:
            return [*parts]
        # The configuration of a GPT-2 has the width of all heads only.
        calls = gpt2_layer.calls(
            self.micro_batch,
            self.sequence,
            c.width,
            c.width // t,
            c.feed_forward // t,
            c.heads // t,
            flash=self.flash,
        )
        return [p._replace(calls=calls) if p.name == "layer" else p for p in parts]

    def arithmetic(self) -> tuple[float, float, float]:
        """Return the seconds of a layer, of the embedding, and of the last norm and the
        output head, forward and backward."""
        found = {"layer": 0.0, "embedding": 0.0, "last norm": 0.0, "output head": 0.0}
        again = 1 if self.recompute else None
        for (part, _, call, *_), work in works_of(self.parts(), self.dtype, again):
            split = self.mesh.context
            if call.startswith(_ON_SHARDS):
                split *= self.mesh.tensor
            own = Work(*(amount / split for amount in work))  # type: ignore[arg-type]
            found[part] += self.cluster.device.time(own, self.dtype)[0]
        layer, embedding, norm, head = found.values()
        return layer, embedding, norm + head

    def tensor(self, part: str) -> float:
        """Return the seconds of a part's collectives along the tensor axis."""
        t, (gathers, scatters) = self.mesh.tensor, COLLECTIVES[part]
        gather = self.cluster.seconds("all_gather", self.stream / t, t, t)
        scatter = self.cluster.seconds("reduce_scatter", self.stream, t, t)
        return gathers * gather + scatters * scatter

    def context(self) -> float:
        """Return the seconds of a layer's collectives along the context axis."""
        c, t = self.mesh.context, self.mesh.tensor
        width = 2 * _key_width(self.config) / t  # keys and values
        own = self.rows * width * WIDTHS[self.dtype]
        gather = self.cluster.seconds("all_gather", own, c, c * t)
        scatter = self.cluster.seconds("reduce_scatter", own * c, c, c * t)
        gathers, scatters = COLLECTIVES["context"]
        return gathers * gather + scatters * scatter

    def sends(self) -> float:
        """Return the seconds in which a micro-batch's rows are sent on and their
        gradients sent back, once a chunk."""
        mesh, shard = self.mesh, self.stream / self.mesh.tensor
        span = mesh.tensor * mesh.context * mesh.pipeline
        once = self.cluster.seconds("shift", shard, mesh.pipeline, span)
        return 2 * mesh.chunks * once

    def parameters(self, layers: int) -> float:
        """Return the number of parameters on a rank of a stage of so many layers,
        with a table. The norms, which every rank holds, count as if they were split."""
        network, pipeline = network_of(self.config).having(layers=1), self.mesh.pipeline
        model, one = network
        sizes = {name: math.prod(shape) for name, shape in network.shapes.items()}
        own = model.layer_names(one)[0].values()
        in_layer = sum(sizes[name] for name in own)
        others = sum(sizes.values()) - in_layer
        table = sizes[model.TABLE]  # at an end; the head is at the other one
        return (
            in_layer * layers + (others if pipeline == 1 else table)
        ) / self.mesh.tensor

    def data(self, parameters: float) -> float:
        """Return the seconds in which gradients are scattered and parameters gathered
        along the data and the context axis."""
        mesh = self.mesh
        axis = mesh.data * mesh.context
        span = mesh.ranks if mesh.data > 1 else mesh.tensor * mesh.context
        size = parameters * WIDTHS[self.dtype] / axis
        scatter = self.cluster.seconds(
            "reduce_scatter", parameters * GRADIENT, axis, span
        )
        return scatter + self.cluster.seconds("all_gather", size, axis, span)

    def update(self, parameters: float) -> float:
        """Return the seconds of AdamW's update of so many parameters."""
        amounts = 0, FLOPS_OF_ADAMW * parameters, adamw_width(self.dtype) * parameters
        work = Work(*amounts)  # type: ignore[arg-type]
        return self.cluster.device.time(work, self.dtype)[0]


def _key_width(config: Any) -> int:
    """Return the width of all keys."""
    if isinstance(config, llama.Config):
        return config.key_heads * config.head_width
    return config.width


def _check_divides(
    config: Any, mesh: Mesh, batch: int, sequence: int, micro_batch: int
) -> None:
    """Raise ValueError, naming every fault, unless the mesh divides everything."""
    c, t = config, mesh.tensor
    faults = [
        f"tensor: expected a divisor of {name} = {getattr(c, name)}; got {t}"
        for name in ("heads", "key_heads", "feed_forward", "vocabulary")
        if getattr(c, name, 0) % t
    ]
    multiples = (
        ("sequence", sequence, "context × tensor", mesh.context * t),
        ("batch", batch, "data × micro_batch", mesh.data * micro_batch),
    )
    faults += [
        f"{name}: expected a multiple of {factors} = {of}; got {length}"
        for name, length, factors, of in multiples
        if length % of
    ]
    faults += [
        f"{name}: expected at most {c.layers}, the number of layers; got {number}"
        for name, number in (("pipeline", mesh.pipeline), ("chunks", mesh.chunks))
        if number > c.layers
    ]
    if mesh.chunks > 1 and mesh.pipeline == 1:
        faults.append(f"chunks: expected 1 without a pipeline; got {mesh.chunks}")
    if faults:
        raise ValueError("\n    ".join(["mesh: does not fit:", *faults]))
