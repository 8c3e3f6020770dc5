"""Host code that looks for a GPU runs unchanged on CPU tensors."""

import math

import pytest
import torch
import triton
import triton.language as tl
from triton.testing import do_bench

from backpass.kernels import compiled
from backpass.verify import check


@triton.jit
def scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, factor * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def scaled(x, factor):
    """As projects for GPUs are written: with every question that is common among them."""
    assert x.is_cuda and not x.is_cpu and x.device.type == "cuda" and x.get_device() == 0, "expected CUDA"
    assert torch.cuda.is_available() and torch.cuda.get_device_capability(x.device) >= (8, 0)
    y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    assert programs == triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]
    with torch.cuda.device(x.device.index), torch.cuda.stream(torch.cuda.Stream()):
        scale[(triton.cdiv(x.numel(), 128),)](x.contiguous(), y, x.numel(), factor, BLOCK=128)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    after.record(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert math.isnan(before.elapsed_time(after))
    return y


class Scaled(torch.autograd.Function):
    """dx = 3 dy."""

    @staticmethod
    def forward(ctx, x):
        return scaled(x, 3.0)

    @staticmethod
    def backward(ctx, dy):
        return scaled(dy.to("cuda"), 3.0)


class Wrong(Scaled):
    """dx = 2 dy."""

    @staticmethod
    def backward(ctx, dy):
        return scaled(dy, 2.0)


X = torch.randn(5, 37, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("by", ["autograd.grad", "backward"])
def test_host_code_for_a_gpu_runs_and_what_it_asked_is_said(by):
    x, dy = X.clone().requires_grad_(), torch.linspace(-1, 1, 185).view(5, 37)
    with compiled.executing(as_cuda=True) as verdict:
        y = Scaled.apply(x)
        if by == "backward":
            y.backward(dy)
            dx = x.grad
        else:
            (dx,) = torch.autograd.grad(y, x, dy)
    assert verdict.passed and torch.equal(y, 3 * X) and torch.equal(dx, 3 * dy)
    assert y.device.type == "cpu" and not y.is_cuda and not torch.cuda.is_available()
    assert {"x.is_cuda", "x.device", "torch.cuda.device", 'device="cuda"'} < verdict.stood_in
    assert "– in place of a GPU: device=" in str(verdict)


def test_without_it_tensors_say_that_they_are_on_the_cpu():
    with compiled.executing() as verdict, pytest.raises(AssertionError, match="expected CUDA"):
        Scaled.apply(X)
    assert not verdict.stood_in


def test_what_is_asked_for_on_cuda_is_made_on_the_cpu_and_tracked():
    with compiled.executing(as_cuda=True) as verdict:
        x = torch.arange(7.0, device="cuda:0")
        y = torch.empty_like(x.cuda(), device=torch.device("cuda"))
        scale[(1,)](x, y, 5, 2.0, BLOCK=8)
        model = torch.nn.Linear(3, 2).to("cuda").cuda()
        assert all(parameter.is_cuda for parameter in model.parameters())
        assert (
            torch.empty(3, device="meta").device.type == "meta" and not torch.empty(3, device="meta").is_cuda
        )
    assert verdict.unwritten == ["scale: y_ptr: 2 of 7 elements never written"]
    assert torch.equal(y[:5], torch.arange(0.0, 10.0, 2)) and model.weight.device.type == "cpu"


def test_operators_of_torch_library_get_the_same_answers():
    @torch.library.triton_op("backpass_tests::scaled_on_a_gpu", mutates_args=())
    def own(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        y = torch.empty_like(x)
        torch.library.wrap_triton(scale)[(2,)](x, y, x.numel(), 3.0, BLOCK=128)
        return y

    own.register_autograd(lambda ctx, dy: own(dy))
    x = X.clone().requires_grad_()
    with compiled.executing(as_cuda=True) as verdict:
        (dx,) = torch.autograd.grad(own(x), x, X)
    assert verdict.passed and torch.equal(dx, 3 * X)


def test_a_kernel_reports_registers_from_which_host_code_computes_its_grid():
    """As Triton's tutorial on softmax does."""
    with compiled.executing(as_cuda=True):
        kernel = scale.warmup(X, X, 5, 2.0, BLOCK=128, grid=(1,))
        kernel._init_handles()
        properties = triton.runtime.driver.active.utils.get_device_properties(0)
        assert 1 <= properties["max_num_regs"] // (kernel.n_regs * 32 * kernel.metadata.num_warps) <= 64
        assert kernel.n_spills == 0


def test_functions_that_torch_compiles_run_uncompiled():
    compiled_sum = torch.compile(lambda x, y: 2 * x + y, fullgraph=True)

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return compiled_sum(scaled(x, 3.0), x)

        @staticmethod
        def backward(ctx, dy):
            return compiled_sum(scaled(dy, 3.0), dy)

    x = X.clone().requires_grad_()
    with compiled.executing(as_cuda=True) as verdict:
        (dx,) = torch.autograd.grad(Sum.apply(x), x, X)
    assert verdict.passed
    torch.testing.assert_close(dx, 7 * X)


def test_classes_of_torch_cuda_are_classes():
    """Host code has them in annotations, and asks whether something is a stream."""
    with compiled.executing(as_cuda=True) as verdict:

        def used(stream: torch.cuda.Stream | None) -> torch.cuda.Event | None:
            return stream and stream.record_event()

        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
        assert (
            torch.accelerator.current_accelerator().type == "cuda" and torch.accelerator.device_count() == 1
        )
        assert used(torch.cuda.Stream()).query() and torch.cuda.device(0).idx == 0
        assert torch._C._cuda_getCurrentRawStream(0) == torch.cuda.current_stream().cuda_stream == 0
    asked = {
        "torch.cuda.Stream",
        "torch.cuda.current_stream",
        "torch.cuda.device",
        "torch.accelerator.device_count",
    }
    assert asked <= verdict.stood_in


def test_contexts_end_where_an_error_leaves_them():
    with pytest.raises(RuntimeError, match="ended"), compiled.executing(as_cuda=True):
        raise RuntimeError("ended")
    assert X.device.type == "cpu" and not torch.cuda.is_available()


@pytest.mark.parametrize(("own", "passes"), [(Scaled, True), (Wrong, False)])
def test_a_check_as_compiled_runs_such_programs(own, passes):
    report = check(own, X.double(), compiled=True, raises=False)
    rows = [row for row in report.rows if row.method.startswith("compiled kernel")]
    assert rows and report.passed == passes
    assert {row.quantity for row in report.failed} == (set() if passes else {"dx"})


@pytest.mark.parametrize("as_cuda", [True, False])
def test_what_times_a_kernel_runs_it_once_and_reports_no_time(as_cuda):
    y = torch.zeros_like(X)
    with compiled.executing(as_cuda=as_cuda) as verdict:
        times = [
            bench(lambda: scale[(2,)](X, y, 185, 2.0, BLOCK=128), **how)
            for bench in (do_bench, triton.testing.do_bench, triton.testing.do_bench_cudagraph)
            for how in ({}, {"return_mode": "all"}, {"quantiles": [0.5, 0.2, 0.8]})
        ]
    assert len(verdict.runs) == 9 and torch.equal(y, 2 * X)
    assert [str(time) for time in times[:3]] == ["nan", "[nan]", "[nan, nan, nan]"]
    assert {"triton.testing.do_bench", "triton.testing.do_bench_cudagraph"} <= verdict.stood_in
    assert "triton.testing.do_bench" in str(verdict)
    assert "elapsed_time" in do_bench.__code__.co_names
