"""Ranks as threads. A collective is the operation of ``backpass.ops`` on what all ranks
bring."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

from backpass import ops
from backpass.arrays import Array, namespace
from backpass.parallel.group import RankError, Scheme, check_ranks
from backpass.shapes import kind


class _Meeting:
    """Where the ranks exchange arrays. The last to come computes, and all leave with
    their part. Between exchanges one rank runs at a time, so that what counts or traces
    the arithmetic needs no locks."""

    def __init__(self, size: int) -> None:
        self.brought: list[Any] = [
            None
        ] * size  # by rank: the collective, its options, and x
        self.result: Any = None
        self.running = threading.Lock()
        self.all_here = threading.Barrier(size, self._compute)
        self.all_served = threading.Barrier(size)

    def exchange(self, rank: int, x: Array, name: str, **options: Any) -> Array:
        self.brought[rank] = name, options, x
        self.running.release()
        try:
            self.all_here.wait()
            result = self.result
            self.all_served.wait()  # before another exchange replaces the result
        finally:
            self.running.acquire()
        if isinstance(result, Exception):
            raise type(result)(*result.args)
        return result[rank, ...]

    def leave(self) -> None:
        """Make every rank fail that waits, or comes later: the exchange cannot happen
        any more."""
        self.all_here.abort()

    def _compute(self) -> None:
        try:
            self.result = _exchanged(self.brought)
        except Exception as error:
            self.result = error


def _exchanged(brought: list[Any]) -> Array:
    """Return the collective's output for all ranks. Raises ValueError if they do not
    call the same one, with arrays of the same shape, dtype and library."""
    calls = [
        (name, options, tuple(x.shape), *map(str, kind(x)))
        for name, options, x in brought
    ]
    for rank, call in enumerate(calls):
        if call != calls[0]:
            raise ValueError(
                "every rank has to call the same collective, with an array of the same "
                f"shape and kind; rank 0 called {_shown(calls[0])}, rank {rank} {_shown(call)}"
            )
    name, options, x = brought[0]
    stacked = namespace(x).stack([x for _, _, x in brought], axis=0)
    return ops.load(name).forward(stacked, **options)[0]


def _shown(call: tuple) -> str:
    name, options, shape, *rest = call
    given = "".join(f", {key}={value}" for key, value in options.items())
    return f"{name}(x{list(shape)} {' '.join(rest)}{given})"


class LocalGroup:
    """A ``Group`` whose ranks are threads of this process."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank, self.size, self._meeting = rank, size, meeting

    def all_reduce(self, x: Array) -> Array:
        return self._meeting.exchange(self.rank, x, "all_reduce")

    def all_gather(self, x: Array) -> Array:
        return self._meeting.exchange(self.rank, x, "all_gather")

    def reduce_scatter(self, x: Array) -> Array:
        return self._meeting.exchange(self.rank, x, "reduce_scatter")

    def all_to_all(self, x: Array) -> Array:
        return self._meeting.exchange(self.rank, x, "all_to_all")

    def broadcast(self, x: Array, *, root: int = 0) -> Array:
        return self._meeting.exchange(self.rank, x, "broadcast", root=root)

    def reduce(self, x: Array, *, root: int = 0) -> Array:
        return self._meeting.exchange(self.rank, x, "reduce", root=root)

    def shift(self, x: Array, *, places: int = 1) -> Array:
        return self._meeting.exchange(self.rank, x, "shift", places=places)


def on_threads(scheme: Scheme, ranks: int, *arguments: Any) -> list[Any]:
    """Run ``scheme(group, *arguments)`` on every rank, and return the results by rank.

    One rank computes at a time. A rank that never returns blocks the run, because a
    thread cannot be killed. Raises RankError, from the rank's own error, for the first
    rank that failed; TypeError or ValueError if ``ranks`` is not an integer of at least
    1.
    """
    check_ranks(ranks)
    meeting = _Meeting(ranks)
    results: list[Any] = [None] * ranks
    errors: list[tuple[int, BaseException]] = []  # in the order of time

    def run(rank: int) -> None:
        with meeting.running:
            try:
                results[rank] = scheme(LocalGroup(rank, ranks, meeting), *arguments)
            except BaseException as error:
                errors.append((rank, error))
            finally:
                meeting.leave()

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
    own = [
        (rank, error)
        for rank, error in errors
        if not isinstance(error, threading.BrokenBarrierError)
    ]
    if isinstance(meeting.result, Exception):  # all ranks raised it
        own.sort(key=lambda failure: failure[0])
    for rank, error in own:
        raise RankError(rank, f"{type(error).__name__}: {error}") from error
    for rank, error in errors:
        name = meeting.brought[rank][0]
        raise RankError(rank, f"called {name}, which not every rank did") from error
    return results
