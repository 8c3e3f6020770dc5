"""RMS norm whose rows RoPE then rotates, in one kernel, as Qwen3 does with the heads of
queries and keys.

The formulas are those of ``backpass.ops.rms_norm`` and ``backpass.ops.rope``, and the
interface is that of ``rms_norm``. A program loads both elements of its pairs, so it can
rotate a row that it has normalised, and the normalised row is never stored: the forward
loads x and stores y. It computes in float32 (float64 for float64) and rounds once,
where ``rms_norm`` and ``rope`` one after the other round the normalised row too. The
backward rotates dy back in registers and sums for w as ``norm_rows`` does.

Rows are processed in the order in which x has them in memory, and y and dx have their
axes in that order too. So the heads that a projection leaves in ``[b, s, n_h, d]`` are
read in place, the heads of one position share the rows of the tables, and the
projection reads their gradient without a copy. If a program does not hold a row, the
two kernels run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from backpass.kernels import norm_rows
from backpass.kernels.launch import (
    Launch,
    accumulator,
    empty_like,
    fits,
    needs_launch,
    on_rows,
    packed,
    row_start,
    rows_of,
)
from backpass.kernels.pairs import load_pairs, load_table, store_pairs
from backpass.kernels.rope import Saved as Rotation
from backpass.kernels.rope import rotated, turned


def forward(
    x: torch.Tensor, w: torch.Tensor, rotation: Rotation, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``y[*, s, 2k]`` and ``rstd[*, s]``, from ``x[*, s, 2k]``, of any strides,
    and ``w[2k]``. If a program holds a row, their axes are in memory in the order of
    x's."""
    if not _fits(x):
        y, _, _, rstd = norm_rows.forward(x, w, None, eps, centred=False)
        return turned(y, rotation, 1), rstd
    order = _order(x)
    x, cos, sin = _rows(order, x, *_tables(rotation, x))
    y = empty_like(x)
    rstd = torch.empty(x.shape[:-1], dtype=accumulator(x.dtype), device=x.device)
    if needs_launch(y):
        given = x, packed(w), cos, sin, y, rstd
        forward_launch(*given, eps, rotation.interleaved).run()
    (y,) = _rows(_inverse(order), y)
    return y, rstd.permute(_inverse(order)[:-1])


def backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    rstd: torch.Tensor,
    w: torch.Tensor,
    rotation: Rotation,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``dx[*, s, 2k]``, whose axes are in memory as those of y, and ``dw[2k]``,
    from ``dy[*, s, 2k]`` and ``x[*, s, 2k]``, of any strides."""
    if not _fits(x):
        dy = turned(dy, rotation, -1)
        dx, dw, _ = norm_rows.backward(dy, x, None, rstd, w, None)
        assert dw is not None
        return dx, dw
    order = _order(x)
    dy, x, cos, sin = _rows(order, dy, x, *_tables(rotation, x))
    dx, dw = empty_like(x), norm_rows.gradient_like(w, x)
    if needs_launch(dx):
        of_w = norm_rows.partial_sums(x)
        rstd = packed(rstd.permute(order[:-1]))
        given = dy, x, rstd, packed(w), cos, sin, dx, of_w
        launch = backward_launch(*given, rotation.interleaved)
        for each in (launch, *norm_rows.totals(of_w, None, dw, None)):
            each.run()
    (dx,) = _rows(_inverse(order), dx)
    return dx, dw


def _fits(x: torch.Tensor) -> bool:
    """Whether a program holds a row, and beside it its sums for w."""
    return fits(x, norm_rows.ROW_BYTES // 2)


def _order(x: torch.Tensor) -> list[int]:
    """The axes of ``x[*, n]`` in the order in which they are in memory, the last one
    last."""
    last = x.ndim - 1
    return [*sorted(range(last), key=x.stride, reverse=True), last]


def _inverse(order: list[int]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


def _rows(order: list[int], *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.permute(order) for tensor in tensors]


def _tables(rotation: Rotation, x: torch.Tensor) -> list[torch.Tensor]:
    """Both tables, ``[*, s, k]`` with the leading axes of x."""
    shape = *x.shape[:-1], x.shape[-1] // 2
    return [table.expand(shape) for table in (rotation.cos, rotation.sin)]


def forward_launch(x, w, cos, sin, y, rstd, eps: float, interleaved: bool) -> Launch:
    """The launch that writes ``y[*, 2k]`` and ``rstd[*]``, contiguous, from x and
    tables ``[*, k]`` of any strides."""
    x, arguments = rows_of(x, cos=cos, sin=sin)
    arguments |= {"x_ptr": x, "w_ptr": w, "y_ptr": y, "rstd_ptr": rstd}
    constants: dict[str, Any] = {"EPS": float(eps), "INTERLEAVED": interleaved}
    return on_rows(_forward_rotated, arguments, y, fused=False, **constants)


def backward_launch(dy, x, rstd, w, cos, sin, dx, dw, interleaved: bool) -> Launch:
    """The launch that writes ``dx[*, 2k]``, contiguous, and the partial sums of dw,
    from dy, x and tables ``[*, k]`` of any strides."""
    dy, arguments = rows_of(dy, x=x, cos=cos, sin=sin)
    arguments |= {"dy_ptr": dy, "rstd_ptr": rstd, "w_ptr": w}
    arguments |= {"dx_ptr": dx, "dw_ptr": dw}
    stages = norm_rows.stages(dx, 3)  # of dy, x, and both tables, each half of a row
    constants: dict[str, Any] = {"STAGES": stages, "INTERLEAVED": interleaved}
    return on_rows(_backward_rotated, arguments, dx, len(dw), fused=False, **constants)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Both kernels at telling shapes, named, on tensors without memory: to be compiled,
    not run."""
    wide = accumulator(dtype)
    longest = norm_rows.ROW_BYTES // 2 // wide.itemsize
    for case, d, interleaved in (
        ("rotated halves", 128, False),
        ("rotated neighbours", 128, True),
        ("longest rotated row", longest, False),
    ):
        x = torch.empty(2, 512, 8, d, dtype=dtype, device="meta")
        dy = torch.empty(2, 8, 512, d, dtype=dtype, device="meta").transpose(1, 2)
        w = torch.empty(d, dtype=dtype, device="meta")
        rstd = torch.empty(x.shape[:-1], dtype=wide, device="meta")
        table = torch.empty(512, 1, d // 2, dtype=dtype, device="meta")
        table, of_w = table.expand(2, 512, 8, -1), norm_rows.partial_sums(x)
        yield case, forward_launch(x, w, table, table, x, rstd, 1e-6, interleaved)
        yield (
            case,
            backward_launch(dy, x, rstd, w, table, table, x, of_w, interleaved),
        )


@triton.jit
def _forward_rotated(
    x_ptr,  # [m, n], of the strides given
    w_ptr,  # [n]
    cos_ptr, sin_ptr,  # [m, n/2], of the strides given
    y_ptr,  # [m, n], contiguous
    rstd_ptr,  # [m]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # x's rows and columns
    cos_stride_0, cos_stride_1, cos_stride_2, cos_stride_n,
    sin_stride_0, sin_stride_1, sin_stride_2, sin_stride_n,
    m, n,
    EPS: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = w x_hat, rotated: ROWS rows of at most COLUMNS elements per program. Of each
    pair, a and b are the elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = row < m  # [ROWS, 1]
    x_row = x_ptr + row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    a, b = load_pairs(x_row, stride_n, inside, n, ROWS, COLUMNS, INTERLEAVED, WIDE)

    squares = tl.sum(a * a + b * b, axis=1, keep_dims=True)
    rstd = 1 / tl.sqrt(squares / n + EPS)
    tl.store(rstd_ptr + row, rstd, mask=inside)

    every = tl.full([1, 1], 1, tl.int1)
    w_a, w_b = load_pairs(w_ptr, 1, every, n, 1, COLUMNS, INTERLEAVED, WIDE)
    at = row_start(row, length_1, length_2, cos_stride_0, cos_stride_1, cos_stride_2)
    cos = load_table(cos_ptr + at, cos_stride_n, inside, n, COLUMNS, WIDE)
    at = row_start(row, length_1, length_2, sin_stride_0, sin_stride_1, sin_stride_2)
    sin = load_table(sin_ptr + at, sin_stride_n, inside, n, COLUMNS, WIDE)
    a, b = rotated(a * rstd * w_a, b * rstd * w_b, cos, sin)

    store_pairs(y_ptr + row * n, a, b, inside, n, ROWS, COLUMNS, INTERLEAVED)


@triton.jit
def _backward_rotated(
    dy_ptr, x_ptr,  # [m, n], of the strides given
    rstd_ptr,  # [m]
    w_ptr,  # [n]
    cos_ptr, sin_ptr,  # [m, n/2], of the strides given
    dx_ptr,  # [m, n], contiguous
    dw_ptr,  # [programs, n]
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,  # dy's rows and columns
    x_stride_0, x_stride_1, x_stride_2, x_stride_n,
    cos_stride_0, cos_stride_1, cos_stride_2, cos_stride_n,
    sin_stride_0, sin_stride_1, sin_stride_2, sin_stride_n,
    m, n,
    STAGES: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx, and partial sums of dw: every num_programs-th block of ROWS rows of at most
    COLUMNS elements. The next STAGES - 1 blocks are loaded meanwhile."""
    program = tl.program_id(0).to(tl.int64)
    every = tl.full([1, 1], 1, tl.int1)
    w_a, w_b = load_pairs(w_ptr, 1, every, n, 1, COLUMNS, INTERLEAVED, WIDE)
    dw_a = tl.zeros([ROWS, COLUMNS // 2], WIDE)
    dw_b = tl.zeros([ROWS, COLUMNS // 2], WIDE)

    blocks = tl.cdiv(m, ROWS)
    for block in tl.range(program, blocks, tl.num_programs(0), num_stages=STAGES):
        row = block * ROWS + tl.arange(0, ROWS)[:, None].to(tl.int64)  # [ROWS, 1]
        inside = row < m
        at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
        dy_a, dy_b = load_pairs(
            dy_ptr + at, stride_n, inside, n, ROWS, COLUMNS, INTERLEAVED, WIDE
        )
        at = row_start(row, length_1, length_2, x_stride_0, x_stride_1, x_stride_2)
        x_a, x_b = load_pairs(
            x_ptr + at, x_stride_n, inside, n, ROWS, COLUMNS, INTERLEAVED, WIDE
        )
        at = row_start(
            row, length_1, length_2, cos_stride_0, cos_stride_1, cos_stride_2
        )
        cos = load_table(cos_ptr + at, cos_stride_n, inside, n, COLUMNS, WIDE)
        at = row_start(
            row, length_1, length_2, sin_stride_0, sin_stride_1, sin_stride_2
        )
        sin = load_table(sin_ptr + at, sin_stride_n, inside, n, COLUMNS, WIDE)
        # Along one axis: read once, not for each column.
        of_row = block * ROWS + tl.arange(0, ROWS)
        rstd = tl.load(rstd_ptr + of_row, mask=of_row < m, other=0.0)[:, None]

        # In the forward pass the row was rotated last; so now its gradient is rotated
        # back first.
        dy_a, dy_b = rotated(dy_a, dy_b, cos, -sin)
        x_hat_a, x_hat_b = x_a * rstd, x_b * rstd
        dw_a += dy_a * x_hat_a
        dw_b += dy_b * x_hat_b
        dx_hat_a, dx_hat_b = dy_a * w_a, dy_b * w_b
        products = dx_hat_a * x_hat_a + dx_hat_b * x_hat_b
        along_x_hat = tl.sum(products, axis=1, keep_dims=True) / n
        dx_a = rstd * (dx_hat_a - x_hat_a * along_x_hat)
        dx_b = rstd * (dx_hat_b - x_hat_b * along_x_hat)

        dx_row = dx_ptr + row * n
        store_pairs(dx_row, dx_a, dx_b, inside, n, ROWS, COLUMNS, INTERLEAVED)

    dw_a = tl.sum(dw_a, axis=0)[None, :]
    dw_b = tl.sum(dw_b, axis=0)[None, :]
    dw_row = dw_ptr + program * n
    store_pairs(dw_row, dw_a, dw_b, every, n, 1, COLUMNS, INTERLEAVED)
