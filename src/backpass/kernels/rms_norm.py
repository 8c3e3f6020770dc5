"""RMS normalisation, in Triton, with each row read once.

Formulas: ``backpass.ops.rms_norm``. Derived on the page ``operations/rms_norm``. A
program keeps whole rows in registers, several if they are short, so it reads and writes
each element once. In the backward, a fixed number of programs loop over all rows. Each
keeps its own sum for w in registers, and a second sum adds these up: there are no
atomics, and two runs agree to the last bit. A row too long for that is read in tiles,
and once more for the sum over rows. Arithmetic and the saved 1/s are in float32
(float64 for float64), whatever is stored.
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
    needs_launch,
    on_rows,
    on_tiles,
    packed,
    row_start,
    rows_of,
)
from backpass.kernels.sums_over_rows import (
    allocate_partials,
    on_columns,
    reduce_partials,
)
from backpass.shapes import check_cotangent, check_saved
from backpass.values import check_eps

SHAPES = "x[*, n>0], w[n]? -> y[*, n]"
PARAMETERS = ("w",)

# What one program may hold of one operand, in the dtype it computes in. The backward
# holds four: x, dy, w
# and the sum for w.
ROW_BYTES = 32 * 1024
TILE_BYTES = 16 * 1024  # of a longer row


class Saved(NamedTuple):
    """The input itself and one number per row. The operation saves x_hat instead; here
    the forward would have to write one more array, and the backward would read as much.
    """

    x: torch.Tensor  # [*, n], as it was given
    rstd: torch.Tensor  # [*], the inverse of the root, in the dtype computed in
    w: torch.Tensor | None  # [n], a parameter


def forward(
    x: torch.Tensor, w: torch.Tensor | None = None, *, eps: float | None = None
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*, n]``, contiguous, from ``x[*, n]``, of any strides, and ``w[n]``;
    ``eps`` as for the operation.

    Raises TypeError if an argument is not a floating-point tensor on a device where
    kernels run, or if its dtype or device differs from that of ``x``; ValueError if
    shapes do not fit, if ``n`` is 0, or if ``eps`` is below 0.
    """
    check_tensors(SHAPES, x=x, w=w)
    wide = accumulator(x.dtype)
    if eps is None:
        eps = torch.finfo(wide).eps
    check_eps(eps)

    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = torch.empty(x.shape[:-1], dtype=wide, device=x.device)
    if needs_launch(y):
        forward_launch(x, packed(w), y, rstd, eps).run()
    return y, Saved(x, rstd, w)


