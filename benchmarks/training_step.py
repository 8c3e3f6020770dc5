"""How long does a training step of a whole network take, and how much memory, beside the same network under autograd?

    python benchmarks/training_step.py [--device cuda] [--quick]

The networks have the width of GPT-2 (124M) and of Llama 3.2 (1B), and two layers. PyTorch's have the same parameters,
its fused operators, and ``torch.optim.AdamW``. The parts of a step are forward, backward, and update; those of ours are
also shown by operation. Memory is the peak of forward and backward beyond the parameters; on a CPU it is the operating
system's high-water mark of a process of its own. The gradients, which every step ends with, are part of it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import training_models
from harness import Recording, Settings, draw, largest_error, no_compiler, say, settings
from memory import alone, rise

from backpass import kernels, ops
from backpass.models import gpt2, llama
from backpass.training import adamw

QUESTION = "How long does a training step take, and how much memory, beside the same network under autograd?"
COLUMNS = [
    ("model", "model", ""),
    ("tokens", "tokens", ""),
    ("provider", "provider", ""),
    ("part", "part", ""),
    ("milliseconds", "time", "ms"),
    ("share", "share of the step", ""),
    ("speed_over_pytorch", "speed over PyTorch's", "×"),
    ("mebibytes", "peak of forward and backward", "MiB"),
    ("memory_over_pytorch", "peak over PyTorch's", "×"),
    ("largest_error", "error of the gradients against float64", ""),
]
OURS, THEIRS = "ours", "PyTorch"
COMPILED = ", compiled"
PARTS = ("forward", "backward", "update")
DECAY = {"lr": 1e-4, "weight_decay": 0.1}


class Network(NamedTuple):
    """A model of ours, PyTorch's, their configuration, and the number of tokens in a step."""

    name: str
    ours: Any
    theirs: Callable
    config: Any
    tokens: int


LLAMA = llama.Config(128_256, 2048, 2, 32, 8, 64, 8192, 1e-5, 500_000.0, tied=True)
NETWORKS = [
    Network("GPT-2", gpt2, training_models.gpt2, replace(gpt2.Config.preset("gpt2"), layers=2), 256),
    Network("Llama 3.2 1B", llama, training_models.llama, LLAMA, 256),
]
QUICK = [
    Network("GPT-2", gpt2, training_models.gpt2, gpt2.Config(97, 8, 12, 1, 3, 16), 8),
    Network("Llama 3.2 1B", llama, training_models.llama, llama.Config(97, 12, 1, 4, 2, 4, 16), 8),
]


def main() -> None:
    chosen = settings(QUESTION)
    absence = no_compiler(chosen.device)
    compiles = absence is None and not chosen.quick
    method = (
        f"Medians of {rounds(chosen)} steps after one that is not counted, the providers in random order in each round; "
        + ("seconds of the processor, " if chosen.device == "cpu" else "")
        + "the peak of one step. The parts of a compiled step are not timed apart."
    )
    notes = [
        absence,
        "PyTorch's networks are written with its fused operators: scaled_dot_product_attention, layer_norm or rms_norm, "
        "gelu, silu, and cross_entropy. Ours runs with its defaults: flash attention, and the loss in chunks. Compiled, "
        "ours is one graph of forward and backward, without tiles and chunks, which the compiler would unroll.",
        "By operation: the time within an operation's forward and backward, less that of the operations it calls. The "
        "rest of the step is Python's, and the checks of the parameters.",
    ]
    recording = Recording(chosen, "training_step", QUESTION, COLUMNS, notes, method)
    for at, network in enumerate(chosen.pick(NETWORKS, quick=QUICK)):
        if recording.lacks(network.name):
            recording.add(network.name, measured(at, chosen, compiled=compiles))
    recording.finish()


def rounds(chosen: Settings) -> int:
    return 2 if chosen.quick else 5


