"""Lengths beside integers: positions that are written once, and offsets, which count another axis."""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from backpass.verify import check
from backpass.verify.vary import executed
from backpass.verify.vary.structure import EXCEED, REPEATS, exceed


@triton.jit
def put_kernel(x_ptr, t_ptr, y_ptr, columns, most, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    t, inside = tl.load(t_ptr + row), column < columns
    x = tl.load(x_ptr + row * columns + column, mask=inside)
    if (t >= 0) & (row < most):
        if ADD:
            tl.atomic_add(y_ptr + t * columns + column, x, mask=inside)
        else:
            tl.store(y_ptr + t * columns + column, x, mask=inside)


class Picked:
    """``x[t]``, or 0 for a negative t; the gradient of ``most`` rows is put back, or added up if so wanted."""

    def __init__(self, add, most=1 << 20):
        self.add, self.most = add, most

    def forward(self, x, t):
        return x[t.clamp_min(0)] * (t >= 0)[:, None], (x.shape, t)

    def backward(self, dy, saved):
        shape, t = saved
        dx, block = torch.zeros(shape, dtype=dy.dtype), triton.next_power_of_2(shape[1])
        put_kernel[(len(t),)](dy.contiguous(), t.contiguous(), dx, shape[1], self.most, self.add, BLOCK=block)
        return dx, None


def judged(op, t, **settings):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    settings = {"atomic_sums": True, "methods": ["compiled"], "raises": False, **settings}
    picked = lambda x, t: x[t.clamp_min(0)] * (t >= 0)[:, None]  # noqa: E731
    return check(op, x, torch.tensor(t), operator=picked, **settings)


@pytest.mark.parametrize("t", [(3, 0, 7, 1, 2), (3, -1, 7, -1, 2)])
def test_positions_that_are_written_once_need_not_repeat(t):
    report = judged(Picked(add=False), t)
    assert report.passed
    (row,) = (row for row in report.having("not run") if row.variation == "length 37 in place of 5")
    assert REPEATS in row.reason


def test_integers_that_may_repeat_do_not_excuse_a_wrong_length():
    """At the lengths given, nothing fails with integers that repeat, so they are not the cause."""
    report = judged(Picked(add=True), (3, 0, 7, 1, 2))
    assert report.passed and "length 37 in place of 5" in {row.variation for row in report.having("passed")}
    (row,) = judged(Picked(add=True, most=16), (3, 0, 7, 1, 2)).failed
    assert row.variation == "length 37 in place of 5"


@triton.jit
def bag_kernel(x_ptr, cu_ptr, y_ptr, columns, SPREAD: tl.constexpr, BLOCK: tl.constexpr):
    bag, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start, stop = tl.load(cu_ptr + bag), tl.load(cu_ptr + bag + 1)
    inside, total = column < columns, tl.zeros((BLOCK,), tl.float32)
    for row in range(start, stop):
        if SPREAD:
            x = tl.load(x_ptr + bag * columns + column, mask=inside, other=0.0)
            tl.store(y_ptr + row * columns + column, x, mask=inside)
        else:
            total += tl.load(x_ptr + row * columns + column, mask=inside, other=0.0)
    if not SPREAD:
        tl.store(y_ptr + bag * columns + column, total, mask=inside)


class Bags:
    """The sums of the rows between offsets; the gradient of ``blocks(n)`` blocks of columns is written."""

    def __init__(self, blocks):
        self.blocks = blocks

    def forward(self, x, cu):
        x, y = x.contiguous(), torch.empty(len(cu) - 1, x.shape[1], dtype=x.dtype)
        bag_kernel[(len(y), triton.cdiv(x.shape[1], 16))](x, cu.contiguous(), y, x.shape[1], False, BLOCK=16)
        return y, (x.shape, cu)

    def backward(self, dy, saved):
        shape, cu = saved
        dx = torch.zeros(shape, dtype=dy.dtype)
        grid = (len(dy), self.blocks(shape[1]))
        bag_kernel[grid](dy.contiguous(), cu.contiguous(), dx, shape[1], True, BLOCK=16)
        return dx, None


def test_beside_offsets_the_other_axes_are_varied():
    x, cu = torch.randn(7, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 3, 7])
    settings = {
        "operator": lambda x, cu: torch.stack([x[a:b].sum(0) for a, b in itertools.pairwise(cu)]),
        "methods": ["compiled"],
        "raises": False,
    }
    report = check(Bags(lambda n: triton.cdiv(n, 16)), x, cu, **settings)
    assert report.passed and "length 37 in place of 32" in {row.variation for row in report.having("passed")}
    reasons = {row.variation: row.reason for row in report.having("not run")}
    assert executed.STRUCTURED in reasons["length 37 in place of 7"]
    (row,) = check(Bags(lambda n: n // 16), x, cu, **settings).failed
    assert row.variation == "length 37 in place of 32"


class Declared(Picked):
    SHAPES = "x[m, c], t[n]:int<m -> y[n, c]"


def test_a_fault_that_only_the_contract_sees_fails_with_its_whole_message():
    """It draws the declared integers again."""
    t, methods = (3, 0, 7, 1, 2, 6, 4), ["contract", "compiled"]
    assert judged(Declared(add=True), t, methods=methods, vary=False).passed
    (row,) = judged(Declared(add=False), t, methods=methods, vary=False).failed
    assert row.method == "contract" and row.reason.startswith("Order: ")
    assert row.reason.endswith("the result depends on the order of the blocks")


@triton.jit
def first_kernel(x_ptr, n_ptr, y_ptr, length, width, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    sequence, column, at = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    inside = at < tl.load(n_ptr + sequence)  # which is at most the length
    own, place = sequence * width + column, (sequence * length + at) * width + column
    if BACKWARD:
        dy = tl.load(x_ptr + own) + tl.zeros([BLOCK], tl.float32)
        tl.store(y_ptr + place, tl.where(inside, dy, 0.0), mask=at < length)
    else:
        tl.store(y_ptr + own, tl.sum(tl.load(x_ptr + place, mask=inside, other=0.0), 0))


class SumOfFirst:
    """The sums of the first n[i] rows of each sequence."""

    def forward(self, x, n):
        y = x.new_empty(x.shape[0], x.shape[2])
        block = max(32, triton.next_power_of_2(x.shape[1]))
        first_kernel[tuple(y.shape)](x.contiguous(), n, y, *x.shape[1:], False, BLOCK=block)
        return y, (x.shape, n)

    def backward(self, dy, saved):
        shape, n = saved
        dx, block = dy.new_empty(shape), max(32, triton.next_power_of_2(shape[1]))
        first_kernel[tuple(dy.shape)](dy.contiguous(), n, dx, *shape[1:], True, BLOCK=block)
        return dx, None


def test_a_length_that_exceeds_a_shorter_axis_accuses_nobody():
    x = torch.randn(3, 19, 5, generator=torch.Generator().manual_seed(0))
    n = torch.tensor([19, 7, 12])

    def operator(x, n):
        return (x * (torch.arange(x.shape[1]) < n[:, None])[..., None]).sum(1)

    settings = {"methods": ["compiled"], "vary": True, "raises": False}
    report = check(SumOfFirst(), x, n, operator=operator, **settings)
    assert report.passed and not report.failed
    assert any(EXCEED in row.reason for row in report.having("not run"))
    assert exceed([x, n], [x[:, :1], n])
    assert not exceed([x, n], [x, n]) and not exceed([x, n - 7], [x[:, :13], n - 7])
