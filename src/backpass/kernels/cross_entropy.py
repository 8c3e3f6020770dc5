"""Cross-entropy of scores, in Triton, with each score read once in the forward.

Formulas: ``backpass.ops.cross_entropy``, where a target is a row ``t_i``. Derived on
the page ``operations/cross_entropy``. A program goes through whole rows in pieces,
several rows if they are short. The forward computes a row's maximum and sum in one pass
and saves both, two numbers per row. From these and the scores the backward recomputes
softmax, so no array of the scores' size is written in between. No two programs share a
row, and the losses of all rows are added in a fixed order: there are no atomics, and
two runs agree to the last bit. Arithmetic is in float32 (float64 for float64), whatever
is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels.launch import (
    TRITON_DTYPES,
    Launch,
    accumulator,
    check_tensor,
    check_tensors,
    fits,
    needs_launch,
    row_start,
    rows_of,
    tile,
    whole_rows,
)
from backpass.shapes import check_cotangent, check_saved
from backpass.values import check_targets

SHAPES = "x[*, V>0], t[*]:int -> y[]"

# What one program holds of a row at a time, in the dtype it computes in.
ROW_BYTES = 32 * 1024


class Saved(NamedTuple):
    """The scores themselves and two numbers per row. They are saved separately: for
    scores near 1e4, float32 keeps only three decimals of ``top + log(total)``."""

    x: torch.Tensor  # [*, V], as it was given
    t: torch.Tensor  # [*], −1 where ignored
    top: torch.Tensor  # [*], the largest score
    total: torch.Tensor  # [*], the sum of e^(x − top)
    divisor: float | None


def forward(
    x: torch.Tensor,
    t: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, Saved]:
    """Return the loss ``y[]`` of the scores ``x[*, V]``, of any strides, at the targets
    ``t[*]``.

    Synchronises with the device once, to check the targets. Raises TypeError unless x
    is a floating-point and t an integer tensor on one device where kernels run,
    ValueError if the shapes do not fit or ``reduction`` is neither "mean" nor "sum",
    and IndexError for a target outside the V classes.
    """
    check_tensors(SHAPES, x=x, t=t)
    t, divisor = check_targets(t, x.shape[-1], ignore_index, reduction)
    t = t.contiguous()

    wide: dict[str, Any] = {"dtype": accumulator(x.dtype), "device": x.device}
    losses, top, total = (torch.empty(t.shape, **wide) for _ in range(3))
    if needs_launch(losses):
        forward_launch(x, t, losses, top, total).run()
    return reduced(losses, divisor).to(x.dtype), Saved(x, t, top, total, divisor)


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """Return ``dx[*, V]``, contiguous, from ``dy[]``."""
    x, t, top, total, divisor = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, (), like=x)

    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if needs_launch(dx):
        dy = dy.to(total.dtype)
        each = dy if divisor is None else dy / divisor
        backward_launch(x, t, top, total, each, dx).run()
    return dx


def reduced(losses: torch.Tensor, divisor: float | None) -> torch.Tensor:
    """The sum of the rows' losses over ``divisor``."""
    y = torch.sum(losses)
    return y if divisor is None else y / divisor


def forward_launch(x, t, losses, top, total) -> Launch:
    """The launch that writes each row's loss, largest score and sum, from ``x[*, V]``,
    of any strides; the loss of an ignored row is 0."""
    x, strides = rows_of(x)
    arguments = {"x_ptr": x, "t_ptr": t, "top_ptr": top, "total_ptr": total}
    return _launch(_forward, {**arguments, "loss_ptr": losses, **strides}, x)


