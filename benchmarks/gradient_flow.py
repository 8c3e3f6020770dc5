"""Up to which learning rate does a small encoder learn to sort, with its norms after the sums or before the blocks?

    python benchmarks/gradient_flow.py [--quick]

Each row of the record is one run: 16 random symbols enter, and the target at each position is the symbol that stood
there when they are sorted. The first gradient of each run is compared with autograd's through
``torch.nn.TransformerEncoder``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from harness import say, settings, write

from backpass.models import encoder
from backpass.models.layers import output_head
from backpass.ops import embedding, position_embedding
from backpass.training import adamw, schedule

QUESTION = "Up to which learning rate does a small encoder learn to sort, with its norms after the sums or before the blocks?"
COLUMNS = [
    ("order", "norm", ""),
    ("scaled", "last matrix of each block scaled by 1/√(2L)", ""),
    ("layers", "layers", ""),
    ("rate", "peak of the learning rate", ""),
    ("warmup", "steps of warm-up", ""),
    ("seed", "seed", ""),
    ("first", "loss before the first step", ""),
    ("loss", "mean loss of the last tenth of the steps", ""),
    ("spread", "share of the last rows' length that differs between positions", ""),
    ("ratio", "gradient of the first layer's parameters over the last's, after the last step", ""),
    ("milliseconds", "a step", "ms"),
    ("largest_error", "largest error of the first gradient against autograd", ""),
]
SYMBOLS = LENGTH = 16
BATCH = 8
OUTSIDE = ("table", "positions", "head")  # the parameters that are not the encoder's


class Run(NamedTuple):
    """The settings of one run."""

    order: str  # "before" or "after"
    scaled: bool  # whether the last matrix of each block is scaled by 1/√(2L)
    layers: int
    rate: float
    warmup: int
    seed: int


def main() -> None:
    chosen = settings(QUESTION)
    width, steps = chosen.pick(32, quick=8), chosen.pick(200, quick=4)
    rows = []
    for run in runs(steps, chosen.quick):
        rows.append(run._asdict() | trained(run, width, steps))
        say(
            f"{run}: loss {rows[-1]['loss']:.2f}, spread {rows[-1]['spread']:.3f}, ratio {rows[-1]['ratio']:.1e}"
        )
    method = (
        f"One run of {steps} steps a row, of {BATCH} sequences each; width {width}, 4 heads, feed-forward width "
        f"{4 * width}, Xavier's spread, float64, AdamW with its usual betas and no decay, a linear warm-up and then "
        "half a cosine, no clipping. With the norms before the blocks, another follows the last layer. "
        "Run beside other work; so the times are rough."
    )
    write(chosen, "gradient_flow", QUESTION, COLUMNS, rows, method=method)


def runs(steps: int, quick: bool) -> Iterator[Run]:
    shallow, deep = (6, (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1), 5), (18, (1e-3, 3e-3, 1e-2), 3)
    for layers, rates, seeds in [(1, (1e-2,), 1)] if quick else [shallow, deep]:
        for order, scaled in (("before", False), ("after", False), ("after", True)):
            if scaled and layers == 18:
                continue
            for rate in rates:
                for warmup in (0, steps // 3):
                    for seed in range(seeds):
                        yield Run(order, scaled, layers, rate, warmup, seed)


def trained(run: Run, width: int, steps: int) -> dict[str, Any]:
    """Train one network; return the rest of its row."""
    config = configuration(run, width)
    rng = np.random.default_rng(run.seed)
    weights = drawn(config, rng, run.scaled)
    state = adamw.start(weights)
    losses, seconds, error = [], 0.0, 0.0
    for step in range(steps):
        tokens, targets = batch(rng)
        begun = time.perf_counter()
        loss, gradients, y = passes(weights, tokens, targets, config)
        rate = schedule.rate(step, peak=run.rate, warmup=run.warmup, steps=steps)
        if step == 0:
            error = off_autograd(weights, tokens, targets, config, gradients)
            begun = time.perf_counter()
        adamw.update(weights, gradients, state, lr=rate, weight_decay=0)
        seconds += time.perf_counter() - begun
        losses.append(loss)
    tokens, targets = batch(rng)
    _, gradients, y = passes(weights, tokens, targets, config)
    last = [norm_of(gradients, f"layers.{i}.") for i in (0, run.layers - 1)]
    return {
        "first": losses[0],
        "loss": float(np.mean(losses[-max(1, steps // 10) :])),
        "spread": float(np.linalg.norm(y - y.mean(1, keepdims=True)) / np.linalg.norm(y)),
        "ratio": last[0] / last[1],
        "milliseconds": 1e3 * seconds / steps,
        "largest_error": error,
    }


def configuration(run: Run, width: int) -> encoder.Config:
    first = run.order == "before"
    return encoder.Config(
        width, run.layers, heads=4, feed_forward=4 * width, norm_first=first, final_norm=first
    )


def batch(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    tokens = rng.integers(0, SYMBOLS, size=(BATCH, LENGTH))
    return tokens, np.sort(tokens, axis=1)


def drawn(config: encoder.Config, rng: np.random.Generator, scaled: bool) -> dict[str, np.ndarray]:
    """The parameters before the first step: Xavier's spread for each square of in_proj_weight and for the other
    matrices, 1 for the weights of norms, 0 for biases, and tables whose sum has variance 1. The last matrix of each
    block may be ``scaled``."""
    h = config.width
    outside = {"table": (SYMBOLS, h), "positions": (LENGTH, h), "head": (SYMBOLS, h)}
    spreads = {"table": math.sqrt(0.5), "positions": math.sqrt(0.5), "head": 1 / math.sqrt(h)}
    weights = {}
    for name, shape in (encoder.parameter_shapes(config) | outside).items():
        if len(shape) == 1:
            weights[name] = np.full(shape, float("norm" in name and name.endswith("weight")))
        else:
            ends = 2 * h if "in_proj" in name else sum(shape)
            weights[name] = spreads.get(name, math.sqrt(2 / ends)) * rng.normal(size=shape)
            if scaled and name.endswith(("out_proj.weight", "linear2.weight")):
                weights[name] /= math.sqrt(2 * config.layers)
    return weights


def passes(
    weights: dict[str, np.ndarray], tokens: np.ndarray, targets: np.ndarray, config: encoder.Config
) -> tuple[float, dict[str, np.ndarray], np.ndarray]:
    """The loss, the gradient of each parameter, and the last rows."""
    within = {name: w for name, w in weights.items() if name not in OUTSIDE}
    x, read = embedding.forward(tokens, weights["table"])
    x, added = position_embedding.forward(x, weights["positions"])
    y, saved = encoder.forward(within, x, config=config, flash=False)
    loss, scored = output_head.forward(y, weights["head"], targets, chunked=False)
    dy, of_head = output_head.backward(np.ones_like(loss), scored)
    dx, gradients = encoder.backward(dy, saved)
    dx, of_positions = position_embedding.backward(dx, added)
    gradients |= {"table": embedding.backward(dx, read), "positions": of_positions, "head": of_head}
    return float(loss), gradients, y


def off_autograd(
    weights: dict[str, np.ndarray],
    tokens: np.ndarray,
    targets: np.ndarray,
    config: encoder.Config,
    gradients: dict[str, np.ndarray],
) -> float:
    """The largest error of a gradient's element against autograd's, over the largest element of all gradients."""
    layer = torch.nn.TransformerEncoderLayer(
        config.width,
        config.heads,
        config.feed_forward,
        dropout=0.0,
        batch_first=True,
        norm_first=config.norm_first,
        dtype=torch.float64,
    )
    norm = torch.nn.LayerNorm(config.width, dtype=torch.float64) if config.final_norm else None
    theirs = torch.nn.TransformerEncoder(layer, config.layers, norm, enable_nested_tensor=False)
    outside = {name: torch.tensor(weights[name], requires_grad=True) for name in OUTSIDE}
    theirs.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items() if name not in OUTSIDE})
    y = theirs(outside["table"][torch.from_numpy(tokens)] + outside["positions"])
    scores = y @ outside["head"].T
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(targets).flatten()).backward()
    exact = {name: p.grad for name, p in (outside | dict(theirs.named_parameters())).items()}
    assert set(exact) == set(gradients)
    largest = max(float(d.abs().max()) for d in exact.values())
    return max(float(np.abs(gradients[name] - d.numpy()).max()) for name, d in exact.items()) / largest


def norm_of(gradients: dict[str, np.ndarray], prefix: str) -> float:
    """The norm of the gradients whose names begin with the prefix, as one vector."""
    return math.sqrt(sum(np.sum(d * d) for name, d in gradients.items() if name.startswith(prefix)))


if __name__ == "__main__":
    main()
