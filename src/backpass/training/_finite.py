"""Find where the first number arose that is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backpass.contract.arrays import Array, is_array, namespace, size
from backpass.models.layers.recomputed import Segment
from backpass.training._blocks import blocks


def fault_in_arrays(parameters: Mapping[str, Array]) -> str | None:
    """Return in words which of the ``parameters[*]`` has an element that is not finite;
    None if all are finite."""
    for name, parameter in parameters.items():
        if count := _not_finite(parameter):
            return f"in the parameter {name}, {_of(count, parameter)} are not finite"
    return None


def fault_in_parts(names: Sequence[str], parts: Sequence[Any]) -> str | None:
    """Return in words the first part of a model, in the order of the forward, that
    saved an element that is not finite; None if all are finite.

    ``names`` are those of the ``parts``, each of which is what the part saved. Layers
    that save their input only run again, one segment at a time.
    """
    each = _run_again(parts)
    for i, name in enumerate(names):
        # What a part saved is freed before the next segment runs.
        if fault := _fault(next(each)):
            place, first, words = fault
            # A part saves what it computes in the order in which it computes it.
            source = f", computed from the output of {names[i - 1]}" if i else ""
            where = f" ({place}{source if first else ''})" if place else ""
            return f"the first part with such numbers is {name}{where}: {words}"
    return None


def _run_again(parts: Sequence[Any]) -> Iterator[Any]:
    """Yield what each part saved."""
    for saved in parts:
        if not isinstance(saved, Segment):
            yield saved
            continue
        if not saved.parts:
            saved.run_again()
            saved.parts.reverse()  # so that the first layer's is popped first
        yield saved.parts.pop()


def _fault(saved: Any) -> tuple[str, bool, str] | None:
    """Return the place of the first array with an element that is not finite, whether
    it is the first array of all, and how many elements are not finite."""
    for i, (place, array) in enumerate(_arrays(saved)):
        if count := _not_finite(array):
            return place, not i, f"{_of(count, array)} are not finite"
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
    xp = namespace(x)
    return sum(int(xp.sum(~xp.isfinite(block))) for block in blocks(x))


def _of(count: int, x: Array) -> str:
    return f"{count:,} of {size(x.shape):,} elements"
