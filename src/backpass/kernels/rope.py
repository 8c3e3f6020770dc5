"""Rotary position embedding in Triton, one kernel for each choice of pairs.

Formulas: ``backpass.ops.rope``. Derived on the page ``operations/rope``. A program
holds both elements of its pairs before it writes either, so each is read once and
written once, by one program: two runs agree to the last bit. The backward is the
forward with minus the sine. Rows are read in place: the heads of ``[b, s, n_h, d]``,
transposed to ``[b, n_h, s, d]``, are not copied, and tables are read with stride 0
along the axes that share them. Arithmetic is in float32 (float64 for float64), whatever
is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.contract.shapes import Kind, check_cotangent, check_saved, kind
from backpass.contract.values import check_bool, check_tables
from backpass.kernels.elementwise import piece
from backpass.kernels.launch import (
    TRITON_DTYPES,
    Launch,
    accumulator,
    cdiv,
    check_tensor,
    check_tensors,
    empty_like,
    needs_launch,
    power_of_2,
    row_start,
    rows_of,
)

SHAPES = "x[*, s, 2k], cos[*, s, k]:shared, sin[*, s, k]:shared -> y[*, s, 2k]"
CONSTANTS = ("cos", "sin")
WIDE = ("cos", "sin")

PAIRS = 1024  # per program: 8 for each of its 128 threads
WARPS = 4


class Saved(NamedTuple):
    """The tables, which all layers share, and no activation."""

    cos: torch.Tensor  # [*, s, k], as it was given
    sin: torch.Tensor  # [*, s, k], as it was given
    shape: tuple[int, ...]
    kind: Kind  # of x, whose dtype may be shorter than that of the tables
    interleaved: bool


def forward(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*, s, 2k]``, contiguous: ``x[*, s, 2k]``, of any strides, rotated by
    tables ``cos`` and ``sin``, of any strides, that broadcast to ``[*, s, k]``;
    ``ops.rope.tables`` computes them.

    Raises TypeError if an argument is not a floating-point tensor on a device where
    kernels run, if dtypes or devices differ, apart from float32 tables beside half
    precision, or if ``interleaved`` is not a bool; ValueError if shapes do not fit, as
    with an odd last axis.
    """
    check_tables(x, cos=cos, sin=sin)
    check_tensors(SHAPES, WIDE, x=x, cos=cos, sin=sin)
    check_bool(interleaved=interleaved)
    saved = Saved(cos, sin, tuple(x.shape), kind(x), interleaved)
    return turned(x, saved, 1), saved


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """Return ``dx[*, s, 2k]``, contiguous, from ``dy[*, s, 2k]``, of any strides."""
    saved = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, saved.shape, like=saved.kind)
    return turned(dy, saved, -1)


def turned(x: torch.Tensor, saved: Saved, sign: int) -> torch.Tensor:
    """Return x rotated by the tables' angles, or back by a sign of −1."""
    y = empty_like(x)
    if needs_launch(y):
        launch(x, saved.cos, saved.sin, y, saved.interleaved, sign).run()
    return y


