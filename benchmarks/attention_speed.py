"""How fast is attention, beside each of PyTorch's ways to compute it?

    python benchmarks/attention_speed.py [--device cuda] [--quick]

A rate counts the same FLOPs for every provider, whatever it computes: 4 for each query, key and number of a
head's width in the forward, which has two products, 10 in the backward, which has five if the scores are computed
again, and half of either under a causal mask. PyTorch's function is timed once for each of its backends, which
is forced; one that rejects a case is left out and named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from ceilings import copy_bandwidth, matmul_rate
from harness import Recording, Settings, draw, largest_error, medians, say, settings
from torch.nn.attention import SDPBackend, sdpa_kernel

from backpass import kernels
from backpass.ops import attention, flash_attention

QUESTION = "How fast is attention, beside each of PyTorch's ways to compute it?"
COLUMNS = [
    ("step", "step", ""),
    ("s", "s", ""),
    ("d", "d", ""),
    ("heads", "heads", ""),
    ("mask", "mask", ""),
    ("dtype", "dtype", ""),
    ("threads", "threads", ""),
    ("provider", "provider", ""),
    ("milliseconds", "time", "ms"),
    ("gigaflops_per_second", "rate", "GFLOP/s"),
    ("share_of_ceiling", "share of the roof", ""),
    ("speed_over_flash", "speed over PyTorch's flash", "×"),
    ("largest_error", "error against float64", ""),
]
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
THREADS = (1, 2)  # of a CPU
LONGEST_SHARED = 4096  # that several threads are timed at: beyond it one case takes minutes
TOKENS, WIDTH = 16_384, 2048  # on a GPU: of all sequences together, and of all heads
SCORES_LIMIT = {"cpu": 2**28, "cuda": 2**31}  # bytes of one array of scores, where a provider keeps several

TILED, PLAIN, KERNEL = "ours, tiled", "ours, plain", "our kernel"
FLASH, MATH = "PyTorch, flash", "PyTorch, math"
BACKENDS = {
    FLASH: SDPBackend.FLASH_ATTENTION,
    "PyTorch, efficient": SDPBackend.EFFICIENT_ATTENTION,
    "PyTorch, cuDNN": SDPBackend.CUDNN_ATTENTION,
    MATH: SDPBackend.MATH,
}
OF_A_CPU = (FLASH, MATH)
QUADRATIC = (PLAIN, MATH)  # whose arrays of scores are as large as all of them

# A provider takes q, k, v and whether the mask is causal, and returns y and the function that takes dy to dq, dk and dv.
Gradients = tuple[torch.Tensor, ...]
Provider = Callable[..., tuple[torch.Tensor, Callable[[torch.Tensor], Gradients]]]


class Case(NamedTuple):
    """One shape of attention, self-attention of so many heads in all."""

    batch: int
    n_h: int
    s: int
    d: int
    causal: bool

    def __str__(self) -> str:
        mask = "causal" if self.causal else "no mask"
        return f"{self.batch} × {self.n_h} heads, s = {self.s}, d = {self.d}, {mask}"

    @property
    def pairs(self) -> int:
        """Of a query and a key, heads and sequences together, that are credited: about half with a causal mask."""
        return self.batch * self.n_h * self.s * self.s // (2 if self.causal else 1)

    @property
    def flops(self) -> dict[str, int]:
        return {"forward": 4 * self.pairs * self.d, "backward": 10 * self.pairs * self.d}

    def bytes(self, dtype: torch.dtype) -> dict[str, int]:
        """The fewest that move: q, k, v and y; in the backward dy, dq, dk and dv as well. Numbers that are one a query
        are left out."""
        array = self.batch * self.n_h * self.s * self.d * dtype.itemsize
        return {"forward": 4 * array, "backward": 8 * array}

    def fits(self, provider: str, device: str) -> bool:
        scores = self.batch * self.n_h * self.s * self.s * DTYPES[device].itemsize
        return provider not in QUADRATIC or scores <= SCORES_LIMIT[device]


def main() -> int:
    chosen = settings(QUESTION)
    dtype = DTYPES[chosen.device]
    columns = [column for column in COLUMNS if column[0] != "threads" or chosen.device == "cpu"]
    recording = Recording(chosen, "attention_speed", QUESTION, columns, explanations(chosen))
    for threads in threads_of(chosen):
        if threads:
            torch.set_num_threads(threads)
        suffix = f", {threads} threads" if threads and threads > 1 else ""
        copied, multiplied = f"copy_gigabytes_per_second{suffix}", f"matmul_gigaflops_per_second{suffix}"
        if recording.lacks(part := f"the roof{suffix}"):
            bandwidth, rate = copy_bandwidth(chosen, dtype), matmul_rate(chosen, dtype)
            said = (
                f"The roof{suffix}: {bandwidth / 1e9:.3g} GB/s of a copy, {rate / 1e9:.3g} GFLOP/s of a product of square "
                "matrices, each the best of its rounds."
            )
            recording.add(part, notes=[said], facts={copied: bandwidth / 1e9, multiplied: rate / 1e9})
        bandwidth, rate = (1e9 * recording.record.facts[name] for name in (copied, multiplied))
        for case in cases(chosen, threads):
            if recording.lacks(part := f"{case}{suffix}"):
                found, refusals = time_case(chosen, case, bandwidth, rate)
                at_threads = {"threads": threads} if threads else {}
                recording.add(part, [{**row, **at_threads} for row in found], refusals)
    return recording.finish()


def explanations(chosen: Settings) -> list[str]:
    said = [
        "FLOPs credited: 4·heads·s²·d to a forward, 10·heads·s²·d to a backward, half of that with a causal mask, whatever "
        "a provider computes.",
        "Every forward is one that a backward follows. PyTorch's backward goes through autograd, on one saved forward; ours "
        "starts from its own saved arrays.",
    ]
    if chosen.device == "cpu":
        said.append("Our Triton kernel runs on a CUDA device, and was not timed here.")
    else:
        said.append(
            "A call that cannot be recorded as a graph, such as one of autograd's, is timed as it runs."
        )
    return said


def threads_of(chosen: Settings) -> tuple[int | None, ...]:
    """How many threads to time with: None on a GPU."""
    if chosen.device == "cuda":
        return (None,)
    there = os.cpu_count() or 1
    return chosen.pick(tuple(n for n in THREADS if n <= there), quick=(1,))


def cases(chosen: Settings, threads: int | None) -> list[Case]:
    """On a CPU two heads of one sequence; on a GPU as many sequences as make 16,384 tokens, of 2048 numbers each."""
    if chosen.quick:
        shapes = [(1, 2, 33, 8)]
    elif threads:
        lengths = [2**power for power in range(9, 15) if threads == 1 or 2**power <= LONGEST_SHARED]
        shapes = [(1, 2, s, 64) for s in lengths]
    else:
        shapes = [(TOKENS >> power, WIDTH // d, 2**power, d) for d in (64, 128) for power in range(10, 15)]
    return [Case(*shape, causal) for shape in shapes for causal in (True, False)]


def time_case(
    chosen: Settings, case: Case, bandwidth: float, rate: float
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of the record for one case, and why a provider is not among them."""
    dtype = DTYPES[chosen.device]
    q, k, v, dy = inputs(case, dtype, chosen.device)
    exact = exact_results(q, k, v, dy, case.causal)
    errors, calls, refusals = {}, {"forward": {}, "backward": {}}, []
    for name, provider in providers(chosen.device).items():
        if not case.fits(name, chosen.device):
            refusals.append(f"{name}: not timed where an array of scores takes over {limit(chosen.device)}.")
            continue
        try:
            y, pull = provider(q, k, v, case.causal)
            errors[name] = {"forward": error([y], exact[:1]), "backward": error(pull(dy), exact[1:])}
        except RuntimeError as reason:
            if name not in BACKENDS:
                raise
            said = str(reason).strip().splitlines()[0].rstrip(".")
            refusals.append(f"{name}: left out where PyTorch says “{said}”.")
            continue
        calls["forward"][name] = lambda run=provider: run(q, k, v, case.causal)
        calls["backward"][name] = lambda pull=pull: pull(dy)
        del y, pull

    rows = []
    for step, of_step in calls.items():
        say(f"{step}, {case}: {', '.join(of_step)}")
        seconds = medians(of_step, chosen)
        flops = case.flops[step]
        ceiling = min(rate, flops / case.bytes(dtype)[step] * bandwidth)
        for name in of_step:
            rows.append(
                {
                    "step": step,
                    "s": case.s,
                    "d": case.d,
                    "heads": case.batch * case.n_h,
                    "mask": "causal" if case.causal else "none",
                    "dtype": str(dtype).removeprefix("torch."),
                    "provider": name,
                    "milliseconds": seconds[name] * 1e3,
                    "gigaflops_per_second": flops / seconds[name] / 1e9,
                    "share_of_ceiling": flops / seconds[name] / ceiling,
                    "speed_over_flash": seconds[FLASH] / seconds[name] if FLASH in seconds else None,
                    "largest_error": errors[name][step],
                }
            )
    return rows, refusals


