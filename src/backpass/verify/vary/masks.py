"""Give a mask rows that hide everything or nothing, and values that it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backpass.contract.arrays import is_array
from backpass.contract.spec import Spec
from backpass.verify import domain
from backpass.verify.case import Inputs
from backpass.verify.convert import to_kind_of, to_numpy
from backpass.verify.vary import kinds
from backpass.verify.vary.draws import Draw, is_mask


def other_masks(draw: Draw) -> Iterator[tuple[str, tuple[Inputs, ...], str, str]]:
    """Yield each mask with a row of one value, for each of its values, and a mask of
    two values in place of one whose elements are all equal; with the kind of variation,
    and how to exclude it.

    Booleans that are not declared may be something other than a mask.
    """
    for at, value in enumerate(draw.case.inputs):
        if not is_array(value) or not value.shape:
            continue
        declared = (spec := draw.spec(at)) is not None and is_mask(spec)
        values = to_numpy(value)
        if not declared and values.dtype != bool:
            continue
        mask = spec if spec and declared else Spec(draw.name(at), (), boolean=True)
        kind = kinds.MASK if declared else kinds.OTHER
        for what, other, hint in _others(draw, mask, values, declared):
            inputs = (
                to_kind_of(value, other) if other_at == at else given
                for other_at, given in enumerate(draw.case.inputs)
            )
            yield what, (tuple(inputs),), kind, hint


def _others(
    draw: Draw, mask: Spec, values: np.ndarray, declared: bool
) -> Iterator[tuple[str, np.ndarray, str]]:
    known = sorted(domain.mask_values(mask, values))
    shown = domain.of_choices(mask, known)
    for filled in known:
        row = values.copy()
        row[0] = filled
        hint = _hint(mask, known, filled, declared) if filled != shown else ""
        if mask.boolean and not declared and filled == shown:
            hint = _hint(replace(mask, inverted=True), known, filled, declared)
        yield f"a row of {_shown(filled)} in {mask.name}", row, hint
    if values.size > 1 and (values == values.flat[0]).all() and len(known) > 1:
        drawn = domain.drawn_mask(mask, values.shape, draw.rng, known)
        listed = " and ".join(map(_shown, known))
        yield f"{listed} in {mask.name}", drawn, ""


def _hint(mask: Spec, known: list[float], filled: float, declared: bool) -> str:
    """Return how to declare that no row has only a value that hides."""
    shown = domain.of_choices(mask, known)
    mark = ":some=False" if mask.inverted else ":some"
    hides = f"{_shown(filled)} hides, and " if mask.inverted else ""
    return (
        f"if {hides}each row of {mask.name} has {_shown(shown)} in it, declare this by "
        f"{mark if declared else f':bool{mark}'} after {mask.name}'s axes in SHAPES"
    )


def _shown(value: float) -> str:
    if isinstance(value, bool):
        return str(value)
    return "−∞" if np.isneginf(value) else f"{value:g}"