def backward_launch(x, t, top, total, each, dx) -> Launch:
    """The launch that writes ``dx[*, V]``, contiguous, for losses whose gradient is
    ``each[]``. ``dx`` may be ``x``: the thread that writes a score's gradient reads the
    score first."""
    x, strides = rows_of(x)
    arguments = {"x_ptr": x, "t_ptr": t, "top_ptr": top, "total_ptr": total}
    return _launch(
        _backward, {**arguments, "each_ptr": each, "dx_ptr": dx, **strides}, x
    )


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Every kernel at a telling shape, named, on tensors without memory: to be
    compiled, not run."""
    wide = accumulator(dtype)
    for case, classes in (("short rows", 128), ("GPT-2's vocabulary", 50257)):
        x = torch.empty(4096, classes, dtype=dtype, device="meta")
        t = torch.empty(4096, dtype=torch.int64, device="meta")
        row = torch.empty(4096, dtype=wide, device="meta")
        each = torch.empty((), dtype=wide, device="meta")
        yield case, forward_launch(x, t, row, row, row)
        yield case, backward_launch(x, t, row, row, each, x)


def _launch(kernel, arguments: dict, x: torch.Tensor) -> Launch:
    n = x.shape[-1]
    m = x.numel() // n
    block = whole_rows(x) if fits(x, ROW_BYTES) else tile(x, ROW_BYTES)
    wide = TRITON_DTYPES[accumulator(x.dtype)]
    constants = {"ROWS": block.rows, "COLUMNS": block.columns, "WIDE": wide}
    arguments = {**arguments, "m": m, "n": n}
    return Launch(kernel, triton.cdiv(m, block.rows), arguments, constants, block.warps)


@triton.jit
def _forward(
    x_ptr,  # [m, n], of the strides given
    t_ptr,  # [m], −1 where ignored
    loss_ptr, top_ptr, total_ptr,  # [m]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    m, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """log Σ exp(x) − x[t]: ROWS rows per program, COLUMNS elements at a time."""
    row = (
        tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    )  # [ROWS, 1]
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)

    # One pass for the maximum and the sum together: when a piece raises the maximum,
    # what was summed so far was summed against the old one, and e^(old − new) puts that
    # right.
    top = tl.full([ROWS, 1], -float("inf"), WIDE)
    total = tl.zeros([ROWS, 1], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :].to(tl.int64)
        inside = (row < m) & (column < n)
        x = tl.load(x_row + column * stride_n, mask=inside, other=-float("inf")).to(
            WIDE
        )
        higher = tl.maximum(top, tl.max(x, axis=1, keep_dims=True))
        subtracted = tl.where(higher == -float("inf"), 0.0, higher)
        exps = tl.sum(tl.exp(x - subtracted), axis=1, keep_dims=True)
        total = total * tl.exp(top - subtracted) + exps
        top = higher

    # A row that is all −∞ has the maximum −∞ and the sum 0: subtract 0 instead, and
    # divide by 1.
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.where(total == 0.0, 1.0, total)
    t = tl.load(t_ptr + row, mask=row < m, other=-1)
    at_target = tl.load(x_row + t * stride_n, mask=t >= 0, other=0.0).to(WIDE)
    loss = tl.where(t >= 0, tl.log(total) + (top - at_target), 0.0)

    tl.store(loss_ptr + row, loss, mask=row < m)
    tl.store(top_ptr + row, top, mask=row < m)
    tl.store(total_ptr + row, total, mask=row < m)


@triton.jit
def _backward(
    x_ptr,  # [m, n], of the strides given
    t_ptr,  # [m], −1 where ignored
    top_ptr, total_ptr,  # [m]
    each_ptr,  # []
    dx_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    m, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = each (softmax(x) − one_hot(t)), ROWS rows per program, COLUMNS elements of
    each at a time."""
    row = (
        tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    )  # [ROWS, 1]
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    t = tl.load(t_ptr + row, mask=row < m, other=-1)
    top = tl.load(top_ptr + row, mask=row < m, other=0.0)
    total = tl.load(total_ptr + row, mask=row < m, other=1.0)
    each = tl.load(each_ptr)

    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :].to(tl.int64)
        inside = (row < m) & (column < n)
        x = tl.load(x_row + column * stride_n, mask=inside, other=-float("inf")).to(
            WIDE
        )

        # The target's 1 is subtracted before anything is rounded to the stored dtype:
        # the difference from a rounded weight near 1 would have no correct digit.
        y = tl.exp(x - top) / total
        dx = tl.where(column == t, y - 1, y) * each
        tl.store(dx_ptr + row * n + column, tl.where(t >= 0, dx, 0.0), mask=inside)
