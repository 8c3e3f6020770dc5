r"""Cross-entropy of scores: log-softmax and negative log-likelihood in one, with a
backward of one step. Class weights and label smoothing are options.

.. math:: q_{ij} = c_j \Big( (1 - \epsilon) \, t_{ij}
              + \frac{\epsilon}{V} \Big( \sum_k t_{ik} \Big) \Big), \quad
          y = \frac{
              \sum_{i,j} q_{ij} \Big( \log \Big( \sum_k e^{x_{ik}} \Big) - x_{ij} \Big)
              }{\sum_{i,j} t_{ij} c_j}, \qquad
          \bar{x}_{ij} = \Big( \frac{e^{x_{ij}}}{\sum_k e^{x_{ik}}}
              \Big( \sum_k q_{ik} \Big) - q_{ij} \Big)
                         \frac{\bar{y}}{\sum_{k,l} t_{kl} c_l}

Derived on the page ``operations/cross_entropy``. In the formulas a target is a row:
``t_ij`` is 1 if j is the target of row i and 0 otherwise. An ignored row is 0
throughout, so ``Σ_k t_ik`` is 1 or 0. ``c`` is ``weight``, the weight of each class,
which is a constant, and ``ε`` is ``label_smoothing``. Without either, ``q`` is ``t``.
With ``reduction="sum"`` nothing is divided, and with "none" the rows' losses are not
summed either. If all targets are ignored, the mean is NaN and the gradient 0, as in
PyTorch. A row of −∞ has loss ∞, and loss and gradient 0 if it is ignored; PyTorch's
loss is NaN if the row counts, and its gradient in both cases. Half precision is
computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    as_matrix,
    as_type_of,
    is_array,
    namespace,
    widened,
)
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved
from backpass.contract.values import (
    check_label_smoothing,
    check_targets,
    shape_of_loss,
    weights_at,
)
from backpass.ops import log_softmax, nll
from backpass.ops._tiling import less_at

SHAPES = "x[*, V>0], t[*]:int, weight[V]? -> y[]"
CONSTANTS = ("weight",)
POSITIVE = ("weight",)
UNREDUCED = {"reduction": "none"}


class Saved(NamedTuple):
    """The log-probabilities, whose exponentials are softmax, and the position of each
    row's target."""

    p: Array  # [*, V]
    t: Array  # [*], −1 where ignored
    weight: Array | None  # [V]
    divisor: float | Array | None  # on a device or with class weights, []
    reduction: str
    label_smoothing: float


