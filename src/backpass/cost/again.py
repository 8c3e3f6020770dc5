"""Choose the calls of a network that run again in the backward."""

from __future__ import annotations

from backpass.models.layers.calls import Call, Part
from backpass.models.layers.recomputed import Recompute, divided


def calls_again(part: Part, recompute: Recompute) -> tuple[Call, ...]:
    """Return the calls of a part whose forward runs again: those of a layer that has a
    backward, for an integer; for names, the calls of these operations in a layer that
    have a backward. Raises TypeError or ValueError for an invalid ``recompute``."""
    every, chosen = divided(recompute, None)
    if "layer" not in part.name or not any(each.wanted for each in part.calls):
        return ()
    if every is not None:
        return part.calls
    stems = () if chosen is None else chosen.operations
    return tuple(each for each in part.calls if each.wanted and each.stem in stems)
