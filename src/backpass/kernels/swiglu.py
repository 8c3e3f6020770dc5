"""SwiGLU's gate in Triton.

Formulas: ``backpass.ops.swiglu``. Derived on the page ``operations/activations``. The
backward reads g, u and dy once for both gradients, and recomputes the sigmoid, which
costs less than reading it would. The halves of one projection are read in place,
without a copy.
"""

import triton
import triton.language as tl  # noqa: F401 - Triton's interpreter looks for it here

from backpass.kernels import elementwise
from backpass.kernels.elementwise import bounded, bounded_below
from backpass.kernels.silu import sigmoids

SHAPES = "g[*], u[*] -> y[*]"


@triton.jit
def _forward(g, u):
    """y = g σ(g) u, 0 where g is −∞"""
    sigmoid, _ = sigmoids(g)
    return bounded_below(g) * sigmoid * u


@triton.jit
def _backward(dy, g, u):
    """dg = dy u σ(g) (1 + g σ(−g)), du = dy g σ(g)"""
    sigmoid, rest = sigmoids(g)
    silu = bounded_below(g) * sigmoid
    g = bounded(g)
    return dy * u * (sigmoid * (1.0 + g * rest)), dy * silu


def _formulas(*, keep_sigmoid: bool = False):
    """``keep_sigmoid`` has no effect: the backward always recomputes the sigmoid."""
    return _forward, _backward


forward, backward, launches, Saved = elementwise.declare(SHAPES, _formulas)
