"""What bounds each operation here, arithmetic or memory?

    python benchmarks/roofline.py [--device cuda] [--quick]

A machine has two ceilings: the rate at which it multiplies and the bandwidth with which it copies, both
measured first. An operation of so many FLOPs and at least so many bytes can be no faster than the lower of
rate and bandwidth times FLOPs a byte. FLOPs are exact, by the operations' own formulas; bytes are the
fewest possible: each input read once, each output written once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from ceilings import copy_bandwidth, matmul_rate
from harness import Recording, Settings, draw, largest_error, medians, say, settings

from backpass.ops import linear, residual, softmax

QUESTION = "What bounds each operation here, arithmetic or memory?"
COLUMNS = [
    ("operation", "operation", ""),
    ("step", "step", ""),
    ("shape", "shape", ""),
    ("provider", "provider", ""),
    ("flops", "FLOPs", ""),
    ("bytes", "fewest bytes", ""),
    ("intensity", "FLOPs a byte", ""),
    ("milliseconds", "time", "ms"),
    ("gigaflops_per_second", "measured", "GFLOP/s"),
    ("ceiling_gigaflops_per_second", "ceiling", "GFLOP/s"),
    ("bound_by", "bound by", ""),
    ("largest_error", "error against float64", ""),
]
DTYPE = torch.float32


class Point(NamedTuple):
    """One step of an operation at one shape, by one or more providers, each a call that returns one
    result."""

    operation: str
    step: str
    shape: str
    flops: int
    numbers_moved: int
    calls: dict[str, Callable[[], torch.Tensor]]
    exact: torch.Tensor  # what a call returns, in float64


def main() -> int:
    chosen = settings(QUESTION)
    recording = Recording(chosen, "roofline", QUESTION, COLUMNS, ["Everything is in float32."])
    copied, multiplied = "copy_gigabytes_per_second", "matmul_gigaflops_per_second"
    if recording.lacks("the ceilings"):
        say("bandwidth of a copy, rate of a matrix product")
        bandwidth, rate = copy_bandwidth(chosen, DTYPE), matmul_rate(chosen, DTYPE)
        say(f"{bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} GFLOP/s")
        said = (
            f"Ceilings, each the best of its rounds: {bandwidth / 1e9:.3g} GB/s of a copy, "
            f"{rate / 1e9:.3g} GFLOP/s of a product of square matrices; "
            f"they meet at {rate / bandwidth:.3g} FLOPs a byte."
        )
        facts = {
            copied: bandwidth / 1e9,
            multiplied: rate / 1e9,
            "balance_flops_per_byte": rate / bandwidth,
        }
        recording.add("the ceilings", notes=[said], facts=facts)
    bandwidth, rate = (1e9 * recording.record.facts[name] for name in (copied, multiplied))
    for point in points(chosen):
        part = f"{point.operation} {point.step} at {point.shape}"
        if recording.lacks(part):
            say(part)
            recording.add(part, time_point(chosen, point, bandwidth, rate))
    return recording.finish()


def time_point(chosen: Settings, point: Point, bandwidth: float, rate: float) -> list[dict[str, Any]]:
    """The rows of the record for one point."""
    moved = point.numbers_moved * DTYPE.itemsize
    intensity = point.flops / moved
    errors = {name: largest_error(call(), point.exact) for name, call in point.calls.items()}
    return [
        {
            "operation": point.operation,
            "step": point.step,
            "shape": point.shape,
            "provider": name,
            "flops": point.flops,
            "bytes": moved,
            "intensity": intensity,
            "milliseconds": seconds * 1e3,
            "gigaflops_per_second": point.flops / seconds / 1e9,
            "ceiling_gigaflops_per_second": min(rate, intensity * bandwidth) / 1e9,
            "bound_by": "arithmetic" if intensity * bandwidth > rate else "memory",
            "largest_error": errors[name],
        }
        for name, seconds in medians(point.calls, chosen).items()
    ]


def points(chosen: Settings) -> Iterator[Point]:
    """The points of the roofline, one after the other, so that one point's arrays are freed before the
    next's."""
    # A layer of GPT-2 XL's width on 1024 tokens; one token through a layer so wide that no cache holds its
    # weights.
    for m, n, p in chosen.pick([(1024, 1600, 1600), (1, 8192, 8192)], quick=[(7, 16, 9)]):
        yield from linear_points(chosen, m, n, p)
    yield from softmax_points(chosen, *chosen.pick((12 * 1024, 1024), quick=(7, 33)))
    yield residual_point(chosen, *chosen.pick((8192, 1600), quick=(7, 33)))


def linear_points(chosen: Settings, m: int, n: int, p: int) -> Iterator[Point]:
    x, w, dy = (
        draw(*shape, seed=seed, dtype=DTYPE, device=chosen.device)
        for seed, shape in enumerate([(m, n), (n, p), (m, p)])
    )
    y, saved = linear.forward(x, w)
    exact_y, exact_saved = linear.forward(x.double(), w.double())
    exact_dw = linear.backward(dy.double(), exact_saved)[1]
    shape = f"[{m}, {n}] [{n}, {p}]"
    yield Point(
        "linear",
        "forward",
        shape,
        linear.forward_flops(m, n, p, has_b=False),
        x.numel() + w.numel() + y.numel(),
        {"ours": lambda: linear.forward(x, w)[0]},
        exact_y,
    )
    yield Point(
        "linear",
        "backward",
        shape,
        linear.backward_flops(m, n, p, has_b=False),
        dy.numel() + 2 * (x.numel() + w.numel()),
        {"ours": lambda: linear.backward(dy, saved)[1]},
        exact_dw,
    )


def softmax_points(chosen: Settings, m: int, n: int) -> Iterator[Point]:
    """Ours in separate operations of PyTorch, and PyTorch's own, which does it in one."""
    x, dy = (draw(m, n, seed=seed, dtype=DTYPE, device=chosen.device) for seed in (0, 1))
    y, saved = softmax.forward(x)
    exact_y, exact_saved = softmax.forward(x.double())
    yield Point(
        "softmax",
        "forward",
        f"[{m}, {n}]",
        softmax.forward_flops(m, n),
        2 * x.numel(),
        {"ours": lambda: softmax.forward(x)[0], "PyTorch": lambda: torch.softmax(x, dim=-1)},
        exact_y,
    )
    yield Point(
        "softmax",
        "backward",
        f"[{m}, {n}]",
        softmax.backward_flops(m, n),
        3 * x.numel(),
        {
            "ours": lambda: softmax.backward(dy, saved),
            "PyTorch": lambda: torch.ops.aten._softmax_backward_data(dy, y, -1, DTYPE),
        },
        softmax.backward(dy.double(), exact_saved),
    )


def residual_point(chosen: Settings, m: int, n: int) -> Point:
    """The forward alone: the backward hands its argument on, in no time."""
    x, f = (draw(m, n, seed=seed, dtype=DTYPE, device=chosen.device) for seed in (0, 1))
    return Point(
        "residual",
        "forward",
        f"[{m}, {n}]",
        residual.forward_flops(x.numel()),
        3 * x.numel(),
        {"ours": lambda: residual.forward(x, f)[0]},
        x.double() + f.double(),
    )


if __name__ == "__main__":
    sys.exit(main())
