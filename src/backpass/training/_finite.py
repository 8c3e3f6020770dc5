"""Find where the first number arose that is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backpass.arrays import Array, is_array, namespace, size


def what_is_not_finite(
    parameters: Mapping[str, Array], names: Sequence[str], parts: Sequence[Any]
) -> str | None:
    """Return in words which parameter has an element that is not finite, or else the
    first part of a model, in the order of the forward, that saved such an element; None
    if all are finite.

    ``names`` are those of the ``parts``, of which each is what the part saved.
    """
    for name, parameter in parameters.items():
        if count := _not_finite(parameter):
            return f"in the parameter {name}, {_of(count, parameter)} are not finite"
    for i, (name, saved) in enumerate(zip(names, parts, strict=True)):
        for place, array in _arrays(saved):
            if count := _not_finite(array):
                # A part saves what it computes in the order in which it computes it.
                first = place == next(_arrays(saved))[0]
                source = f", computed from the output of {names[i - 1]}" if i else ""
                where = f" ({place}{source if first else ''})" if place else ""
                return (
                    f"the first part with such numbers is {name}{where}: "
                    f"{_of(count, array)} are not finite"
                )
    return None


def _arrays(saved: Any, place: str = "") -> Iterator[tuple[str, Array]]:
    """Yield the floating-point arrays of nested named tuples, each with the names that
    lead to it."""
    if is_array(saved):
        if namespace(saved).isdtype(saved.dtype, "real floating"):
            yield place, saved
    elif hasattr(saved, "_fields"):
        for field in saved._fields:
            yield from _arrays(
                getattr(saved, field), f"{place}.{field}" if place else field
            )


def _not_finite(x: Array) -> int:
    """Return how many elements are not finite."""
    return int(namespace(x).sum(~namespace(x).isfinite(x)))


def _of(count: int, x: Array) -> str:
    return f"{count:,} of {size(x.shape):,} elements"
