"""Softmax over the last axis, in Triton.

Formulas: ``backpass.ops.softmax``. Derived, and timed, on the page
``operations/softmax``. ``softmax_rows`` says how rows are read and written.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels import softmax_rows
from backpass.kernels.softmax_rows import ROW_BYTES, SHAPES  # noqa: F401 - for others


class Saved(NamedTuple):
    """The weights alone, contiguous: the backward never needs the scores."""

    y: torch.Tensor  # [*, n]


@triton.jit
def _y(x, top, total):
    """y = exp(x − top) / Σ exp(x − top)"""
    return tl.exp(x - top) / total


@triton.jit
def _summand(dy, a):
    """dy a, where the weights a are y"""
    return dy * a


@triton.jit
def _dx(dy, a, total):
    """dx = a (dy − Σ dy a)"""
    return a * (dy - total)


forward, backward, launches = softmax_rows.declare(Saved, _y, _summand, _dx)
