"""Floating-point numbers of eight bits: e4m3 and e5m2.

The name gives the bits of the exponent and of the fraction. e5m2 has infinities, as the
longer formats have. e4m3 has none: its numbers go up to 448, and the largest bits are
NaN. GPUs convert to these formats with saturation: a larger number becomes the largest
number of the format. PTX ISA 8.7, chapters 5.2.3 and 9.7.9.21.
"""

from __future__ import annotations

import numpy as np

from backpass.ptx.faults import Unsupported

NAN = np.uint8(0x7F)  # what conversions return for NaN, in both formats
LARGEST = {"e4m3": 0x7E, "e5m2": 0x7B}  # the bits of the largest number


def _numbers(exponent: int, fraction: int, bias: int) -> np.ndarray:
    """Return the numbers that the bits 0 to 255 represent, in float32."""
    bits = np.arange(256)
    power, part = bits >> fraction & 2**exponent - 1, bits & 2**fraction - 1
    normal = power > 0
    size = np.ldexp(
        (part + normal * 2**fraction).astype(np.float64),
        np.maximum(power, 1) - bias - fraction,
    )
    if exponent == 5:
        size[power == 31] = np.nan
        size[bits & 0x7F == 0x7C] = np.inf
    else:
        size[bits & 0x7F == NAN] = np.nan
    return np.where(bits & 0x80, -size, size).astype(np.float32)


NUMBERS = {"e4m3": _numbers(4, 3, 7), "e5m2": _numbers(5, 2, 15)}


def saturated(values: np.ndarray, type: str) -> np.ndarray:
    """Return the bits of the nearest numbers of a format, with ties to even. A number
    beyond the largest one becomes the largest one."""
    largest = LARGEST[type]
    sizes = NUMBERS[type][: largest + 1].astype(np.float64)  # in ascending order
    size = np.minimum(np.abs(values).astype(np.float64), sizes[-1])
    below = np.searchsorted(sizes, np.nan_to_num(size), side="right") - 1
    above = np.minimum(below + 1, largest)
    middle = (sizes[below] + sizes[above]) / 2
    up = (size > middle) | ((size == middle) & (below % 2 == 1))
    bits = np.where(up, above, below).astype(np.uint8)
    bits |= np.where(np.signbit(values), np.uint8(0x80), np.uint8(0))
    return np.where(np.isnan(values), NAN, bits)


def is_eight_bits(type: str) -> bool:
    """Return whether a type is such a format, or a pair of them."""
    return type.removesuffix("x2") in NUMBERS


def modifiers_known(modifiers: list[str], to: str) -> None:
    """Raise Unsupported unless a conversion has only these modifiers."""
    wanted = ["rn", "satfinite"] if is_eight_bits(to) else ["rn"]
    if modifiers != wanted:
        name = ".".join(["cvt", *modifiers, to])
        raise Unsupported(f"ptx: the instruction {name} is not supported")
