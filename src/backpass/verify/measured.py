"""Measures the precision in which a function computes, which may be lower than its output's dtype.

``f(x.float()).to(x.dtype)``, the form of most kernels, takes and returns float64 with the accuracy of float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backpass.verify.convert import EPSILON

TINY = 2.0**-24  # half of what float32 resolves; a float64 computation resolves 2^28 steps of it
TINIER = 2.0**-40  # hardly ever carries a float32 number to the next one
ROUGH = 2.0**-30  # of y: steps of float32 make it rougher than this, float64's conditioning seldom does
ENOUGH = 1000  # elements of y for which one draw is enough
DRAWS = 3  # draws for fewer
MANY = 1 << 16  # elements examined at most


def computed_precision(
    forward: Callable[[list[np.ndarray]], np.ndarray],
    values: list[np.ndarray],
    y: np.ndarray,
    rng: np.random.Generator,
) -> str:
    """``float64``, or the coarser type in which ``forward`` computes when it is given float64; ``y`` is what it returns
    for the ``values``.

    Two signs betray it. The outputs hold no more digits than the coarser type has, though the inputs do. Or they are
    rough: over steps so small that a float64 function is a straight line, they move in jumps.
    """
    rough = 0.0
    with np.errstate(all="ignore"):
        for _ in range(1 if y.size >= ENOUGH else DRAWS):
            directions = [2 * rng.random(v.shape) - 1 for v in values]
            half, whole = (_at(forward, values, directions, step) for step in (TINY / 2, TINY))
            for precision in ("bfloat16", "float16", "float32"):
                if _holds_no_more_than(whole, precision):
                    return precision
            rough = max(rough, _roughness(y, half, whole))
        if rough <= ROUGH:
            return "float64"
        # Ill-conditioned float64, or a forward that is not deterministic, is as rough over any step.
        half, whole = (_at(forward, values, directions, step) for step in (TINIER / 2, TINIER))
    return "float32" if _roughness(y, half, whole) < rough / 8 else "float64"


def _at(forward: Callable, values: list[np.ndarray], directions: list[np.ndarray], step: float) -> np.ndarray:
    return forward([x + step * _size(x) * v for x, v in zip(values, directions, strict=True)])


def _size(x: np.ndarray) -> np.ndarray:
    """The scale of each number's step: its size or, where it is 0, that of the largest, or 1."""
    size = np.abs(x)
    return np.where(size == 0, size[np.isfinite(size)].max(initial=0.0) or 1.0, size)


def _holds_no_more_than(y: np.ndarray, precision: str) -> bool:
    """Whether that type can represent y, and the smallest numbers use all its digits, unlike those of a grid."""
    y = y.ravel()[:: max(1, y.size // ENOUGH)]
    y = np.sort(np.abs(y[np.isfinite(y) & (y != 0)]))
    bits = {"bfloat16": 8, "float16": 11, "float32": 24}[precision]
    smallest = y[: -(-len(y) // 4)]
    return bool(y.size and _digits_fit(y, bits).all() and _digits_fit(smallest, bits - 3).mean() < 0.75)


def _digits_fit(y: np.ndarray, bits: int) -> np.ndarray:
    mantissa = np.frexp(y)[0] * 2.0**bits
    return mantissa == np.round(mantissa)


def _roughness(y: np.ndarray, half: np.ndarray, whole: np.ndarray) -> float:
    """How far three values are from a straight line: the root mean square over y's largest; 0 if rounding is not the cause.

    Both steps go to one side, so that a kink at the inputs does not count.
    """
    if half.shape != y.shape or whole.shape != y.shape:
        return 0.0
    y, half, whole = (values.ravel()[:: max(1, y.size // MANY)] for values in (y, half, whole))
    off = np.abs(whole - 2 * half + y)
    known = np.isfinite(off)
    size = np.abs(y[known]).max(initial=0.0)
    if (
        size == 0 or off[known].max(initial=0.0) > EPSILON["bfloat16"] * size
    ):  # a jump, such as a rounding's own
        return 0.0
    return float(np.sqrt(np.mean(off[known] ** 2)) / size)
