"""Memory over the moments of a training step: the peak is a maximum, not a sum.

    cost.timeline(config, batch=1, sequence=1024)  # predicted, without using the memory
    measured_timeline(config, batch=1, sequence=1024)  # measured on a real step

A step is a forward, a backward, and an update by AdamW, before which the gradients may
be clipped. Saved arrays pile up in the forward, part by part. In the backward they are
freed, and gradients appear. Each part also needs working memory while it runs. If a
segment of layers runs again in the backward, that is a moment of its own.

The prediction runs a few layers of the network on PyTorch's device "meta", whose
tensors have no memory, at the given lengths, and follows the storages. The formulas
then add the saved arrays and the gradients of the layers that did not run. Of
successive layers in which the same parameters are frozen, a few run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from backpass.contract.arrays import size
from backpass.contract.values import check_bool
from backpass.cost.activations import FEW, activations, mebibytes
from backpass.cost.budget import shares_of_parameters
from backpass.cost.measured import check_torch, random_arrays
from backpass.cost.networks import (
    WIDTHS,
    arrays_in,
    by_storage,
    forward,
    layer_of,
    named_parts,
)
from backpass.cost.shown import Sheet, Shown
from backpass.cost.sizes import Network, network_of
from backpass.models import seq2seq
from backpass.models.layers.recomputed import Recompute, Segment, divided
from backpass.training import adamw, clipping
from backpass.training._blocks import BLOCK

# "inputs" include the tables that the forward computes from lengths alone.
KINDS = ("parameters", "optimiser", "inputs", "saved", "gradients", "working")
_LAYER = re.compile(r"(\D*\.)(\d+)\.(.+)")  # the name of a parameter of a layer
SHORT = 1e-9  # a norm to which gradients are clipped, shorter than theirs


class Moment(NamedTuple):
    """One part of a step, at the instant when most bytes are alive."""

    phase: str  # "forward", "recomputation", "backward", or "update"
    part: str  # of the model, such as "h.0"; of the update, "clip" or "AdamW"
    bytes: dict[str, int]  # by kind

    @property
    def total(self) -> int:
        """The bytes of all kinds together."""
        return sum(self.bytes.values())


@dataclass(frozen=True, repr=False)
class Timeline(Shown):
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

    def _in_text(self) -> Sheet:
        peak = self.peak
        title = (
            f"{self.title}: bytes alive. The peak is {peak.total:,} bytes = "
            f"{mebibytes(peak.total)}, in the {peak.phase} of {peak.part}"
        )
        rows = [
            (
                moment.phase,
                moment.part,
                *(f"{moment.bytes[kind]:,}" for kind in KINDS),
                f"{moment.total:,}",
                "peak" if moment is peak else "",
            )
            for moment in self.moments
        ]
        headings = ("phase", "part", *KINDS, "all", "")
        right = range(2, 3 + len(KINDS))
        return Sheet(title, headings, rows, right, label=self.title)


def timeline(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    *,
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
    wanted: Collection[str] | None = None,
    dropout: bool = False,
    recompute: Recompute = None,
    clip: bool = False,
) -> Timeline:
    """Predict the memory over the moments of a training step.

    The arguments are those of ``activations``; parameters that are not ``wanted`` are
    frozen, and have neither gradients nor states. With ``clip``, the gradients are
    clipped in place before the update. Half-precision parameters are a copy of float32
    master weights, which count as the optimiser's, like AdamW's two states. In the
    forward a moment begins when a part's first array is saved, in the backward when the
    part's arrays are taken, and in a recomputation when a segment runs again. NumPy
    draws the masks of dropout, and its memory does not count.

    FlashAttention's tiles are followed one by one. On one sequence of 8,192 tokens that
    takes about a quarter of a minute for the sizes of Llama 3 8B, and several times as
    long for those of 70B. With ``flash=False`` the prediction takes seconds, but is
    that of plain attention, which saves more.

    Needs PyTorch. Raises what ``activations`` raises, TypeError unless ``clip`` is a
    bool, and ImportError without PyTorch.
    """
    check_torch("timeline")
    network = network_of(config)
    options: dict[str, Any] = {"dtype": dtype, "flash": flash, "chunked": chunked}
    options |= {"wanted": wanted, "dropout": dropout, "recompute": recompute}
    kept = activations(network.config, batch, sequence, **options)
    check_bool(clip=clip)
    every, _ = divided(recompute, None)
    folded = hasattr(network.config, "layers") and every is None
    runs = _equal_layers(network, wanted) if folded else []
    few, options["wanted"] = _with_few_layers(network, wanted, runs)
    observed = _observed(few, batch, sequence, "meta", **options, clip=clip)
    moments = _with_layers(observed, runs, kept.by_part(), WIDTHS[dtype])
    moments = _with_states(moments, network, dtype, wanted)
    return Timeline(f"{kept.title}, predicted", tuple(moments))


def measured_timeline(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    *,
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
    wanted: Collection[str] | None = None,
    dropout: bool = False,
    recompute: Recompute = None,
    clip: bool = False,
    device: str = "cpu",
) -> Timeline:
    """Run a training step on random parameters, and return the memory over its moments.

    Memory that a PyTorch operator allocates and frees internally is not measured. The
    arguments and the errors are those of ``timeline``.
    """
    check_torch("measured_timeline")
    network = network_of(config)
    check_bool(clip=clip)
    options: dict[str, Any] = {"dtype": dtype, "flash": flash, "chunked": chunked}
    options |= {"wanted": wanted, "dropout": dropout, "recompute": recompute}
    options |= {"clip": clip}
    moments = _observed(network, batch, sequence, device, **options)
    return Timeline(
        f"{network.family} in {dtype}, measured on {device}", tuple(moments)
    )


class _Watched(list):
    """What the parts saved. ``told`` is called with "backward" and a part's name just
    before backward takes what the part saved; before it, with "recomputation", if the
    part has to run again. ``found`` is called with what such a part saved."""

    def __init__(
        self,
        parts: list[Any],
        names: Sequence[str],
        told: Callable[[str, str], None],
        found: Callable[[Any], None],
    ) -> None:
        super().__init__(parts)
        self.names, self.told, self.found = names, told, found
        parts.clear()  # so that only this list references what the parts saved

    def pop(self, *at: Any) -> Any:
        name, part = self.names[len(self) - 1], super().pop(*at)
        if not isinstance(part, Segment):
            self.told("backward", name)
            return part
        if not part.parts:
            self.told("recomputation", name)
            part.run_again()
        self.told("backward", name)
        own = part.pop()
        self.found(own)
        return own


def _observed(
    network: Network,
    batch: int,
    sequence: int | tuple[int, int],
    device: str,
    *,
    dtype: str,
    clip: bool,
    wanted: Collection[str] | None = None,
    **options: Any,
) -> list[Moment]:
    """Run a step, and return its moments. The options are those of the forward. On the
    device "meta", clipping and the update do not run."""
    from backpass.cost.live import Live

    parameters, inputs, given = random_arrays(network, batch, sequence, device, dtype)
    half = WIDTHS[dtype] < WIDTHS["float32"]
    chosen = [name for name in parameters if wanted is None or name in wanted]
    updated = parameters
    if half:
        updated = {name: parameters[name].float() for name in chosen}
    state = adamw.start({name: updated[name] for name in chosen})
    live = Live()
    kinds: dict[int, str] = {}  # by the storage's number; the rest is working memory
    marks: list[tuple[int, str, str]] = []  # the first event, the phase, the part

    def add(kind: str, arrays: Iterable[Any]) -> None:
        for x in arrays:
            live.add(x)
            kinds.setdefault(live.number(x), kind)

    def add_states() -> None:
        add("optimiser" if half else "parameters", updated.values())
        add("optimiser", state["mean"].values())
        add("optimiser", state["square"].values())

    def mark(phase: str, part: str) -> None:
        marks.append((len(live.events), phase, part))

    def saved_again(part: Any) -> None:
        for x in arrays_in(part):
            kinds.setdefault(live.number(x), "saved")

    add("parameters", parameters.values())
    add_states()
    add("inputs", (*inputs, *given))
    start = len(live.events)
    with live:
        saved = forward(network, parameters, inputs, wanted=wanted, **options)
        created = {
            n: max(at, start) for at, (n, size) in enumerate(live.events) if size > 0
        }
        begun: dict[str, int] = {}
        for key, x in by_storage(network, saved, parameters).items():
            number = live.number_of(key)
            if x.kind != "parameter":
                kinds[number] = "inputs" if x.kind == "constant" else "saved"
            if x.kind == "saved":
                at = created[number]
                begun[x.part] = min(begun.get(x.part, at), at)
        marks += sorted((at, "forward", part) for part, at in begun.items())
        if marks:  # parts before the first that saves an array count as that one
            marks[0] = (start, *marks[0][1:])

        saved = _watched(network, saved, mark, saved_again)
        found = network.model.backward(*given, saved)
        gradients = found if isinstance(found, dict) else found[-1]
        del found
        of_gradients = {live.number(x) for x in gradients.values()}
        if clip:
            mark("update", "clip")
        if clip and device != "meta":
            gradients, _ = clipping.clip(gradients, SHORT, in_place=True)
        mark("update", "AdamW")
        if device != "meta":
            adamw.update(updated, gradients, state, in_place=True)
            add_states()
    marks.sort(key=lambda mark: mark[0])
    return list(_moments(live.events, start, marks, kinds, of_gradients))


def _watched(network: Network, saved: Any, *calls: Callable[..., None]) -> Any:
    """Return what a forward saved, in lists that make the ``calls`` of ``_Watched``
    when backward takes a part from them."""
    names = [name for name, _ in named_parts(network, saved) if name != "loss"]
    if network.model is seq2seq:
        encoded, count = saved.encoded, len(saved.encoded.parts)
        parts = _Watched(encoded.parts, names[:count], *calls)
        saved = saved._replace(encoded=encoded._replace(parts=parts))
        names = names[count:]
    return saved._replace(parts=_Watched(saved.parts, names, *calls))


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


class _Layers(NamedTuple):
    """Successive layers that save the same arrays and compute the same gradients."""

    stack: str  # the prefix of their names
    numbers: range
    wanted: list[str]  # parameters of each layer, by their names in it
    elements: int  # of these parameters

    @property
    def absent(self) -> range:
        """The numbers of the layers that do not run: those between the second, which
        represents them, and the last."""
        return self.numbers[FEW - 1 : -1]

    @property
    def run(self) -> list[int]:
        """The numbers of the layers that run, at most ``FEW``."""
        return [i for i in self.numbers if i not in self.absent]


def _equal_layers(network: Network, wanted: Collection[str] | None) -> list[_Layers]:
    """Return the runs of equal layers of a stack.

    The same parameters are wanted in equal layers. Also, a wanted parameter precedes
    all of them or none, so that their backward passes a gradient on or does not.
    """
    layers = network.config.layers
    own: list[dict[str, int]] = [{} for _ in range(layers)]
    first, stack = layers, ""  # the first layer that passes no gradient on
    for name, shape in network.shapes.items():
        place = _LAYER.fullmatch(name)
        stack = place[1] if place else stack
        if wanted is not None and name not in wanted:
            continue
        if place:
            own[int(place[2])][place[3]] = size(shape)
        first = min(first, int(place[2]) if place else -1 if not stack else first)
    found = []
    for (_, names), group in itertools.groupby(
        range(layers), key=lambda i: (i > first, [*own[i]])
    ):
        numbers = [*group]
        whole = range(numbers[0], numbers[-1] + 1)
        found.append(_Layers(stack, whole, names, sum(own[numbers[0]].values())))
    return found


def _with_few_layers(
    network: Network, wanted: Collection[str] | None, runs: Sequence[_Layers]
) -> tuple[Network, Collection[str] | None]:
    """Return a network of the layers that run, and its parameters that are wanted."""
    if not runs:
        return network, wanted
    few = network.having(layers=sum(len(each.run) for each in runs))
    if wanted is None:
        return few, None
    names = [name for name in wanted if not _LAYER.fullmatch(name)]
    number = itertools.count()
    for each in runs:
        for _ in each.run:
            layer = f"{each.stack}{next(number)}"
            names += [f"{layer}.{name}" for name in each.wanted]
    return few, names


def _with_layers(
    moments: Iterable[Moment],
    runs: Sequence[_Layers],
    saved_by_part: Mapping[str, int],
    width: int,
) -> Iterator[Moment]:
    """Yield the moments of all layers, given those of the layers that run. Each layer
    that does not adds its saved arrays and its gradients."""
    numbers = [i for each in runs for i in each.run]
    folded = {each.numbers[1]: each for each in runs if each.absent}
    outside = -1  # the place of a part that is not a layer: before them, or after
    for moment in moments:
        forwards, (stack, number) = moment.phase == "forward", layer_of(moment.part)
        in_layer = number is not None and bool(runs)
        layers = [-1 if moment.phase == "update" else outside]
        if in_layer:
            layer = numbers[number or 0]
            layers = [layer, *(folded[layer].absent if layer in folded else ())]
            outside = runs[-1].numbers.stop if forwards else -1
        for i in layers if forwards else reversed(layers):
            alive = dict(moment.bytes)
            for second, each in folded.items():
                # The saved arrays of an absent layer are alive after its forward and
                # until its backward; its gradients, from then on.
                up_to = sum(j <= i for j in each.absent)
                alive["saved"] += up_to * saved_by_part.get(f"{each.stack}{second}", 0)
                if not forwards:
                    beyond = len(each.absent) - up_to
                    alive["gradients"] += beyond * width * each.elements
            part = f"{stack}{i}" if in_layer else moment.part
            yield moment._replace(part=part, bytes=alive)


def _with_states(
    moments: Iterable[Moment],
    network: Network,
    dtype: str,
    wanted: Collection[str] | None,
) -> Iterator[Moment]:
    """Yield the moments with all parameters and all states of the optimiser, and those
    of the update with its working memory."""
    bytes_of = {x.what: x.bytes for x in shares_of_parameters(network, dtype, wanted)}
    parameters, _ = bytes_of.pop("weights"), bytes_of.pop("gradients")
    there = {"parameters": parameters, "optimiser": sum(bytes_of.values())}
    for moment in moments:
        own = moment.bytes | there
        if moment.phase == "update":
            own["working"] = _update_bytes(moment.part, network.shapes, dtype, wanted)
        yield moment._replace(bytes=own)


def _update_bytes(
    part: str,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    wanted: Collection[str] | None,
) -> int:
    """Return the working memory of AdamW's update or of clipping, which run parameter
    by parameter, and through a large parameter block by block."""
    import torch

    from backpass.cost.live import Live

    names = shapes if wanted is None else wanted
    most = min(max((size(shapes[name]) for name in names), default=0), 2 * BLOCK)
    wide = torch.float64 if dtype == "float64" else torch.float32
    w = {"w": torch.zeros(most, dtype=wide)}
    dw = {"w": torch.ones(most, dtype=getattr(torch, dtype))}
    state = adamw.start(w)
    with Live() as live:
        for x in (w["w"], dw["w"], state["mean"]["w"], state["square"]["w"]):
            live.add(x, counted=False)
        if part == "clip":
            clipping.clip(dw, SHORT, in_place=True)
        else:
            adamw.update(w, dw, state, in_place=True)
    return live.peak
