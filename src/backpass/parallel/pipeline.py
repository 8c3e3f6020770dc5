"""A network of ``backpass.models`` in a pipeline: each rank has some of the layers, and
the micro-batches of a batch pass from rank to rank (Huang et al., 2019,
arXiv:1811.06965).

::

    pipeline = Pipeline(group, llama, config, one_f_one_b(4, 8), data=2, tensor=2)
    share = pipeline.share(parameters)
    loss, gradients = pipeline.gradients(share, tokens, targets)

The ranks work in lockstep. In each slot of the schedule a rank runs its action, if it
has one, and then all ranks send: activations to the next rank, gradients to the one
before. Whoever has nothing to send sends zeros. On every stage the ranks of a pipeline
may be a mesh, as those of a ``Network``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from backpass.contract.arrays import Array, namespace, widened
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_loss_scale
from backpass.models._parameters import check_arrays
from backpass.parallel import zero
from backpass.parallel.group import Group, mesh
from backpass.parallel.network import BATCH, Network
from backpass.parallel.pieces import Runner, add, stages
from backpass.parallel.schedules import Action, Schedule, gpipe
from backpass.parallel.shares import span
from backpass.training import accumulation
from backpass.training._numbers import check_integer


class Pipeline:
    """A GPT-2 or a Llama on the ranks of a group, as one of them sees it.

    The ranks are a block of pipeline × data × context × tensor, of which the last
    varies fastest. ``schedule`` says how many ranks are in a pipeline, how many stages
    they have, and how many micro-batches. ``layers`` are the numbers of layers of the
    stages; by default they differ by at most 1. The other options are those of
    ``Network``. All ranks make the same calls. ``held`` is the largest number of
    micro-batches, times stages, whose activations this rank held in its last step.

    Raises what ``Network`` raises; ValueError if there are more stages than layers, or
    if ``layers`` does not fit; TypeError for something else than a schedule, or than
    integers.
    """

    def __init__(
        self,
        group: Group,
        model: ModuleType,
        config: Any,
        schedule: Schedule,
        *,
        layers: Sequence[int] | None = None,
        data: int = 1,
        context: int = 1,
        tensor: int = 1,
        sequence: bool = False,
        kernels: Any = None,
    ) -> None:
        if not isinstance(schedule, Schedule):
            raise TypeError(
                "schedule: expected a Schedule, such as one_f_one_b returns; "
                f"got {type(schedule).__name__}"
            )
        axes = {"data": data, "context": context, "tensor": tensor}
        self.line = mesh(group, pipeline=len(schedule.ranks), **axes)["pipeline"]
        options = {**axes, "sequence": sequence, "kernels": kernels}
        self.network = Network(group.split(self.line.rank), model, config, **options)
        self.group, self.schedule = group, schedule
        self.model, self.config = model, config
        counts = _counts(layers, config.layers, schedule.stages)
        every = stages(model, config, counts)
        ranks, rank = self.line.size, self.line.rank
        self.own = {k: every[k] for k in range(rank, schedule.stages, ranks)}
        # The rank that has a parameter first, and the names that this rank has.
        self.owner: dict[str, int] = {}
        self.names: list[str] = []
        for k, some in enumerate(every):
            for name in (name for piece in some for name in piece.names.values()):
                self.owner.setdefault(name, k % ranks)
                if k % ranks == rank and name not in self.names:
                    self.names.append(name)
        # A tied table is on the first stage and on the last.
        last = (schedule.stages - 1) % ranks
        self.ends = self.line.split(0 if rank in (0, last) else 1)
        # The ranks that have other parameters, or other shares of them.
        self.apart = group.split(self.network.alike.rank)
        self.held = 0

    def share(self, whole: Mapping[str, Array]) -> dict[str, Array]:
        """Return the rank's shares of a mapping of all whole parameters, or of arrays
        of their shapes, as copies. Raises TypeError unless it is a mapping, and
        ValueError for parameters that are missing, or do not fit."""
        check_arrays(whole, self.network.whole_shapes, complete=True)
        return self.network.share({name: whole[name] for name in self.names})

    def whole(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """Return the whole arrays from the ranks' shares, on every rank. Raises
        ValueError for a share that is missing, or does not fit."""
        self._check_own(own, "shares")
        like = next(iter(own.values()))
        xp, found = namespace(like), {}
        for name, shape in self.network.shapes.items():
            mine = name in own and self.owner[name] == self.line.rank
            zeros = xp.zeros(shape, dtype=like.dtype, device=like.device)
            x = own[name] if mine else zeros
            found[name] = self.line.all_reduce(x)
        return self.network.whole(found)

    def loss(
        self, parameters: Mapping[str, Array], tokens: Array, targets: Array
    ) -> Array:
        """Return the loss ``[]`` of the whole batch, from the rank's shares of the
        parameters and from all tokens and targets ``[b, s]``, as one micro-batch."""
        whole = gpipe(self.line.size, 1, chunks=len(self.own))
        return self._run(whole, parameters, tokens, targets, None)[0]

    def gradients(
        self,
        parameters: Mapping[str, Array],
        tokens: Array,
        targets: Array,
        *,
        scale: float = 1,
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss ``[]`` of the whole batch, and the rank's shares of the
        gradients of the loss times ``scale``, in half precision as float32.

        Raises ValueError if the number of sequences is not a multiple of that of the
        micro-batches, or for a ``scale`` that is not above 0 and finite; and what
        ``Network`` raises.
        """
        check_loss_scale(scale)
        loss, partial = self._run(self.schedule, parameters, tokens, targets, scale)
        # In the forward pass a tied table was read on two stages; so now both gradients
        # are added.
        table = self.model.TABLE
        if self.config.tied and self.ends.size > 1 and table in partial:
            partial[table] = self.ends.all_reduce(partial[table])
        return loss, {name: self.network.summed(g) for name, g in partial.items()}

    def norms(self, gradients: Mapping[str, Array]) -> dict[str, float]:
        """Return the norm of each whole gradient from the ranks' shares, the same on
        every rank.

        Raises FloatingPointError on every rank if one is not finite; ValueError for a
        gradient that is missing, or does not fit.
        """
        self._check_own(gradients, "gradients")
        mine = {
            name: share.first and self.owner[name] == self.line.rank
            for name, share in self.network.shares.items()
        }
        return zero.norms(self.apart, gradients, mine)

    def _check_own(self, arrays: Mapping[str, Array], what: str) -> None:
        shapes = {name: self.network.shapes[name] for name in self.names}
        check_arrays(arrays, shapes, what, complete=True)

    def _run(
        self,
        schedule: Schedule,
        parameters: Mapping[str, Array],
        tokens: Array,
        targets: Array,
        scale: float | None,
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss and what this rank's rows and positions add to the gradients.
        Without ``scale`` the backwards are left out."""
        self._check_own(parameters, "parameters")
        batches = self._micro_batches(tokens, targets, schedule.batches)
        step = _Step(self, parameters, batches, scale)
        ranks, rank = self.line.size, self.line.rank
        for ending in schedule.ending():
            sent = step.run(ending[rank]) if rank in ending else None
            for kinds, places in (("F", 1), ("BI", -1)):
                senders = {
                    r: a._replace(stage=a.stage + places)
                    for r, a in ending.items()
                    if a.kind in kinds and 0 <= a.stage + places < schedule.stages
                }
                if senders and (places == 1 or scale is not None):
                    x = sent if rank in senders else step.zeros
                    came = self.line.shift(x, places=places)
                    sender = senders.get((rank - places) % ranks)
                    if sender is not None:
                        step.came[sender.kind == "F", *sender[1:]] = came
        if scale is not None:
            self.held = step.most
        loss = self.line.all_reduce(self.network.alike.all_reduce(step.loss))
        return loss, step.gradients

    def _micro_batches(
        self, tokens: Array, targets: Array, m: int
    ) -> list[tuple[Array, ...]]:
        """Return this rank's part of the tokens and targets of ``m`` micro-batches."""
        check_inputs(BATCH, tokens=tokens, targets=targets)
        if tokens.shape[0] % m:
            raise ValueError(
                f"tokens: expected shape [b, s], b a multiple of {m}, the number of "
                f"micro-batches; got {list(tokens.shape)}"
            )
        each = tokens.shape[0] // m
        rows = [slice(j * each, (j + 1) * each) for j in range(m)]
        return [self.network.parts(tokens[at, :], targets[at, :]) for at in rows]


class _Step:
    """What a rank has during a step: what came, what it saved, and its gradients."""

    def __init__(
        self,
        pipeline: Pipeline,
        parameters: Mapping[str, Array],
        batches: list[tuple[Array, ...]],
        scale: float | None,
    ) -> None:
        self.pipeline, self.w, self.batches = pipeline, parameters, batches
        self.scale, network = scale, pipeline.network
        like = next(iter(parameters.values()))
        xp = namespace(like)
        rows, s = batches[0][0].shape
        s = s // network.positions.parts
        kind = {"dtype": like.dtype, "device": like.device}
        self.zeros = xp.zeros((rows, s, pipeline.config.width), **kind)
        self.loss = widened(xp.zeros((), **kind))
        counts = [accumulation.counted(targets) for _, targets in batches]
        total = float(network.alike.all_reduce(self.loss + sum(counts)))
        self.counted = bool(total)
        # A micro-batch's share of the counted targets of the whole batch.
        self.shares = [n / total if total else 0.0 for n in counts]
        self.came: dict[tuple[bool, int, int], Array] = {}
        self.saved: dict[tuple[int, int], list[Any]] = {}
        self.gradients: dict[str, Array] = {}
        self.most = 0
        self.runner = Runner(pipeline.model, pipeline.config, network.schemes)

    def run(self, action: Action) -> Array | None:
        """Run an action, and return what the stage before or after it needs."""
        kind, j, k = action
        if kind == "F":
            return self._forward(j, k)
        return None if self.scale is None else self._backward(kind, j, k)

    def _forward(self, j: int, k: int) -> Array:
        tokens, targets = self.batches[j]
        x = self.came.pop((True, j, k)) if k else tokens
        saved = []
        for piece in self.pipeline.own[k]:
            x, part = self.runner.forward(piece, x, self.w, targets)
            saved.append((piece, part, None))
        if self.scale is not None:
            self.saved[j, k] = saved
            self.most = max(self.most, len(self.saved))
        if k == self.pipeline.schedule.stages - 1 and (
            self.shares[j] or not self.counted
        ):
            self.loss = self.loss + x * self.shares[j]
        return x

    def _backward(self, kind: str, j: int, k: int) -> Array | None:
        last = k == self.pipeline.schedule.stages - 1
        dy = None
        if kind != "W" and last:
            share = (self.scale or 0.0) * self.shares[j]
            dy = namespace(self.loss).full_like(self.loss, share)
        elif kind != "W":
            dy = self.came.pop((False, j, k))
        kept = []
        for piece, part, later in reversed(self.saved.pop((j, k))):
            dy = later if kind == "W" else dy
            kept.append((piece, part, dy))
            dy, found = piece.backward(dy, part, kind)
            add(self.gradients, found)
        if kind == "I":
            self.saved[j, k] = kept[::-1]
        return dy


def _counts(layers: Sequence[int] | None, total: int, parts: int) -> list[int]:
    """Return the number of layers of each stage. Raises TypeError or ValueError."""
    if layers is None:
        spans = [span(total, k, parts) for k in range(parts)]
        layers = [stop - start for start, stop in spans]
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise TypeError(
            f"layers: expected {parts} integers, one for each stage; "
            f"got {type(layers).__name__}"
        )
    counts = [*layers]
    check_integer(**{f"layers[{i}]": count for i, count in enumerate(counts)})
    if len(counts) != parts or sum(counts) != total or min(counts) < 1:
        raise ValueError(
            f"layers: expected {parts} numbers from 1, one for each stage, with the sum "
            f"{total}; got {', '.join(map(str, counts))}"
        )
    return counts
