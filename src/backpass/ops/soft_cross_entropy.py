r"""Cross-entropy of scores where each target is a distribution over the classes, or any
other weights for them.

.. math:: y = \frac1m \sum_{i,j} q_{ij}
              \Big( \log \Big( \sum_k e^{x_{ik}} \Big) - x_{ij} \Big), \qquad
          \bar{x}_{ij} = \Big( \frac{e^{x_{ij}}}{\sum_k e^{x_{ik}}}
              \Big( \sum_k q_{ik} \Big) - q_{ij} \Big)
                         \frac{\bar{y}}{m}, \quad
          \bar{q}_{ij} = \Big( \log \Big( \sum_k e^{x_{ik}} \Big) - x_{ij} \Big)
              \frac{\bar{y}}{m}

Derived on the page ``operations/cross_entropy``. The targets of a row need not sum to
1; the usual formula, softmax minus target, holds only if they do. With
``reduction="sum"`` nothing is divided. The mean of no rows is NaN. A score of −∞ whose
target is 0 still makes the loss NaN, and its own gradient is 0; both are as in PyTorch.
Half precision is computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_type_of,
    is_array,
    namespace,
    size,
    widened,
)
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted
from backpass.ops import log_softmax

SHAPES = "x[*, V>0], q[*, V] -> y[]"


class Saved(NamedTuple):
    """The log-probabilities, which are the targets' gradient up to a factor, and the
    targets."""

    p: Array | Outline  # [*, V]
    q: Array | Outline  # [*, V]
    divisor: float | None
    wanted: tuple[str, ...]


NEEDS = {"p": "x q", "q": "x"}


def forward(
    x: Array, q: Array, *, reduction: str = "mean", wanted: Wanted = None
) -> tuple[Array, Saved]:
    """Return the loss ``y[]`` of the scores ``x[*, V]`` at the targets ``q[*, V]``, the
    mean over rows or the sum.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``; ValueError if shapes do not fit or
    ``reduction`` is neither "mean" nor "sum".
    """
    if is_array(q) and namespace(q).isdtype(q.dtype, "integral"):
        raise TypeError(
            f"q: expected floating-point numbers; got dtype {q.dtype}; targets that are classes are for "
            "cross_entropy"
        )
    xp = check_inputs(SHAPES, x=x, q=q)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: expected 'mean' or 'sum'; got {reduction!r}")
    wanted = check_wanted(SHAPES, wanted)
    divisor = (size(x.shape[:-1]) or math.nan) if reduction == "mean" else None

    p, _ = log_softmax.forward(widened(x))
    total = -xp.sum(widened(q) * p)
    y = total if divisor is None else total / divisor
    return as_type_of(y, x), needed(Saved(as_type_of(p, x), q, divisor, wanted), NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, V]`` and ``dq[*, V]`` from ``dy[]``."""
    p, q, divisor, wanted = narrowed(saved, Saved, wanted)
    xp = check_cotangent(dy, (), like=p)
    if not wanted:
        return None, None
    p, dy = widened(p), widened(dy)
    each = dy if divisor is None else dy / divisor

    # In the forward pass each target multiplied the row's log-sum, which every score
    # raised by its weight; so now a score gets its weight times the sum of the row's
    # targets, less its own target.
    dx = dq = None
    if "x" in wanted:
        q = widened(q)
        dx = (xp.exp(p) * xp.sum(q, axis=-1, keepdims=True) - q) * each
        dx = as_type_of(dx, saved.p)
    if "q" in wanted:
        dq = as_type_of(-p * each, saved.p)
    return dx, dq


def forward_flops(m, V, reduction="mean"):
    """Return the FLOPs of log-softmax, a product per class, their sum, and the mean's
    division."""
    return (
        log_softmax.forward_flops(m, V)
        + 2 * m * V
        - 1
        + (1 if reduction == "mean" else 0)
    )


def backward_flops(m, V, reduction="mean", wanted=None):
    """Return the FLOPs of dx (exponentiate, sum the targets, multiply, subtract,
    multiply), of dq (multiply), and of the mean's division."""
    division = 1 if reduction == "mean" else 0
    dx, dq = m * (5 * V - 1), m * V
    return sum_wanted(wanted, {"x q": division, "x": dx, "q": dq})


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"reduction": "sum"})
PLACES = ("loss",)
AUTOCAST = "float32"
