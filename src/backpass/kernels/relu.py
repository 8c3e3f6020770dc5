"""ReLU in Triton.

Formulas: ``backpass.ops.relu``. Derived on the page ``operations/activations``. It
saves y, which is positive where x was.
"""

import triton
import triton.language as tl

from backpass.kernels import elementwise

SHAPES = "x[*] -> y[*]"


@triton.jit
def _forward(x):
    """y = max(0, x), NaN where x is"""
    return tl.where(x <= 0.0, 0.0, x)


@triton.jit
def _backward(dy, y):
    """dx = dy where y is above 0 or NaN"""
    return tl.where(y <= 0.0, 0.0, dy)


forward, backward, launches, Saved = elementwise.declare(SHAPES, (_forward, _backward))
