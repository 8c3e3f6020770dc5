"""The command ``backpass``.

``verify`` checks the book's backwards, ``check`` checks yours, ``mutate`` shows what
the checks do not notice, ``bench`` times the operations, ``train`` trains a small model
without autograd, ``sample`` lets it write, ``cost`` itemises a network's FLOPs,
``parallel`` runs a scheme of yours on several ranks, and ``derive`` judges displayed
mathematics of yours line by line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from backpass import __version__, ops
from backpass.commands import check as check_command
from backpass.commands import cost as cost_command
from backpass.commands import derive as derive_command
from backpass.commands import mutate as mutate_command
from backpass.commands import parallel as parallel_command
from backpass.commands import train as train_command
from backpass.commands.check import DTYPES
from backpass.commands.devices import unusable
from backpass.contract.stems import no_such
from backpass.text import terminal

if TYPE_CHECKING:
    from backpass.verify import Overview, Report

COMMANDS = (
    "verify", "check", "mutate", "bench", "train", "sample", "cost", "parallel", "derive",
)  # fmt: skip
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OPERATIONS = "operations"  # the benchmark that times single operations, by their names

LEGEND = "✓ largest error, or exact   ✗ FAILED   ! code raised   ○ vacuous   – not run"
_COLOURS = {
    "✓": "32",
    "✗": "31;1",
    "○": "33",
    "! could not run": "31",
    "! raised": "31",
}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line for each fault, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with 2."""
        between = "\n" if "\n" in message else " "
        self.exit(2, f"{self.prog}: {message}{between}(see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 says that everything passed, 1 that something failed, and 2 that the command is
    not valid.
    """
    terminal.make_readable()
    parser = _parser()
    argv = sys.argv[1:] if argv is None else argv
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        parser.error(no_such("command", argv[0], COMMANDS))
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        getattr(arguments, "parser", parser).error(
            f"there is no argument {' '.join(unknown)}"
        )
    if arguments.run is None:
        parser.print_help()
        return 2
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="backpass",
        description="Every gradient of a transformer, derived, executed and counted.",
    )
    parser.add_argument(
        "--version", action="version", version=f"backpass {__version__}"
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar=" | ".join(COMMANDS))

    verify = commands.add_parser(
        "verify",
        help="check every backward by every independent method",
        description="Check the backwards by finite differences, complex steps, symbols, "
        "PyTorch's autograd and operators, and kernels (in Triton's interpreter if there "
        "is no CUDA device). Inputs of several shapes are drawn: NumPy arrays in float64, "
        "or PyTorch tensors if a device or a dtype is given. Exits with 1 when a check "
        "fails.",
        epilog=f"operations: {', '.join(ops.STEMS)}",
    )
    verify.add_argument(
        "operations",
        nargs="*",
        metavar="operation",
        help="the operations to check (default: all)",
    )
    verify.add_argument(
        "--device", help="the device of PyTorch tensors: cpu, cuda, cuda:1"
    )
    verify.add_argument(
        "--dtype",
        choices=DTYPES,
        metavar="DTYPE",
        help=f"the inputs' dtype: {', '.join(DTYPES)}",
    )
    verify.add_argument(
        "--compiled",
        action="store_true",
        help="execute the kernels as compiled, without a GPU, instead of interpreting them",
    )
    verify.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of inputs, cotangents and directions (default 0)",
    )
    verify.add_argument(
        "--full",
        action="store_true",
        help="print every table, not only those with a failure",
    )
    verify.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print failures and the last line only",
    )
    verify.add_argument(
        "-x",
        "--stop",
        action="store_true",
        help="stop at the first operation that fails",
    )
    verify.add_argument(
        "--list",
        action="store_true",
        help="print the operations' names and check nothing",
    )
    verify.add_argument(
        "--json",
        action="store_true",
        help="print JSON, and nothing else, on standard output",
    )
    verify.set_defaults(run=_verify, parser=verify)

    check = commands.add_parser(
        "check",
        help="check a backward of your own",
        description="Check an object with forward and backward, or a\n"
        "torch.autograd.Function, by every method that applies.",
    )
    check_command.add_arguments(check)
    check.set_defaults(
        run=lambda arguments: check_command.run(
            arguments, lambda text: _say(_coloured(text))
        ),
        parser=check,
    )

    mutate = commands.add_parser(
        "mutate",
        help="show which changes of a backward no check would notice",
        description="Change a backward in one place at a time (a sign, a factor, an\n"
        "axis, a sum, an operand), and check each changed version. A change that\n"
        "survives shows what the inputs do not reach.",
    )
    mutate_command.add_arguments(mutate)
    mutate.set_defaults(
        run=lambda arguments: check_command.run(
            arguments, lambda text: _say(_coloured(text)), mutate_command.survey
        ),
        parser=mutate,
    )

    bench = commands.add_parser(
        "bench",
        help="time the operations and kernels, and write records",
        description="Run the scripts of the folder benchmarks/. Each answers one question "
        "and writes a record to benchmarks/results. For the name of an operation, only "
        "its times are printed, and no record is written.",
        epilog=f"benchmarks: {', '.join(_benchmarks()) or 'none here'}",
    )
    bench.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help="the benchmarks or operations to run (default: all benchmarks)",
    )
    bench.add_argument(
        "--device", help="where to run: cpu, cuda (default: cuda if there is one)"
    )
    bench.add_argument(
        "--quick",
        action="store_true",
        help="small shapes and few rounds, to see that it runs; no record",
    )
    bench.set_defaults(run=_bench, parser=bench)

    train = commands.add_parser(
        "train",
        help="train a small model on a text, without autograd",
        description="Train a small GPT-2 or Llama on the bytes of a text. The gradients\n"
        "are the book's own, and so are clipping and AdamW.",
    )
    train_command.add_train_arguments(train)
    train.set_defaults(
        run=lambda arguments: train_command.train(arguments, _say), parser=train
    )

    sample = commands.add_parser(
        "sample",
        help="generate text with a trained model",
        description="Print text generated by a model that backpass train saved.",
    )
    train_command.add_sample_arguments(sample)
    sample.set_defaults(run=train_command.sample, parser=sample)

    cost = commands.add_parser(
        "cost",
        help="itemise the FLOPs of a network's forward and backward",
        description="Print what a training step of a network costs, by operation.",
    )
    cost_command.add_arguments(cost)
    cost.set_defaults(
        run=lambda arguments: cost_command.run(arguments, _say), parser=cost
    )

    parallel = commands.add_parser(
        "parallel",
        help="run a scheme of your own on several ranks",
        description="Run a function on several ranks, as processes that exchange arrays\n"
        "by PyTorch's collectives, or as threads.",
    )
    parallel_command.add_arguments(parallel)
    parallel.set_defaults(
        run=lambda arguments: parallel_command.run(arguments, _say), parser=parallel
    )

    derive = commands.add_parser(
        "derive",
        help="judge displayed mathematics of your own, line by line",
        description="Compare each displayed line of a text with the last correct line of\n"
        "its chain, exactly and at several sizes.",
    )
    derive_command.add_arguments(derive)
    derive.set_defaults(
        run=lambda arguments: derive_command.run(
            arguments, lambda text: _say(_coloured(text))
        ),
        parser=derive,
    )
    return parser


# backpass verify


def _verify(arguments: argparse.Namespace) -> int:
    for name in arguments.operations:
        if name not in ops.STEMS:
            arguments.parser.error(no_such("operation", name, ops.STEMS))
    if arguments.list:
        _say(*(arguments.operations or ops.STEMS))
        return 0
    if arguments.seed < 0:
        arguments.parser.error(f"--seed: expected 0 or more; got {arguments.seed}")
    if reason := unusable(arguments.device, arguments.dtype):
        arguments.parser.error(reason)
    from backpass import kernels
    from backpass.verify import Overview
    from backpass.verify.drawing import missing_options

    for stem in arguments.operations or ops.STEMS:
        if reason := missing_options(stem):
            arguments.parser.error(reason)
    # Without PyTorch no kernel runs, and the kernel's row says so. A process that
    # interprets kernels compiles none.
    with contextlib.suppress(ImportError):
        if not arguments.compiled:
            kernels.interpret_without_cuda()
    started = time.perf_counter()
    reports = {}
    for stem in dict.fromkeys(arguments.operations or ops.STEMS):
        reports[stem] = tuple(_reports(stem, arguments))
        if arguments.stop and not all(report.passed for report in reports[stem]):
            break
    overview = Overview(reports)
    seconds = time.perf_counter() - started

    if arguments.json:
        data = {"passed": overview.passed, "seed": arguments.seed}
        data["reports"] = [
            report.to_dict() for of_stem in reports.values() for report in of_stem
        ]
        _say(json.dumps(data, indent=2, allow_nan=False))
        return int(not overview.passed)
    if not arguments.quiet:
        _say("", _coloured(repr(overview)), "", *_folded(LEGEND), "")
        _say(*_left_out(overview))
    failed = [
        stem for stem in reports if not all(report.passed for report in reports[stem])
    ]
    if failed:
        _say(*_folded(f"✗ failed: {', '.join(failed)}"))
        return 1
    rows = sum(
        len(report.having("passed"))
        for of_stem in reports.values()
        for report in of_stem
    )
    what = "operation" if len(reports) == 1 else "operations"
    _say(*_folded(f"✓ passed: {len(reports)} {what}, {rows} rows, in {seconds:.1f} s"))
    return 0


def _reports(stem: str, arguments: argparse.Namespace) -> Iterator[Report]:
    """Check an operation at each of its drawn inputs, and yield the reports.

    Unless quiet, print a line of progress for each.
    """
    import numpy as np

    from backpass.verify import cases
    from backpass.verify.all_operations import check_each

    quiet = arguments.quiet or arguments.json
    if not quiet:
        _say(stem)
    drawn = cases(stem, np.random.default_rng(arguments.seed))
    placed = (
        (_placed(inputs, arguments.device, arguments.dtype), options)
        for inputs, options in drawn
    )
    for report in check_each(stem, placed, arguments.seed, compiled=arguments.compiled):
        mark = "✓" if report.passed else "✗"
        if not quiet:
            _say(*_folded(f"  {mark} {report.inputs}: {report.summary}"))
        if not arguments.json and (arguments.full or not report.passed):
            _say(
                _coloured(
                    textwrap.indent(report.text(max(terminal.width() - 4, 20)), "    ")
                )
            )
        yield report


def _placed(
    inputs: Iterable[object], device: str | None, dtype: str | None
) -> list[object]:
    """Return the drawn inputs, as PyTorch tensors if a device or a dtype was given."""
    if device is None and dtype is None:
        return list(inputs)
    import torch

    from backpass.verify.convert import to_torch

    return [
        to_torch(value, device or "cpu", getattr(torch, dtype or "float64"))
        for value in inputs
    ]


def _left_out(overview: Overview) -> list[str]:
    """Return each reason for which a method was not run, once, with its operations."""
    stems_of: dict[tuple[str, str], dict[str, None]] = {}
    for stem, reports in overview.reports.items():
        for row in (row for report in reports for row in report.having("not run")):
            stems_of.setdefault((row.method, row.reason), {})[stem] = None
    return [
        line
        for (method, why), stems in stems_of.items()
        for line in _folded(f"– {method}, {', '.join(stems)}: {why}")
    ]


# backpass bench


def _bench(arguments: argparse.Namespace) -> int:
    there = _benchmarks()
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
    failed = []
    options += ["--quick"] if arguments.quick else []
    for name, only in (runs or {name: [] for name in there}).items():
        _say(" ".join([name, *only]))
        command: list[str | Path] = [
            sys.executable,
            BENCHMARKS / f"{name}.py",
            *only,
            *options,
        ]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        _say(f"{_coloured('✗')} failed: {', '.join(failed)}")
    return int(bool(failed))


def _benchmarks() -> list[str]:
    """Return the names of the benchmarks: the scripts that have a ``main``."""
    return sorted(
        path.stem
        for path in BENCHMARKS.glob("*.py")
        if "\ndef main(" in path.read_text(encoding="utf-8")
    )


# Both


def _folded(text: str) -> list[str]:
    return [_coloured(line) for line in terminal.folded(text, terminal.width())]


def _say(*lines: str) -> None:
    for line in lines:
        # One write: the lines of ranks that share an output do not mix.
        print(f"{line}\n", end="", flush=True)


def _coloured(text: str) -> str:
    """Colour the marks on a terminal, unless NO_COLOR is set.

    The colours add no information: the marks say the same.
    """
    if (
        not sys.stdout.isatty()
        or os.environ.get("NO_COLOR")
        or os.environ.get("TERM") == "dumb"
    ):
        return text
    for mark, colour in _COLOURS.items():
        text = text.replace(mark, f"\033[{colour}m{mark}\033[0m")
    return text
