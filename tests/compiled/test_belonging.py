"""Inputs whose elements belong together, buffers with padding, and operators that raise: right kernels and wrong twins."""

import pytest
import torch
import triton
import triton.language as tl

from backpass.verify import check
from backpass.verify.case import Case
from backpass.verify.subject import subject
from backpass.verify.vary.draws import Draw
from backpass.verify.vary.groups import other_integers, twice_as_many


@triton.jit
def scaled_rows(x_ptr, at_ptr, table_ptr, y_ptr, n, wide, BY_ROW: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    at = row if BY_ROW else tl.load(at_ptr + row)
    x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0)
    tl.store(y_ptr + row * wide + column, x * tl.load(table_ptr + at), mask=column < n)


class ScaledRows(torch.autograd.Function):
    """y[i, j] = x[i, j] table[positions[i]], as the first columns of a wider buffer."""

    by_row, wide = False, 0

    @classmethod
    def of(cls, x, positions, table, by_row):
        x, positions, table = x.contiguous(), positions.contiguous(), table.contiguous()
        (m, n), wide = x.shape, max(x.shape[1], cls.wide)
        y = torch.empty(m, wide, dtype=x.dtype)
        scaled_rows[(m,)](x, positions, table, y, n, wide, by_row, BLOCK=triton.next_power_of_2(n))
        return y[:, :n]

    @classmethod
    def forward(cls, ctx, x, positions, table):
        ctx.save_for_backward(positions, table)
        return cls.of(x, positions, table, False)

    @classmethod
    def backward(cls, ctx, dy):
        return cls.of(dy, *ctx.saved_tensors, cls.by_row), None, None


def scaled(x, positions, table):
    return x * table[positions][:, None]


def checked(op, positions, operator=scaled):
    generator = torch.Generator().manual_seed(0)
    # The last position is a length too, as the last offset would be, so no length is varied.
    x, table = (torch.randn(n, generator=generator, dtype=torch.float64) for n in ((4, 3), (9,)))
    return check(op, x, positions, table, operator=operator, constants=["table"], compiled=True, raises=False)


@pytest.mark.parametrize("by_row", [False, True])
def test_positions_may_be_others_than_those_given(by_row):
    report = checked(type("ScaledRows", (ScaledRows,), {"by_row": by_row}), torch.arange(4))
    if by_row:
        assert {row.quantity for row in report.failed} == {"dx"}
    else:
        assert report.passed, report


def test_integers_other_than_those_given():
    def drawn(*inputs):
        case = Case(subject(Segments, 3, {}), inputs, 0)
        return [(what, inputs[2].tolist()) for what, inputs in other_integers(Draw(case))]

    x, w = torch.ones(9), torch.ones(3)
    assert drawn(x, w, torch.tensor([0, 4, 5, 9])) == [("an empty segment in offsets", [0, 5, 5, 9])]
    assert drawn(x, w, torch.arange(3)) == [("offsets in another order", [2, 0, 1])]
    assert drawn(x, w, torch.tensor([0, 2, 1])) == drawn(x, w, torch.arange(2)) == []


def test_elements_that_pad_a_buffer_need_not_be_written():
    report = checked(type("ScaledRows", (ScaledRows,), {"wide": 64}), torch.tensor([3, 0, 8, 1]))
    assert report.passed, report


def test_an_operator_that_raises_an_error_compares_nothing():
    def raising(x, positions, table):
        raise TypeError("not like that")

    def raising_in_half(x, positions, table):
        if x.dtype == torch.float16:
            raise TypeError("not like that")
        return scaled(x, positions, table)

    positions = torch.tensor([3, 0, 8, 1])
    reasons = {row.reason for row in checked(ScaledRows, positions, raising).failed}
    said = "the operator raises an error (TypeError: not like that), so values are not compared"
    assert reasons == {said}
    report = checked(ScaledRows, positions, raising_in_half)
    assert report.passed, report
    assert {row.reason for row in report.having("not run") if "float16" in row.method} == {said}


@triton.jit
def scaled_segments(dy_ptr, x_ptr, at_ptr, dw_ptr, ALL: tl.constexpr, BLOCK: tl.constexpr):
    group = tl.program_id(0)
    first, last = tl.load(at_ptr + group), tl.load(at_ptr + group + 1)
    if ALL or first < last:
        at = first + tl.arange(0, BLOCK)
        dy = tl.load(dy_ptr + at, mask=at < last, other=0.0)
        x = tl.load(x_ptr + at, mask=at < last, other=0.0)
        tl.store(dw_ptr + group, tl.sum(dy * x))


class Segments(torch.autograd.Function):
    """y[i] = x[i] w[g], where i is in the segment g."""

    every = True

    @classmethod
    def forward(cls, ctx, x, w, offsets):
        ctx.save_for_backward(x, w, offsets)
        return segments(x, w, offsets)

    @classmethod
    def backward(cls, ctx, dy):
        x, w, offsets = (of.contiguous() for of in ctx.saved_tensors)
        dw = torch.empty(w.shape, dtype=w.dtype)
        block = triton.next_power_of_2(len(x))
        scaled_segments[(len(w),)](dy.contiguous(), x, offsets, dw, cls.every, BLOCK=block)
        return segments(dy, w, offsets), dw, None


def segments(x, w, offsets):
    return x * w.repeat_interleave(offsets.diff())


@pytest.mark.parametrize("every", [True, False])
def test_a_segment_may_be_empty(every):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, generator=generator) for n in (9, 3))
    op = type("Segments", (Segments,), {"every": every})
    report = check(op, x, w, torch.tensor([0, 4, 5, 9]), operator=segments, compiled=True, raises=False)
    if every:
        assert report.passed, report
    else:
        assert {row.quantity for row in report.failed} == {"dw"}
        assert all(row.variation.startswith("an empty segment") for row in report.failed)


def test_heads_and_groups_grow_together():
    generator = torch.Generator().manual_seed(0)

    def shapes(heads, groups, asked):
        q, k = (torch.randn(2, n, 3, 5, generator=generator) for n in (heads, groups))
        case = Case(subject(Segments, 3, {}), (q, k, torch.arange(3)), 0)
        return [[tuple(x.shape) for x in inputs[:2]] for _, inputs in twice_as_many(Draw(case), asked)]

    assert shapes(6, 2, False) == [[(2, 12, 3, 5), (2, 4, 3, 5)]]
    assert shapes(3, 1, True) == [[(2, 6, 3, 5), (2, 2, 3, 5)]]
    assert shapes(3, 1, False) == shapes(3, 2, True) == shapes(3, 3, True) == []
