"""``backpass bench``: time the operations and kernels, and write records."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from backpass import ops
from backpass.commands.command import DEVICE, Command, switch, value
from backpass.commands.output import coloured, say
from backpass.contract.stems import no_such

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OPERATIONS = "operations"  # the benchmark that times single operations, by their names


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmarks; return the exit status."""
    there = benchmarks()
    if not there:
        print(
            f"backpass bench: there is no folder {BENCHMARKS}. Benchmarks are not "
            "installed with the package: run the command in a checkout of the project.",
            file=sys.stderr,
        )
        return 2
    stems = ops.STEMS if OPERATIONS in there else ()
    names = dict.fromkeys([*there, *stems])
    for name in arguments.names:
        if name not in there and name not in stems:
            arguments.parser.error(no_such("benchmark or operation", name, names))
    of_operations = [name for name in arguments.names if name not in there]
    runs: dict[str, list[str]] = {name: [] for name in arguments.names if name in there}
    if of_operations:
        runs[OPERATIONS] = of_operations
    options = [f"--device={arguments.device}"] if arguments.device else []
    options += ["--quick"] if arguments.quick else []
    failed = []
    for name, only in (runs or {name: [] for name in there}).items():
        say(" ".join([name, *only]))
        command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *only, *options]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        say(f"{coloured('✗')} failed: {', '.join(failed)}")
    return int(bool(failed))


def benchmarks() -> list[str]:
    """Return the names of the benchmarks: the scripts that have a ``main``."""
    return sorted(
        path.stem
        for path in BENCHMARKS.glob("*.py")
        if "\ndef main(" in path.read_text(encoding="utf-8")
    )


COMMAND = Command(
    "bench",
    help="time the operations and kernels, and write records",
    description="Run the scripts of the folder benchmarks/. Each answers one question "
    "and writes a record to benchmarks/results. For the name of an operation, only "
    "its times are printed; they are not recorded.",
    options=(
        value(
            "names",
            "name",
            "the benchmarks or operations to run (default: all benchmarks)",
            nargs="*",
        ),
        DEVICE.but(help="where to run: cpu, cuda (default: cuda if there is one)"),
        switch(
            "--quick",
            help="use small shapes and few rounds, to check that it runs; write no record",
        ),
    ),
    run=run,
    epilog=f"benchmarks: {', '.join(benchmarks()) or 'none here'}",
)
