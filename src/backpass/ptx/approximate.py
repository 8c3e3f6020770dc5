"""How far the results of approximate units may be from the exact results.

The errors are those that PTX ISA 8.7, chapter 9.7.3, states for each instruction. The
special values that the manual lists for an instruction, such as 2 to the power of 0,
are exact. A unit is a function: the same operands give the same error each time. The
manual does not state an error for tensor cores, so none is added to their sums: see
``tensor_cores.mma``.
"""

from __future__ import annotations

import numpy as np

from backpass.ptx.formats import Values, rounded


class Coarse(int):
    """A seed for the errors of coarse units alone. Units whose largest error is that of
    a few roundings, such as division, are exact."""


# The largest errors: relative to the result, absolute, and in units in the last place.
RELATIVE = {
    ("ex2", "f32"): 2.0**-22,
    ("ex2", "f16"): 2.0**-9.9,
    ("ex2", "bf16"): 2.0**-7,
    ("sqrt", "f32"): 2.0**-23,
    ("rsqrt", "f32"): 2.0**-22.9,
    ("tanh", "f32"): 2.0**-11,
    ("tanh", "bf16"): 2.0**-8,
    ("lg2", "f32"): 2.0**-22,
}
ABSOLUTE = {("tanh", "f16"): 2.0**-10.987}
UNITS = {("rcp", "f32"): 1, ("div", "f32"): 2}  # in the last place of a float32
FINE = 2.0**-22  # of the result: two units in the last place of a float32
NEAR_ONE = 2.0**-22  # the absolute error of lg2 between 0.5 and 2
# The absolute errors of sin and cos up to 2π, up to 100π, and of larger operands, for
# which the manual does not state an error.
ANGLES = (2.0**-20.5, 2.0**-14.7, 1.0)


def moved(
    operation: str, type: str, exact: Values, operands: list[Values], seed: int
) -> Values:
    """Return results that a unit may compute where the exact results are ``exact``.

    The results are numbers of the type, in float64. The ``seed`` selects one of the
    possible units.
    """
    if isinstance(seed, Coarse) and _is_fine(operation, type):
        return exact
    error = allowed(operation, type, exact, operands)
    found = rounded(exact + _drawn(operands, seed) * error, type).astype(np.float64)
    special = (
        (exact == 0) | (operands[0] == 0) | ~np.isfinite([exact, *operands]).all(0)
    )
    # The allowed error includes the rounding to the type.
    return np.where(special | (np.abs(found - exact) > error), exact, found)


def allowed(operation: str, type: str, exact: Values, operands: list[Values]) -> Values:
    """Return the largest errors of an instruction's results; 0 for an instruction whose
    result is rounded to the nearest."""
    key, size, x = (operation, type), np.abs(exact), np.abs(operands[0])
    if key in (("sin", "f32"), ("cos", "f32")):
        return np.asarray(ANGLES)[(x > 2 * np.pi) + (x > 100 * np.pi).astype(int)]
    if operation == "lg2":
        near = (x > 0.5) & (x < 2)
        return np.where(near, NEAR_ONE, RELATIVE[key] * size)
    if key in UNITS:
        unit = np.ldexp(1.0, np.maximum(np.frexp(size)[1] - 24, -149))
        return UNITS[key] * unit
    return np.full(exact.shape, ABSOLUTE.get(key, 0.0)) + RELATIVE.get(key, 0.0) * size


def _is_fine(operation: str, type: str) -> bool:
    key = operation, type
    return key in UNITS or (operation != "lg2" and RELATIVE.get(key, 1.0) <= FINE)


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
