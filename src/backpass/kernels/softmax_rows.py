"""What the kernels of softmax and log_softmax share: everything but their formulas.

A program keeps whole rows in registers, several when they are short, so it reads and
writes each element once. A row too long for that is read twice, in tiles: once for its
sums, once for its result. No two programs share a row, so the kernels need no atomics,
and two runs agree to the last bit. Arithmetic is in float32 (float64 for float64),
whatever is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.contract.shapes import check_cotangent, check_saved
from backpass.kernels.launch import (
    Launch,
    accumulator,
    check_tensor,
    check_tensors,
    empty_like,
    fits,
    needs_launch,
    on_rows,
    on_tiles,
    packed,
    row_start,
    rows_of,
)

SHAPES = "x[*, n>0] -> y[*, n]"

# What one program may hold of one operand, in the dtype it computes in. Of an SM's 256
# KiB of registers the backward fills half with two operands of 64 KiB, y and dy; the
# other half is for addresses and temporaries.
ROW_BYTES = 64 * 1024
TILE_BYTES = 32 * 1024  # of a longer row


def declare(
    Saved: type, y, summand, dx, weight=None
) -> tuple[Callable, Callable, Callable]:
    """``forward``, ``backward`` and ``launches`` of a kernel, from its formulas.

    ``y(x, top, total)`` is the result, from the row's maximum and the sum of
    exp(x − top). ``dx(dy, a, total)`` is the gradient, from softmax's weights a and the
    sum over the row of ``summand(dy, a)``. ``weight(y)`` gives a, which is y itself by
    default. Each is a Triton function of numbers. ``Saved`` holds y alone.
    """
    of_backward = {"WEIGHT": weight, "SUMMAND": summand, "DX": dx}

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, NamedTuple]:
        """Return ``y[*, n]``, contiguous, from ``x[*, n]``, of any strides.

        Raises TypeError if ``x`` is not a floating-point tensor on a device where
        kernels run, ValueError if it has no axis or its last axis is empty.
        """
        check_tensors(SHAPES, x=x)
        result = empty_like(x)
        if needs_launch(result):
            forward_launch(x, result).run()
        return result, Saved(result)

    def backward(dy: torch.Tensor, saved: NamedTuple) -> torch.Tensor:
        """Return ``dx[*, n]``, contiguous, from ``dy[*, n]``, of any strides."""
        (kept,) = check_saved(saved, Saved)
        check_tensor("dy", dy)
        check_cotangent(dy, kept.shape, like=kept)
        result = empty_like(kept)
        if needs_launch(result):
            backward_launch(dy, packed(kept), result).run()
        return result

    def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
        """Every kernel at a telling shape, named, on tensors without memory: to be
        compiled, not run."""
        longest = ROW_BYTES // accumulator(dtype).itemsize
        for case, n, step in (
            ("short rows", 128, 1),
            ("longest row", longest, 1),
            ("longest row, every other element", longest, 2),
            ("tiles", 4 * longest, 1),
        ):
            result = torch.empty(4096, n, dtype=dtype, device="meta")
            strided = torch.empty(4096, n * step, dtype=dtype, device="meta")[:, ::step]
            yield case, forward_launch(strided, result)
            yield case, backward_launch(strided, result, result)

    def forward_launch(x: torch.Tensor, result: torch.Tensor) -> Launch:
        x, strides = rows_of(x)
        arguments = {"x_ptr": x, "y_ptr": result, **strides}
        if fits(result, ROW_BYTES):
            return on_rows(_forward_rows, arguments, result, Y=y)
        return on_tiles(_forward_tiles, arguments, result, TILE_BYTES, Y=y)

    def backward_launch(
        dy: torch.Tensor, kept: torch.Tensor, result: torch.Tensor
    ) -> Launch:
        dy, strides = rows_of(dy)
        arguments = {"dy_ptr": dy, "y_ptr": kept, "dx_ptr": result, **strides}
        if fits(result, ROW_BYTES):
            return on_rows(_backward_rows, arguments, result, **of_backward)
        return on_tiles(_backward_tiles, arguments, result, TILE_BYTES, **of_backward)

    for function in (forward, backward, launches):
        function.__module__, function.__qualname__ = Saved.__module__, function.__name__
    return forward, backward, launches


@triton.jit
def _forward_rows(
    x_ptr,  # [m, n], of the strides given
    y_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    m, n,
    Y: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = Y(x, top, Σ exp(x − top)): ROWS rows of COLUMNS elements per program."""
    # [ROWS, 1] and [1, COLUMNS]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)
    inside = (row < m) & (column < n)

    at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    at += column * stride_n
    x = tl.load(x_ptr + at, mask=inside, other=-float("inf")).to(WIDE)

    # Outside the row the score is −∞ and its exponential 0. A row that is all −∞ has
    # the maximum −∞ and the sum 0: subtract 0 instead, and take the sum to be 1.
    top = tl.max(x, axis=1, keep_dims=True)
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(tl.exp(x - top), axis=1, keep_dims=True)
    y = Y(x, top, tl.where(total == 0.0, 1.0, total))

    tl.store(y_ptr + row * n + column, y, mask=inside)


