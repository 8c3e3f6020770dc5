"""Memory over the moments of a training step: the peak is a maximum, not a sum.

    cost.timeline(config, batch=1, sequence=1024)  # predicted, without using the memory
    cost.measured_timeline(config, batch=1, sequence=1024)  # measured on a real step

A step is a forward, a backward, and an update by AdamW. Saved arrays pile up in the
forward, part by part. In the backward they are freed, and gradients appear. Each part
also needs working memory while it runs.

The prediction runs a few layers of the network on PyTorch's device "meta", whose
tensors have no memory, at the given lengths, and follows the storages. The formulas
then add the saved arrays and the gradients of the layers that did not run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from backpass.arrays import size
from backpass.cost.activations import FEW, activations, mebibytes
from backpass.cost.budget import shares_of_parameters
from backpass.cost.measured import random_arrays
from backpass.cost.networks import (
    WIDTHS,
    by_storage,
    forward,
    layer_of,
    model_of,
    named_parts,
)
from backpass.cost.sizes import configuration
from backpass.models import seq2seq
from backpass.table import aligned, page
from backpass.training import adamw

# "inputs" include the tables that the forward computes from lengths alone.
KINDS = ("parameters", "optimiser", "inputs", "saved", "gradients", "working")


class Moment(NamedTuple):
    """One part of a step, at the instant when most bytes are alive."""

    phase: str  # "forward", "backward", or "update"
    part: str  # of the model, such as "h.0"
    bytes: dict[str, int]  # by kind

    @property
    def total(self) -> int:
        """The bytes of all kinds together."""
        return sum(self.bytes.values())


@dataclass(frozen=True)
class Timeline:
    """The moments of a training step, in order."""

    title: str
    moments: tuple[Moment, ...]

    @property
    def peak(self) -> Moment:
        """The moment when most bytes are alive."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def rise(self) -> int:
        """The peak of forward and backward above what stays alive between steps:
        parameters, the optimiser's states, and inputs."""
        first = ("parameters", "optimiser", "inputs")
        return max(
            moment.total - sum(moment.bytes[kind] for kind in first)
            for moment in self.moments
            if moment.phase != "update"
        )

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                moment.phase,
                moment.part,
                *(f"{moment.bytes[kind]:,}" for kind in KINDS),
                f"{moment.total:,}",
                "peak" if moment is self.peak else "",
            )
            for moment in self.moments
        ]

    @property
    def _caption(self) -> str:
        peak = self.peak
        return (
            f"{self.title}: bytes alive. The peak is {peak.total:,} bytes = "
            f"{mebibytes(peak.total)}, in the {peak.phase} of {peak.part}"
        )

    def __repr__(self) -> str:
        head = ("phase", "part", *KINDS, "all", "")
        right = range(2, 3 + len(KINDS))
        return "\n".join([self._caption, *aligned([head, *self._rows()], right=right)])

    def _repr_html_(self) -> str:
        head = ("phase", "part", *KINDS, "all", "")
        return page(head, self._rows(), caption=self._caption, label=self.title)


def timeline(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    *,
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
) -> Timeline:
    """Predict the memory over the moments of a training step.

    The arguments are those of ``activations``. Half-precision parameters are a copy of
    float32 master weights, which count as the optimiser's, like AdamW's two states. In
    the forward a moment begins when a part's first array is saved, in the backward when
    the part's arrays are taken. Needs PyTorch. Raises what ``activations`` raises.
    """
    config = configuration(config)
    options: dict[str, Any] = {"dtype": dtype, "flash": flash, "chunked": chunked}
    kept = activations(config, batch, sequence, **options)
    folded = getattr(config, "layers", 0) > FEW
    few = replace(config, layers=FEW) if folded else config
    moments: Iterable[Moment] = _observed(few, batch, sequence, "meta", **options)
    if folded:
        moments = _with_layers(moments, config, kept.by_part(), WIDTHS[dtype])
    moments = _with_states(moments, config, dtype)
    return Timeline(f"{kept.title}, predicted", tuple(moments))


