"""Arrays of which most elements are never written."""

from __future__ import annotations

import mmap
import sys

import numpy as np

LARGE = 1 << 28  # bytes; arrays of this size are mapped without a reservation
NO_RESERVATION = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 names it


def zeros(n: int, dtype: type) -> np.ndarray:
    """Return n zeros, which take no memory until they are written.

    A system may fail to reserve more memory than it has, so a large array is mapped
    without a reservation.
    """
    size = n * np.dtype(dtype).itemsize
    if size < LARGE or sys.platform != "linux":
        return np.zeros(n, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVATION
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype)
