"""How long a training step takes: a sum of rooflines, one for each call.

A call takes the time of its arithmetic or of its bytes, whichever is longer, plus a
constant. The bytes are the least that the call moves, as ``traffic`` counts them. At a
machine's published peaks the sum is therefore a lower bound, unless a cache keeps an
array from one call to the next. ``element_rate`` is the rate of all arithmetic that is
not a matrix product. If it is measured on operations that compute one array after
another, as ours do, it includes the time to move these arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from backpass.contract.stems import entry
from backpass.contract.values import check_one_of
from backpass.cost.calls import calls_of
from backpass.cost.itemised import calls_again, times
from backpass.cost.networks import WIDTHS
from backpass.cost.shown import Sheet, Shown
from backpass.cost.tally import Tally, tally
from backpass.cost.terms import BACKWARD, FORWARD, RECOMPUTATION, terms_of
from backpass.cost.traffic import accesses_of, parts_of
from backpass.models.layers.calls import Call, Part
from backpass.models.layers.recomputed import Recompute
from backpass.training._numbers import check_positive, check_rate

UPDATE = "update"
PRODUCTS, ELEMENTS, MEMORY, CALL = "products", "elements", "memory", "call"


class Work(NamedTuple):
    """What a call does, forward or backward."""

    products: int  # FLOPs of matrix products
    elements: int  # FLOPs of everything else
    bytes: int  # read and written


@dataclass(frozen=True)
class Machine:
    """The rates of a machine, for FLOPs and bytes as ``tally`` and ``traffic`` count.

    ``product_rates`` has the FLOP/s of matrix products, by dtype, such as
    ``{"bfloat16": 989.4e12}``; ``element_rate`` is the FLOP/s of everything else.
    ``bandwidth`` is in bytes/s, read and written together. ``call_seconds`` is the time
    in seconds of a call that computes almost nothing. ``capacity`` is the memory in
    bytes, None if it is unknown.

    Raises TypeError unless ``product_rates`` is a mapping, ValueError if it is empty;
    TypeError or ValueError for a rate that is not a number above 0, a ``call_seconds``
    that is not at least 0 and finite, or an unknown dtype.
    """

    name: str
    product_rates: Mapping[str, float]
    element_rate: float
    bandwidth: float
    call_seconds: float = 0.0
    capacity: float | None = None

    def __post_init__(self) -> None:
        expected = "product_rates: expected a mapping from dtypes to FLOP/s, such as "
        expected += "{'bfloat16': 989.4e12}"
        if not isinstance(self.product_rates, Mapping):
            raise TypeError(f"{expected}; got {type(self.product_rates).__name__}")
        if not self.product_rates:
            raise ValueError(f"{expected}; got an empty one")
        for dtype, rate in self.product_rates.items():
            check_one_of("product_rates", dtype, tuple(WIDTHS))
            check_positive(**{f"product_rates[{dtype!r}]": rate})
        check_positive(element_rate=self.element_rate, bandwidth=self.bandwidth)
        check_rate(call_seconds=self.call_seconds)
        if self.capacity is not None:
            check_positive(capacity=self.capacity)

    def product_rate(self, dtype: str) -> float:
        """Return the FLOPs per second of products of that dtype. Raises LookupError if
        the machine has no rate for it."""
        return entry("dtype of this machine", dtype, self.product_rates)

    def time(self, work: Work, dtype: str) -> tuple[float, str]:
        """Return the seconds of a call, and what bounds it: PRODUCTS, ELEMENTS, MEMORY,
        or CALL. Raises LookupError for a dtype without a rate."""
        times = {
            PRODUCTS: work.products / self.product_rate(dtype),
            ELEMENTS: work.elements / self.element_rate,
        }
        arithmetic, moving = sum(times.values()), work.bytes / self.bandwidth
        longest = max(arithmetic, moving)
        bound = max(times, key=lambda name: times[name])
        bound = bound if arithmetic >= moving else MEMORY
        bound = bound if longest >= self.call_seconds else CALL
        return longest + self.call_seconds, bound


# Published peaks of dense products: half precision on tensor cores, float32 without
# them. NVIDIA, "H100 Tensor Core GPU Architecture" (2022) and "A100 80GB" data sheet
# (2021).
_H100, _A100 = 989.4e12, 312e12
MACHINES = {
    "h100": Machine(
        "NVIDIA H100 SXM5, published peaks",
        {"bfloat16": _H100, "float16": _H100, "float32": 66.9e12},
        element_rate=66.9e12,
        bandwidth=3.35e12,
        capacity=80 * 2**30,
    ),
    "a100": Machine(
        "NVIDIA A100 SXM4 80 GB, published peaks",
        {"bfloat16": _A100, "float16": _A100, "float32": 19.5e12},
        element_rate=19.5e12,
        bandwidth=2.039e12,
        capacity=80 * 2**30,
    ),
}


class Span(NamedTuple):
    """The time of one call in one way, in each of ``repeats`` equal parts."""

    part: str
    repeats: int
    call: str
    stem: str
    way: str
    work: Work
    seconds: float
    bound: str  # what bounds the call: PRODUCTS, ELEMENTS, MEMORY, or CALL

    @property
    def total(self) -> float:
        """The seconds in all repeats."""
        return self.repeats * self.seconds


@dataclass(frozen=True, repr=False)
class Duration(Shown):
    """The predicted time of a training step, call by call."""

    name: str
    machine: Machine
    dtype: str
    spans: tuple[Span, ...]
    tally: Tally

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return sum(span.total for span in self.spans)

    def by(self, key: Callable[[Span], str]) -> dict[str, float]:
        """Return the seconds, grouped by what ``key`` returns for a span."""
        found: dict[str, float] = {}
        for span in self.spans:
            found[key(span)] = found.get(key(span), 0.0) + span.total
        return found

    def share(self, *ways: str) -> float:
        """Return these ways' share of the step's time, such as that of "backward"."""
        return sum(span.total for span in self.spans if span.way in ways) / self.seconds

    def mfu(
        self, seconds: float | None = None, convention: str = "products-whole"
    ) -> float:
        """Return the model FLOPs utilisation: the FLOPs of one forward and one
        backward, over those that the machine could compute in products in that time.

        ``seconds`` is a measured time; the default is the predicted time. The default
        ``convention`` counts all scores, including those that a causal mask hides, as
        in Chowdhery et al., "PaLM" (2023). FlashAttention skips most hidden scores, so
        on long sequences the result can be above 1 with ``flash``: the FLOPs that count
        are then more than those that run. Raises LookupError for an unknown convention.
        """
        return self._share(self.tally.model().total(convention), seconds)

    def hfu(self, seconds: float | None = None, convention: str = "products") -> float:
        """Return the hardware FLOPs utilisation: the same with the FLOPs that run.
        Recomputed products count. Skipped scores do not, so the result may be lower
        than ``mfu``."""
        return self._share(self.tally.total(convention), seconds)

    def _share(self, flops: int, seconds: float | None) -> float:
        if seconds is not None:
            check_positive(seconds=seconds)
        peak = self.machine.product_rate(self.dtype)
        return flops / ((self.seconds if seconds is None else seconds) * peak)

    def _in_text(self) -> Sheet:
        title = (
            f"{self.name}, {self.dtype}, on {self.machine.name}: "
            f"{self.seconds:.4g} s a step, MFU {self.mfu():.1%}"
        )
        groups: dict[str, list[Span]] = {}
        for span in self.spans:
            groups.setdefault(times(span.repeats, span.call), []).append(span)
        rows = [(name, *_cells(spans, self.seconds)) for name, spans in groups.items()]
        rows.append(("total", *_cells(self.spans, self.seconds)[:-1], ""))
        headings = ("ms", "forward", "backward", "update", "share", "bound by")
        return Sheet(title, headings, rows, right=(1, 2, 3, 4))


_WAYS = ((FORWARD,), (BACKWARD, RECOMPUTATION), (UPDATE,))


def _cells(spans: Any, whole: float) -> tuple[str, ...]:
    times = [sum(span.total for span in spans if span.way in ways) for ways in _WAYS]
    bounds = dict.fromkeys(span.bound for span in spans)
    texts = [f"{1e3 * seconds:,.3f}" if seconds else "" for seconds in times]
    return *texts, f"{sum(times) / whole:.1%}", ", ".join(bounds)


def duration(
    config: Any,
    batch: int,
    sequence: int,
    machine: Machine | str,
    *,
    dtype: str = "float32",
    recompute: Recompute = None,
    update: bool = True,
    **options: Any,
) -> Duration:
    """Return the predicted time of a training step on ``batch`` sequences of
    ``sequence`` tokens.

    ``machine`` is a Machine with measured rates, or the name of one with published
    peaks: "h100" or "a100". ``dtype`` is that of parameters and activations, float32 by
    default as in ``cost.traffic`` and ``cost.activations``; networks usually train in
    bfloat16, whose products are faster. ``update`` says whether to include AdamW's
    update. The other arguments are those of ``cost.tally`` and ``cost.traffic``.

    Raises LookupError for an unknown name, or for a dtype whose rate the machine lacks;
    TypeError or ValueError for other invalid arguments.
    """
    if isinstance(machine, str):
        machine = entry("machine", machine, MACHINES)
    if not isinstance(machine, Machine):
        raise TypeError(
            "machine: expected a Machine, or the name of one; "
            f"got {type(machine).__name__}"
        )
    machine.product_rate(dtype)
    found = tally(config, batch, sequence, recompute=recompute, **options)
    of = calls_of(config, batch, sequence, **options)
    spans = [
        Span(*about, work, *machine.time(work, dtype))
        for about, work in works_of(of.parts, dtype, recompute)
    ]
    if update:
        work = Work(0, FLOPS_OF_ADAMW * of.trained, adamw_width(dtype) * of.trained)
        about = ("optimiser", 1, "AdamW", "adamw", UPDATE)
        spans.append(Span(*about, work, *machine.time(work, dtype)))
    return Duration(of.name, machine, dtype, tuple(spans), found)


def works_of(
    parts: Iterable[Part], dtype: str, recompute: Recompute = None
) -> Iterator[tuple[tuple[str, Any, str, str, str], Work]]:
    """Yield the first five fields of a span, and its work, for each call and way.
    Lengths may be SymPy symbols."""
    for part in parts:
        again = calls_again(part, recompute)
        inner = [(whole, each) for whole in part.calls for each in parts_of(whole)]
        for whole, each in inner:
            found = _work(each, dtype)
            if whole in again and FORWARD in found:
                found[RECOMPUTATION] = found[FORWARD]
            for way, work in found.items():
                yield (part.name, part.repeats, each.name, each.stem, way), work


def _work(each: Call, dtype: str) -> dict[str, Work]:
    """Return the work of a call in each way in which it moves bytes."""
    terms, moved, found = terms_of(each), accesses_of(each, dtype), {}
    for way in (FORWARD, BACKWARD):
        size = sum(access.bytes for access in moved if access.way == way)
        flops = {True: 0, False: 0}
        for term in terms:
            flops[term.product is not None] += term.flops if term.way == way else 0
        if size:
            found[way] = Work(flops[True], flops[False], size)
    return found


FLOPS_OF_ADAMW = 15  # for one element, with decay


def adamw_width(dtype: str) -> int:
    """Return the least bytes that AdamW reads and writes for one element. It reads and
    writes the parameter and its two means, in float32 or wider, and reads the gradient.
    For half precision it also writes the rounded copy."""
    own = WIDTHS[dtype]
    return 6 * max(own, 4) + own + (own if own < 4 else 0)