def measured(at: int, chosen: Settings, compiled: bool) -> list[dict[str, Any]]:
    """The rows of one network."""
    network, device = chosen.pick(NETWORKS, quick=QUICK)[at], chosen.device
    peaks = {}
    for provider in (OURS, THEIRS):
        say(f"{network.name}: memory of {provider}")
        peaks[provider] = alone(device, peak, at, chosen.quick, provider, device) / 2**20
    say(f"{network.name}: time")
    providers = [OURS, THEIRS]
    errors = gradient_errors(network, device)
    seconds = times(network, providers, chosen)
    if compiled:  # after the others, so that not all states are in memory at once
        of_compiled = [provider + COMPILED for provider in providers]
        seconds |= times(network, of_compiled, chosen)
    rows = []
    for provider in seconds:
        parts, reference = seconds[provider], seconds[THEIRS + COMPILED * provider.endswith(COMPILED)]
        eager = provider in peaks
        for part in ("step", *(PARTS if eager else ())):
            rows.append(
                {
                    "part": part,
                    "milliseconds": 1e3 * parts[part],
                    "share": parts[part] / parts["step"],
                    "speed_over_pytorch": reference[part] / parts[part],
                    "mebibytes": peaks[provider] if eager and part == "step" else None,
                    "memory_over_pytorch": peaks[provider] / (peaks[THEIRS] or 1)
                    if eager and part == "step"
                    else None,
                }
                | {"provider": provider, "largest_error": errors[provider.removesuffix(COMPILED)]}
            )
    whole = seconds[OURS]["step"]
    for stem, spent in by_operation(network, device).items():
        facts = {"part": stem, "milliseconds": 1e3 * spent, "share": spent / whole}
        absent = dict.fromkeys(("speed_over_pytorch", "mebibytes", "memory_over_pytorch"))
        rows.append({**facts, **absent, "provider": OURS, "largest_error": errors[OURS]})
    return [{"model": network.name, "tokens": network.tokens, **row} for row in rows]


def inputs(
    network: Network, device: str, dtype: torch.dtype = torch.float32
) -> tuple[dict, torch.Tensor, torch.Tensor]:
    """The parameters, and tokens with their targets."""
    c = network.config
    shapes = network.ours.parameter_shapes(c)
    parameters = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        x = draw(*shape, seed=seed, dtype=torch.float32, device=device).mul_(0.02)
        parameters[name] = (x + 1 if len(shape) == 1 and name.endswith("weight") else x).to(dtype)
    tokens = torch.arange(network.tokens + 1, device=device)[None] * 7919 % c.vocabulary
    return parameters, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def options(device: str, compiled: bool = False) -> dict[str, Any]:
    """On a GPU ours runs its kernels. The compiler gets neither tiles nor chunks."""
    if compiled:
        return {"flash": False, "chunked": False}
    return {"kernels": kernels} if device == "cuda" else {}


def gradients_of(
    network: Network, provider: str, parameters: dict, tokens, targets, compiled: bool = False
) -> dict[str, torch.Tensor]:
    """Forward and backward."""
    if provider == OURS:
        _, saved = network.ours.forward(
            parameters, tokens, targets, config=network.config, **options(tokens.device.type, compiled)
        )
        return network.ours.backward(saved)
    network.theirs(parameters, tokens, targets, network.config).backward()
    return {name: w.grad for name, w in parameters.items()}


def leaves(parameters: dict) -> dict:
    return {name: w.detach().requires_grad_() for name, w in parameters.items()}


def peak(at: int, quick: bool, provider: str, device: str) -> int:
    """The bytes that a forward and a backward take, after those of a small network, which load what is loaded once."""
    for network in (QUICK[at], (QUICK if quick else NETWORKS)[at]):
        parameters, tokens, targets = inputs(network, device)
        parameters = leaves(parameters) if provider == THEIRS else parameters
        taken = rise(lambda: gradients_of(network, provider, parameters, tokens, targets), device).bytes  # noqa: B023
    return taken


def gradient_errors(network: Network, device: str) -> dict[str, float]:
    """The largest error of a parameter's gradient, relative to the largest element, of each provider."""
    exact_parameters, tokens, targets = inputs(network, device, torch.float64)
    exact = gradients_of(network, THEIRS, leaves(exact_parameters), tokens, targets)
    parameters, *_ = inputs(network, device)
    found = {}
    for provider in (OURS, THEIRS):
        given = leaves(parameters) if provider == THEIRS else parameters
        got = gradients_of(network, provider, given, tokens, targets)
        found[provider] = max(largest_error(got[name], exact[name]) for name in exact)
    return found


