"""Kernels compiled for an H100: products of warpgroups, tensor maps, and bulk copies.

The same kernel compiled for an A100 has none of these instructions, and both give the same bytes: the executor rounds
the sums of a tensor core once for each instruction, which multiplies the same elements on both.
"""

import re

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from backpass import kernels, ptx
from backpass.kernels import compiled
from backpass.ptx.shadow import Shadow, TooLong
from backpass.verify import check
from backpass.verify.methods import compiled as method
from tests.kernels.support import sources, verifying

from .replay import recording, replayed

HOPPER, AMPERE = (9, 0), (8, 0)


@triton.jit
def product(
    a_ptr,
    b_ptr,
    c_ptr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    A_T: tl.constexpr,
    B_T: tl.constexpr,
):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + k[:, None] * M + m).T if A_T else tl.load(a_ptr + m[:, None] * K + k)
    b = tl.load(b_ptr + n[:, None] * K + k).T if B_T else tl.load(b_ptr + k[:, None] * N + n)
    tl.store(c_ptr + m[:, None] * N + n, tl.dot(a, b, input_precision="tf32").to(c_ptr.dtype.element_ty))


@triton.jit
def product64(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(a_ptr + m[:, None] * K + k), tl.load(b_ptr + k[:, None] * N + n)
    tl.store(c_ptr + m[:, None] * N + n, tl.dot(a, b, out_dtype=tl.float64))


@triton.jit
def on_descriptors(a, b, c, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), tl.float32)
    for k in tl.range(0, K, STEP):
        total = tl.dot(a.load([i, k]), b.load([j, k]).T, total)
    c.store([i, j], total.to(c.dtype))


@triton.jit
def with_descriptors(a_ptr, b_ptr, c_ptr, m, n, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, [m, K], [K, 1], [M, STEP])
    b = tl.make_tensor_descriptor(b_ptr, [n, K], [K, 1], [N, STEP])
    c = tl.make_tensor_descriptor(c_ptr, [m, n], [n, 1], [M, N])
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), tl.float32)
    for k in tl.range(0, K, STEP):
        total = tl.dot(a.load([i, k]), b.load([j, k]).T, total)
    c.store([i, j], total.to(c_ptr.dtype.element_ty))


@triton.jit
def moved(x, y, ROW: tl.constexpr, COLUMN: tl.constexpr, ADDED: tl.constexpr):
    if ADDED:
        y.atomic_add([ROW, COLUMN], x.load([ROW, COLUMN]))
    else:
        y.store([ROW, COLUMN], x.load([ROW, COLUMN]))


def draw(*shape, dtype, seed=0):
    random = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-100, 100, shape, generator=random).to(dtype)
    return torch.randn(shape, generator=random).to(dtype)


def multiplied(capability, a, b, turned=(False, False), out=torch.float32, warps=4):
    (m, k), n = a.shape, b.shape[1]
    given = [x.T.contiguous() if t else x for x, t in zip((a, b), turned, strict=True)]
    c = torch.empty(m, n, dtype=out)
    with compiled.executing(capability=capability) as verdict:
        product[(1,)](*given, c, m, n, k, *turned, num_warps=warps)
    assert verdict.passed, verdict
    assert ("wgmma" in verdict.runs[0].text) == (capability == HOPPER)
    return c


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(
    ("dtype", "n", "k"), [(torch.float16, 32, 64), (torch.bfloat16, 128, 16), (torch.float32, 16, 32)]
)
def test_products_equal_those_of_an_a100(dtype, n, k, turned):
    a, b = draw(64, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    assert torch.equal(multiplied(HOPPER, a, b, turned), multiplied(AMPERE, a, b, turned))


@pytest.mark.parametrize(
    ("dtype", "out"),
    [(torch.int8, torch.int32), (torch.float8_e4m3fn, torch.float32), (torch.float8_e5m2, torch.float16)],
)
def test_products_of_eight_bits_and_of_two_warpgroups(dtype, out):
    a, b = draw(128, 32, dtype=dtype), draw(32, 16, dtype=dtype, seed=1)
    exact = (a.double() @ b.double()).to(out)
    found = multiplied(HOPPER, a, b, (False, True), out, warps=8)
    torch.testing.assert_close(found, exact, rtol=1e-6 if out == torch.float32 else 1e-3, atol=1e-4)
    assert out != torch.int32 or torch.equal(found, exact)


@pytest.mark.parametrize("k", [16, 32])
def test_products_in_float64(k):
    """An H100 multiplies matrices of 16 × 8 elements where an A100 multiplies 8 × 8."""
    a, b = draw(32, k, dtype=torch.float32).double(), draw(k, 16, dtype=torch.float32, seed=1).double()
    c = torch.empty(32, 16, dtype=torch.float64)
    with compiled.executing(capability=HOPPER) as verdict:
        product64[(1,)](a, b, c, 32, 16, k)
    assert verdict.passed and "mma.sync.aligned.m16n8k16.row.col.f64" in verdict.runs[0].text
    torch.testing.assert_close(c, a @ b, rtol=1e-14, atol=1e-14)


def by_descriptors(capability, own, steps=3, seed=0):
    a, b = draw(70, 136, dtype=torch.float16, seed=seed), draw(40, 136, dtype=torch.float16, seed=seed + 1)
    c = torch.empty(70, 40, dtype=torch.float16)
    grid, sizes = (2, 2), (64, 32, 32)
    with compiled.executing(capability=capability) as verdict:
        if own:
            with_descriptors[grid](a, b, c, 70, 40, 136, *sizes, num_stages=steps)
        else:
            of = [TensorDescriptor(x, [*x.shape], [*x.stride()], tile) for x, tile in
                  ((a, [64, 32]), (b, [32, 32]), (c, [64, 32]))]  # fmt: skip
            on_descriptors[grid](*of, 136, *sizes, num_stages=steps)
    assert verdict.passed, verdict
    return c, verdict.runs[0].text


@pytest.fixture
def allocator():
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8))
    yield
    triton.set_allocator(triton.runtime._allocation._NULL_ALLOCATOR)


