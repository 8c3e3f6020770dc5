"""The floating-point formats whose rounding errors are bounded."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from backpass.interpreters.array import DType

# The unit roundoff: half of machine epsilon.
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# The error below the smallest normal number: half the spacing there or, where such
# numbers are flushed to 0, the number itself.
TINY = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
# Numbers from here on are infinite.
LARGEST = {"float32": 2.0**128, "float16": 2.0**16, "bfloat16": 2.0**128}
BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
SHORT = ("float16", "bfloat16")


@dataclass(frozen=True)
class Float(DType):
    """A floating-point type.

    ``factor_of`` is a 16-bit type that represents the numbers up to a constant factor.
    They are not rounded again as operands of a tensor core, because a kernel may apply
    the factor after the product.
    """

    factor_of: str | None = field(default=None, compare=False)


FLOATS = {name: Float(name, "real floating") for name in UNIT}


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round float64 numbers to the nearest of ``dtype``."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return values.astype(dtype).astype(np.float64)
    fraction, exponent = np.frexp(values)
    # There are fewer bits below the smallest normal number.
    bits = BITS[dtype] + np.minimum(exponent + 125, 0)
    short = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return np.where(np.abs(short) < LARGEST[dtype], short, np.copysign(np.inf, values))
