r"""Negative log-likelihood: minus the log-probability of each row's target, averaged or
summed.

.. math:: y = - \frac{\sum_{i,j} t_{ij} x_{ij}}{\sum_{i,j} t_{ij}}, \qquad
          \bar{x}_{ij} = - \frac{t_{ij}}{\sum_{k,l} t_{kl}} \bar{y}

Derived on the page ``operations/cross_entropy``. In the formulas a target is a row:
``t_ij`` is 1 if j is the target of row i and 0 otherwise, and an ignored row is 0
throughout. With ``reduction="sum"`` nothing is divided. If all targets are ignored, the
mean is NaN and the gradient 0, as in PyTorch. Half precision is summed and divided in
float32.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.arrays import Array, as_type_of, namespace, one_hot, pick, widened
from backpass.shapes import Kind, check_cotangent, check_inputs, check_saved, kind
from backpass.values import check_targets

SHAPES = "x[*, V>0], t[*]:int -> y[]"


class Saved(NamedTuple):
    """No log-probability: the gradient does not depend on them."""

    t: Array  # [*], −1 where ignored
    classes: int
    divisor: float | None
    kind: Kind


def forward(
    x: Array, t: Array, *, ignore_index: int = -100, reduction: str = "mean"
) -> tuple[Array, Saved]:
    """Return the loss ``y[]`` of the log-probabilities ``x[*, V]`` at the targets
    ``t[*]``.

    A target equal to ``ignore_index`` counts neither in the sum nor in the mean's
    divisor. Raises TypeError unless ``x`` is a floating-point and ``t`` an integer
    array of one library and device and ``ignore_index`` is an integer; ValueError if
    shapes do not fit or ``reduction`` is neither "mean" nor "sum"; IndexError for a
    target outside the V classes.
    """
    check_inputs(SHAPES, x=x, t=t)
    t, divisor = check_targets(t, x.shape[-1], ignore_index, reduction)
    return as_type_of(reduced(x, t, divisor), x), Saved(
        t, x.shape[-1], divisor, kind(x)
    )


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, V]`` from ``dy[]``."""
    t, classes, divisor, like = check_saved(saved, Saved)
    xp = check_cotangent(dy, (), like)

    # In the forward pass one entry of each counted row was read; so now only that entry
    # has a gradient.
    each = dy if divisor is None else as_type_of(widened(dy) / divisor, dy)
    return xp.where(one_hot(t, classes), -each, 0.0)


def forward_flops(m, reduction="mean"):
    """Return m − 1 FLOPs for the sum of m terms, where an ignored term is 0, and 1 for
    the mean's division."""
    return m - 1 + (1 if reduction == "mean" else 0)


def backward_flops(reduction="mean"):
    """Return 1 FLOP for the mean's division; the rest is moved."""
    return 1 if reduction == "mean" else 0


def reduced(x: Array, t: Array, divisor: float | None = None) -> Array:
    """Return minus the sum of the entries of ``x[*, V]`` at the targets ``t[*]`` that
    are not −1, over ``divisor``. In half precision, whose sum over many rows overflows
    or stalls, it is summed and returned in float32."""
    total = -namespace(x).sum(widened(pick(x, t)))
    return total if divisor is None else total / divisor


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"ignore_index": 1}, {"reduction": "sum"})
PLACES = ("loss",)
AUTOCAST = "float32"