@pytest.mark.parametrize("own", [False, True])
def test_tiles_of_tensor_descriptors(own, allocator):
    """Tiles reach beyond the tensors, and loads run ahead of the loop."""
    found, text = by_descriptors(HOPPER, own)
    expected, _ = by_descriptors(AMPERE, own)
    assert torch.equal(found, expected)
    assert {"wgmma.mma_async", "mbarrier.try_wait", "cp.async.bulk.tensor"} <= {
        x for x in re.findall(r"[a-z]+\.[a-z_]+(?:\.bulk\.tensor)?", text)
    }
    assert ("tensormap.replace" in text) == own


def test_descriptors_in_kernels_need_an_allocator():
    with pytest.raises(RuntimeError, match=r"with_descriptors: .* call triton\.set_allocator first"):
        by_descriptors(HOPPER, True)


@pytest.mark.parametrize(
    ("dtype", "shape", "tile", "at", "added"),
    [
        (torch.float32, (20, 150), (8, 16), (3, -5), False), (torch.float32, (20, 150), (8, 16), (3, -5), True),
        (torch.bfloat16, (20, 150), (8, 16), (15, 140), False), (torch.bfloat16, (20, 150), (8, 16), (15, 140), True),
        (torch.uint8, (20, 150), (8, 16), (-2, 16), False), (torch.int64, (20, 38), (4, 8), (18, 32), False),
        (torch.float32, (20, 150), (8, 64), (16, 100), True),
    ],
)  # fmt: skip
def test_copies_of_tiles(dtype, shape, tile, at, added):
    found = []
    for capability in (HOPPER, AMPERE):
        x, y = draw(20, 160, dtype=dtype), torch.full((20, 160), 3, dtype=dtype)
        own = [TensorDescriptor(z, [*shape], [160, 1], [*tile]) for z in (x, y)]
        with compiled.executing(capability=capability) as verdict:
            moved[(1,)](*own, *at, added)
        assert verdict.passed, verdict
        found.append(y)
    assert torch.equal(*found) and not torch.equal(found[0], torch.full_like(found[0], 3))


@pytest.mark.parametrize("written", [False, True])
def test_a_descriptor_that_is_larger_than_its_tensor_is_found(written):
    x, y = draw(20, 160, dtype=torch.float32), torch.zeros(20, 160)
    shapes = [(20, 160), (21, 160)] if written else [(21, 160), (21, 160)]
    own = [TensorDescriptor(z, [*n], [160, 1], [8, 16]) for z, n in zip((x, y), shapes, strict=True)]
    verb, name = ("writes", "y") if written else ("reads", "x")
    with (
        compiled.executing(capability=HOPPER),
        pytest.raises(ptx.OutOfBounds, match=rf"{verb} \d+ bytes at {name} \+ 12800; .* has 12800 bytes"),
    ):
        moved[(1,)](*own, 16, 0, False)


