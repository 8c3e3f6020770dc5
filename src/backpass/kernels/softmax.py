r"""Softmax over the last axis, in Triton: the functions of ``backpass.ops.softmax`` in one pass over memory.

.. math:: y_i = \frac{e^{x_i}}{\sum_j e^{x_j}}, \qquad
          \bar{x}_i = y_i \Big( \bar{y}_i - \sum_j \bar{y}_j y_j \Big)

Derived, and timed, on the page ``operations/softmax``. A program keeps whole rows in registers, several when
they are short, so that each element is read once and written once. A row too long for that is read twice, in
tiles: once for its sums, once for its result. No program shares a row with another: there are no atomics, and
two runs agree to the last bit. Arithmetic is in float32 (float64 for float64), whatever is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels.launch import (
    Launch,
    accumulator,
    check_tensor,
    check_tensors,
    fits,
    on_rows,
    on_tiles,
    packed,
    row_start,
    rows_of,
    to_be_filled,
)
from backpass.shapes import check_cotangent, check_saved

SHAPES = "x[*, n>0] -> y[*, n]"

# What one program may hold of one operand, in the dtype it computes in. Of an SM's 256 KiB of registers the
# backward fills half with two operands of 64 KiB, y and dy; the other half is for addresses and temporaries.
ROW_BYTES = 64 * 1024
TILE_BYTES = 32 * 1024  # of a longer row


class Saved(NamedTuple):
    """The weights alone, contiguous: the backward never needs the scores."""

    y: torch.Tensor  # [*, n]


def forward(x: torch.Tensor) -> tuple[torch.Tensor, Saved]:
    """Weights ``y[*, n]`` of the scores ``x[*, n]``, which may have any strides; ``y`` is contiguous.

    Raises TypeError when ``x`` is no floating-point tensor on a device where kernels run, ValueError when
    it has no axis or the last is empty.
    """
    check_tensors(SHAPES, x=x)

    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if to_be_filled(y):
        forward_launch(x, y).run()
    return y, Saved(y)


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """``dx[*, n]``, contiguous, from ``dy[*, n]``, which may have any strides."""
    (y,) = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, y.shape, like=y)

    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if to_be_filled(dx):
        backward_launch(dy, packed(y), dx).run()
    return dx


def forward_launch(x: torch.Tensor, y: torch.Tensor) -> Launch:
    """The launch that writes ``y[*, n]``, contiguous, from ``x[*, n]``, of any strides."""
    x, walk = rows_of(x)
    arguments = {"x_ptr": x, "y_ptr": y, **walk}
    if fits(y, ROW_BYTES):
        return on_rows(_forward_rows, arguments, y)
    return on_tiles(_forward_tiles, arguments, y, TILE_BYTES)


def backward_launch(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> Launch:
    """The launch that writes ``dx[*, n]`` from ``dy[*, n]``, of any strides, and ``y``, contiguous as dx."""
    dy, walk = rows_of(dy)
    arguments = {"dy_ptr": dy, "y_ptr": y, "dx_ptr": dx, **walk}
    if fits(dx, ROW_BYTES):
        return on_rows(_backward_rows, arguments, dx)
    return on_tiles(_backward_tiles, arguments, dx, TILE_BYTES)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Every kernel at a telling shape, named, on tensors without memory: to be compiled, not run."""
    longest = ROW_BYTES // accumulator(dtype).itemsize
    for case, n, step in (
        ("short rows", 128, 1),
        ("longest row", longest, 1),
        ("longest row, every other element", longest, 2),
        ("tiles", 4 * longest, 1),
    ):
        y = torch.empty(4096, n, dtype=dtype, device="meta")
        strided = torch.empty(4096, n * step, dtype=dtype, device="meta")[:, ::step]
        yield case, forward_launch(strided, y)
        yield case, backward_launch(strided, y, y)


@triton.jit
def _forward_rows(
    x_ptr,  # [m, n], of the strides given
    y_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # where x's rows and columns lie
    m, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = softmax(x), ROWS rows of at most COLUMNS elements a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)  # [1, COLUMNS]
    inside = (row < m) & (column < n)

    at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2) + column * stride_n
    x = tl.load(x_ptr + at, mask=inside, other=-float("inf")).to(WIDE)

    # Outside the row the score is −∞, so the weight 0. A row that is all −∞ has no top: subtract 0, divide
    # by 1.
    top = tl.max(x, axis=1, keep_dims=True)
    exps = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(exps, axis=1, keep_dims=True)
    y = exps / tl.where(total == 0.0, 1.0, total)

    tl.store(y_ptr + row * n + column, y, mask=inside)


@triton.jit
def _backward_rows(
    dy_ptr,  # [m, n], of the strides given
    y_ptr,  # [m, n], contiguous
    dx_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # where dy's rows and columns lie
    m, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = y (dy − Σ dy y), ROWS rows of at most COLUMNS elements a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)  # [1, COLUMNS]
    inside = (row < m) & (column < n)

    at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2) + column * stride_n
    dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(WIDE)
    y = tl.load(y_ptr + row * n + column, mask=inside, other=0.0).to(WIDE)

    dx = y * (dy - tl.sum(dy * y, axis=1, keep_dims=True))

    tl.store(dx_ptr + row * n + column, dx, mask=inside)


@triton.jit
def _forward_tiles(
    x_ptr,  # [m, n], of the strides given
    y_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # where x's rows and columns lie
    n,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = softmax(x), one row a program, in tiles of COLUMNS elements."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    y_row = y_ptr + row * n

    # One pass for the maximum and the sum together: when a tile raises the maximum, what was summed so far
    # was summed against the old one, and e^(old − new) puts that right.
    top = tl.full([], -float("inf"), WIDE)
    total = tl.zeros([], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        x = tl.load(x_row + column * stride_n, mask=column < n, other=-float("inf")).to(WIDE)
        higher = tl.maximum(top, tl.max(x, axis=0))
        subtracted = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - subtracted) + tl.sum(tl.exp(x - subtracted), axis=0)
        top = higher

    subtracted = tl.where(top == -float("inf"), 0.0, top)
    divisor = tl.where(total == 0.0, 1.0, total)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        x = tl.load(x_row + column * stride_n, mask=column < n, other=-float("inf")).to(WIDE)
        tl.store(y_row + column, tl.exp(x - subtracted) / divisor, mask=column < n)


@triton.jit
def _backward_tiles(
    dy_ptr,  # [m, n], of the strides given
    y_ptr,  # [m, n], contiguous
    dx_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # where dy's rows and columns lie
    n,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = y (dy − Σ dy y), one row a program, in tiles of COLUMNS elements."""
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    y_row = y_ptr + row * n
    dx_row = dx_ptr + row * n

    dot = tl.zeros([], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        dy = tl.load(dy_row + column * stride_n, mask=column < n, other=0.0).to(WIDE)
        y = tl.load(y_row + column, mask=column < n, other=0.0).to(WIDE)
        dot += tl.sum(dy * y, axis=0)

    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        dy = tl.load(dy_row + column * stride_n, mask=column < n, other=0.0).to(WIDE)
        y = tl.load(y_row + column, mask=column < n, other=0.0).to(WIDE)
        tl.store(dx_row + column, y * (dy - dot), mask=column < n)
