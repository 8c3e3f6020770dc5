r"""A transformer's feed-forward block: widen each row, pass it through an activation or
a gate, and narrow it again.

.. math:: U = X W_{\text{up}} + \mathbf{1}_m b_{\text{up}}^\top, \quad
          G = X W_{\text{gate}} + \mathbf{1}_m b_{\text{gate}}^\top, \quad
          S_{ij} = \frac{1}{1 + e^{-G_{ij}}}, \quad
          A_{ij} = G_{ij} S_{ij} U_{ij}, \quad
          Y = A W_{\text{down}} + \mathbf{1}_m b_{\text{down}}^\top, \qquad
          \bar{W}_{\text{down}} = A^\top \bar{Y}, \quad
          \bar{b}_{\text{down}} = \bar{Y}^\top \mathbf{1}_m, \quad
          \bar{A} = \bar{Y} W_{\text{down}}^\top, \quad
          \bar{U}_{ij} = \bar{A}_{ij} G_{ij} S_{ij}, \quad
          \bar{G}_{ij} = \bar{A}_{ij} U_{ij} S_{ij}
              \big( 1 + G_{ij} (1 - S_{ij}) \big), \quad
          \bar{W}_{\text{up}} = X^\top \bar{U}, \quad
          \bar{b}_{\text{up}} = \bar{U}^\top \mathbf{1}_m, \quad
          \bar{W}_{\text{gate}} = X^\top \bar{G}, \quad
          \bar{b}_{\text{gate}} = \bar{G}^\top \mathbf{1}_m, \quad
          \bar{X} = \bar{U} W_{\text{up}}^\top + \bar{G} W_{\text{gate}}^\top

Derived on the page ``operations/feed_forward``. The formulas are those of
``activation="swiglu"``. With "relu", "gelu" or "gelu_tanh" there is no G: A is that
function of U, and X's gradient has only the term of U.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_activation
from backpass.contract.wanted import (
    Wanted,
    check_wanted,
    gradients_of,
    narrowed,
    part_of,
)
from backpass.ops import gelu, linear, relu, swiglu

SHAPES = "x[*, h], w_up[h, f], w_down[f, h], b_up[f]?, b_down[h]?, w_gate[h, f]?, b_gate[f]? -> y[*, h]"
PARAMETERS = ("w_up", "w_down", "b_up", "b_down", "w_gate", "b_gate")

FUNCTIONS = {
    "relu": (relu, {}),
    "gelu": (gelu, {}),
    "gelu_tanh": (gelu, {"approximate": "tanh"}),
}


class Saved(NamedTuple):
    """What each part saved, without duplicates: the projections share x, and ReLU's
    output is the input of the last projection. There are three arrays of width f with a
    gate, two with GELU, and one with ReLU."""

    activation: str
    up: linear.Saved  # x[*, h]
    gate: linear.Saved | None  # the same x
    activated: Any  # ReLU: a[*, f]; GELU: u[*, f]; with a gate u[*, f] and g[*, f]
    down: linear.Saved  # a[*, f]
    wanted: tuple[str, ...]


def forward(
    x: Array,
    w_up: Array,
    w_down: Array,
    b_up: Array | None = None,
    b_down: Array | None = None,
    w_gate: Array | None = None,
    b_gate: Array | None = None,
    *,
    activation: str = "gelu",
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, h]`` from ``x[*, h]``, by way of rows of width f.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``; ValueError if shapes do not fit,
    ``activation`` is unknown, "swiglu" comes without ``w_gate``, or another activation
    with ``w_gate`` or ``b_gate``.
    """
    check_inputs(
        SHAPES,
        x=x,
        w_up=w_up,
        w_down=w_down,
        b_up=b_up,
        b_down=b_down,
        w_gate=w_gate,
        b_gate=b_gate,
    )
    check_activation(activation, w_gate, b_gate)
    wanted = check_wanted(
        SHAPES, wanted, b_up=b_up, b_down=b_down, w_gate=w_gate, b_gate=b_gate
    )
    of_up, of_gate, of_both, of_down = wanted_in_parts(wanted)

    u, up = linear.forward(x, w_up, b_up, wanted=of_up)
    if activation == "swiglu":
        g, gate = linear.forward(x, w_gate, b_gate, wanted=of_gate)
        a, activated = swiglu.forward(g, u, wanted=of_both)
    else:
        function, options = FUNCTIONS[activation]
        gate = None
        a, activated = function.forward(u, **options)
    y, down = linear.forward(a, w_down, b_down, wanted=of_down)
    needed = activated if of_both else None
    return y, Saved(activation, up, gate, needed, down, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, h]`` and the gradients of weights and biases, in forward's order,
    from ``dy[*, h]``. The gradient of an input that was not given is None."""
    activation, up, gate, activated, down, wanted = narrowed(saved, Saved, wanted)
    of_up, of_gate, of_both, of_down = wanted_in_parts(wanted)

    da, dw_down, db_down = linear.backward(dy, down, wanted=of_down)
    if gate is None:
        du = FUNCTIONS[activation][0].backward(da, activated) if of_up else None
        dx, dw_up, db_up = gradients_of(linear, du, up, of_up)
        return dx, dw_up, dw_down, db_up, db_down, None, None

    # In the forward pass x was multiplied by two matrices; so now the gradients that
    # come back through both are added.
    dg, du = gradients_of(swiglu, da, activated, of_both)
    dx, dw_up, db_up = gradients_of(linear, du, up, of_up)
    dx_gate, dw_gate, db_gate = gradients_of(linear, dg, gate, of_gate)
    dx = dx + dx_gate if "x" in wanted else None
    return dx, dw_up, dw_down, db_up, db_down, dw_gate, db_gate


def wanted_in_parts(wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the first projection, the gate's projection,
    SwiGLU, and the last projection."""
    return [
        part_of(wanted, x="x", w="w_up", b="b_up"),
        part_of(wanted, x="x", w="w_gate", b="b_gate"),
        part_of(wanted, g="x w_gate b_gate", u="x w_up b_up"),
        part_of(wanted, x="x w_up b_up w_gate b_gate", w="w_down", b="b_down"),
    ]


