"""How long should a training step take by its FLOPs and bytes and this machine's rates, and how long does it take?

    python benchmarks/step_time.py [--device cpu] [--quick]

The rates are measured first, apart from any network: the product of two large matrices, a copy, and the FLOPs a second
of operations that are not products. ``backpass.cost.duration`` adds up the calls of three networks with these rates.
Then the networks run. Every operation is measured too, with the bytes that PyTorch's operators read and write in it,
so that a miss of the whole step can be traced to its operations.

It measures a CPU. On a GPU our operations would be timed without their kernels.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import training_step
from ceilings import copy_bandwidth, matmul_rate
from harness import Recording, Settings, draw, largest_error, samples, say, settings
from torch.utils import _pytree

from backpass import cost, ops
from backpass.cost.duration import Machine
from backpass.models import gpt2
from backpass.ops import cross_entropy, gelu, layer_norm, residual, softmax
from backpass.torch_internals import TorchDispatchMode
from backpass.training import adamw

QUESTION = "How long should a training step take by its FLOPs and bytes and this machine's rates, and how long does it?"
COLUMNS = [
    ("width", "width", ""),
    ("layers", "layers", ""),
    ("options", "attention and loss", ""),
    ("part", "part", ""),
    ("predicted_milliseconds", "predicted", "ms"),
    ("milliseconds", "time", "ms"),
    ("predicted_over_measured", "predicted over measured", ""),
    ("share", "share of the step", ""),
    ("megabytes", "fewest bytes", "MB"),
    ("operators_megabytes", "bytes of PyTorch's operators", "MB"),
    ("mfu", "model FLOPs utilisation", ""),
    ("largest_error", "error of the gradients against float64", ""),
]
# Vocabulary, positions, width, layers, heads, and the width inside the feed-forward block.
NETWORKS = [
    gpt2.Config(4096, 256, 256, 4, 4, 1024),
    gpt2.Config(8192, 256, 512, 3, 8, 2048),
    gpt2.Config(8192, 256, 768, 2, 12, 3072),
]
QUICK = [gpt2.Config(97, 8, 12, 2, 3, 16)]
OPTIONS = {
    "plain": {"flash": False, "chunked": False},
    "in tiles and chunks": {"flash": True, "chunked": True},
}
DTYPE = torch.float32
REST = "between the operations"
INNER = ("feed_forward",)  # composites whose operations are listed instead of them
NOTES = [
    "GPT-2's architecture in float32, on one sequence as long as the positions. The step is forward, backward, and "
    "AdamW.",
    "The rate of what is not a product is that of softmax, layer norm, tanh-GELU, and the loss, forward and backward, "
    "on arrays of 4 MiB, about as large as the networks' scores and the rows inside the feed-forward block: FLOPs of "
    "the formulas over seconds. Each call takes at least as long as the sum of two numbers does.",
    "The fewest bytes: each array of a call read or written once. Those of PyTorch's operators: what each operator "
    "that an operation calls reads and writes, views apart.",
]


def main() -> None:
    chosen = settings(QUESTION)
    if chosen.device != "cpu":
        say(
            "not measured on a GPU, where our operations would be timed without their kernels; use --device cpu"
        )
        return
    method = (
        f"The best of {rounds(chosen)} steps after one that is not counted, in seconds of the processor. The rates are "
        "also the best of their rounds, in seconds of the clock."
    )
    recording = Recording(chosen, "step_time", QUESTION, COLUMNS, NOTES, method)
    if recording.lacks("rates"):
        recording.add("rates", facts=facts_of(rates(chosen)))
    machine = machine_of(recording.record.facts)
    say(
        f"{machine.product_rate('float32') / 1e9:.1f} GFLOP/s of products, {machine.element_rate / 1e9:.2f} of all else, "
        f"{machine.bandwidth / 1e9:.1f} GB/s, {machine.call_seconds * 1e6:.0f} µs a call"
    )
    for config in chosen.pick(NETWORKS, quick=QUICK):
        for name, options in OPTIONS.items():
            if recording.lacks(part := f"width {config.width}, {config.layers} layers, {name}"):
                say(part)
                what = {"width": config.width, "layers": config.layers, "options": name}
                recording.add(part, [what | row for row in measured(config, options, machine, chosen)])
    recording.add("shares", notes=[shares_of_backward(recording.record.rows)])
    recording.finish()


def facts_of(machine: Machine) -> dict[str, float]:
    """What a record has of the machine's rates."""
    return {
        "product_gigaflops_per_second": machine.product_rate("float32") / 1e9,
        "element_gigaflops_per_second": machine.element_rate / 1e9,
        "copy_gigabytes_per_second": machine.bandwidth / 1e9,
        "microseconds_a_call": machine.call_seconds * 1e6,
    }


