"""How fast is ``backpass.functional`` on a CPU, beside PyTorch's own functions and the machine's limit?

    python benchmarks/functional_speed.py [name …] [--quick]

Each function, and two GPT-2 of Hugging Face before and after ``backpass.hugging_face.patch``: a forward and its
backward through autograd. Three comparisons result: both eager; ours with each operation compiled, within
``compiled_operations``, against PyTorch's eager function; and both compiled by ``torch.compile`` with fixed shapes.

Time is that of the processor, so that other processes of the machine count less. The limit of a function is the
longer of two times: that of a copy of the bytes that must move, and that of its products at the rate of a large one.
Both rates are measured first, in the same run.
"""

from __future__ import annotations

import logging
import random
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from harness import Recording, Settings, draw, largest_error, no_compiler, say, settings
from operations import (
    as_tuple,
    compile_fixed,
    cotangent,
    error,
    exact_results,
    expected,
    with_gradient,
)
from subjects import QUICK, SMALL, SUBJECTS, TYPICAL, Subject

from backpass import functional as B
from backpass import hugging_face
from backpass.torch_door.compiled import compiled_operations

QUESTION = "How fast is backpass.functional on a CPU, beside PyTorch's own functions and the machine's limit?"
COLUMNS = [
    ("of", "function or model", ""),
    ("size", "size", ""),
    ("shape", "lengths", ""),
    ("provider", "provider", ""),
    ("milliseconds", "time", "ms"),
    ("over_pytorch", "time over PyTorch's, compiled if ours is by torch.compile", "×"),
    ("share_of_limit", "share of the limit", ""),
    ("largest_error", "error against float64", ""),
]
MODEL = {"vocab_size": 1000, "n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 4}
SMALL_MODEL = {"vocab_size": 256, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4}
TINY = {"vocab_size": 23, "n_positions": 9, "n_embd": 16, "n_layer": 1, "n_head": 2}
NO_DROPOUT = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
BATCH = 4
COMPILED = ", compiled"  # by torch.compile
EACH = "ours, each operation compiled"

Calls = dict[str, Callable[[], Any]]


def _queries_keys_values(heads, s, d, **like):
    return tuple(draw(1, heads, s, d, seed=seed, **like) for seed in range(3))


def _attention(name: str, typical: int) -> Subject:
    """Causal self-attention of eight heads of width 64."""
    return Subject(
        name,
        name,
        "heads s d",
        {SMALL: (2, 16, 16), TYPICAL: (8, typical, 64), QUICK: (2, 5, 4)},
        _queries_keys_values,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda heads, s, d: {"forward": 4 * heads * s * d, "backward": 8 * heads * s * d},
        {"causal": True},
    )


TIMED = (
    *(each for each in SUBJECTS if not each.of_sum),
    _attention("attention", 512),
    _attention("flash_attention", 2048),
)
# FLOPs of the products, forward and backward together, by the lengths of a subject. A causal attention is credited with
# half of seven products, as in attention_speed.py.
PRODUCTS: dict[str, Callable[..., int]] = {
    "linear": lambda m, n, p: 6 * m * n * p,
    "feed_forward": lambda m, h, f: 12 * m * h * f,
    "linear_cross_entropy": lambda m, h, V: 6 * m * h * V,
    "attention": lambda heads, s, d: 7 * heads * s * s * d,
    "flash_attention": lambda heads, s, d: 7 * heads * s * s * d,
}


def main() -> None:
    chosen = settings(QUESTION, [subject.name for subject in TIMED] + ["GPT-2"])
    if chosen.device != "cpu":
        say("not measured on a GPU, where the functions launch kernels; use --device cpu")
        return
    torch._logging.set_logs(dynamo=logging.ERROR)
    absence = no_compiler(chosen.device)
    compiles = absence is None and not chosen.quick
    notes = [
        "A forward and its backward through autograd, in float32. A small function is not compiled.",
        "With each operation compiled, within compiled_operations, ours is compared with PyTorch's eager time.",
        "The models: a step of GPT-2 without dropout, its attention “sdpa” and “eager” or as patched.",
    ]
    method = (
        f"Medians of at most {chosen.rounds} rounds, providers in random order in each, in seconds of the processor. "
        "The two rates are the best of their rounds."
    )
    recording = Recording(chosen, "functional_speed", QUESTION, COLUMNS, [*notes, absence], method)
    if recording.lacks("limits"):
        recording.add("limits", facts=rates(chosen))
    for subject in TIMED:
        for size in chosen.pick((SMALL, TYPICAL), quick=(QUICK,)):
            if is_sought(chosen, subject.name) and recording.lacks(part := f"{subject.name}, {size}"):
                limit = limit_of(subject, size, recording.record.facts)
                recording.add(part, time_function(chosen, subject, size, compiles and size != SMALL, limit))
    for size, sizes in (("small model", SMALL_MODEL), ("model", MODEL)):
        if is_sought(chosen, "GPT-2") and recording.lacks(part := f"GPT-2, {size}"):
            recording.add(part, time_model(chosen, size, chosen.pick(sizes, quick=TINY), compiles))
    recording.finish()


def is_sought(chosen: Settings, name: str) -> bool:
    return name in (chosen.names or (name,))


def rates(chosen: Settings) -> dict[str, float]:
    """Return how fast the machine copies a large array, and multiplies large matrices, at its best."""
    source = draw(chosen.pick(2**25, quick=2**16), seed=0, dtype=torch.float32, device="cpu")
    n = chosen.pick(2048, quick=64)
    a, target, out = (
        draw(n, n, seed=1, dtype=torch.float32, device="cpu"),
        torch.empty_like(source),
        torch.empty(n, n),
    )

    def best(call: Callable[[], Any]) -> float:
        return min(processor_seconds(call, 1) for _ in range(7))

    return {
        "copy_gigabytes_per_second": 8e-9 * source.numel() / best(lambda: target.copy_(source)),
        "matmul_gigaflops_per_second": 2e-9 * n**3 / best(lambda: torch.mm(a, a, out=out)),
    }


def limit_of(subject: Subject, size: str, rates: dict[str, float]) -> float:
    """Return the seconds in which the machine could copy the bytes that must move, or multiply, if that takes longer."""
    lengths = subject.lengths[size]
    flops = PRODUCTS.get(subject.stem, lambda *_: 0)(*lengths)
    bytes_moved = torch.float32.itemsize * sum(subject.moved(*lengths).values())
    return max(
        bytes_moved / rates["copy_gigabytes_per_second"] / 1e9,
        flops / rates["matmul_gigaflops_per_second"] / 1e9,
    )


def time_function(
    chosen: Settings, subject: Subject, size: str, compiled: bool, limit: float
) -> list[dict[str, Any]]:
    inputs = subject.inputs(*subject.lengths[size], dtype=torch.float32, device="cpu")
    dy, exact = cotangent(subject, inputs), exact_results(subject, inputs)["both"]
    leaves = [value.detach().requires_grad_(at in with_gradient(subject)) for at, value in enumerate(inputs)]
    sought = [leaf for leaf in leaves if leaf.requires_grad]

    def both(function: Callable[..., torch.Tensor], within: Callable = nullcontext) -> Callable[[], tuple]:
        def call() -> tuple:
            with within():
                return torch.autograd.grad(function(*leaves), sought, dy)

        return call

    def ours(*values: torch.Tensor) -> torch.Tensor:
        return getattr(B, subject.stem)(*values, **subject.options)

    calls = {"PyTorch": both(subject.pytorch), "ours": both(ours)}
    if compiled:
        torch._dynamo.reset()
        calls[EACH] = both(ours, compiled_operations)
        calls["PyTorch" + COMPILED] = both(compile_fixed(subject.pytorch))
        calls["ours" + COMPILED] = both(compile_fixed(ours))
    errors = {}
    for name, call in calls.items():
        got = as_tuple(call())
        errors[name] = error(got, expected(subject, name, "both", inputs, dy, got, {"both": exact}))
    lengths = " × ".join(f"{length:,}" for length in subject.lengths[size])
    return timed(chosen, {"of": subject.name, "size": size, "shape": lengths}, calls, errors, limit)


def time_model(chosen: Settings, size: str, sizes: dict[str, int], compiled: bool) -> list[dict]:
    tokens = torch.randint(
        sizes["vocab_size"], (BATCH, sizes["n_positions"]), generator=torch.Generator().manual_seed(0)
    )

    def made(attention: str) -> torch.nn.Module:
        kind = transformers.GPT2LMHeadModel
        torch.manual_seed(0)
        settings = sizes | NO_DROPOUT | NO_TOKENS
        return kind(kind.config_class(**settings, attn_implementation=attention))

    def gradients(model: torch.nn.Module, within: Callable = nullcontext) -> Callable[[], tuple]:
        def step() -> tuple:
            with within():
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
                return torch.autograd.grad(loss, parameters)

        parameters = list(model.parameters())
        return step

    models = {"PyTorch, sdpa": made("sdpa"), "PyTorch, eager attention": made("eager"), "ours": made("eager")}
    hugging_face.patch(models["ours"])
    exact = gradients(made("eager").double())()
    calls = {name: gradients(model) for name, model in models.items()}
    if compiled:
        torch._dynamo.reset()
        calls[EACH] = gradients(models["ours"], compiled_operations)
        for name, model in models.items():
            calls[name + COMPILED] = gradients(torch.compile(model, dynamic=False))
    errors = {
        name: max(largest_error(g, of) for g, of in zip(call(), exact, strict=True))
        for name, call in calls.items()
    }
    shape = f"{BATCH} × {sizes['n_positions']} tokens, width {sizes['n_embd']}, {sizes['n_layer']} layers"
    return timed(chosen, {"of": "GPT-2", "size": size, "shape": shape}, calls, errors, None)


def timed(
    chosen: Settings, what: dict[str, str], calls: Calls, errors: dict[str, float], limit: float | None
) -> list[dict[str, Any]]:
    say(f"{what['of']}, {what['size']} {what['shape']}: {', '.join(calls)}")
    seconds = medians(calls, chosen)

    def of_pytorch(compiled: bool) -> float:
        return min(
            value
            for name, value in seconds.items()
            if name.startswith("PyTorch") and name.endswith(COMPILED) == compiled
        )

    return [
        {
            **what,
            "provider": name,
            "milliseconds": seconds[name] * 1e3,
            "over_pytorch": seconds[name] / of_pytorch(name.endswith(COMPILED)),
            "share_of_limit": None if limit is None else limit / seconds[name],
            "largest_error": errors[name],
        }
        for name in calls
    ]


def medians(calls: Calls, chosen: Settings) -> dict[str, float]:
    """Return the median seconds of the processor of each call. A round times every call, in random order."""
    if chosen.rehearsal:
        return dict.fromkeys(calls, 1.0)
    enough = 1e-4 if chosen.quick else 1e-2
    repeats, seconds = {}, {name: [] for name in calls}
    for name, call in calls.items():
        fastest = min(processor_seconds(call, 1) for _ in range(3))
        repeats[name] = max(1, round(enough / max(fastest, 1e-7)))
    order, begun = random.Random(0), time.perf_counter()
    for done in range(chosen.rounds):
        if done >= 5 and time.perf_counter() - begun > chosen.seconds:
            break
        for name in order.sample(list(calls), len(calls)):
            seconds[name].append(processor_seconds(calls[name], repeats[name]) / repeats[name])
    return {name: statistics.median(of_call) for name, of_call in seconds.items()}


def processor_seconds(call: Callable[[], Any], repeats: int) -> float:
    begun = time.process_time()
    for _ in range(repeats):
        call()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
