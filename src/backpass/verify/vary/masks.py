"""Give a mask rows that hide everything or nothing, and values that it lacks."""

from __future__ import annotations

from collections.abc import Iterator

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
        mark = ":some" if declared else ":bool:some"
        shown = max(domain.mask_values(mask, values))
        hint = (
            f"if each row of {mask.name} has {_shown(shown)} in it, declare this by "
            f"{mark} after {mask.name}'s axes in SHAPES"
        )
        for what, other, hides in _others(draw, mask, values):
            inputs = (
                to_kind_of(value, other) if other_at == at else given
                for other_at, given in enumerate(draw.case.inputs)
            )
            yield what, (tuple(inputs),), kind, hint if hides else ""


def _others(
    draw: Draw, mask: Spec, values: np.ndarray
) -> Iterator[tuple[str, np.ndarray, bool]]:
    known = sorted(domain.mask_values(mask, values))
    for filled in known:
        row = values.copy()
        row[0] = filled
        hides = filled != max(known)
        yield f"a row of {_shown(filled)} in {mask.name}", row, hides
    if values.size > 1 and (values == values.flat[0]).all() and len(known) > 1:
        drawn = domain.drawn_mask(mask, values.shape, draw.rng, known)
        listed = " and ".join(map(_shown, known))
        yield f"{listed} in {mask.name}", drawn, False


def _shown(value: float) -> str:
    if isinstance(value, bool):
        return str(value)
    return "−∞" if np.isneginf(value) else f"{value:g}"
