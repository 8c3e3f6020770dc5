"""The two ceilings of a machine: how fast it copies memory, and how fast it multiplies matrices.

A ceiling is what the machine can do at its best, so the best of the rounds counts here, not their median.
"""

from __future__ import annotations

import torch
from harness import Settings, draw, samples

from backpass.ops import linear


def copy_bandwidth(chosen: Settings, dtype: torch.dtype) -> float:
    """Bytes a second that a copy reads and writes, together; the copied array is far larger than any
    cache."""
    elements = chosen.pick(2**25 if chosen.device == "cpu" else 2**28, quick=2**16)
    source = draw(elements, seed=0, dtype=dtype, device=chosen.device)
    target = torch.empty_like(source)
    seconds = samples({"copy": lambda: target.copy_(source)}, chosen)["copy"]
    return 2 * elements * dtype.itemsize / min(seconds)


def matmul_rate(chosen: Settings, dtype: torch.dtype) -> float:
    """FLOPs a second of PyTorch's product of two large square matrices."""
    n = chosen.pick(2048 if chosen.device == "cpu" else 8192, quick=64)
    a, b = (draw(n, n, seed=seed, dtype=dtype, device=chosen.device) for seed in (0, 1))
    out = torch.empty_like(a)
    seconds = samples({"matmul": lambda: torch.mm(a, b, out=out)}, chosen)["matmul"]
    return linear.forward_flops(n, n, n, has_b=False) / min(seconds)
