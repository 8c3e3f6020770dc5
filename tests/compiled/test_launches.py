"""Triton's own launch, with the driver that executes PTX."""

import importlib.util

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

from backpass import kernels, ptx
from backpass.kernels import compiled


@triton.jit
def scale(x_ptr, y_ptr, n, factor, negate, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + at, mask=at < n) * factor
    tl.store(y_ptr + at, tl.where(negate, -y, y), mask=at < n)


@pytest.fixture
def x():
    return torch.from_numpy(np.random.default_rng(0).normal(size=300)).float()


@pytest.mark.parametrize("factor", [0.3, -2, 1.0])
@pytest.mark.parametrize("negate", [True, False])
def test_numbers_tensors_and_flags_are_given_to_the_kernel(x, factor, negate):
    with compiled.executing() as verdict:
        y = torch.empty_like(x)
        scale[(3,)](x, y, 300, factor, negate, BLOCK=128)
    assert torch.equal(y, x * factor * (-1 if negate else 1))
    assert verdict.passed and [run[:3] for run in verdict.runs] == [("scale", (3,), 128)]
    assert "not checked: timing" in str(verdict) and "✓" in str(verdict)


def test_a_grid_may_be_a_function_and_have_three_axes(x):
    @triton.jit
    def place(y_ptr, B: tl.constexpr, C: tl.constexpr):
        a, b, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        assert_b, assert_c = tl.num_programs(1), tl.num_programs(2)
        tl.store(y_ptr + (a * B + b) * C + c, 100 * a + 10 * b + c + 1000 * (assert_b * C + assert_c))

    with compiled.executing() as verdict:
        y = torch.empty(2, 3, 5, dtype=torch.int32)
        place[lambda constants: (2, constants["B"], 5)](y, B=3, C=5)
    a, b, c = np.indices((2, 3, 5))
    assert np.array_equal(y.numpy(), 100 * a + 10 * b + c + 1000 * (3 * 5 + 5))
    assert verdict.runs[0].grid == (2, 3, 5)


def test_views_are_read_where_they_are(x):
    """Triton vectorises accesses only if the pointer is aligned: with the view's own pointer, none is misaligned."""
    for view in (x[1:257], x[16:272]):
        with compiled.executing():
            y = torch.empty(257)[1:]
            scale[(2,)](view, y, 256, 2.0, False, BLOCK=128)
        assert torch.equal(y, 2 * view)


