r"""SwiGLU's gate in Triton: the functions of ``backpass.ops.swiglu``, element by element.

.. math:: y_i = \frac{g_i u_i}{1 + e^{- g_i}}, \qquad
          \bar{g}_i = \bar{y}_i u_i \frac{1}{1 + e^{- g_i}} \Big( 1 + g_i \frac{e^{- g_i}}{1 + e^{- g_i}} \Big), \quad
          \bar{u}_i = \bar{y}_i \frac{g_i}{1 + e^{- g_i}}

Derived on the page ``operations/activations``. A program holds a piece of g, u and dy in registers, so that
both gradients come of one reading of each; an element is written once, by one program, and two runs agree to
the last bit. The sigmoid is computed again in the backward: it costs less than reading it would. Arithmetic is
in float32 (float64 for float64), whatever is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl  # noqa: F401 - Triton's interpreter looks for it here

from backpass.kernels import elementwise
from backpass.kernels.elementwise import bounded, bounded_below
from backpass.kernels.launch import Launch, check_tensor, check_tensors, to_be_filled
from backpass.kernels.silu import sigmoids
from backpass.shapes import check_cotangent, check_saved

SHAPES = "g[*], u[*] -> y[*]"


class Saved(NamedTuple):
    """What went in, as it was given."""

    g: torch.Tensor  # [*]
    u: torch.Tensor  # [*]


def forward(g: torch.Tensor, u: torch.Tensor, *, keep_sigmoid: bool = False) -> tuple[torch.Tensor, Saved]:
    """``y[*]``, contiguous, of a ``g[*]`` and ``u[*]`` of any strides: the halves of one projection are read
    where they are. ``keep_sigmoid`` changes nothing: where memory sets the pace there is nothing to spare.

    Raises TypeError when one is no floating-point tensor on a device where kernels run or they are of two
    kinds, ValueError when their shapes differ.
    """
    check_tensors(SHAPES, g=g, u=u)

    y = torch.empty(g.shape, dtype=g.dtype, device=g.device)
    if to_be_filled(y):
        elementwise.of_two(_forward, g, u, y).run()
    return y, Saved(g, u)


def backward(dy: torch.Tensor, saved: Saved) -> tuple[torch.Tensor, torch.Tensor]:
    """``dg[*]`` and ``du[*]``, contiguous, from a ``dy[*]`` of any strides."""
    g, u = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, g.shape, like=g)

    dg = torch.empty(g.shape, dtype=g.dtype, device=g.device)
    du = torch.empty(g.shape, dtype=g.dtype, device=g.device)
    if to_be_filled(dg):
        elementwise.two_of_three(_backward, dy, g, u, dg, du).run()
    return dg, du


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Both kernels at telling shapes, named, on tensors without memory: to be compiled, not run."""
    for case, g, y in elementwise.telling_shapes(dtype):
        yield case, elementwise.of_two(_forward, g, g, y)
        yield case, elementwise.two_of_three(_backward, g, g, g, y, y)


@triton.jit
def _forward(g, u):
    """y = g σ(g) u, 0 where g is −∞"""
    sigmoid, _ = sigmoids(g)
    return bounded_below(g) * sigmoid * u


@triton.jit
def _backward(dy, g, u):
    """dg = dy u σ(g) (1 + g σ(−g)), du = dy g σ(g)"""
    sigmoid, rest = sigmoids(g)
    silu = bounded_below(g) * sigmoid
    g = bounded(g)
    return dy * u * (sigmoid * (1.0 + g * rest)), dy * silu
