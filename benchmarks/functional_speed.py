"""How fast is ``backpass.functional`` on a CPU, beside PyTorch's own functions, eager and compiled?

    python benchmarks/functional_speed.py [--quick]

Each function, and a GPT-2 of Hugging Face before and after ``backpass.hugging_face.patch``: a forward and its
backward through autograd. PyTorch's compiler gets the same code, with fixed shapes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import transformers
from harness import Recording, Settings, largest_error, medians, no_compiler, say, settings
from operations import as_tuple, compile_fixed, cotangent, error, exact_results, with_gradient
from subjects import QUICK, SMALL, SUBJECTS, TYPICAL, Subject
from torch._functorch import config as functorch_config

from backpass import functional as B
from backpass import hugging_face, ops

QUESTION = "How fast is backpass.functional on a CPU, beside PyTorch's own functions, eager and compiled?"
COLUMNS = [
    ("of", "function or model", ""),
    ("size", "size", ""),
    ("shape", "lengths", ""),
    ("provider", "provider", ""),
    ("milliseconds", "time", "ms"),
    ("over_pytorch", "time over PyTorch's, eager or compiled alike", "×"),
    ("largest_error", "error against float64", ""),
]
GPT2 = {"vocab_size": 1000, "n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 4}
TINY = {"vocab_size": 23, "n_positions": 9, "n_embd": 16, "n_layer": 1, "n_head": 2}
NO_DROPOUT = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
BATCH = 4
COMPILED = ", compiled"

Calls = dict[str, Callable[[], Any]]


def main() -> None:
    chosen = settings(QUESTION)
    if chosen.device != "cpu":
        say("not measured on a GPU, where the functions launch kernels; use --device cpu")
        return
    functorch_config.donated_buffer = False
    torch._logging.set_logs(dynamo=logging.ERROR)
    absence = no_compiler(chosen.device)
    compiles = absence is None and not chosen.quick
    notes = [
        "A forward and its backward through autograd, in float32. A small function is not compiled.",
        "The model: a step of GPT-2 without dropout, its attention “sdpa” and “eager” or as patched.",
    ]
    recording = Recording(chosen, "functional_speed", QUESTION, COLUMNS, [*notes, absence])
    for subject in SUBJECTS:
        for size in chosen.pick((SMALL, TYPICAL), quick=(QUICK,)):
            if recording.lacks(part := f"{subject.name}, {size}"):
                recording.add(part, time_function(chosen, subject, size, compiles and size != SMALL))
    if recording.lacks("GPT-2"):
        recording.add("GPT-2", time_model(chosen, chosen.pick(GPT2, quick=TINY), compiles))
    recording.finish()


def time_function(chosen: Settings, subject: Subject, size: str, compiled: bool) -> list[dict]:
    inputs = subject.inputs(*subject.lengths[size], dtype=torch.float32, device="cpu")
    dy, exact = cotangent(subject, inputs), exact_results(subject, inputs)["both"]
    leaves = [
        value.detach().requires_grad_(at in with_gradient(ops.load(subject.stem)))
        for at, value in enumerate(inputs)
    ]
    sought = [leaf for leaf in leaves if leaf.requires_grad]

    def both(function: Callable[..., torch.Tensor]) -> Callable[[], tuple]:
        return lambda: torch.autograd.grad(function(*leaves), sought, dy)

    def ours(*values: torch.Tensor) -> torch.Tensor:
        return getattr(B, subject.stem)(*values, **subject.options)

    calls = {"PyTorch": both(subject.pytorch), "ours": both(ours)}
    if compiled:
        torch._dynamo.reset()
        for name, function in (("PyTorch", subject.pytorch), ("ours", ours)):
            calls[name + COMPILED] = both(compile_fixed(function))
    errors = {name: error(as_tuple(call()), exact) for name, call in calls.items()}
    lengths = " × ".join(f"{length:,}" for length in subject.lengths[size])
    return timed(chosen, {"of": subject.name, "size": size, "shape": lengths}, calls, errors)


def time_model(chosen: Settings, sizes: dict[str, int], compiled: bool) -> list[dict]:
    tokens = torch.randint(
        sizes["vocab_size"], (BATCH, sizes["n_positions"]), generator=torch.Generator().manual_seed(0)
    )

    def made(attention: str) -> torch.nn.Module:
        kind = transformers.GPT2LMHeadModel
        torch.manual_seed(0)
        settings = sizes | NO_DROPOUT | NO_TOKENS
        return kind(kind.config_class(**settings, attn_implementation=attention))

    def gradients(model: torch.nn.Module) -> Callable[[], tuple]:
        def step() -> tuple:
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            return torch.autograd.grad(loss, parameters)

        parameters = list(model.parameters())
        return step

    models = {"PyTorch, sdpa": made("sdpa"), "PyTorch, eager attention": made("eager"), "ours": made("eager")}
    hugging_face.patch(models["ours"])
    exact = gradients(made("eager").double())()
    calls = {name: gradients(model) for name, model in models.items()}
    if compiled:
        for name, model in models.items():
            calls[name + COMPILED] = gradients(torch.compile(model, dynamic=False))
    errors = {
        name: max(largest_error(g, of) for g, of in zip(call(), exact, strict=True))
        for name, call in calls.items()
    }
    shape = f"{BATCH} × {sizes['n_positions']} tokens, width {sizes['n_embd']}, {sizes['n_layer']} layers"
    return timed(chosen, {"of": "GPT-2", "size": "model", "shape": shape}, calls, errors)


def timed(chosen: Settings, what: dict[str, str], calls: Calls, errors: dict[str, float]) -> list[dict]:
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
            "largest_error": errors[name],
        }
        for name in calls
    ]


if __name__ == "__main__":
    main()
