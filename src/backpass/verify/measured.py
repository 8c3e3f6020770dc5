"""Measure the precision in which a function computes.

It may be lower than the output's dtype: ``f(x.float()).to(x.dtype)``, the form of most
kernels, takes and returns float64 with the accuracy of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backpass.verify.convert import EPSILON, is_floating
from backpass.verify.magnitude import largest

# Relative steps of the inputs. Float32 resolves 2^-24 of a number. Over the longest
# step, a float64 function of condition number 1 is a parabola to within 2^-58. Over the
# shorter one the remainder is 64 times smaller, while float32 rounds as before.
STEP = 2.0**-17
SHORTER = STEP / 4
LONGER = 2.0**-10
FINE = 2.0**-20  # passes many float64 numbers where most digits of a number cancel
# A step that seldom reaches the next float32 number, even in one of thousands of terms
# of a sum, but passes many float64 numbers.
TINIER = 2.0**-42
# The points of a step at which y is computed. At equal distances, float32 could round
# by the same amount each time.
POINTS = np.array([0, 0.13, 0.31, 0.56, 0.79, 1])
# An orthonormal basis of the values of parabolas at these points.
PARABOLAS = np.linalg.qr(np.vander(POINTS, 3))[0]
# Relative to y. Float32 rounds y by 2^-25, or by less if a small part of y is in
# float32.
ROUGH = 2.0**-40
DRAWS = 2  # directions in each of which y has to be rough
ENOUGH = 1000  # elements of y that are examined digit by digit
FEW = 8  # with fewer elements, none is ignored
MANY = 1 << 16  # elements whose roughness is examined, at most
MOVES = 8  # how often inputs are moved to measure the effect of rounding


def computed_precision(
    function: Callable[[tuple[Any, ...]], np.ndarray],
    inputs: Sequence[Any],
    y: np.ndarray,
    rng: np.random.Generator,
) -> str:
    """Return the dtype in which ``function`` computes when it is given float64.

    ``y`` is what it returns for the ``inputs``. There are two signs of a coarser dtype
    than float64. The outputs have no more digits than that dtype, although the inputs
    have. Or the outputs are rough: over steps so small that a float64 function is a
    parabola, they move in jumps, for example because one factor of y was computed in
    float32.
    """
    with np.errstate(all="ignore"):
        for _ in range(DRAWS):
            along = _along(function, inputs, rng)
            ys = along(STEP)
            for precision in ("bfloat16", "float16", "float32"):
                if _holds_no_more_than(ys[-1], precision):
                    return precision
            # A curve is straighter over shorter steps. An ill-conditioned float64
            # function, or one that is not deterministic, is as rough over any step.
            rough = _roughness(y, ys)
            if rough <= ROUGH or _roughness(y, along(SHORTER)) < rough / 16:
                return "float64"
            # Do not start at the inputs: sums of numbers with few digits may lie
            # halfway between two float32 numbers, where any step changes the result.
            there = along(TINIER, start=STEP)
            if _roughness(ys[-1], there, size=largest(y)) > rough / 8:
                return "float64"
    return "float32"


def jumps(
    function: Callable[[tuple[Any, ...]], np.ndarray],
    inputs: Sequence[Any],
    rng: np.random.Generator,
    step: float = LONGER,
) -> np.ndarray:
    """Return how far each element of ``function`` is from a parabola over a step, by
    default one that passes a number of float16.

    It shows what the coarsest operation rounds, which the result's digits need not.
    """
    first = function(tuple(inputs))
    most = np.zeros(first.shape)
    with np.errstate(all="ignore"):
        for _ in range(DRAWS):
            ys = np.stack([first, *_along(function, inputs, rng)(step)])
            ys = (ys - first).reshape(len(POINTS), -1)
            off = np.abs(ys - PARABOLAS @ (PARABOLAS.T @ ys)).max(axis=0)
            most = np.maximum(most, np.nan_to_num(off.reshape(first.shape)))
    return most


def _along(
    function: Callable[[tuple[Any, ...]], np.ndarray],
    inputs: Sequence[Any],
    rng: np.random.Generator,
) -> Callable[..., list[np.ndarray]]:
    """Return what computes ``function`` at points of a step in a random direction.

    All elements move away from 0, so that sums and means move as far as their terms.
    """
    items = [(at, x) for at, x in enumerate(inputs) if is_floating(x)]
    directions = {
        at: rng.random(x.shape) * _size(x) * np.where(x < 0, -1, 1) for at, x in items
    }

    def along(step: float, start: float = 0.0) -> list[np.ndarray]:
        moved = (
            {at: x + (start + step * t) * directions[at] for at, x in items}
            for t in POINTS[1:]
        )
        return [
            function(tuple(there.get(at, x) for at, x in enumerate(inputs)))
            for there in moved
        ]

    return along


def noise(
    function: Callable[[tuple[Any, ...]], np.ndarray],
    inputs: Sequence[Any],
    precision: str,
    rng: np.random.Generator,
) -> float:
    """Return the largest change of ``function`` when all inputs move by up to ε of the
    precision, relative to its largest element."""
    here = function(tuple(inputs))
    changes = spread(function, inputs, EPSILON[precision], rng)
    return largest(changes) / (largest(here) or 1.0)


def spread(
    function: Callable[[tuple[Any, ...]], np.ndarray],
    inputs: Sequence[Any],
    unit: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the largest change of each element of ``function`` when all inputs move by
    up to ``unit``, relative to their size."""
    here = function(tuple(inputs))
    most = np.zeros(here.shape)
    for _ in range(MOVES):
        moved = (
            x * (1 + unit * rng.uniform(-1, 1, x.shape)) if is_floating(x) else x
            for x in inputs
        )
        most = np.maximum(most, np.abs(function(tuple(moved)) - here))
    return most


def _size(x: np.ndarray) -> np.ndarray:
    """Return the scale of each number's step: its absolute value or, where it is 0, the
    largest one, or 1."""
    size = np.abs(x)
    return np.where(size == 0, size[np.isfinite(size)].max(initial=0.0) or 1.0, size)


def _holds_no_more_than(y: np.ndarray, precision: str) -> bool:
    """Whether y fits that dtype exactly, and small elements use all its digits.

    The small elements of a grid, such as multiples of 1/8, do not.
    """
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


def _roughness(
    y: np.ndarray, following: list[np.ndarray], size: float | None = None
) -> float:
    """Return how far y and the values that follow it along a step are from a parabola.

    This is the root mean square of the distances over ``size``, by default y's largest
    element; 0 if rounding is not their cause. All steps go to one side, so that a kink
    at the inputs does not count. A kink on the way shows at few elements, and the
    roughest are
    ignored.
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
    size = np.abs(first[known]).max(initial=0.0) if size is None else size
    off = np.sort(np.abs(off[:, known]).max(axis=0))
    if size == 0 or off[-1] > EPSILON["bfloat16"] * size:  # a jump, such as round's
        return 0.0
    few = 0 if off.size < FEW else 1 + off.size // ENOUGH
    return float(np.sqrt(np.mean((off[: off.size - few] / size) ** 2)))
