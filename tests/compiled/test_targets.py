"""Kernels compiled for another GPU than the A100, and kernels that load addresses of tensors."""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from backpass import kernels, ptx
from backpass.kernels import compiled

ADA = (8, 9)


@triton.jit
def cast(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    y = tl.load(x_ptr + at, mask=at < n).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + at, y, mask=at < n)
    tl.store(z_ptr + at, y.to(tl.float32), mask=at < n)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(a_ptr + m[:, None] * K + k), tl.load(b_ptr + k[:, None] * N + n)
    tl.store(c_ptr + m[:, None] * N + n, tl.dot(a, b))


def eight_bits(*shape, dtype, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_eight_bits_on_ada(dtype):
    x = eight_bits(37, dtype=torch.bfloat16) * 20
    y, z = torch.empty(37, dtype=dtype), torch.empty(37)
    a, b = eight_bits(16, 32, dtype=dtype), eight_bits(32, 16, dtype=dtype, seed=1)
    c = torch.empty(16, 16)
    with compiled.executing(capability=ADA) as verdict:
        cast[(1,)](x, y, z, 37, BLOCK=64)
        product[(1,)](a, b, c, 16, 16, 32)
    name = "e4m3" if dtype == torch.float8_e4m3fn else "e5m2"
    assert verdict.passed and f".{name}.{name}.f32" in verdict.runs[1].text
    assert torch.equal(y.float(), x.to(dtype).float()) and torch.equal(z, y.float())
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-6, atol=1e-5)


def test_host_code_sees_the_chosen_gpu():
    with compiled.executing(as_cuda=True, capability=ADA):
        assert torch.cuda.get_device_capability() == ADA
        properties = torch.cuda.get_device_properties(0)
        assert (properties.major, properties.minor) == ADA and "L40S" in properties.name
        of_triton = triton.runtime.driver.active.utils.get_device_properties(0)
        assert of_triton["max_shared_mem"] == properties.shared_memory_per_block_optin == 99 * 1024
        assert triton.runtime.driver.active.get_current_target().arch == 89
    with compiled.executing(as_cuda=True):
        assert torch.cuda.get_device_capability() == (8, 0)


def test_a_gpu_that_is_not_known_is_rejected():
    with pytest.raises(
        ValueError, match=r"capability: expected \(8, 0\), \(8, 9\), or \(9, 0\); got \(10, 0\)"
    ):
        compiled.executing(capability=(10, 0)).__enter__()


def test_the_kernels_of_the_package_for_hopper():
    """The same results, also where Triton emits instructions that only Hopper has."""
    x = eight_bits(300, dtype=torch.bfloat16)
    results, texts = [], []
    for capability in ((8, 0), (9, 0)):
        with compiled.executing(capability=capability) as verdict:
            y, saved = kernels.load("gelu").forward(x)
            results += [y, kernels.load("gelu").backward(y, saved)]
        assert verdict.passed
        texts += ["".join(run.text for run in verdict.runs)]
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    assert "stmatrix" in texts[1] and "stmatrix" not in texts[0]


@triton.jit
def through_a_descriptor(x_desc, y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), x_desc.load([0]))


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_tensor_descriptors(capability):
    x, y = torch.arange(64.0), torch.empty(64)
    with compiled.executing(capability=capability):
        through_a_descriptor[(1,)](TensorDescriptor(x, [64], [1], [64]), y, BLOCK=64)
    assert torch.equal(x, y)


@triton.jit
def doubled(xs_ptr, ys_ptr, ns_ptr, BLOCK: tl.constexpr):
    i, at = tl.program_id(0), tl.arange(0, BLOCK)
    n = tl.load(ns_ptr + i)
    x, y = (
        tl.load(xs_ptr + i).to(tl.pointer_type(tl.float32)),
        tl.load(ys_ptr + i).to(tl.pointer_type(tl.float32)),
    )
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def on_each(xs, less=0, freed=False, twice=False):
    """Launch the kernel on tensors of which it gets the addresses in tensors."""
    with compiled.executing(as_cuda=True) as verdict:
        ys = [torch.empty_like(x, device="cuda") for x in xs]
        at = [torch.tensor([x.data_ptr() for x in group], device="cuda") for group in (xs, ys)]
        if freed:
            del ys[-1]
        lengths = torch.tensor([len(x) - less for x in xs], dtype=torch.int32)
        doubled[(len(xs),)](*at, lengths, BLOCK=64)
        if twice:  # one of the tensors is also an argument
            cast[(1,)](ys[0], xs[0], torch.empty(len(xs[0])), len(xs[0]), BLOCK=64)
            doubled[(len(xs),)](*at, lengths, BLOCK=64)
    return ys, verdict


