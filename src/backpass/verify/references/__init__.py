"""What PyTorch computes for each operation: a file for each stem, which holds ``operator``
with ``forward``'s arguments.

A reference is PyTorch's own operator where there is one, and otherwise a composition of
PyTorch's operators that is written differently from the operation. It is imported when it
is called, so only then is PyTorch needed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from backpass.arrays import Array
from backpass.stems import modules_in

STEMS = modules_in("verify/references")


def load(stem: str) -> Callable[..., Array]:
    """The ``operator`` of one of ``STEMS``."""
    return import_module(f"{__name__}.{stem}").operator
