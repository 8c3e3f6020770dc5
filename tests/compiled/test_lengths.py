"""A check of compiled kernels tries lengths at which a kernel runs other code, without being asked."""

import pytest
import torch
import triton
import triton.language as tl

from backpass.verify import check


@triton.jit
def doubled_kernel(x_ptr, y_ptr, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    if WRONG:
        if n % 16 == 0:
            inside = at < n // BLOCK * BLOCK
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=inside, other=0.0), mask=at < n)


@triton.jit
def total_kernel(x_ptr, y_ptr, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + column
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        if WRONG:
            total = tl.where(start > BLOCK, total, total + x)
        else:
            total += x
    tl.store(y_ptr + row, tl.sum(total))


@triton.jit
def weighted_kernel(x_ptr, y_ptr, n, WRONG: tl.constexpr, BLOCK: tl.constexpr):
    own = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK + own
    if WRONG:
        weight = 1 + own % 7
    else:
        weight = 1 + at % 7
    tl.store(y_ptr + at, weight * tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)


def weighted(x, wrong=False):
    y = torch.empty(x.shape, dtype=x.dtype)
    weighted_kernel[(triton.cdiv(x.numel(), 64),)](x.contiguous(), y, x.numel(), wrong, BLOCK=64)
    return y


class Doubled:
    def __init__(self, wrong=False):
        self.wrong = wrong

    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype)
        doubled_kernel[(triton.cdiv(len(x), 64),)](x.contiguous(), y, len(x), self.wrong, BLOCK=64)
        return y, None

    def backward(self, dy, saved):
        return 2 * dy


class Total(Doubled):
    def forward(self, x):
        y = torch.empty(len(x), dtype=x.dtype)
        total_kernel[(len(x),)](x.contiguous(), y, x.shape[1], self.wrong, BLOCK=64)
        return y, x.shape

    def backward(self, dy, saved):
        return dy[:, None].expand(saved)


class Weighted(Doubled):
    """It has no operator as a reference."""

    def forward(self, x):
        return weighted(x), None

    def backward(self, dy, saved):
        return weighted(dy, self.wrong)


CASES = {
    Weighted: ((5, 9), None, "length 37 in place of 5"),
    Doubled: ((64,), lambda x: 2 * x, "length 80 in place of 64"),
    Total: ((5, 60), lambda x: x.sum(1), "length 131 in place of 60"),
}


@pytest.mark.parametrize("build", CASES)
def test_a_fault_at_such_a_length_is_found_and_a_right_kernel_passes(build):
    shape, operator, says = CASES[build]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    settings = {"operator": operator, "compiled": True, "raises": False}
    report = check(build(), x, **settings)
    assert report.passed and says in {row.variation for row in report.rows}
    report = check(build(wrong=True), x, **settings)
    assert [says in what for _, what in report.findings()] == [True]


@triton.jit
def scatter_kernel(dy_ptr, t_ptr, dw_ptr, n, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    to = (tl.load(t_ptr + row) + SHIFT * (row == 3)) % 9
    dy = tl.load(dy_ptr + row * n + column, mask=column < n, other=0.0)
    tl.atomic_add(dw_ptr + to * n + column, dy, mask=column < n)


class Embedding:
    """Adds up gradients of rows in bfloat16."""

    ATOMIC_SUMS = True
    CONSTANTS = ("t",)

    def __init__(self, shift=0):
        self.shift = shift

    def forward(self, w, t):
        return w[t], (w, t)

    def backward(self, dy, saved):
        w, t = saved
        dw = torch.zeros_like(w)
        n = w.shape[1]
        scatter_kernel[(len(t),)](dy.contiguous(), t, dw, n, self.shift, BLOCK=triton.next_power_of_2(n))
        return dw, None


def rows(n):
    rng = torch.Generator().manual_seed(0)
    t = torch.tensor([0, 3, 8, 3, 5, 1])
    settings = {"operator": lambda w, t: w[t], "methods": ["compiled"], "compiled": True, "raises": False}
    return (torch.randn(9, n, generator=rng).bfloat16(), t), settings


def test_an_atomic_sum_in_bfloat16_of_an_odd_number_of_elements_is_not_tried():
    """Triton updates words of two elements, of which the last one is half in the tensor."""
    inputs, settings = rows(22)
    report = check(Embedding(), *inputs, **settings, vary=None)
    assert report.passed, str(report)
    tried = [row.variation for row in report.rows if row.variation and row.verdict != "not run"]
    assert any("in place of 22" in of for of in tried) and not any(
        "length 37 in place of 22" in of for of in tried
    )
    assert not check(Embedding(shift=1), *inputs, **settings, vary=None).passed


def test_an_atomic_sum_in_bfloat16_of_an_odd_number_of_elements_says_why_it_fails():
    inputs, settings = rows(23)
    (row,) = check(Embedding(), *inputs, **settings, vary=False).failed
    assert row.reason.startswith("HalfWord: ") and "give the tensor an even number of elements" in row.reason