def measured_timeline(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    *,
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
    device: str = "cpu",
) -> Timeline:
    """Run a training step on random parameters, and return the memory over its moments.

    Memory that a PyTorch operator allocates and frees internally is not measured. The
    arguments are those of ``timeline``.
    """
    config = configuration(config)
    options: dict[str, Any] = {"dtype": dtype, "flash": flash, "chunked": chunked}
    moments = _observed(config, batch, sequence, device, **options)
    name = model_of(config).__name__.rpartition(".")[2]
    return Timeline(f"{name} in {dtype}, measured on {device}", tuple(moments))


class _Watched(list):
    """What the parts saved. ``told`` is called with a part's name just before backward
    takes what the part saved."""

    def __init__(
        self, parts: list[Any], names: Sequence[str], told: Callable[[str], None]
    ) -> None:
        super().__init__(parts)
        self.names, self.told = names, told
        parts.clear()  # so that only this list references what the parts saved

    def pop(self, *at: Any) -> Any:
        self.told(self.names[len(self) - 1])
        return super().pop(*at)


def _observed(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    device: str,
    *,
    dtype: str,
    flash: bool,
    chunked: bool,
) -> list[Moment]:
    """Run a step, and return its moments. On the device "meta", the update does not
    run."""
    from backpass.cost.live import Live

    parameters, inputs, given = random_arrays(config, batch, sequence, device, dtype)
    half = WIDTHS[dtype] < WIDTHS["float32"]
    trained = parameters
    if half:
        trained = {name: w.float() for name, w in parameters.items()}
    state = adamw.start(trained)
    live = Live()
    kinds: dict[int, str] = {}  # by the storage's number; the rest is working memory
    marks: list[tuple[int, str, str]] = []  # the first event, the phase, the part

    def add(kind: str, arrays: Iterable[Any]) -> None:
        for x in arrays:
            live.add(x)
            kinds.setdefault(live.number(x), kind)

    def add_states() -> None:
        add("optimiser" if half else "parameters", trained.values())
        add("optimiser", state["mean"].values())
        add("optimiser", state["square"].values())

    def mark(phase: str, part: str) -> None:
        marks.append((len(live.events), phase, part))

    add("parameters", parameters.values())
    add_states()
    add("inputs", (*inputs, *given))
    start = len(live.events)
    with live:
        options = {"flash": flash, "chunked": chunked}
        saved = forward(config, parameters, inputs, wanted=None, **options)
        created = {
            n: max(at, start) for at, (n, size) in enumerate(live.events) if size > 0
        }
        begun: dict[str, int] = {}
        for key, x in by_storage(config, saved, parameters).items():
            number = live.number_of(key)
            if x.kind != "parameter":
                kinds[number] = "inputs" if x.kind == "constant" else "saved"
            if x.kind == "saved":
                at = created[number]
                begun[x.part] = min(begun.get(x.part, at), at)
        marks += [(at, "forward", part) for part, at in begun.items()]

        saved = _watched(config, saved, lambda part: mark("backward", part))
        found = model_of(config).backward(*given, saved)
        gradients = found if isinstance(found, dict) else found[-1]
        del found
        of_gradients = {live.number(x) for x in gradients.values()}
        mark("update", "AdamW")
        if device != "meta":
            adamw.update(trained, gradients, state, in_place=True)
            add_states()
    marks.sort(key=lambda mark: mark[0])
    return list(_moments(live.events, start, marks, kinds, of_gradients))


def _watched(config: Any, saved: Any, told: Callable[[str], None]) -> Any:
    """Return what a forward saved, in lists that call ``told`` when backward takes a
    part from them."""
    if model_of(config) is not seq2seq:
        names = [name for name, _ in named_parts(config, saved) if name != "loss"]
        return saved._replace(parts=_Watched(saved.parts, names, told))
    names = [name for name, _ in named_parts(config, saved)]
    of_encoder = names[: len(saved.encoded.parts)]
    encoded = saved.encoded
    encoded = encoded._replace(parts=_Watched(encoded.parts, of_encoder, told))
    parts = _Watched(saved.parts, names[len(of_encoder) :], told)
    return saved._replace(encoded=encoded, parts=parts)


