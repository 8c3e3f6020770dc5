"""Leave out gradients: choose those that are wanted, and save only what they need.

Every operation with more than one differentiable input accepts ``wanted``, a collection
of their names, in ``forward``, ``backward`` and ``backward_flops``. ``None`` is all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from backpass.contract.arrays import Array
from backpass.contract.shapes import Outline, Record, check_saved, kind, parse

Wanted = Collection[str] | None


def check_wanted(
    text: str, wanted: Wanted, **optional: Array | bool | None
) -> tuple[str, ...]:
    """Return the inputs of the declaration whose gradients are wanted, in its order.

    ``optional`` are the inputs that may be None; those that are None are left out. A
    FLOP formula passes whether they were given.

    Raises TypeError for what is not a collection of names, ValueError for a name that
    is not a differentiable input's.
    """
    return tuple(
        name
        for name in _chosen(wanted, _floating(text))
        if not any(optional.get(name, True) is absent for absent in (None, False))
    )


def narrowed(saved: Any, expected: type[Record], wanted: Wanted) -> Record:
    """Return what ``forward`` saved, with the inputs whose gradients ``backward`` is to
    compute: all for which forward saved what they need, or some of them.

    Raises TypeError for what ``check_saved`` rejects and for what is not a collection
    of names, ValueError for another name.
    """
    found: Any = check_saved(saved, expected)
    hint = ", for which forward saved what they need"
    chosen = _chosen(wanted, found.wanted, hint)
    return found if chosen == found.wanted else found._replace(wanted=chosen)


def needed(saved: Any, needs: Mapping[str, str]) -> Any:
    """Return what ``forward`` saves: an array that no wanted gradient needs only as its
    outline.

    ``needs`` gives each of these arrays the inputs whose gradients need it, ``"x w"``.
    """
    wanted = {*saved.wanted}
    unused = {
        name: kept(getattr(saved, name), False)
        for name, inputs in needs.items()
        if wanted.isdisjoint(inputs.split())
    }
    return saved._replace(**unused) if unused else saved


def kept(array: Array | None, needed: object) -> Any:
    """Return the array if it is needed, otherwise its outline; None for None."""
    if needed or array is None:
        return array
    return Outline(tuple(array.shape), *kind(array))


def part_of(wanted: Collection[str], **names: str) -> tuple[str, ...]:
    """Return the inputs of a composite operation's part whose gradients are wanted.

    ``names`` gives each input of the part with the composite's inputs from which it is
    computed, ``x="x w_up"``. Its gradient is wanted if one of theirs is.
    """
    return tuple(part for part, found in names.items() if {*found.split()} & {*wanted})


def gradients_of(
    part: Any, dy: Array | None, saved: Any, wanted: tuple[str, ...]
) -> tuple[Any, ...]:
    """Return what the backward of a composite operation's part returns.

    If no gradient is wanted, it is not called, and each gradient is None.
    """
    if wanted:
        return part.backward(dy, saved, wanted=wanted)
    constants = getattr(part, "CONSTANTS", ())
    inputs = (spec for spec in parse(part.SHAPES).inputs if spec.floating)
    return (None,) * sum(spec.name not in constants for spec in inputs)


def sum_wanted(wanted: Wanted, costs: Mapping[str, Any]) -> Any:
    """Return the sum of the costs that the wanted gradients need.

    The key of a cost names the gradients that need it, ``"w"`` or ``"x w"``.
    """
    names = tuple(dict.fromkeys(" ".join(costs).split()))
    chosen = {*_chosen(wanted, names)}
    return sum(cost for key, cost in costs.items() if chosen & {*key.split()})


@cache
def _floating(text: str) -> tuple[str, ...]:
    """Return the inputs of a declaration that hold floating-point numbers."""
    return tuple(spec.name for spec in parse(text).inputs if spec.floating)


def _chosen(wanted: Wanted, names: tuple[str, ...], hint: str = "") -> tuple[str, ...]:
    """Return those of ``names`` that are wanted. Raises TypeError or ValueError."""
    if wanted is None:
        return names
    if isinstance(wanted, str) or not isinstance(wanted, Collection):
        came = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise TypeError(
            "wanted: expected a collection of names, such as ('x',), or None for all; "
            f"got {came}"
        )
    for name in wanted:
        if name not in names:
            raise ValueError(
                f"wanted: expected names among {', '.join(names) or 'none'}{hint}; "
                f"got {name!r}"
            )
    return tuple(name for name in names if name in wanted)
