"""Gradients that sum over all rows, as a parameter's do, without atomics.

The number of programs is fixed. Each program adds up its rows and writes the partial
sum to one row of ``[partials, n]``; a second sum, over the partials, gives the
gradient. Both orders are fixed, so two runs agree to the last bit.
"""

from __future__ import annotations

from typing import Any

import torch

from backpass.kernels.launch import (
    TRITON_DTYPES,
    Launch,
    accumulator,
    cdiv,
    fits,
    tile,
    whole_rows,
)

# Two for each of an H200's 132 SMs. Constant, so every GPU adds in the same order.
PROGRAMS = 264


def allocate_partials(x: torch.Tensor, row_bytes: int, tile_bytes: int) -> torch.Tensor:
    """Allocate ``[partials, n]``, a row for each program's sums over rows of
    ``x[*, n]``, in the dtype computed in."""
    n = x.shape[-1]
    m = x.numel() // n
    if fits(x, row_bytes):
        partials = min(PROGRAMS, cdiv(m, whole_rows(x).rows))
    else:
        columns = tile(x, tile_bytes).columns
        partials = min(m, max(1, PROGRAMS // cdiv(n, columns)))
    return torch.empty((partials, n), dtype=accumulator(x.dtype), device=x.device)


def on_columns(
    kernel,
    arguments: dict[str, Any],
    x: torch.Tensor,
    partials: torch.Tensor,
    tile_bytes: int,
) -> Launch:
    """``kernel`` on ``x[*, n]``: a program for each tile of columns of each partial."""
    n = x.shape[-1]
    block = tile(x, tile_bytes)
    programs = partials.shape[0] * cdiv(n, block.columns)
    arguments = {**arguments, "m": x.numel() // n, "n": n}
    constants = {"COLUMNS": block.columns, "WIDE": TRITON_DTYPES[partials.dtype]}
    return Launch(kernel, programs, arguments, constants, block.warps)
