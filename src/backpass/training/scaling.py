"""Loss scaling: float16 gradients that would underflow, computed larger.

From Micikevicius et al., "Mixed Precision Training" (2018). The loss is multiplied by a
scale before the backward, and the gradients are divided by it in float32 afterwards::

    state = scaling.start()
    loss, saved = gpt2.forward(adamw.rounded(parameters, float16), tokens, targets, …)
    gradients = scaling.unscaled(gpt2.backward(saved, scale=state["scale"]), state)
    if gradients is not None:
        adamw.update(parameters, gradients, optimiser)

A gradient that overflowed is not finite. Then ``unscaled`` returns None, the step is
skipped, and the scale is halved. After 2000 steps in a row without an overflow it is
doubled. The rule and its defaults are those of ``torch.amp.GradScaler``, with two
differences: the quotients must be finite too, not only the gradients that are divided,
and the scale has a lower limit. For a static scale, pass ``growth=1`` and
``backoff=1``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from typing import TypedDict

import numpy as np

from backpass.contract.arrays import Array, is_remote, namespace, widened
from backpass.contract.values import check_loss_scale, check_natural
from backpass.training._mappings import Gradients, check_gradients
from backpass.training._numbers import check_count, check_reals

LEAST, LIMIT = 2.0**-126, 2.0**128  # float32 keeps all bits of a scale between these


class State(TypedDict):
    """A plain dict: the scale of the next step, and how many steps in a row had finite
    gradients since the scale changed."""

    scale: float
    finite: int


def start(scale: float = 2.0**16) -> State:
    """Return the state before the first step. Raises TypeError unless ``scale`` is a
    real number; ValueError unless it is at least 2⁻¹²⁶ and below 2¹²⁸."""
    check_scale(scale)
    return {"scale": float(scale), "finite": 0}


def unscaled(
    gradients: Gradients,
    state: State,
    *,
    growth: float = 2.0,
    backoff: float = 0.5,
    interval: int = 2000,
) -> dict[str, Array] | None:
    """Return the gradients ``[*]`` divided by the scale, or None if a quotient is not
    finite; then update the state.

    Half precision is widened to float32 first: divided in float16, a gradient would
    underflow after all. If a quotient is not finite, the scale is multiplied by
    ``backoff``, unless it would fall below 2⁻¹²⁶. After ``interval`` calls in a row
    with finite quotients it is multiplied by ``growth``, unless it would exceed
    float32. Clip the gradients after this call, not before it. For several
    micro-batches, use one scale, add their gradients, and call once.

    Raises TypeError unless ``gradients`` is a mapping to arrays of real floating-point
    numbers, the options are numbers, and ``state`` is a mapping like that of ``start``;
    ValueError unless growth ≥ 1, 0 < backoff ≤ 1, and ``interval`` ≥ 1, and for a state
    whose names or numbers are not those of ``start``. The state is not changed then.
    """
    check_state(state)
    check_gradients(gradients)
    check_count(interval=interval)
    check_reals({"growth": growth}, "a finite number ≥ 1", lambda x: 1 <= x < math.inf)
    check_reals(
        {"backoff": backoff}, "a number above 0, at most 1", lambda x: 0 < x <= 1
    )
    scale = state["scale"]
    with np.errstate(all="ignore"):  # the quotients are tested instead
        found = {
            name: widened(gradient) / scale for name, gradient in gradients.items()
        }
    if not _are_finite(found):
        smaller = scale * float(backoff)
        state["scale"], state["finite"] = smaller if smaller >= LEAST else scale, 0
        return None
    state["finite"] += 1
    if state["finite"] == interval:
        larger = scale * float(growth)
        state["scale"], state["finite"] = larger if larger < LIMIT else scale, 0
    return found


def check_scale(scale: object) -> None:
    """Raise TypeError or ValueError unless ``start`` accepts the scale."""
    check_loss_scale(scale)
    if not LEAST <= float(scale) < LIMIT:  # type: ignore[arg-type]
        raise ValueError(
            "scale: expected at least 2**-126 and less than 2**128, the normal numbers "
            f"of float32; got {scale}"
        )


def check_state(state: object) -> None:
    """Raise TypeError or ValueError unless ``state`` is one of loss scaling."""
    if not isinstance(state, MutableMapping):
        raise TypeError(
            f"state: expected what start returned; got {type(state).__name__}"
        )
    if {*state} != {"scale", "finite"}:
        raise ValueError(
            "state: expected what start returned, scale and finite; got "
            f"{', '.join(map(str, state)) or 'nothing'}"
        )
    check_scale(state["scale"])
    check_natural(finite=state["finite"])


def _are_finite(arrays: Mapping[str, Array]) -> bool:
    """Whether all elements are finite. The host waits for a device once, as in
    ``torch.amp.GradScaler``, and not once for each array."""
    flags = (_is_finite(x) for x in arrays.values())
    if not (arrays and all(map(is_remote, arrays.values()))):
        return all(map(bool, flags))
    xp = namespace(*arrays.values())
    return bool(xp.all(xp.stack([*flags])))


def _is_finite(x: Array) -> Array:
    xp = namespace(x)
    return xp.all(xp.isfinite(x))