def forward_flops(
    m, h, f, has_b_up=True, has_b_down=True, has_b_gate=True, activation="gelu"
):
    """Return the FLOPs of the projections, three with a gate, and of the activation on
    m·f elements."""
    up, down = (
        linear.forward_flops(m, h, f, has_b_up),
        linear.forward_flops(m, f, h, has_b_down),
    )
    if activation == "swiglu":
        return (
            up
            + down
            + linear.forward_flops(m, h, f, has_b_gate)
            + swiglu.forward_flops(m * f)
        )
    function, options = FUNCTIONS[activation]
    return up + down + function.forward_flops(m * f, **options)


def backward_flops(
    m,
    h,
    f,
    has_b_up=True,
    has_b_down=True,
    has_b_gate=True,
    activation="gelu",
    wanted=None,
):
    """Return the FLOPs of the same parts' backwards. A gate adds the m·h sums of x's
    two gradients."""
    gated = activation == "swiglu"
    wanted = check_wanted(
        SHAPES,
        wanted,
        b_up=has_b_up,
        b_down=has_b_down,
        w_gate=gated,
        b_gate=gated and has_b_gate,
    )
    of_up, of_gate, of_both, of_down = wanted_in_parts(wanted)
    up = linear.backward_flops(m, h, f, has_b_up, of_up)
    down = linear.backward_flops(m, f, h, has_b_down, of_down)
    if gated:
        gate = linear.backward_flops(m, h, f, has_b_gate, of_gate)
        sums = m * h if "x" in wanted else 0
        return up + down + gate + sums + swiglu.backward_flops(m * f, wanted=of_both)
    function, options = FUNCTIONS[activation]
    return up + down + (function.backward_flops(m * f, **options) if of_up else 0)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"activation": "swiglu"},)
LEFT_OUT = {"w_gate": (("b_gate",), {"activation": "gelu"})}
FORMULA_OPTIONS = {"activation": "swiglu"}
PLACES = ("up projection", "activation", "down projection")
AUTOCAST = "matmul"
