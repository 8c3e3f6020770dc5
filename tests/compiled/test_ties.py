"""Rounding makes elements of an input equal. Any choice among them passes, as long as it is one."""

import pytest
import torch
import triton
import triton.language as tl

from backpass.verify import check

K = 3


@triton.jit
def largest_kernel(
    x_ptr, y_ptr, at_ptr, n, K: tl.constexpr, LAST: tl.constexpr, BOTH: tl.constexpr, BLOCK: tl.constexpr
):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + column, mask=column < n, other=-float("inf")).to(tl.float32)
    for k in tl.static_range(K):
        top = tl.max(x, axis=0)
        if LAST:
            at = tl.max(tl.where(x == top, column, -1), axis=0)
        else:
            at = tl.min(tl.where(x == top, column, BLOCK), axis=0)
        tl.store(y_ptr + row * K + k, top)
        tl.store(at_ptr + row * K + k, at)
        x = tl.where(x == top if BOTH else column == at, -float("inf"), x)


class Largest:
    """The K largest elements of each row. Of equal ones, ``share`` says which get the gradient."""

    def __init__(self, share="first"):
        self.share = share

    def forward(self, x):
        x = x.contiguous()
        y, at = torch.empty(len(x), K, dtype=x.dtype), torch.empty(len(x), K, dtype=torch.int32)
        block = triton.next_power_of_2(x.shape[1])
        how = self.share == "last", self.share == "both"
        largest_kernel[(len(x),)](x, y, at, x.shape[1], K, *how, BLOCK=block)
        return y, (x, y, at.long())

    def backward(self, dy, saved):
        x, y, at = saved
        if self.share == "beside":
            at = (at + 1) % x.shape[1]
        dx = torch.zeros_like(x).scatter_(1, at, dy)
        if self.share == "each":  # of those equal to the last of the largest
            dx = torch.where(x == y[:, -1:], dy[:, -1:], dx)
        return dx


def of_rows(share, dtype):
    """The third and the fourth largest of each row are equal in half precision."""
    x = torch.randn(5, 19, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = x.argsort(1, descending=True)
    third = x.gather(1, order[:, 2:3])
    x = x.scatter(1, order[:, 3:4], third * (1 - 2.0**-14)).to(dtype)
    operator = {"operator": lambda x: x.topk(K, 1).values}
    return check(Largest(share), x, **operator, compiled=True, vary=False, raises=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_any_choice_among_equal_elements_passes(dtype):
    noted = []
    for share in ("first", "last"):
        report = of_rows(share, dtype)
        assert report.passed, str(report)
        notes = [row.note for row in report.rows if "bfloat16" in row.method]
        noted.append(any("by the choice among equal elements" in note for note in notes))
    assert any(noted)  # PyTorch chooses differently than one of the two


def test_a_gradient_for_each_of_them_fails():
    report = of_rows("each", torch.float64)
    assert {row.method.split(", ")[1] for row in report.failed} == {"bfloat16", "float16"}
    assert {row.quantity for row in report.failed} == {"dx"}


def test_a_gradient_of_another_element_fails():
    assert {row.quantity for row in of_rows("beside", torch.bfloat16).failed} == {"dx"}


def test_with_vary_two_largest_elements_are_equal():
    x = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    settings = {"operator": lambda x: x.topk(K, 1).values, "compiled": True, "vary": True, "raises": False}
    says = "two equal largest elements of x"
    for share in ("first", "last"):
        report = check(Largest(share), x, **settings)
        assert report.passed and says in {row.variation for row in report.having("passed")}
    assert {row.variation for row in check(Largest("both"), x, **settings).failed} == {says}


@triton.jit
def capped_kernel(x_ptr, s_ptr, dy_ptr, dx_ptr, ds_ptr, n, CAP: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    at = row * n + column
    x = tl.load(x_ptr + at, mask=column < n, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=column < n, other=0.0).to(tl.float32)
    s = tl.load(s_ptr + row).to(tl.float32)
    dx = tl.where(x < CAP * s, dy / s, 0.0)
    tl.store(dx_ptr + at, dx, mask=column < n)
    tl.store(ds_ptr + row, -tl.sum(dx * x / s, axis=0))


def capped(x, s):
    return (x / s[:, None]).clamp(max=2.0)


class Capped:
    """``min(x / s, 2)``, whose gradient PyTorch computes as that below 2 where the ratio is 2."""

    def __init__(self, cap):
        self.cap = cap

    def forward(self, x, s):
        return capped(x, s), (x, s)

    def backward(self, dy, saved):
        x, s = (array.contiguous() for array in saved)
        dx, ds = torch.empty_like(x), torch.empty_like(s)
        block = triton.next_power_of_2(x.shape[1])
        capped_kernel[(len(x),)](x, s, dy.contiguous(), dx, ds, x.shape[1], self.cap, BLOCK=block)
        return dx, ds


@pytest.mark.parametrize(("cap", "right"), [(2.0, True), (1.8, False)])
def test_a_quotient_on_a_kink_has_the_gradient_of_either_side(cap, right):
    draw = torch.Generator().manual_seed(0)
    x, s = (
        torch.randn(4, 21, generator=draw).bfloat16(),
        (torch.rand(4, generator=draw) + 0.5).bfloat16(),
    )
    x[0, 0], x[2, 6] = 1.85 * s[0], 2 * s[2]
    report = check(Capped(cap), x, s, operator=capped, methods=["compiled"], vary=False, raises=False)
    assert (not report.failed) is right, str(report)
    says = {row.quantity for row in report.rows if "1 element is at a kink" in row.note}
    assert says == ({"dx", "ds"} if right else set())


class Ranked:
    """The sum of each row's elements with weights by rank. Of equal elements, the last has the lower rank."""

    def forward(self, rows):
        at = rows.shape[1] - 1 - rows.float().flip(1).argsort(dim=1, stable=True)
        return (rows.float().gather(1, at) * weights(rows)).sum(1).to(rows.dtype), at

    def backward(self, dy, at):
        dx = torch.zeros(at.shape).scatter(1, at, weights(at).expand(at.shape))
        return (dy.float()[:, None] * dx).to(dy.dtype)


def weights(x):
    return 1 + 0.03 * torch.arange(x.shape[1])


def test_a_choice_that_changes_a_gradient_by_three_percent_passes():
    x = (
        torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
        .repeat_interleave(2, 1)
        .to(torch.float16)
    )

    def ranked(x):
        return (x.sort(dim=1, stable=True).values * weights(x).to(x.dtype)).sum(1)

    report = check(Ranked(), x, operator=ranked, methods=["precision"], vary=False, raises=False)
    assert report.passed, str(report)
