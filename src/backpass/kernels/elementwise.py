"""Elementwise functions in Triton: one kernel for each number of operands, given the formula.

A kernel here knows where elements lie and nothing of what is computed: that is a function of numbers in its
``FORMULA``, compiled into it. A program holds ``ELEMENTS`` elements of each operand, a piece of one row or
several short rows, and writes each result once; no two programs write the same element, so there are no
atomics, and two runs agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from backpass.kernels.launch import TRITON_DTYPES, Launch, accumulator, row_start

ELEMENTS = 1024  # of an operand, in one program: 8 for each of its 128 threads, 16 bytes of a 16-bit type
WARPS = 4
AXES = 4  # three of rows, and one along a row


def of_one(formula, a: torch.Tensor, out: torch.Tensor) -> Launch:
    """The launch that writes ``out = formula(a)``, contiguous, from an operand of any strides."""
    return _launch(_of_one, formula, {"a": a}, {"out": out})


def of_two(formula, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Launch:
    """The launch that writes ``out = formula(a, b)``, contiguous, from operands of any strides."""
    return _launch(_of_two, formula, {"a": a, "b": b}, {"out": out})


def two_of_three(
    formula, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, out: torch.Tensor, other: torch.Tensor
) -> Launch:
    """The launch that writes ``out, other = formula(a, b, c)``, contiguous, from operands of any strides."""
    return _launch(_two_of_three, formula, {"a": a, "b": b, "c": c}, {"out": out, "other": other})


def walk(**operands: torch.Tensor) -> dict[str, Any]:
    """Where a kernel finds the elements of operands of one shape, none empty: each as ``name_ptr`` with its
    four strides, and the lengths that all share, ``m`` rows of ``n`` elements.

    Neighbouring axes that every operand can walk with one stride are merged: contiguous operands become one
    row, and the halves of a projection, ``[*, 2n]``, rows of n. Operands that leave more than four axes are
    copied.
    """
    operands = {name: operand.resolve_neg() for name, operand in operands.items()}
    shape = next(iter(operands.values())).shape
    lengths: list[int] = []
    strides: list[tuple[int, ...]] = []  # one stride for each operand
    for length, *steps in zip(shape, *(operand.stride() for operand in operands.values()), strict=True):
        if length == 1:
            continue
        if lengths and all(outer == length * inner for outer, inner in zip(strides[-1], steps, strict=True)):
            lengths[-1] *= length
            strides[-1] = tuple(steps)
        else:
            lengths.append(length)
            strides.append(tuple(steps))
    if len(lengths) > AXES:
        return walk(**{name: operand.contiguous() for name, operand in operands.items()})

    n = lengths.pop() if lengths else 1
    along_row = strides.pop() if strides else (0,) * len(operands)
    padding = AXES - 1 - len(lengths)
    lengths += [1] * padding
    strides += [(0,) * len(operands)] * padding

    arguments = {
        "length_1": lengths[1],
        "length_2": lengths[2],
        "m": lengths[0] * lengths[1] * lengths[2],
        "n": n,
    }
    for name, operand, steps, step in zip(
        operands, operands.values(), zip(*strides, strict=True), along_row, strict=True
    ):
        arguments |= {f"{name}_ptr": operand, f"{name}_stride_n": step}
        arguments |= {f"{name}_stride_{axis}": stride for axis, stride in enumerate(steps)}
    return arguments


def telling_shapes(dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """An operand and a result of each kind that is addressed in its own way, named, without memory."""
    for case, operand in (
        ("contiguous", torch.empty(4096, 4096, dtype=dtype, device="meta")),
        ("parts of short rows", torch.empty(4096, 64, dtype=dtype, device="meta")[:, :33]),
    ):
        yield case, operand, torch.empty(operand.shape, dtype=dtype, device="meta")


def _launch(kernel, formula, operands: dict[str, torch.Tensor], outs: dict[str, torch.Tensor]) -> Launch:
    arguments = walk(**operands)
    m, n = arguments["m"], arguments["n"]
    columns = min(triton.next_power_of_2(n), ELEMENTS)
    rows = ELEMENTS // columns
    programs = triton.cdiv(m, rows) * triton.cdiv(n, columns)
    arguments |= {f"{name}_ptr": out for name, out in outs.items()}
    wide = TRITON_DTYPES[accumulator(outs["out"].dtype)]
    constants = {"FORMULA": formula, "ROWS": rows, "COLUMNS": columns, "WIDE": wide}
    return Launch(kernel, programs, arguments, constants, WARPS)


@triton.jit
def piece(m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows and columns of this program's elements, and which of them exist."""
    pieces = (n - 1) // COLUMNS + 1  # of a row; n + COLUMNS − 1, as in tl.cdiv, may pass 32 bits
    program = tl.program_id(0).to(tl.int64)
    row = program // pieces * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    column = program % pieces * COLUMNS + tl.arange(0, COLUMNS)[None, :]  # [1, COLUMNS]
    return row, column, (row < m) & (column < n)


