"""How much memory do the output head and the loss take, forward and backward, beyond their inputs?

    python benchmarks/linear_cross_entropy_memory.py [--device cuda] [--quick]

Each figure is of one step, of whose inputs memory is full already: on a CPU the operating system's high-water mark of
a process of its own, on a GPU that of PyTorch's allocator. Beside it is what the shapes say: the arrays that exist
at once where most do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from harness import Recording, Settings, draw, largest_error, medians, say, settings
from memory import alone, rise

from backpass import kernels
from backpass.contract.values import chunk_or_default
from backpass.ops import cross_entropy, linear, linear_cross_entropy

QUESTION = "How much memory do the output head and the loss take, forward and backward, beyond their inputs?"
METHOD = {
    "cpu": "One step of each provider in a process of its own; weights of 4 bytes, one reading of the clock.",
    "cuda": "The peak is of one step of each provider, weights of 4 bytes; the time is the median of several later steps, "
    "providers in random order in each round.",
}
COLUMNS = [
    ("model", "model", ""),
    ("tokens", "tokens", ""),
    ("h", "h", ""),
    ("V", "V", ""),
    ("provider", "provider", ""),
    ("mebibytes", "peak", "MiB"),
    ("formula_mebibytes", "by the formula", "MiB"),
    ("over_formula", "peak over formula", ""),
    ("milliseconds", "time", "ms"),
    ("largest_error", "error of dx against float64", ""),
]
LOOKED_AT = 16  # tokens whose dx is compared: those of float64 need all of w in float64


class Shape(NamedTuple):
    """A model's output head, and how many tokens meet it."""

    model: str
    tokens: int
    h: int
    V: int


class Measured(NamedTuple):
    """What one step took."""

    bytes: int
    seconds: float
    error: float


SHAPES = [Shape("GPT-2", 4096, 768, 50_257), Shape("Llama 3.2 1B", 2048, 2048, 128_256)]
QUICK = [Shape("none", 64, 8, 97)]
TINY = Shape("none", 8, 4, 16)


def main() -> int:
    chosen = settings(QUESTION)
    recording = Recording(
        chosen, "linear_cross_entropy_memory", QUESTION, COLUMNS, method=METHOD[chosen.device]
    )
    for shape in chosen.pick(SHAPES, quick=QUICK):
        part = f"{shape.model}, {shape.tokens} tokens"
        if recording.lacks(part):
            recording.add(part, measure_shape(chosen, shape, part))
    return recording.finish()


def measure_shape(chosen: Settings, shape: Shape, part: str) -> list[dict[str, Any]]:
    """The rows of the record for one shape."""
    rows = []
    names = chosen.pick(providers(chosen.device), quick=["ours"])
    for provider in names:
        say(f"{part}: {provider}")
        measured = alone(chosen.device, measure, provider, shape, chosen.device)
        formula = FORMULAS[provider](shape)
        rows.append(
            {
                **shape._asdict(),
                "provider": provider,
                "mebibytes": measured.bytes / 2**20,
                "formula_mebibytes": formula and formula / 2**20,
                "over_formula": formula and measured.bytes / formula,
                "milliseconds": measured.seconds * 1e3,
                "largest_error": measured.error,
            }
        )
    if chosen.device == "cuda":
        given = inputs(shape, chosen.device)
        warm = medians({name: lambda step=PROVIDERS[name]: step(*given) for name in names}, chosen)
        for row in rows:
            row["milliseconds"] = warm[row["provider"]] * 1e3
    return rows


def providers(device: str) -> list[str]:
    return [name for name in PROVIDERS if device == "cuda" or PROVIDERS[name] not in (kernel, liger)]


def measure(provider: str, shape: Shape, device: str) -> Measured:
    """A step at a tiny shape, which loads what is loaded once; then the inputs; then the step that counts."""
    step = PROVIDERS[provider]
    step(*inputs(TINY, device))
    x, w, t = inputs(shape, device)
    taken = rise(lambda: step(x, w, t), device)
    dx, _ = taken.result
    return Measured(taken.bytes, taken.seconds, largest_error(dx[:LOOKED_AT], exact_dx(x, w, t)))


