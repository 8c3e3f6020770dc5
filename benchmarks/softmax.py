"""How fast is softmax, forward and backward: ours beside PyTorch's own, and beside a mere copy?

    python benchmarks/softmax.py [--device cuda] [--quick]

A forward must at least read x and write y; a backward read dy and y and write dx. The rate divides those
bytes by the time, whatever a provider really moves, so that rates compare with a copy's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import (
    Settings,
    call_seconds,
    draw,
    largest_error,
    medians,
    no_compiler,
    say,
    settings,
    write,
)

from backpass.ops import softmax

QUESTION = "How fast is softmax, forward and backward, beside PyTorch's own and beside a copy?"
COLUMNS = [
    ("step", "step", ""),
    ("rows", "rows", ""),
    ("n", "row length", ""),
    ("dtype", "dtype", ""),
    ("provider", "provider", ""),
    ("milliseconds", "time", "ms"),
    ("speed_over_pytorch", "speed over PyTorch's", "×"),
    ("gigabytes_per_second", "rate", "GB/s"),
    ("largest_error", "error against float64", ""),
]
CALL_COLUMN = ("call_milliseconds", "call from Python", "ms")
SHAPES = [(64, 64), (12 * 1024, 1024), (4096, 8192)]  # small; a GPT-2 layer's scores at 1024 tokens; large
ARRAYS_MOVED = {"copy": 2, "forward": 2, "backward": 3, "both": 5}

Calls = dict[str, Callable[[], torch.Tensor]]


def main() -> None:
    chosen = settings(QUESTION)
    compilers_absence = no_compiler(chosen.device)
    compiled = not chosen.quick and compilers_absence is None
    dtypes = [torch.float32] if chosen.device == "cpu" else [torch.float32, torch.bfloat16]
    rows = []
    for dtype in dtypes:
        for shape in chosen.pick(SHAPES, quick=[(8, 65)]):
            rows += time_shape(chosen, shape, dtype, compiled)
    columns = COLUMNS if chosen.device == "cpu" else [*COLUMNS[:6], CALL_COLUMN, *COLUMNS[6:]]
    notes = [compilers_absence]
    if chosen.device == "cpu":
        notes.append("Our Triton kernel runs on a CUDA device, and was not timed here.")
    write(chosen, "softmax", QUESTION, columns, rows, notes)


def time_shape(chosen: Settings, shape: tuple[int, int], dtype: torch.dtype, compiled: bool) -> list[dict]:
    """The rows of the record for one shape: each step by each provider."""
    x, dy = (draw(*shape, seed=seed, dtype=dtype, device=chosen.device) for seed in (0, 1))
    exact_y, exact_saved = softmax.forward(x.double())
    exact_dx = softmax.backward(dy.double(), exact_saved)
    exact = {"copy": x, "forward": exact_y, "backward": exact_dx, "both": exact_dx}

    rows = []
    for step, calls in steps(x, dy, compiled).items():
        say(f"{step} of {list(shape)} in {dtype}: {', '.join(calls)}")
        seconds = medians(calls, chosen)
        for name, call in calls.items():
            row = {
                "step": step,
                "rows": shape[0],
                "n": shape[1],
                "dtype": str(dtype).removeprefix("torch."),
                "provider": name,
                "milliseconds": seconds[name] * 1e3,
                "speed_over_pytorch": seconds["PyTorch"] / seconds[name],
                "gigabytes_per_second": ARRAYS_MOVED[step] * x.numel() * dtype.itemsize / seconds[name] / 1e9,
                "largest_error": largest_error(call(), exact[step]),
            }
            if chosen.device == "cuda":
                row["call_milliseconds"] = call_seconds(call, chosen) * 1e3
            rows.append(row)
    return rows


def steps(x: torch.Tensor, dy: torch.Tensor, compiled: bool) -> dict[str, Calls]:
    """Every provider's forward, backward and both, as calls that return y or dx.

    A backward starts from the provider's own saved y. PyTorch's "both" goes through autograd, which is how it
    is used; its "backward" is the operator that autograd calls.
    """
    forward: Calls = {}
    backward: Calls = {}
    both: Calls = {}

    def add(name: str, forward_of, backward_of) -> None:
        saved = forward_of(x)[1]
        forward[name] = lambda: forward_of(x)[0]
        backward[name] = lambda: backward_of(dy, saved)
        both[name] = lambda: backward_of(dy, forward_of(x)[1])

    add("ours", softmax.forward, softmax.backward)
    if x.is_cuda:
        from backpass.kernels import softmax as kernel

        add("our kernel", kernel.forward, kernel.backward)

    add("PyTorch", pytorch_forward, pytorch_backward)
    both["PyTorch"] = lambda: through_autograd(pytorch_function, x, dy)
    if compiled:
        # Our backward is compiled on its own, as a user of the functions would; the shapes are fixed.
        torch._dynamo.reset()
        add("ours, compiled", compile_fixed(softmax.forward), compile_fixed(softmax.backward))
        add("PyTorch, compiled", compile_fixed(pytorch_forward), compile_fixed(pytorch_backward))
        function = compile_fixed(pytorch_function)
        both["PyTorch, compiled"] = lambda: through_autograd(function, x, dy)
    target = torch.empty_like(x)
    copy = {"PyTorch": lambda: target.copy_(x)}
    return {"copy": copy, "forward": forward, "backward": backward, "both": both}


def pytorch_function(x):
    return torch.softmax(x, dim=-1)


def pytorch_forward(x):
    y = torch.softmax(x, dim=-1)
    return y, y


def pytorch_backward(dy, y):
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def through_autograd(function, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(function(x), x, dy)
    return dx


def compile_fixed(function):
    return torch.compile(function, fullgraph=True, dynamic=False)


if __name__ == "__main__":
    main()
