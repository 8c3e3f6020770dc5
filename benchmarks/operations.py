"""How fast are the operations, forward, backward and both, beside PyTorch's own and beside a mere copy?

    python benchmarks/operations.py [stem …] [--device cuda] [--quick]

The rate divides the bytes that a step must move by its time, whatever a provider really moves, and so compares with
the rate of a copy of as many bytes, which is timed in the same rounds. With stems named, their figures are shown and
the record, which is of all of them, stays as it is. The sizes at which models are trained are timed first, and the
record is written after each operation at each size.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from ceilings import matmul_rate
from harness import (
    Recording,
    Settings,
    call_seconds,
    draw,
    largest_error,
    medians,
    no_compiler,
    say,
    settings,
)
from subjects import LARGE, LOSSES, QUICK, SMALL, SUBJECTS, TYPICAL, Subject
from torch._functorch import config as functorch_config

from backpass import kernels, ops
from backpass.operation import Operation
from backpass.ops import residual

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
THEIRS = ("ours, compiled", "PyTorch, compiled", "Liger-Kernel")  # need a compiler or a third-party library

Calls = dict[str, Callable[[], Any]]


def main() -> int:
    stems = tuple(dict.fromkeys(subject.stem for subject in SUBJECTS))
    chosen = settings(QUESTION, names=stems)
    # The backward of a compiled function is timed again and again on what one forward saved.
    functorch_config.donated_buffer = False
    torch._logging.set_logs(dynamo=logging.ERROR)  # a graph in two parts is none
    compilers_absence = no_compiler(chosen.device)
    columns = COLUMNS if chosen.device == "cpu" else [*COLUMNS[:-1], *CUDA_COLUMNS, COLUMNS[-1]]
    recording = Recording(
        chosen, "operations", QUESTION, columns, [compilers_absence, *notes(chosen)], order=place
    )
    failed = []
    for dtype, size in turns(chosen):
        if chosen.device == "cuda" and recording.lacks(part := f"a product in {name_of(dtype)}"):
            # The ceiling of the head and its loss.
            rate = matmul_rate(chosen, dtype) / 1e9
            recording.add(part, facts={f"matmul_gigaflops_per_second, {name_of(dtype)}": rate})
        for subject in SUBJECTS:
            part = f"{subject.name}, {size}, {name_of(dtype)}"
            if subject.stem in (chosen.names or stems) and recording.lacks(part):
                # A compilation takes seconds.
                compiled = size == TYPICAL and dtype == turns(chosen)[0][0] and compilers_absence is None
                try:
                    recording.add(part, *time_size(chosen, subject, size, dtype, compiled))
                except RuntimeError as reason:  # on a GPU, other parts may still run
                    if chosen.device == "cpu":
                        raise
                    say(f"{part}: not timed: {reason}")
                    failed.append(part)
    return recording.finish(failed)


def turns(chosen: Settings) -> list[tuple[torch.dtype, str]]:
    """The dtypes and sizes in the order in which they are timed: first the typical size of the dtype in which models
    are trained on the device."""
    dtypes = [torch.float32] if chosen.device == "cpu" else [torch.bfloat16, torch.float32]
    every = [
        (dtype, size) for dtype in dtypes for size in chosen.pick(sizes(dtype, chosen.device), quick=(QUICK,))
    ]
    return sorted(every, key=lambda turn: (TYPICAL, LARGE, SMALL, QUICK).index(turn[1]))


def place(row: dict[str, Any]) -> tuple[int, ...]:
    """Where a row is shown: operations as they are listed, the sizes of float32 before those of bfloat16, ascending."""
    return (
        [subject.name for subject in SUBJECTS].index(row["operation"]),
        ["float32", "bfloat16"].index(row["dtype"]),
        (SMALL, TYPICAL, LARGE, QUICK).index(row["size"]),
    )


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
        "The copy with which a rate is compared writes to memory that is already there; an operation allocates its results.",
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
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of the record for one subject at one size, each step by each provider, and notes on the
    providers that are missing."""
    rows_times = subject.rows_on_cuda if chosen.device == "cuda" and size != SMALL else 1
    first, *others = subject.lengths[size]
    lengths = (first * rows_times, *others)
    inputs = subject.inputs(*lengths, dtype=dtype, device=chosen.device)
    exact = exact_results(subject, inputs)
    dy = cotangent(subject, inputs)
    moved = subject.moved(*lengths)
    moved.setdefault("both", moved.get("forward", 0) + moved.get("backward", 0))

    rows, absent = [], []
    for step, calls in steps(subject, inputs, dy, compiled, absent).items():
        say(f"{subject.name}, {size} {lengths}, {step} in {dtype}: {', '.join(calls)}")
        errors = {}
        for name in list(calls):
            with unless_it_fails(name, subject, absent):
                got = calls[name]()
                errors[name] = error(got, expected(subject, name, step, inputs, dy, got, exact))
        calls = {name: call for name, call in calls.items() if name in errors}
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
                "dtype": name_of(dtype),
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
    return rows, absent


@contextlib.contextmanager
def unless_it_fails(name: str, subject: Subject, absent: list[str]) -> Iterator[None]:
    """Note that a compiler or a third-party library failed, and go on without it. Our code, and PyTorch's own, must not
    fail."""
    try:
        yield
    except Exception as reason:
        if name not in THEIRS:
            raise
        first = (str(reason).strip() or type(reason).__name__).splitlines()[0]
        note = f"{name}: left out of {subject.name}, where it says “{first}”."
        say(note)
        absent.append(note)


