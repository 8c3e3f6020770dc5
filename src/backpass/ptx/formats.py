"""Bits and the numbers that they represent.

A register holds bits: one unsigned integer for each thread. An instruction's type says
how to interpret them. NumPy has these formats except bfloat16, which is the upper half
of a float32. Arithmetic in bfloat16 and float16 is computed in float32 or a wider
format, and rounded once.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from backpass.ptx.eight_bits import NUMBERS
from backpass.ptx.faults import Unsupported
from backpass.ptx.parse import width_of

Bits = np.ndarray  # unsigned integers
Values = np.ndarray

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATING = {16: np.float16, 32: np.float32, 64: np.float64}
# The NaN that instructions return; instructions of f64 return an operand's NaN.
NAN: dict[str, Any] = {
    "f32": np.uint32(0x7FFFFFFF),
    "f16": np.uint16(0x7FFF),
    "bf16": np.uint16(0x7FFF),
}


def values_of(bits: Bits, type: str) -> Values:
    """Return the numbers, or the truth values, that the bits represent in the type.
    bfloat16 and numbers of eight bits are returned as float32."""
    if type == "pred":
        return bits.astype(bool)
    width = width_of(type)
    own = bits.astype(UNSIGNED[width], copy=False)
    if type in NUMBERS:
        return NUMBERS[type][own]
    if type == "bf16":
        return (own.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if type[0] == "f":
        return own.view(FLOATING[width])
    return own.view(SIGNED[width]) if type[0] == "s" else own


def bits_of(values: Values, type: str) -> Bits:
    """Return the bits of numbers in the type. Floating-point numbers are rounded to the
    nearest, with ties to even."""
    if type == "pred":
        return values.astype(bool)
    width = width_of(type)
    if type == "bf16":
        return bfloat16_bits(values)
    if type[0] == "f":
        bits = rounded(values, type).view(UNSIGNED[width])
        if type in NAN and (nan := np.isnan(values)).any():
            return np.where(nan, NAN[type], bits)
        return bits
    kinds = SIGNED if type[0] == "s" else UNSIGNED
    return np.ascontiguousarray(values.astype(kinds[width])).view(UNSIGNED[width])


def rounded(values: Values, type: str) -> Values:
    """Return the numbers rounded to the nearest numbers of a type that is not wider."""
    if type == "bf16":
        return values_of(bfloat16_bits(values), "bf16")
    with np.errstate(over="ignore", invalid="ignore"):
        kind = FLOATING[width_of(type)]
        return np.ascontiguousarray(values.astype(kind, copy=False))


def bfloat16_bits(values: Values) -> Bits:
    """Return the bits of the bfloat16 numbers nearest to float32 or float64 numbers."""
    if values.dtype == np.float64:
        values = odd_float32(values, np.zeros_like(values))
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    with np.errstate(over="ignore"):
        found = ((bits + even + np.uint32(0x7FFF)) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), NAN["bf16"], found)


def flushed(values: Values) -> Values:
    """Return float32 numbers with subnormal ones replaced by signed zeros, for .ftz."""
    if values.dtype != np.float32:
        raise Unsupported("ptx: .ftz is supported for f32 only")
    small = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), values), values)


def odd_float32(total: Values, error: Values) -> Values:
    """Return ``total`` + ``error`` in float32, rounded to odd: the last bit is set if
    digits are lost.

    ``error`` is what was lost when ``total`` was rounded to float64. Rounding the
    result to half precision gives the same number as rounding the exact sum.
    """
    kept = _odd(total, error)
    narrow = truncated(kept)
    cut = np.isfinite(narrow) & (narrow.astype(np.float64) != kept)
    bits = narrow.view(np.int32)
    return np.where(cut, bits | 1, bits).astype(np.int32).view(np.float32)


def truncated(values: Values) -> Values:
    """Return float64 numbers rounded towards zero to float32."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    # Apart from the sign, the bits of the next number towards 0 are one less.
    too_far = np.abs(narrow.astype(np.float64)) > np.abs(values)
    return (narrow.view(np.int32) - too_far).astype(np.int32).view(np.float32)


def directed(values: Values, towards: str) -> Values:
    """Return float64 numbers rounded to float32 towards zero ("rz"), down ("rm"), or up
    ("rp")."""
    if towards == "rz":
        return truncated(values)
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    wrong = near > values if towards == "rm" else near < values
    beyond = np.nextafter(near, np.float32(-np.inf if towards == "rm" else np.inf))
    return np.where(wrong, beyond, near)


