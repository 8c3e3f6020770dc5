"""Token embedding in Triton, without atomics.

Formulas: ``backpass.ops.embedding``, where a token is a row with a 1 in its place.
Derived on the page ``operations/embeddings``. In the forward, a program copies rows of
w. The backward sorts the tokens, so the rows of dy that belong to one row of dw become
neighbours. Each row of dw has one owner: the program that adds up those rows in float32
(float64 for float64), always in the same order, and writes the sum once, or zeros if
the token does not occur. Every row of dy is read once.

A token that occurs n times, such as padding, would leave its owner adding n rows, one
after the other, long after other programs have finished. So another kernel runs first.
It adds up each block of ``BLOCK`` sorted tokens that are all equal, and the owner uses
such a block's sum in place of its rows. The owner then adds at most n / BLOCK sums, and
fewer than 2 BLOCK rows from the blocks that its run shares with other tokens. Blocks of
different tokens, nearly all of them, are skipped, and so are those of ``padding_idx``,
whose row of dw is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from backpass.contract.shapes import Kind, check_cotangent, check_saved, kind
from backpass.contract.values import check_padding_idx, check_tokens
from backpass.kernels.elementwise import piece_of_row
from backpass.kernels.launch import (
    TRITON_DTYPES,
    Launch,
    accumulator,
    cdiv,
    check_tensor,
    check_tensors,
    needs_launch,
    packed,
    power_of_2,
    row_start,
    rows_of,
)

SHAPES = "t[*]:int, w[V>0, h] -> y[*, h]"
PARAMETERS = ("w",)

NO_PADDING = -1  # in place of a token
BLOCK = 64  # sorted tokens that are added up together if all are equal
# At most, of a row in one program, in the dtype it adds in. The piece is this wide
# because most rows of dw have no token: their programs only write.
ROW_BYTES = 16 * 1024


class Saved(NamedTuple):
    """The tokens, and the table's shape."""

    t: torch.Tensor  # [*]
    table: tuple[int, int]
    kind: Kind
    padding_idx: int | None = None


def forward(
    t: torch.Tensor, w: torch.Tensor, *, padding_idx: int | None = None
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*, h]``, contiguous: for each token of ``t[*]``, its row of ``w[V,
    h]``, which may have any strides. The row ``padding_idx`` gets no gradient.

    Raises TypeError unless ``t`` holds integers and ``w`` floating-point numbers, both
    on a device where kernels run. A token outside the vocabulary raises IndexError on
    the CPU; on a CUDA device an assertion reports it, which a captured graph repeats.
    """
    check_tensors(SHAPES, t=t, w=w)
    t, (V, h) = t.long(), w.shape
    padding_idx = check_padding_idx(padding_idx, V)
    check_tokens(t, V)

    y = torch.empty((*t.shape, h), dtype=w.dtype, device=w.device)
    if needs_launch(y):
        forward_launch(packed(t).reshape(-1), w.resolve_neg(), y).run()
    return y, Saved(t, (V, h), kind(w), padding_idx)


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """Return ``dw[V, h]``, contiguous, from ``dy[*, h]``, of any strides."""
    t, (V, h), like, padding_idx = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, (*t.shape, h), like)

    dw = torch.empty((V, h), dtype=dy.dtype, device=dy.device)
    if needs_launch(dw):
        tokens, order = torch.sort(packed(t).reshape(-1), stable=True)
        first = torch.searchsorted(tokens, torch.arange(V + 1, device=t.device))
        wide: dict[str, Any] = {"dtype": accumulator(dy.dtype), "device": dy.device}
        sums = torch.empty((len(tokens) // BLOCK, h), **wide)
        padding = NO_PADDING if padding_idx is None else padding_idx
        if needs_launch(sums):
            blocks_launch(dy, tokens, order, sums, padding).run()
        owners_launch(dy, order, first, sums, dw, padding).run()
    return dw


def forward_launch(t: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Launch:
    """The launch that writes ``y[m, h]``, contiguous, from the tokens ``t[m]`` and
    ``w[V, h]``, of any strides."""
    strides = {"w_stride_v": w.stride(0), "w_stride_h": w.stride(1)}
    arguments = {"t_ptr": t, "w_ptr": w, "y_ptr": y, **strides, "V": len(w)}
    return _by_rows(_forward, arguments, y, accumulator(w.dtype))


def blocks_launch(
    dy: torch.Tensor,
    tokens: torch.Tensor,
    order: torch.Tensor,
    sums: torch.Tensor,
    padding: int = NO_PADDING,
) -> Launch:
    """The launch that writes ``sums[b]`` for every block b of ``BLOCK`` sorted tokens
    that are all equal and not padding."""
    dy, strides = rows_of(dy)
    arguments = {"dy_ptr": dy, "tokens_ptr": tokens, "order_ptr": order, **strides}
    arguments |= {"sums_ptr": sums, "padding": padding}
    constants = {"BLOCK": BLOCK, "WIDE": TRITON_DTYPES[sums.dtype]}
    return _by_rows(_backward_blocks, arguments, sums, sums.dtype, **constants)


def owners_launch(
    dy: torch.Tensor,
    order: torch.Tensor,
    first: torch.Tensor,
    sums: torch.Tensor,
    dw: torch.Tensor,
    padding: int = NO_PADDING,
) -> Launch:
    """The launch that writes every row of ``dw[V, h]``. Row v is the sum of the rows of
    dy from ``order[first[v]]`` to before ``order[first[v + 1]]``; whole blocks of them
    come from ``sums``. The row ``padding`` is 0."""
    dy, strides = rows_of(dy)
    arguments = {"dy_ptr": dy, "order_ptr": order, "first_ptr": first, **strides}
    arguments |= {"sums_ptr": sums, "dw_ptr": dw, "padding": padding}
    constants = {"BLOCK": BLOCK, "WIDE": TRITON_DTYPES[sums.dtype]}
    return _by_rows(_backward_rows, arguments, dw, sums.dtype, **constants)


def _by_rows(
    kernel, arguments: dict, result: torch.Tensor, dtype: torch.dtype, **constants
) -> Launch:
    """One program per piece of each row of ``result[*, h]``, for that dtype."""
    h = result.shape[-1]
    columns = min(power_of_2(h), ROW_BYTES // dtype.itemsize)
    programs = result.numel() // h * cdiv(h, columns)
    warps = max(columns // 512, 1)  # 16 elements per thread
    constants["COLUMNS"] = columns
    return Launch(kernel, programs, {**arguments, "h": h}, constants, warps)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Every kernel at telling shapes, named, on tensors without memory: to be compiled,
    not run."""
    for h in (64, 4096):
        t = torch.empty(16384, dtype=torch.int64, device="meta")
        w = torch.empty(50257, h, dtype=dtype, device="meta")
        y = torch.empty(16384, h, dtype=dtype, device="meta")
        sums = torch.empty(256, h, dtype=accumulator(dtype), device="meta")
        first = torch.empty(50258, dtype=torch.int64, device="meta")
        yield f"h = {h}", forward_launch(t, w, y)
        yield f"h = {h}", blocks_launch(y, t, t, sums)
        yield f"h = {h}", owners_launch(y, t, first, sums, w)


