"""``backpass check``: check your own backward at inputs given on the command line."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from backpass.commands.command import (
    COMPILED,
    JSON,
    Command,
    InvalidCommand,
    Option,
    switch,
    value,
)
from backpass.commands.output import coloured, say
from backpass.commands.subject import OPTIONS, TARGET, Raised, requested

_PACKAGE = Path(__file__).parents[1]
ALL = "all"
_ARGUMENTS = {  # the names that keywords of ``check`` have here
    "methods": "--method",
    "options": "--option",
    "operator": "--operator",
    "constants": "--constant",
    "zero_gradients": "--zero-gradient",
    "precision": "--precision",
    "conventions": "--convention",
    "inputs": "--input",
    "capability": "--capability",
    "configurations": "--configurations",
}
VARY = Option(
    "--vary",
    action=argparse.BooleanOptionalAction,
    help="check at other shapes, values and options too, drawn from the given inputs "
    "(default: the variations that suit every function or that SHAPES allows, if "
    "they are few)",
)
EPILOG = """\
examples:
  backpass check own.py:RMSNorm --input 4x6 --input 6 --option eps=1e-3
  backpass check own:Gather --input 4x6 --input "3:int64<4"
  backpass check own:Softmax --input 8x64:bfloat16 --operator own:reference --json

An input is one of these:
  4x6                an array of shape 4 × 6, standard normal, float64
  4x6:float32        the same, of another dtype
  "3:int64<4"        integers from 0 to 3
  "3:int64<4,-100"   the same, but the last is -100
  4x6:bool           booleans
  scalar             a number
  none               an optional input that is left out

Without --input, inputs are drawn as the object's SHAPES declares them, such as
SHAPES = "x[b, n], t[b]:int<5,-100 -> y[b]".

Verdicts: ✓ passed; ✗ FAILED; ! could not run (your code raised an exception);
○ vacuous (the inputs or the cotangent give nothing to compare); – not run (the row says
why).

The exit status is 0 if the check passed, 1 if it did not, and 2 if the command is not
valid or the module cannot be imported.
"""


def run(arguments: argparse.Namespace) -> int:
    """Run the check; return the exit status."""
    return judged(arguments, _report)


def judged(arguments: argparse.Namespace, report_of: Callable[..., Any]) -> int:
    """Print the report, or something in its place such as a survey of mutations; return
    the exit status: 0 passed, 1 did not pass, 2 is not valid."""
    fail = arguments.parser.error
    out = sys.stderr if arguments.json else sys.stdout
    try:
        with contextlib.redirect_stdout(out):
            report = report_of(arguments)
    except InvalidCommand as problem:
        fail(str(problem))
    except Exception as error:
        if isinstance(error, (TypeError, ValueError, LookupError)) and _is_ours(error):
            message = " ".join(str(error.args[0] if error.args else error).split())
            name = re.compile(r"^\w+")
            fail(name.sub(lambda word: _ARGUMENTS.get(word[0], word[0]), message))
        cause = (error.__cause__ if isinstance(error, Raised) else None) or error
        traceback.print_exception(type(cause), cause, _users(cause.__traceback__))
        return 2
    say(coloured(report.to_json() if arguments.json else str(report)))
    if not arguments.json and hasattr(report, "having"):
        if any("Tensor" in row.reason for row in report.having("could not run")):
            print("If forward expects PyTorch tensors, give --torch.", file=sys.stderr)
    return int(not report.passed)


def _report(arguments: argparse.Namespace):
    from backpass.verify import check

    op, inputs, keywords = requested(arguments)
    keywords |= {} if arguments.vary is None else {"vary": arguments.vary}
    keywords |= {"compiled": True} if arguments.compiled else {}
    keywords |= {"atomic_sums": True} if arguments.atomic_sums else {}
    keywords |= {"tf32_products": True} if arguments.tf32_products else {}
    if arguments.capability is not None:
        keywords["capability"] = arguments.capability
    if arguments.configurations is not None:
        every = arguments.configurations == ALL
        keywords["configurations"] = None if every else arguments.configurations
    keywords |= {"prove": True} if arguments.prove else {}
    keywords |= {"explain": False} if arguments.no_explain else {}
    return check(op, *inputs, raises=False, **keywords)


def _capability(text: str) -> tuple[int, int]:
    """Return ``X.Y`` as two integers. Raises ValueError."""
    major, minor = text.split(".")
    return int(major), int(minor)


def _configurations(text: str) -> int | str:
    """Return a number, or "all". Raises ValueError."""
    return text if text == ALL else int(text)


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_ours(error: BaseException) -> bool:
    """Whether this package itself raised the exception, rather than code it called."""
    frames = list(_frames(error.__traceback__))
    return _PACKAGE in Path(frames[-1].tb_frame.f_code.co_filename).parents


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first line outside this package on, or None."""
    for frame in _frames(trace):
        name = frame.tb_frame.f_code.co_filename
        if (
            not name.startswith("<frozen importlib")
            and _PACKAGE not in Path(name).parents
        ):
            if "importlib" not in Path(name).parts:
                return frame
    return None


COMMAND = Command(
    "check",
    help="check a backward of your own",
    description="Check an object with forward and backward, or a\n"
    "torch.autograd.Function, by every method that applies.",
    options=(
        TARGET,
        *OPTIONS,
        VARY,
        COMPILED.but(
            help="also execute its Triton kernels as compiled, without a GPU; draws tensors"
        ),
        switch(
            "--atomic-sums",
            help="with --compiled, accept sums by atomic_add in any order of the programs",
        ),
        switch(
            "--tf32-products",
            help="with --compiled, accept products of float32 that round to TF32",
        ),
        value(
            "--capability",
            "X.Y",
            "with --compiled, compile for this compute capability: 8.0 (the default), "
            "8.9, or 9.0",
            type=_capability,
        ),
        value(
            "--configurations",
            "N",
            "with --compiled, check this number of an autotuned kernel's configurations, "
            "or all of them (default 1)",
            type=_configurations,
        ),
        switch(
            "--prove",
            help="with --compiled, let SentryWard prove that no schedule has a race",
        ),
        switch("--no-explain", help="do not search for the cause of a wrong gradient"),
        JSON.but(help="print the report as JSON, and nothing else, on standard output"),
    ),
    run=run,
    epilog=EPILOG,
)