def fused(
    a: Values, b: Values, c: Values, type: str, *, towards: str | None = None
) -> Values:
    """Return a·b + c, rounded once: to the nearest, or in float32 also towards zero
    ("rz"), down ("rm"), or up ("rp")."""
    if type == "f64":
        return _fused_float64(a, b, c)
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)  # exact
        c = c.astype(np.float64)
        total = product + c
    if type == "f32" and towards is None:
        found = rounded(total, "f32")
        # Only from halfway between two float32 numbers may a second rounding go wrong.
        rows = np.flatnonzero(_may_be_halfway(total))
        if len(rows):
            kept = _sum_to_odd(product[rows], c[rows], total[rows])
            found[rows] = rounded(kept, "f32")
        return found
    kept = _sum_to_odd(product, c, total)
    if towards == "rm":  # x − x is −0
        cancels = (kept == 0) & (np.signbit(product) != np.signbit(c))
        kept = np.where(cancels, -0.0, kept)
    if type == "f32" and towards:
        return directed(kept, towards)
    return rounded(odd_float32(kept, np.zeros_like(kept)), type)


def _may_be_halfway(total: Values) -> np.ndarray:
    """Return whether float64 numbers are halfway between two float32 numbers. Numbers
    that are subnormal in float32 count as such."""
    found = total.view(np.uint64) & np.uint64(0x1FFFFFFF) == np.uint64(0x10000000)
    if (small := np.abs(total) < 2.0**-126).any():
        found |= small & (total != 0)
    return found


def _sum_to_odd(a: Values, b: Values, total: Values) -> Values:
    """Return a + b in float64, rounded to odd, given the sum rounded to the nearest."""
    with np.errstate(all="ignore"):
        error = _lost(a, b, total)
        return _odd(total, np.where(np.isfinite(total), error, 0.0))


def _lost(a: Values, b: Values, total: Values) -> Values:
    """Return the rounding error of a + b (Knuth's two-sum)."""
    back = total - a
    return (a - (total - back)) + (b - back)


def _odd(total: Values, error: Values) -> Values:
    """Return ``total`` + ``error`` in float64, rounded to odd: the last bit is set if
    digits are lost. Rounding the result to the nearest number of a format that is at
    least two bits shorter then rounds the exact sum once."""
    bits = total.view(np.int64)
    lost = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    # The neighbour on the side of the error has the last bit set.
    moved = np.where(total == 0, 1, bits + np.where(away, 1, -1))
    found = np.where(lost, moved, bits).astype(np.int64).view(np.float64)
    return np.where(lost & (total == 0), error, found)


def _fused_float64(a: Values, b: Values, c: Values) -> Values:
    """Return a·b + c in float64, rounded once (Boldo and Melquiond, 2008)."""
    with np.errstate(all="ignore"):
        product = a * b
        simple = (a == 0) | (b == 0) | ((c == 0) & (product != 0))
        simple &= np.isfinite(product) & np.isfinite(c)
        odd = ~_within(a, b, c, product) & ~simple
        each = zip(a[odd], b[odd], c[odd], strict=True)
        exact = [_fused_exactly(*numbers) for numbers in each]
        below = _product_error(a, b, product)
        middle = c + below
        high = product + middle
        low, rest = _lost(c, below, middle), _lost(product, middle, high)
        found = high + _sum_to_odd(low, rest, low + rest)
        found = np.where(simple, product + c, found)
    found[odd] = exact
    return found


def _within(*numbers: Values) -> np.ndarray:
    """Return whether all numbers are so far from the least and the largest float64
    numbers that no error underflows, and no step overflows."""
    sizes = [np.abs(x) for x in numbers]
    return np.all([(x > 2.0**-400) & (x < 2.0**400) for x in sizes], axis=0)


def _product_error(a: Values, b: Values, product: Values) -> Values:
    """Return the rounding error of a·b (Dekker's product)."""
    (x, y), (z, w) = ((h, v - h) for v in (a, b) for h in (_upper_half(v),))
    return y * w - (((product - x * z) - y * z) - x * w)


def _upper_half(x: Values) -> Values:
    """Return the upper 26 bits of float64 numbers (Veltkamp's splitting)."""
    by = x * 134217729.0  # 2 ** 27 + 1
    return by - (by - x)


def _fused_exactly(a: float, b: float, c: float) -> float:
    product = float(a) * float(b)
    if np.isfinite([a, b]).all() and np.isinf(c):
        return float(c)  # the exact product is finite, even if `product` is not
    if not np.isfinite([a, b, c]).all():
        return product + c
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return product + c  # this zero has the right sign
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")
