"""What undefined bits may be.

Whether a value is defined is decided instruction by instruction, from the undefined
bits of the operands. This can call a value undefined that does not depend on them:
Triton converts four numbers at a time, also where a thread has fewer, and limits each
of them so that none overflows into its neighbour. So if a block stores an undefined
value, it runs again several times, each time with different values of what was never
written. A stored value that is the same in all runs is defined.
"""

from __future__ import annotations

import zlib

import numpy as np

SEEDS = (1, 2, 3)  # of the runs
VARYING, FIXED = 0x0707070707070707, 0x3838383838383838  # bits of moderate numbers


def of_register(name: str, n: int, kind: type, seed: int) -> np.ndarray:
    """Return the bits of a register that n threads have not written."""
    bits = _drawn(np.arange(n) + (zlib.crc32(name.encode()) << 20), seed)
    return (bits & np.uint64(1) if kind is bool else bits).astype(kind)


def of_memory(
    addresses: np.ndarray, data: np.ndarray, defined: np.ndarray, seed: int
) -> np.ndarray:
    """Return the bytes ``data[n, k]`` that are at ``addresses[n]``, with others in
    place of undefined ones."""
    if defined.all():
        return data
    at = addresses.astype(np.int64)[:, None] + np.arange(data.shape[1])
    return np.where(defined, data, _drawn(at, seed).astype(np.uint8))


def _drawn(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Return 64 pseudo-random bits for each number (Steele, Lea, and Flood, 2014:
    SplitMix64)."""
    step = 0x9E3779B97F4A7C15
    z = numbers.astype(np.uint64) * np.uint64(step) + np.uint64(seed * step % 2**64)
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    found = z ^ (z >> np.uint64(31))
    if seed == SEEDS[0]:
        return found
    return found & np.uint64(VARYING) | np.uint64(FIXED)
