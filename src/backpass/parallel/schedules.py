"""Schedules of a pipeline: in which order each rank runs the forwards and backwards of
the micro-batches on its stages.

A rank's order is a list. ``scheduled`` executes the lists in time: an action starts as
soon as its rank is free and what it needs has been computed, and takes as many slots as
its kind has in ``lengths``. So the idle time and the
number of micro-batches whose activations a rank holds are counted, not estimated.
``gpipe`` is that of Huang et al. (2019, arXiv:1811.06965), here without running layers
again, ``one_f_one_b`` that of
Narayanan et al. (2021, arXiv:2104.04473), whose stages may be interleaved, and
``zero_bubble`` is ZB-H1 of Qi et al. (2023, arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from backpass.training._numbers import check_count


class Action(NamedTuple):
    """What a rank does: ``kind`` is F, the forward of a micro-batch on a stage; B, its
    backward; or one of the backward's two parts, I for the gradient of the stage's
    input and W for those of its weights."""

    kind: str
    batch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.kind} of micro-batch {self.batch} on stage {self.stage}"


class Timed(NamedTuple):
    """An action, from the slot in which it starts to before that in which the next
    one can."""

    start: int
    stop: int
    action: Action


Order = Sequence[Action]
Lengths = Mapping[str, int]
LENGTHS = {"F": 1, "B": 2, "I": 1, "W": 1}  # in slots


class Schedule(NamedTuple):
    """What each rank does in which slot. Stage k is on rank k modulo the number of
    ranks."""

    ranks: tuple[tuple[Timed, ...], ...]
    stages: int
    batches: int

    @property
    def slots(self) -> int:
        """The number of slots until the last action has ended."""
        return max(timed[-1].stop for timed in self.ranks)

    def bubble(self) -> Fraction:
        """Return the share of all ranks' slots in which a rank does nothing."""
        busy = sum(t.stop - t.start for timed in self.ranks for t in timed)
        return 1 - Fraction(busy, self.slots * len(self.ranks))

    def in_flight(self, rank: int) -> int:
        """Return the largest number of forwards whose activations a rank holds at a
        time: those that have run, and whose backward has not ended."""
        return self.most(rank, [1] * self.stages)

    def most(self, rank: int, of_stage: Sequence[int]) -> int:
        """Return the most that a rank holds at a time, if it holds so much for each
        micro-batch on a stage whose forward has run, and whose backward has not
        ended."""
        held = most = 0
        for kind, _, stage in (timed.action for timed in self.ranks[rank]):
            held += of_stage[stage] * (kind == "F")
            most = max(most, held)
            held -= of_stage[stage] * (kind in "BW")
        return most

    def ending(self) -> list[dict[int, Action]]:
        """Return the action of each rank that ends in a slot, for all slots."""
        found: list[dict[int, Action]] = [{} for _ in range(self.slots)]
        for rank, timed in enumerate(self.ranks):
            for t in timed:
                found[t.stop - 1][rank] = t.action
        return found


def gpipe(
    ranks: int, batches: int, *, chunks: int = 1, lengths: Lengths = LENGTHS
) -> Schedule:
    """Return the schedule that runs all forwards, and then all backwards. With
    ``chunks``, a rank has that many stages."""
    check_count(ranks=ranks, batches=batches, chunks=chunks)
    orders = []
    for rank in range(ranks):
        stages = [*range(rank, ranks * chunks, ranks)]
        F = [Action("F", j, k) for k in stages for j in range(batches)]
        B = [Action("B", j, k) for k in stages[::-1] for j in range(batches)]
        orders.append(F + B)
    return scheduled(orders, lengths)


def one_f_one_b(
    ranks: int, batches: int, *, chunks: int = 1, lengths: Lengths = LENGTHS
) -> Schedule:
    """Return the schedule in which a rank runs as many forwards as it takes for the
    first backward to reach it, and then a forward and a backward in turn.

    With ``chunks``, a rank has that many stages, which are not neighbours. ``ranks``
    must divide ``batches`` then. Raises ValueError if it does not.
    """
    check_count(ranks=ranks, batches=batches, chunks=chunks)
    if chunks > 1 and batches % ranks:
        raise ValueError(
            f"batches: expected a multiple of {ranks} with chunks, the number of ranks; "
            f"got {batches}"
        )
    orders = []
    for rank in range(ranks):
        # As many micro-batches as there are ranks run on a stage, one after the other,
        # before the rank's next stage gets them.
        of_stages = [rank + chunk * ranks for chunk in range(chunks)]
        size = ranks if chunks > 1 else batches
        rounds = [range(first, first + size) for first in range(0, batches, size)]
        F = [Action("F", j, k) for each in rounds for k in of_stages for j in each]
        B = [
            Action("B", j, k) for each in rounds for k in of_stages[::-1] for j in each
        ]
        after = ranks - rank - 1
        ahead = after if chunks == 1 else 2 * after + (chunks - 1) * ranks
        ahead = min(ahead, len(F))
        order = F[:ahead]
        for forward, backward in zip(F[ahead:], B, strict=False):
            order += [forward, backward]
        orders.append(order + B[len(F) - ahead :])
    return scheduled(orders, lengths)


