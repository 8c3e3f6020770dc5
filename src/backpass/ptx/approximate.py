"""How far the results of approximate units may be from the exact ones.

The errors are those of the instructions' sections in PTX ISA 8.7, chapter 9.7.3. Where
it gives an instruction's special values, such as 2 to the power of 0, these are exact.
A unit is a function: of the same operands it has the same error each time.
"""

from __future__ import annotations

import numpy as np

from backpass.ptx.formats import Values

UNITS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # half a unit, relative
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
    # Two units in the last place, which are least just below a power of 2.
    ("div", "f32"): 2.0**-23,
}
ABSOLUTE = {
    ("sin", "f32"): 2.0**-20.5,
    ("cos", "f32"): 2.0**-20.5,
    ("tanh", "f16"): 2.0**-10.987,
}
NEAR_ONE = 2.0**-22  # of lg2 between 0.5 and 2, absolute


def moved(
    operation: str, type: str, exact: Values, operands: list[Values], seed: int
) -> Values:
    """Return results in float64 that a unit may give for ``exact`` ones, before they
    are rounded to the type. The ``seed`` chooses one of all possible units."""
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
    # What rounding to the type adds belongs to the error.
    left = np.maximum(error - unit * size, 0)
    special = ~np.isfinite(exact) | (exact == 0) | (x == 0)
    return np.where(special, exact, exact + by * left)


def _drawn(operands: list[Values], seed: int) -> Values:
    """Return a number from −1 to 1 for each operand, which looks random and is a
    function of it and the seed (Steele, Lea and Flood, 2014: SplitMix64)."""
    z = np.full(operands[0].shape, seed, np.uint64)
    for x in operands:
        z += np.ascontiguousarray(x.astype(np.float64)).view(np.uint64)
        for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        z ^= z >> np.uint64(31)
    return z.astype(np.float64) / 2.0**63 - 1
