"""GELU in Triton.

Formulas: ``backpass.ops.gelu``. Derived on the page ``operations/activations``, as is
the form with a tanh in place of erf. In that form the kernel computes no tanh: ½ (1 +
tanh(z/2)) is σ(z), which loses no digits in either tail.
"""

import math

import triton
import triton.language as tl

from backpass.kernels import elementwise
from backpass.kernels.elementwise import bounded, bounded_below
from backpass.kernels.silu import sigmoids

SHAPES = "x[*] -> y[*]"

ROOT_HALF = tl.constexpr(math.sqrt(1 / 2))
PEAK = tl.constexpr(1 / math.sqrt(2 * math.pi))  # of the normal density, at 0
SLOPE = tl.constexpr(2 * math.sqrt(2 / math.pi))
CUBIC = tl.constexpr(0.044715)


@triton.jit
def _forward_erf(x):
    """y = x Φ(x), Φ the normal distribution; 0 at −∞"""
    return bounded_below(x) * (0.5 + 0.5 * tl.erf(x * ROOT_HALF))


@triton.jit
def _backward_erf(dy, x):
    """dx = dy (Φ(x) + x φ(x)), φ the normal density"""
    below = 0.5 + 0.5 * tl.erf(x * ROOT_HALF)
    density = tl.exp(-0.5 * x * x) * PEAK
    x = bounded(x)
    return dy * (below + x * density)


@triton.jit
def _forward_tanh(x):
    """y = x σ(z), z = 2 √(2/π) (x + 0.044715 x³), where σ(z) is ½ (1 + tanh(z/2)); 0 at
    −∞."""
    square = bounded(x * x)  # where it overflows, σ(z) is 0 or 1 without the cubic term
    sigmoid, _ = sigmoids(x * SLOPE * (1.0 + square * CUBIC))
    return bounded_below(x) * sigmoid


@triton.jit
def _backward_tanh(dy, x):
    """dx = dy (σ(z) + x σ(z) σ(−z) z′)"""
    square = bounded(x * x)
    sigmoid, rest = sigmoids(x * SLOPE * (1.0 + square * CUBIC))
    slope = (1.0 + square * 3.0 * CUBIC) * SLOPE
    x = bounded(x)
    return dy * (sigmoid + x * (sigmoid * rest) * slope)


FORMS = {"none": (_forward_erf, _backward_erf), "tanh": (_forward_tanh, _backward_tanh)}


def _formulas(*, approximate: str = "none"):
    """Choose the formulas. Raises ValueError for an unknown ``approximate``."""
    if approximate not in FORMS:
        raise ValueError(f"approximate: expected 'none' or 'tanh'; got {approximate!r}")
    return FORMS[approximate]


forward, backward, launches, Saved = elementwise.declare(
    SHAPES, _formulas, examples=[{"approximate": form} for form in FORMS]
)
