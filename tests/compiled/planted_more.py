"""Further faults, of other kinds than those of ``planted``, in kernels that only have a forward.

Each family is a kernel, its host code, inputs at which its faults show, and a function of PyTorch, whose gradient is
the backward. The empty fault is the right kernel.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .planted import drawn


class Planted:
    """An object to check: ``call(fault, *inputs)`` runs the kernel."""

    def __init__(self, family, fault=""):
        self.family, self.fault = family, fault
        self.ATOMIC_SUMS = family.atomic_sums

    def forward(self, *inputs):
        return self.family.call(self.fault, *inputs), inputs

    def backward(self, dy, inputs):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
            y = self.family.operator(*leaves)
            wanted = [x for x in leaves if x.requires_grad]
            found = iter(torch.autograd.grad(y, wanted, dy))
        return tuple(next(found) if x.requires_grad else None for x in leaves)


class Family(NamedTuple):
    call: Callable
    operator: Callable
    inputs: tuple
    faults: dict[str, str]  # by name, what the first finding says
    atomic_sums: bool = False


@triton.jit
def scaled_kernel(x_ptr, y_ptr, z_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    first = program + 1 if FAULT == "starts at one" else program
    step = programs + 1 if FAULT == "step of the loop" else programs
    blocks = n // BLOCK if FAULT == "blocks rounded down" else tl.cdiv(n, BLOCK)
    for block in range(first, blocks, step):
        at = block * BLOCK + tl.arange(0, BLOCK)
        mask = at < n
        if FAULT == "mask one too short":
            mask = at < n - 1
        if FAULT == "mask one too long":
            mask = at <= n
        x = tl.load(x_ptr + at, mask=mask, other=0.0)
        if FAULT == "accumulates into empty memory":
            x += tl.load(y_ptr + at, mask=mask, other=0.0)
        tl.store(y_ptr + at, 2 * x, mask=mask)
        tl.store(z_ptr + at, 3 * x, mask=mask)


def scaled(fault, x):
    x = x.contiguous()
    n, y = x.numel(), torch.empty_like(x)
    z = y if fault == "outputs share a buffer" else torch.empty_like(x)
    scaled_kernel[(min(3, triton.cdiv(n, 32)),)](x, y, z, n, FAULT=fault, BLOCK=32)
    return y


@triton.jit
def rows_kernel(x_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    column, row = tl.arange(0, BLOCK), tl.program_id(0)
    at, mask = row * n + column, column < n
    other = 0.0 if FAULT == "other of a sum" else -float("inf")
    x = tl.load(x_ptr + at, mask=mask, other=other).to(tl.float32)
    top = tl.max(x, axis=0)
    if FAULT == "no maximum subtracted":
        top = 0.0
    if FAULT == "maximum starts at zero":
        top = tl.maximum(top, 0.0)
    if FAULT == "overwrites its input":
        tl.store(x_ptr + at, x - top, mask=mask)
    y = x - top - tl.log(tl.sum(tl.exp(x - top), axis=0))
    tl.store(y_ptr + at, y, mask=mask)


def rows(fault, x):
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
    rows_kernel[(len(x),)](x, y, x.shape[1], FAULT=fault, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@triton.jit
def mean_kernel(x_ptr, y_ptr, m, n, FAULT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    column, own = tl.arange(0, BLOCK), tl.arange(0, ROWS)
    total = tl.zeros([BLOCK], tl.bfloat16 if FAULT == "sum in bfloat16" else tl.float32)
    count = tl.zeros([], tl.int8 if FAULT == "count in eight bits" else tl.int32)
    for start in range(0, m, ROWS):
        row = start + own[:, None]
        mask = (row < m) & (column < n)
        x = tl.load(x_ptr + row * n + column, mask=mask, other=0.0).to(tl.float32)
        total = (total + tl.sum(x, axis=1 if FAULT == "sum over columns" else 0)).to(total.dtype)
        count = (count + tl.minimum(m - start, ROWS)).to(count.dtype)
    tl.store(y_ptr + column, total.to(tl.float32) / count.to(tl.float32), mask=column < n)


def mean(fault, x):
    x, y = x.contiguous(), torch.empty(x.shape[1], dtype=x.dtype)
    block = triton.next_power_of_2(x.shape[1])
    mean_kernel[(1,)](x, y, *x.shape, FAULT=fault, ROWS=block, BLOCK=block)
    return y


@triton.jit
def dequantised_kernel(x_ptr, scale_ptr, y_ptr, n, groups, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    column, row = tl.arange(0, BLOCK), tl.program_id(0)
    group = column // (16 if FAULT == "group of another size" else 8)
    at = row * groups + group
    if FAULT == "scale of the wrong axis":
        at = group * groups + row % groups
    x = tl.load(x_ptr + row * n + column, mask=column < n)
    scale = tl.load(scale_ptr + at, mask=column < n)
    tl.store(y_ptr + row * n + column, x * scale, mask=column < n)


def dequantised(fault, x, scale):
    if scale.shape != (len(x), -(-x.shape[1] // 8)):
        raise ValueError("expected a scale for each 8 columns")
    x, scale, y = x.contiguous(), scale.contiguous(), torch.empty(x.shape, dtype=x.dtype)
    n = x.shape[1]
    dequantised_kernel[(len(x),)](
        x, scale, y, n, scale.shape[1], FAULT=fault, BLOCK=triton.next_power_of_2(n)
    )
    return y


@triton.jit
def before_kernel(x_ptr, y_ptr, n, count, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at > 0 if FAULT == "wraps around the row" else at % n > 0
    x = tl.load(x_ptr + at, mask=at < count, other=0.0)
    before = tl.load(x_ptr + at - 1, mask=inside & (at < count), other=0.0)
    tl.store(y_ptr + at, x - before, mask=at < count)


def before(fault, x):
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
    before_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.shape[1], x.numel(), FAULT=fault, BLOCK=64)
    return y


@triton.jit
def cumulated_kernel(x_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    carry = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=1.0 if FAULT == "padding in the carry" else 0.0)
        tl.store(y_ptr + at, tl.cumsum(x, axis=0) + carry, mask=at < n)
        if FAULT == "carry of one block":
            carry = tl.sum(x, axis=0)
        elif FAULT == "padding in the carry":
            carry += tl.sum(tl.where(at < n - BLOCK, x, 1.0), axis=0)
        else:
            carry += tl.sum(x, axis=0)


def cumulated(fault, x):
    x, y = x.contiguous(), torch.empty_like(x)
    cumulated_kernel[(1,)](x, y, len(x), FAULT=fault, BLOCK=16)
    return y


@triton.jit
def scattered_kernel(x_ptr, index_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=1.0)
    to = y_ptr + tl.load(index_ptr + at, mask=mask, other=0)
    if FAULT == "load and store":
        tl.store(to, tl.load(to, mask=mask) + x, mask=mask)
    elif FAULT == "counts the padding":
        tl.atomic_add(to, x)
    else:
        tl.atomic_add(to, x, mask=mask)


def scattered(fault, x, index):
    y = torch.zeros(8, dtype=x.dtype)
    scattered_kernel[(triton.cdiv(len(x), 32),)](
        x.contiguous(), index.contiguous(), y, len(x), FAULT=fault, BLOCK=32
    )
    return y


@triton.jit
def turned_kernel(x_ptr, scratch_ptr, y_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(scratch_ptr + at, tl.load(x_ptr + at))
    if FAULT != "missing barrier":
        tl.debug_barrier()
    tl.store(y_ptr + at, tl.load(scratch_ptr + BLOCK - 1 - at))


def turned(fault, x):
    if len(x) != 256:
        raise ValueError("expected 256 elements")
    y = torch.empty(256, dtype=x.dtype)
    turned_kernel[(1,)](x.contiguous(), torch.empty(256, dtype=x.dtype), y, FAULT=fault, BLOCK=256)
    return y


@triton.jit
def locked_kernel(x_ptr, y_ptr, lock_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + column, mask=column < n, other=0.0)
    if FAULT != "no lock":
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
    total = tl.load(y_ptr + column, mask=column < n) + x
    if FAULT == "released before the store":
        tl.debug_barrier()
        tl.atomic_xchg(lock_ptr, 0)
    tl.store(y_ptr + column, total, mask=column < n)
    tl.debug_barrier()
    if (FAULT != "no lock") and (FAULT != "released before the store"):
        tl.atomic_xchg(lock_ptr, 0)


def locked(fault, x):
    y, lock = torch.zeros(x.shape[1], dtype=x.dtype), torch.zeros(1, dtype=torch.int32)
    locked_kernel[(len(x),)](
        x.contiguous(), y, lock, x.shape[1], FAULT=fault, BLOCK=triton.next_power_of_2(x.shape[1])
    )
    return y


@triton.jit
def largest_kernel(x_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    top = tl.max(tl.load(x_ptr + at, mask=at < n, other=-float("inf")), axis=0)
    if FAULT == "maximum of bits":
        tl.atomic_max(y_ptr.to(tl.pointer_type(tl.int32)), top.to(tl.int32, bitcast=True))
    else:
        tl.atomic_max(y_ptr, top)


def largest(fault, x):
    if x.dtype != torch.float32:
        raise TypeError("expected float32")
    y = torch.full((1,), -float("inf"))
    largest_kernel[(triton.cdiv(len(x), 32),)](x.contiguous(), y, len(x), FAULT=fault, BLOCK=32)
    return y


@triton.jit
def wide_kernel(x_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = row * n
    if FAULT == "offsets in 16 bits":
        start = start.to(tl.int16)
    for first in range(0, n, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + column, mask=column < n)
        tl.store(y_ptr + row * n + column, -x, mask=column < n)


def wide(fault, x):
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
    wide_kernel[(len(x),)](x, y, x.shape[1], FAULT=fault, BLOCK=1024)
    return y


FAMILIES = {
    "scaled": Family(
        scaled,
        lambda x: 2 * x,
        (drawn(300),),
        {
            "starts at one": "never written",
            "step of the loop": "never written",
            "mask one too short": "never written",
            "mask one too long": "OutOfBounds",
            "accumulates into empty memory": "Undefined",
            "outputs share a buffer": "got = 1.5 × reference",
            "blocks rounded down": "never written",
        },
    ),
    "rows": Family(
        rows,
        lambda x: x.log_softmax(-1),
        (drawn(3, 23) + 100,),
        {
            "no maximum subtracted": "the first instruction that departs from float64 is ex2.approx",
            "overwrites its input": "was modified in place",
        },
    ),
    "rows far below 0": Family(
        rows,
        lambda x: x.log_softmax(-1),
        (drawn(3, 23) - 200,),
        {"other of a sum": "", "maximum starts at zero": ""},
    ),
    "mean": Family(
        mean,
        lambda x: x.mean(0),
        (drawn(150, 16) + 1,),
        {"sum over columns": "", "sum in bfloat16": "cvt.rn.bf16.f32", "count in eight bits": ""},
    ),
    "dequantised": Family(
        dequantised,
        lambda x, scale: x * scale.repeat_interleave(8, 1)[:, : x.shape[1]],
        (drawn(4, 32), drawn(4, 4)),
        {"scale of the wrong axis": "", "group of another size": ""},
    ),
    "before": Family(
        before,
        lambda x: x - torch.nn.functional.pad(x[:, :-1], (1, 0)),
        (drawn(5, 7),),
        {"wraps around the row": ""},
    ),
    "cumulated": Family(
        cumulated,
        lambda x: x.cumsum(0),
        (drawn(45),),
        {"carry of one block": "", "padding in the carry": ""},
    ),
    "scattered": Family(
        scattered,
        lambda x, index: x.new_zeros(8).scatter_add(0, index.long(), x),
        (drawn(45), torch.arange(45) % 7),
        {"load and store": "Race", "counts the padding": ""},
        atomic_sums=True,
    ),
    "turned": Family(turned, lambda x: x.flip(0), (drawn(256),), {"missing barrier": "Race"}),
    "locked": Family(
        locked, lambda x: x.sum(0), (drawn(4, 40),), {"no lock": "Order", "released before the store": "Order"}
    ),
    "largest": Family(largest, lambda x: x.max().reshape(1), (drawn(80) - 9,), {"maximum of bits": ""}),
    "wide": Family(wide, torch.neg, (drawn(18, 2000),), {"offsets in 16 bits": "OutOfBounds"}),
}  # fmt: skip
FAULTS = [(family, fault) for family, of in FAMILIES.items() for fault in of.faults]


def configured(restored):
    """An autotuned kernel that adds 1 in place; the right one restores x after each trial."""

    @triton.autotune(
        [triton.Config({"BLOCK": block}) for block in (32, 64)],
        key=["n"],
        restore_value=["x_ptr"] if restored else None,
    )
    @triton.jit
    def increased_kernel(x_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

    def call(x):
        x = x.clone()
        increased_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
        return x

    return call


class Total:
    """A sum over rows by an autotuned kernel that adds; the right one resets y after each trial."""

    def __init__(self, reset):
        @triton.autotune(
            [triton.Config({"ROWS": rows}) for rows in (2, 4)],
            key=["n"],
            reset_to_zero=["y_ptr"] if reset else None,
        )
        @triton.jit
        def total_kernel(x_ptr, y_ptr, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
            row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
            mask = (row[:, None] < m) & (column < n)
            x = tl.load(x_ptr + row[:, None] * n + column, mask=mask, other=0.0).to(tl.float32)
            tl.atomic_add(y_ptr + column, tl.sum(x, axis=0), mask=column < n)

        self.kernel = total_kernel

    def forward(self, x):
        m, n = x.shape
        y = torch.zeros(n)
        grid = lambda own: (triton.cdiv(m, own["ROWS"]),)  # noqa: E731
        self.kernel[grid](x.contiguous(), y, m, n, BLOCK=triton.next_power_of_2(n))
        return y.to(x.dtype), x.shape

    def backward(self, dy, shape):
        return dy.expand(shape)
