"""How long does a whole training step take if a CUDA graph replays it, and if Python calls it?

    python benchmarks/captured_step.py [--device cuda] [--quick]

Forward, backward, and PyTorch's AdamW, whose count of steps is on the device. On a CPU, where nothing is captured, the
step is timed as Python calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from harness import Recording, Settings, call_seconds, medians, say, settings
from training_step import (
    DECAY,
    NETWORKS,
    OURS,
    QUICK,
    THEIRS,
    Network,
    gradient_errors,
    gradients_of,
    inputs,
    leaves,
)

QUESTION = "How long does a training step take, captured in a CUDA graph and called from Python?"
COLUMNS = [
    ("model", "model", ""),
    ("tokens", "tokens", ""),
    ("provider", "provider", ""),
    ("milliseconds", "time", "ms"),
    ("call_milliseconds", "call from Python", "ms"),
    ("speed_over_pytorch", "speed over PyTorch's", "×"),
    ("largest_error", "error of the gradients against float64", ""),
]
NOTES = (
    "The time is that of a replayed graph on a GPU, and of a call from Python on a CPU.",
    "Both providers run PyTorch's AdamW, in float32.",
)


def main() -> int:
    chosen = settings(QUESTION)
    recording = Recording(chosen, "captured_step", QUESTION, COLUMNS, NOTES)
    for network in chosen.pick(NETWORKS, quick=QUICK):
        if recording.lacks(network.name):
            say(network.name)
            recording.add(network.name, measured(network, chosen))
    return recording.finish()


def measured(network: Network, chosen: Settings) -> list[dict[str, Any]]:
    """The rows of one network."""
    errors = gradient_errors(network, chosen.device)
    calls = {provider: step(network, provider, chosen.device) for provider in (OURS, THEIRS)}
    seconds = medians(calls, chosen)
    on_gpu = chosen.device == "cuda"
    called = {name: call_seconds(call, chosen) for name, call in calls.items()} if on_gpu else seconds
    return [
        {
            "model": network.name,
            "tokens": network.tokens,
            "provider": provider,
            "milliseconds": 1e3 * seconds[provider],
            "call_milliseconds": 1e3 * called[provider],
            "speed_over_pytorch": seconds[THEIRS] / seconds[provider],
            "largest_error": errors[provider],
        }
        for provider in calls
    ]


def step(network: Network, provider: str, device: str) -> Callable[[], None]:
    """A step that reads no value, so that a graph can contain it."""
    parameters, tokens, targets = inputs(network, device)
    own = leaves(parameters)
    optimiser = torch.optim.AdamW(own.values(), **DECAY, capturable=device == "cuda")
    for w in own.values():
        w.grad = torch.zeros_like(w)

    def call() -> None:
        if provider == OURS:
            plain = {name: w.detach() for name, w in own.items()}
            for name, gradient in gradients_of(network, OURS, plain, tokens, targets).items():
                own[name].grad = gradient
        else:
            optimiser.zero_grad(set_to_none=False)
            gradients_of(network, THEIRS, own, tokens, targets)
        optimiser.step()

    return call


if __name__ == "__main__":
    sys.exit(main())
