"""SiLU in Triton.

Formulas: ``backpass.ops.silu``. Derived on the page ``operations/activations``. The
backward recomputes the sigmoid, which costs less than reading it would.
"""

import triton
import triton.language as tl

from backpass.kernels import elementwise
from backpass.kernels.elementwise import bounded, bounded_below

SHAPES = "x[*] -> y[*]"


@triton.jit
def sigmoids(x):
    """σ(x) and σ(−x) = 1 − σ(x), neither by a subtraction, and from an exponential that
    cannot overflow."""
    small = tl.exp(-tl.abs(x))  # at most 1
    of_larger = 1.0 / (1.0 + small)
    of_smaller = small * of_larger
    positive = x >= 0.0
    return tl.where(positive, of_larger, of_smaller), tl.where(
        positive, of_smaller, of_larger
    )


@triton.jit
def _forward(x):
    """y = x σ(x), 0 at −∞"""
    sigmoid, _ = sigmoids(x)
    return bounded_below(x) * sigmoid


@triton.jit
def _backward(dy, x):
    """dx = dy σ(x) (1 + x σ(−x)), dy or 0 at ±∞"""
    sigmoid, rest = sigmoids(x)
    x = bounded(x)
    return dy * (sigmoid * (1.0 + x * rest))


forward, backward, launches, Saved = elementwise.declare(SHAPES, (_forward, _backward))
