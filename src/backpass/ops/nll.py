r"""Negative log-likelihood: minus the log-probability of each row's target, averaged or
summed.

.. math:: y = - \frac{\sum_{i,j} t_{ij} c_j x_{ij}}{\sum_{i,j} t_{ij} c_j}, \qquad
          \bar{x}_{ij} = - \frac{t_{ij} c_j}{\sum_{k,l} t_{kl} c_l} \bar{y}

Derived on the page ``operations/cross_entropy``. In the formulas a target is a row:
``t_ij`` is 1 if j is the target of row i and 0 otherwise, and an ignored row is 0
throughout. ``c`` is ``weight``, the weight of each class, which is a constant; without
it each class has weight 1. With ``reduction="sum"`` nothing is divided, and with "none"
the rows' losses are not summed either. If all targets are ignored, the mean is NaN and
the gradient 0, as in PyTorch. Half precision is summed and divided in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import (
    Array,
    as_type_of,
    namespace,
    one_hot,
    pick,
    widened,
)
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.contract.values import check_targets, shape_of_loss, weights_at

SHAPES = "x[*, V>0], t[*]:int, weight[V]? -> y[]"
CONSTANTS = ("weight",)
POSITIVE = ("weight",)
UNREDUCED = {"reduction": "none"}


class Saved(NamedTuple):
    """No log-probability: the gradient does not depend on them."""

    t: Array  # [*], −1 where ignored
    weight: Array | None  # [V]
    classes: int
    divisor: float | Array | None  # on a device or with class weights, []
    reduction: str
    kind: Kind


def forward(
    x: Array,
    t: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[Array, Saved]:
    """Return the loss ``y[]`` of the log-probabilities ``x[*, V]`` at the targets
    ``t[*]``; with ``reduction="none"`` the loss ``y[*]`` of each row.

    A row's loss is multiplied by ``weight[V]`` of its target, and the mean is divided
    by the sum of these weights. A target equal to ``ignore_index`` counts neither in
    the sum nor in the mean's divisor; its own loss is 0. Raises TypeError unless ``x``
    and ``weight`` are floating-point arrays of one dtype and ``t`` is an integer array,
    all of one library and device, and ``ignore_index`` is an integer; ValueError if
    shapes do not fit or ``reduction`` is not "mean", "sum", or "none"; IndexError for a
    target outside the V classes.
    """
    check_inputs(SHAPES, x=x, t=t, weight=weight)
    t, divisor = check_targets(t, x.shape[-1], ignore_index, reduction, weight)
    y = reduced(losses(x, t, weight), divisor, reduction)
    saved = Saved(t, weight, x.shape[-1], divisor, reduction, kind(x))
    return as_type_of(y, x), saved


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, V]`` from ``dy[]``, or from ``dy[*]`` if the loss was not
    reduced."""
    t, weight, classes, divisor, reduction, like = check_saved(saved, Saved)
    xp = check_cotangent(dy, shape_of_loss(t, reduction), like)

    # In the forward pass one entry of each counted row was read; so now only that entry
    # has a gradient.
    each = widened(dy) if divisor is None else widened(dy) / divisor
    each = each if weight is None else each * weights_at(weight, t)
    return xp.where(one_hot(t, classes), -as_type_of(each, dy)[..., None], 0.0)


def forward_flops(m, reduction="mean", has_weight=False):
    """Return m − 1 FLOPs for the sum of m terms, where an ignored term is 0, and 1 for
    the mean's division. With class weights, each term is a product, and the mean's
    divisor is a second sum."""
    products = m if has_weight else 0
    if reduction == "none":
        return products
    if reduction == "sum":
        return products + m - 1
    return products + m - 1 + (m - 1 if has_weight else 0) + 1


def backward_flops(m, reduction="mean", has_weight=False):
    """Return 1 FLOP for the mean's division, and a product per row with class weights;
    the rest is moved."""
    return (1 if reduction == "mean" else 0) + (m if has_weight else 0)


def losses(x: Array, t: Array, weight: Array | None = None) -> Array:
    """Return each row's loss: minus the entry of ``x[*, V]`` at the target ``t[*]``,
    times the target's class weight, and 0 where the target is −1. Half precision is
    returned in float32."""
    each = -widened(pick(x, t))
    each = each if weight is None else each * weights_at(weight, t)
    return namespace(x).where(t < 0, 0.0, each)


def reduced(losses: Array, divisor: Any, reduction: str = "mean") -> Array:
    """Return the sum of the rows' losses over ``divisor``, or the losses themselves if
    ``reduction`` is "none". In half precision, a sum over many rows overflows or
    stalls."""
    if reduction == "none":
        return losses
    total = namespace(losses).sum(losses)
    return total if divisor is None else total / divisor


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"ignore_index": 1}, {"reduction": "sum"}, {"reduction": "none"})
LETTERS = {"weight": "c"}
PLACES = ("loss",)
AUTOCAST = "float32"
