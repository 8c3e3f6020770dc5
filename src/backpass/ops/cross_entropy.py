r"""Cross-entropy of scores: log-softmax and negative log-likelihood in one, with a
backward of one step.

.. math:: y = \frac{
              \sum_{i,j} t_{ij} \Big( \log \Big( \sum_k e^{x_{ik}} \Big) - x_{ij} \Big)
              }{\sum_{i,j} t_{ij}}, \qquad
          \bar{x}_{ij} = \Big( \frac{e^{x_{ij}}}{\sum_k e^{x_{ik}}}
              \Big( \sum_k t_{ik} \Big) - t_{ij} \Big)
                         \frac{\bar{y}}{\sum_{k,l} t_{kl}}

Derived on the page ``operations/cross_entropy``. In the formulas a target is a row:
``t_ij`` is 1 if j is the target of row i and 0 otherwise. An ignored row is 0
throughout, so ``Σ_k t_ik`` is 1 or 0. With ``reduction="sum"`` nothing is divided. If
all targets are ignored, the mean is NaN and the gradient 0, as in PyTorch. A row of −∞
has loss ∞, and loss and gradient 0 if it is ignored; PyTorch's loss is NaN if the row
counts, and its gradient in both cases. Half precision is computed in float32 and
rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.arrays import (
    Array,
    as_matrix,
    as_type_of,
    is_array,
    namespace,
    widened,
)
from backpass.ops import log_softmax, nll
from backpass.ops._tiling import less_one_at
from backpass.shapes import check_cotangent, check_inputs, check_saved
from backpass.values import check_targets

SHAPES = "x[*, V>0], t[*]:int -> y[]"


class Saved(NamedTuple):
    """The log-probabilities, whose exponentials are softmax, and the position of each
    row's target."""

    p: Array  # [*, V]
    t: Array  # [*], −1 where ignored
    divisor: float | None


def forward(
    x: Array, t: Array, *, ignore_index: int = -100, reduction: str = "mean"
) -> tuple[Array, Saved]:
    """Return the loss ``y[]`` of the scores ``x[*, V]`` at the targets ``t[*]``.

    A target equal to ``ignore_index`` counts neither in the sum nor in the mean's
    divisor. Raises TypeError unless ``x`` is a floating-point and ``t`` an integer
    array of one library and device and ``ignore_index`` is an integer; ValueError if
    shapes do not fit or ``reduction`` is neither "mean" nor "sum"; IndexError for a
    target outside the V classes.
    """
    if is_array(t) and namespace(t).isdtype(t.dtype, "real floating"):
        raise TypeError(
            f"t: expected integers; got dtype {t.dtype}; targets that are distributions are for "
            "soft_cross_entropy"
        )
    check_inputs(SHAPES, x=x, t=t)
    t, divisor = check_targets(t, x.shape[-1], ignore_index, reduction)
    p, _ = log_softmax.forward(widened(x))
    return as_type_of(nll.reduced(p, t, divisor), x), Saved(
        as_type_of(p, x), t, divisor
    )


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, V]`` from ``dy[]``."""
    p, t, divisor = check_saved(saved, Saved)
    xp = check_cotangent(dy, (), like=p)

    # In the forward pass a row added to the loss the logarithm of the sum over all its
    # scores, less the target's own score; so now every score gets its weight back, the
    # target's less 1. A row that was ignored added nothing.
    weights = xp.exp(widened(as_matrix(p)))  # [m, V]
    dx = less_one_at(weights, xp.reshape(t, (-1,)))
    dy = widened(dy)
    each = xp.where(t < 0, 0.0, dy if divisor is None else dy / divisor)  # [*]
    dx *= xp.reshape(each, (-1, 1))
    return as_type_of(xp.reshape(dx, p.shape), p)


def forward_flops(m, V, reduction="mean"):
    """Return the FLOPs of log-softmax and of the negative log-likelihood."""
    return log_softmax.forward_flops(m, V) + nll.forward_flops(m, reduction)


def backward_flops(m, V, reduction="mean"):
    """Return 2V + 1 FLOPs per row: exponentiate, subtract 1 at the target, multiply.
    The mean adds one division."""
    return m * (2 * V + 1) + nll.backward_flops(reduction)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"ignore_index": 1}, {"reduction": "sum"})
PLACES = ("loss",)
AUTOCAST = "float32"
