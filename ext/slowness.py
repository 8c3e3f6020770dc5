"""How slowly this machine computes, so that limits in CPU seconds mean the same work on each."""

from __future__ import annotations

import subprocess
import sys
import time

REFERENCE = 0.057  # CPU seconds of ``_work`` on the quiet machine for which the limits were chosen
REFERENCE_START = 1.55  # and of ``_start``
PROGRAM = "import time, sympy, torch; print(time.process_time())"


def slowness() -> float:
    """Return by what factor this machine now computes more slowly than that of the limits, at least 1.

    A busy machine counts as a slower one: processes that share a core's caches and units slow each other down.
    """
    return max(1.0, min(_work() for _ in range(3)) / REFERENCE)


def slowness_of_programs() -> float:
    """The same for programs that start, load libraries, and fill memory, as pages do.

    A virtual machine can take several times as long for new memory while it computes at its usual speed.
    """
    return max(slowness(), _start() / REFERENCE_START)


def _work() -> float:
    """Return the CPU seconds that a fixed piece of Python takes."""
    start = time.thread_time()
    total = 0
    for number in range(300_000):
        total ^= hash((number, str(number)))
    sorted(str(number) for number in range(100_000))
    return time.thread_time() - start


def _start() -> float:
    """Return the CPU seconds that a process takes to load two large libraries."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return float(result.stdout)
