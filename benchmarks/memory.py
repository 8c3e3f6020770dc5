"""How high memory rises in a step."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Rise(NamedTuple):
    """What one step took beyond what was there before it, and what it returned."""

    bytes: int
    seconds: float
    result: Any


def alone(device: str, measure: Callable, *arguments: Any) -> Any:
    """What a function of a module returns: on a CPU in a new process, since the operating system counts a process's
    memory and not an array's."""
    if device == "cuda":
        return measure(*arguments)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(measure, *arguments).result()


def rise(step: Callable[[], Any], device: str) -> Rise:
    """Of a step whose inputs exist. Where the operating system's mark cannot be set back, they should have been made last
    and be the most that was ever in memory."""
    before = _occupied(device)
    begun = time.perf_counter()
    result = step()
    taken = _high_water(device) - before  # waits for a GPU
    return Rise(taken, time.perf_counter() - begun, result)


def _occupied(device: str) -> int:
    """The bytes in memory now, from which the mark rises."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # on Linux: sets the mark back to what is in memory now
    return _high_water(device)


def _high_water(device: str) -> int:
    """The most bytes that were in memory since the mark was set back."""
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    try:  # on Linux the process's own mark; getrusage's may be that of the process that started it
        status = Path("/proc/self/status").read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return int(re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)[1]) * 1024
