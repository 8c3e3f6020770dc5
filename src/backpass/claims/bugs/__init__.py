"""Gradient bugs of public projects, one module a kind."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from backpass.claims.bug import KINDS, Bug


def bugs_of(kind: str) -> list[Bug]:
    """Return the bugs of one kind. Raises ValueError for an unknown kind."""
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}; got {kind!r}")
    module = import_module(
        f"backpass.claims.bugs.{kind.replace(' ', '_').replace('-', '_')}"
    )
    return [thing for thing in vars(module).values() if isinstance(thing, Bug)]


def every_bug() -> Iterator[Bug]:
    """Go through the bugs of all kinds."""
    for kind in KINDS:
        yield from bugs_of(kind)
