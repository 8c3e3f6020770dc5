"""What a collective moves: its messages, round by round, and how much a rank sends.

An algorithm is data, a list of rounds of messages. ``run`` executes it on arrays, and
``moved`` says what it costs. ``ring`` sends to the next rank only, part by part, and
moves the fewest bytes; all-to-all sends each part directly to its rank. ``tree`` sends
whole arrays along a binomial tree, in few rounds. Both are described by Thakur,
Rabenseifner & Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005).
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from backpass.contract.arrays import Array, size
from backpass.parallel.group import ByName, Group, check_ranks


class Message(NamedTuple):
    """One part of an array, on its way to another rank, which adds it to its own part
    of that name or replaces it."""

    sender: int
    receiver: int
    part: int
    added: bool


Rounds = list[list[Message]]  # the messages of a round are sent at the same time


class Moved(NamedTuple):
    """What the rank that sends or receives the most moves in one direction."""

    messages: int  # one after another: the rounds
    moved: int  # elements, or bytes


def ring(name: str, ranks: int) -> Rounds:
    """Return the rounds of the collective on a ring of ``ranks``.

    The array is divided into as many parts as there are ranks; for all-to-all, part
    p·ranks + q goes from rank p to rank q, and a shift moves each rank's own part. The
    root of a broadcast or a reduce is rank 0. Raises LookupError for a name that is not
    a collective; TypeError or ValueError unless ``ranks`` is an integer of at least 1.
    """
    check_ranks(ranks)
    r, every = ranks, range(ranks)

    def around(first: int, added: bool) -> Rounds:
        """In round s, rank p passes part p + first − s to the next rank."""
        return [
            [Message(p, (p + 1) % r, (p + first - s) % r, added) for p in every]
            for s in range(r - 1)
        ]

    def along(ascending: bool) -> Rounds:
        """Every part goes from rank 0 to the last or back, each a round later."""
        rounds: Rounds = [[] for _ in range(2 * r - 2)]
        for part in every:
            for hop in range(r - 1):
                ends = (hop, hop + 1) if ascending else (r - 1 - hop, r - 2 - hop)
                rounds[part + hop].append(Message(*ends, part, not ascending))
        return rounds

    if name == "all_reduce":
        return around(0, True) + around(1, False)
    if name == "all_gather":
        return around(0, False)
    if name == "reduce_scatter":
        return around(-1, True)
    if name == "all_to_all":
        return [
            [Message(p, (p + s) % r, p * r + (p + s) % r, False) for p in every]
            for s in range(1, r)
        ]
    if name in ("broadcast", "reduce"):
        return along(name == "broadcast")
    if name == "shift":
        return [[Message(p, (p + 1) % r, p, False) for p in every]] if r > 1 else []
    raise _unknown(name, "ring", COLLECTIVES)


def tree(name: str, ranks: int) -> Rounds:
    """Return the rounds of an all-reduce, a broadcast, or a reduce of one part along a
    binomial tree, whose root is rank 0.

    Raises LookupError for another name; TypeError or ValueError unless ``ranks`` is an
    integer of at least 1.
    """
    check_ranks(ranks)
    steps = [2**i for i in range((ranks - 1).bit_length())]
    pairs = [[(p, p + step) for p in range(step) if p + step < ranks] for step in steps]
    down = [[Message(p, q, 0, False) for p, q in each] for each in pairs]
    up = [[Message(q, p, 0, True) for p, q in each] for each in reversed(pairs)]
    found = {"all_reduce": up + down, "broadcast": down, "reduce": up}
    if name not in found:
        raise _unknown(name, "tree", tuple(found))
    return found[name]


def run(rounds: Rounds, parts: list[dict[int, Array]]) -> list[dict[int, Array]]:
    """Return what the ranks hold after the rounds, from the ``parts`` of each rank by
    their numbers. The arrays are not modified."""
    held = [dict(own) for own in parts]
    for messages in rounds:
        sent = [(message, held[message.sender][message.part]) for message in messages]
        for message, x in sent:
            own = held[message.receiver]
            own[message.part] = own[message.part] + x if message.added else x
    return held


def busiest(rounds: Rounds) -> int:
    """Return how many parts the rank that sends or receives the most moves in one
    direction."""
    messages = [message for each in rounds for message in each]
    sent = Counter(message.sender for message in messages)
    received = Counter(message.receiver for message in messages)
    return max([*sent.values(), *received.values()], default=0)


def moved(name: str, elements: int, ranks: int, *, algorithm: str = "ring") -> Moved:
    """Return what a collective moves if each rank calls it with ``x[*]`` of so many
    ``elements``.

    The ring divides them into equal parts, the last of which is filled up. Raises
    LookupError for a name or an algorithm that is not there; TypeError or ValueError
    unless ``ranks`` is an integer of at least 1.
    """
    check_ranks(ranks)
    r, depth, part = ranks, (ranks - 1).bit_length(), -(-elements // ranks)
    if algorithm == "tree":
        costs = {
            "all_reduce": Moved(2 * depth, depth * elements),
            "broadcast": Moved(depth, depth * elements),
            "reduce": Moved(depth, depth * elements),
        }
    elif algorithm == "ring":
        costs = {
            "all_reduce": Moved(2 * (r - 1), 2 * (r - 1) * part),
            "all_gather": Moved(r - 1, (r - 1) * elements),
            "reduce_scatter": Moved(r - 1, (r - 1) * part),
            "all_to_all": Moved(r - 1, (r - 1) * part),
            "broadcast": Moved(2 * (r - 1), r * part if r > 1 else 0),
            "reduce": Moved(2 * (r - 1), r * part if r > 1 else 0),
            "shift": Moved(1, elements) if r > 1 else Moved(0, 0),
        }
    else:
        raise LookupError(f"algorithm: expected ring or tree; got {algorithm!r}")
    if name not in costs:
        raise _unknown(name, algorithm, tuple(costs))
    return costs[name]


COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "shift",
)


class Call(NamedTuple):
    """A collective that a rank called."""

    name: str
    shape: tuple[int, ...]  # of this rank's array
    width: int  # bytes of an element

    def moved(self, ranks: int) -> Moved:
        """Return the messages and the bytes that a ring of ``ranks`` moves."""
        messages, elements = moved(self.name, size(self.shape), ranks)
        return Moved(messages, elements * self.width)


class Counted(ByName):
    """A ``Group`` that passes each call on to another one, and lists it in ``calls``.

    The results are those of the other group.
    """

    def __init__(self, group: Group) -> None:
        self.rank, self.size, self._group = group.rank, group.size, group
        self.calls: list[Call] = []

    def split(self, colour: int) -> Counted:
        return Counted(self._group.split(colour))

    def moved(self) -> Moved:
        """Return the messages and the bytes of all calls so far, on a ring."""
        each = [call.moved(self.size) for call in self.calls]
        return Moved(sum(m.messages for m in each), sum(m.moved for m in each))

    def _run(self, name: str, x: Array, **options: int) -> Array:
        y = getattr(self._group, name)(x, **options)
        if options.get("places", 1) % self.size or name != "shift":
            self.calls.append(Call(name, tuple(x.shape), x.dtype.itemsize))
        return y


def _unknown(name: str, algorithm: str, known: tuple[str, ...]) -> LookupError:
    return LookupError(
        f"name: expected a collective that a {algorithm} runs, one of "
        f"{', '.join(known)}; got {name!r}"
    )
