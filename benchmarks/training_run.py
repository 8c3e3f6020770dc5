"""How does the loss of a small GPT-2 and of a small Llama fall when they are trained on the book's own text?

    python benchmarks/training_run.py [--quick]

Each run is the command ``backpass train``, whose lines the record holds. The text that the model writes at the end is
among the record's notes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import ROOT, say, settings, write

QUESTION = "How does the loss of a small GPT-2 and of a small Llama fall, trained on the book's own text?"
COLUMNS = [
    ("model", "model", ""),
    ("step", "step", ""),
    ("loss", "loss of the batch", ""),
    ("held_out", "loss of the held-out text", ""),
    ("rate", "learning rate", ""),
    ("norm", "norm of the gradients", ""),
    ("milliseconds", "a step", "ms"),
]
FULL = {
    "--steps": 1000,
    "--batch": 8,
    "--length": 128,
    "--layers": 4,
    "--width": 128,
    "--heads": 4,
    "--lr": 2e-3,
}
QUICK = {"--steps": 4, "--batch": 2, "--length": 16, "--layers": 1, "--width": 8, "--heads": 2, "--lr": 2e-3}
PROMPT = "The gradient of "
LINE = re.compile(r"step +([\d,]+) +loss (\S+) +held out (\S+) +rate (\S+) +norm (\S+) +([\d,]+) tokens/s")


def main() -> None:
    chosen = settings(QUESTION)
    options = chosen.pick(FULL, quick=QUICK)
    rows, notes = [], []
    for model in ("gpt2", "llama"):
        of_model, said = run(model, options, every=chosen.pick(50, quick=2))
        rows += of_model
        notes += said
    method = (
        "One run of each command on one thread, beside other work; so the times of the steps are rough. "
        "Both read the chapters of the commit that is named."
    )
    write(chosen, "training_run", QUESTION, COLUMNS, rows, notes=notes, method=method)


def run(model: str, options: dict[str, Any], every: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Train one model in a folder that is deleted; return its rows, and its command, description and sample."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / model
        given = [f"{name} {value:g}" for name, value in {**options, "--every": every}.items()]
        words = f"train chapters --model {model} {' '.join(given)} --device numpy --out {model}".split()
        printed = command([*words[:-1], str(out)])
        sample = command(["sample", str(out), "--prompt", PROMPT, "--tokens", "300"])
    rows = [row(model, match, options) for match in LINE.finditer(printed)]
    description = printed.splitlines()[0]
    notes = [
        f"backpass {' '.join(words)}: {description}.",
        f"What the {model} writes at the end: {sample.rstrip()}",
    ]
    return rows, notes


def row(model: str, match: re.Match[str], options: dict[str, Any]) -> dict[str, Any]:
    step, loss, held_out, rate, norm, speed = (float(group.replace(",", "")) for group in match.groups())
    milliseconds = 1e3 * options["--batch"] * options["--length"] / speed
    values = (model, int(step), loss, held_out, rate, norm, milliseconds)
    return dict(zip((key for key, *_ in COLUMNS), values, strict=True))


def command(words: list[str]) -> str:
    """Run the command in the checkout, print what it prints, and return that."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUTF8": "1"}
    printed = []
    with subprocess.Popen(
        [sys.executable, "-m", "backpass", *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            say(line.rstrip("\n"))
            printed.append(line)
    if process.returncode:
        raise SystemExit(f"backpass {' '.join(words)}: exited with {process.returncode}")
    return "".join(printed)


if __name__ == "__main__":
    main()
