"""Measures the precision in which a function computes, which may be lower than its output's dtype.

``f(x.float()).to(x.dtype)``, the form of most kernels, takes and returns float64 with the accuracy of float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backpass.verify.convert import EPSILON

# Relative steps of the inputs. Float32 resolves 2^-24 of a number. Over the longest a float64 function of conditioning 1
# is a parabola up to 2^-58; over the shorter one the rest is 64 times less, and float32 rounds as before.
STEP = 2.0**-17
SHORTER = STEP / 4
TINIER = (
    2.0**-32
)  # seldom carries a float32 number to the next one, and most float64 numbers past many
# Where y is computed along a step: at equal distances float32 could round by the same amount each time.
POINTS = np.array([0, 0.13, 0.31, 0.56, 0.79, 1])
PARABOLAS = np.linalg.qr(np.vander(POINTS, 3))[
    0
]  # an orthonormal basis of their values there
ROUGH = (
    2.0**-40
)  # of y: float32 rounds y by 2^-25, or by less where a small part of it is computed in float32
DRAWS = 2  # of directions: y has to be rough in each
ENOUGH = 1000  # elements of y that are examined digit by digit
FEW = 8  # with fewer elements, each counts
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
    rough: over steps so small that a float64 function is a straight line, they move in jumps, as where one factor of y
    was computed in float32.
    """
    with np.errstate(all="ignore"):
        for _ in range(DRAWS):
            # All away from 0, so that means and sums move as far as their terms.
            directions = [
                rng.random(v.shape) * _size(v) * np.where(v < 0, -1, 1) for v in values
            ]

            def along(step: float, directions=directions) -> list[np.ndarray]:
                moved = (
                    [x + step * t * v for x, v in zip(values, directions, strict=True)]
                    for t in POINTS[1:]
                )
                return [forward(inputs) for inputs in moved]

            ys = along(STEP)
            for precision in ("bfloat16", "float16", "float32"):
                if _holds_no_more_than(ys[-1], precision):
                    return precision
            # A curve is straighter over shorter steps. Ill-conditioned float64, or a forward that is not
            # deterministic, is as rough over any step.
            rough = _roughness(y, ys)
            if rough <= ROUGH or _roughness(y, along(SHORTER)) < rough / 16:
                return "float64"
            if _roughness(y, along(TINIER)) > rough / 8:
                return "float64"
    return "float32"


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
    if (
        not y.size
        or not _digits_fit(y, bits).all()
        or _digits_fit(smallest, bits - 3).mean() >= 0.75
    ):
        return False
    large = y[len(y) // 2 :]
    bit = np.ldexp(1.0, np.frexp(large)[1].min() - bits)
    while not (large % (2 * bit)).any():
        bit *= 2
    return bool(smallest[-1] > y[-1] / 4 or (smallest % bit).any())


def _digits_fit(y: np.ndarray, bits: int) -> np.ndarray:
    mantissa = np.frexp(y)[0] * 2.0**bits
    return mantissa == np.round(mantissa)


def _roughness(y: np.ndarray, following: list[np.ndarray]) -> float:
    """How far y and the values that follow it along a step are from a parabola: the root mean square over y's largest; 0
    if rounding is not the cause.

    All steps go to one side, so that a kink at the inputs does not count; a kink on the way shows at few elements, and
    the roughest do not count either.
    """
    if any(value.shape != y.shape for value in following):
        return 0.0
    ys = np.stack(
        [value.ravel()[:: max(1, y.size // MANY)] for value in (y, *following)]
    )
    first = ys[0].copy()
    ys -= first
    off = ys - PARABOLAS @ (PARABOLAS.T @ ys)
    known = np.isfinite(off).all(axis=0)
    size = np.abs(first[known]).max(initial=0.0)
    off = np.sort(np.abs(off[:, known]).max(axis=0))
    if (
        size == 0 or off[-1] > EPSILON["bfloat16"] * size
    ):  # a jump, such as a rounding's own
        return 0.0
    few = 0 if off.size < FEW else 1 + off.size // ENOUGH
    return float(np.sqrt(np.mean((off[: off.size - few] / size) ** 2)))
