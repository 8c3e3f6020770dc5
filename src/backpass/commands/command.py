"""What a command of ``backpass`` is: its texts, its options, and what runs it.

An option that several commands have is declared here once; the others are declared by
the module of their command.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn


class InvalidCommand(Exception):
    """Raised for a command that is not valid.

    The message is one line: which argument, what was expected, and what was given.
    """


class Option:
    """An option or a positional argument: its flags, its help, argparse's keywords."""

    def __init__(self, *flags: str, **keywords: Any):
        self.flags, self.keywords = flags, keywords

    def but(self, **keywords: Any) -> Option:
        """Return the option with some keywords changed, such as ``help``."""
        return Option(*self.flags, **{**self.keywords, **keywords})

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a parser."""
        parser.add_argument(*self.flags, **self.keywords)


def switch(*flags: str, help: str) -> Option:
    """Return an option without a value."""
    return Option(*flags, help=help, action="store_true")


def value(
    flag: str, metavar: str, help: str, default: Any = None, **keywords: Any
) -> Option:
    """Return an option whose value is a text, or of the ``type`` in the keywords. The
    help ends with the default, if there is one."""
    help += "" if default is None else f" (default {default})"
    return Option(flag, metavar=metavar, help=help, default=default, **keywords)


def number(flag: str, help: str, default: int | None = None) -> Option:
    """Return an option whose value is an integer N."""
    return value(flag, "N", help, default, type=int)


SEED = value("--seed", "SEED", "seed of inputs, cotangents and directions", 0, type=int)
DEVICE = Option("--device", help="the device of PyTorch tensors: cpu, cuda, cuda:1")
COMPILED = switch(
    "--compiled",
    help="execute the kernels as compiled, without a GPU, instead of interpreting them",
)
JSON = switch("--json", help="print JSON, and nothing else, on standard output")


@dataclass(frozen=True)
class Command:
    """A command: its name, its texts, its options, and the function that runs it.

    The function returns the exit status. Of options in a tuple, one can be given.
    """

    name: str
    help: str
    description: str
    options: Sequence[Option | tuple[Option, ...]]
    run: Callable[[argparse.Namespace], int]
    epilog: str

    def add_to(self, commands: argparse._SubParsersAction) -> None:
        """Add the command's parser to those of all commands."""
        parser = commands.add_parser(
            self.name,
            help=self.help,
            description=self.description,
            epilog=self.epilog,
            # A text with line breaks keeps them.
            formatter_class=argparse.RawDescriptionHelpFormatter
            if "\n" in self.epilog
            else argparse.HelpFormatter,
        )
        for option in self.options:
            if isinstance(option, Option):
                option.add_to(parser)
            else:
                group = parser.add_mutually_exclusive_group()
                for each in option:
                    each.add_to(group)
        parser.set_defaults(run=self.run, parser=parser)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line for each fault, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with 2."""
        between = "\n" if "\n" in message else " "
        self.exit(2, f"{self.prog}: {message}{between}(see {self.prog} --help)\n")
