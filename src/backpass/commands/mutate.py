"""``backpass mutate``: show the single changes of a backward that no check notices."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path

from backpass import ops
from backpass.commands.check import VARY, judged
from backpass.commands.command import JSON, Command, InvalidCommand, value
from backpass.commands.subject import OPTIONS, TARGET, requested

EPILOG = """\
examples:
  backpass mutate own.py:RMSNorm --input 4x6 --input 6
  backpass mutate swiglu --equivalent tests/equivalent_mutants/swiglu.toml

The target is an operation of the book, at the inputs that backpass verify
draws, or your own object, at inputs given as for backpass check, with each value
that it declares for an option. A change that survives either has no effect at
these inputs or computes the same result.
Changes that compute the same may be listed in a TOML file, each under
[[mutant]] with its function, line and change as --json prints them. Exits with
0 if every other change was noticed, 1 if one survived or the unchanged backward
does not pass, and 2 if the command is not valid.
"""


def run(arguments: argparse.Namespace) -> int:
    """Print the survey; return the exit status."""
    return judged(arguments, survey)


def survey(arguments: argparse.Namespace):
    """Mutate the backward that the arguments name.

    Returns the survey, or the report of the check that the unchanged backward did not
    pass.
    """
    from backpass.verify import VerificationError, mutate
    from backpass.verify.drawing import calls
    from backpass.verify.survivors import METHODS_BY_SPEED, by_check

    equivalent = _listed(arguments.equivalent) if arguments.equivalent else []
    if arguments.target in ops.STEMS and not (arguments.input or arguments.inputs):
        op, drawn, keywords = _of_the_book(arguments)
    else:
        op, inputs, keywords = requested(arguments)
        drawn = calls(op, inputs, keywords.pop("options"))
    methods = keywords.pop("methods", METHODS_BY_SPEED)
    keywords |= {"vary": bool(arguments.vary)}
    try:
        return mutate(op, by_check(drawn, methods, **keywords), equivalent=equivalent)
    except VerificationError as error:
        return error.report  # the unchanged backward does not pass


def _of_the_book(arguments: argparse.Namespace):
    import numpy as np

    from backpass.verify import cases

    drawn = list(cases(arguments.target, np.random.default_rng(arguments.seed)))
    methods = {"methods": arguments.method} if arguments.method else {}
    return ops.load(arguments.target), drawn, {"seed": arguments.seed, **methods}


def _listed(path: str) -> list[Mapping[str, str]]:
    try:
        listed = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("mutant", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidCommand(f"--equivalent {path}: {error}") from None
    for entry in listed:
        if missing := {"function", "line", "change"} - entry.keys():
            raise InvalidCommand(
                f"--equivalent {path}: a [[mutant]] has no {', '.join(sorted(missing))}"
            )
    return listed


COMMAND = Command(
    "mutate",
    help="show which changes of a backward no check would notice",
    description="Change a backward in one place at a time (a sign, a factor, an\n"
    "axis, a sum, an operand), and check each changed version. A change that\n"
    "survives shows what the inputs do not reach.",
    options=(
        TARGET.but(
            help="an operation of the book, or a module or a file.py, and the object "
            "in it"
        ),
        *OPTIONS,
        VARY.but(
            help="check at other shapes, values and options too, drawn from these "
            "(default: --no-vary)"
        ),
        value("--equivalent", "FILE", "a TOML file of changes that compute the same"),
        JSON.but(help="print the survey as JSON, and nothing else, on standard output"),
    ),
    run=run,
    epilog=EPILOG,
)
