"""Variations that keep how inputs belong together: groups of heads, positions, and
offsets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Inputs
from backpass.verify.convert import is_floating, to_numpy
from backpass.verify.vary.draws import Draw, Places
from backpass.verify.vary.values import EMPTY_SEGMENT, are_offsets

LEAST = 3  # positions, so that another order is not its own inverse


def twice_as_many(draw: Draw, asked: bool) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs with twice as many heads and twice as many groups, along an axis
    before the last two of which some inputs have a multiple of the length of others.

    A single group may be all that an object is made for, so it becomes two only if that
    is ``asked`` for.
    """
    shapes = {at: x.shape for at, x in enumerate(draw.case.inputs) if is_array(x)}
    deep = {at: shape for at, shape in shapes.items() if len(shape) > 2}
    for axis in range(-3, -1 - max(map(len, deep.values()), default=0), -1):
        places: dict[int, list[tuple[int, int]]] = {}
        for at, shape in deep.items():
            if len(shape) >= -axis:
                places.setdefault(shape[axis], []).append((at, len(shape) + axis))
        if len(places) != 2:
            continue
        few, many = sorted(places)
        if few > (0 if asked else 1) and many % few == 0:
            own = draw.resized(Places.of(places[few], few, None), 2 * few)
            there = Draw(draw.case.elsewhere(own))
            of = Places.of(places[many], many, None)
            what = f"lengths {2 * few} and {2 * many} in place of {few} and {many}"
            yield what, there.resized(of, 2 * many)


def other_integers(draw: Draw) -> Iterator[tuple[str, Inputs]]:
    """Yield offsets with an empty segment, and the integers 0, 1, 2, … in another
    order: as positions, they may be others."""
    for at, value in enumerate(draw.case.inputs):
        if not is_array(value) or is_floating(value) or value.ndim != 1:
            continue
        own = to_numpy(value)
        if are_offsets(draw.case, at, own):
            empty, middle = own.copy(), (len(own) - 1) // 2
            empty[middle] = empty[middle + 1]
            yield f"{EMPTY_SEGMENT} {draw.name(at)}", draw.replaced(at, empty)
        if own.size >= LEAST and np.array_equal(own, np.arange(own.size)):
            name = draw.name(at)
            yield f"{name} in another order", draw.replaced(at, np.roll(own, 1))
