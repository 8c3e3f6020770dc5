"""How much memory does attention take, forward and backward, beyond its inputs, as the sequence grows?

    python benchmarks/attention_memory.py [--device cuda] [--quick]

One head under a causal mask. Each figure is of one step: on a CPU the operating system's high-water mark of a process
of its own, on a GPU that of PyTorch's allocator. Where the peak grows with the length, the bytes for each query
settle; where it grows with its square, those for each score, a pair of query and key, masked or not.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from attention_speed import DTYPES, Case, inputs, limit, providers
from harness import Recording, largest_error, say, settings
from memory import alone, rise

from backpass.ops import attention

QUESTION = (
    "How much memory does attention take, forward and backward, beyond its inputs, as the sequence grows?"
)
METHOD = {
    "cpu": "One head of width 64, a causal mask; each step in a process of its own, three times, of which the one in the "
    "middle is shown, with its one reading of the clock.",
    "cuda": "One head of width 64, a causal mask; each step three times, of which the one in the middle is shown, with its "
    "one reading of the clock.",
}
COLUMNS = [
    ("s", "s", ""),
    ("provider", "provider", ""),
    ("mebibytes", "peak", "MiB"),
    ("kibibytes_a_query", "peak a query", "KiB"),
    ("bytes_a_score", "peak a score", "bytes"),
    ("milliseconds", "time", "ms"),
    ("largest_error", "error of dq against float64", ""),
]
TINY = 8
LOOKED_AT = 16  # queries, the last ones, whose dq is compared: those of float64 need all keys


class Measured(NamedTuple):
    """What one step took."""

    bytes: int
    seconds: float
    error: float


def main() -> int:
    chosen = settings(QUESTION)
    recording = Recording(chosen, "attention_memory", QUESTION, COLUMNS, method=METHOD[chosen.device])
    names = [*providers(chosen.device)]
    for name in chosen.pick(names, quick=names[:1]):
        for s in chosen.pick([2**power for power in range(9, 15)], quick=[33]):
            part = f"{name}, s = {s:,}"
            if not recording.lacks(part):
                continue
            if not case(s).fits(name, chosen.device):
                said = f"{part}: not measured, since an array of scores takes over {limit(chosen.device)}."
                recording.add(part, notes=[said])
                continue
            say(f"s = {s:,}: {name}")
            tries = [
                alone(chosen.device, measure, name, s, chosen.device) for _ in range(chosen.pick(3, quick=1))
            ]
            measured = sorted(tries)[len(tries) // 2]
            row = {
                "s": s,
                "provider": name,
                "mebibytes": measured.bytes / 2**20,
                "kibibytes_a_query": measured.bytes / s / 2**10,
                "bytes_a_score": measured.bytes / s**2,
                "milliseconds": measured.seconds * 1e3,
                "largest_error": measured.error,
            }
            recording.add(part, [row])
    return recording.finish()


def case(s: int) -> Case:
    return Case(batch=1, n_h=1, s=s, d=64, causal=True)


def measure(name: str, s: int, device: str) -> Measured:
    """A step at a tiny length, which loads what is loaded once; then the inputs; then the step that counts."""
    run = providers(device, keep=False)[name]
    step(run, *inputs(case(TINY), DTYPES[device], device))
    q, k, v, dy = inputs(case(s), DTYPES[device], device)
    taken = rise(lambda: step(run, q, k, v, dy), device)
    dq, *_ = taken.result
    return Measured(taken.bytes, taken.seconds, largest_error(dq[..., -LOOKED_AT:, :], exact_dq(q, k, v, dy)))


def step(run, q, k, v, dy):
    _, pull = run(q, k, v, True)
    return pull(dy)


def exact_dq(q, k, v, dy) -> torch.Tensor:
    """The gradient of the last queries in float64; the last of them sees every key."""
    q, dy = (x[..., -LOOKED_AT:, :].double() for x in (q, dy))
    _, saved = attention.forward(q, k.double(), v.double(), causal=True, causal_variant="lower_right")
    return attention.backward(dy, saved)[0]


if __name__ == "__main__":
    sys.exit(main())
