"""Draw inputs like those given, of other lengths or with other values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import (
    is_floating,
    is_torch,
    to_kind_of,
    to_numpy,
    to_torch,
)
from backpass.verify.drawing import VARYING, generator

Places = Sequence[tuple[int, int]]  # of a length: input and axis


class Draw:
    """Draws inputs like those of a case.

    Each element is one of the user's, scaled by a random factor near 1.
    """

    def __init__(self, case: Case):
        self.case = case
        self.first = case.differentiable[0]
        self.rng = generator(case.seed, VARYING)

    def name(self, at: int) -> str:
        return self.case.subject.input_names[at]

    @property
    def declared(self) -> bool:
        """Whether the object declares its shapes."""
        return self.case.subject.shapes is not None

    def rows(self) -> Places | None:
        """Return the places of the length of the first axis of the first input that has
        a gradient; None if that is 1 or there is no axis."""
        return next(
            (places for _, places in self.lengths() if (self.first, 0) in places), None
        )

    def lengths(self) -> list[tuple[int, Places]]:
        """Return each length above 1, with its places: input and axis. With a
        declaration these are the places of a letter; without one, equal lengths count
        as one."""
        places: dict[object, list[tuple[int, int]]] = {}
        for at, value in enumerate(self.case.inputs):
            for axis, length in enumerate(value.shape if is_array(value) else ()):
                if length > 1:
                    places.setdefault(self._letter(at, axis), []).append((at, axis))
        inputs = self.case.inputs
        return [
            (inputs[same[0][0]].shape[same[0][1]], same) for same in places.values()
        ]

    def _letter(self, at: int, axis: int) -> object:
        """Return the letter of an axis in the declaration; its length without one. A
        group of leading axes is counted from its end."""
        shape, shapes = self.case.inputs[at].shape, self.case.subject.shapes
        if shapes is None or at >= len(shapes.inputs):
            return shape[axis]
        axes = shapes.inputs[at].axes
        from_end = len(shape) - axis
        own = len(axes) if shapes.inputs[at].group is None else len(axes) - 1
        return axes[-from_end] if from_end <= own else ("*", from_end - own)

    def is_width_of_table(self, places: Places) -> bool:
        """Whether a length is that of the last axis of a constant input: a table, such
        as RoPE's, whose columns may belong together."""
        return any(
            at in self.constants and axis == self.case.inputs[at].ndim - 1
            for at, axis in places
        )

    @property
    def constants(self) -> set[int]:
        """The positions of the floating-point inputs that have no gradient."""
        floating = {at for at, x in enumerate(self.case.inputs) if is_floating(x)}
        return floating - {*self.case.differentiable}

    def most_elements(self, places: Places, length: int) -> int:
        return max(int(np.prod(self._shape(at, places, length))) for at, _ in places)

    def tries(self, places: Places, length: int) -> tuple:
        """Return two tries of inputs with a different length. The second has integers
        that may occur more than once, even if those given are a permutation."""
        return self.resized(places, length), self.resized(places, length, twice=True)

    def resized(self, places: Places, length: int, twice: bool = False) -> Inputs:
        """Return the inputs with a different length at these places."""
        changed = {
            at: self._like(at, self._shape(at, places, length), twice)
            for at in dict.fromkeys(at for at, _ in places)
        }
        return tuple(
            changed.get(at, value) for at, value in enumerate(self.case.inputs)
        )

    def deeper(self, positions: Sequence[int]) -> Inputs:
        """Return the inputs, those at ``positions`` with one more leading axis."""
        return tuple(
            self._like(at, (2, *value.shape)) if at in positions else value
            for at, value in enumerate(self.case.inputs)
        )

    def replaced(self, at: int, values: np.ndarray) -> Inputs:
        inputs = self.case.inputs
        return (*inputs[:at], to_kind_of(inputs[at], values), *inputs[at + 1 :])

    def _shape(self, at: int, places: Places, length: int) -> tuple[int, ...]:
        shape = self.case.inputs[at].shape
        return tuple(
            length if (at, axis) in places else old for axis, old in enumerate(shape)
        )

    def _like(self, at: int, shape: tuple[int, ...], twice: bool = False) -> object:
        given = self.case.inputs[at]
        own = to_numpy(given).ravel()
        count = int(np.prod(shape))
        if at in self.constants:  # a table: its rows again, each scaled by about 1
            rows = self.rng.uniform(0.9, 1.1, (*shape[:-1], 1)[: len(shape)])
            return to_kind_of(given, rows * _repeated(to_numpy(given), shape))
        if is_floating(given):
            picked = self.rng.choice(own, shape)
            factor = self.rng.uniform(0.9, 1.1, shape)
            return to_kind_of(given, _within(own, picked, factor))
        if not twice and np.array_equal(np.sort(own), np.arange(own.size)):
            # A permutation again: every place once.
            values = self.rng.permutation(count).reshape(shape)
        elif own.size > 2 and (np.diff(own.astype(float)) >= 0).all():
            # Such as offsets.
            values = np.sort(self.rng.choice(own, count)).reshape(shape)
        else:
            values = self.rng.choice(own, shape)
        return to_torch(values) if is_torch(given) else values.astype(given.dtype)


def _within(own: np.ndarray, picked: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return some of an input's elements times factors near 1, which stay between its
    least and its largest element: an input of probabilities has none above 1."""
    near = picked * factor
    if not own.size:
        return near
    for inside in (picked * (2 - factor), picked):
        beyond = (near < own.min()) | (near > own.max())
        near = np.where(beyond, inside, near)
    return near


def _repeated(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values with each axis repeated, or cut, to the length in ``shape``,
    which may have more leading axes."""
    own = shape[len(shape) - values.ndim :]
    at = np.ix_(*(np.arange(n) % old for n, old in zip(own, values.shape, strict=True)))
    return np.broadcast_to(values[at], shape).copy()