def forward(
    x: Array,
    t: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[Array, Saved]:
    """Return the loss ``y[]`` of the scores ``x[*, V]`` at the targets ``t[*]``; with
    ``reduction="none"`` the loss ``y[*]`` of each row.

    A row's loss is multiplied by ``weight[V]`` of its target, and the mean is divided
    by the sum of these weights. ``label_smoothing`` is the share of a target that is
    spread evenly over all V classes. A target equal to ``ignore_index`` counts neither
    in the sum nor in the mean's divisor; its own loss is 0.

    Raises TypeError unless ``x`` and ``weight`` are floating-point arrays of one dtype
    and ``t`` is an integer array, all of one library and device, or if an option has
    the wrong type; ValueError if shapes do not fit, ``reduction`` is not "mean", "sum",
    or "none", or ``label_smoothing`` is not from 0 to 1; IndexError for a target
    outside the V classes.
    """
    if is_array(t) and namespace(t).isdtype(t.dtype, "real floating"):
        raise TypeError(
            f"t: expected integers; got dtype {t.dtype}; targets that are distributions are for "
            "soft_cross_entropy"
        )
    check_inputs(SHAPES, x=x, t=t, weight=weight)
    check_label_smoothing(label_smoothing)
    t, divisor = check_targets(t, x.shape[-1], ignore_index, reduction, weight)
    p, _ = log_softmax.forward(widened(x))
    losses = nll.losses(p, t, weight)
    if label_smoothing:
        of_all = label_smoothing * _mean_of_classes(p, t, weight)
        losses = (1 - label_smoothing) * losses + of_all
    return as_type_of(nll.reduced(losses, divisor, reduction), x), Saved(
        as_type_of(p, x), t, weight, divisor, reduction, label_smoothing
    )


def _mean_of_classes(p: Array, t: Array, weight: Array | None) -> Array:
    """Return the mean of the losses that each row would have at each of the V targets,
    ``[*]``, and 0 where the target is −1."""
    xp, each = namespace(p), p if weight is None else p * widened(weight)
    return xp.where(t < 0, 0.0, -xp.sum(each, axis=-1) / p.shape[-1])


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, V]`` from ``dy[]``, or from ``dy[*]`` if the loss was not
    reduced."""
    p, t, weight, divisor, reduction, label_smoothing = check_saved(saved, Saved)
    xp = check_cotangent(dy, shape_of_loss(t, reduction), like=p)
    each = widened(dy) if divisor is None else widened(dy) / divisor
    each = xp.reshape(xp.where(t < 0, 0.0, each), (-1,))  # [m]
    t = xp.reshape(t, (-1,))

    # In the forward pass a row added to the loss the logarithm of the sum over all its
    # scores, less the target's own score; so now every score gets its weight back, the
    # target's less 1. A row that was ignored added nothing.
    dx = xp.exp(widened(as_matrix(p)))  # [m, V]
    if label_smoothing:
        dx = _less_smoothed(dx, t, weight, label_smoothing)
    else:
        dx = less_at(dx, t)
        each = each if weight is None else each * weights_at(weight, t)
    dx *= each[:, None]
    return as_type_of(xp.reshape(dx, p.shape), p)


def _less_smoothed(
    softmax: Array, t: Array, weight: Array | None, label_smoothing: float
) -> Array:
    """Return ``softmax[m, V]`` times the sum of each row's target, less the target.

    A target is a row: most of it is at the class ``t[m]``, the rest is spread over all.
    """
    xp, (_, V) = namespace(softmax), softmax.shape
    if weight is None:  # a row sums to 1
        spread = label_smoothing * xp.ones_like(softmax[:1, :1]) / V  # [1, 1]
        return less_at(softmax - spread, t, 1 - label_smoothing)
    spread = label_smoothing * widened(weight) / V  # [V]
    at_class = (1 - label_smoothing) * weights_at(weight, t)[:, None]  # [m, 1]
    return less_at(softmax * (at_class + xp.sum(spread)) - spread, t, at_class)


def forward_flops(m, V, reduction="mean", label_smoothing=0.0, has_weight=False):
    """Return the FLOPs of log-softmax and of the negative log-likelihood. Smoothing
    adds, for each row, the mean over the classes, two products, and a sum."""
    products = m * V if has_weight else 0
    smoothing = m * (V + 3) + products if label_smoothing else 0
    likelihood = nll.forward_flops(m, reduction, has_weight)
    return log_softmax.forward_flops(m, V) + likelihood + smoothing


def backward_flops(m, V, reduction="mean", label_smoothing=0.0, has_weight=False):
    """Return 2V + 1 FLOPs per row: exponentiate, subtract 1 at the target, multiply.
    The mean adds one division, class weights a product per row. Smoothing subtracts
    once more at every class; with class weights, it also multiplies there by the sum
    of the row's target."""
    flops = m * (2 * V + 1) + nll.backward_flops(m, reduction, has_weight)
    if not label_smoothing:
        return flops
    if not has_weight:
        return flops + m * V + 2
    return flops + m * (2 * V + 1) + 3 * V - 1


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = (
    {"ignore_index": 1},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1, "reduction": "none"},
    {"label_smoothing": 0.25, "weight": None},
)
LETTERS = {"weight": "c", "label_smoothing": r"\epsilon"}
PLACES = ("loss",)
AUTOCAST = "float32"
