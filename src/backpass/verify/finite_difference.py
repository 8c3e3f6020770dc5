"""Central differences of the forward along random directions, and along every coordinate of a small input.

Knows nothing of derivatives: it can be wrong only where the forward is. Its error is rounding over the step
plus the step squared, about ε^⅔ ≈ 4e-11 at best, and much more where the forward is ill-conditioned.
"""

from __future__ import annotations

import numpy as np

from backpass.verify.case import Case
from backpass.verify.directional import rows
from backpass.verify.report import Row

NAME = "finite differences"
TOLERANCE = 1e-7
WHY = "step² and rounding / step"
STEP = float(np.finfo(np.float64).eps ** (1 / 3))


def run(case: Case) -> list[Row]:
    """One row a gradient. Raises NotRun where the forward does not compute in float64."""
    case.require_float64()
    steps = {at: best_step(case, at) for at in case.differentiable}

    def derivative(at: int, direction: np.ndarray) -> tuple[float, np.ndarray]:
        change, moved = difference(case, at, direction, steps[at])
        return float(np.sum(case.dy * change)), moved

    return rows(case, NAME, *case.tolerance("finite_difference", TOLERANCE, WHY), derivative)


def difference(case: Case, at: int, direction: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Change of y a unit of step, and the direction really taken: x + h·v rounds, and that counts."""
    x = case.float64[at]
    ahead, behind = x + step * direction, x - step * direction
    with np.errstate(invalid="ignore"):
        moved = np.where(np.isfinite(x), (ahead - behind) / (2 * step), 0.0)
        change = case.forward(_replaced(case, at, ahead)) - case.forward(_replaced(case, at, behind))
    return np.where(np.isfinite(change), change / (2 * step), 0.0), moved


def best_step(case: Case, at: int) -> float:
    """Of the steps for numbers about 1 and numbers like the input's, that whose half agrees best."""
    x = case.float64[at]
    finite = x[np.isfinite(x)]
    typical = float(np.sqrt(np.mean(finite**2))) if finite.size else 1.0
    candidates = sorted({STEP, STEP * (typical or 1.0)})
    if len(candidates) == 1 or 0.1 <= typical <= 10:
        return STEP
    direction = np.where(np.isfinite(x), case.rng.standard_normal(x.shape), 0.0)

    def disagreement(step: float) -> float:
        whole, _ = difference(case, at, direction, step)
        half, _ = difference(case, at, direction, step / 2)
        return float(np.abs(whole - half).max(initial=0.0))

    return min(candidates, key=disagreement)


def _replaced(case: Case, at: int, value: np.ndarray) -> tuple[object, ...]:
    return (*case.float64[:at], value, *case.float64[at + 1 :])