def tuned(*blocks, **given):
    """``scale`` with a configuration for each number of elements of a program."""
    listed = [triton.Config({"BLOCK": block}, num_warps=block // 32) for block in blocks]
    kernel = triton.autotune(listed, key=["n"], **given)(scale)

    def launch(x):
        y = torch.empty_like(x)
        kernel[lambda c: (triton.cdiv(300, c["BLOCK"]),)](x, y, 300, 3.0, False)
        assert torch.equal(y, 3 * x)

    return launch


@pytest.mark.parametrize("given", [{}, {"warmup": 1, "rep": 1}, {"cache_results": True}], ids=str)
@pytest.mark.filterwarnings("ignore:warmup, rep")
def test_one_configuration_of_an_autotuned_kernel_runs_by_default(x, given):
    launch = tuned(64, 256, **given)
    for _ in range(2):  # what one context chose, the next does not know
        with compiled.executing() as verdict:
            launch(x)
            launch(x)
        assert [(run.grid, run.threads) for run in verdict.runs] == [((5,), 64)] * 2
        assert verdict.passed and str(verdict).endswith("– not executed: scale: 1 of 2 configurations")


@pytest.mark.parametrize(
    ("wanted", "threads", "left_out"),
    [
        (None, [64, 256, 128, 64], []),
        (2, [64, 256, 64], ["scale: 1 of 3 configurations"]),
        (9, [64, 256, 128, 64], []),
        (lambda listed: listed[-1:], [128], ["scale: 2 of 3 configurations"]),
        (
            lambda listed: [c for c in listed if c.num_warps > 2],
            [256, 128, 256],
            ["scale: 1 of 3 configurations"],
        ),
    ],
)
def test_the_configurations_of_an_autotuned_kernel_can_be_chosen(x, wanted, threads, left_out):
    launch = tuned(64, 256, 128)
    with compiled.executing():  # its choices are forgotten
        launch(x)
    with compiled.executing(configurations=wanted) as verdict:
        launch(x)
    assert [run.threads for run in verdict.runs] == threads
    assert verdict.left_out == left_out


def test_a_configuration_that_does_not_fit_is_passed_over():
    @triton.jit
    def product(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
        total = tl.zeros([BLOCK, BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            inside = (row < n) & (start + column < n)
            left = tl.load(x_ptr + row * n + start + column, mask=inside, other=0.0)
            right = tl.load(
                x_ptr + (start + row) * n + column, mask=(start + row < n) & (column < n), other=0.0
            )
            total += tl.dot(left, right)  # in TF32
        tl.store(y_ptr + row * n + column, total, mask=(row < n) & (column < n))

    listed = [triton.Config({"BLOCK": 64}, num_stages=8), triton.Config({"BLOCK": 16})]
    kernel = triton.autotune(listed, key=["n"])(product)
    x = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    with compiled.executing() as verdict:
        y = torch.empty_like(x)
        kernel[(1,)](x, y, 10)
    assert len(verdict.runs) == 1 and torch.allclose(y, x @ x, atol=0.02)


def test_no_configuration_is_an_error(x):
    for wanted in (0, -1):
        with (
            pytest.raises(ValueError, match="configurations: expected a positive number"),
            compiled.executing(configurations=wanted),
        ):
            pass
    with (
        compiled.executing(configurations=lambda listed: []),
        pytest.raises(ValueError, match="expected one or more of the 2 of scale; got none"),
    ):
        tuned(64, 256)(x)


def test_only_some_programs_can_run(x):
    with compiled.executing(only=[0, -1]) as verdict:
        y = torch.empty_like(x)
        scale[(3,)](x, y, 300, 2.0, False, BLOCK=128)
    assert (
        torch.equal(y[:128], 2 * x[:128]) and torch.equal(y[256:], 2 * x[256:]) and y[128:256].isnan().all()
    )
    assert verdict.unwritten == ["scale: y_ptr: 128 of 300 elements never written"]
    assert not verdict.passed
    for only in ([3], [-4], []):
        with (
            pytest.raises(ValueError, match=r"scale: only: expected numbers of its 3 programs, from -3 to 2"),
            compiled.executing(only=only),
        ):
            scale[(3,)](x, y, 300, 2.0, False, BLOCK=128)


@triton.jit
def in_place(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@pytest.mark.parametrize("block", [1, 32, 64, 256])
def test_threads_that_load_what_they_do_not_use_are_not_race(block):
    """With fewer elements than threads, several threads load an element, and one of them stores it."""
    x = torch.arange(100.0)
    with compiled.executing() as verdict:
        in_place[(triton.cdiv(100, block),)](x, 100, BLOCK=block)
    assert verdict.passed and torch.equal(x, 2 * torch.arange(100.0))


@triton.jit
def largest(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.max(tl.load(x_ptr + tl.program_id(0) * n + at, mask=at < n, other=0.0), axis=0)
    before, swapped = tl.load(y_ptr), 0
    while swapped == 0:
        after = tl.maximum(before.to(tl.float32, bitcast=True), x).to(tl.int32, bitcast=True)
        found = tl.atomic_cas(y_ptr, before, after)
        swapped, before = (found == before).to(tl.int32), found


def test_the_read_before_a_loop_of_swaps_is_not_a_race():
    x = torch.rand(5, 100, generator=torch.Generator().manual_seed(0))
    with compiled.executing() as verdict:
        y = torch.zeros(1)
        largest[(5,)](x, y.view(torch.int32), 100, BLOCK=128)
    assert verdict.passed and y.item() == x.max()


@triton.jit
def to_short(x_ptr, y_ptr):
    at = tl.arange(0, 32)
    tl.store(y_ptr + at, tl.where(tl.load(x_ptr + at).to(tl.int8) > 0, 1, -1))


def test_a_short_integer_has_a_sign():
    x = torch.arange(-16, 16, dtype=torch.int32)
    with compiled.executing():
        y = torch.empty_like(x)
        to_short[(1,)](x, y, num_warps=1)
    assert torch.equal(y, torch.where(x > 0, 1, -1).int())


@triton.jit
def to_float8(x_ptr, y_ptr):
    at = tl.arange(0, 32)
    tl.store(y_ptr + at, tl.load(x_ptr + at).to(tl.float8e5))


def test_parts_of_registers_that_inline_assembly_leaves_open_are_not_needed():
    x = torch.randn(32, generator=torch.Generator().manual_seed(0))
    with compiled.executing() as verdict:
        y = torch.empty(32, dtype=torch.float8_e5m2)
        to_float8[(1,)](x, y, num_warps=1)
    assert verdict.passed and torch.equal(y.view(torch.uint8), x.to(torch.float8_e5m2).view(torch.uint8))


@triton.jit
def adding(x_ptr, total_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    before = tl.atomic_add(total_ptr, tl.sum(x, axis=0).to(tl.int32))
    if before < 0:
        tl.store(x_ptr, 0.0)


def test_the_verdict_says_which_kernels_are_slow_and_why(x):
    total, y = torch.zeros(1, dtype=torch.int32), torch.zeros(300)
    with compiled.executing() as verdict:
        adding[(4,)](x, total, BLOCK=64)
        short[(1,)](x, y, 300, BLOCK=512)
        short[(1,)](x, y, 300, BLOCK=512)
    head, *rows = verdict.speed.splitlines()
    assert head.split() == ["kernel", "launches", "seconds", "instructions", "a", "second"]
    (slow,) = (row for row in rows if row.startswith("adding"))
    (quick,) = (row for row in rows if row.startswith("short"))
    assert "one program after another: the instruction atom.global" in slow
    assert quick.split()[1] == "2"
    assert "after another" not in quick


def test_a_launch_says_what_it_does_if_it_takes_long(x, monkeypatch):
    said = []
    monkeypatch.setattr(compiled.Progress, "now", lambda self, doing: said.append((self.what, doing)))
    with compiled.executing():
        short[(1,)](x, torch.zeros(300), 300, BLOCK=512)
    assert said[0][0] == "executing short"
    assert said[0][1].startswith("blocks 1 to 1 of 1, ")


@triton.jit
def short(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n - 1)


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def test_what_nobody_has_written_is_listed(x):
    with compiled.executing() as verdict:
        y, overwritten = torch.empty_like(x), torch.empty_like(x)
        short[(1,)](x, y, 300, BLOCK=512)
        short[(1,)](x, overwritten, 300, BLOCK=512)
        overwritten[299:].zero_()
    assert verdict.unwritten == ["short: y_ptr: 1 of 300 elements never written"]
    assert "✗ short: y_ptr" in str(verdict) and "✓" not in str(verdict)


@pytest.mark.parametrize("read", [False, True])
def test_freed_memory_counts_only_if_pytorch_has_read_what_nobody_has_written(x, read):
    with compiled.executing() as verdict:
        scratch = torch.empty_like(x)
        short[(1,)](x, scratch, 300, BLOCK=512)
        total = scratch[:299].sum() + (scratch.sum() if read else 0)
        del scratch
    assert verdict.unwritten == (["short: y_ptr: 1 of 300 elements never written"] if read else [])
    assert total.isnan() == read


def test_a_read_of_what_nobody_has_written_is_a_fault(x):
    """Also in a launch after the one that should have written the element."""
    with (
        compiled.executing(),
        pytest.raises(ptx.Undefined, match=r"test_launches.py:\d+ \(tl.store.*uninitialised"),
    ):
        y, z = torch.empty_like(x), torch.empty_like(x)
        short[(1,)](x, y, 300, BLOCK=512)
        copy[(1,)](y, z, 300, BLOCK=512)
    with compiled.executing():
        y, z = torch.empty_like(x), torch.empty_like(x)
        short[(1,)](x, y, 300, BLOCK=512)
        y[299] = 0
        copy[(1,)](y, z, 300, BLOCK=512)


def test_a_fault_names_the_users_line_though_a_function_of_triton_did_it():
    @triton.jit
    def total(x_ptr, y_ptr, BLOCK: tl.constexpr):
        x = tl.load(x_ptr + tl.arange(0, BLOCK))
        tl.store(y_ptr, tl.sum(x, axis=0))

    with compiled.executing(), pytest.raises(ptx.Fault) as raised:
        total[(1,)](torch.empty(512), torch.zeros(1), BLOCK=512)
    assert raised.value.place.file == "test_launches.py"


def test_a_kernel_that_was_compiled_in_another_file_has_its_line_in_this_one(tmp_path):
    """Triton's cache has the PTX with the first file's name."""
    source = (
        "import triton, triton.language as tl\n\n\n@triton.jit\ndef into(x_ptr, B: tl.constexpr):\n"
        "    tl.store(x_ptr + tl.arange(0, B), tl.sum(tl.load(x_ptr + tl.arange(0, B)), axis=0))\n"
    )
    for name in ("one", "two"):
        path = tmp_path / name / f"kernels_{name}.py"
        path.parent.mkdir()
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with compiled.executing(), pytest.raises(ptx.OutOfBounds) as raised:
            module.into[(1,)](torch.zeros(100), B=128)
        assert raised.value.place.file == f"kernels_{name}.py" and "tl.store" in raised.value.place.text
        path.unlink()


def test_a_recurrence_through_copies_in_flight_is_too_early():
    """With three stages, the load of row i - 1 is issued before the row is stored; with one stage, it is not."""

    @triton.jit
    def recurrence(x_ptr, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
        at = tl.arange(0, BLOCK)
        for i in tl.range(1, n, num_stages=STAGES):
            before = tl.load(x_ptr + (i - 1) * BLOCK + at)
            tl.store(x_ptr + i * BLOCK + at, before + 1)

    x = torch.zeros(8, 128)
    with compiled.executing() as verdict:
        recurrence[(1,)](x, 8, BLOCK=128, STAGES=1)
    assert verdict.passed and x[:, 0].tolist() == [*range(8)]
    with (
        compiled.executing(),
        pytest.raises(ptx.TooEarly, match="before waiting for the copy that reads there"),
    ):
        recurrence[(1,)](torch.zeros(8, 128), 8, BLOCK=128, STAGES=3)


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(300),
        lambda: torch.empty_permuted((1, 300), (1, 0))[0],
        lambda: torch.zeros(4).resize_(300),
        lambda: torch.empty(20_000_000),  # more than 64 MiB
    ],
)
def test_memory_that_is_not_initialised_is_tracked(x, allocate):
    with compiled.executing() as verdict:
        y = allocate()
        short[(1,)](x, y, 300, BLOCK=512)
    (line,) = verdict.unwritten
    n = y.numel()
    assert line == f"short: y_ptr: {n - 299:,} of {n:,} elements never written"
    with compiled.executing() as verdict:
        y = allocate()
        copy[(1,)](x, y[:300], 300, BLOCK=512)
    assert verdict.passed


def test_what_resize_keeps_is_still_written():
    with compiled.executing(), pytest.raises(ptx.Undefined):
        y = torch.ones(150).resize_(300)
        copy[(1,)](y, torch.empty(150), 150, BLOCK=256)
        copy[(1,)](y, torch.empty(300), 151, BLOCK=256)


def test_a_tuple_is_passed_as_its_elements(x):
    @triton.jit
    def into(pair, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(pair[1] + at, tl.load(pair[0] + at, mask=at < n), mask=at < n)

    with compiled.executing() as verdict:
        y = torch.empty_like(x)
        into[(1,)]((x, y), 300, BLOCK=512)
    assert verdict.passed and torch.equal(x, y)


@pytest.mark.parametrize(
    ("type", "bits"), [("fp16", 0x2E66), ("bf16", 0x3DCC), ("fp32", 0x3DCCCCCD), ("fp64", 0x3FB999999999999A)]
)
def test_a_number_is_passed_in_its_format(type, bits):
    """0.1 rounded to the nearest; Triton's own launcher truncates it to bfloat16."""
    with compiled.executing():
        assert driver.active._argument("kernel: s", type, 0.1) == bits


def test_a_number_in_half_precision_reaches_the_kernel(x):
    @triton.jit
    def scale_by(x_ptr, y_ptr, factor: "fp16", BLOCK: tl.constexpr):  # noqa: F821 - Triton reads it
        at = tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at) * factor)

    half = x[:256].half()
    with compiled.executing():
        y = torch.empty_like(half)
        scale_by[(1,)](half, y, 0.1, BLOCK=256)
    assert torch.equal(y, half * torch.tensor(0.1).half())


def test_an_empty_grid_runs_nothing(x):
    for only in (None, [-1]):
        with compiled.executing(only=only) as verdict:
            scale[(0,)](x, x, 0, 2.0, False, BLOCK=128)
        assert verdict.runs[0].report.instructions == 0


@triton.jit
def doubled_tile(x_desc, y_desc, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    y_desc.store([row, column], 2 * x_desc.load([row, column]))


@triton.jit
def doubled_by_own(x_ptr, y_ptr, m, n, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, [m, n], [stride, 1], [ROWS, COLUMNS])
    y_desc = tl.make_tensor_descriptor(y_ptr, [m, n], [n, 1], [ROWS, COLUMNS])
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    y_desc.store([row, column], 2 * x_desc.load([row, column]))


def test_tensor_descriptors_are_read_and_written_as_lowered_to_pointers():
    """Elements outside the shape are read as 0 and not written, although memory continues there."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    whole = torch.arange(24.0 * 40).view(24, 40)
    x = whole[:13, :28]
    with compiled.executing() as verdict:
        y = torch.empty(13, 28)
        given = (TensorDescriptor(x, x.shape, x.stride(), [8, 16]), TensorDescriptor.from_tensor(y, [8, 16]))
        doubled_tile[(2, 2)](*given, ROWS=8, COLUMNS=16)
        own = torch.empty(13, 28)
        doubled_by_own[(2, 2)](x, own, 13, 28, 40, ROWS=8, COLUMNS=16)
    assert verdict.passed and torch.equal(y, 2 * x) and torch.equal(own, 2 * x)


def test_a_descriptor_of_more_than_its_tensor_is_out_of_bounds():
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, y = torch.zeros(8, 16), torch.zeros(16, 16)
    given = (TensorDescriptor(x, [16, 16], [16, 1], [8, 16]), TensorDescriptor.from_tensor(y, [8, 16]))
    with compiled.executing(), pytest.raises(ptx.OutOfBounds, match="x_desc"):
        doubled_tile[(2, 1)](*given, ROWS=8, COLUMNS=16)


def library_operator(define, half):
    """``3 * x`` by the kernel; with ``half``, its second half is never written."""

    @define(f"backpass_tests::tripled_{define.__name__}_{half}", mutates_args=())
    def tripled(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        n = x.numel() // 2 if half else x.numel()
        wrap = torch.library.wrap_triton if define is torch.library.triton_op else lambda kernel: kernel
        wrap(scale)[(triton.cdiv(n, 128),)](x, y, n, 3.0, False, BLOCK=128)
        return y

    return tripled


@pytest.mark.parametrize("define", [torch.library.triton_op, torch.library.custom_op])
def test_kernels_in_operators_of_torch_library_are_executed_and_their_memory_is_tracked(x, define):
    tripled, halved = library_operator(define, False), library_operator(define, True)
    tripled.register_autograd(lambda ctx, dy: tripled(dy))
    given = x.clone().requires_grad_()
    with compiled.executing() as verdict:
        y = tripled(given)
        (dx,) = torch.autograd.grad(y, given, torch.ones(300))
    assert verdict.passed and len(verdict.runs) == 2
    assert torch.equal(y, 3 * x) and torch.equal(dx, torch.full((300,), 3.0))
    with compiled.executing() as verdict:
        halved(x) + 1
    assert verdict.unwritten == ["scale: y_ptr: 150 of 300 elements never written"]


def test_wrap_triton_launches_without_an_operator(x):
    with compiled.executing() as verdict:
        y = torch.empty_like(x)
        torch.library.wrap_triton(scale)[(3,)](x, y, 300, 2.0, False, BLOCK=128)
    assert verdict.passed and torch.equal(y, 2 * x)


@triton.jit
def watched(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.device_print("x:", x, at)
    tl.device_assert(x < 4, "x is too large")
    tl.store(y_ptr + at, x, mask=at < n)


def test_what_a_kernel_prints_is_shown(capsys):
    x = torch.tensor([0.5, -2.0, 3.25])
    with compiled.executing() as verdict:
        watched[(1,)](x, torch.empty(3), 3, BLOCK=4, num_warps=1)
    lines = capsys.readouterr().out.splitlines()
    assert verdict.passed and len(lines) == 2 * 32  # a thread each, of which eight hold an element
    assert lines[1] == "pid (0, 0, 0) idx (1) x: (operand 0) -2.000000"
    assert lines[32 + 2] == "pid (0, 0, 0) idx (2) x: (operand 1) 2"


def test_an_assertion_that_fails_is_a_fault(capsys):
    x = torch.tensor([0.5, 7.0, 3.25])
    launch = {"BLOCK": 4, "num_warps": 1}
    with compiled.executing():
        watched[(1,)](x, torch.empty(3), 3, **launch)  # compiled only where asked for
    with (
        compiled.executing(),
        pytest.raises(ptx.Assertion, match="thread 1 fails the assertion 'x is too large'"),
    ):
        watched[(1,)](x, torch.empty(3), 3, **launch, debug=True)
    with compiled.executing() as verdict:
        watched[(1,)](x - 4, torch.empty(3), 3, **launch, debug=True)
    assert verdict.passed


def test_without_a_launch_nothing_is_shown():
    with compiled.executing() as verdict:
        pass
    assert not verdict.passed and str(verdict) == "no kernel was launched"


def test_arguments_that_cannot_be_given_are_named(x):
    with (
        compiled.executing(),
        pytest.raises(TypeError, match=r"scale: x_ptr: expected a tensor on the CPU; got device meta"),
    ):
        scale[(1,)](x.to("meta"), x, 300, 2.0, False, BLOCK=128)


def test_the_driver_before_is_active_again(x):
    before = driver._active
    with pytest.raises(ZeroDivisionError), compiled.executing():
        assert isinstance(driver.active, compiled.Driver) and kernels.executions
        with compiled.executing() as inner:
            scale[(3,)](x, torch.empty_like(x), 300, 2.0, False, BLOCK=128)
        assert len(inner.runs) == 1
        raise ZeroDivisionError
    assert driver._active is before and not kernels.executions


@triton.jit
def chained(flag_ptr, y_ptr, SEM: tl.constexpr):
    """Each program adds to what the one before has written, once its flag is set."""
    p = tl.program_id(0)
    before = 0
    if p > 0:
        while tl.atomic_add(flag_ptr + p - 1, 0, sem=SEM) == 0:
            pass
        before = tl.load(y_ptr + p - 1)
    tl.store(y_ptr + p, before + p + 1)
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + p, 1)


def test_a_flag_is_polled_by_an_atomic_load():
    """Triton compiles a sum of 0 to ``ld.acquire`` or ``ld.relaxed``, if ``sem`` says so."""
    for sem in ("acquire", "acq_rel"):
        y = torch.empty(4, dtype=torch.int32)
        with compiled.executing() as verdict:
            chained[(4,)](torch.zeros(4, dtype=torch.int32), y, sem)
        assert verdict.passed and y.tolist() == [1, 3, 6, 10]
    with compiled.executing(), pytest.raises(ptx.Order):
        chained[(4,)](torch.zeros(4, dtype=torch.int32), torch.empty(4, dtype=torch.int32), "relaxed")


def test_kernels_are_compiled_to_ptx_alone_after_the_stages_of_the_users_hook(x, monkeypatch):
    seen = []

    def hook(*of):
        if not of:
            return "own key", "own hash"
        seen.append([*of[1]])

    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", hook)
    monkeypatch.setattr(triton.knobs.compilation, "always_compile", True)
    monkeypatch.delattr(CUDABackend, "make_cubin")
    with compiled.executing():
        scale[(1,)](x, y := torch.empty_like(x), 300, 7.0, False, BLOCK=512)
    assert torch.equal(y, 7 * x)
    assert seen and seen[0][-2:] == ["ptx", "cubin"]
    assert triton.knobs.runtime.add_stages_inspection_hook is hook
