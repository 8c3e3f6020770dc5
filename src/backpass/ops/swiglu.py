r"""SwiGLU's gate: an array u times the SiLU of an array g, element by element.

.. math:: \sigma_i = \frac{1}{1 + e^{-g_i}}, \quad
          y_i = g_i \sigma_i u_i, \qquad
          \bar{g}_i = \bar{y}_i u_i \sigma_i \big( 1 + g_i (1 - \sigma_i) \big), \quad
          \bar{u}_i = \bar{y}_i g_i \sigma_i

Derived on the page ``operations/activations``. The two arrays are projections of the
same input, which ``feed_forward`` computes. Half precision is computed in float32 and
rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_type_of,
    near_zero,
    not_far_below,
    sigmoid,
    widened,
)
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.values import check_bool
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted

SHAPES = "g[*], u[*] -> y[*]"


class Saved(NamedTuple):
    """Both factors. Recomputing SiLU(g) takes 6 FLOPs per element; saving it would take
    a third array."""

    g: Array | Outline  # [*]
    u: Array | Outline  # [*]
    sigmoid: Array | Outline | None  # [*], with keep_sigmoid
    wanted: tuple[str, ...]


NEEDS = {"g": "g u", "u": "g", "sigmoid": "g u"}


def forward(
    g: Array, u: Array, *, keep_sigmoid: bool = False, wanted: Wanted = None
) -> tuple[Array, Saved]:
    """Return ``y[*]``: ``u[*]`` times the SiLU of ``g[*]``. ``keep_sigmoid`` saves the
    sigmoid of ``g`` as a third array, so that the backward does not recompute it.

    Raises TypeError if an input is not a floating-point array, if inputs differ in
    library, device, or dtype, or if ``keep_sigmoid`` is not a bool; ValueError if
    shapes differ (nothing is broadcast).
    """
    check_inputs(SHAPES, g=g, u=u)
    check_bool(keep_sigmoid=keep_sigmoid)
    wanted = check_wanted(SHAPES, wanted)
    wide = widened(g)
    gate = sigmoid(wide)
    y = not_far_below(wide)
    y *= gate
    y *= widened(u)
    gate = as_type_of(gate, g) if keep_sigmoid else None
    return as_type_of(y, g), needed(Saved(g, u, gate, wanted), NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dg[*]`` and ``du[*]`` from ``dy[*]``."""
    g, u, gate, wanted = narrowed(saved, Saved, wanted)
    check_cotangent(dy, g.shape, like=g)
    if not wanted:
        return None, None
    g = widened(g)
    gate = sigmoid(g) if gate is None else widened(gate)

    # Each factor's gradient is dy times the other factor; SiLU(g)'s is then multiplied
    # by SiLU's slope.
    dg = du = None
    if "g" in wanted:
        slope = 1 - gate
        slope *= near_zero(g)
        slope += 1
        slope *= gate
        slope *= widened(u)
        slope *= widened(dy)
        dg = as_type_of(slope, dy)
    if "u" in wanted:
        silu = not_far_below(g)
        silu *= gate
        silu *= widened(dy)
        du = as_type_of(silu, dy)
    return dg, du


def forward_flops(m):
    """Return 7 FLOPs per element: 5 for the sigmoid, and a product with g and one with
    u."""
    return 7 * m


def backward_flops(m, keep_sigmoid=False, wanted=None):
    """Return 6 FLOPs per element for dg and 2 for du, and 5 for the sigmoid if it was
    not saved."""
    sigmoid = 0 if keep_sigmoid else 5 * m
    return sum_wanted(wanted, {"g u": sigmoid, "g": 6 * m, "u": 2 * m})


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"keep_sigmoid": True})
PLACES = ("activation",)
AUTOCAST = "widest"
