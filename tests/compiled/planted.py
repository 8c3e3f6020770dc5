"""Faults planted in small Triton kernels, each beside the right kernel.

A kernel takes the name of its fault as a constant, so the right twin differs from it in that one place.
"""

from typing import ClassVar

import torch
import triton
import triton.language as tl


@triton.jit
def norm_forward(
    x_ptr,
    w_ptr,
    y_ptr,
    rstd_ptr,
    m,
    n,
    stride,
    eps,
    FAULT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    mask = column < n
    w = tl.load(w_ptr + column, mask=mask, other=0.0).to(tl.float32)
    for i in range(ROWS):
        row = tl.program_id(0) * ROWS + i
        if FAULT == "rows of the last program":
            inside = row < m // ROWS * ROWS
        else:
            inside = row < m
        if inside:
            x = tl.load(x_ptr + row * stride + column, mask=mask, other=0.0).to(tl.float32)
            if FAULT == "padding counted":
                total = tl.sum(x * x, axis=0) / BLOCK
            else:
                total = tl.sum(x * x, axis=0) / n
            if FAULT == "eps outside":
                rstd = 1 / (tl.sqrt(total) + eps)
            else:
                rstd = 1 / tl.sqrt(total + eps)
            tl.store(y_ptr + row * n + column, x * rstd * w, mask=mask)
            if FAULT == "rstd of one program":
                tl.store(rstd_ptr + tl.program_id(0), rstd)
            else:
                tl.store(rstd_ptr + row, rstd)


@triton.jit
def norm_backward(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, m, n, per, FAULT: tl.constexpr, BLOCK: tl.constexpr
):
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < n
    w = tl.load(w_ptr + column, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    last = (program + 1) * per
    if FAULT != "rows beyond the last":
        last = tl.minimum(last, m)
    if FAULT == "one row too few":
        last = last - 1
    for row in range(program * per, last):
        x = tl.load(x_ptr + row * n + column, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * n + column, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        h = x * rstd
        g = dy * w
        if FAULT == "no mean":
            dx = rstd * g
        else:
            dx = rstd * (g - h * tl.sum(g * h, axis=0) / n)
        tl.store(dx_ptr + row * n + column, dx, mask=mask)
        if FAULT == "only the last row":
            dw = dy * h
        elif FAULT == "sum in half precision":
            dw = (dw + dy * h).to(dx_ptr.dtype.element_ty).to(tl.float32)
        else:
            dw += dy * h
    if FAULT == "atomic sum":
        tl.atomic_add(dw_ptr + column, dw, mask=mask)
    else:
        tl.store(dw_ptr + program * n + column, dw, mask=mask)


class Norm(torch.autograd.Function):
    """RMSNorm of ``x[m, n]`` with a weight ``w[n]``; ``of(fault)`` returns one with a fault."""

    fault = ""
    rows = 4
    cache: ClassVar[dict] = {}

    @classmethod
    def of(cls, fault="", **changed):
        return type("Norm", (cls,), {"fault": fault, "cache": {}, **changed})

    @classmethod
    def forward(cls, ctx, x, w):
        fault = cls.fault
        if fault != "stride of x":
            x = x.contiguous()
        if fault != "stride of w":
            w = w.contiguous()
        m, n = x.shape
        stride = x.stride(0)
        y = torch.empty(m, n, dtype=x.dtype, device=x.device)
        if fault == "dropped dtype":
            y = torch.empty(m, n, dtype=torch.bfloat16, device=x.device)
        rstd = torch.empty(m, dtype=torch.float32, device=x.device)
        programs = m // cls.rows if fault == "too few programs" else triton.cdiv(m, cls.rows)
        block = triton.next_power_of_2(n)
        if fault == "block of a power below":
            block = max(block // 2, 16) if n & (n - 1) else block
        norm_forward[(programs,)](x, w, y, rstd, m, n, stride, 1e-5, FAULT=fault, ROWS=cls.rows, BLOCK=block)
        if fault == "stale rstd":
            rstd = cls.cache.setdefault((m, n), rstd)
        ctx.save_for_backward(x, w, rstd)
        return y.to(x.dtype)

    @classmethod
    def backward(cls, ctx, dy):
        x, w, rstd = ctx.saved_tensors
        fault = cls.fault
        m, n = x.shape
        if fault != "stride of dy":
            dy = dy.contiguous()
        dx = torch.empty_like(x)
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        programs = min(m, processors)
        per = m // programs if fault == "rows left over" else triton.cdiv(m, programs)
        if fault in ("atomic sum", "atomic sum of garbage"):
            dw = (torch.zeros if fault == "atomic sum" else torch.empty)(
                n, dtype=torch.float32, device=x.device
            )
        else:
            new = torch.empty if fault == "partial sums not written" else torch.zeros
            dw = new(programs, n, dtype=torch.float32, device=x.device)
        if fault == "partial sums not written":
            programs -= 1
        kernels_fault = "atomic sum" if fault == "atomic sum of garbage" else fault
        norm_backward[(programs,)](
            dy, x, w, rstd, dx, dw, m, n, per, FAULT=kernels_fault, BLOCK=triton.next_power_of_2(n)
        )
        if dw.ndim == 2:
            dw = dw[0] if fault == "only one partial sum" else dw.sum(0)
        return dx, dw.to(w.dtype)


def norm(x, w):
    return torch.nn.functional.rms_norm(x, w.shape, w, 1e-5)


@triton.jit
def softmax_forward(x_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if FAULT == "wrong grid axis":
        row = tl.program_id(1)
    top = -float("inf")
    total = 0.0
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        if FAULT == "other of a maximum":
            x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0).to(tl.float32)
            x = tl.where(column < n + 1, x, -float("inf"))
        else:
            x = tl.load(x_ptr + row * n + column, mask=column < n, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(x, axis=0))
        if FAULT == "sum not rescaled":
            total = total + tl.sum(tl.exp(x - new), axis=0)
        else:
            total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), axis=0)
        top = new
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < n
        if FAULT == "store beyond the row":
            mask = column <= n
        x = tl.load(x_ptr + row * n + column, mask=column < n, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n + column, tl.exp(x - top) / total, mask=mask)


@triton.jit
def softmax_backward(dy_ptr, y_ptr, dx_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    dot = 0.0
    for start in range(0, n, BLOCK):
        at = row * n + start + tl.arange(0, BLOCK)
        mask = start + tl.arange(0, BLOCK) < n
        if FAULT == "load without a mask":
            mask = start + tl.arange(0, BLOCK) < n + BLOCK
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if FAULT == "sum of the last block":
            dot = tl.sum(dy * y, axis=0)
        else:
            dot += tl.sum(dy * y, axis=0)
    blocks = tl.cdiv(n, BLOCK)
    if FAULT == "last block dropped":
        blocks = n // BLOCK
    for block in range(0, blocks):
        column = block * BLOCK + tl.arange(0, BLOCK)
        dy = tl.load(dy_ptr + row * n + column, mask=column < n, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * n + column, mask=column < n, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * n + column, y * (dy - dot), mask=column < n)


class Softmax:
    """Softmax of the rows of ``x[m, n]``, in blocks of 32 columns."""

    def __init__(self, fault=""):
        self.fault = fault

    def forward(self, x):
        x, (m, n) = x.contiguous(), x.shape
        y = torch.empty_like(x)
        softmax_forward[(m,)](x, y, n, FAULT=self.fault, BLOCK=32)
        return y, y

    def backward(self, dy, y):
        dy, (m, n) = dy.contiguous(), y.shape
        dx = dy if self.fault == "written to dy" else torch.empty_like(y)
        softmax_backward[(m,)](dy, y, dx, n, FAULT=self.fault, BLOCK=32)
        return dx


def softmax(x):
    return x.softmax(-1)


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, am, ak, bk, bn,
    FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros([M, N], tl.float32)
    if FAULT == "sum of products in half precision":
        total = tl.zeros([M, N], tl.float16)
    steps = tl.cdiv(k, K)
    if FAULT == "last step dropped":
        steps = k // K
    for step in range(0, steps):
        depth = step * K + tl.arange(0, K)
        inside = depth < k
        if FAULT == "no mask of k":
            inside = depth < k + K
        a = tl.load(a_ptr + row[:, None] * am + depth * ak, mask=(row[:, None] < m) & inside, other=0.0)
        b = tl.load(b_ptr + depth[:, None] * bk + column * bn, mask=inside[:, None] & (column < n), other=0.0)
        one = tl.dot(a, b, input_precision="ieee")
        total += one.to(total.dtype)
    at = row[:, None] * n + column
    if FAULT == "stride of the output":
        at = row[:, None] * k + column
    tl.store(c_ptr + at, total, mask=(row[:, None] < m) & (column < n))


class Product(torch.autograd.Function):
    """``x[m, k] @ w[k, n]`` in tiles of 16 × 16."""

    fault = ""

    @classmethod
    def of(cls, fault=""):
        return type("Product", (cls,), {"fault": fault})

    @classmethod
    def product(cls, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        grid = (triton.cdiv(m, 16), triton.cdiv(n, 16))
        if cls.fault == "grid of the other length":
            grid = (triton.cdiv(m, 16), triton.cdiv(k, 16))
        strides = (
            (k, 1, n, 1) if cls.fault == "strides of contiguous operands" else (*a.stride(), *b.stride())
        )
        product_kernel[grid](a, b, c, m, n, k, *strides, FAULT=cls.fault, M=16, N=16, K=16)
        return c

    @classmethod
    def forward(cls, ctx, x, w):
        ctx.save_for_backward(x, w)
        return cls.product(x, w)

    @classmethod
    def backward(cls, ctx, dy):
        x, w = ctx.saved_tensors
        return cls.product(dy, w.T), cls.product(x.T, dy)


@triton.jit
def shift_kernel(x_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    before = tl.load(x_ptr + at - 1, mask=(at > 0) & (at < n), other=0.0)
    if FAULT == "in place":
        tl.store(x_ptr + at, x + before, mask=at < n)
    else:
        tl.store(y_ptr + at, x + before, mask=at < n)


class Shift:
    """``x[i] + x[i - 1]``, by a kernel whose blocks have 64 elements."""

    def __init__(self, fault=""):
        self.fault = fault

    def forward(self, x):
        x = x.clone().contiguous()
        y = x if self.fault == "in place" else torch.empty_like(x)
        n = x.numel()
        programs = n // 64 + 1 if self.fault != "one program" else 1
        shift_kernel[(programs,)](x, y, n, FAULT=self.fault, BLOCK=64)
        return y, None

    def backward(self, dy, saved):
        return dy + torch.nn.functional.pad(dy[1:], (0, 1))


def shift(x):
    return x + torch.nn.functional.pad(x[:-1], (1, 0))


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# Each family: how to build one with a fault, the inputs that a user might give, and the operator.
FAMILIES = {
    "norm": (Norm.of, (drawn(8, 32), drawn(32)), norm),
    "softmax": (Softmax, (drawn(8, 32),), softmax),
    "product": (Product.of, (drawn(16, 32), drawn(32, 16)), torch.matmul),
    "shift": (Shift, (drawn(60),), shift),
}
FAULTS = {
    "norm": (
        "rows of the last program", "padding counted", "eps outside",
        "rstd of one program", "rows beyond the last", "one row too few", "no mean", "only the last row",
        "sum in half precision", "stride of x", "stride of w", "stride of dy", "dropped dtype",
        "too few programs", "block of a power below", "stale rstd", "rows left over",
        "atomic sum of garbage", "partial sums not written", "only one partial sum",
    ),
    "softmax": (
        "wrong grid axis", "other of a maximum", "sum not rescaled", "store beyond the row",
        "load without a mask", "sum of the last block", "last block dropped", "written to dy",
    ),
    "product": (
        "sum of products in half precision", "last step dropped", "no mask of k", "stride of the output",
        "grid of the other length", "strides of contiguous operands",
    ),
    "shift": ("in place", "one program"),
}  # fmt: skip
