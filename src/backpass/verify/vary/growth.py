"""Choose lengths, and say how long a kernel's code and its work will be at one, from
shorter ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from backpass.verify.methods.compiled import Executed

ALIGNED = 16  # the multiples of which Triton compiles other code for
GROWS = 1.1  # a larger factor between two lengths is not one of constants alone


def lines_of(done: Executed) -> int:
    """Return how many lines the PTX of the kernels has that were executed."""
    return sum(text.count("\n") for text in {run.text for run in done.verdict.runs})


def block_of(length: int) -> int:
    """Return the least power of 2 that is not below a length, as a block often is."""
    return 1 << max(length - 1, 0).bit_length()


def is_block(length: int) -> bool:
    """Whether a length is a power of 2, which a block of that length has whole."""
    return length == block_of(length)


def aligned(longer: int) -> int:
    """Return an odd multiple of ALIGNED that is not below a length, so that it fills no
    larger block."""
    return (longer // ALIGNED + 1 | 1) * ALIGNED


def expected_lines(code: Sequence[tuple[int, int]], block: int) -> int:
    """Return how many lines of PTX to expect for a block, given the blocks and lines of
    two lengths or more. Lines that grow may do so as the square of the block, until
    three lengths have shown how. Of one block, they do not show whether they grow."""
    (earlier, fewer), (last, lines) = code[-2:]
    if earlier == last:
        power = 1.0
    elif lines <= GROWS * fewer:
        power = 0.0
    elif len(code) == 2 or not fewer:
        power = 2.0
    else:
        power = math.log(lines / fewer) / math.log(last / earlier)
    return int(lines * (block / last) ** power)


def extrapolated(costs: Sequence[tuple[int, int]], length: int) -> int:
    """Return how many instructions to expect at a length, given those at shorter ones:
    they grow as a power of the length, and scores as its square."""
    (earlier, fewer), (last, cost) = costs[-2:]
    if not 0 < earlier < last or not 0 < fewer < cost:
        return cost
    power = math.log(cost / fewer) / math.log(last / earlier)
    return int(cost * (length / last) ** power)
