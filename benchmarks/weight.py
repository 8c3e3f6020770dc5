"""What do `make test` and `make book` cost, family by family and page by page?

    python benchmarks/weight.py [--quick]

Runs both commands, the book without stored results of cells. `README.md` quotes times of the record, and
`tests/benchmarks/test_weight_record.py` compares them. CPU time is that of all processes. The wall time is meaningful only
if the machine does nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from harness import ROOT, Recording, Settings, say, settings

QUESTION = "What do `make test` and `make book` cost?"
COLUMNS = [("command", "command", ""), ("part", "part", ""), ("cpu_seconds", "CPU time", "s")]
LEAST = 1.0  # CPU seconds from which a part has a row of its own


def main() -> None:
    chosen = settings(QUESTION)
    arguments = "ARGS=tests/contract/test_shapes.py" if chosen.quick else "ARGS="
    recording = Recording(chosen, "weight", QUESTION, COLUMNS, notes(chosen), "Each command ran once.")
    for command in ("test",) if chosen.quick else ("test", "book"):  # tests read the record
        if recording.lacks(command):
            if command == "book":
                shutil.rmtree(ROOT / "_build", ignore_errors=True)
            parts, clock, cpu = measured(["make", "--no-print-directory", command, arguments])
            rows = [
                {"command": f"make {command}", "part": part, "cpu_seconds": seconds}
                for part, seconds in parts.items()
                if seconds >= LEAST
            ]
            facts = {f"{command}: CPU minutes": cpu / 60, f"{command}: minutes": clock / 60}
            recording.add(command, rows, facts=facts)
    recording.finish()


def notes(chosen: Settings) -> list[str]:
    return [
        f"Parts of less than {LEAST:g} s have no row. A family of tests is a folder, or a file of `tests/`; a page's time is "
        "that of its cells.",
        f"{os.cpu_count()} CPUs." if chosen.device == "cpu" else "",
    ]


def measured(command: list[str]) -> tuple[dict[str, float], float, float]:
    """Run a command; return the CPU seconds of its parts, its wall time, and its CPU seconds."""
    say(" ".join(command))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weight.json"
        before, began = os.times(), time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "BACKPASS_WEIGHT": str(path)})
        clock, after = time.perf_counter() - began, os.times()
        parts = json.loads(path.read_text())["families"]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {**parts, "all else": cpu - sum(parts.values())}, clock, cpu


if __name__ == "__main__":
    main()
