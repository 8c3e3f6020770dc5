"""The learning rate of each step: a linear warm-up, then half a cosine.

The cosine is that of Loshchilov & Hutter, "SGDR: Stochastic Gradient Descent with Warm
Restarts" (2017), without restarts.
"""

from __future__ import annotations

import math

from backpass.contract.values import check_natural
from backpass.training._numbers import check_rate


def rate(
    step: int, *, peak: float, warmup: int, steps: int, final: float = 0.0
) -> float:
    """Return the learning rate of a ``step``, counted from 0.

    The first ``warmup`` steps have 1/(warmup + 1), 2/(warmup + 1), … of ``peak``. Step
    ``warmup`` has ``peak``. From there the rate falls along half a cosine, and would
    reach ``final`` at step number ``steps``, one after the last; it stays there for
    later steps. So no step of the run has the rate 0, in which nothing would be
    learned, and one step has the peak.

    Raises TypeError unless the steps are integers and the rates real numbers;
    ValueError if one is below 0, a rate is not finite, or ``steps`` does not exceed
    ``warmup``.
    """
    check_natural(step=step, warmup=warmup, steps=steps)
    check_rate(peak=peak, final=final)
    peak, final = float(peak), float(final)  # NumPy scalars would spread their dtype
    if steps <= warmup:
        raise ValueError(
            f"steps: expected more than warmup = {warmup}, which they include; "
            f"got {steps}"
        )
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / (steps - warmup))
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2