def _moments(
    events: Sequence[tuple[int, int]],
    start: int,
    marks: Sequence[tuple[int, str, str]],
    kinds: Mapping[int, str],
    of_gradients: Collection[int],
) -> Iterator[Moment]:
    """Yield each moment at its largest total. A saved storage may become a gradient, as
    in the output head. It then counts as a gradient from the next moment on."""
    kind_of = {**dict.fromkeys(of_gradients, "gradients"), **kinds}
    sizes = {number: size for number, size in events if size > 0}
    totals = dict.fromkeys(KINDS, 0)
    alive: set[int] = set()

    def count(number: int, size: int) -> None:
        totals[kind_of.get(number, "working")] += size
        (alive.discard if size < 0 else alive.add)(number)

    for event in events[:start]:
        count(*event)
    stops = [*(at for at, _, _ in marks[1:]), len(events)]
    in_backward = False
    for (at, phase, part), stop in zip(marks, stops, strict=True):
        if in_backward:
            for number in alive & {*of_gradients}:
                size = sizes[number]
                totals[kind_of[number]] -= size
                totals["gradients"] += size
                kind_of[number] = "gradients"
        in_backward = phase != "forward"
        most = dict(totals)
        for event in events[at:stop]:
            count(*event)
            if sum(totals.values()) > sum(most.values()):
                most = dict(totals)
        yield Moment(phase, part, most)


def _with_layers(
    moments: Iterable[Moment], config: Any, saved: Mapping[str, int], width: int
) -> Iterator[Moment]:
    """Yield the moments of all layers, given those of a few. Each layer between the
    first and the last adds its saved arrays and its gradients."""
    n, shapes = config.layers, model_of(config).parameter_shapes(config)
    stack = next(layer_of(part)[0] for part in saved if layer_of(part)[1] == 1)
    own = saved[f"{stack}1"]
    names = [name for name in shapes if name.startswith(f"{stack}1.")]
    trained = width * sum(size(shapes[name]) for name in names)
    before = {"forward": True, "backward": True}  # whether no inner layer has run
    for moment in moments:
        phase, (_, number) = moment.phase, layer_of(moment.part)
        forwards = phase == "forward"
        if number == 1:
            before[phase] = False
            layers = range(1, n - 1)
            for i in layers if forwards else reversed(layers):
                after = 0 if forwards else n - 2 - i
                yield _plus(moment, f"{stack}{i}", (i - 1) * own, after * trained)
            continue
        # The saved arrays of the layers between are alive after the layers' forward
        # and until their backward; their gradients, from then on.
        alive = phase != "update" and before.get(phase, False) is not forwards
        there = not forwards and not before.get(phase, False)
        part = f"{stack}{n - 1}" if number == FEW - 1 else moment.part
        more = (n - FEW) * own * alive, (n - FEW) * trained * there
        yield _plus(moment, part, *more)


def _plus(moment: Moment, part: str, saved: int, gradients: int) -> Moment:
    """Return the moment for a part, with these bytes added."""
    more = {"saved": saved, "gradients": gradients}
    alive = {kind: n + more.get(kind, 0) for kind, n in moment.bytes.items()}
    return moment._replace(part=part, bytes=alive)


def _with_states(
    moments: Iterable[Moment], config: Any, dtype: str
) -> Iterator[Moment]:
    """Yield the moments with all parameters and all states of the optimiser, and the
    update with its working memory."""
    bytes_of = {x.what: x.bytes for x in shares_of_parameters(config, dtype)}
    parameters, _ = bytes_of.pop("weights"), bytes_of.pop("gradients")
    there = {"parameters": parameters, "optimiser": sum(bytes_of.values())}
    for moment in moments:
        own = moment.bytes | there
        if moment.phase == "update":
            own["working"] = _update_bytes(config, dtype)
        yield moment._replace(bytes=own)


def _update_bytes(config: Any, dtype: str) -> int:
    """Return the working memory of AdamW's update, which runs parameter by parameter,
    and a large parameter block by block."""
    import torch

    from backpass.cost.live import Live

    shapes = model_of(config).parameter_shapes(config).values()
    most = min(max(map(size, shapes)), 2 * adamw.BLOCK)
    wide = torch.float64 if dtype == "float64" else torch.float32
    w = {"w": torch.empty(most, dtype=wide, device="meta")}
    dw = {"w": torch.empty(most, dtype=getattr(torch, dtype), device="meta")}
    state = adamw.start(w)
    with Live() as live:
        for x in (w["w"], dw["w"], state["mean"]["w"], state["square"]["w"]):
            live.add(x, counted=False)
        adamw.update(w, dw, state, in_place=True)
    return live.peak