def machine_of(facts: dict[str, float]) -> Machine:
    """The machine of these facts: all networks of a record are compared with the same rates."""
    return Machine(
        "this machine",
        {"float32": facts["product_gigaflops_per_second"] * 1e9},
        facts["element_gigaflops_per_second"] * 1e9,
        facts["copy_gigabytes_per_second"] * 1e9,
        facts["microseconds_a_call"] / 1e6,
    )


def shares_of_backward(rows: list[dict[str, Any]]) -> str:
    """The note on the backward's share, where all that the backward computes is computed in it."""
    times = [row for row in rows if row["options"] == "plain"]
    forward, backward, step = (
        [row["milliseconds"] for row in times if row["part"] == part]
        for part in ("forward", "backward", "step")
    )
    of_both = [b / (f + b) for f, b in zip(forward, backward, strict=True)]
    of_step = [b / s for b, s in zip(backward, step, strict=True)]
    return (
        f"With plain attention and loss the backward takes {min(of_both):.0%} to {max(of_both):.0%} of forward and "
        f"backward, and {min(of_step):.0%} to {max(of_step):.0%} of a step with AdamW. In chunks the output head's "
        "gradients are computed in the forward."
    )


def rounds(chosen: Settings) -> int:
    return 2 if chosen.quick else 5


def rates(chosen: Settings) -> Machine:
    """The machine's rates, measured apart from any network."""
    say("rates of the machine")
    settle_allocator()
    m, n = chosen.pick((1024, 1024), quick=(7, 33))
    x, dy, w, b = (
        draw(*shape, seed=at, dtype=DTYPE, device="cpu")
        for at, shape in enumerate([(m, n), (m, n), (n,), (n,)])
    )
    targets = torch.arange(m) * 7919 % n
    shapes, options = {"x": (m, n), "w": (n,), "b": (n,)}, {"approximate": "tanh"}
    calls = {
        softmax: lambda: softmax.backward(dy, softmax.forward(x)[1]),
        layer_norm: lambda: layer_norm.backward(dy, layer_norm.forward(x, w, b)[1]),
        gelu: lambda: gelu.backward(dy, gelu.forward(x, **options)[1]),
        cross_entropy: lambda: cross_entropy.backward(dy[0, 0], cross_entropy.forward(x, targets)[1]),
    }
    flops = sum(
        sum(pair)
        for pair in (
            cost.formula(softmax, shapes["x"]),
            cost.formula(layer_norm, *shapes.values()),
            cost.formula(gelu, shapes["x"], **options),
            cost.formula(cross_entropy, shapes["x"], targets.numpy()),
        )
    )
    calls[residual] = lambda: residual.forward(w[:1], b[:1])
    seconds = {op: min(each) for op, each in samples(calls, chosen).items()}
    a_call = seconds.pop(residual)
    return Machine(
        "this machine",
        {"float32": matmul_rate(chosen, DTYPE)},
        flops / sum(seconds.values()),
        copy_bandwidth(chosen, DTYPE),
        a_call,
    )


def settle_allocator() -> None:
    """Free one array of almost 32 MiB, after which glibc keeps the memory of smaller arrays when they are freed.

    A network's first step has the same effect. Before it, glibc may return each freed array to the system, and the next
    array's pages are then allocated anew, which can take longer than the operation.
    """
    torch.empty(2**23 - 2**16).fill_(0)


