r"""GELU in Triton: the functions of ``backpass.ops.gelu``, element by element.

.. math:: y_i = \frac{x_i}{2} \Big( 1 + \operatorname{erf} \frac{x_i}{\sqrt{2}} \Big), \qquad
          \bar{x}_i = \bar{y}_i \Big( \frac12 + \frac12 \operatorname{erf} \frac{x_i}{\sqrt{2}}
              + \frac{x_i}{\sqrt{2 \pi}} e^{- x_i^2 / 2} \Big)

Derived on the page ``operations/activations``, with the form that has a tanh in place of erf. A program holds
a piece of x, and of dy, in registers: each element is read once and written once, by one program, so that two
runs agree to the last bit. Arithmetic is in float32 (float64 for float64), whatever is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels import elementwise
from backpass.kernels.elementwise import bounded, bounded_below
from backpass.kernels.launch import Launch, check_tensor, check_tensors, to_be_filled
from backpass.kernels.silu import sigmoids
from backpass.shapes import check_cotangent, check_saved

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """What went in, as it was given, and which form it met."""

    x: torch.Tensor  # [*]
    approximate: str


def forward(x: torch.Tensor, *, approximate: str = "none") -> tuple[torch.Tensor, Saved]:
    """``y[*]``, contiguous, of an ``x[*]`` of any strides; with ``approximate="tanh"`` the form with a tanh.

    Raises TypeError when ``x`` is no floating-point tensor on a device where kernels run, ValueError for
    another ``approximate``.
    """
    check_tensors(SHAPES, x=x)
    if approximate not in _FORMS:
        raise ValueError(f"approximate: expected 'none' or 'tanh'; got {approximate!r}")

    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if to_be_filled(y):
        formula, _ = _FORMS[approximate]
        elementwise.of_one(formula, x, y).run()
    return y, Saved(x, approximate)


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """``dx[*]``, contiguous, from a ``dy[*]`` of any strides."""
    x, approximate = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, x.shape, like=x)

    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if to_be_filled(dx):
        _, formula = _FORMS[approximate]
        elementwise.of_two(formula, dy, x, dx).run()
    return dx


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Both kernels of both forms at telling shapes, named, on tensors without memory: to be compiled, not run."""
    for forward_formula, backward_formula in _FORMS.values():
        for case, x, y in elementwise.telling_shapes(dtype):
            yield case, elementwise.of_one(forward_formula, x, y)
            yield case, elementwise.of_two(backward_formula, x, x, y)


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
    """y = x σ(z), z = 2 √(2/π) (x + 0.044715 x³), as ½ (1 + tanh(z/2)) is σ(z); 0 at −∞"""
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


_FORMS = {"none": (_forward_erf, _backward_erf), "tanh": (_forward_tanh, _backward_tanh)}