def backward(
    dy: torch.Tensor, saved: Saved
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return ``dx[*, n]``, contiguous, and ``dw[n]`` (None without a weight), from
    ``dy[*, n]``, of any strides."""
    x, rstd, w = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, x.shape, like=x)

    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dw = None if w is None else allocate_partials(x, ROW_BYTES, TILE_BYTES)
    if needs_launch(dx):
        for launch in backward_launches(dy, packed(x), rstd, packed(w), dx, dw):
            launch.run()
    return dx, reduce_partials(dw, x.dtype)


def forward_launch(x, w, y, rstd, eps: float) -> Launch:
    """The launch that writes contiguous y and rstd from ``x[*, n]`` of any strides."""
    x, strides = rows_of(x)
    arguments = {"x_ptr": x, "w_ptr": w, "y_ptr": y, "rstd_ptr": rstd, **strides}
    if fits(y, ROW_BYTES):
        return on_rows(_forward_rows, arguments, y, EPS=float(eps))
    return on_tiles(_forward_tiles, arguments, y, TILE_BYTES, EPS=float(eps))


def backward_launches(dy, x, rstd, w, dx, dw) -> list[Launch]:
    """The launches that write dx and the partial sums of dw, from ``dy[*, n]``, of any
    strides."""
    dy, strides = rows_of(dy)
    given = {"dy_ptr": dy, "x_ptr": x, "rstd_ptr": rstd, **strides}
    of_rows = {**given, "w_ptr": w, "dx_ptr": dx}
    if fits(dx, ROW_BYTES):
        programs = None if dw is None else len(dw)
        return [on_rows(_backward_rows, {**of_rows, "dw_ptr": dw}, dx, programs)]
    launches = [on_tiles(_backward_tiles, of_rows, dx, TILE_BYTES)]
    if dw is not None:
        of_columns = {**given, "dw_ptr": dw}
        launches.append(on_columns(_backward_sums, of_columns, dx, dw, TILE_BYTES))
    return launches


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Every kernel at a telling shape, named, on tensors without memory: to be
    compiled, not run."""
    wide = accumulator(dtype)
    longest = ROW_BYTES // wide.itemsize
    for case, n in (
        ("short rows", 128),
        ("longest row", longest),
        ("tiles", 4 * longest),
    ):
        x = torch.empty(4096, n, dtype=dtype, device="meta")
        w = torch.empty(n, dtype=dtype, device="meta")
        row = torch.empty(4096, dtype=wide, device="meta")
        partials = allocate_partials(x, ROW_BYTES, TILE_BYTES)
        yield case, forward_launch(x, w, x, row, 1e-5)
        for launch in backward_launches(x, x, row, w, x, partials):
            yield case, launch


@triton.jit
def _forward_rows(
    x_ptr,  # [m, n], of the strides given
    w_ptr,  # [n], or None
    y_ptr,  # [m, n], contiguous
    rstd_ptr,  # [m]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    m, n,
    EPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = w x_hat, ROWS rows of at most COLUMNS elements per program."""
    row = (
        tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    )  # [ROWS, 1]
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)  # [1, COLUMNS]
    inside = (row < m) & (column < n)

    at = (
        row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
        + column * stride_n
    )
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(WIDE)

    rstd = 1 / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / n + EPS)  # [ROWS, 1]
    y = x * rstd
    if w_ptr is not None:
        y *= tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)

    tl.store(y_ptr + row * n + column, y, mask=inside)
    tl.store(rstd_ptr + row, rstd, mask=row < m)


@triton.jit
def _backward_rows(
    dy_ptr,  # [m, n], of the strides given
    x_ptr,  # [m, n], contiguous
    rstd_ptr,  # [m]
    w_ptr,  # [n], or None
    dx_ptr,  # [m, n], contiguous
    dw_ptr,  # [programs, n], or None
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    m, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx, and a partial sum of dw: every num_programs-th block of ROWS rows of at most
    COLUMNS elements."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)  # [1, COLUMNS]
    if w_ptr is not None:
        w = tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
    share = tl.full([], 1.0, WIDE) / n  # of an element in a mean
    dw = tl.zeros([ROWS, COLUMNS], WIDE)

    for block in range(program, tl.cdiv(m, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)[:, None].to(tl.int64)  # [ROWS, 1]
        inside = (row < m) & (column < n)
        at = (
            row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
            + column * stride_n
        )
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * n + column, mask=inside, other=0.0).to(WIDE)
        # Along one axis: read once, not for each column.
        of_row = block * ROWS + tl.arange(0, ROWS)
        rstd = tl.load(rstd_ptr + of_row, mask=of_row < m, other=0.0)[:, None]

        x_hat = x * rstd
        dx_hat = dy * w if w_ptr is not None else dy
        along_x_hat = tl.sum(dx_hat * x_hat, axis=1, keep_dims=True) * share
        dx = rstd * (dx_hat - x_hat * along_x_hat)

        tl.store(dx_ptr + row * n + column, dx, mask=inside)
        dw += dy * x_hat

    if dw_ptr is not None:
        at = tl.arange(0, COLUMNS)
        tl.store(dw_ptr + program * n + at, tl.sum(dw, axis=0), mask=at < n)


@triton.jit
def _forward_tiles(
    x_ptr,  # [m, n], of the strides given
    w_ptr,  # [n], or None
    y_ptr,  # [m, n], contiguous
    rstd_ptr,  # [m]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    n,
    EPS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = w x_hat, one row per program, in tiles of COLUMNS elements."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)

    squares = tl.zeros([], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        x = tl.load(x_row + column * stride_n, mask=column < n, other=0.0).to(WIDE)
        squares += tl.sum(x * x, axis=0)
    rstd = 1 / tl.sqrt(squares / n + EPS)

    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        x = tl.load(x_row + column * stride_n, mask=column < n, other=0.0).to(WIDE)
        y = x * rstd
        if w_ptr is not None:
            y *= tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
        tl.store(y_ptr + row * n + column, y, mask=column < n)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def _backward_tiles(
    dy_ptr,  # [m, n], of the strides given
    x_ptr,  # [m, n], contiguous
    rstd_ptr,  # [m]
    w_ptr,  # [n], or None
    dx_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    n,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx, one row per program, in tiles of COLUMNS elements."""
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    rstd = tl.load(rstd_ptr + row)

    along_x_hat = tl.zeros([], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        dx_hat = tl.load(dy_row + column * stride_n, mask=column < n, other=0.0).to(
            WIDE
        )
        if w_ptr is not None:
            dx_hat *= tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0).to(WIDE)
        along_x_hat += tl.sum(dx_hat * (x * rstd), axis=0) / n

    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        dx_hat = tl.load(dy_row + column * stride_n, mask=column < n, other=0.0).to(
            WIDE
        )
        if w_ptr is not None:
            dx_hat *= tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0).to(WIDE)
        dx = rstd * (dx_hat - x * rstd * along_x_hat)
        tl.store(dx_ptr + row * n + column, dx, mask=column < n)


@triton.jit
def _backward_sums(
    dy_ptr,  # [m, n], of the strides given
    x_ptr,  # [m, n], contiguous
    rstd_ptr,  # [m]
    dw_ptr,  # [partials, n]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    m, n,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Partial sums of dw, each over every partials-th row: COLUMNS per program."""
    tiles = tl.cdiv(n, COLUMNS)
    parts = tl.num_programs(0) // tiles
    part = tl.program_id(0).to(tl.int64) // tiles
    column = tl.program_id(0).to(tl.int64) % tiles * COLUMNS + tl.arange(0, COLUMNS)

    dw = tl.zeros([COLUMNS], WIDE)
    for row in range(part, m, parts):
        at = (
            row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
            + column * stride_n
        )
        dy = tl.load(dy_ptr + at, mask=column < n, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0).to(WIDE)
        rstd = tl.load(rstd_ptr + row)
        dw += dy * (x * rstd)

    tl.store(dw_ptr + part * n + column, dw, mask=column < n)
