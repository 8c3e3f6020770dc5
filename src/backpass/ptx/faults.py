"""The faults of a compiled kernel, as exceptions that say where they occur."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The source line from which an instruction was compiled, with its text if the file
    can be read."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        said = f" ({self.text})" if self.text else ""
        return f"{self.file}:{self.line}{said}"


class Fault(Exception):
    """A kernel does something that PTX leaves undefined or does not allow.

    ``place`` is the source line, ``block`` and ``thread`` are the first to cause the
    fault, and ``what`` says what happened.
    """

    def __init__(
        self, what: str, place: Place | None, block: int | None, thread: int | None
    ) -> None:
        super().__init__(what, place, block, thread)
        self.apart = False  # whether threads write numbers that differ to one place
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


class HalfWord(OutOfBounds):
    """A compare-and-swap of a word of 32 bits, of which a tensor has only the first
    half, because it has an odd number of elements of 16 bits. So Triton compiles an
    atomic sum in bfloat16."""


class Misaligned(Fault):
    """An access at an address that is not a multiple of its size."""


class Undefined(Fault):
    """An uninitialised value is stored to global memory, passed to an atomic
    instruction or updated by one, or used as an address or an instruction's guard."""


class Race(Fault):
    """Two threads access the same bytes with no barrier between the accesses, and at
    least one of them writes. A read counts if its value is used. ``byte`` is the
    memory's name and the index of the byte, if it is known."""

    byte: tuple[str, int] | None = None


class Barrier(Fault):
    """Some threads of the block do not reach a barrier, some threads of a warp miss an
    instruction that the warp executes together, or the block does not end or waits for
    another block."""


class TooEarly(Fault):
    """The destination of an asynchronous copy is accessed, or its source is written,
    before the wait for the copy."""


class Order(Fault):
    """The result depends on the order in which blocks run."""


class AtomicSum(Order):
    """Atomic instructions add floating-point numbers in any order, and the sum rounds
    differently in each."""


class LastBits(Fault):
    """Threads write the same result to the same bytes, except for its last bits."""


class Assertion(Fault):
    """An assertion in the kernel is false."""


class Unsupported(NotImplementedError):
    """An instruction, or a form of one, that this package does not execute."""
