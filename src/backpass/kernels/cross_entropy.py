"""Cross-entropy of scores, in Triton, with each score read once in the forward.

Formulas: ``backpass.ops.cross_entropy``, where a target is a row ``t_i``. Derived on
the page ``operations/cross_entropy``. A program goes through whole rows in pieces,
several rows if they are short. The forward computes a row's maximum and sum in one pass
and saves both, two numbers per row. From these and the scores the backward recomputes
softmax, so no array of the scores' size is written in between. No two programs share a
row, and the losses of all rows are added in a fixed order: this needs no atomics, and
two runs agree to the last bit. Arithmetic is in float32 (float64 for float64), whatever
is stored.

Smoothing adds the mean over the classes of ``c_j (log Σ e^x − x_j)``, whose terms are
sums of two numbers that are not negative: the logarithm of the row's sum, and the
distance of a score from the largest. Each value of ``label_smoothing`` compiles a
kernel of its own; without it, and without class weights, nothing of them is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from backpass.contract.shapes import check_cotangent, check_saved
from backpass.contract.values import check_label_smoothing, check_targets, shape_of_loss
from backpass.kernels.launch import (
    Launch,
    accumulator,
    check_tensor,
    check_tensors,
    empty_like,
    fits,
    needs_launch,
    on_rows,
    packed,
    row_start,
    rows_of,
    tile,
    whole_rows,
)

SHAPES = "x[*, V>0], t[*]:int, weight[V]? -> y[]"
CONSTANTS = ("weight",)
POSITIVE = ("weight",)
UNREDUCED = {"reduction": "none"}

# What one program holds of a row at a time, in the dtype it computes in.
ROW_BYTES = 32 * 1024


class Saved(NamedTuple):
    """The scores themselves and two numbers per row. They are saved separately: for
    scores near 1e4, float32 keeps only three decimals of ``top + log(total)``."""

    x: torch.Tensor  # [*, V], as it was given
    t: torch.Tensor  # [*], −1 where ignored
    top: torch.Tensor  # [*], the largest score
    total: torch.Tensor  # [*], the sum of e^(x − top)
    weight: torch.Tensor | None  # [V]
    divisor: float | torch.Tensor | None  # on a device or with class weights, []
    reduction: str
    label_smoothing: float


def forward(
    x: torch.Tensor,
    t: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, Saved]:
    """Return the loss ``y[]`` of the scores ``x[*, V]``, of any strides, at the targets
    ``t[*]``; with ``reduction="none"`` the loss ``y[*]`` of each row.

    Does not wait for a CUDA device, where an assertion checks the targets. Raises what
    the operation raises, and TypeError for an argument that is not a tensor on a device
    where kernels run.
    """
    check_tensors(SHAPES, x=x, t=t, weight=weight)
    check_label_smoothing(label_smoothing)
    weight = None if weight is None else packed(weight).detach()
    t, divisor = check_targets(t, x.shape[-1], ignore_index, reduction, weight)
    t = t.contiguous()

    wide: dict[str, Any] = {"dtype": accumulator(x.dtype), "device": x.device}
    losses, top, total = (torch.empty(t.shape, **wide) for _ in range(3))
    if needs_launch(losses):
        options = (weight, label_smoothing)
        forward_launch(x, t, losses, top, total, *options).run()
    y = reduced(losses, divisor, reduction).to(x.dtype)
    return y, Saved(x, t, top, total, weight, divisor, reduction, label_smoothing)


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """Return ``dx[*, V]``, contiguous, from ``dy[]``, or from ``dy[*]`` if the loss was
    not reduced."""
    x, t, top, total, weight, divisor, reduction, smoothing = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, shape_of_loss(t, reduction), like=x)

    dx = empty_like(x)
    if needs_launch(dx):
        dy = packed(dy).to(total.dtype)
        each = dy if divisor is None else dy / divisor
        backward_launch(x, t, top, total, each, dx, weight, smoothing).run()
    return dx


def reduced(
    losses: torch.Tensor, divisor: float | torch.Tensor | None, reduction: str = "mean"
) -> torch.Tensor:
    """The sum of the rows' losses over ``divisor``, or the losses themselves if
    ``reduction`` is "none"."""
    if reduction == "none":
        return losses
    y = torch.sum(losses)
    return y if divisor is None else y / divisor


def forward_launch(
    x, t, losses, top, total, weight=None, label_smoothing: float = 0.0
) -> Launch:
    """The launch that writes each row's loss, largest score and sum, from ``x[*, V]``,
    of any strides; the loss of an ignored row is 0."""
    x, strides = rows_of(x)
    arguments = {"x_ptr": x, "t_ptr": t, "top_ptr": top, "total_ptr": total}
    arguments |= {"weight_ptr": weight, "loss_ptr": losses, **strides}
    return _launch(_forward, arguments, x, label_smoothing)


def backward_launch(
    x, t, top, total, each, dx, weight=None, label_smoothing: float = 0.0
) -> Launch:
    """The launch that writes ``dx[*, V]`` for losses whose gradient is ``each[]``, or
    for each row ``each[*]``. ``dx`` is contiguous, or a matrix of contiguous rows. It
    may be ``x``: the thread that writes a score's gradient reads the score first."""
    x, strides = rows_of(x)
    strides["dx_stride"] = dx.stride(0) if dx.ndim == 2 else dx.shape[-1]
    arguments = {"x_ptr": x, "t_ptr": t, "top_ptr": top, "total_ptr": total}
    sums = None
    if weight is not None and label_smoothing:
        sums = torch.sum(weight, dtype=total.dtype)
    arguments |= {"weight_ptr": weight, "weights_ptr": sums, "each_ptr": each}
    arguments |= {"each_stride": 1 if each.shape else 0, "dx_ptr": dx, **strides}
    return _launch(_backward, arguments, x, label_smoothing)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Every kernel at a telling shape, named, on tensors without memory: to be
    compiled, not run."""
    wide = accumulator(dtype)
    for case, classes in (("short rows", 128), ("GPT-2's vocabulary", 50257)):
        x = torch.empty(4096, classes, dtype=dtype, device="meta")
        t = torch.empty(4096, dtype=torch.int64, device="meta")
        row = torch.empty(4096, dtype=wide, device="meta")
        each = torch.empty((), dtype=wide, device="meta")
        weight = torch.empty(classes, dtype=dtype, device="meta")
        yield case, forward_launch(x, t, row, row, row)
        yield case, backward_launch(x, t, row, row, each, x)
        case = f"{case}, smoothed and weighted"
        yield case, forward_launch(x, t, row, row, row, weight, 0.1)
        yield case, backward_launch(x, t, row, row, row, x, weight, 0.1)


def _launch(kernel, arguments: dict, x: torch.Tensor, label_smoothing: float) -> Launch:
    block = whole_rows(x) if fits(x, ROW_BYTES) else tile(x, ROW_BYTES)
    return on_rows(kernel, arguments, x, block=block, SMOOTHING=float(label_smoothing))


@triton.jit
def _weights_at(table, index, known, WIDE: tl.constexpr):
    """The class weights at ``index``, and 0 where it is not known; 1 without a
    table."""
    if table is None:
        w = tl.where(known, 1.0, 0.0)
    else:
        w = tl.load(table + index, mask=known, other=0.0)
    return w.to(WIDE)


@triton.jit
def _further(far, passed, w, x, before, top):
    """Σ w (top − x) and Σ w with one more piece of a row, whose largest score so far
    rises from ``before`` to ``top``."""
    far += passed * (top - before)
    far += tl.sum(w * (top - x), axis=1, keep_dims=True)
    return far, passed + tl.sum(w, axis=1, keep_dims=True)


@triton.jit
def _smoothed(loss, of_all, n, SMOOTHING: tl.constexpr):
    """A row's loss, from that of its target and the sum of those of all classes."""
    return (1.0 - SMOOTHING) * loss + SMOOTHING * of_all / n