def inputs(shape: Shape, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x[tokens, h]``, ``w[V, h]`` and ``t[tokens]``, scores being of about unit size."""
    x = draw(shape.tokens, shape.h, seed=0, dtype=torch.float32, device=device)
    w = draw(shape.V, shape.h, seed=1, dtype=torch.float32, device=device)
    t = torch.arange(shape.tokens, device=device) * 7919 % shape.V
    return x, w.div_(shape.h**0.5), t


def exact_dx(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The gradient of the first tokens in float64."""
    x, t, tokens, w = x[:LOOKED_AT].double(), t[:LOOKED_AT], len(t), w.double()
    _, saved = linear_cross_entropy.forward(x, w.T, t, reduction="sum")
    return saved.dx / tokens


# The providers: each takes x, w[V, h] and t and returns dx and dw.


def chunked(chunk: int | None) -> Callable:
    """Ours, so many tokens at a time."""

    def step(x, w, t):
        _, saved = linear_cross_entropy.forward(x, w.T, t, chunk=chunk)
        dx, dw, _ = linear_cross_entropy.backward(torch.ones_like(x[0, 0]), saved)
        return dx, dw

    return step


def kernel(x, w, t):
    """Ours, with the loss and its gradient in Triton."""
    in_triton = kernels.load("linear_cross_entropy")
    _, saved = in_triton.forward(x, w.T, t)
    dx, dw, _ = in_triton.backward(torch.ones_like(x[0, 0]), saved)
    return dx, dw


def plain(x, w, t):
    """Ours: the head, then the loss, and what is done with is freed."""
    scores, head = linear.forward(x, w.T)
    _, loss = cross_entropy.forward(scores, t)
    del scores
    dscores = cross_entropy.backward(torch.ones_like(x[0, 0]), loss)
    del loss
    return linear.backward(dscores, head)[:2]


def pytorch(x, w, t):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, w), t)
    return torch.autograd.grad(loss, (x, w))


def pytorch_chunked(x, w, t):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    options = torch.nn.LinearCrossEntropyOptions()
    loss = torch.nn.functional.linear_cross_entropy(x, w, t, options=options)
    return torch.autograd.grad(loss, (x, w))


def liger(x, w, t):
    from liger_kernel.transformers import functional

    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    return torch.autograd.grad(functional.liger_fused_linear_cross_entropy(x, w, t), (x, w))


# The formulas: bytes of the arrays that exist at once where most do.


def chunked_bytes(chunk: int | None) -> Callable[[Shape], int]:
    """In the forward dw, dx and two arrays of a chunk's scores; in the backward dw and dx twice, as they were saved and
    as they are returned."""

    def formula(shape: Shape) -> int:
        _, m, h, V = shape
        c = min(m, chunk_or_default(chunk, m, h, V))
        gradients = 4 * (h * V + m * h)
        return max(gradients + 8 * c * V, 2 * gradients)

    return formula


def plain_bytes(shape: Shape) -> int:
    """The scores, their differences from the largest, and the exponentials of these; or the head's gradients beside those
    of the scores."""
    _, m, h, V = shape
    return max(12 * m * V, 4 * (m * V + h * V + m * h))


def pytorch_bytes(shape: Shape) -> int:
    """Log-probabilities, their gradient, and that of the scores; or the head's gradients beside the last."""
    _, m, h, V = shape
    return max(12 * m * V, 4 * (m * V + h * V + m * h))


PROVIDERS: dict[str, Callable] = {
    "ours": chunked(None),
    "ours, 512 tokens a chunk": chunked(512),
    "our kernel": kernel,
    "ours, head and loss apart": plain,
    "PyTorch": pytorch,
}
FORMULAS: dict[str, Callable[[Shape], int | None]] = {
    "ours": chunked_bytes(None),
    "ours, 512 tokens a chunk": chunked_bytes(512),
    "ours, head and loss apart": plain_bytes,
    "PyTorch": pytorch_bytes,
    "our kernel": lambda shape: None,
    "PyTorch, chunked": lambda shape: None,
    "Liger-Kernel": lambda shape: None,
}
if hasattr(torch.nn, "LinearCrossEntropyOptions"):
    PROVIDERS["PyTorch, chunked"] = pytorch_chunked
if find_spec("liger_kernel"):
    PROVIDERS["Liger-Kernel"] = liger


if __name__ == "__main__":
    sys.exit(main())
