"""How high memory rises in a step, measured in a process of its own, where nothing ran before it."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch


class Rise(NamedTuple):
    """What one step took beyond what was there before it, and what it returned."""

    bytes: int
    seconds: float
    result: Any


def in_a_process_of_its_own(measure: Callable, *arguments: Any) -> Any:
    """What a function of a module returns in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(measure, *arguments).result()


def rise(step: Callable[[], Any], device: str) -> Rise:
    """Of a step whose inputs, just made, are the most that was ever in memory: on a CPU the mark at which they left it
    is where the rise begins."""
    before = _occupied(device)
    begun = time.perf_counter()
    result = step()
    taken = _high_water(device) - before  # waits for a GPU
    return Rise(taken, time.perf_counter() - begun, result)


def _occupied(device: str) -> int:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return _high_water(device)


def _high_water(device: str) -> int:
    """The most bytes that were occupied so far."""
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
