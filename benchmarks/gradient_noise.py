"""How noisy is the gradient of one window of text, and how much does a step gain from more windows?

    python benchmarks/gradient_noise.py [--quick]

The page "Clipping, and what a gradient norm tells" trains the network, and compares a few of its own numbers with
the record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from experiment import digits, of_page
from harness import say, settings, write

QUESTION = "How noisy is the gradient of one window of text, and how much does a step gain from more windows?"
COLUMNS = [
    ("step", "steps of training", ""),
    ("batch", "windows of a batch", ""),
    ("squares", "squared norm of each window's gradient", ""),
    ("along", "its inner product with the sum over all windows", ""),
    ("of_eight", "squared norm of the mean of each eight gradients", ""),
    ("low", "binary logarithm of the lowest learning rate", ""),
    ("decrease", "decrease of the loss in one step, for each learning rate and batch", ""),
]
BATCHES = ((1, 20, -6), (4, 20, -6), (16, 12, -5), (64, 3, -5))  # windows, batches, lowest rate


def main() -> None:
    chosen = settings(QUESTION)
    count = chosen.pick(192, quick=2)
    page = of_page("numerics/clipping")
    rows: list[dict[str, Any]] = []
    for step, parameters in page["snapshots"].items():
        gradients = page["single_windows"](parameters, count)
        squares, along = np.sum(gradients**2, axis=1), gradients @ gradients.sum(axis=0)
        eights = gradients.reshape(-1, min(8, count), gradients.shape[1]).mean(axis=1)
        of_eight = np.sum(eights**2, axis=1)
        rows.append(row(step, 1, squares=digits(squares), along=digits(along), of_eight=digits(of_eight)))
        say(f"step {step}: mean squared norm {np.mean(squares):.3f}")
        if step == 30:
            windows = gradients
    for size, batches, low in BATCHES[: chosen.pick(None, quick=1)]:
        batches = min(batches, count // size)
        draws = windows[: size * batches].reshape(batches, size, -1).mean(axis=1)
        decrease = [digits(at_rate) for at_rate in page["decreases"](draws, low)]
        rows.append(row(30, size, low=low, decrease=decrease))
        say(f"{size} windows: {np.max(np.mean(decrease, axis=1)):.4f}")
    write(chosen, "gradient_noise", QUESTION, COLUMNS, rows, method="One run of 200 steps, in float32.")


def row(step: int, batch: int, **known: Any) -> dict[str, Any]:
    return dict.fromkeys((key for key, *_ in COLUMNS), None) | {"step": step, "batch": batch} | known


if __name__ == "__main__":
    main()
