"""How fast are the operations, forward, backward and both, beside PyTorch's own and beside a mere copy?

    python benchmarks/operations.py [stem …] [--device cuda] [--quick]

The rate divides the bytes that a step must move by its time, whatever a provider really moves, and so compares with
the rate of a copy of as many bytes, which is timed in the same rounds. With stems named, their figures are shown and
the record, which is of all of them, stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from harness import Settings, call_seconds, draw, largest_error, medians, no_compiler, say, settings, write
from subjects import LARGE, LOSSES, QUICK, SMALL, SUBJECTS, TYPICAL, Subject
from torch._functorch import config as functorch_config

from backpass import kernels, ops
from backpass.operation import Operation

QUESTION = "How fast are the operations, beside PyTorch's own and beside a copy of as many bytes?"
COLUMNS = [
    ("operation", "operation", ""),
    ("size", "size", ""),
    ("shape", "lengths", ""),
    ("step", "step", ""),
    ("dtype", "dtype", ""),
    ("provider", "provider", ""),
    ("milliseconds", "time", "ms"),
    ("speed_over_pytorch", "speed over PyTorch's", "×"),
    ("gigabytes_per_second", "rate", "GB/s"),
    ("share_of_copy", "share of a copy's rate", ""),
    ("largest_error", "error against float64", ""),
]
CUDA_COLUMNS = [("call_milliseconds", "call from Python", "ms"), ("peak_mebibytes", "peak memory", "MiB")]
ROWS_ON_CUDA = 8  # times as many rows: else a GPU's cache would hold them

Calls = dict[str, Callable[[], Any]]


def main() -> None:
    stems = tuple(dict.fromkeys(subject.stem for subject in SUBJECTS))
    chosen = settings(QUESTION, names=stems)
    # The backward of a compiled function is timed again and again on what one forward saved.
    functorch_config.donated_buffer = False
    torch._logging.set_logs(dynamo=logging.ERROR)  # a graph in two parts is none
    compilers_absence = no_compiler(chosen.device)
    dtypes = [torch.float32] if chosen.device == "cpu" else [torch.float32, torch.bfloat16]
    rows = []
    for subject in SUBJECTS:
        if subject.stem in (chosen.names or stems):
            for dtype in dtypes:
                for size in chosen.pick(sizes(dtype, chosen.device), quick=(QUICK,)):
                    # A compilation takes seconds.
                    compiled = size == TYPICAL and dtype == dtypes[-1] and compilers_absence is None
                    rows += time_size(chosen, subject, size, dtype, compiled)
    columns = COLUMNS if chosen.device == "cpu" else [*COLUMNS[:-1], *CUDA_COLUMNS, COLUMNS[-1]]
    write(chosen, "operations", QUESTION, columns, rows, [compilers_absence, *notes(chosen)])


def sizes(dtype: torch.dtype, device: str) -> tuple[str, ...]:
    """Those of a dtype: all of the one in which models are trained on the device, one of another."""
    return (TYPICAL,) if device == "cuda" and dtype == torch.float32 else (SMALL, TYPICAL, LARGE)


def notes(chosen: Settings) -> list[str]:
    in_bfloat16 = ", in bfloat16" if chosen.device == "cuda" else ""
    said = [
        "PyTorch's “both” goes through autograd, as it is used. Its “backward” is the operator that autograd calls, "
        "where there is one of its own, and else autograd on one saved forward; ours starts from its own saved arrays.",
        f"Compiled at the {TYPICAL} size only{in_bfloat16}: our forward and backward each by itself, PyTorch's "
        "function with its backward.",
        "A loss is compared by forward and backward together.",
        "The copy beside which a rate stands writes to memory that is already there; an operation allocates its results.",
    ]
    if chosen.device == "cpu":
        said.append("Our Triton kernels and Liger-Kernel run on a CUDA device, and were not timed here.")
    else:
        said.append(
            "Where a call reads from the device it cannot be recorded as a graph, and is timed as it runs."
        )
    return said


def time_size(
    chosen: Settings, subject: Subject, size: str, dtype: torch.dtype, compiled: bool
) -> list[dict]:
    """The rows of the record for one subject at one size: each step by each provider."""
    rows_times = ROWS_ON_CUDA if chosen.device == "cuda" and size != SMALL else 1
    first, *others = subject.lengths[size]
    lengths = (first * rows_times, *others)
    inputs = subject.inputs(*lengths, dtype=dtype, device=chosen.device)
    exact = exact_results(subject, inputs)
    dy = cotangent(subject, inputs)
    moved = subject.moved(*lengths)
    moved.setdefault("both", moved.get("forward", 0) + moved.get("backward", 0))

    rows = []
    for step, calls in steps(subject, inputs, dy, compiled).items():
        say(f"{subject.name}, {size} {lengths}, {step} in {dtype}: {', '.join(calls)}")
        errors = {name: error(call(), exact[step]) for name, call in calls.items()}
        bytes_moved = moved[step] * dtype.itemsize
        source = draw(max(1, moved[step] // 2), seed=0, dtype=dtype, device=chosen.device)
        target = torch.empty_like(source)
        seconds = medians({**calls, "copy": lambda a=target, b=source: a.copy_(b)}, chosen)
        for name, call in calls.items():
            row = {
                "operation": subject.name,
                "size": size,
                "shape": " × ".join(f"{length:,}" for length in lengths),
                "step": step,
                "dtype": str(dtype).removeprefix("torch."),
                "provider": name,
                "milliseconds": seconds[name] * 1e3,
                "speed_over_pytorch": seconds["PyTorch"] / seconds[name],
                "gigabytes_per_second": bytes_moved / seconds[name] / 1e9,
                "share_of_copy": seconds["copy"] / seconds[name],
                "largest_error": errors[name],
            }
            if chosen.device == "cuda":
                row["call_milliseconds"] = call_seconds(call, chosen) * 1e3
                row["peak_mebibytes"] = peak_bytes(call) / 2**20
            rows.append(row)
    return rows


def steps(subject: Subject, inputs: tuple, dy: torch.Tensor, compiled: bool) -> dict[str, Calls]:
    """Every provider's forward, backward and both, as calls that return the step's results."""
    op = ops.load(subject.stem)
    found: dict[str, Calls] = {"forward": {}, "backward": {}, "both": {}}

    def add(name: str, forward_of, backward_of) -> None:
        saved = forward_of(*inputs, **subject.options)[1]
        found["forward"][name] = lambda: forward_of(*inputs, **subject.options)[0]
        found["backward"][name] = lambda: backward_of(dy, saved)
        found["both"][name] = lambda: backward_of(dy, forward_of(*inputs, **subject.options)[1])

    def add_autograd(name: str, function, arrays: tuple) -> None:
        leaves = [value.detach().requires_grad_(at in with_gradient(op)) for at, value in enumerate(arrays)]
        sought = [leaf for leaf in leaves if leaf.requires_grad]
        y = function(*leaves)
        found["forward"][name] = lambda: function(*arrays)
        found["backward"][name] = lambda: torch.autograd.grad(y, sought, dy, retain_graph=True)
        found["both"][name] = lambda: torch.autograd.grad(function(*leaves), sought, dy)

    add("ours", op.forward, op.backward)
    if dy.is_cuda and subject.stem in kernels.STEMS:
        kernel = kernels.load(subject.stem)
        add("our kernel", kernel.forward, kernel.backward)
    add_autograd("PyTorch", subject.pytorch, inputs)
    if subject.pytorch_backward:
        operator = subject.pytorch_backward(*inputs)
        found["backward"]["PyTorch"] = lambda: operator(dy)
    if compiled:
        torch._dynamo.reset()
        add("ours, compiled", compile_fixed(op.forward), compile_fixed(op.backward))
        add_autograd("PyTorch, compiled", compile_fixed(subject.pytorch), inputs)
    if dy.is_cuda and subject.liger and liger_installed():
        # Copies of its own, since some of its functions write gradients over their inputs; for the same reason
        # its backward alone, which would be run on what an earlier run left, is not timed.
        add_autograd("Liger-Kernel", subject.liger, tuple(value.clone() for value in inputs))
        del found["backward"]["Liger-Kernel"]
    return {"both": found["both"]} if subject.stem in LOSSES else found


def with_gradient(op) -> list[int]:
    """Which of the inputs have a gradient."""
    operation = Operation(op)
    return [at for at, spec in enumerate(operation.inputs) if spec in operation.differentiable]


def cotangent(subject: Subject, inputs: tuple) -> torch.Tensor:
    y = subject.pytorch(*inputs)
    return draw(*y.shape, seed=8, dtype=y.dtype, device=str(y.device))


def exact_results(subject: Subject, inputs: tuple) -> dict[str, tuple]:
    """What each step should return, in float64, of the inputs as they are."""
    op = ops.load(subject.stem)
    wide = [value.double() if value.is_floating_point() else value for value in inputs]
    y, saved = op.forward(*wide, **subject.options)
    gradients = as_tuple(op.backward(cotangent(subject, inputs).double(), saved))
    return {"forward": (y,), "backward": gradients, "both": gradients}


def error(got: Any, exact: tuple) -> float:
    """The largest error of any of the results, each beside the largest element of its own."""
    return max(largest_error(one, of) for one, of in zip(as_tuple(got), exact, strict=True))


def as_tuple(results: Any) -> tuple:
    """Results without the places of inputs that were not given."""
    many = results if isinstance(results, tuple) else (results,)
    return tuple(one for one in many if one is not None)


def peak_bytes(call: Callable[[], Any]) -> int:
    """On a GPU: the most that a call allocates beyond what was there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def liger_installed() -> bool:
    try:
        import liger_kernel.transformers.functional
    except ImportError:
        return False
    return bool(liger_kernel)


def compile_fixed(function):
    """For fixed shapes; where a check of targets or tokens reads them, the graph is in two parts."""
    return torch.compile(function, dynamic=False)


if __name__ == "__main__":
    main()
