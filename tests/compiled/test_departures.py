"""A check that fails names the first instruction that departs from float64, and no line if rounding is not the cause."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from backpass import kernels
from backpass.kernels import compiled, load
from backpass.ptx.shadow import Shadow
from backpass.verify import check
from backpass.verify.departures import AGREES, AS_WRONG, TO_EIGHT_BITS

FIRST = "the first instruction that departs from float64 is "


@triton.jit
def rows_kernel(x_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    mask = column < n
    x = tl.load(x_ptr + row * n + column, mask=mask, other=0.0).to(tl.float32)
    if FAULT == "difference of squares":
        mean = tl.sum(x, axis=0) / n
        variance = tl.sum(x * x, axis=0) / n - mean * mean
        y = (x - mean) / tl.sqrt(variance + 1e-5)
    elif FAULT == "short sum":
        total = tl.zeros([BLOCK], tl.float16)
        for _ in range(9):
            total = (total + x).to(tl.float16)
        y = total.to(tl.float32) / 9
    elif FAULT == "overflow":
        y = tl.exp(x) / tl.sum(tl.where(mask, tl.exp(x), 0.0), axis=0)
    elif FAULT == "cast":
        y = x.to(tl.bfloat16).to(tl.float32)
    elif FAULT == "formula":
        y = tl.cos(3.0 * x)
    elif FAULT == "formula beside rounding":
        y = 1.008 * ((x + 131072.0) - 131072.0)
    else:
        y = x
    tl.store(y_ptr + row * n + column, y, mask=mask)


@triton.jit
def product_kernel(x_ptr, y_ptr, INPUT: tl.constexpr):
    row, column = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + row * 16 + column)
    tl.store(y_ptr + row * 16 + column, tl.dot(x, x, input_precision=INPUT))


class Rows:
    def __init__(self, fault):
        self.fault = fault

    def forward(self, x):
        y = torch.empty_like(x)
        m, n = x.shape or (1, 1)
        rows_kernel[(m,)](x.contiguous(), y, n, FAULT=self.fault, BLOCK=triton.next_power_of_2(n))
        return y, x

    def backward(self, dy, x):
        function = OPERATORS.get(self.fault, identity)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(function(leaf), leaf, dy)[0]


class Product(Rows):
    def forward(self, x):
        y = torch.empty_like(x)
        product_kernel[(1,)](x, y, INPUT=self.fault)
        return y, x


def identity(x):
    return x * 1


def standardised(x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5)


def square(x):
    return x @ x


OPERATORS = {
    "difference of squares": standardised,
    "overflow": lambda x: x.softmax(-1),
    "tf32": square,
    "ieee": square,
}


def found(build, fault, x):
    settings = {"operator": OPERATORS.get(fault, identity), "methods": ["compiled"], "vary": False}
    report = check(build(fault), x, raises=False, **settings)
    return [row.reason for row in report.failed if row.quantity == "y"]


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("build", "fault", "x", "line"),
    [
        (Rows, "difference of squares", drawn(3, 37) + 3000, "variance = tl.sum(x * x, axis=0) / n - mean * mean"),
        (Rows, "short sum", drawn(3, 37), "it rounds to float16"),
        (Rows, "overflow", 100 + drawn(3, 37), "y = tl.exp(x) / tl.sum("),
        (Rows, "cast", drawn(3, 37), "y = x.to(tl.bfloat16)"),
        (Product, "tf32", drawn(16, 16), 'unless input_precision="ieee"'),
    ],
)  # fmt: skip
def test_the_line_that_departs_is_named(build, fault, x, line):
    (reason,) = found(build, fault, x)
    assert FIRST in reason and line in reason.split(FIRST)[1], reason


def test_no_line_is_named_if_rounding_is_not_the_cause():
    (reason,) = found(Rows, "formula", drawn(3, 37))
    assert FIRST not in reason and AGREES in reason, reason
    (reason,) = found(Rows, "formula beside rounding", drawn(3, 37))
    assert FIRST not in reason and AS_WRONG in reason, reason


def test_the_line_is_named_for_a_result_without_axes():
    (reason,) = found(Rows, "cast", drawn(1, 1)[0, 0])
    assert "y = x.to(tl.bfloat16)" in reason, reason


@pytest.mark.parametrize(("build", "fault"), [(Rows, ""), (Product, "ieee")])
def test_a_check_that_passes_executes_nothing_again(build, fault, monkeypatch):
    monkeypatch.setattr(Shadow, "launch", lambda *_: pytest.fail("executed with a shadow"))
    assert not found(build, fault, drawn(16, 16))


@pytest.mark.parametrize("stem", ["layer_norm", "softmax", "cross_entropy", "rope"])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 4e-6), ("bfloat16", 2.0**-6)])
def test_the_kernels_of_the_package_stay_beside_float64(stem, dtype, limit):
    from backpass import ops
    from backpass.verify.drawing import drawn_inputs, generator

    given = [
        torch.from_numpy(np.asarray(x)) for x in drawn_inputs(ops.load(stem), generator(0, 1), options={})
    ]
    given = [x.to(getattr(torch, dtype)) if x.is_floating_point() else x for x in given]
    shadow, kernel = Shadow(limit, False), load(stem)
    with compiled.executing():
        kernels.executions[-1].shadow = shadow
        y, saved = kernel.forward(*given)
        kernel.backward(drawn(*y.shape).to(y.dtype), saved)
    assert shadow.first is None
    assert 0 < shadow.stored < limit


@triton.jit
def products_kernel(x_ptr, w_ptr, y_ptr, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    at, mask = row[:, None] * n + column, column < n
    x, w = tl.load(x_ptr + at, mask=mask, other=0.0), tl.load(w_ptr + at, mask=mask, other=0.0)
    tl.store(y_ptr + row, tl.sum(x * w, axis=1))


def test_sums_that_cancel_and_differ_by_rounding_do_not_fail():
    """One rounding of a term is many units of the sum in the last place."""
    x, w = (torch.randn(4, 13, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    w -= (x * w).sum(1, keepdim=True) / (x * x).sum(1, keepdim=True) * x
    with compiled.executing() as verdict:
        products_kernel[(1,)](x, w, torch.empty(4), 13, ROWS=4, BLOCK=16)
    assert verdict.passed
    (fault,) = verdict.rounded
    assert "by rounding alone: computed in float64, the two are equal" in str(fault)
    assert "tl.store(y_ptr + row" in str(fault) and "enable_fp_fusion=False" in str(fault)


@triton.jit
def eight_kernel(x_ptr, y_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, FACTOR * x.to(tl.float8e5).to(tl.float32), mask=at < n)


class Eight:
    """8-bit numbers, times a factor. For capability 8.0, Triton rounds the middle of two from 0, and PyTorch to
    the even one."""

    CONSTANTS = ("x",)

    def __init__(self, factor=1.0):
        self.factor = factor

    def forward(self, x, z):
        y = torch.empty(x.shape, dtype=x.dtype)
        eight_kernel[(1,)](x, y, x.numel(), self.factor, BLOCK=64)
        return y + z, None

    def backward(self, dy, saved):
        return None, dy


@pytest.mark.parametrize("middle", [True, False])
def test_a_conversion_to_eight_bits_that_rounds_differently_is_named(middle):
    x = torch.linspace(1, 2, 33)[:32] if middle else torch.tensor([1.0, 1.25, 1.5, 1.75] * 8)
    z = torch.zeros(32)
    report = check(
        Eight(),
        x.bfloat16(),
        z.bfloat16(),
        operator=lambda x, z: x.to(torch.float8_e5m2).to(x.dtype) + z,
        methods=["compiled"],
        raises=False,
        vary=False,
    )
    if not middle:
        assert report.passed
        return
    (row,) = report.failed
    assert "test_departures.py" in row.reason and "float8e5" in row.reason, row.reason
    assert TO_EIGHT_BITS in row.reason and AGREES not in row.reason


def test_an_infinite_error_has_the_tolerance_of_finite_ones_beside_it():
    x = torch.cat([torch.full((1, 8), 10.0), torch.full((1, 8), 70000.0)])
    settings = {"operator": identity, "methods": ["compiled"], "vary": False, "raises": False}

    class Short(Rows):
        def forward(self, x):
            return super().forward(x)[0].half().float(), x

    (row,) = check(Short(""), x, **settings).failed
    assert row.error == float("inf") and "infinite" in row.reason
    assert row.tolerance > 1e-9 and "at worst" not in row.how