@triton.jit
def piece_of_row(n, COLUMNS: tl.constexpr):
    """The same for a program of one row: which it is, and the columns."""
    pieces = (n - 1) // COLUMNS + 1
    program = tl.program_id(0).to(tl.int64)
    return program // pieces, program % pieces * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def _of_one(
    a_ptr,  # [m, n], of the strides given
    out_ptr,  # [m, n], contiguous
    a_stride_0, a_stride_1, a_stride_2, a_stride_n,
    length_1, length_2, m, n,
    FORMULA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out = formula(a)"""
    row, column, inside = piece(m, n, ROWS, COLUMNS)
    a_at = row_start(row, length_1, length_2, a_stride_0, a_stride_1, a_stride_2) + column * a_stride_n
    a = tl.load(a_ptr + a_at, mask=inside, other=0.0).to(WIDE)
    out = FORMULA(a)
    tl.store(out_ptr + row * n + column, out, mask=inside)


@triton.jit
def _of_two(
    a_ptr,  # [m, n], of the strides given
    b_ptr,  # [m, n], of the strides given
    out_ptr,  # [m, n], contiguous
    a_stride_0, a_stride_1, a_stride_2, a_stride_n,
    b_stride_0, b_stride_1, b_stride_2, b_stride_n,
    length_1, length_2, m, n,
    FORMULA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out = formula(a, b)"""
    row, column, inside = piece(m, n, ROWS, COLUMNS)
    a_at = row_start(row, length_1, length_2, a_stride_0, a_stride_1, a_stride_2) + column * a_stride_n
    b_at = row_start(row, length_1, length_2, b_stride_0, b_stride_1, b_stride_2) + column * b_stride_n
    a = tl.load(a_ptr + a_at, mask=inside, other=0.0).to(WIDE)
    b = tl.load(b_ptr + b_at, mask=inside, other=0.0).to(WIDE)
    out = FORMULA(a, b)
    tl.store(out_ptr + row * n + column, out, mask=inside)


@triton.jit
def _two_of_three(
    a_ptr,  # [m, n], of the strides given
    b_ptr,  # [m, n], of the strides given
    c_ptr,  # [m, n], of the strides given
    out_ptr,  # [m, n], contiguous
    other_ptr,  # [m, n], contiguous
    a_stride_0, a_stride_1, a_stride_2, a_stride_n,
    b_stride_0, b_stride_1, b_stride_2, b_stride_n,
    c_stride_0, c_stride_1, c_stride_2, c_stride_n,
    length_1, length_2, m, n,
    FORMULA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out, other = formula(a, b, c)"""
    row, column, inside = piece(m, n, ROWS, COLUMNS)
    a_at = row_start(row, length_1, length_2, a_stride_0, a_stride_1, a_stride_2) + column * a_stride_n
    b_at = row_start(row, length_1, length_2, b_stride_0, b_stride_1, b_stride_2) + column * b_stride_n
    c_at = row_start(row, length_1, length_2, c_stride_0, c_stride_1, c_stride_2) + column * c_stride_n
    a = tl.load(a_ptr + a_at, mask=inside, other=0.0).to(WIDE)
    b = tl.load(b_ptr + b_at, mask=inside, other=0.0).to(WIDE)
    c = tl.load(c_ptr + c_at, mask=inside, other=0.0).to(WIDE)
    out, other = FORMULA(a, b, c)
    tl.store(out_ptr + row * n + column, out, mask=inside)
    tl.store(other_ptr + row * n + column, other, mask=inside)


@triton.jit
def bounded_below(x):
    """x with 0 for −∞: for a product with something that vanishes there faster, where −∞ · 0 would be NaN."""
    return tl.where(x == -float("inf"), 0.0, x)


@triton.jit
def bounded(x):
    """x with 0 for −∞ and for ∞."""
    return tl.where(tl.abs(x) == float("inf"), 0.0, x)
