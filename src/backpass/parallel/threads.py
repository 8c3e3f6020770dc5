"""Ranks as threads. A collective is the operation of ``backpass.ops`` on what all ranks
bring."""

from __future__ import annotations

import contextvars
import threading
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


class _Run:
    """The ranks of a run. Between exchanges only the rank that holds the lock computes,
    so that code that counts or traces the arithmetic needs no locks."""

    def __init__(self, ranks: int) -> None:
        self.lock = threading.Lock()
        self.ranks = ranks  # that have not returned
        self.waiting: list[_Meeting] = []  # where each waiting rank waits

    def enter(self, meeting: _Meeting) -> None:
        """Note that a rank waits, unless it is the last to reach the meeting."""
        self.waiting.append(meeting)
        if self.waiting.count(meeting) == meeting.all_here.parties:
            self.waiting = [other for other in self.waiting if other is not meeting]
        self.look()

    def leave(self) -> None:
        """Note that a rank has returned."""
        self.ranks -= 1
        self.look()

    def look(self) -> None:
        """End the meetings if every rank waits: no rank is left that could come."""
        if len(self.waiting) == self.ranks:
            for meeting in self.waiting:
                meeting.leave()


class _Meeting:
    """Where the ranks of a group exchange arrays. The last to come computes, and all
    leave with their part."""

    def __init__(self, size: int, running: _Run) -> None:
        self.brought: list[Any] = [None] * size  # each rank's collective, options, x
        self.result: Any = None
        self.running = running
        self.all_here = threading.Barrier(size, self._compute)
        self.all_served = threading.Barrier(size, self._clear)
        self.parts: dict[tuple[int, int], _Meeting] = {}  # by split and first rank

    def exchange(self, rank: int, x: Array, name: str, **options: Any) -> Array:
        check_array(x)
        self.brought[rank] = name, options, x
        running = self.running
        running.enter(self)
        running.lock.release()
        try:
            self.all_here.wait()
            result = self.result
            self.all_served.wait()  # before another exchange replaces the result
        except threading.BrokenBarrierError:
            running.lock.acquire()
            if self in running.waiting:
                running.waiting.remove(self)
            raise _Unmet(f"called {name}, which not every rank did") from None
        running.lock.acquire()
        if isinstance(result, Exception):
            raise type(result)(*result.args)
        return result[rank, ...]

    def part(self, split: int, ranks: list[int]) -> _Meeting:
        """Return the meeting of these ranks, the same one for all of them."""
        key = split, ranks[0]
        if key not in self.parts:
            self.parts[key] = _Meeting(len(ranks), self.running)
        return self.parts[key]

    def leave(self) -> None:
        """Make every rank fail that waits, or comes later: the exchange cannot happen
        any more."""
        self.all_here.abort()

    def _clear(self) -> None:
        # What was exchanged is the ranks' own now; nothing keeps it alive here.
        self.brought, self.result = [None] * len(self.brought), None

    def _compute(self) -> None:
        try:
            self.result = _exchanged(self.brought)
        except Exception as error:
            self.result = error


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
    running = _Run(ranks)
    meeting = _Meeting(ranks, running)
    results: list[Any] = [None] * ranks
    errors: list[tuple[int, BaseException]] = []  # in the order of time

    def run(rank: int) -> None:
        group = LocalGroup(rank, ranks, meeting)
        with running.lock:
            try:
                results[rank] = scheme(group, *arguments)
            except BaseException as error:
                errors.append((rank, error))
            finally:
                group.leave()
                running.leave()

    threads = [
        threading.Thread(
            target=contextvars.copy_context().run, args=(run, rank), daemon=True
        )
        for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
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
