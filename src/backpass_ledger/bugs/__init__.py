"""Mistakes in gradients that public projects made, each re-created beside its corrected
twin.

They come from searches of issues and pull requests. Each thread says exactly what was
wrong with a gradient, one thread a mistake; doubtful threads, and most of those that
repeat a mistake, were left out. Whether `check` sees a mistake played no part, except
for eleven: a review of `check` had named their kinds, some of which it misses. The code
is ours: a thread gives the mistake, never the lines.

A module of this package holds bugs under ``@bug(…)``; ``every()`` lists those of all
modules. ``running`` gives the twins to `check` and to PyTorch's ``gradcheck``, and
``pages`` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace

import numpy as np

# A mistake that any operation could have has the mechanism as its kind, another one
# its operation.
KINDS = (
    "norms",
    "softmax and losses",
    "attention",
    "positions",
    "embeddings",
    "activations and powers",
    "products and convolutions",
    "means, pooling, and indexing",
    "recurrences",
    "experts",
    "quantisation",
    "low precision",
    "strides",
    "in-place writes",
    "races",
    "frozen inputs",
    "interface of autograd",
    "state between calls",
    "recomputation",
    "parallel training",
    "accumulation and optimisers",
)


@dataclass(frozen=True, eq=False)
class Bug:
    """One mistake. ``twins()`` makes a right and a wrong object, fresh ones each time,
    for what they may remember."""

    name: str
    thread: str  # owner/repository#number
    wrong: str  # what was wrong, in one sentence
    right: str  # the corrected formula
    twins: Callable[[], tuple[object, object]]
    inputs: Callable[
        [np.random.Generator], tuple
    ]  # what a careful tester draws: small, float64
    kind: str = ""  # one of KINDS
    telling: Callable[[np.random.Generator], tuple] | None = (
        None  # where the usual ones do not show it
    )
    telling_inputs: str = ""  # those inputs in words
    keywords: Mapping[str, object] = field(default_factory=dict)  # of check
    telling_keywords: Mapping[str, object] = field(
        default_factory=dict
    )  # besides, at the telling inputs
    seen: str = "usual"  # the first that shows it: usual, varied, or telling inputs
    gradcheck: str = "usual"  # where gradcheck shows it: usual, telling, or never
    says: str = ""  # a part of the report, where a diagnosis names the mistake
    missed: str = ""  # why check shows nothing at any of them
    alarm: str = (
        ""  # why check fails the right twin, at the level that ``alarmed`` names
    )
    alarmed: tuple[str, ...] = ()


def bug(thread: str, wrong: str, right: str, *, inputs, **facts):
    """Return the decorated function, which makes the twins, as a Bug."""
    return lambda twins: Bug(
        twins.__name__, thread, wrong, right, twins, inputs, **facts
    )


@cache
def every() -> tuple[Bug, ...]:
    """Return the bugs of all modules of this package, by module and in its order."""
    modules = sorted(f"{__name__}.{found.name}" for found in iter_modules(__path__))
    return tuple(
        thing
        for name in modules
        for thing in vars(import_module(name)).values()
        if isinstance(thing, Bug) and thing.twins.__module__ == name
    )


def twins(forward, backward, wrong, **attributes):
    """Two objects that share a forward and its attributes, such as CONSTANTS."""
    return tuple(
        SimpleNamespace(forward=forward, backward=one, **attributes)
        for one in (backward, wrong)
    )


def require(holds: bool, what: str) -> None:
    """Reject inputs that an object is not made for: a forward that takes them by
    broadcasting owes them a backward."""
    if not holds:
        raise ValueError(f"expected {what}")


def normal(
    *shapes: tuple[int, ...],
) -> Callable[[np.random.Generator], tuple[np.ndarray, ...]]:
    """Draws standard normal inputs of these shapes."""
    return lambda rng: tuple(rng.standard_normal(shape) for shape in shapes)
