"""The errors that PTX allows approximate units: right kernels may amplify them, and wrong ones do not hide in them."""

import pytest
import torch
import triton
import triton.language as tl

from backpass.verify import check


@triton.jit
def silu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, x * tl.sigmoid(x), mask=at < n)


@triton.jit
def slope_kernel(dy_ptr, x_ptr, dx_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    s = tl.sigmoid(x)
    slope = s * (1 + x * (1 - s))  # where s is 1, so may 1 - s be 2 units in the last place
    if FAULT == "factor":
        slope *= 1.00002
    tl.store(dx_ptr + at, dy * slope, mask=at < n)


class Silu:
    def __init__(self, fault=""):
        self.fault = fault

    def forward(self, x):
        x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
        silu_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y, x

    def backward(self, dy, x):
        dy, dx = dy.contiguous(), torch.empty(x.shape, dtype=x.dtype)
        slope_kernel[(triton.cdiv(x.numel(), 128),)](dy, x, dx, x.numel(), self.fault, BLOCK=128)
        return dx


@triton.jit
def product_kernel(dy_ptr, slope_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slope = tl.load(slope_ptr + at, mask=at < n, other=0.0)
    slope = (slope + 256) - 256
    tl.store(dx_ptr + at, tl.load(dy_ptr + at, mask=at < n, other=0.0) * slope, mask=at < n)


class Digits(Silu):
    def backward(self, dy, x):
        s = torch.sigmoid(x)
        slope, dx = s * (1 + x * (1 - s)), torch.empty(x.shape)
        product_kernel[(1,)](dy.contiguous(), slope.contiguous(), dx, x.numel(), BLOCK=128)
        return dx


def checked(op, scale=100, operator=torch.nn.functional.silu):
    x = scale * torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    return check(op, x, operator=operator, methods=["compiled"], vary=False, raises=False)


def test_a_kernel_may_amplify_the_errors_of_units():
    report = checked(Silu())
    assert report.passed, report
    dx = report.rows[1]
    assert (
        "with units that round to the nearest" in dx.how and "units such as division change dx by" in dx.note
    )
    change = float(dx.note.partition(" by ")[2].split()[0])
    assert dx.error < dx.tolerance < change < 1e-4
    assert "units such as division" not in checked(Silu(), 1).rows[1].note


def test_they_may_change_a_gradient_by_a_hundredth():
    report = checked(Silu(), 5000)
    assert report.passed, report
    change = float(report.rows[1].note.partition(" by ")[2].split()[0])
    assert 1e-3 < change < 1e-2


def test_a_wrong_gradient_that_is_as_small_is_found():
    assert [row.quantity for row in checked(Silu("factor"), 1).failed] == ["dx"]
    assert [row.quantity for row in checked(Silu("factor"), 100).failed] == ["dx"]


@triton.jit
def softcap_kernel(x_ptr, y_ptr, n, OFF: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.exp(-2 * tl.load(x_ptr + at, mask=at < n, other=0.0))
    t = (1 - e) / (1 + e)  # of a small x, few digits are left
    tl.store(y_ptr + at, t * OFF, mask=at < n)


@triton.jit
def softcap_slope_kernel(dy_ptr, x_ptr, dx_ptr, n, OFF: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.exp(-2 * tl.load(x_ptr + at, mask=at < n, other=0.0))
    dy = tl.load(dy_ptr + at, mask=at < n, other=0.0)
    tl.store(dx_ptr + at, dy * (4 * e / ((1 + e) * (1 + e))) * OFF, mask=at < n)


class Softcap(torch.autograd.Function):
    off = 1.0

    @classmethod
    def forward(cls, ctx, x):
        x, y = x.contiguous(), torch.empty(x.shape)
        ctx.save_for_backward(x)
        softcap_kernel[(1,)](x, y, x.numel(), cls.off, BLOCK=128)
        return y

    @classmethod
    def backward(cls, ctx, dy):
        (x,) = ctx.saved_tensors
        dx = torch.empty(x.shape)
        softcap_slope_kernel[(1,)](dy.contiguous(), x, dx, x.numel(), cls.off, BLOCK=128)
        return dx


def test_small_elements_may_lose_digits_if_the_formula_is_right():
    """Off by a factor, the error is as small, but not one of rounding."""
    right = checked(Softcap, 1, torch.tanh)
    assert right.passed, right
    y = right.rows[0]
    assert y.note.startswith("elements of y near 0 lose digits: each error is at most")
    assert y.error < y.tolerance == 4 * torch.finfo(torch.float32).eps
    wrong = checked(type("Softcap", (Softcap,), {"off": 1 + 3e-7}), 1, torch.tanh)
    assert {row.quantity for row in wrong.failed} == {"y", "dx"}
    assert max(row.error for row in wrong.failed) < y.tolerance


def test_the_line_that_loses_digits_is_in_a_launch_that_stores_a_wrong_number():
    (finding,) = (what for _, what in checked(Digits(), 40).findings())
    assert "slope = (slope + 256) - 256" in finding  # not tl.sigmoid in forward, at large negative x


@triton.jit
def tanh_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(y_ptr + at, y, mask=at < n)


class Tanh:
    def forward(self, x):
        y = torch.empty(x.shape)
        tanh_kernel[(1,)](x.contiguous(), y, x.numel(), BLOCK=128)
        return y, x

    def backward(self, dy, x):
        return dy / torch.cosh(x) ** 2


def test_a_unit_with_a_large_error_is_not_excused():
    report = checked(Tanh(), 1, torch.tanh)
    assert [row.quantity for row in report.failed] == ["y"]
    assert report.failed[0].error == pytest.approx(2.0**-11, rel=0.5)
