"""Scale all gradients down together if their norm is too large.

From Pascanu, Mikolov & Bengio, "On the Difficulty of Training Recurrent Neural
Networks" (2013). All gradients are multiplied by the same number, so that the direction
of the whole gradient does not change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from backpass.contract.arrays import (
    Array,
    as_type_of,
    is_unread,
    namespace,
    size,
    widened,
)
from backpass.contract.values import assert_all, check_bool
from backpass.models._parameters import check_faults
from backpass.training._blocks import blocks
from backpass.training._mappings import Gradients, check_gradients, name_faults
from backpass.training._memory import writable
from backpass.training._numbers import check_positive

MARGIN = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to the norm
LEAST_FACTOR = 2.0**-126  # float32 loses the last bits of smaller numbers


def norms(gradients: Gradients) -> dict[str, float]:
    """Return the Euclidean norm of each gradient ``[*]``, by its name.

    Squares neither overflow nor underflow: the elements are first divided by a power
    of two near the largest. Half precision is computed in float32.

    Raises TypeError unless ``gradients`` is a mapping to arrays of real floating-point
    numbers; FloatingPointError, naming every parameter concerned, if an element is not
    finite or a norm exceeds the range of floats.
    """
    check_gradients(gradients)
    found = {name: _norm(gradient) for name, gradient in gradients.items()}
    faults = [
        f"{name}: {_why(gradients[name])}"
        for name, norm in found.items()
        if not math.isfinite(norm)
    ]
    check_faults("gradients: their norm is not finite", faults, FloatingPointError)
    return found


def clip(
    gradients: Gradients,
    max_norm: float,
    *,
    in_place: bool = False,
    of_each: Mapping[str, float] | None = None,
) -> tuple[dict[str, Array], float | Array]:
    """Return the gradients ``[*]``, scaled so that their global norm is at most
    ``max_norm``, up to the rounding of their dtype, and the norm before.

    The global norm is that of one vector with the elements of all gradients. Each
    gradient is multiplied by max_norm/(norm + 1e-6) if this is less than 1; otherwise
    the arrays are returned as they are. The 1e-6 is PyTorch's, so that runs can be
    compared with those of ``torch.nn.utils.clip_grad_norm_``.

    The arrays of ``gradients`` are not modified. With ``in_place`` they may be, so that
    there is no second set of gradients in memory. The values returned are the same: a
    gradient is still copied if it shares memory with another one or cannot be written.
    ``of_each`` is what ``norms(gradients)`` returned, if it has been called already. It
    may also have norms of gradients that only other ranks have: they count too.

    For gradients on a CUDA device without ``of_each``, the host reads no number, so a
    CUDA graph can contain the call. The factor is computed on the device, every
    gradient is multiplied by it, even by 1, and the norm is a float64 array ``[]``. For
    a norm that is not finite, ``contract.values.assert_all`` says what is raised.

    Raises what ``norms`` raises, also if the global norm exceeds the range of floats;
    TypeError or ValueError unless ``max_norm`` is a number above 0; TypeError unless
    ``in_place`` is a bool; ValueError unless ``of_each`` has the names of all
    gradients. Nothing is modified then.
    """
    check_positive(max_norm=max_norm)
    check_bool(in_place=in_place)
    max_norm = float(max_norm)  # NumPy would round the norm to a scalar's dtype
    if of_each is None and _are_unread(gradients):
        return _clipped_there(gradients, max_norm, in_place)
    of_each = norms(gradients) if of_each is None else of_each
    here = {name: norm for name, norm in of_each.items() if name in gradients}
    faults = name_faults("of_each", here, gradients)
    check_faults("clip: the norms do not fit", faults)
    norm = math.hypot(*of_each.values())
    if math.isinf(norm):
        raise FloatingPointError(
            "gradients: each norm is finite, but the norm of all together exceeds the "
            "range of floats"
        )
    if max_norm / (norm + MARGIN) >= 1:
        return dict(gradients), norm
    return _all_scaled(gradients, _factors(max_norm, norm + MARGIN), in_place), norm


def _all_scaled(
    gradients: Gradients, factors: Sequence[float | Array], in_place: bool
) -> dict[str, Array]:
    own = writable(gradients) if in_place else frozenset()
    # Copies come first, since they may share the memory that is written then.
    scaled = {n: g if n in own else _scaled(g, factors) for n, g in gradients.items()}
    for name in own:
        for block in blocks(scaled[name]):
            block[...] = _scaled(block, factors)
    return scaled


def _are_unread(gradients: Gradients) -> bool:
    """Whether all gradients are on one device, and none of their numbers is read."""
    check_gradients(gradients)
    arrays = gradients.values()
    return all(map(is_unread, arrays)) and len({x.device for x in arrays}) == 1


def _clipped_there(
    gradients: Gradients, max_norm: float, in_place: bool
) -> tuple[dict[str, Array], Array]:
    """Return what ``clip`` returns, computed where the gradients are."""
    xp = namespace(*gradients.values())
    each = xp.stack([_norm_there(gradient) for gradient in gradients.values()])
    largest = xp.max(each)
    divisor = xp.where(largest > 0, largest, 1.0)
    norm = divisor * xp.sqrt(_sum_of_squares(each / divisor))
    assert_all(xp.isfinite(norm), "gradients: their norm is not finite")
    factor = xp.clip(max_norm / (norm + MARGIN), max=1.0)
    # As in ``_factors``: two numbers of which float32 keeps all bits.
    tiny = factor < LEAST_FACTOR
    first = xp.where(tiny, xp.full_like(factor, 2.0**-64), 1.0)
    return _all_scaled(gradients, [first, factor / first], in_place), norm


def _factors(above: float, below: float) -> list[float]:
    """Return numbers, of which float32 keeps all bits, whose product is above/below."""
    if above / below >= LEAST_FACTOR:
        return [above / below]
    (a, i), (b, j) = math.frexp(above), math.frexp(below)
    half = (i - j) // 2
    return [math.ldexp(1.0, half), math.ldexp(a / b, i - j - half)]


def _scaled(x: Array, factors: Sequence[float | Array]) -> Array:
    y = widened(x)
    for factor in factors:
        y = y * factor
    return as_type_of(y, x)


def _norm(x: Array) -> float:
    """Return the norm of ``x[*]``; NaN or ∞ if an element is."""
    if not size(x.shape):
        return 0.0
    xp = namespace(x)
    tops = [xp.max(xp.abs(widened(block))) for block in blocks(x)]
    largest = float(xp.max(xp.stack(tops)))
    if largest == 0 or not math.isfinite(largest):
        return largest
    # A power of two scales exactly. In two factors, neither exceeds float32.
    exponent = math.frexp(largest)[1]
    half = -exponent // 2
    one, other = math.ldexp(1.0, half), math.ldexp(1.0, -exponent - half)
    sums = [_sum_of_squares(widened(block) * one * other) for block in blocks(x)]
    root = math.sqrt(float(xp.sum(xp.stack(sums))))
    try:
        return math.ldexp(root, exponent)
    except OverflowError:
        return math.inf


def _norm_there(x: Array) -> Array:
    """Return the norm ``[]`` of ``x[*]`` in float64, where ``x`` is; NaN or ∞ if an
    element is. The elements are scaled as in ``_norm``, and the norm is scaled back."""
    xp = namespace(x)
    if not size(x.shape):
        return xp.zeros((), dtype=xp.float64, device=x.device)
    tops = [xp.max(xp.abs(widened(block))) for block in blocks(x)]
    largest = xp.max(xp.stack(tops))
    exponent = xp.frexp(largest)[1]
    half = -exponent // 2
    unit = xp.ones_like(largest)
    one, other = xp.ldexp(unit, half), xp.ldexp(unit, -exponent - half)
    sums = [_sum_of_squares(widened(block) * one * other) for block in blocks(x)]
    root, one, other = (
        xp.astype(number, xp.float64)
        for number in (xp.sqrt(xp.sum(xp.stack(sums))), one, other)
    )
    return root / one / other


def _sum_of_squares(x: Array) -> Array:
    return namespace(x).sum(x * x)


def _why(x: Array) -> str:
    """Return why the norm of ``x[*]`` is not finite."""
    wrong = int(namespace(x).sum(~namespace(x).isfinite(x)))
    if not wrong:
        return "the elements are finite, but their norm exceeds the range of floats"
    return f"{wrong} of {size(x.shape)} elements are not finite"
