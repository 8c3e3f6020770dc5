"""How does a small GPT-2 train with parameters, gradients, or losses in half precision?

    python benchmarks/precision_runs.py [--quick]

The page "Mixed precision" defines the runs, and compares the first steps of each with the record.
"""

from __future__ import annotations

from experiment import digits, of_page
from harness import say, settings, write

QUESTION = "How does a small GPT-2 train with parameters, gradients, or losses in half precision?"
COLUMNS = [
    ("part", "part", ""),
    ("run", "run", ""),
    ("loss", "loss of each step", ""),
    ("changed", "share of the parameters' elements that changed", ""),
    ("scale", "binary logarithm of the loss scale before each step", ""),
]


def main() -> None:
    chosen = settings(QUESTION)
    page = of_page("numerics/precision")
    start, rows = page["start"], []
    for run, made in page["CONTINUED"].items():
        losses, after = made(chosen.pick(page["MORE"], quick=1))
        changed = sum(int((after[name] != w).sum()) for name, w in start.items())
        share = changed / sum(w.numel() for w in start.values())
        rows.append(
            {"part": "continued", "run": run, "loss": digits(losses), "changed": share, "scale": None}
        )
        say(f"{run}: loss {losses[-1]:.3f}, changed {share:.0%}")
    for run, made in page["HALF"].items():
        losses, scales = made(chosen.pick(page["HALVES"], quick=1))
        rows.append(
            {"part": "half", "run": run, "loss": digits(losses), "changed": None, "scale": digits(scales)}
        )
        say(f"{run}: loss {losses[-1]:.3f}")
    write(chosen, "precision_runs", QUESTION, COLUMNS, rows, method="One run a row.")


if __name__ == "__main__":
    main()
