r"""Token embedding in Triton: the functions of ``backpass.ops.embedding``, without atomics.

.. math:: y_{ri} = \sum_v t_{rv} w_{vi}, \qquad \bar{w}_{vi} = \sum_r t_{rv} \bar{y}_{ri}

Derived on the page ``operations/embeddings``; in the formulas a token is a row with a 1 in its place. Forward, a
program copies rows of w. The backward sorts the tokens, by which the rows of dy that belong to a row of dw
become neighbours, and each row of dw has one owner: the program that adds them up in float32 (float64 for
float64), always in the same order, and writes them once, zeros where no token came. Every row of dy is read once.

A token that comes very often, such as padding, would leave its owner adding alone. So another kernel goes first:
it adds up each block of ``BLOCK`` sorted tokens that are all the same, and an owner takes such a block's sum in
place of its rows. Blocks of different tokens, nearly all, it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels.launch import (
    TRITON_DTYPES,
    Launch,
    accumulator,
    check_tensor,
    check_tensors,
    row_start,
    rows_of,
)
from backpass.shapes import Kind, check_cotangent, check_saved, kind

SHAPES = "t[*]:int, w[V, h] -> y[*, h]"
PARAMETERS = ("w",)

BLOCK = 64  # sorted tokens that are added up together where all are the same
COLUMNS = 1024  # at most, of a row in one program
ELEMENTS = 4096  # of several rows, in one program
WARPS = 8


class Saved(NamedTuple):
    """The tokens, and what the gradient of w is like: w itself is not needed."""

    t: torch.Tensor  # [*]
    rows: int  # of w
    kind: Kind


def forward(t: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, Saved]:
    """``y[*, h]``, contiguous: for each token of ``t[*]`` its row of ``w[V, h]``, which may have any strides.

    Raises TypeError when ``t`` holds no integers, ``w`` no floating-point numbers, or one is no tensor on a
    device where kernels run; IndexError for a token outside the vocabulary.
    """
    check_tensors(SHAPES, t=t, w=w)

    y = torch.empty((*t.shape, w.shape[1]), dtype=w.dtype, device=w.device)
    if y.numel() > 0:
        forward_launch(t.reshape(-1), w.resolve_neg(), y).run()
    return y, Saved(t, w.shape[0], kind(w))


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """``dw[V, h]``, contiguous, from ``dy[*, h]``, which may have any strides."""
    t, rows, like = check_saved(saved, Saved)
    check_tensor("dy", dy)
    h = dy.shape[-1]
    check_cotangent(dy, (*t.shape, h), like)

    dw = torch.empty((rows, h), dtype=dy.dtype, device=dy.device)
    if dw.numel() > 0:
        tokens, order = torch.sort(t.reshape(-1), stable=True)
        first = torch.searchsorted(tokens, torch.arange(rows + 1, dtype=tokens.dtype, device=t.device))
        sums = torch.empty((len(tokens) // BLOCK, h), dtype=accumulator(dy.dtype), device=dy.device)
        if sums.numel() > 0:
            blocks_launch(dy, tokens, order, sums).run()
        owners_launch(dy, order, first, sums, dw).run()
    return dw


def forward_launch(t: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Launch:
    """The launch that writes ``y[m, h]``, contiguous, from tokens ``t[m]`` and ``w[V, h]`` of any strides."""
    (m,), h = t.shape, w.shape[1]
    columns = min(triton.next_power_of_2(h), COLUMNS)
    rows = ELEMENTS // columns
    arguments = {
        "t_ptr": t, "w_ptr": w, "y_ptr": y,
        "w_stride_v": w.stride(0), "w_stride_h": w.stride(1), "m": m, "h": h,
    }  # fmt: skip
    programs = triton.cdiv(m, rows) * triton.cdiv(h, columns)
    return Launch(_gather, programs, arguments, {"ROWS": rows, "COLUMNS": columns}, WARPS)


def blocks_launch(dy: torch.Tensor, tokens: torch.Tensor, order: torch.Tensor, sums: torch.Tensor) -> Launch:
    """The launch that writes ``sums[b]`` for every block b of ``BLOCK`` sorted tokens that are all the same."""
    dy, walk = rows_of(dy)
    arguments = {"dy_ptr": dy, "tokens_ptr": tokens, "order_ptr": order, "sums_ptr": sums, **walk}
    return _adding(_add_blocks, arguments, *sums.shape, dy.dtype)


def owners_launch(
    dy: torch.Tensor, order: torch.Tensor, first: torch.Tensor, sums: torch.Tensor, dw: torch.Tensor
) -> Launch:
    """The launch that writes every row of ``dw[V, h]``: of row v, the rows of dy from ``order[first[v]]`` to
    before ``order[first[v + 1]]``, whole blocks of them from ``sums``."""
    dy, walk = rows_of(dy)
    arguments = {"dy_ptr": dy, "order_ptr": order, "first_ptr": first, "sums_ptr": sums, "dw_ptr": dw, **walk}
    return _adding(_add_rows, arguments, *dw.shape, dy.dtype)


def _adding(kernel, arguments: dict, results: int, h: int, dtype: torch.dtype) -> Launch:
    """One program for each of the results and each piece of a row."""
    columns = min(triton.next_power_of_2(h), COLUMNS)
    constants = {
        "BLOCK": BLOCK,
        "ROWS": min(ELEMENTS // columns, BLOCK),
        "COLUMNS": columns,
        "WIDE": TRITON_DTYPES[accumulator(dtype)],
    }
    programs = results * triton.cdiv(h, columns)
    return Launch(kernel, programs, {**arguments, "h": h}, constants, WARPS)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Every kernel at telling shapes, named, on tensors without memory: to be compiled, not run."""
    for h in (64, 768, 4096):
        t = torch.empty(16384, dtype=torch.int64, device="meta")
        w = torch.empty(50257, h, dtype=dtype, device="meta")
        y = torch.empty(16384, h, dtype=dtype, device="meta")
        sums = torch.empty(256, h, dtype=accumulator(dtype), device="meta")
        first = torch.empty(50258, dtype=torch.int64, device="meta")
        yield f"h = {h}", forward_launch(t, w, y)
        yield f"h = {h}", blocks_launch(y, t, t, sums)
        yield f"h = {h}", owners_launch(y, t, first, sums, w)


