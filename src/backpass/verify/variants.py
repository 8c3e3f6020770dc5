"""Run backward with an argument changed; the reference may equal one of the results.

A saved array is negated, two are exchanged, ``1 + w`` or ``w − 1`` replaces ``w``, an
array of the same shape replaces a saved one, or ``dy`` and ``saved`` are exchanged.
Each is a plausible mistake and has a description in words. A variant for which backward
raises is left out.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from backpass.verify.case import Case
from backpass.verify.convert import is_floating, to_kind_of
from backpass.verify.outputs import Several, named_arrays


def variants(case: Case, at: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each variant's description and its gradient for input ``at``.

    This is for ``diagnose(variants=…)``. Backward runs only when the next variant is
    requested.
    """
    try:
        y, saved = case.run
        dy = to_kind_of(y, case.dy)
        names = dict(named_arrays(saved))
    except Exception:
        return
    backward = case.subject.backward
    named = zip(case.subject.input_names, case.native(case.float64), strict=False)
    others = {name: value for name, value in named if is_floating(value)} | {"y": y}
    for says, changed in _changed(saved, names, others):
        yield from _called(case, at, says, partial(backward, dy, changed))
    says = "backward(saved, dy): its arguments are exchanged"
    yield from _called(case, at, says, partial(backward, saved, dy))


def _changed(
    saved: Any, names: dict[str, Any], others: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield a description, and ``saved`` with one or two of its arrays changed.

    ``others`` are arrays that may replace one of them.
    """
    for name, value in names.items():
        says = f"backward with {name} negated: its sign is wrong"
        yield says, _with(saved, {name: -value})
    for (one, a), (other, b) in itertools.combinations(names.items(), 2):
        if tuple(a.shape) == tuple(b.shape):
            says = f"backward with {one} and {other} exchanged"
            yield says, _with(saved, {one: b, other: a})
    for name, value in names.items():
        for meant, new in ((f"1 + {name}", 1 + value), (f"{name} − 1", value - 1)):
            says = f"backward with {meant}: got uses {name} where {meant} is meant"
            yield says, _with(saved, {name: new})
    for name, value in names.items():
        for meant, new in {**names, **others}.items():
            if name != meant and tuple(value.shape) == tuple(new.shape):
                says = f"backward with {meant} in place of {name}"
                yield says, _with(saved, {name: new})


def _with(saved: Any, new: dict[str, Any]) -> Any:
    """Return a copy of ``saved`` with new arrays under some of its names."""
    if isinstance(saved, Several):
        return saved._replace(saved=_with(saved.saved, new))
    if isinstance(saved, dict):
        by_name = {str(key): key for key in saved}
        return {**saved, **{by_name[name]: value for name, value in new.items()}}
    if hasattr(saved, "_replace"):
        return saved._replace(**new)
    if isinstance(saved, (tuple, list)):
        return type(saved)(
            new.get(f"saved[{i}]", value) for i, value in enumerate(saved)
        )
    if is_floating(saved):
        return new["saved"]
    changed = copy.copy(saved)
    for name, value in new.items():
        object.__setattr__(changed, name, value)  # also works on a frozen dataclass
    return changed


def _called(
    case: Case, at: int, says: str, backward: Callable[[], Any]
) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with np.errstate(all="ignore"):
            gradient = case.slots.by_input(backward())[at]
    except Exception:
        return
    if gradient is not None and np.isfinite(gradient).all():
        yield says, gradient
