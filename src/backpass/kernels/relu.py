r"""ReLU in Triton: the functions of ``backpass.ops.relu``, element by element.

.. math:: y_i = \max(0, x_i), \qquad \bar{x}_i = [x_i > 0]\,\bar{y}_i

Derived on the page ``operations/activations``. A program holds a piece of x, or of y and dy, in registers: each
element is read once and written once, by one program, so that two runs agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels import elementwise
from backpass.kernels.launch import Launch, check_tensor, check_tensors, to_be_filled
from backpass.shapes import check_cotangent, check_saved

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """The output, positive where x was."""

    y: torch.Tensor  # [*]


def forward(x: torch.Tensor) -> tuple[torch.Tensor, Saved]:
    """``y[*]``, contiguous, of an ``x[*]`` of any strides.

    Raises TypeError when ``x`` is no floating-point tensor on a device where kernels run.
    """
    check_tensors(SHAPES, x=x)

    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if to_be_filled(y):
        elementwise.of_one(_forward, x, y).run()
    return y, Saved(y)


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """``dx[*]``, contiguous, from a ``dy[*]`` of any strides."""
    (y,) = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, y.shape, like=y)

    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if to_be_filled(dx):
        elementwise.of_two(_backward, dy, y, dx).run()
    return dx


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Both kernels at telling shapes, named, on tensors without memory: to be compiled, not run."""
    for case, x, y in elementwise.telling_shapes(dtype):
        yield case, elementwise.of_one(_forward, x, y)
        yield case, elementwise.of_two(_backward, x, x, y)


@triton.jit
def _forward(x):
    """y = max(0, x), NaN where x is"""
    return tl.where(x <= 0.0, 0.0, x)


@triton.jit
def _backward(dy, y):
    """dx = dy where y is above 0 or NaN"""
    return tl.where(y <= 0.0, 0.0, dy)
