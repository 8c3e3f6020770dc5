"""The command ``backpass``.

``verify`` checks the book's backwards, ``check`` checks yours, ``mutate`` shows what
the checks do not notice, ``bench`` times the operations, ``train`` trains a small model
without autograd, ``sample`` lets it write, ``cost`` itemises a network's FLOPs,
``parallel`` runs a scheme of yours on several ranks, and ``derive`` judges displayed
mathematics of yours line by line. ``claims``, from the package backpass-ledger, looks
a sentence up in the ledger of claims.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from backpass import __version__
from backpass.commands import (
    bench,
    check,
    cost,
    derive,
    mutate,
    parallel,
    sample,
    train,
    verify,
)
from backpass.commands.command import Command, Parser
from backpass.contract.stems import no_such
from backpass.text import terminal

_MODULES = verify, check, mutate, bench, train, sample, cost, parallel, derive
COMMANDS = {module.COMMAND.name: module.COMMAND for module in _MODULES}
# Commands of other distributions, each with its package and its distribution. They are
# loaded when they are called.
OTHERS = {"claims": ("backpass_ledger", "backpass-ledger")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 says that everything passed, 1 that something failed, and 2 that the command is
    not valid.
    """
    terminal.make_readable()
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser()
    if argv and argv[0] in OTHERS:
        package, distribution = OTHERS[argv[0]]
        if not find_spec(package):
            parser.error(
                f"{argv[0]}: this command is in the package {distribution}; install it "
                f"from a checkout: pip install ./src/{package}"
            )
        parser = _parser(import_module(f"{package}.command").COMMAND)
    elif argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
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


def _parser(*more: Command) -> argparse.ArgumentParser:
    parser = Parser(
        prog="backpass",
        description="Every gradient of a transformer, derived, executed and counted.",
    )
    parser.add_argument(
        "--version", action="version", version=f"backpass {__version__}"
    )
    parser.set_defaults(run=None)
    names = " | ".join([*COMMANDS, *OTHERS])
    commands = parser.add_subparsers(title="commands", metavar=names)
    for command in (*COMMANDS.values(), *more):
        command.add_to(commands)
    return parser
