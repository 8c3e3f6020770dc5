"""PyTorch's version of each operation.

The file of a stem holds ``operator``, with ``forward``'s arguments. It is PyTorch's own
operator if there is one, and otherwise a composition of PyTorch's operators that is
written differently from the operation. It is imported when it is called, so PyTorch is
needed only then.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from backpass.contract.arrays import Array
from backpass.contract.stems import modules_in

STEMS = modules_in("verify/references")


def load(stem: str) -> Callable[..., Array]:
    """Return the ``operator`` of a stem in ``STEMS``."""
    return import_module(f"{__name__}.{stem}").operator