def steps(subject: Subject, inputs: tuple, dy: Any, compiled: bool, absent: list[str]) -> dict[str, Calls]:
    """Every provider's forward, backward and both, as calls that return the step's results; ``absent`` gains a note of
    each that fails."""
    found: dict[str, Calls] = {"forward": {}, "backward": {}, "both": {}}

    def add(name: str, forward_of, backward_of) -> None:
        saved = forward_of(*inputs, **subject.options)[1]
        found["forward"][name] = lambda: forward_of(*inputs, **subject.options)[0]
        found["backward"][name] = lambda: backward_of(dy, saved)
        found["both"][name] = lambda: backward_of(dy, forward_of(*inputs, **subject.options)[1])

    def add_autograd(name: str, function, arrays: tuple, alone: bool = True) -> None:
        leaves = [
            value.detach().requires_grad_(at in with_gradient(subject)) for at, value in enumerate(arrays)
        ]
        sought = [leaf for leaf in leaves if leaf.requires_grad]
        found["forward"][name] = lambda: function(*arrays)
        if alone:
            y = function(*leaves)
            found["backward"][name] = lambda: torch.autograd.grad(y, sought, dy, retain_graph=True)
        found["both"][name] = lambda: torch.autograd.grad(function(*leaves), sought, dy)

    forward, backward = functions_of(subject, ops)
    on_cuda = as_tuple(dy)[0].is_cuda
    add("ours", forward, backward)
    if on_cuda and subject.stem in kernels.STEMS:
        add("our kernel", *functions_of(subject, kernels))
    add_autograd("PyTorch", subject.pytorch, inputs)
    if subject.pytorch_backward:
        operator = subject.pytorch_backward(*inputs)
        found["backward"]["PyTorch"] = lambda: operator(dy)
    if compiled:
        torch._dynamo.reset()
        with unless_it_fails("ours, compiled", subject, absent):
            add("ours, compiled", compile_fixed(forward), compile_fixed(backward))
        with unless_it_fails("PyTorch, compiled", subject, absent):
            add_autograd("PyTorch, compiled", compile_fixed(subject.pytorch), inputs)
    if on_cuda and subject.liger and liger_installed():
        # Copies of its own, since some of its functions write gradients over their inputs; for the same reason
        # its backward alone, which would be run on what an earlier run left, is not timed, and nothing is run before
        # the call whose error is taken.
        with unless_it_fails("Liger-Kernel", subject, absent):
            add_autograd("Liger-Kernel", subject.liger, tuple(value.clone() for value in inputs), alone=False)
    return {"both": found["both"]} if subject.stem in LOSSES else found


def functions_of(subject: Subject, package: Any) -> tuple[Callable, Callable]:
    """Return the forward and the backward of an operation or of its kernel. If the operation reads a sum, the forward
    returns y and the sum, and the backward accepts their gradients."""
    module = package.load(subject.stem)
    if not subject.of_sum:
        return module.forward, module.backward

    def forward(x, f, *parameters, **options):
        if package is kernels:
            *results, saved = module.forward_of_sum(x, f, *parameters, **options)
            return tuple(results), saved
        s, _ = residual.forward(x, f)
        y, saved = module.forward(s, *parameters, **options)
        return (y, s), saved

    def backward(dy, saved):
        if package is kernels:
            return module.backward_of_sum(*dy, saved)
        dx, *others = module.backward(dy[0], saved)
        return dy[1] + dx, *others

    return forward, backward


def with_gradient(subject: Subject) -> list[int]:
    """Which of the inputs have a gradient of their own. The two terms of a sum have the same."""
    operation = Operation(ops.load(subject.stem))
    found = [at for at, spec in enumerate(operation.inputs) if spec in operation.differentiable]
    return [0, *(at + 1 for at in found[1:])] if subject.of_sum else found


def cotangent(subject: Subject, inputs: tuple) -> Any:
    """Return the gradient of the output; if the output is a tuple, those of its elements."""
    y = subject.pytorch(*inputs)
    drawn = [
        draw(*each.shape, seed=8 + at, dtype=each.dtype, device=str(each.device))
        for at, each in enumerate(as_tuple(y))
    ]
    return tuple(drawn) if isinstance(y, tuple) else drawn[0]


def exact_results(subject: Subject, inputs: tuple) -> dict[str, tuple]:
    """What each step should return, in float64, of the inputs as they are."""
    forward, backward = functions_of(subject, ops)
    wide = [value.double() if value.is_floating_point() else value for value in inputs]
    y, saved = forward(*wide, **subject.options)
    dy = cotangent(subject, inputs)
    dy = tuple(each.double() for each in dy) if isinstance(dy, tuple) else dy.double()
    gradients = as_tuple(backward(dy, saved))
    return {"forward": as_tuple(y), "backward": gradients, "both": gradients}


def expected(
    subject: Subject, name: str, step: str, inputs: tuple, dy: Any, got: Any, exact: dict[str, tuple]
) -> tuple:
    """Return what a provider should return in a step. PyTorch drops elements of its own choice: they are taken from
    what it returns, if they are about as many as they should be."""
    if subject.undropped is None or "PyTorch" not in name:
        return exact[step]
    (found,) = as_tuple(got)
    kept, p = found != 0, subject.options["p"]
    if abs(kept.double().mean() - (1 - p)) > 6 * (p * (1 - p) / kept.numel()) ** 0.5:
        raise RuntimeError(f"{subject.name}: {name} dropped another share than {p}")
    whole = subject.undropped((inputs[0] if step == "forward" else dy).double())
    return (torch.where(kept, whole, 0.0),)


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
    sys.exit(main())
