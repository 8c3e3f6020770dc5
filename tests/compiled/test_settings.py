"""What a check of compiled kernels accepts by declaration, and what it compiles: TF32, the GPU, configurations."""

import pytest
import torch
import triton
import triton.language as tl

from backpass.kernels import compiled
from backpass.verify import check, departures


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, scale, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + m * am + k[None, :] * ak, mask=(m < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_ptr + k[:, None] * bk + n * bn, mask=(k[:, None] < K) & (n < N), other=0.0)
        total = tl.dot(a, b, total)
    tl.store(c_ptr + m * N + n, (total * scale).to(c_ptr.dtype.element_ty), mask=(m < M) & (n < N))


def product(a, b, scale=1.0, **blocks):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype)
    blocks = blocks or {"BM": 32, "BN": 16, "BK": 16}
    grid = triton.cdiv(m, blocks["BM"]), triton.cdiv(n, blocks["BN"])
    product_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), scale, **blocks)
    return c


class Product:
    def __init__(self, scale=1.0, **settings):
        self.scale, self.settings = scale, settings

    def forward(self, a, b):
        return product(a, b, **self.settings), (a, b)

    def backward(self, dy, saved):
        a, b = saved
        return product(dy, b.mT, self.scale, **self.settings), product(a.mT, dy, **self.settings)


def drawn(*shapes):
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=rng) for shape in shapes]


def checked(op, *shapes, **settings):
    inputs = drawn(*shapes or ((21, 33), (33, 18)))
    settings = {"methods": ["compiled"], "vary": False, **settings}
    return check(op, *inputs, operator=torch.matmul, compiled=True, raises=False, **settings)


def test_products_that_round_to_tf32_are_accepted_if_that_is_declared():
    report = checked(Product())
    assert {row.quantity for row in report.failed} == {"y", "da", "db"}
    assert all("tf32_products=True accepts" in what for _, what in report.findings())
    declared = Product()
    declared.TF32_PRODUCTS = True
    for accepted in (checked(Product(), tf32_products=True), checked(declared)):
        assert accepted.passed, accepted
        row = accepted.rows[0]
        assert row.error < 1e-6 and "which changes y by" in row.note
        assert 1e-4 < float(row.note.split(" by ")[1].split()[0]) < 1e-3


def test_a_wrong_gradient_that_is_smaller_than_tf32_is_found():
    report = checked(Product(scale=1.0001), tf32_products=True)
    assert [row.quantity for row in report.failed] == ["da"]
    assert report.failed[0].error == pytest.approx(1e-4, rel=0.01)


def test_wgmma_rounds_to_tf32_as_mma_does():
    big = Product(BM=64, BN=16, BK=32)
    shapes = (64, 64), (64, 64)
    report = checked(big, *shapes, tf32_products=True, capability=(9, 0))
    assert report.passed and "capability 9.0, with all digits" in report.rows[0].how
    assert not checked(big, *shapes, capability=(9, 0), explain=False).passed
    with compiled.executing(capability=(9, 0), tf32=False) as verdict:
        a, b = drawn(*shapes)
        y = product(a, b, BM=64, BN=16, BK=32)
    assert "wgmma" in verdict.runs[0].text and (y - a @ b).abs().max() < 1e-5


