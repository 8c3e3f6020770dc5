"""Keep freed memory while large arrays are checked.

glibc returns every array of more than 32 MiB to the kernel when it is freed, and the
kernel clears each page of the next one. A check allocates hundreds of such arrays one
after another, and would spend half of its time on that.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# <malloc.h>, and glibc's largest threshold for arrays that are mapped one by one
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGEST_THRESHOLD = -1, -3, 32 << 20
LARGE = 1 << 20  # elements: 8 MiB in float64, and temporary arrays may be larger
EVERYTHING = 2**31 - 1  # bytes; the arguments of mallopt are C's int


@contextmanager
def memory_kept(elements: int) -> Iterator[None]:
    """Keep freed memory in the process within the block, for many ``elements``.

    Afterwards, the thresholds are those that glibc itself reaches after an array of 32
    MiB was freed, and the memory is returned. Without glibc this does nothing.
    """
    if elements < LARGE or sys.platform != "linux":
        yield
        return
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, EVERYTHING)
    libc.mallopt(M_TRIM_THRESHOLD, EVERYTHING)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_THRESHOLD)
        libc.malloc_trim(0)
