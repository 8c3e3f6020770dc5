r"""SwiGLU's gate: one array, u, times the SiLU of another, g, element by element.

.. math:: \sigma_i = \frac{1}{1 + e^{-g_i}}, \quad
          y_i = g_i \sigma_i u_i, \qquad
          \bar{g}_i = \bar{y}_i u_i \sigma_i \big( 1 + g_i (1 - \sigma_i) \big), \quad
          \bar{u}_i = \bar{y}_i g_i \sigma_i

Derived on the page ``operations/activations``. The two arrays are projections of one
input, which ``feed_forward`` makes. Numbers of 16 bits are computed in float32 and
rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.arrays import Array, as_type_of, bounded, bounded_below, sigmoid, widened
from backpass.shapes import Outline, check_cotangent, check_inputs, check_saved
from backpass.wanted import Wanted, check_narrowed, check_wanted, kept, sum_wanted

SHAPES = "g[*], u[*] -> y[*]"


class Saved(NamedTuple):
    """Both factors. SiLU(g) is 6 FLOPs from g, fewer than the bytes of a third array
    are worth."""

    g: Array | Outline  # [*]
    u: Array | Outline  # [*]
    sigmoid: Array | Outline | None  # [*], where forward was told to keep it
    wanted: tuple[str, ...]


def forward(
    g: Array, u: Array, *, keep_sigmoid: bool = False, wanted: Wanted = None
) -> tuple[Array, Saved]:
    """``y[*]``, ``u[*]`` times the SiLU of ``g[*]``. ``keep_sigmoid`` saves the sigmoid
    of ``g`` as a third array, so that the backward need not compute it again.

    Raises TypeError for what is no floating-point array or of differing library, device
    or dtype, ValueError when the shapes differ (nothing is broadcast).
    """
    check_inputs(SHAPES, g=g, u=u)
    wanted = check_wanted(SHAPES, wanted)
    wide = widened(g)
    gate = sigmoid(wide)
    y = bounded_below(wide) * gate * widened(u)
    gate = as_type_of(gate, g) if keep_sigmoid else None
    return as_type_of(y, g), Saved(
        kept(g, wanted), kept(u, "g" in wanted), kept(gate, wanted), wanted
    )


def backward(
    dy: Array, saved: Saved, *, wanted: Wanted = None
) -> tuple[Array | None, Array | None]:
    """``dg[*]`` and ``du[*]`` from ``dy[*]``."""
    g, u, gate, _ = check_saved(saved, Saved)
    check_cotangent(dy, g.shape, like=g)
    wanted = check_narrowed(wanted, saved)
    if not wanted:
        return None, None
    g = widened(g)
    gate = sigmoid(g) if gate is None else widened(gate)

    # Each factor's gradient is dy times the other factor; that of SiLU(g) then passes
    # SiLU's slope.
    dg = du = None
    if "g" in wanted:
        slope = gate * (1 + bounded(g) * (1 - gate))
        dg = as_type_of(widened(dy) * widened(u) * slope, dy)
    if "u" in wanted:
        du = as_type_of(widened(dy) * (bounded_below(g) * gate), dy)
    return dg, du


def forward_flops(m):
    """The sigmoid's 5, and a product with g and with u."""
    return 7 * m


def backward_flops(m, keep_sigmoid=False, wanted=None):
    """6 for dg and 2 for du, and the sigmoid's 5 where it was not kept."""
    sigmoid = 0 if keep_sigmoid else 5 * m
    return sum_wanted(wanted, {"g u": sigmoid, "g": 6 * m, "u": 2 * m})


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"keep_sigmoid": True})
PLACES = ("activation",)
AUTOCAST = "widest"