@triton.jit
def _forward(
    t_ptr,  # [m]
    w_ptr,  # [V, h], of the strides given
    y_ptr,  # [m, h], contiguous
    w_stride_v, w_stride_h, V, h,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """y = w[t], one token and at most COLUMNS columns per program."""
    row, column = piece_of_row(h, COLUMNS)
    token = tl.load(t_ptr + row)
    known = (column < h) & (token >= 0) & (token < V)
    w = tl.load(
        w_ptr + token * w_stride_v + column * w_stride_h, mask=known, other=float("nan")
    )
    tl.store(y_ptr + row * h + column, w, mask=column < h)


@triton.jit
def _backward_blocks(
    dy_ptr,  # [m, h], of the strides given
    tokens_ptr, order_ptr,  # [m], the tokens sorted, and where each stood
    sums_ptr,  # [m // BLOCK, h], contiguous
    padding,  # the token whose sums are not needed
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    h,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """sums[b] = Σ dy over block b of the sorted tokens, if they are all equal."""
    block, column = piece_of_row(h, COLUMNS)
    start = block * BLOCK
    token = tl.load(tokens_ptr + start)
    if (token == tl.load(tokens_ptr + start + BLOCK - 1)) & (token != padding):
        total = tl.zeros([COLUMNS], WIDE)
        for i in range(BLOCK):
            row = tl.load(order_ptr + start + i)
            at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
            at += column * stride_n
            dy = tl.load(dy_ptr + at, mask=column < h, other=0.0).to(WIDE)
            total += dy
        tl.store(sums_ptr + block * h + column, total, mask=column < h)


@triton.jit
def _backward_rows(
    dy_ptr,  # [m, h], of the strides given
    order_ptr,  # [m], where each of the sorted tokens stood
    first_ptr,  # [V + 1], where each row's tokens begin among the sorted
    sums_ptr,  # [m // BLOCK, h], contiguous
    dw_ptr,  # [V, h], contiguous
    padding,  # the row that is not trained
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    h,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dw[v] = Σ dy over the tokens that are v, one row and at most COLUMNS columns per
    program."""
    v, column = piece_of_row(h, COLUMNS)
    start = tl.load(first_ptr + v)
    stop = tl.load(first_ptr + tl.where(v == padding, v, v + 1))

    # Blocks wholly within the run have been added up; the rows before the first block
    # and after the last have not.
    first_block = tl.cdiv(start, BLOCK)
    blocks = tl.maximum(stop // BLOCK - first_block, 0)
    before = first_block * BLOCK - start

    total = tl.zeros([COLUMNS], WIDE)
    for i in range(0, stop - start - blocks * BLOCK):
        place = start + i + tl.where(i < before, 0, blocks * BLOCK)
        row = tl.load(order_ptr + place)
        at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
        at += column * stride_n
        dy = tl.load(dy_ptr + at, mask=column < h, other=0.0).to(WIDE)
        total += dy
    for block in range(first_block, first_block + blocks):
        part = tl.load(sums_ptr + block * h + column, mask=column < h, other=0.0)
        total += part
    tl.store(dw_ptr + v * h + column, total, mask=column < h)
