"""The precision in which a function computes, measured: what it returns may have more digits than it computed.

``f(x.float()).to(x.dtype)``, the form of most kernels, takes float64 and returns float64, with float32's digits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backpass.verify.convert import EPSILON

TINY = 2.0**-24  # half of what float32 resolves; a float64 computation resolves 2^28 steps of it
TINIER = 2.0**-40  # hardly ever carries a float32 number to the next one
ROUGH = 2.0**-30  # of y, by which steps of float32 make it rough and float64's conditioning seldom does
DRAWS = 2


def computed_precision(
    forward: Callable[[list[np.ndarray]], np.ndarray], values: list[np.ndarray], rng: np.random.Generator
) -> str:
    """``float64``, or the coarser type in which ``forward`` computes when it is given float64.

    Two signs betray it. The outputs hold no more digits than the coarser type has, though the inputs do. Or they are
    rough: over steps so small that a float64 function is a straight line, they move in jumps.
    """
    directions = [[2 * rng.random(v.shape) - 1 for v in values] for _ in range(DRAWS)]
    with np.errstate(all="ignore"):
        y = forward(values)
        moved = _at(forward, values, directions[0], TINY)
        for precision in ("bfloat16", "float16", "float32"):
            if _holds_no_more_than(moved, precision):
                return precision
        roughness = [_roughness(forward, values, v, y, TINY) for v in directions]
        if max(roughness) <= ROUGH:
            return "float64"
        # Ill-conditioned float64, or a forward that is not deterministic, is as rough over any step.
        still = max(_roughness(forward, values, v, y, TINIER) for v in directions)
    return "float32" if still < max(roughness) / 8 else "float64"


def _at(forward: Callable, values: list[np.ndarray], direction: list[np.ndarray], step: float) -> np.ndarray:
    return forward([x + step * np.abs(x) * v for x, v in zip(values, direction, strict=True)])


def _holds_no_more_than(y: np.ndarray, precision: str) -> bool:
    """Whether every number of y is one of that type, and a quarter of them could not be by being simple."""
    y = y[np.isfinite(y) & (y != 0)]
    mantissa = np.frexp(y)[0]
    bits = {"bfloat16": 8, "float16": 11, "float32": 24}[precision]
    fits = mantissa * 2.0**bits == np.round(mantissa * 2.0**bits)
    simple = mantissa * 2.0 ** (bits - 3) == np.round(mantissa * 2.0 ** (bits - 3))
    return bool(y.size and fits.all() and simple.mean() < 0.75)


def _roughness(
    forward: Callable, values: list[np.ndarray], direction: list[np.ndarray], y: np.ndarray, step: float
) -> float:
    """How far y is from a straight line over the step: the root mean square, over y's; 0 for what is no rounding.

    Both points lie on one side of the inputs, so that a kink at them does not count.
    """
    half, whole = (_at(forward, values, direction, s) for s in (step / 2, step))
    if half.shape != y.shape or whole.shape != y.shape:
        return 0.0
    off = np.abs(whole - 2 * half + y)
    known = np.isfinite(off)
    size = np.abs(y[known]).max(initial=0.0)
    if (
        size == 0 or off[known].max(initial=0.0) > EPSILON["bfloat16"] * size
    ):  # a jump, such as a rounding's own
        return 0.0
    return float(np.sqrt(np.mean(off[known] ** 2)) / size)
