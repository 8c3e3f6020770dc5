"""The operations: each a forward, its hand-derived backward, what is saved between them, and what both cost.

Every module of this folder keeps one contract:

- ``SHAPES`` declares inputs and output, for example ``"x[*, n], w[n, p], b[p]? -> y[*, p]"``;
- ``forward(*arrays, **options)`` returns ``(y, saved)``, ``saved`` being the module's ``Saved``;
- ``backward(dy, saved)`` returns one gradient for each differentiable input, in ``forward``'s order;
- ``forward_flops`` and ``backward_flops`` are plain arithmetic on the dimension letters of ``SHAPES``; what they
  take besides, because it depends on the data, ``data_lengths(*arrays)`` finds.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from backpass.stems import modules_in, no_such

STEMS = modules_in("ops")


def load(stem: str) -> ModuleType:
    """The operation's module. Raises LookupError, naming the nearest stem, when there is none."""
    if stem not in STEMS:
        raise LookupError(no_such("operation", stem, STEMS))
    return import_module(f"{__name__}.{stem}")


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return load(name)
    except LookupError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *STEMS])
