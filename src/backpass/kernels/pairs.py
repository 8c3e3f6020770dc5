"""Load and store whole rows as the pairs of elements that RoPE rotates.

A program has ``[ROWS, COLUMNS // 2]`` of the first elements and of the second ones. The
pairs are those of ``backpass.ops.rope``: of the halves of a row, or of neighbours.
"""

import triton
import triton.language as tl


@triton.jit
def load_pairs(
    rows, stride_n, inside, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INTERLEAVED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Both elements of the pairs of ROWS rows that begin at ``rows[ROWS, 1]``."""
    if INTERLEAVED:
        # Neighbours are read side by side, as they are stored, and separated in
        # registers.
        column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)
        mask = inside & (column < n)
        x = tl.load(rows + column * stride_n, mask=mask, other=0.0).to(WIDE)
        a, b = tl.split(tl.reshape(x, [ROWS, COLUMNS // 2, 2]))
    else:
        pair = tl.arange(0, COLUMNS // 2)[None, :].to(tl.int64)
        k = n // 2
        mask = inside & (pair < k)
        a = tl.load(rows + pair * stride_n, mask=mask, other=0.0).to(WIDE)
        b = tl.load(rows + (pair + k) * stride_n, mask=mask, other=0.0).to(WIDE)
    return a, b


@triton.jit
def store_pairs(
    rows, a, b, inside, n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Store both elements of the pairs of contiguous rows."""
    if INTERLEAVED:
        column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)
        x = tl.reshape(tl.join(a, b), [ROWS, COLUMNS])
        tl.store(rows + column, x, mask=inside & (column < n))
    else:
        pair = tl.arange(0, COLUMNS // 2)[None, :].to(tl.int64)
        k = n // 2
        mask = inside & (pair < k)
        tl.store(rows + pair, a, mask=mask)
        tl.store(rows + (pair + k), b, mask=mask)


@triton.jit
def load_table(rows, stride_n, inside, n, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """A number for each pair of the rows that begin at ``rows[ROWS, 1]``."""
    pair = tl.arange(0, COLUMNS // 2)[None, :].to(tl.int64)
    mask = inside & (pair < n // 2)
    return tl.load(rows + pair * stride_n, mask=mask, other=0.0).to(WIDE)
