"""What the kernels of layer norm and RMS norm share: everything but their signatures.

RMS norm is layer norm with a mean of 0 and no bias: its pointers to these are ``None``.
Triton knows that when it compiles a kernel, and leaves out what a guard excludes.

A program keeps whole rows in registers, several if they are short, so it reads and
writes each element once. In the backward, a fixed number of programs loop over all
rows. Each keeps its own sums for w and b in registers, and one more launch adds these
up without atomics, so two runs agree to the last bit. If a row fits into the
registers but the sums do not fit beside it, another launch reads the rows again for the
sums. A longer row is read in tiles. Arithmetic and the saved mean and
1/s are in float32 (float64 for float64), whatever is stored. w and b, and so their
gradients, may be float32 where x has half precision.

The sum of a residual connection that a norm reads can be computed in the norm's kernel:
with an f, x + f is normalised, and stored beside y. The gradient that reaches this sum
from the stream, ds, is then added to dx. PyTorch adds f to a row in tiles, and ds to a
row beside which a program cannot hold the sums: a third operand would spill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from backpass.contract.shapes import Outline
from backpass.kernels.launch import (
    TRITON_DTYPES,
    Launch,
    accumulator,
    cdiv,
    empty_like,
    fits,
    needs_launch,
    on_rows,
    on_tiles,
    packed,
    row_start,
    rows_of,
    whole_rows,
)
from backpass.kernels.sums_over_rows import allocate_partials, on_columns

# The gradients of a norm's output and, where its rows are a sum, of the sum.
GRADIENTS = "dy[*, n>0], ds[*, n] -> dx[*, n]"
# What one program may hold of one operand, in the dtype it computes in. The forward
# holds x and one parameter. The backward holds dy as well, and half as much of each if
# it also holds the sums for w and b.
ROW_BYTES = 64 * 1024
TILE_BYTES = 16 * 1024  # of a longer row
# Beside sums, a program loads the next two blocks of rows while it computes one: Triton
# copies them to shared memory, and the registers hold one block.
STAGES = 3
SHARED_BYTES = 128 * 1024
TOTALS = (32, 64)  # partial sums and columns that a program adds up at a time


def forward(
    x: torch.Tensor,
    w: torch.Tensor | None,
    b: torch.Tensor | None,
    eps: float,
    *,
    centred: bool,
    f: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return ``y[*, n]``, contiguous, the rows ``s[*, n]`` of which it is made,
    ``mean[*]``, None unless ``centred``, and ``rstd[*]``, from ``x[*, n]`` and
    ``f[*, n]``, of any strides, ``w[n]`` and ``b[n]``. The rows are x itself, or with
    f the sum of both in their dtype, contiguous."""
    if f is not None and not fits(x, ROW_BYTES):
        x, f = x + f, None
    wide = accumulator(x.dtype)
    s = x if f is None else empty_like(x)
    y = empty_like(x)
    rstd = torch.empty(x.shape[:-1], dtype=wide, device=x.device)
    mean = torch.empty(rstd.shape, dtype=wide, device=x.device) if centred else None
    if needs_launch(y):
        of_sum = {} if f is None else {"f": packed(f), "s": s}
        forward_launch(x, packed(w), packed(b), y, mean, rstd, eps, **of_sum).run()
    return y, s, mean, rstd


def backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    w: torch.Tensor | None,
    b: Outline | None,
    ds: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return ``dx[*, n]``, contiguous, ``dw[n]`` and ``db[n]`` (None without a weight
    or a bias), from ``dy[*, n]`` and ``x[*, n]``, of any strides. Of the bias only the
    dtype is read. With ``ds[*, n]``, of any strides, dx is the sum of both."""
    apart = None
    if ds is not None and not fits(x, ROW_BYTES // 2):
        ds, apart = None, ds
    dx = empty_like(x)
    dw, db = (None if of is None else gradient_like(of, x) for of in (w, b))
    if needs_launch(dx):
        of_w, of_b = (None if of is None else partial_sums(x) for of in (dw, db))
        given = dy, packed(x), mean, rstd, packed(w), dx, of_w, of_b
        launches = backward_launches(*given, packed(ds))
        for launch in (*launches, *totals(of_w, of_b, dw, db)):
            launch.run()
    return dx if apart is None else dx + apart, dw, db


def gradient_like(parameter: torch.Tensor | Outline, x: torch.Tensor) -> torch.Tensor:
    """Memory for the gradient of a parameter ``[n]`` of ``x[*, n]``; zeros if there are
    no rows to sum over."""
    like: dict[str, Any] = {"dtype": parameter.dtype, "device": x.device}
    create = torch.empty if needs_launch(x) else torch.zeros
    return create(x.shape[-1:], **like)


def partial_sums(x: torch.Tensor) -> torch.Tensor:
    """Allocate the partial sums of a parameter's gradient."""
    return allocate_partials(x, ROW_BYTES // 2, TILE_BYTES)


def forward_launch(x, w, b, y, mean, rstd, eps: float, f=None, s=None) -> Launch:
    """The launch that writes y, mean and rstd, contiguous, from ``x[*, n]``, of any
    strides. With f it writes the sum s as well, if a program holds whole rows."""
    x, strides = rows_of(x)
    arguments = {"x_ptr": x, "w_ptr": w, "b_ptr": b, "y_ptr": y, **strides}
    arguments |= {"mean_ptr": mean, "rstd_ptr": rstd}
    if fits(y, ROW_BYTES):
        arguments |= {"f_ptr": f, "s_ptr": s}
        return on_rows(_forward_rows, arguments, y, fused=False, EPS=float(eps))
    return on_tiles(_forward_tiles, arguments, y, TILE_BYTES, EPS=float(eps))


def backward_launches(dy, x, mean, rstd, w, dx, dw, db, ds=None) -> list[Launch]:
    """The launches that write dx and the partial sums of dw and db, from ``dy[*, n]``,
    of any strides. With ds, which only rows beside sums may have, dx is the sum of
    both."""
    dy, strides = rows_of(dy)
    given = {"dy_ptr": dy, "x_ptr": x, "mean_ptr": mean, "rstd_ptr": rstd, **strides}
    of_tiles = {**given, "w_ptr": w, "dx_ptr": dx}
    of_rows = {**of_tiles, "ds_ptr": ds}
    sums = {"dw_ptr": dw, "db_ptr": db}
    partials = next((each for each in (dw, db) if each is not None), None)
    if fits(dx, ROW_BYTES // 2) and partials is not None:
        arguments, programs = {**of_rows, **sums}, len(partials)
        return [_on_rows(arguments, dx, programs, stages(dx, 2 if ds is None else 3))]
    if fits(dx, ROW_BYTES):
        arguments = {**of_rows, "dw_ptr": None, "db_ptr": None}
        launches = [_on_rows(arguments, dx, None, 1)]
    else:
        launches = [on_tiles(_backward_tiles, of_tiles, dx, TILE_BYTES)]
    if partials is not None:
        of_columns = {**given, **sums}
        launches.append(
            on_columns(_backward_sums, of_columns, dx, partials, TILE_BYTES)
        )
    return launches


def _on_rows(arguments, dx, programs: int | None, stages: int) -> Launch:
    options: dict[str, Any] = {"fused": False, "STAGES": stages}
    return on_rows(_backward_rows, arguments, dx, programs, **options)


def stages(dx: torch.Tensor, operands: int) -> int:
    """Return STAGES, or fewer if so many blocks of each operand exceed the shared
    memory."""
    block = whole_rows(dx)
    held = operands * block.rows * block.columns * dx.element_size()
    return min(STAGES, 1 + SHARED_BYTES // held)


def totals(of_w, of_b, dw, db) -> list[Launch]:
    """The launch that writes ``dw[n]`` and ``db[n]``, from their partial sums
    ``[partials, n]``; none if both are None."""
    given = next((each for each in (of_w, of_b) if each is not None), None)
    if given is None:
        return []
    parts, n = given.shape
    arguments = {"of_w_ptr": of_w, "of_b_ptr": of_b, "dw_ptr": dw, "db_ptr": db}
    arguments |= {"parts": parts, "n": n}
    constants = {"PARTS": TOTALS[0], "COLUMNS": TOTALS[1]}
    constants["WIDE"] = TRITON_DTYPES[given.dtype]
    programs = cdiv(n, TOTALS[1])
    return [Launch(_backward_totals, programs, arguments, constants, warps=4)]


def declare_launches(*others: Callable, centred: bool, has_b: bool) -> Callable:
    """``launches`` of a kernel with a weight, with a mean if ``centred``, and with a
    bias if ``has_b``. The ``others`` list more launches."""

    def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
        """Every kernel at a telling shape, named, on tensors without memory: to be
        compiled, not run."""
        wide = accumulator(dtype)
        longest = ROW_BYTES // wide.itemsize
        for case, n in (
            ("short rows", 128),
            ("longest row", longest // 2),
            ("longest row without sums", longest),
            ("tiles", 4 * longest),
        ):
            x = torch.empty(4096, n, dtype=dtype, device="meta")
            w = torch.empty(n, dtype=dtype, device="meta")
            rstd = torch.empty(4096, dtype=wide, device="meta")
            of_w = partial_sums(x)
            mean = rstd if centred else None
            b, of_b = (w, of_w) if has_b else (None, None)
            yield case, forward_launch(x, w, b, x, mean, rstd, 1e-5)
            for launch in backward_launches(x, x, mean, rstd, w, x, of_w, of_b):
                yield case, launch
            for launch in totals(of_w, of_b, w, b):
                yield case, launch
            of_sum = "longest row of a sum"
            if case == "longest row":
                for launch in backward_launches(
                    x, x, mean, rstd, w, x, of_w, of_b, ds=x
                ):
                    yield of_sum, launch
            if case == "longest row without sums":
                yield of_sum, forward_launch(x, w, b, x, mean, rstd, 1e-5, f=x, s=x)
        for other in others:
            yield from other(dtype)

    return launches


@triton.jit
def _forward_rows(
    x_ptr,  # [m, n], of the strides given
    w_ptr, b_ptr,  # [n], or None
    y_ptr,  # [m, n], contiguous
    mean_ptr,  # [m], or None: the mean is then 0
    rstd_ptr,  # [m]
    f_ptr, s_ptr,  # [m, n], contiguous, or None: x itself is then normalised
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    m, n,
    EPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = w x_hat + b, ROWS rows of at most COLUMNS elements per program."""
    # [ROWS, 1] and [1, COLUMNS]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)
    inside = (row < m) & (column < n)

    at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    at += column * stride_n
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(WIDE)
    if f_ptr is not None:
        f = tl.load(f_ptr + row * n + column, mask=inside, other=0.0).to(WIDE)
        # Rounded first, so that what is normalised is what the backward will read.
        s = (x + f).to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + row * n + column, s, mask=inside)
        x = s.to(WIDE)

    centred = x
    if mean_ptr is not None:
        mean = tl.sum(x, axis=1, keep_dims=True) / n  # [ROWS, 1]
        centred = tl.where(inside, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / n + EPS)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean, mask=row < m)
    tl.store(rstd_ptr + row, rstd, mask=row < m)

    y = centred * rstd
    if w_ptr is not None:
        y *= tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
    if b_ptr is not None:
        y += tl.load(b_ptr + column, mask=column < n, other=0.0).to(WIDE)

    tl.store(y_ptr + row * n + column, y, mask=inside)


@triton.jit
def _backward_rows(
    dy_ptr,  # [m, n], of the strides given
    x_ptr,  # [m, n], contiguous
    mean_ptr,  # [m], or None: the mean is then 0
    rstd_ptr,  # [m]
    w_ptr,  # [n], or None
    ds_ptr,  # [m, n], contiguous, or None: nothing is then added to dx
    dx_ptr,  # [m, n], contiguous
    dw_ptr, db_ptr,  # [programs, n], or None
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    m, n,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx, and partial sums of dw and db: every num_programs-th block of ROWS rows of at
    most COLUMNS elements. The next STAGES - 1 blocks are loaded meanwhile."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)  # [1, COLUMNS]
    # Beside sums, w is read once for all blocks. A program without sums has one block,
    # and reads w where it needs it: w held in registers throughout would spill.
    sums: tl.constexpr = dw_ptr is not None or db_ptr is not None
    if w_ptr is not None and sums:
        w = tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
    dw = tl.zeros([ROWS, COLUMNS], WIDE)
    db = tl.zeros([ROWS, COLUMNS], WIDE)

    blocks = tl.cdiv(m, ROWS)
    for block in tl.range(program, blocks, tl.num_programs(0), num_stages=STAGES):
        row = block * ROWS + tl.arange(0, ROWS)[:, None].to(tl.int64)  # [ROWS, 1]
        inside = (row < m) & (column < n)
        at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
        at += column * stride_n
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * n + column, mask=inside, other=0.0).to(WIDE)
        # Along one axis: read once, not for each column.
        of_row = block * ROWS + tl.arange(0, ROWS)
        mean = 0.0
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + of_row, mask=of_row < m, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + of_row, mask=of_row < m, other=0.0)[:, None]

        x_hat = (x - mean) * rstd
        dw += dy * x_hat
        db += dy
        if w_ptr is not None and not sums:
            w = tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
        dx_hat = dy * w if w_ptr is not None else dy
        along_ones = 0.0
        if mean_ptr is not None:
            along_ones = tl.sum(dx_hat, axis=1, keep_dims=True) / n
        along_x_hat = tl.sum(dx_hat * x_hat, axis=1, keep_dims=True) / n
        dx = rstd * (dx_hat - along_ones - x_hat * along_x_hat)
        if ds_ptr is not None:
            ds = tl.load(ds_ptr + row * n + column, mask=inside, other=0.0).to(WIDE)
            dx += ds

        tl.store(dx_ptr + row * n + column, dx, mask=inside)

    at = program * n + tl.arange(0, COLUMNS)
    if dw_ptr is not None:
        tl.store(dw_ptr + at, tl.sum(dw, axis=0), mask=tl.arange(0, COLUMNS) < n)
    if db_ptr is not None:
        tl.store(db_ptr + at, tl.sum(db, axis=0), mask=tl.arange(0, COLUMNS) < n)


@triton.jit
def _forward_tiles(
    x_ptr,  # [m, n], of the strides given
    w_ptr, b_ptr,  # [n], or None
    y_ptr,  # [m, n], contiguous
    mean_ptr,  # [m], or None: the mean is then 0
    rstd_ptr,  # [m]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    n,
    EPS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = w x_hat + b, one row per program, in tiles of COLUMNS elements."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)

    # One pass for the mean and the squares about it together. A tile's squares are
    # taken about that tile's mean; they and the squares so far are then moved to the
    # mean of both.
    mean = tl.zeros([], WIDE)
    squares = tl.zeros([], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        x = tl.load(x_row + column * stride_n, mask=column < n, other=0.0).to(WIDE)
        centred = x
        if mean_ptr is not None:
            count = tl.minimum(n - start, COLUMNS)
            mean_here = tl.sum(x, axis=0) / count
            centred = tl.where(column < n, x - mean_here, 0.0)
            apart = mean_here - mean
            share = count / (start + count).to(WIDE)
        squares_here = tl.sum(centred * centred, axis=0)
        if mean_ptr is not None:
            squares_here += apart * apart * share * start
            mean += apart * share
        squares += squares_here
    rstd = 1 / tl.sqrt(squares / n + EPS)

    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        x = tl.load(x_row + column * stride_n, mask=column < n, other=0.0).to(WIDE)
        y = (x - mean) * rstd
        if w_ptr is not None:
            y *= tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
        if b_ptr is not None:
            y += tl.load(b_ptr + column, mask=column < n, other=0.0).to(WIDE)
        tl.store(y_ptr + row * n + column, y, mask=column < n)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def _backward_tiles(
    dy_ptr,  # [m, n], of the strides given
    x_ptr,  # [m, n], contiguous
    mean_ptr,  # [m], or None: the mean is then 0
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
    mean = tl.load(mean_ptr + row) if mean_ptr is not None else 0.0
    rstd = tl.load(rstd_ptr + row)

    along_ones = tl.zeros([], WIDE)
    along_x_hat = tl.zeros([], WIDE)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        dx_hat = tl.load(dy_row + column * stride_n, mask=column < n, other=0.0).to(
            WIDE
        )
        if w_ptr is not None:
            dx_hat *= tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0).to(WIDE)
        if mean_ptr is not None:
            along_ones += tl.sum(dx_hat, axis=0) / n
        along_x_hat += tl.sum(dx_hat * ((x - mean) * rstd), axis=0) / n

    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        dx_hat = tl.load(dy_row + column * stride_n, mask=column < n, other=0.0).to(
            WIDE
        )
        if w_ptr is not None:
            dx_hat *= tl.load(w_ptr + column, mask=column < n, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0).to(WIDE)
        dx = rstd * (dx_hat - along_ones - (x - mean) * rstd * along_x_hat)
        tl.store(dx_ptr + row * n + column, dx, mask=column < n)


@triton.jit
def _backward_sums(
    dy_ptr,  # [m, n], of the strides given
    x_ptr,  # [m, n], contiguous
    mean_ptr,  # [m], or None: the mean is then 0
    rstd_ptr,  # [m]
    dw_ptr, db_ptr,  # [partials, n], or None
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    m, n,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Partial sums of dw and db, each of every partials-th row: COLUMNS columns per
    program."""
    tiles = tl.cdiv(n, COLUMNS)
    parts = tl.num_programs(0) // tiles
    part = tl.program_id(0).to(tl.int64) // tiles
    column = tl.program_id(0).to(tl.int64) % tiles * COLUMNS + tl.arange(0, COLUMNS)

    dw = tl.zeros([COLUMNS], WIDE)
    db = tl.zeros([COLUMNS], WIDE)
    for row in range(part, m, parts):
        at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
        at += column * stride_n
        dy = tl.load(dy_ptr + at, mask=column < n, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0).to(WIDE)
        mean = tl.load(mean_ptr + row) if mean_ptr is not None else 0.0
        rstd = tl.load(rstd_ptr + row)
        dw += dy * ((x - mean) * rstd)
        db += dy

    at = part * n + column
    if dw_ptr is not None:
        tl.store(dw_ptr + at, dw, mask=column < n)
    if db_ptr is not None:
        tl.store(db_ptr + at, db, mask=column < n)


@triton.jit
def _backward_totals(
    of_w_ptr, of_b_ptr,  # [parts, n], or None
    dw_ptr, db_ptr,  # [n], or None
    parts, n,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dw and db, the sums of their partial sums: COLUMNS columns per program."""
    # [1, COLUMNS]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :].to(tl.int64)
    dw = tl.zeros([PARTS, COLUMNS], WIDE)
    db = tl.zeros([PARTS, COLUMNS], WIDE)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)[:, None]  # [PARTS, 1]
        at, inside = part * n + column, (part < parts) & (column < n)
        if of_w_ptr is not None:
            dw += tl.load(of_w_ptr + at, mask=inside, other=0.0)
        if of_b_ptr is not None:
            db += tl.load(of_b_ptr + at, mask=inside, other=0.0)

    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS).to(tl.int64)
    if dw_ptr is not None:
        tl.store(dw_ptr + column, tl.sum(dw, axis=0), mask=column < n)
    if db_ptr is not None:
        tl.store(db_ptr + column, tl.sum(db, axis=0), mask=column < n)