def launch(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    y: torch.Tensor,
    interleaved: bool,
    sign: int,
) -> Launch:
    """The launch that writes ``y[*, s, 2k]``, contiguous, from ``x`` and tables, of any
    strides. The sign −1 rotates back."""
    k = x.shape[-1] // 2
    m = y.numel() // (2 * k)
    columns = min(power_of_2(k), PAIRS)
    rows = PAIRS // columns
    cos, sin = (table.expand(*x.shape[:-1], k) for table in (cos, sin))
    x, arguments = rows_of(x, cos=cos, sin=sin)
    arguments |= {"x_ptr": x, "y_ptr": y, "m": m, "k": k}
    wide = TRITON_DTYPES[accumulator(y.dtype)]
    constants = {"SIGN": sign, "ROWS": rows, "COLUMNS": columns, "WIDE": wide}
    kernel = _turn_neighbours if interleaved else _turn_halves
    programs = cdiv(m, rows) * cdiv(k, columns)
    return Launch(kernel, programs, arguments, constants, WARPS)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Both kernels at telling shapes, named, on tensors without memory: to be compiled,
    not run."""
    for d in (64, 256):
        x = torch.empty(2, 512, 8, d, dtype=dtype, device="meta").transpose(1, 2)
        y = torch.empty(x.shape, dtype=dtype, device="meta")
        table = torch.empty(512, d // 2, dtype=dtype, device="meta")
        for interleaved in (False, True):
            yield f"d = {d}", launch(x, table, table, y, interleaved, -1)


@triton.jit
def _turn_halves(
    x_ptr,  # [m, 2k], of the strides given
    cos_ptr, sin_ptr,  # [m, k], of the strides given
    y_ptr,  # [m, 2k], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    cos_stride_0, cos_stride_1, cos_stride_2, cos_stride_n,
    sin_stride_0, sin_stride_1, sin_stride_2, sin_stride_n,
    m, k,
    SIGN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = x rotated by SIGN times the tables' angles; a pair is an element and the one
    k after it."""
    row, pair, inside = piece(m, k, ROWS, COLUMNS)
    at = row_start(row, length_1, length_2, cos_stride_0, cos_stride_1, cos_stride_2)
    at += pair * cos_stride_n
    cos = tl.load(cos_ptr + at, mask=inside, other=0.0).to(WIDE)
    at = row_start(row, length_1, length_2, sin_stride_0, sin_stride_1, sin_stride_2)
    at += pair * sin_stride_n
    sin = tl.load(sin_ptr + at, mask=inside, other=0.0).to(WIDE)

    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    a = tl.load(x_row + pair * stride_n, mask=inside, other=0.0).to(WIDE)
    b = tl.load(x_row + (pair + k) * stride_n, mask=inside, other=0.0).to(WIDE)

    turned_a, turned_b = rotated(a, b, cos, sin * SIGN)

    y_row = y_ptr + row * 2 * k
    tl.store(y_row + pair, turned_a, mask=inside)
    tl.store(y_row + pair + k, turned_b, mask=inside)


@triton.jit
def _turn_neighbours(
    x_ptr,  # [m, 2k], of the strides given
    cos_ptr, sin_ptr,  # [m, k], of the strides given
    y_ptr,  # [m, 2k], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    cos_stride_0, cos_stride_1, cos_stride_2, cos_stride_n,
    sin_stride_0, sin_stride_1, sin_stride_2, sin_stride_n,
    m, k,
    SIGN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = x rotated by SIGN times the tables' angles; a pair is two neighbours."""
    row, pair, inside = piece(m, k, ROWS, COLUMNS)
    at = row_start(row, length_1, length_2, cos_stride_0, cos_stride_1, cos_stride_2)
    at += pair * cos_stride_n
    cos = tl.load(cos_ptr + at, mask=inside, other=0.0).to(WIDE)
    at = row_start(row, length_1, length_2, sin_stride_0, sin_stride_1, sin_stride_2)
    at += pair * sin_stride_n
    sin = tl.load(sin_ptr + at, mask=inside, other=0.0).to(WIDE)

    # Neighbours are read side by side, as they are stored, and separated in registers.
    row, column, inside = piece(m, 2 * k, ROWS, 2 * COLUMNS)
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    x = tl.load(x_row + column * stride_n, mask=inside, other=0.0).to(WIDE)
    a, b = tl.split(tl.reshape(x, [ROWS, COLUMNS, 2]))

    turned_a, turned_b = rotated(a, b, cos, sin * SIGN)

    y = tl.join(turned_a, turned_b)
    tl.store(
        y_ptr + row * 2 * k + column, tl.reshape(y, [ROWS, 2 * COLUMNS]), mask=inside
    )


@triton.jit
def rotated(a, b, cos, sin):
    """The pair (a, b) rotated by an angle."""
    return a * cos - b * sin, b * cos + a * sin
