"""What a layer computes, as data: the operations that it calls, with their lengths.

A layer's ``calls`` lists the calls, and ``formulas`` derives the layer's
``forward_flops`` and ``backward_flops`` from the list. ``backpass.cost`` itemises a
network from the same list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One call of an operation's forward, and of its backward.

    ``lengths`` are the arguments of the operation's FLOP formulas: lengths and options.
    The backward computes the ``wanted`` gradients; if there are none, it is not called.
    """

    name: str  # what the call is for, such as "output projection"
    operation: ModuleType
    wanted: tuple[str, ...]
    lengths: dict[str, Any]

    @property
    def stem(self) -> str:
        """The operation's stem."""
        return self.operation.__name__.rpartition(".")[2]

    def forward_flops(self) -> Any:
        return _evaluated(self.operation.forward_flops, self)

    def backward_flops(self) -> Any:
        return _evaluated(self.operation.backward_flops, self) if self.wanted else 0

    def within(self, block: str) -> Call:
        """Return the call with its block's name in front of its own."""
        return self._replace(name=f"{block}: {self.name}")


class Part(NamedTuple):
    """A part of a network: successive ``calls``, repeated ``repeats`` times."""

    name: str
    repeats: Any
    calls: tuple[Call, ...]


def call(
    name: str, operation: ModuleType, wanted: Iterable[str], **lengths: Any
) -> Call:
    """Return a Call."""
    return Call(name, operation, tuple(wanted), lengths)


def formulas(calls: Callable[..., Iterable[Call]]) -> tuple[Callable, Callable]:
    """Return ``forward_flops`` and ``backward_flops`` with the arguments of ``calls``:
    the sums over the calls that it lists."""

    def forward_flops(*lengths: Any, **options: Any) -> Any:
        return sum(each.forward_flops() for each in calls(*lengths, **options))

    def backward_flops(*lengths: Any, **options: Any) -> Any:
        return sum(each.backward_flops() for each in calls(*lengths, **options))

    for function, of in ((forward_flops, "forward"), (backward_flops, "backward")):
        function.__doc__ = f"Return the FLOPs of the {of}: the sum over ``calls``."
        function.__module__ = calls.__module__
        function.__signature__ = inspect.signature(calls)  # type: ignore[attr-defined]
    return forward_flops, backward_flops


def quotient(length: Any, parts: Any) -> Any:
    """Return the length of one of ``parts`` equal parts; lengths may be symbols."""
    symbolic = hasattr(length, "free_symbols") or hasattr(parts, "free_symbols")
    return length / parts if symbolic else length // parts


def _evaluated(formula: Callable, call: Call) -> Any:
    named = inspect.signature(formula).parameters
    given = call.lengths | {"wanted": call.wanted}
    return formula(**{name: value for name, value in given.items() if name in named})