def attention(capability, d):
    q, k, v, dy = (draw(2, 70, d, dtype=torch.bfloat16, seed=i) for i in range(4))
    kernel = kernels.load("flash_attention")
    with compiled.executing(capability=capability) as verdict:
        y, saved = kernel.forward(q, k, v, causal=True)
        found = [y, *kernel.backward(dy, saved)[:3]]
    assert verdict.passed, verdict
    return found, verdict


def test_attention_equals_that_of_an_a100():
    found, verdict = attention(HOPPER, 32)
    expected, _ = attention(AMPERE, 32)
    assert all(map(torch.equal, found, expected))
    assert sum("wgmma.mma_async" in run.text for run in verdict.runs) == 3


@pytest.mark.rotates(of=sources, checks=verifying)
@pytest.mark.parametrize("stem", kernels.STEMS)
def test_every_kernel_is_right_on_an_h100(stem, monkeypatch):
    monkeypatch.setattr(method, "LOW", ("bfloat16",))
    report = check(stem, methods=["compiled"], capability=HOPPER)
    assert report.passed and "compute capability 9.0" in report.rows[0].how


@triton.jit
def twice_through_one_tile(x, y, z):
    y.store([0, 0], 2.0 * x.load([0, 0]) + 1.0)
    z.store([0, 0], 3.0 * x.load([0, 64]))


def test_a_shadow_does_not_follow_copies_of_tiles():
    x, y, z = draw(64, 128, dtype=torch.float32), torch.empty(64, 64), torch.empty(64, 64)
    own = [TensorDescriptor(t, [*t.shape], [*t.stride()], [64, 64]) for t in (x, y, z)]
    with compiled.executing(capability=HOPPER), pytest.raises(TooLong):
        kernels.executions[-1].shadow = Shadow(1e-3, overflows=True)
        twice_through_one_tile[(1,)](*own)


@triton.jit
def specialised(a, b, c, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    total = tl.zeros((M, N), tl.float32)
    for k in tl.range(0, K, STEP, warp_specialize=True):
        total = tl.dot(a.load([0, k]), b.load([0, k]).T, total)
    c.store([0, 0], total.to(c.dtype))


def test_warps_with_different_roles_are_rejected():
    a, b = draw(64, 128, dtype=torch.float16), draw(64, 128, dtype=torch.float16, seed=1)
    own = [TensorDescriptor(x, [64, 128], [128, 1], [64, 64]) for x in (a, b)]
    c = torch.empty(64, 64, dtype=torch.float16)
    with (
        compiled.executing(capability=HOPPER),
        pytest.raises(ptx.Unsupported, match=r"roles are not supported; launch the kernel without warp_spec"),
    ):
        specialised[(1,)](
            *own, TensorDescriptor(c, [64, 64], [64, 1], [64, 64]), 128, 64, 64, 64, num_stages=3
        )


# Lines whose removal is a fault of the pipelined kernel, and those of which Triton emits more than it needs.
REMOVED = {
    r"wgmma\.wait_group\.sync\.aligned \d;": {"fault"},
    r"wgmma\.fence\.sync\.aligned;": {"fault"},
    r"wgmma\.commit_group\.sync\.aligned;": {"fault"},
    r"fence\.proxy\.async\.shared::cta;": {"fault"},
    r"@!complete bra\.uni waitLoop;": {"fault"},
    r"@%p\d+ mbarrier\.init[^;]*;": {"fault"},
    r"@%p\d+ mbarrier\.arrive\.expect_tx[^;]*;": {"fault"},
    r"@%p\d+ cp\.async\.bulk\.tensor\.2d\.shared[^;]*;": {"fault"},
    r"@%p\d+ cp\.async\.bulk\.tensor\.2d\.global[^;]*;": {"differ"},
}


def test_each_instruction_removed_is_found():
    with recording() as recorder:
        by_descriptors(HOPPER, False)
    (launch,) = recorder.launches
    assert replayed(ptx.parse(launch.text), launch) == "same"
    for pattern, expected in REMOVED.items():
        places = [*re.finditer(pattern, launch.text)]
        assert places, pattern
        for place in places:
            text = launch.text[: place.start()] + launch.text[place.end() :]
            assert replayed(ptx.parse(text), launch) in expected, (pattern, text[: place.start()].count("\n"))
