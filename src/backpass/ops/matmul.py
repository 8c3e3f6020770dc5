r"""The product of two activations, batched: attention's scores and its weighted values.

.. math:: Y = A B, \qquad \bar{A} = \bar{Y} B^\top, \quad \bar{B} = A^\top \bar{Y}

Derived on the page ``operations/linear``. Leading axes broadcast; the gradient of a
factor that is used several times is summed over its uses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backpass.contract.arrays import Array, Gradients, sum_to_shape, transpose
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted

SHAPES = "a[*a, s, n], b[*b, n, p] -> y[*, s, p]"


class Saved(NamedTuple):
    """Both factors. Each is saved only if the gradient of the other is wanted."""

    a: Array | Outline  # [*a, s, n]
    b: Array | Outline  # [*b, n, p]
    wanted: tuple[str, ...]


NEEDS = {"a": "b", "b": "a"}


def forward(a: Array, b: Array, *, wanted: Wanted = None) -> tuple[Array, Saved]:
    """Return ``y[*, s, p]``, the matrix product of ``a[*a, s, n]`` and ``b[*b, n, p]``.
    ``*a`` and ``*b`` broadcast to ``*``.

    Raises TypeError if an input is not a floating-point array or if inputs differ in
    library, device, or dtype; ValueError if shapes do not fit.
    """
    check_inputs(SHAPES, a=a, b=b)
    wanted = check_wanted(SHAPES, wanted)
    return a @ b, needed(Saved(a, b, wanted), NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``da[*a, s, n]`` and ``db[*b, n, p]`` from ``dy[*, s, p]``."""
    a, b, wanted = narrowed(saved, Saved, wanted)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    check_cotangent(dy, (*batch, a.shape[-2], b.shape[-1]), like=a)

    # In the forward pass a factor may have been multiplied by several matrices; so now
    # its gradient is summed over them.
    da = sum_to_shape(dy @ transpose(b), a.shape) if "a" in wanted else None
    db = sum_to_shape(transpose(a) @ dy, b.shape) if "b" in wanted else None
    return da, db


def forward_flops(m, s, n, p):
    """Return the FLOPs of m products, each of s·p dot products of n terms."""
    return m * s * p * (2 * n - 1)


def backward_flops(m, m_a, m_b, s, n, p, wanted=None):
    """Return the FLOPs of two products for each product of the forward, and of the sums
    that undo the broadcasting."""
    da = m * s * n * (2 * p - 1) + (m - m_a) * s * n
    db = m * n * p * (2 * s - 1) + (m - m_b) * n * p
    return sum_wanted(wanted, {"a": da, "b": db})


# Facts for checks, pages and functional: see backpass.ops.
PLACES = ("scores", "weighted values")
AUTOCAST = "matmul"