def clock(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def times(network: Network, providers: list[str], chosen: Settings) -> dict[str, dict[str, float]]:
    """Median seconds of each provider's step and of its parts."""
    parameters, tokens, targets = inputs(network, chosen.device)
    steps = {}
    for provider in providers:
        make = our_step if provider.startswith(OURS) else their_step
        steps[provider] = make(network, parameters, tokens, targets, provider.endswith(COMPILED))
        steps[provider]()
    order, seconds = random.Random(0), {provider: [] for provider in providers}
    for _ in range(rounds(chosen)):
        for provider in order.sample(providers, len(providers)):
            seconds[provider].append(steps[provider]())
    found = {}
    for provider, each in seconds.items():
        medians = {part: statistics.median(one[part] for one in each) for part in each[0]}
        found[provider] = {**medians, "step": statistics.median(sum(one.values()) for one in each)}
    return found


def our_step(
    network: Network, parameters: dict, tokens, targets, compiled: bool
) -> Callable[[], dict[str, float]]:
    # Both optimisers write over the parameters.
    parameters = {name: w.clone() for name, w in parameters.items()}
    state, device = adamw.start(parameters), tokens.device.type
    run = torch.compile(gradients_of, fullgraph=True, dynamic=False) if compiled else None

    def step() -> dict[str, float]:
        marks = [clock(device)]
        if run:
            gradients = run(network, OURS, parameters, tokens, targets, compiled)
        else:
            _, saved = network.ours.forward(
                parameters, tokens, targets, config=network.config, **options(device)
            )
            marks.append(clock(device))
            gradients = network.ours.backward(saved)
        marks.append(clock(device))
        adamw.update(parameters, gradients, state, **DECAY, in_place=True)
        marks.append(clock(device))
        return spent(marks)

    return step


def their_step(
    network: Network, parameters: dict, tokens, targets, compiled: bool
) -> Callable[[], dict[str, float]]:
    own = {name: w.clone().requires_grad_() for name, w in parameters.items()}
    optimiser, device = torch.optim.AdamW(own.values(), **DECAY), tokens.device.type
    forward = torch.compile(network.theirs, dynamic=False) if compiled else network.theirs

    def step() -> dict[str, float]:
        optimiser.zero_grad()
        marks = [clock(device)]
        loss = forward(own, tokens, targets, network.config)
        if not compiled:
            marks.append(clock(device))
        loss.backward()
        marks.append(clock(device))
        optimiser.step()
        marks.append(clock(device))
        return spent(marks)

    return step


def spent(marks: list[float]) -> dict[str, float]:
    """The seconds of each part; forward and backward together if there are two."""
    names = PARTS if len(marks) == 4 else ("forward and backward", "update")
    return {name: end - begin for name, begin, end in zip(names, marks[:-1], marks[1:], strict=True)}


def by_operation(network: Network, device: str) -> dict[str, float]:
    """The seconds within each operation in a forward and a backward, the longest first."""
    parameters, tokens, targets = inputs(network, device)
    gradients_of(network, OURS, parameters, tokens, targets)
    with timed(device) as seconds:
        gradients_of(network, OURS, parameters, tokens, targets)
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


@contextmanager
def timed(device: str):
    """The seconds of each operation, less those of the operations that it calls, while the block runs."""
    seconds: dict[str, float] = {}
    within: list[float] = []  # for each call under way, the seconds of the calls in it
    originals = [
        (module, name, getattr(module, name))
        for module in [
            *map(ops.load, ops.STEMS),
            *(map(kernels.load, kernels.STEMS) if device == "cuda" else ()),
        ]
        for name in ("forward", "backward", "backward_once", "backward_onto")
        if hasattr(module, name)
    ]

    def wrapped(stem: str, function: Callable) -> Callable:
        def call(*arguments, **options):
            within.append(0.0)
            begun = clock(device)
            found = function(*arguments, **options)
            taken = clock(device) - begun
            seconds[stem] = seconds.get(stem, 0.0) + taken - within.pop()
            if within:
                within[-1] += taken
            return found

        return call

    try:
        for module, name, function in originals:
            setattr(module, name, wrapped(module.__name__.rpartition(".")[2], function))
        yield seconds
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


if __name__ == "__main__":
    main()