@triton.jit
def gathered_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Take every element from the place that a product computes, 4096 being too large for TF32."""
    i = tl.arange(0, BLOCK)
    one = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    at = tl.dot(one, (i[:, None] + 4097 + tl.zeros((BLOCK, 16), tl.int32)).to(tl.float32))
    place = tl.max(at, axis=1).to(tl.int32) - 4097
    tl.store(y_ptr + i, tl.load(x_ptr + tl.where(place < 0, 0, place), mask=i < n) * 1.0, mask=i < n)


class Gathered:
    def forward(self, x):
        y = torch.empty_like(x)
        gathered_kernel[(1,)](x, y, len(x), BLOCK=16)
        return y, None

    def backward(self, dy, saved):
        return dy.clone()


def test_a_result_of_which_tf32_leaves_no_digit_is_not_accepted():
    (x,) = drawn((13,))
    report = check(
        Gathered(), x, operator=torch.clone, compiled=True, tf32_products=True, vary=False, raises=False
    )
    assert "TF32 leaves no digit of y" in report.failed[0].reason


def configured(fault=""):
    """A product with three configurations, of which the last one may be wrong."""

    @triton.autotune([triton.Config({"BLOCK": 16, "LAST": last}) for last in (False, False, True)], key=["n"])
    @triton.jit
    def kernel(x_ptr, y_ptr, n, FAULT: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        if LAST:
            if FAULT == "mask":
                inside = at < n // BLOCK * BLOCK
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        tl.store(y_ptr + at, 2 * x, mask=at < n)

    class Doubled:
        def forward(self, x):
            y = torch.empty_like(x)
            kernel[lambda own: (triton.cdiv(len(x), own["BLOCK"]),)](x.contiguous(), y, len(x), fault)
            return y, None

        def backward(self, dy, saved):
            return 2 * dy

    return Doubled()


def of_configurations(fault, **settings):
    (x,) = drawn((37,))
    settings = {"methods": ["compiled"], "vary": False, **settings}
    return check(configured(fault), x, operator=lambda x: 2 * x, compiled=True, raises=False, **settings)


@pytest.mark.parametrize("configurations", [None, 3, lambda own: own[1:]])
def test_each_chosen_configuration_is_compared_by_itself(configurations):
    assert of_configurations("", configurations=configurations).passed
    report = of_configurations("mask", configurations=configurations)
    (row,) = report.failed
    number = 2 if callable(configurations) else 3
    assert row.method == f"compiled kernel, float32, configuration {number}" and row.quantity == "y"


def test_the_configurations_that_are_left_out_are_noted():
    report = of_configurations("mask", configurations=2)
    assert report.passed and "not executed: kernel: 1 of 3 configurations" in report.rows[0].note
    everything = of_configurations("", configurations=None)
    assert "configuration 3" in everything.rows[-1].method and "not executed" not in str(everything.rows)


def test_the_configurations_are_compared_at_other_lengths():
    (x,) = drawn((32,))
    settings = {"operator": lambda x: 2 * x, "compiled": True, "raises": False}
    assert check(configured("mask"), x, **settings).passed
    report = check(configured("mask"), x, **settings, configurations=None)
    assert "length 37 in place of 32" in next(what for _, what in report.findings())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"capability": (7, 0), "compiled": True},
            r"capability: expected \(8, 0\), \(8, 9\), or \(9, 0\); got \(7, 0\)",
        ),
        ({"configurations": 0, "compiled": True}, "configurations: expected a positive number"),
        ({"capability": (9, 0)}, r"capability=\(9, 0\): expected compiled=True too"),
        ({"configurations": None}, "configurations=None: expected compiled=True too"),
    ],
)
def test_settings_that_cannot_be_are_rejected(settings, says):
    with pytest.raises(ValueError, match=says):
        check(configured(), *drawn((5,)), **settings)


def test_a_backward_that_takes_too_long_to_explain_is_reported(monkeypatch):
    monkeypatch.setattr(departures, "SECONDS", 0)

    class InBackward(Product):
        def forward(self, a, b):
            return a @ b, (a, b)

    report = checked(InBackward(1.5), tf32_products=True)
    assert {row.quantity for row in report.failed} == {"da"}
    assert all("1.5" in row.reason for row in report.failed)


@triton.jit
def square_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * x, mask=at < n)


def square(name, factor):
    @torch.library.triton_op(f"backpass_tests::{name}", mutates_args=())
    def op(x: torch.Tensor, scale: float = 3.0) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        torch.library.wrap_triton(square_kernel)[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return scale * y

    def setup(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x)

    op.register_autograd(
        lambda ctx, dy: (factor * ctx.scale * dy * ctx.saved_tensors[0], None), setup_context=setup
    )
    return op


def test_an_operator_of_triton_op_is_checked():
    x = torch.randn(5, 37, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    right, wrong = square("square", 2), square("square_wrong", 2.5)
    settings = {"methods": ["compiled"], "compiled": True, "vary": False}
    for scale in ({}, {"scale": 0.5}):
        assert check(right, x, operator=lambda x, scale=3.0: scale * x * x, **scale, **settings).passed
    report = check(wrong, x, operator=lambda x, scale=3.0: scale * x * x, raises=False, **settings)
    assert {row.quantity for row in report.failed} == {"dx"}
