r"""SiLU in Triton: the functions of ``backpass.ops.silu``, element by element.

.. math:: y_i = \frac{x_i}{1 + e^{- x_i}}, \qquad
          \bar{x}_i = \bar{y}_i \frac{1}{1 + e^{- x_i}} \Big( 1 + x_i \frac{e^{- x_i}}{1 + e^{- x_i}} \Big)

Derived on the page ``operations/activations``. A program holds a piece of x, and of dy, in registers: each
element is read once and written once, by one program, so that two runs agree to the last bit. The sigmoid is
computed again in the backward: it costs less than reading it would. Arithmetic is in float32 (float64 for
float64), whatever is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels import elementwise
from backpass.kernels.elementwise import bounded, bounded_below
from backpass.kernels.launch import Launch, check_tensor, check_tensors, to_be_filled
from backpass.shapes import check_cotangent, check_saved

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """What went in, as it was given."""

    x: torch.Tensor  # [*]


def forward(x: torch.Tensor) -> tuple[torch.Tensor, Saved]:
    """``y[*]``, contiguous, of an ``x[*]`` of any strides.

    Raises TypeError when ``x`` is no floating-point tensor on a device where kernels run.
    """
    check_tensors(SHAPES, x=x)

    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if to_be_filled(y):
        elementwise.of_one(_forward, x, y).run()
    return y, Saved(x)


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """``dx[*]``, contiguous, from a ``dy[*]`` of any strides."""
    (x,) = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, x.shape, like=x)

    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if to_be_filled(dx):
        elementwise.of_two(_backward, dy, x, dx).run()
    return dx


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Both kernels at telling shapes, named, on tensors without memory: to be compiled, not run."""
    for case, x, y in elementwise.telling_shapes(dtype):
        yield case, elementwise.of_one(_forward, x, y)
        yield case, elementwise.of_two(_backward, x, x, y)


@triton.jit
def sigmoids(x):
    """σ(x) and σ(−x) = 1 − σ(x), neither by a subtraction, and from an exponential that cannot overflow."""
    small = tl.exp(-tl.abs(x))  # at most 1
    of_larger = 1.0 / (1.0 + small)
    of_smaller = small * of_larger
    positive = x >= 0.0
    return tl.where(positive, of_larger, of_smaller), tl.where(positive, of_smaller, of_larger)


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
