"""The logarithm of softmax over the last axis, in Triton.

Formulas: ``backpass.ops.log_softmax``. Derived on the page
``operations/cross_entropy``. ``softmax_rows`` says how rows are read and written.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels import softmax_rows
from backpass.kernels.softmax_rows import ROW_BYTES, SHAPES  # noqa: F401 - for others


class Saved(NamedTuple):
    """The log-probabilities alone, contiguous: their exponentials are the weights."""

    y: torch.Tensor  # [*, n]


@triton.jit
def _y(x, top, total):
    """y = x − top − log Σ exp(x − top)"""
    return (x - top) - tl.log(total)


@triton.jit
def _weight(y):
    """a = exp(y)"""
    return tl.exp(y)


@triton.jit
def _summand(dy, a):
    """dy"""
    return dy


@triton.jit
def _dx(dy, a, total):
    """dx = dy − a Σ dy"""
    return dy - a * total


forward, backward, launches = softmax_rows.declare(Saved, _y, _summand, _dx, _weight)
