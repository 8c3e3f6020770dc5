"""Gradients that sum over all rows, as a parameter's do, without atomics.

There is a fixed number of programs. Each adds up the rows that fall to it and writes one row of ``[parts, n]``;
one more sum, over the parts, ends it. Both orders are fixed, so two runs agree to the last bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from backpass.kernels.launch import TRITON_DTYPES, Launch, accumulator, fits, tile, whole_rows

# Two for each of an H200's 132 SMs. A constant, so that every GPU adds in the same order.
PROGRAMS = 264


def allocate_partials(x: torch.Tensor, row_bytes: int, tile_bytes: int) -> torch.Tensor:
    """Room for the sums of each program over rows of ``x[*, n]``: ``[parts, n]``, in the dtype computed in."""
    n = x.shape[-1]
    m = x.numel() // n
    if fits(x, row_bytes):
        parts = min(PROGRAMS, triton.cdiv(m, whole_rows(x).rows))
    else:
        parts = min(m, max(1, PROGRAMS // triton.cdiv(n, tile(x, tile_bytes).columns)))
    return torch.empty((parts, n), dtype=accumulator(x.dtype), device=x.device)


def reduce_partials(parts: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """The sum of ``[parts, n]`` over the parts, ``[n]``, rounded once; None for None."""
    return None if parts is None else torch.sum(parts, dim=0).to(dtype)


def on_columns(
    kernel, arguments: dict[str, Any], x: torch.Tensor, parts: torch.Tensor, tile_bytes: int
) -> Launch:
    """``kernel`` on ``x[*, n]``: a program for each tile of columns of each of the ``parts``."""
    n = x.shape[-1]
    block = tile(x, tile_bytes)
    programs = parts.shape[0] * triton.cdiv(n, block.columns)
    constants = {"COLUMNS": block.columns, "WIDE": TRITON_DTYPES[parts.dtype]}
    return Launch(kernel, programs, {**arguments, "m": x.numel() // n, "n": n}, constants, block.warps)
