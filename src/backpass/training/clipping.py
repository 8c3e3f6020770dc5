"""Scale all gradients down together if their norm is too large.

From Pascanu, Mikolov & Bengio, "On the Difficulty of Training Recurrent Neural
Networks" (2013). All gradients are multiplied by the same number, so that the direction
of the step does not change.
"""

from __future__ import annotations

import math

from backpass.arrays import Array, as_type_of, namespace, size, widened
from backpass.training._mappings import Gradients, check_gradients
from backpass.training._numbers import check_positive

MARGIN = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to the norm


def norms(gradients: Gradients) -> dict[str, float]:
    """Return the Euclidean norm of each gradient ``[*]``, by its name.

    Squares neither overflow nor underflow: the elements are divided by the largest
    first. Half precision is computed in float32.

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
    if faults:
        raise FloatingPointError(
            "\n    ".join(["gradients: their norm is not finite:", *faults])
        )
    return found


def clip(gradients: Gradients, max_norm: float) -> tuple[dict[str, Array], float]:
    """Return the gradients ``[*]``, scaled so that their global norm is at most
    ``max_norm``, and the norm before.

    The global norm is that of one vector with the elements of all gradients. Each
    gradient is multiplied by max_norm/(norm + 1e-6) if this is less than 1; otherwise
    the arrays are returned as they are. The 1e-6 is PyTorch's, so that runs can be
    compared with those of ``torch.nn.utils.clip_grad_norm_``.

    Raises what ``norms`` raises, also if the global norm exceeds the range of floats;
    TypeError or ValueError unless ``max_norm`` is a number above 0.
    """
    check_positive(max_norm=max_norm)
    norm = math.hypot(*norms(gradients).values())
    if math.isinf(norm):
        raise FloatingPointError(
            "gradients: each norm is finite, but the norm of all together exceeds the "
            "range of floats"
        )
    factor = max_norm / (norm + MARGIN)
    if factor >= 1:
        return dict(gradients), norm
    scaled = {name: as_type_of(widened(g) * factor, g) for name, g in gradients.items()}
    return scaled, norm


def _norm(x: Array) -> float:
    """Return the norm of ``x[*]``; NaN or ∞ if an element is."""
    x = widened(x)
    xp = namespace(x)
    largest = float(xp.max(xp.abs(x))) if size(x.shape) else 0.0
    if largest == 0 or not math.isfinite(largest):
        return largest
    ratio = x / largest
    return largest * math.sqrt(float(xp.sum(ratio * ratio)))


def _why(x: Array) -> str:
    """Return why the norm of ``x[*]`` is not finite."""
    wrong = int(namespace(x).sum(~namespace(x).isfinite(x)))
    if not wrong:
        return "the elements are finite, but their norm exceeds the range of floats"
    return f"{wrong} of {size(x.shape)} elements are not finite"
