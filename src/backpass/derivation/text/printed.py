"""Verdicts with names as the text has them: \\theta^* and \\bar{x} in place of what
replaces them while the text is judged."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from backpass.derivation.text.barred import with_bars
from backpass.derivation.text.starred import with_stars

T = TypeVar("T")


def as_printed(value: T) -> T:
    """Return a value in which every string has the names of the text."""
    return _as_printed(value)


def _as_printed(value: Any) -> Any:
    if isinstance(value, str):
        return with_bars(with_stars(value))
    if type(value) in (tuple, list):
        return type(value)(map(_as_printed, value))
    if is_dataclass(value) and not isinstance(value, type):
        found = {one.name: getattr(value, one.name) for one in fields(value)}
        return replace(value, **{name: _as_printed(own) for name, own in found.items()})
    return value