@triton.jit
def _less_target(y, is_target):
    """Softmax less the target."""
    return tl.where(is_target, y - 1, y)


@triton.jit
def _less_smoothed(y, is_target, w, of_target, weights, n, SMOOTHING: tl.constexpr):
    """Softmax times the sum of the smoothed target, less the target."""
    at_class = (1.0 - SMOOTHING) * of_target
    y = y * (at_class + SMOOTHING * weights / n) - SMOOTHING * w / n
    return tl.where(is_target, y - at_class, y)


@triton.jit
def _forward(
    x_ptr,  # [m, n], of the strides given
    t_ptr,  # [m], −1 where ignored
    weight_ptr,  # [n], or None
    loss_ptr, top_ptr, total_ptr,  # [m]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    m, n,
    SMOOTHING: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """log Σ exp(x) − x[t]: ROWS rows per program, COLUMNS elements at a time."""
    # [ROWS, 1]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)

    # One pass for the maximum and the sum together: when a piece raises the maximum,
    # what was summed so far was summed against the old one, and e^(old − new) puts that
    # right.
    top = tl.full([ROWS, 1], -float("inf"), WIDE)
    total = tl.zeros([ROWS, 1], WIDE)
    far = tl.zeros([ROWS, 1], WIDE)
    passed = tl.zeros([ROWS, 1], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :].to(tl.int64)
        inside = (row < m) & (column < n)
        at = x_row + column * stride_n
        x = tl.load(at, mask=inside, other=-float("inf")).to(WIDE)
        higher = tl.maximum(top, tl.max(x, axis=1, keep_dims=True))
        subtracted = tl.where(higher == -float("inf"), 0.0, higher)
        exps = tl.sum(tl.exp(x - subtracted), axis=1, keep_dims=True)
        total = total * tl.exp(top - subtracted) + exps
        if SMOOTHING != 0.0:
            before = tl.where(passed == 0.0, subtracted, top)
            w = _weights_at(weight_ptr, column, inside, WIDE)
            x = tl.where(inside, x, subtracted)
            far, passed = _further(far, passed, w, x, before, subtracted)
        top = higher

    # A row that is all −∞ has the maximum −∞ and the sum 0: subtract 0 instead, and
    # divide by 1.
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.where(total == 0.0, 1.0, total)
    t = tl.load(t_ptr + row, mask=row < m, other=-1)
    at_target = tl.load(x_row + t * stride_n, mask=t >= 0, other=0.0).to(WIDE)
    loss = tl.where(t >= 0, tl.log(total) + (top - at_target), 0.0)
    if weight_ptr is not None:
        loss *= _weights_at(weight_ptr, t, t >= 0, WIDE)
    if SMOOTHING != 0.0:
        loss = _smoothed(loss, far + passed * tl.log(total), n, SMOOTHING)
        loss = tl.where(t >= 0, loss, 0.0)

    tl.store(loss_ptr + row, loss, mask=row < m)
    tl.store(top_ptr + row, top, mask=row < m)
    tl.store(total_ptr + row, total, mask=row < m)


@triton.jit
def _backward(
    x_ptr,  # [m, n], of the strides given
    t_ptr,  # [m], −1 where ignored
    top_ptr, total_ptr,  # [m]
    weight_ptr,  # [n], or None
    weights_ptr,  # [], their sum, or None
    each_ptr,  # [], or [m] with a stride of 1
    dx_ptr,  # [m, n], of contiguous rows
    each_stride, dx_stride,
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    m, n,
    SMOOTHING: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = each (softmax(x) − one_hot(t)), ROWS rows per program, COLUMNS elements of
    each at a time."""
    # [ROWS, 1]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    t = tl.load(t_ptr + row, mask=row < m, other=-1)
    top = tl.load(top_ptr + row, mask=row < m, other=0.0)
    total = tl.load(total_ptr + row, mask=row < m, other=1.0)
    each = tl.load(each_ptr + row * each_stride, mask=row < m, other=0.0)
    of_target = _weights_at(weight_ptr, t, t >= 0, WIDE)
    if SMOOTHING == 0.0:
        each *= of_target
    weights = tl.full([], n, WIDE) if weights_ptr is None else tl.load(weights_ptr)

    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :].to(tl.int64)
        inside = (row < m) & (column < n)
        at = x_row + column * stride_n
        x = tl.load(at, mask=inside, other=-float("inf")).to(WIDE)

        # The target's 1 is subtracted before anything is rounded to the stored dtype:
        # the difference from a rounded weight near 1 would have no correct digit.
        y = tl.exp(x - top) / total
        is_target = column == t
        if SMOOTHING != 0.0:
            w = _weights_at(weight_ptr, column, inside, WIDE)
            dx = _less_smoothed(y, is_target, w, of_target, weights, n, SMOOTHING)
        else:
            dx = _less_target(y, is_target)
        dx = tl.where(t >= 0, dx * each, 0.0)
        tl.store(dx_ptr + row * dx_stride + column, dx, mask=inside)
