"""Softcap in Triton: the functions of ``backpass.ops.softcap``, where the formulas are.

Derived on the page ``operations/activations``. Triton has no tanh. Near 0,
where 1 − 2/(e^2u + 1) would be the difference of two equal numbers, the kernel computes
it as a quotient of polynomials, which is right to the last digits of float64 there.
"""

import math
from numbers import Real

import triton
import triton.language as tl

from backpass.kernels import elementwise

SHAPES = "x[*] -> y[*]"


@triton.jit
def tanh(u):
    """tanh(u): Padé's approximant of degree 7 where |u| is below 1/2."""
    s = u * u
    odd = u * (135135.0 + s * (17325.0 + s * (378.0 + s)))
    even = 135135.0 + s * (62370.0 + s * (3150.0 + s * 28.0))
    return tl.where(s < 0.25, odd / even, 1.0 - 2.0 / (tl.exp(2.0 * u) + 1.0))


@triton.jit
def odd_tanh(u):
    """tanh(u) from |u|. For negative u, 2/(e^2u + 1) is near 2, and its error is up to
    twice that of the result. The attention kernels lack the registers for this."""
    t = tanh(tl.abs(u))
    return tl.where(u < 0.0, -t, t)


@triton.jit
def _forward(x, cap):
    """y = c tanh(x/c)"""
    return cap * odd_tanh(x / cap)


@triton.jit
def _backward(dy, x, cap):
    """dx = dy (1 − tanh²(x/c))"""
    t = odd_tanh(x / cap)
    return dy * (1.0 - t * t)


def _formulas(*, cap: float):
    """``cap`` is a positive number; another value raises TypeError or ValueError."""
    if not isinstance(cap, Real):
        raise TypeError(f"cap: expected a positive number; got {type(cap).__name__}")
    if not 0 < cap < math.inf:
        raise ValueError(f"cap: expected a positive number; got {cap}")
    return _forward, _backward


forward, backward, launches, Saved = elementwise.declare(
    SHAPES, _formulas, examples=({"cap": 30.0},)
)