def inputs(case: Case, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """``q``, ``k``, ``v`` and ``dy``, each ``[batch, n_h, s, d]``."""
    shape = (case.batch, case.n_h, case.s, case.d)
    return [draw(*shape, seed=seed, dtype=dtype, device=device) for seed in range(4)]


def exact_results(q, k, v, dy, causal: bool) -> Gradients:
    """y, dq, dk and dv in float64 of the inputs as they are, in tiles, since no more would fit."""
    y, pull = ours(flash_attention)(q.double(), k.double(), v.double(), causal)
    return y, *pull(dy.double())


def error(got, exact) -> float:
    """The largest error of any result, each beside the largest element of its own."""
    return max(largest_error(one, of) for one, of in zip(got, exact, strict=True))


def limit(device: str) -> str:
    return f"{SCORES_LIMIT[device] // 2**20:,} MiB"


# The providers.


def providers(device: str, keep: bool = True) -> dict[str, Provider]:
    """Those of a device. Where PyTorch need not ``keep`` the graph, it is run backward once."""
    names = BACKENDS if device == "cuda" else OF_A_CPU
    of_pytorch = {name: pytorch(BACKENDS[name], keep) for name in names}
    if device == "cuda":
        return {KERNEL: ours(kernels.load("flash_attention")), **of_pytorch}
    return {TILED: ours(flash_attention), PLAIN: ours(attention), **of_pytorch}


def ours(op) -> Provider:
    """An operation or a kernel of this package."""

    def run(q, k, v, causal):
        y, saved = op.forward(q, k, v, causal=causal)
        return y, lambda dy: op.backward(dy, saved)[:3]

    return run


def pytorch(backend: SDPBackend, keep: bool) -> Provider:
    """``scaled_dot_product_attention`` by that backend or not at all."""

    def run(q, k, v, causal):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        with sdpa_kernel(backend):
            y = F.scaled_dot_product_attention(*leaves, is_causal=causal)
        return y.detach(), lambda dy: torch.autograd.grad(y, leaves, dy, retain_graph=keep)

    return run


if __name__ == "__main__":
    sys.exit(main())
