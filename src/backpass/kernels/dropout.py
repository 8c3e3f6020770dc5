"""Dropout in Triton: the functions of ``backpass.ops.dropout``, where the formulas are.

Derived on the page ``operations/residual_stream``. The mask is drawn in registers, from
a counter for eight neighbours of a row: no mask is ever in memory. Forward and backward
are the same map: each reads its operand once, of any strides, and writes its result
once. The seed is read from memory on the device, so that a captured graph may change
it. Arithmetic is in float32 (float64 for float64), whatever is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from backpass.contract.shapes import Kind, check_cotangent, check_saved, kind
from backpass.contract.values import check_bool, check_probability, check_seed
from backpass.kernels import philox
from backpass.kernels.elementwise import piece
from backpass.kernels.launch import (
    TRITON_DTYPES,
    Launch,
    accumulator,
    check_tensor,
    check_tensors,
    empty_like,
    needs_launch,
    quotient,
    row_start,
    rows_of,
)

SHAPES = "x[*] -> y[*]"

ELEMENTS = 1024  # per program: a counter, and 8 elements, for each of its 128 threads
WARPS = 4


class Saved(NamedTuple):
    """The seed and the shape, from which the backward draws the mask again."""

    seed: torch.Tensor | None  # int64 [], on the device; None if nothing can be dropped
    p: float
    shape: tuple[int, ...]
    kind: Kind


def forward(
    x: torch.Tensor,
    *,
    p: float = 0.5,
    seed: int | torch.Tensor = 0,
    training: bool = True,
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*]``, contiguous: ``x[*]``, of any strides, with each element dropped
    with probability ``p`` and the others scaled up; or ``x`` itself if p = 0 or with
    ``training=False``. ``seed`` is that of the operation.

    Raises TypeError if ``x`` is not a floating-point tensor on a device where kernels
    run, or if an option has the wrong type; ValueError if ``p`` is outside 0 to 1, or
    ``seed`` is below 0 or too large.
    """
    check_tensors(SHAPES, x=x)
    check_probability(p=p)
    check_seed(seed=seed)
    check_bool(training=training)
    drops = training and p != 0
    own = philox.seed_on(seed, x.device) if drops else None
    saved = Saved(own, float(p), tuple(x.shape), kind(x))
    return _dropped(x, saved), saved


def backward(dy: torch.Tensor, saved: Saved) -> torch.Tensor:
    """Return ``dx[*]``, contiguous, from ``dy[*]``, of any strides."""
    saved = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, saved.shape, saved.kind)
    return _dropped(dy, saved)


def _dropped(x: torch.Tensor, saved: Saved) -> torch.Tensor:
    if saved.seed is None:
        return x
    if philox.threshold(saved.p) >= 2**32:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    y = empty_like(x)
    if needs_launch(y):
        launch(x, saved.seed, y, saved.p).run()
    return y


def launch(x: torch.Tensor, seed: torch.Tensor, y: torch.Tensor, p: float) -> Launch:
    """The launch that writes ``y[*]``, contiguous, from ``x[*]``, of any strides."""
    x = x if x.ndim else x[None]
    n = x.shape[-1]
    m = y.numel() // n
    columns = min(triton.next_power_of_2(max(n, philox.GROUP)), ELEMENTS)
    rows = ELEMENTS // columns
    x, arguments = rows_of(x)
    arguments |= {"x_ptr": x, "seed_ptr": seed, "y_ptr": y}
    arguments |= {"m": m, "n": n, "groups": philox.groups(n)}
    constants = {
        "LEAST": philox.threshold(p),
        "KEPT": 1 - p,
        "ROWS": rows,
        "COLUMNS": columns,
        "WIDE": TRITON_DTYPES[accumulator(y.dtype)],
    }
    programs = triton.cdiv(m, rows) * triton.cdiv(n, columns)
    return Launch(_forward, programs, arguments, constants, WARPS)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """The kernel, which is forward and backward, at telling shapes, named, on tensors
    without memory: to be compiled, not run."""
    seed = torch.empty((), dtype=torch.int64, device="meta")
    for case, n in (("long rows", 4096), ("short rows", 33)):
        x = torch.empty(4096, 64, n, dtype=dtype, device="meta").transpose(0, 1)
        yield case, launch(x, seed, empty_like(x), 0.25)


@triton.jit
def _forward(
    x_ptr,  # [m, n], of the strides given
    seed_ptr,  # int64 []
    y_ptr,  # [m, n], contiguous
    length_1, length_2, stride_0, stride_1, stride_2, stride_n,
    m, n,
    groups,  # of a row, ⌈n/8⌉
    LEAST: tl.constexpr, KEPT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = x / KEPT where x is kept, otherwise 0"""
    row, column, inside = piece(m, n, ROWS, COLUMNS)
    at = row_start(row, length_1, length_2, stride_0, stride_1, stride_2)
    x = tl.load(x_ptr + at + column * stride_n, mask=inside, other=0.0).to(WIDE)

    row, group, _ = piece(m, groups, ROWS, COLUMNS // 8)
    counter = (row * groups + group).to(tl.uint64)
    seed = tl.load(seed_ptr).to(tl.uint64)
    kept = philox.kept(counter, seed, LEAST, ROWS, COLUMNS)

    y = tl.where(kept, quotient(x, KEPT), 0.0)
    row, column, inside = piece(m, n, ROWS, COLUMNS)
    tl.store(y_ptr + row * n + column, y, mask=inside)
