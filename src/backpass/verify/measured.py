"""The precision in which a function computes, measured: what it returns may have more digits than it computed.

``f(x.float()).to(x.dtype)``, the form of most kernels, takes float64 and returns float64, with float32's digits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backpass.verify.convert import EPSILON

# Relative steps of the inputs. Float32 resolves 2^-24, the mean of a few thousand numbers that move at random moves
# that many times the root less, and over the longest step a float64 function of conditioning 1 bends by 2^-36.
STEP = 2.0**-18
SHORTER = STEP / 8  # a float64 function bends 64 times less over it; float32 rounds as before
TINIER = 2.0**-40  # hardly ever carries a float32 number to the next one
ROUGH = 2.0**-30  # of y: float32 rounds by 2^-25
ENOUGH = 1000  # elements of y that are looked at digit by digit
FEW = 8  # elements, of which each counts
MANY = 1 << 16  # elements at most of which one looks


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
        for signed in (True, False, True):
            directions = [2 * rng.random(v.shape) - signed for v in values]

            def roughness(step: float, directions=directions) -> float:
                half, whole = (_at(forward, values, directions, step * part) for part in (0.5, 1))
                return _roughness(y, half, whole)

            whole = _at(forward, values, directions, STEP)
            for precision in ("bfloat16", "float16", "float32"):
                if _holds_no_more_than(whole, precision):
                    return precision
            # A curve is straighter over shorter steps. Ill-conditioned float64, or a forward that is not
            # deterministic, is as rough over any step.
            rough = roughness(STEP)
            if rough > ROUGH and roughness(SHORTER) > rough / 16 and roughness(TINIER) < rough / 8:
                return "float32"
    return "float64"


def _at(forward: Callable, values: list[np.ndarray], directions: list[np.ndarray], step: float) -> np.ndarray:
    return forward([x + step * _size(x) * v for x, v in zip(values, directions, strict=True)])


def _size(x: np.ndarray) -> np.ndarray:
    """By what each number is to move: itself, or where it is 0 the largest of them, or 1."""
    size = np.abs(x)
    return np.where(size == 0, size[np.isfinite(size)].max(initial=0.0) or 1.0, size)


def _holds_no_more_than(y: np.ndarray, precision: str) -> bool:
    """Whether every number of y is one of that type, and the smallest use all their digits: a grid's do not."""
    y = y.ravel()[:: max(1, y.size // ENOUGH)]
    y = np.sort(np.abs(y[np.isfinite(y) & (y != 0)]))
    bits = {"bfloat16": 8, "float16": 11, "float32": 24}[precision]
    smallest = y[: -(-len(y) // 4)]
    return bool(y.size and _digits_fit(y, bits).all() and _digits_fit(smallest, bits - 3).mean() < 0.75)


def _digits_fit(y: np.ndarray, bits: int) -> np.ndarray:
    mantissa = np.frexp(y)[0] * 2.0**bits
    return mantissa == np.round(mantissa)


def _roughness(y: np.ndarray, half: np.ndarray, whole: np.ndarray) -> float:
    """How far three values are from a straight line: the root mean square, over y's largest; 0 for what is no rounding.

    Both steps go to one side, so that a kink at the inputs does not count; a kink between them shows at few elements, and
    the roughest do not count either.
    """
    if half.shape != y.shape or whole.shape != y.shape:
        return 0.0
    y, half, whole = (values.ravel()[:: max(1, y.size // MANY)] for values in (y, half, whole))
    off = np.abs(whole - 2 * half + y)
    known = np.isfinite(off)
    size = np.abs(y[known]).max(initial=0.0)
    off = np.sort(off[known])
    if size == 0 or off[-1] > EPSILON["bfloat16"] * size:  # a jump, such as a rounding's own
        return 0.0
    few = 0 if off.size < FEW else 1 + off.size // ENOUGH
    return float(np.sqrt(np.mean((off[: off.size - few] / size) ** 2)))
