"""Show the package's source code on a page: the code that runs."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import PurePath
from typing import Any


class Source:
    """The source of functions, classes or modules, each with the name of its file."""

    def __init__(self, *objects: object) -> None:
        self.objects = objects

    def __repr__(self) -> str:
        shown = (f"# {_file(thing)}\n{_text(thing)}" for thing in self.objects)
        return "\n\n".join(shown)

    def _repr_markdown_(self) -> str:
        return "\n\n".join(
            f"`{_file(thing)}`\n\n```python\n{_text(thing)}\n```"
            for thing in self.objects
        )


def source(*objects: object) -> Source:
    """Show the source of ``objects``: functions, classes, modules, Triton kernels.

    Raises TypeError for any other object.
    """
    for thing in objects:
        if not hasattr(thing, "__module__") and not inspect.ismodule(thing):
            raise TypeError(
                f"expected a function, a class or a module to show; got {thing!r}"
            )
    return Source(*objects)


def _unwrap(thing: Any) -> Any:
    """Return a function without its decorators. A Triton kernel has its function in
    ``fn``."""
    function: Any = getattr(thing, "fn", thing)
    return inspect.unwrap(function)


def _text(thing: object) -> str:
    return textwrap.dedent(inspect.getsource(_unwrap(thing))).strip()


def _file(thing: object) -> str:
    parts = PurePath(inspect.getsourcefile(_unwrap(thing)) or "").parts
    start = len(parts) - 1 - parts[::-1].index("backpass")
    return "/".join(("src", *parts[start:]))
