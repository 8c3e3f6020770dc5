"""``backpass verify``: check every backward of the book by every method."""

from __future__ import annotations

import argparse
import contextlib
import json
import textwrap
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from backpass import ops
from backpass.commands.command import (
    COMPILED,
    DEVICE,
    JSON,
    SEED,
    Command,
    switch,
    value,
)
from backpass.commands.devices import DTYPES, unusable
from backpass.commands.output import coloured, folded, say
from backpass.contract.stems import no_such
from backpass.text import terminal

if TYPE_CHECKING:
    from backpass.verify import Overview, Report

LEGEND = "✓ largest error, or exact   ✗ FAILED   ! code raised   ○ vacuous   – not run"


def run(arguments: argparse.Namespace) -> int:
    """Run the checks; return the exit status."""
    for name in arguments.operations:
        if name not in ops.STEMS:
            arguments.parser.error(no_such("operation", name, ops.STEMS))
    if arguments.list:
        say(*(arguments.operations or ops.STEMS))
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
    each = [report for of_stem in reports.values() for report in of_stem]

    if arguments.json:
        data = {"passed": overview.passed, "seed": arguments.seed}
        data["reports"] = [report.to_dict() for report in each]
        say(json.dumps(data, indent=2, allow_nan=False))
        return int(not overview.passed)
    if not arguments.quiet:
        say("", coloured(repr(overview)), "", *folded(LEGEND), "")
        say(*_left_out(overview))
    failed = [stem for stem in reports if not all(r.passed for r in reports[stem])]
    if failed:
        say(*folded(f"✗ failed: {', '.join(failed)}"))
        return 1
    rows = sum(len(report.having("passed")) for report in each)
    what = "operation" if len(reports) == 1 else "operations"
    say(*folded(f"✓ passed: {len(reports)} {what}, {rows} rows, in {seconds:.1f} s"))
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
        say(stem)
    drawn = cases(stem, np.random.default_rng(arguments.seed))
    kind = arguments.device, arguments.dtype
    placed = ((_placed(inputs, *kind), options) for inputs, options in drawn)
    for report in check_each(stem, placed, arguments.seed, compiled=arguments.compiled):
        mark = "✓" if report.passed else "✗"
        if not quiet:
            say(*folded(f"  {mark} {report.inputs}: {report.summary}"))
        if not arguments.json and (arguments.full or not report.passed):
            shown = report.text(max(terminal.width() - 4, 20))
            say(coloured(textwrap.indent(shown, "    ")))
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
        for line in folded(f"– {method}, {', '.join(stems)}: {why}")
    ]


COMMAND = Command(
    "verify",
    help="check every backward by every independent method",
    description="Check the backwards by finite differences, complex steps, symbols, "
    "PyTorch's autograd and operators, and kernels (in Triton's interpreter if there "
    "is no CUDA device). Inputs of several shapes are drawn: NumPy arrays in float64, "
    "or PyTorch tensors if a device or a dtype is given. Exits with 1 if a check "
    "fails.",
    options=(
        value(
            "operations",
            "operation",
            "the operations to check (default: all)",
            nargs="*",
        ),
        DEVICE,
        value(
            "--dtype",
            "DTYPE",
            f"the inputs' dtype: {', '.join(DTYPES)}",
            choices=DTYPES,
        ),
        COMPILED,
        SEED,
        switch("--full", help="print every table, not only those with a failure"),
        switch("-q", "--quiet", help="print failures and the last line only"),
        switch("-x", "--stop", help="stop at the first operation that fails"),
        switch("--list", help="print the operations' names and check nothing"),
        JSON,
    ),
    run=run,
    epilog=f"operations: {', '.join(ops.STEMS)}",
)
