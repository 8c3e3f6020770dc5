"""How far the results of approximate units may be from the exact results.

The errors are those that PTX ISA 8.7, chapter 9.7.3, states for each instruction. The
special values that it lists for an instruction, such as 2 to the power of 0, are exact.
A unit is a function: the same operands give the same error each time.
"""

from __future__ import annotations

import numpy as np

from backpass.ptx.formats import Values

UNITS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # relative rounding errors
RELATIVE = {
    ("ex2", "f32"): 2.0**-22,
    ("ex2", "f16"): 2.0**-9.9,
    ("ex2", "bf16"): 2.0**-7,
    ("rcp", "f32"): 2.0**-23,
    ("sqrt", "f32"): 2.0**-23,
    ("rsqrt", "f32"): 2.0**-22.9,
    ("tanh", "f32"): 2.0**-11,
    ("tanh", "bf16"): 2.0**-8,
    ("lg2", "f32"): 2.0**-22,
    # Two units in the last place, relative to a number just below a power of 2.
    ("div", "f32"): 2.0**-23,
}
ABSOLUTE = {
    ("sin", "f32"): 2.0**-20.5,
    ("cos", "f32"): 2.0**-20.5,
    ("tanh", "f16"): 2.0**-10.987,
}
NEAR_ONE = 2.0**-22  # the absolute error of lg2 between 0.5 and 2


def moved(
    operation: str, type: str, exact: Values, operands: list[Values], seed: int
) -> Values:
    """Return results that a unit may compute where the exact results are ``exact``.

    They are in float64, before rounding to the type. The ``seed`` selects one of the
    possible units.
    """
    by, x = _drawn(operands, seed), operands[0]
    key, size, unit = (operation, type), np.abs(exact), UNITS.get(type, 0.0)
    if key in ABSOLUTE:
        error = np.full(exact.shape, ABSOLUTE[key])
    elif key in RELATIVE:
        error = RELATIVE[key] * size
        if operation == "lg2":
            error = np.where((x > 0.5) & (x < 2), NEAR_ONE, error)
    else:
        return exact
    # The rounding to the type, which follows, is part of the error.
    left = np.maximum(error - unit * size, 0)
    special = ~np.isfinite(exact) | (exact == 0) | (x == 0)
    return np.where(special, exact, exact + by * left)


def _drawn(operands: list[Values], seed: int) -> Values:
    """Return a pseudo-random number from −1 to 1 for each thread, a function of its
    operands and the seed (Steele, Lea, and Flood, 2014: SplitMix64)."""
    z = np.full(operands[0].shape, seed, np.uint64)
    for x in operands:
        z += np.ascontiguousarray(x.astype(np.float64)).view(np.uint64)
        for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        z ^= z >> np.uint64(31)
    return z.astype(np.float64) / 2.0**63 - 1