def vectors():
    return [eight_bits(n, dtype=torch.float32, seed=n) for n in (5, 37, 64)]


def test_kernels_load_addresses_of_tensors():
    xs = vectors()
    ys, verdict = on_each(xs)
    assert verdict.passed and all(torch.equal(y, 2 * x) for x, y in zip(xs, ys, strict=True))
    ys, verdict = on_each(xs, twice=True)
    assert torch.equal(xs[0], 2 * vectors()[0]) and torch.equal(ys[0], 2 * xs[0])


def test_unwritten_elements_of_such_tensors_are_listed():
    _, verdict = on_each(vectors(), less=1)
    assert verdict.unwritten == [
        f"doubled: tensor {i} by address: 1 of {n} elements never written"
        for i, n in ((4, 5), (5, 37), (6, 64))
    ]


def test_accesses_outside_such_tensors_are_faults():
    with pytest.raises(ptx.OutOfBounds, match=r"reads 4 bytes at tensor 1 by address \+ 20; .* has 20 bytes"):
        on_each(vectors(), less=-1)
    with pytest.raises(ptx.OutOfBounds, match="writes 4 bytes at"):
        on_each(vectors(), freed=True)


def test_views_have_addresses_in_one_storage_and_keep_their_alignment():
    x = torch.arange(64.0)
    with compiled.executing(as_cuda=True):
        start = x.data_ptr()
        assert x[3:].data_ptr() == start + 12 and x.view(8, 8).data_ptr() == start
        assert torch.empty(0).data_ptr() == 0
    assert (x.data_ptr() - start) % 4096 == 0 and x.data_ptr() != start


def test_without_a_stand_in_for_a_gpu_such_addresses_are_faults():
    x = vectors()[0]
    with compiled.executing(), pytest.raises(ptx.OutOfBounds, match=r"only in executing\(as_cuda=True\)"):
        at = torch.tensor([x.data_ptr()])
        doubled[(1,)](at, at, torch.tensor([5], dtype=torch.int32), BLOCK=64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_thread_may_convert_fewer_numbers_than_an_instruction_does(dtype):
    """Triton converts four numbers at a time to eight bits on an A100. Here each thread has one, and three undefined."""
    x = eight_bits(37, dtype=dtype) * 20
    x = torch.where(x == 2.25, 2.5, x)  # Triton rounds this tie up
    y, z = torch.empty(37, dtype=torch.float8_e5m2), torch.empty(37)
    with compiled.executing() as verdict:
        cast[(1,)](x, y, z, 37, BLOCK=64)
    assert verdict.passed
    assert torch.equal(y.float(), x.to(torch.float8_e5m2).float()) and torch.equal(z, y.float())


@triton.jit
def used_in_part(y_ptr, x_ptr, KEPT: tl.constexpr):
    """Elements that were never written, of which a kernel keeps some bits of a sum."""
    at = tl.arange(0, 64)
    x = tl.load(x_ptr + at) & 0x00FFFFFF
    tl.store(y_ptr + at, (x + 0x10000000) & KEPT)


@pytest.mark.parametrize(("kept", "passes"), [(0x70000000, True), (0x00800000, False)])
def test_a_value_that_depends_on_garbage_is_a_fault(kept, passes):
    y, x = torch.zeros(64, dtype=torch.int32), None
    with compiled.executing():
        x = torch.empty(64, dtype=torch.int32)
        try:
            used_in_part[(1,)](y, x, KEPT=kept)
        except ptx.Undefined:
            assert not passes
        else:
            assert passes and (y == 0x10000000).all()


class Shifted:
    """Not a tensor: it has the address of one of a tensor's elements, as a class of a project may."""

    def __init__(self, base, by):
        self.base, self.by, self.dtype = base, by, base.dtype
        self.address = base.data_ptr()

    def data_ptr(self):
        now = self.address if self.by % 2 else self.base.data_ptr()
        return now + self.by * self.base.element_size()


def test_arguments_may_be_objects_that_have_an_address():
    x, y = torch.arange(64.0), torch.empty(64)
    with compiled.executing(as_cuda=True):
        cast[(1,)](Shifted(x, 3), y, torch.empty(64), 61, BLOCK=64)
    assert torch.equal(y[:61], x[3:])
    with compiled.executing(as_cuda=True), pytest.raises(ptx.OutOfBounds, match="has 256 bytes"):
        cast[(1,)](Shifted(x, 4), y, torch.empty(64), 61, BLOCK=64)


def test_a_tensor_may_be_reinterpreted():
    x, z = torch.arange(-32, 32, dtype=torch.int8), torch.empty(64)
    with compiled.executing():
        cast[(1,)](torch.zeros(64), triton.reinterpret(x, tl.float8e5), z, 64, BLOCK=64)
    assert (x == 0).all() and (z == 0).all()
