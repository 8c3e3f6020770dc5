"""What can be wrong with a compiled kernel, as the errors that name it."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A line of the source from which an instruction was compiled, and what it says,
    if that is known."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        said = f" ({self.text})" if self.text else ""
        return f"{self.file}:{self.line}{said}"


class Fault(Exception):
    """A kernel does what PTX leaves undefined, or does not allow.

    ``place`` is the line of the source, ``block`` and ``thread`` are the first that did
    it, and ``what`` says what happened.
    """

    def __init__(
        self, what: str, place: Place | None, block: int | None, thread: int | None
    ) -> None:
        super().__init__(what, place, block, thread)
        self.what, self.place, self.block, self.thread = what, place, block, thread

    def __str__(self) -> str:
        where = "" if self.place is None else f"{self.place}: "
        who = ""
        if self.block is not None:
            of_thread = "" if self.thread is None else f", thread {self.thread}"
            who = f"block {self.block}{of_thread} "
        return f"{where}{who}{self.what}"


class OutOfBounds(Fault):
    """An access outside every buffer, or outside shared memory."""


class Misaligned(Fault):
    """An access at an address that is not a multiple of its size."""


class Undefined(Fault):
    """A value that nobody wrote is stored, or decides where a thread goes or reads."""


class Race(Fault):
    """Two threads use the same bytes without a barrier between, and one writes."""


class Barrier(Fault):
    """A barrier that some threads of the block do not reach, or an exchange within a
    warp that some of its threads do not take part in."""


class TooEarly(Fault):
    """The destination of an asynchronous copy is used before the copy was awaited."""


class Order(Fault):
    """The result depends on the order in which blocks run."""


class Unsupported(NotImplementedError):
    """An instruction, or a form of one, that this package does not execute."""