@triton.jit
def _gather(
    t_ptr,  # [m]
    w_ptr,  # [V, h], of the strides given
    y_ptr,  # [m, h], contiguous
    w_stride_v, w_stride_h, m, h,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """y = w[t], ROWS tokens and at most COLUMNS columns a program."""
    pieces = tl.cdiv(h, COLUMNS)  # of a row
    program = tl.program_id(0).to(tl.int64)
    row = program // pieces * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    column = program % pieces * COLUMNS + tl.arange(0, COLUMNS)[None, :]  # [1, COLUMNS]
    inside = (row < m) & (column < h)

    token = tl.load(t_ptr + row, mask=row < m, other=0).to(tl.int64)
    w = tl.load(w_ptr + token * w_stride_v + column * w_stride_h, mask=inside)
    tl.store(y_ptr + row * h + column, w, mask=inside)


@triton.jit
def _sum_of_rows(
    dy_ptr, order_ptr, start, stop, column, h,
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Σ dy[order[p]] over start ≤ p < stop, at the columns given, ROWS at a time."""
    total = tl.zeros([1, COLUMNS], WIDE)
    for first in range(start, stop, ROWS):
        p = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        row = tl.load(order_ptr + p, mask=p < stop, other=0)
        at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2) + column * stride_n
        dy = tl.load(dy_ptr + at, mask=(p < stop) & (column < h), other=0.0).to(WIDE)
        total += tl.sum(dy, axis=0, keep_dims=True)
    return total


@triton.jit
def _add_blocks(
    dy_ptr,  # [m, h], of the strides given
    tokens_ptr, order_ptr,  # [m], the tokens sorted, and where each stood
    sums_ptr,  # [m // BLOCK, h], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # where dy's rows and columns lie
    h,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """sums[b] = Σ dy over block b of the sorted tokens, if all of it is one token."""
    pieces = tl.cdiv(h, COLUMNS)  # of a row
    block = tl.program_id(0).to(tl.int64) // pieces
    column = tl.program_id(0).to(tl.int64) % pieces * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    start = block * BLOCK
    stop = start + BLOCK
    if tl.load(tokens_ptr + start) == tl.load(tokens_ptr + stop - 1):
        total = _sum_of_rows(
            dy_ptr, order_ptr, start, stop, column, h,
            length_1, length_2, stride_0, stride_1, stride_2, stride_n, ROWS, COLUMNS, WIDE,
        )  # fmt: skip
        tl.store(sums_ptr + block * h + column, total, mask=column < h)


@triton.jit
def _add_rows(
    dy_ptr,  # [m, h], of the strides given
    order_ptr,  # [m], where each of the sorted tokens stood
    first_ptr,  # [V + 1], where each row's tokens begin among the sorted
    sums_ptr,  # [m // BLOCK, h], contiguous
    dw_ptr,  # [V, h], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # where dy's rows and columns lie
    h,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dw[v] = Σ dy over the tokens that are v, one row and at most COLUMNS columns a program."""
    pieces = tl.cdiv(h, COLUMNS)  # of a row
    v = tl.program_id(0).to(tl.int64) // pieces
    column = tl.program_id(0).to(tl.int64) % pieces * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    start = tl.load(first_ptr + v)
    stop = tl.load(first_ptr + v + 1)

    # The blocks that lie wholly within the run have been added up; what stands before and after them has not.
    first_block = tl.cdiv(start, BLOCK)
    last_block = tl.maximum(stop // BLOCK, first_block)
    total = _sum_of_rows(
        dy_ptr, order_ptr, start, tl.minimum(first_block * BLOCK, stop), column, h,
        length_1, length_2, stride_0, stride_1, stride_2, stride_n, ROWS, COLUMNS, WIDE,
    )  # fmt: skip
    for first in range(first_block, last_block, ROWS):
        block = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        inside = (block < last_block) & (column < h)
        total += tl.sum(
            tl.load(sums_ptr + block * h + column, mask=inside, other=0.0), axis=0, keep_dims=True
        )
    total += _sum_of_rows(
        dy_ptr, order_ptr, last_block * BLOCK, stop, column, h,
        length_1, length_2, stride_0, stride_1, stride_2, stride_n, ROWS, COLUMNS, WIDE,
    )  # fmt: skip
    tl.store(dw_ptr + v * h + column, total, mask=column < h)
