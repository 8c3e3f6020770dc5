"""Where matrices are in shared memory: what a matrix descriptor of wgmma says.

A descriptor of 64 bits holds the address of a matrix, two distances between its parts,
and how the bytes are swizzled. wgmma reads 32 bytes of each row along K. PTX ISA 8.7,
chapter 9.7.15.5.1.2.
"""

from __future__ import annotations

import numpy as np

from backpass.ptx.faults import Unsupported

# The bytes of a row of a swizzled atom, by the mode in a descriptor.
SPANS = {0: 16, 1: 128, 2: 64, 3: 32}
_RESERVED = ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62) % 2**64
STEP = 32  # bytes along K


def swizzled(addresses: np.ndarray, span: int) -> np.ndarray:
    """Return the addresses at which bytes are if rows of ``span`` bytes are swizzled:
    the number of a row determines the order of its parts of 16 bytes."""
    parts = span // 16
    return addresses ^ ((addresses >> 7 & parts - 1) << 4)


def places(descriptor: int, rows: int, width: int, *, transposed: bool) -> np.ndarray:
    """Return the addresses ``[rows, 32]`` of the bytes of a matrix with ``rows`` rows
    along M or N, and elements of ``width`` bytes. If it is ``transposed``, its
    rows rather than its columns are adjacent in memory."""
    if descriptor & _RESERVED or descriptor >> 49 & 7:
        what = "reserved bits" if descriptor & _RESERVED else "a base offset"
        raise Unsupported(f"ptx: a matrix descriptor with {what} is not supported")
    start, leading, stride = ((descriptor >> i & 0x3FFF) << 4 for i in (0, 16, 32))
    span = SPANS[descriptor >> 62]
    row, byte = np.arange(rows)[:, None], np.arange(STEP)[None, :]
    if not transposed:
        found = row % 8 * span + row // 8 * stride
        found = found + (byte if span > 16 else byte // 16 * leading + byte % 16)
    else:
        column, own = byte // width, byte % width
        each = span // width  # rows of an atom
        far, near = (leading, stride) if span > 16 else (stride, leading)
        found = row % each * width + own + row // each * far
        found = found + column % 8 * span + column // 8 * near
    return swizzled(start + found, span)
