"""Floating-point formats, described by their bits, and rounding to them.

A format has a sign, ``exponent`` bits, and ``mantissa`` bits. Rounding is exact: it
returns float32 or float64 arrays whose elements are numbers of the format. So a format
that neither the library nor the machine has can be tried::

    rounded(x, E4M3)                  # to the nearest, as a cast rounds
    rounded(x, BF16, noise=uniform)   # up or down at random, right on average
    scaled(x, E4M3, block=32)         # MXFP8: a power of two for each 32 elements

FP8 is that of Micikevicius et al., "FP8 Formats for Deep Learning" (2022), and the
scales are those of the "OCP Microscaling Formats Specification", version 1.0 (2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from backpass.contract.arrays import Array, is_array, namespace, size
from backpass.contract.shapes import kind
from backpass.contract.values import check_bool
from backpass.training._numbers import check_count, check_integer


@dataclass(frozen=True)
class Format:
    """The bits of a binary format beside its sign, and whether it has infinities.

    The exponent field of all ones means ∞ or NaN, as IEEE 754 has it. Without
    ``infinite`` it means numbers too, and only the code of all ones is NaN. So every
    format has a NaN: the FP4 and FP6 of the OCP specification, which have none and
    whose largest numbers are 6 and 28 (or 7.5), are not available.

    Raises TypeError unless the bits are integers and ``infinite`` is a bool; ValueError
    for fewer than 2 exponent bits or 1 mantissa bit, or more than float32 has, and for
    8 exponent bits without ``infinite``, whose largest numbers float32 does not have.
    """

    name: str
    exponent: int
    mantissa: int
    infinite: bool = True

    def __post_init__(self) -> None:
        check_count(exponent=self.exponent, mantissa=self.mantissa)
        check_bool(infinite=self.infinite)
        for what, least, most in (("exponent", 2, 8), ("mantissa", 1, 23)):
            bits = getattr(self, what)
            if not least <= bits <= most:
                raise ValueError(
                    f"{what}: expected from {least} to {most} bits; got {bits}"
                )
        if self.exponent == 8 and not self.infinite:
            raise ValueError(
                "infinite: expected True with 8 exponent bits, since numbers of 2**128 "
                "exceed float32; got False"
            )

    @property
    def bits(self) -> int:
        """Return the number of bits, the sign included."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """Return what is subtracted from the exponent field."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def lowest(self) -> int:
        """Return the exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def highest(self) -> int:
        """Return the exponent of the largest number."""
        return self.bias + (0 if self.infinite else 1)

    @property
    def epsilon(self) -> float:
        """Return the gap above 1. The gap below 1 is half of it."""
        return 2.0**-self.mantissa

    @property
    def largest(self) -> float:
        """Return the largest finite number."""
        steps = 1 if self.infinite else 2  # the code of all ones is NaN
        return math.ldexp(2.0 - steps * self.epsilon, self.highest)

    @property
    def smallest_normal(self) -> float:
        """Return the smallest number with all its mantissa bits."""
        return math.ldexp(1.0, self.lowest)

    @property
    def smallest(self) -> float:
        """Return the smallest number above 0, a subnormal one."""
        return math.ldexp(1.0, self.lowest - self.mantissa)

    def gap(self, x: float) -> float:
        """Return the distance from ``x``, or from the number below it in size, to the
        next number away from 0."""
        exponent = math.frexp(x)[1] - 1 if x else self.lowest
        return math.ldexp(1.0, max(exponent, self.lowest) - self.mantissa)


FP32 = Format("FP32", 8, 23)
TF32 = Format("TF32", 8, 10)  # stored in 32 bits, of which products use 19
BF16 = Format("BF16", 8, 7)
FP16 = Format("FP16", 5, 10)
E5M2 = Format("FP8 E5M2", 5, 2)
E4M3 = Format("FP8 E4M3", 4, 3, infinite=False)


def decoded(code: int, format: Format) -> float:
    """Return the number that the bits of ``code`` mean: sign, exponent field, mantissa.

    Raises TypeError unless ``code`` is an integer and ``format`` a Format; ValueError
    if ``code`` has more bits than the format.
    """
    _check_format(format)
    check_integer(code=code)
    if not 0 <= code < 2**format.bits:
        raise ValueError(
            f"code: expected {format.bits} bits, an integer from 0 to "
            f"{2**format.bits - 1}; got {code}"
        )
    code = int(code)  # a NumPy integer of 8 bits would overflow
    fraction = code % 2**format.mantissa
    field = code >> format.mantissa & 2**format.exponent - 1
    sign = -1.0 if code >> format.bits - 1 else 1.0
    top = field == 2**format.exponent - 1
    if top and format.infinite:
        return math.nan if fraction else sign * math.inf
    if top and fraction == 2**format.mantissa - 1:
        return math.nan
    # A field of 0 has no hidden one in front of its mantissa.
    hidden = 2**format.mantissa if field else 0
    exponent = max(field, 1) - format.bias - format.mantissa
    return sign * math.ldexp(hidden + fraction, exponent)


def rounded(
    x: Array, format: Format, *, noise: Array | None = None, saturate: bool = False
) -> Array:
    """Return ``x[*]``, each element rounded to the nearest number of the format; of two
    equally near ones, to that whose last bit is 0.

    ``noise[*]`` are random numbers, uniform from 0 to 1 and below 1, of x's shape and
    dtype. With them rounding is stochastic: an element goes to either neighbour, to the
    one further from 0 with the share of the gap that it has covered as its probability,
    so that its mean is the element itself (Gupta et al., "Deep Learning with Limited
    Numerical Precision", 2015). The sign stays, also that of 0.

    A number beyond the largest becomes ∞, or NaN in a format without ∞; with
    ``saturate`` it becomes the largest.

    Raises TypeError unless ``x`` and ``noise`` are arrays of float32 or float64 and
    ``format`` is a Format; ValueError if the shape, library, device, or dtype of
    ``noise`` is not x's, or an element of it is below 0, 1 or more, or NaN.
    """
    xp = _check_wide("x", x)
    _check_format(format)
    check_bool(saturate=saturate)
    # All numbers below the second power of two have one gap, subnormal ones too.
    exponents = range(format.lowest + 1, format.highest + 1)
    at = _count_reached(xp.abs(x), [2.0**e for e in exponents])
    gaps = [2.0 ** (e - format.mantissa) for e in (format.lowest, *exponents)]
    gap = _entries(_table(gaps, x), at)
    steps = x / gap  # exact, or beyond the largest, because gaps are powers of two
    if noise is None:
        steps = xp.round(steps)  # half to even
    else:
        _check_noise(noise, x)
        sizes = xp.abs(steps)
        finite = xp.where(xp.isfinite(sizes), sizes, 0.0)  # ∞ − ∞ would warn
        # The difference is exact; for steps between −1 and 0 it would be rounded.
        further = finite - xp.floor(finite) > noise
        steps = xp.copysign(xp.floor(sizes) + xp.astype(further, x.dtype), x)
    return _bounded(steps * gap, format, saturate)


def scaled(
    x: Array,
    format: Format,
    *,
    block: int | None = None,
    axis: int = -1,
    fits: bool = False,
) -> Array:
    """Return ``x[*]`` rounded to the format under a scale: divided by it, rounded,
    saturated, and multiplied by it again.

    There is one scale for the whole array, or one for each ``block`` consecutive
    elements along ``axis``, as MXFP8 has for 32. A scale is a power of two: 2 to the
    exponent of the largest element, less the exponent of the format's largest number.
    So an element in the last part of its binade saturates. With ``fits``, the scale is
    the smallest power of two with which none does (Mishra et al., "Recipes for
    Pre-training LLMs with MXFP8", 2025). The smallest scale, that of a block of zeros,
    is 2⁻¹²⁷, and elements are expected below 2¹²⁷. A block with an element that is not
    finite becomes NaN.

    Raises TypeError unless ``x`` is an array of float32 or float64, ``format`` a
    Format, and ``axis`` an integer; ValueError unless ``axis`` exists and ``block``
    divides its length.
    """
    xp = _check_wide("x", x)
    _check_format(format)
    _check_axis(axis, x)
    check_bool(fits=fits)
    if block is None:
        largest = xp.max(xp.abs(x)) if size(x.shape) else x
        return _under_scale(x, largest, format, fits)
    check_count(block=block)
    if not x.shape:
        raise ValueError("axis: expected an axis of x to divide; x has none")
    if x.shape[axis] % block:
        raise ValueError(
            f"block: expected a divisor of {x.shape[axis]}, the length of axis {axis}; "
            f"got {block}"
        )
    rows = xp.moveaxis(x, axis, -1)
    blocks = xp.reshape(rows, (*rows.shape[:-1], rows.shape[-1] // block, block))
    largest = xp.max(xp.abs(blocks), axis=-1, keepdims=True)
    found = _under_scale(blocks, largest, format, fits)
    return xp.moveaxis(xp.reshape(found, rows.shape), -1, axis)


def _under_scale(x: Array, largest: Array, format: Format, fits: bool) -> Array:
    """Return ``x`` rounded under the scales of blocks with these ``largest`` sizes."""
    xp = namespace(x)
    exponents = range(-127, 128 - format.highest)
    # With scale 1, the largest element is below `end`, or, if it fits, at most `end`.
    end = format.largest if fits else 2.0 ** (format.highest + 1)
    ends = [math.ldexp(end, exponent) for exponent in exponents[:-1]]
    at = _count_reached(largest, ends, strictly=fits)
    scale = _entries(_table([2.0**exponent for exponent in exponents], x), at)
    scale = xp.where(xp.isfinite(largest), scale, math.nan)
    return rounded(x / scale, format, saturate=True) * scale


def _bounded(x: Array, format: Format, saturate: bool) -> Array:
    """Replace what is beyond the largest number of the format."""
    xp = namespace(x)
    limit = math.inf if format.infinite else math.nan
    limit = format.largest if saturate else limit
    x = xp.where(x > format.largest, limit, x)
    return xp.where(x < -format.largest, -limit, x)


def _count_reached(x: Array, limits: list[float], strictly: bool = False) -> Array:
    """Return for each element of ``x[*]`` how many of the ascending ``limits`` it has
    reached, or ``strictly`` exceeds."""
    xp = namespace(x)
    side = "left" if strictly else "right"
    flat = xp.searchsorted(_table(limits, x), xp.reshape(x, (-1,)), side=side)
    return xp.reshape(flat, x.shape)


def _entries(table: Array, at: Array) -> Array:
    """Return the entries of ``table[n]`` at the integers ``at[*]``."""
    xp = namespace(table)
    return xp.reshape(xp.take(table, xp.reshape(at, (-1,)), axis=0), at.shape)


def _table(numbers: list[float], like: Array) -> Array:
    return namespace(like).asarray(numbers, dtype=like.dtype, device=like.device)


def _check_format(format: object) -> None:
    """Raise TypeError unless ``format`` is a Format."""
    if not isinstance(format, Format):
        raise TypeError(
            "format: expected a Format such as formats.E4M3; "
            f"got {type(format).__name__}"
        )


def _check_axis(axis: int, x: Array) -> None:
    """Raise TypeError or ValueError unless ``axis`` is an axis of ``x``, or the last
    one of a number ``[]``."""
    check_integer(axis=axis)
    count = len(x.shape)
    if not -max(count, 1) <= axis < max(count, 1):
        raise ValueError(f"axis: expected one of {count} axes; got {axis}")


def _check_noise(noise: Any, x: Array) -> None:
    """Raise TypeError or ValueError unless ``noise`` fits ``x``, from 0 to below 1."""
    xp = _check_wide("noise", noise)
    if noise.shape != x.shape or kind(noise) != kind(x):
        expected, came = (" ".join(map(str, kind(each))) for each in (x, noise))
        raise ValueError(
            f"noise: expected shape {list(x.shape)} of {expected}, as x has; got "
            f"shape {list(noise.shape)} of {came}"
        )
    if not xp.all((noise >= 0) & (noise < 1)):
        raise ValueError("noise: expected numbers of at least 0 and below 1")


def _check_wide(name: str, x: Any) -> Any:
    """Return the namespace of ``x``. Raises TypeError unless it is an array of float32
    or float64."""
    if not is_array(x):
        raise TypeError(f"{name}: expected an array; got {type(x).__name__}")
    xp = namespace(x)
    if x.dtype not in (xp.float32, xp.float64):
        raise TypeError(f"{name}: expected float32 or float64; got {x.dtype}")
    return xp