def measured(
    config: gpt2.Config, options: dict, machine: Machine, chosen: Settings
) -> Iterator[dict[str, Any]]:
    """The rows of one network: the step, its parts, and its operations, the longest first."""
    predicted = cost.duration(config, 1, config.positions, machine, **options)
    least = cost.traffic(config, 1, config.positions, **options).by(lambda row: row.access.stem)
    network = training_step.Network("GPT-2", gpt2, None, config, config.positions)
    times, parts, moved, error = run(network, options, chosen)
    expected = {
        "step": predicted.seconds,
        **predicted.by(lambda span: span.way),
        **predicted.by(lambda span: span.stem),
    }
    expected[REST] = expected.pop("fork")  # the layers add a row's two gradients themselves
    least[REST] = least.pop("fork")
    parts = dict(sorted(parts.items(), key=lambda item: -item[1]))
    for part, seconds in (times | parts).items():
        is_operation = part in parts
        yield {
            "part": part,
            "predicted_milliseconds": 1e3 * expected.get(part, 0.0),
            "milliseconds": 1e3 * seconds,
            "predicted_over_measured": expected.get(part, 0.0) / seconds,
            "share": seconds / times["step"],
            "megabytes": sum(least.get(part, {}).values()) / 1e6 if is_operation else None,
            "operators_megabytes": moved[part] / 1e6 if is_operation else None,
            "mfu": predicted.mfu(seconds) if part == "step" else None,
            "largest_error": error,
        }


class Run(NamedTuple):
    """Seconds of the step and its parts; seconds and bytes of each operation; the error of the gradients."""

    times: dict[str, float]
    operations: dict[str, float]
    moved: Counter
    error: float


def run(network: training_step.Network, options: dict, chosen: Settings) -> Run:
    parameters, tokens, targets = training_step.inputs(network, "cpu")

    def gradients(of: dict) -> dict:
        return gpt2.backward(gpt2.forward(of, tokens, targets, config=network.config, **options)[1])

    def step() -> dict[str, float]:
        marks = [time.process_time()]
        _, saved = gpt2.forward(trained, tokens, targets, config=network.config, **options)
        marks.append(time.process_time())
        found = gpt2.backward(saved)
        marks.append(time.process_time())
        adamw.update(trained, found, state, **training_step.DECAY, in_place=True)
        marks.append(time.process_time())
        return training_step.spent(marks)

    wide = gradients({name: w.double() for name, w in parameters.items()})
    error = max(largest_error(x, wide[name]) for name, x in gradients(parameters).items())
    trained = {name: w.clone() for name, w in parameters.items()}
    state = adamw.start(trained)
    step()
    each = [step() for _ in range(rounds(chosen))]
    times = {"step": min(sum(one.values()) for one in each)}
    times |= {part: min(one[part] for one in each) for part in each[0]}
    spent = []
    for _ in range(rounds(chosen)):
        begun = time.process_time()
        with watched(Clock()) as clock:
            gradients(parameters)
        found = dict(clock.spent)
        spent.append(found | {REST: time.process_time() - begun - sum(found.values())})
    operations = {stem: min(one[stem] for one in spent) for stem in spent[0]}
    with Bytes() as counter, watched(counter):
        gradients(parameters)
    return Run(times, operations, counter.moved, error)


class Clock:
    """The seconds of each operation, with those of the operations that it calls."""

    def __init__(self) -> None:
        self.spent: Counter = Counter()

    @contextmanager
    def within(self, stem: str):
        begun = time.process_time()
        yield
        self.spent[stem] += time.process_time() - begun


class Bytes(TorchDispatchMode):
    """The bytes that PyTorch's operators read and write, by operation. An operator that returns a view moves none; one
    that works in place reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter = Counter()
        self.stem = REST

    @contextmanager
    def within(self, stem: str):
        self.stem = stem
        yield
        self.stem = REST

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {id(x): x for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        results = [x for x in _pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]
        writes = any(x.alias_info and x.alias_info.is_write for x in func._schema.returns)
        memory = {x.untyped_storage().data_ptr() for x in given.values()}
        if writes or not any(x.untyped_storage().data_ptr() in memory for x in results):
            self.moved[self.stem] += sum(x.numel() * x.element_size() for x in [*given.values(), *results])
        return found


@contextmanager
def watched(by: Any):
    """While the block runs, ``by`` has the name of the running operation: the outermost, or one in a feed-forward block."""
    under_way = [0]
    originals = [
        (module, name, getattr(module, name))
        for module in map(ops.load, ops.STEMS)
        for name in ("forward", "backward", "backward_once", "backward_onto")
        if hasattr(module, name) and module.__name__.rpartition(".")[2] not in INNER
    ]

    def wrapped(stem: str, function: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            if under_way[0]:
                return function(*arguments, **options)
            under_way[0] = 1
            try:
                with by.within(stem):
                    return function(*arguments, **options)
            finally:
                under_way[0] = 0

        return call

    try:
        for module, name, function in originals:
            setattr(module, name, wrapped(module.__name__.rpartition(".")[2], function))
        yield by
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


if __name__ == "__main__":
    main()
