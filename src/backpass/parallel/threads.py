"""Ranks as threads. A collective is the operation of ``backpass.ops`` on what all ranks
bring."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import MutableSequence
from typing import Any

from backpass import ops
from backpass.contract.arrays import Array, namespace
from backpass.parallel.group import (
    ByName,
    RankError,
    Scheme,
    check_array,
    check_calls,
    check_ranks,
    check_scheme,
    described,
    members,
)


class _Unmet(Exception):
    """Raised for a rank that waited in an exchange to which not every rank came."""


class _Turns:
    """Lets one rank compute at a time, until it waits in an exchange or returns. So
    code that counts or traces the arithmetic needs no locks."""

    def __init__(self) -> None:
        self.ready: deque[threading.Lock] = deque()  # what each rank waits for
        self.meetings: list[_Meeting] = []

    def wait(self, waiting: MutableSequence[threading.Lock]) -> None:
        """Give the turn to the next rank, and wait for the next turn of this one: after
        its lock, which is added to ``waiting``, has become ready."""
        own = threading.Lock()
        own.acquire()
        waiting.append(own)
        self.pass_on()
        own.acquire()

    def pass_on(self) -> None:
        """Give the turn to the next rank. If none can go on, no rank is left that could
        come to the meetings: end them."""
        if not self.ready:
            for meeting in self.meetings:
                if meeting.waiting:
                    meeting.leave()
        if self.ready:
            self.ready.popleft().release()


class _Exchange:
    """What the ranks of a group bring once, and the result: None until all have come,
    or an error."""

    def __init__(self, size: int) -> None:
        self.brought: list[Any] = [None] * size  # each rank's collective, options, x
        self.result: Any = None

    def compute(self) -> None:
        try:
            self.result = _exchanged(self.brought)
        except Exception as error:
            self.result = error
        self.brought = []


class _Meeting:
    """Where the ranks of a group exchange arrays. The last to come computes, and all
    leave with their part."""

    def __init__(self, size: int, turns: _Turns) -> None:
        self.size, self.turns = size, turns
        self.now = _Exchange(size)
        self.waiting: list[threading.Lock] = []
        self.left = False
        self.parts: dict[tuple[int, int], _Meeting] = {}  # by split and first rank
        turns.meetings.append(self)

    def exchange(self, rank: int, x: Array, name: str, **options: Any) -> Array:
        check_array(x)
        now = self.now
        now.brought[rank] = name, options, x
        if not self.left and len(self.waiting) + 1 < self.size:
            self.turns.wait(self.waiting)
        elif not self.left:
            self.now = _Exchange(self.size)
            now.compute()
            self.let_go()
        if now.result is None:
            raise _Unmet(f"called {name}, which not every rank did")
        if isinstance(now.result, Exception):
            raise type(now.result)(*now.result.args)
        return now.result[rank, ...]

    def part(self, split: int, ranks: list[int]) -> _Meeting:
        """Return the meeting of these ranks, the same one for all of them."""
        key = split, ranks[0]
        if key not in self.parts:
            self.parts[key] = _Meeting(len(ranks), self.turns)
        return self.parts[key]

    def let_go(self) -> None:
        """Let the ranks that wait go on."""
        self.turns.ready.extend(self.waiting)
        self.waiting.clear()

    def leave(self) -> None:
        """Make every rank fail that waits, or comes later: the exchange cannot happen
        any more."""
        self.left = True
        self.let_go()


def _exchanged(brought: list[Any]) -> Array:
    """Return the collective's output for all ranks. Raises ValueError if they do not
    call the same one, with arrays of the same shape, dtype and library."""
    check_calls([described(name, x, **options) for name, options, x in brought])
    name, options, x = brought[0]
    stacked = namespace(x).stack([x for _, _, x in brought], axis=0)
    return ops.load(name).forward(stacked, **options)[0]


class LocalGroup(ByName):
    """A ``Group`` whose ranks are threads of this process."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank, self.size, self._meeting = rank, size, meeting
        self._splits: list[LocalGroup] = []

    def split(self, colour: int) -> LocalGroup:
        own = members(self, colour)
        meeting = self._meeting.part(len(self._splits), own)
        self._splits.append(LocalGroup(own.index(self.rank), len(own), meeting))
        return self._splits[-1]

    def leave(self) -> None:
        """End the exchanges of the groups in which this rank is."""
        self._meeting.leave()
        for each in self._splits:
            each.leave()

    def _run(self, name: str, x: Array, **options: int) -> Array:
        return self._meeting.exchange(self.rank, x, name, **options)


def on_threads(scheme: Scheme, ranks: int, *arguments: Any) -> list[Any]:
    """Run ``scheme(group, *arguments)`` on every rank, and return the results by rank.

    One rank computes at a time. If all ranks that have not returned wait in exchanges
    of different groups, each of them fails. A rank that computes without end blocks the
    run, because a thread cannot be killed. Raises RankError, from the rank's own error,
    for the first rank that failed; TypeError if ``scheme`` cannot be called; TypeError
    or ValueError if ``ranks`` is not an integer of at least 1.
    """
    check_scheme(scheme)
    check_ranks(ranks)
    turns = _Turns()
    meeting = _Meeting(ranks, turns)
    results: list[Any] = [None] * ranks
    errors: list[tuple[int, BaseException]] = []  # in the order of time

    def run(rank: int, turn: threading.Lock) -> None:
        turn.acquire()
        group = LocalGroup(rank, ranks, meeting)
        try:
            results[rank] = scheme(group, *arguments)
        except BaseException as error:
            errors.append((rank, error))
        finally:
            group.leave()
            turns.pass_on()

    threads = []
    for rank in range(ranks):
        turn = threading.Lock()
        turn.acquire()
        turns.ready.append(turn)
        target = contextvars.copy_context().run
        threads.append(
            threading.Thread(target=target, args=(run, rank, turn), daemon=True)
        )
    for thread in threads:
        thread.start()
    turns.pass_on()
    for thread in threads:
        thread.join()
    # A rank that waited in vain fails too, but is not to blame.
    own = [failure for failure in errors if not isinstance(failure[1], _Unmet)]
    if own:
        # All ranks of an exchange raise its error; the lowest is named.
        first = repr(own[0][1])
        rank, error = min(
            (failure for failure in own if repr(failure[1]) == first),
            key=lambda failure: failure[0],
        )
        raise RankError(rank, f"{type(error).__name__}: {error}") from error
    for rank, error in errors:
        raise RankError(rank, str(error)) from error
    return results
