"""``backpass parallel``: run a scheme of your own on several ranks."""

from __future__ import annotations

import argparse
import math
import os
import sys
import traceback
from typing import Any

from backpass.commands.command import Command, InvalidCommand, number, switch, value
from backpass.commands.output import say
from backpass.commands.subject import TARGET, load
from backpass.parallel import RankError, joined, on_processes, on_threads
from backpass.parallel.group import Scheme, check_ranks

EPILOG = """\
examples:
  backpass parallel own.py:scheme --ranks 4
  backpass parallel own.py:scheme --ranks 4 --threads
  torchrun --nproc-per-node 4 -m backpass parallel own.py:scheme

The scheme is a function of one rank. It is called with the group, whose rank,
size and collectives backpass.parallel describes, and what it returns is
printed. Started by torchrun, the command runs as the rank that torchrun gives
it, also on several machines and GPUs, and prints what this rank returns. Exits
with 0 if every rank returned, 1 if one failed or the time ran out, and 2 if
the command is not valid.
"""
RANKS, TIMEOUT = 2, 60.0


def run(arguments: argparse.Namespace) -> int:
    """Run the scheme, print each rank's result, and return the exit status."""
    try:
        started = _by_torchrun(arguments)
        scheme = load("module:scheme", arguments.target)
        if not callable(scheme):
            raise InvalidCommand(
                f"module:scheme {arguments.target}: expected a function of the group; "
                f"got {type(scheme).__name__}"
            )
    except InvalidCommand as problem:
        arguments.parser.error(str(problem))
    except Exception as error:
        traceback.print_exception(error.__cause__ or error)
        return 2
    if started:
        with joined(timeout=arguments.timeout or TIMEOUT) as group:
            say(_shown(group.rank, scheme(group)))
        return 0
    try:
        results = _run(scheme, arguments)
    except RankError as error:
        print(str(error).rstrip(), file=sys.stderr)
        return 1
    for rank, result in enumerate(results):
        say(_shown(rank, result))
    return 0


def _run(scheme: Scheme, arguments: argparse.Namespace) -> list[Any]:
    ranks = RANKS if arguments.ranks is None else arguments.ranks
    if arguments.threads:
        return on_threads(scheme, ranks)
    return on_processes(scheme, ranks, timeout=arguments.timeout or TIMEOUT)


def _by_torchrun(arguments: argparse.Namespace) -> bool:
    """Return whether torchrun started this process. Raises InvalidCommand."""
    started = "TORCHELASTIC_RUN_ID" in os.environ
    if arguments.ranks is not None:
        if started:
            raise InvalidCommand("--ranks: torchrun already says how many ranks run")
        try:
            check_ranks(arguments.ranks)
        except ValueError as error:
            raise InvalidCommand(f"--{error}") from None
    if arguments.threads and arguments.timeout is not None:
        raise InvalidCommand("--timeout: threads cannot be ended; leave out --threads")
    if arguments.threads and started:
        raise InvalidCommand("--threads: torchrun has started processes")
    if arguments.timeout is not None and not 0 < arguments.timeout < math.inf:
        raise InvalidCommand(
            f"--timeout: expected a number above 0; got {arguments.timeout:g}"
        )
    return started


def _shown(rank: int, result: Any) -> str:
    first, *rest = str(result).splitlines() or [""]
    start = f"rank {rank}: "
    return "\n".join([start + first, *(" " * len(start) + line for line in rest)])


COMMAND = Command(
    "parallel",
    help="run a scheme of your own on several ranks",
    description="Run a function on several ranks, as processes that exchange arrays\n"
    "by PyTorch's collectives, or as threads.",
    options=(
        TARGET.but(
            metavar="module:scheme",
            help="a module or a file.py, and the function in it",
        ),
        number("--ranks", f"how many (default {RANKS}; under torchrun, torchrun says)"),
        switch(
            "--threads",
            help="run the ranks as threads, one at a time, instead of as processes",
        ),
        value(
            "--timeout",
            "SECONDS",
            "how long the scheme may run once all processes have started "
            f"(default {TIMEOUT:g}); under torchrun, how long a collective may run",
            type=float,
        ),
    ),
    run=run,
    epilog=EPILOG,
)
