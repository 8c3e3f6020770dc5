"""What ``train`` and ``sample`` share: they read saved states, and say which argument
does not fit."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

from backpass.commands.command import InvalidCommand
from backpass.training import states
from backpass.training.run import State


def newest(argument: str, folder: str, command: str) -> State:
    """Return the newest state that is whole, and say which newer ones are not. Raises
    InvalidCommand, which names the argument, if there is none."""
    refused: list[states.Unusable] = []
    try:
        path, state = states.newest(folder, refused.append)
    except (FileNotFoundError, states.Unusable) as error:
        raise InvalidCommand(f"{argument} {_in_one_line(error)}") from None
    for reason in refused:
        print(f"{command}: rejected {reason}", file=sys.stderr)
    if refused:
        print(f"{command}: using {path}", file=sys.stderr)
    return state


@contextlib.contextmanager
def errors_of_arguments(arguments: argparse.Namespace) -> Iterator[None]:
    """Exit with 2 and one line for an argument that does not fit."""
    try:
        yield
    except InvalidCommand as problem:
        arguments.parser.error(str(problem))
    except (ImportError, OSError, TypeError, ValueError) as error:
        message = _in_one_line(error)
        name, colon, rest = message.partition(": ")
        known = colon and name in vars(arguments)
        arguments.parser.error(f"{argument(name)}: {rest}" if known else message)


def _in_one_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return "; ".join(lines).replace(":; ", ": ")


def argument(name: str) -> str:
    """Return the name that an option of the package has on the command line."""
    return "TEXT" if name == "text" else f"--{name.replace('_', '-')}"