@triton.jit
def _backward_rows(
    dy_ptr,  # [m, n], of the strides given
    y_ptr,  # [m, n], contiguous
    dx_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    m, n,
    WEIGHT: tl.constexpr, SUMMAND: tl.constexpr, DX: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = DX(dy, a, Σ SUMMAND(dy, a)) for the weights a, ROWS rows of at most COLUMNS
    elements per program."""
    # [ROWS, 1] and [1, COLUMNS]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)
    inside = (row < m) & (column < n)

    at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    at += column * stride_n
    dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(WIDE)
    y = tl.load(y_ptr + row * n + column, mask=inside, other=0.0).to(WIDE)

    a = y if WEIGHT is None else WEIGHT(y)
    dx = DX(dy, a, tl.sum(SUMMAND(dy, a), axis=1, keep_dims=True))

    tl.store(dx_ptr + row * n + column, dx, mask=inside)


@triton.jit
def _forward_tiles(
    x_ptr,  # [m, n], of the strides given
    y_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    n,
    Y: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = Y(x, top, Σ exp(x − top)): one row per program, in tiles of COLUMNS."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    y_row = y_ptr + row * n

    # One pass for the maximum and the sum together: when a tile raises the maximum,
    # what was summed so far was summed against the old one, and e^(old − new) puts that
    # right.
    top = tl.full([], -float("inf"), WIDE)
    total = tl.zeros([], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        x = tl.load(x_row + column * stride_n, mask=column < n, other=-float("inf")).to(
            WIDE
        )
        higher = tl.maximum(top, tl.max(x, axis=0))
        subtracted = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - subtracted) + tl.sum(
            tl.exp(x - subtracted), axis=0
        )
        top = higher

    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.where(total == 0.0, 1.0, total)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        x = tl.load(x_row + column * stride_n, mask=column < n, other=-float("inf")).to(
            WIDE
        )
        tl.store(y_row + column, Y(x, top, total), mask=column < n)


@triton.jit
def _backward_tiles(
    dy_ptr,  # [m, n], of the strides given
    y_ptr,  # [m, n], contiguous
    dx_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    n,
    WEIGHT: tl.constexpr, SUMMAND: tl.constexpr, DX: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = DX(dy, a, Σ SUMMAND(dy, a)) for the weights a, one row per program, in tiles
    of COLUMNS elements."""
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    y_row = y_ptr + row * n
    dx_row = dx_ptr + row * n

    total = tl.zeros([], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        dy = tl.load(dy_row + column * stride_n, mask=column < n, other=0.0).to(WIDE)
        y = tl.load(y_row + column, mask=column < n, other=0.0).to(WIDE)
        a = y if WEIGHT is None else WEIGHT(y)
        total += tl.sum(SUMMAND(dy, a), axis=0)

    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        dy = tl.load(dy_row + column * stride_n, mask=column < n, other=0.0).to(WIDE)
        y = tl.load(y_row + column, mask=column < n, other=0.0).to(WIDE)
        at = dx_row + column
        a = y if WEIGHT is None else WEIGHT(y)
        tl.store(at, DX(dy, a, total), mask=column < n)