def zero_bubble(ranks: int, batches: int, *, lengths: Lengths = LENGTHS) -> Schedule:
    """Return the schedule of ``one_f_one_b`` with the backwards in two parts. The
    gradient of a stage's input goes on its way at once. A rank computes the gradients
    of its weights later, the later the further back it is, when it would have to
    wait; so each rank holds the activations of as many micro-batches as the first."""
    check_count(ranks=ranks, batches=batches)
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - rank, batches)
        order = [Action("F", j, rank) for j in range(ahead)]
        for j in range(batches + rank):
            if j < batches:
                order.append(Action("I", j, rank))
            if j >= rank:
                order.append(Action("W", j - rank, rank))
            if ahead + j < batches:
                order.append(Action("F", ahead + j, rank))
        orders.append(order)
    return scheduled(orders, lengths)


def scheduled(orders: Sequence[Order], lengths: Lengths = LENGTHS) -> Schedule:
    """Return the schedule of the ranks that work through these lists, where an action
    of each kind takes ``lengths`` slots.

    Raises ValueError if not every micro-batch has one forward and one backward, whole
    or in both parts, on every stage; if a rank has a stage of another; and if the ranks
    would wait for each other without end, with what each waits for. Raises TypeError or
    ValueError unless each length is an integer of at least 1, and ValueError if that of
    a kind is missing.
    """
    stages, batches = _check(orders)
    for kind in sorted({action.kind for order in orders for action in order}):
        if kind not in lengths:
            raise ValueError(f"lengths: expected one for {kind}; got {dict(lengths)}")
        check_count(**{f"lengths[{kind}]": lengths[kind]})
    stops: dict[Action, int] = {}
    ranks: list[list[Timed]] = [[] for _ in orders]
    waiting = [[*order] for order in orders]
    while any(waiting):
        ran = False
        for timed, order in zip(ranks, waiting, strict=True):
            while order and (start := _ready(order[0], stops, stages)) is not None:
                action = order.pop(0)
                start = max(start, timed[-1].stop if timed else 0)
                stops[action] = start + lengths[action.kind]
                timed.append(Timed(start, stops[action], action))
                ran = True
        if not ran:
            stuck = [f"rank {r} at {o[0]}" for r, o in enumerate(waiting) if o]
            raise ValueError(
                "orders: expected lists that can be worked through; "
                f"these wait without end: {', '.join(stuck)}"
            )
    return Schedule(tuple(map(tuple, ranks)), stages, batches)


def _ready(action: Action, stops: Mapping[Action, int], stages: int) -> int | None:
    """Return the slot from which an action has all that it needs, or None."""
    kind, j, k = action
    needed: list[tuple[Action, ...]] = []  # of each tuple, one
    if kind == "F" and k:
        needed = [(Action("F", j, k - 1),)]
    elif kind in "BI":
        needed = [(Action("F", j, k),)]
        if k + 1 < stages:
            needed.append((Action("B", j, k + 1), Action("I", j, k + 1)))
    elif kind == "W":
        needed = [(Action("I", j, k),)]
    found = [[stops[a] for a in either if a in stops] for either in needed]
    return max((max(each) for each in found), default=0) if all(found) else None


def _check(orders: Sequence[Order]) -> tuple[int, int]:
    """Return the numbers of stages and of micro-batches. Raises TypeError or
    ValueError."""
    every = [action for order in orders for action in order]
    for action in every:
        if not isinstance(action, Action):
            raise TypeError(
                f"orders: expected lists of Action; got {type(action).__name__}"
            )
    stages = 1 + max((a.stage for a in every), default=-1)
    batches = 1 + max((a.batch for a in every), default=-1)
    if any(action.batch < 0 or action.stage < 0 for action in every):
        raise ValueError("orders: expected micro-batches and stages from 0")
    if not every or stages % len(orders):
        raise ValueError(
            f"orders: expected the same number of stages on each of {len(orders)} ranks; "
            f"got {stages} stages"
        )
    for rank, order in enumerate(orders):
        found: dict[tuple[int, int], list[str]] = {}
        for kind, j, k in order:
            found.setdefault((j, k), []).append(kind)
        for k in range(rank, stages, len(orders)):
            for j in range(batches):
                kinds = "".join(sorted(found.get((j, k), ())))
                if kinds not in ("BF", "FIW"):
                    raise ValueError(
                        f"orders: rank {rank}, micro-batch {j}, stage {k}: expected F "
                        f"and B, or F, I, and W; got {', '.join(kinds) or 'nothing'}"
                    )
        for action in order:
            if action.stage % len(orders) != rank:
                raise ValueError(
                    f"orders: rank {rank} has {action}, which is on rank "
                    f"{action.stage % len(orders)}"
                )
    return stages, batches
