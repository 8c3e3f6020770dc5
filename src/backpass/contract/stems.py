"""Find the stems: the files of operations and kernels.

An operation, its kernel and its reference have the same name. No list has to be kept.
"""

from __future__ import annotations

import difflib
import functools
import os
import pkgutil
from collections.abc import Iterable, Mapping
from typing import TypeVar

Entry = TypeVar("Entry")
FOLDER = os.path.dirname(os.path.dirname(__file__))


@functools.cache
def modules_in(folder: str) -> tuple[str, ...]:
    """Return the names of the public modules in a folder of this package, sorted.

    The modules are not imported.
    """
    names = (
        module.name for module in pkgutil.iter_modules([os.path.join(FOLDER, folder)])
    )
    return tuple(sorted(name for name in names if not name.startswith("_")))


def entry(kind: str, name: str, known: Mapping[str, Entry]) -> Entry:
    """Return the entry of that name. Raises LookupError, with the nearest name."""
    if name not in known:
        raise LookupError(no_such(kind, name, known))
    return known[name]


def no_such(kind: str, name: object, names: Iterable[str]) -> str:
    """Return the message for a name that is not one of ``names``."""
    return f"no {kind} is called {name!r}; {nearest(name, names)}"


def nearest(name: object, names: Iterable[str]) -> str:
    """Suggest the nearest of ``names`` if one is near, and otherwise list all."""
    near = difflib.get_close_matches(str(name), list(names), n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
