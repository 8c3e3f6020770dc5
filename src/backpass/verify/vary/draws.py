"""Draw inputs like those given, of other lengths or with other values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from backpass.contract.arrays import is_array
from backpass.contract.shapes import Spec
from backpass.contract.spec import axis_length, letters_of
from backpass.verify import domain
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import (
    is_floating,
    is_torch,
    to_kind_of,
    to_numpy,
    to_torch,
)
from backpass.verify.drawing import VARYING, generator


class Places(tuple[tuple[int, int], ...]):
    """The places of a length: input and axis. ``letter`` is its letter in the
    declaration; without one, it is None."""

    length: int
    letter: str | None

    @classmethod
    def of(
        cls, places: Iterable[tuple[int, int]], length: int, letter: str | None
    ) -> Places:
        """Return the places of this length."""
        found = cls(places)
        found.length, found.letter = length, letter
        return found

    def of_input(self, at: int) -> Places:
        """Return those of one input."""
        own = (place for place in self if place[0] == at)
        return Places.of(own, self.length, self.letter)


class Draw:
    """Draws inputs like those of a case.

    Each element is one of the user's, scaled by a random factor near 1.
    """

    def __init__(self, case: Case):
        self.case = case
        self.first = case.differentiable[0]
        self.rng = generator(case.seed, VARYING)
        self.shapes = case.subject.shapes_for(case.inputs)

    def name(self, at: int) -> str:
        return self.case.subject.input_names[at]

    @property
    def declared(self) -> bool:
        """Whether the object declares its shapes."""
        return self.shapes is not None

    def spec(self, at: int) -> Spec | None:
        """Return an input's part of the declaration."""
        shapes = self.shapes
        return shapes.inputs[at] if shapes and at < len(shapes.inputs) else None

    @cached_property
    def bound(self) -> dict[str, Any]:
        """The lengths of the letters of the declaration."""
        shapes, names = self.shapes, self.case.subject.input_names
        given = zip(names, self.case.inputs, strict=False)
        return shapes.bind({k: x for k, x in given if is_array(x)}) if shapes else {}

    def rows(self) -> Places | None:
        """Return the places of the length of the first axis of the first input that has
        a gradient; None if it has no axes, or if that length is 1 and not declared."""
        return next(
            (places for places in self.lengths() if (self.first, 0) in places), None
        )

    def lengths(self) -> list[Places]:
        """Return the places of each length above 0. With a declaration these are the
        places of a letter; without one, equal lengths above 1 count as one."""
        places: dict[object, list[tuple[int, int]]] = {}
        for at, value in enumerate(self.case.inputs):
            for axis, length in enumerate(value.shape if is_array(value) else ()):
                spec = self.spec(at)
                fixed = spec is None or spec.broadcast or spec.shared
                if length > (1 if fixed else 0):
                    for letter in self._letters(at, axis):
                        places.setdefault(letter, []).append((at, axis))
        inputs = self.case.inputs
        found = []
        for of, same in places.items():
            letter = of if isinstance(of, str) else None
            at, axis = same[0]
            length = self.bound[letter] if letter else inputs[at].shape[axis]
            if length > (0 if letter else 1):
                found.append(Places.of(same, length, letter))
        return found

    def fixed(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name of an input, an axis, and its length, for each length above 1
        that the declaration gives as a number."""
        for at, value in enumerate(self.case.inputs):
            for axis, length in enumerate(value.shape if is_array(value) else ()):
                name = self._axis(at, axis) if self.spec(at) else None
                if isinstance(name, str) and name.isdigit() and length > 1:
                    yield self.name(at), axis, length

    def _letters(self, at: int, axis: int) -> list[Any]:
        """Return the letters of an axis in the declaration; its length without one. A
        group of leading axes is counted from its end."""
        name = self._axis(at, axis)
        if not isinstance(name, str):
            return [name]
        return letters_of(name)

    def _axis(self, at: int, axis: int) -> object:
        """Return the name of an axis in the declaration; its length without one. A
        group of leading axes is counted from its end."""
        shape, spec = self.case.inputs[at].shape, self.spec(at)
        if spec is None:
            return shape[axis]
        from_end, group = len(shape) - axis, spec.group
        if group is not None and axis < group:
            return spec.axes[axis]
        own = len(spec.axes) - (0 if group is None else group + 1)
        return spec.axes[-from_end] if from_end <= own else ("*", from_end - own)

    def fit(self, places: Places, length: int) -> int:
        """Return the first length from ``length`` on that the declaration allows. A
        smallest length may be declared, or a multiple, as for a table's halves."""
        least = self.shapes.least if self.shapes else {}
        length = max(length, least.get(places.letter or "", 0))
        factor = self.case.subject.multiples.get(places.letter or "", 1)
        return -(-length // factor) * factor

    def is_width_of_table(self, places: Places) -> bool:
        """Whether a length is that of the last axis of a constant input: a table, such
        as RoPE's, whose columns may belong together. A declared table says so."""
        return any(
            at in self.constants
            and axis == self.case.inputs[at].ndim - 1
            and not ((spec := self.spec(at)) and spec.structure)
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
        that may occur more than once, even if those given are a permutation, and masks
        of only the values given."""
        return self.resized(places, length), self.resized(places, length, twice=True)

    def resized(self, places: Places, length: int, twice: bool = False) -> Inputs:
        """Return the inputs with a different length at these places. Integers whose
        declared range has that length are drawn again."""
        lengths = {**self.bound, **({places.letter: length} if places.letter else {})}
        of_range = [
            at
            for at, value in enumerate(self.case.inputs)
            if is_array(value)
            and (spec := self.spec(at))
            and spec.below == places.letter is not None
        ]
        changed = {
            at: self._like(at, self._shape(at, places, length), twice, lengths)
            for at in dict.fromkeys([*(at for at, _ in places), *of_range])
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
            self._length(at, axis, places, length) if (at, axis) in places else old
            for axis, old in enumerate(shape)
        )

    def _length(self, at: int, axis: int, places: Places, length: int) -> int:
        """Return the new length of an axis, which may be a sum or a product."""
        name = self._axis(at, axis)
        if places.letter is None or not isinstance(name, str):
            return length
        return axis_length(name, {**self.bound, places.letter: length})

    def _like(
        self,
        at: int,
        shape: tuple[int, ...],
        twice: bool = False,
        lengths: Mapping[str, Any] | None = None,
    ) -> object:
        given, spec = self.case.inputs[at], self.spec(at)
        own = to_numpy(given).ravel()
        count = int(np.prod(shape))
        if spec and is_mask(spec):
            return to_kind_of(given, self._mask(spec, own, shape, twice))
        if at in self.constants:  # a table: its rows again, each scaled by about 1
            rows = self.rng.uniform(0.9, 1.1, (*shape[:-1], 1)[: len(shape)])
            if is_symmetric(to_numpy(given)):
                rows = rows[..., :1, :]
            if np.isin(own, (0, 1)).all():  # a mask, or a label of each row
                rows = np.ones_like(rows)
            table = rows * domain.repeated_table(spec, to_numpy(given), shape)
            if sums_to_one(to_numpy(given)) and table.size:
                sums = table.sum(-1, keepdims=True)  # 0 where a label was cut away
                table = table / np.where(sums == 0, 1.0, sums)
            return to_kind_of(given, table)
        if is_floating(given):
            picked = self.rng.choice(own, shape)
            factor = self.rng.uniform(0.9, 1.1, shape)
            return to_kind_of(given, _within(own, picked, factor))
        if not twice and np.array_equal(np.sort(own), np.arange(own.size)):
            # A permutation again: every place once.
            values = self.rng.permutation(count).reshape(shape)
            if spec and not self._in_range(spec, values, lengths):
                values = self._integers(spec, own, shape, lengths)
        elif spec and spec.below:
            values = self._integers(spec, own, shape, lengths)
        elif own.size > 2 and (np.diff(own.astype(float)) >= 0).all():
            values = self._ascending(own, count).reshape(shape)
        elif given.ndim == len(shape) > 1:
            values = self._slices(to_numpy(given), shape)
        else:
            values = self.rng.choice(own, shape)
        return to_torch(values) if is_torch(given) else values.astype(given.dtype)

    def _slices(self, given: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return integers with the slices given along each axis, and then some of them
        again: the two ends of an edge, say, belong together."""
        places = [
            np.append(np.arange(old), self.rng.integers(0, old, max(0, new - old)))
            for old, new in zip(given.shape, shape, strict=True)
        ]
        return given[np.ix_(*(at[:n] for at, n in zip(places, shape, strict=True)))]

    def _ascending(self, own: np.ndarray, count: int) -> np.ndarray:
        """Draw integers in ascending order, such as offsets, from the first one given
        on. If none was equal to another, none is."""
        if (np.diff(own) > 0).all():
            most = max(count, int(own[-1] - own[0]) + 1)
            drawn = own[0] + np.sort(self.rng.permutation(most)[:count])
        else:
            drawn = np.sort(self.rng.choice(own, count))
        drawn[:1] = own[0]
        return drawn

    def _mask(
        self, spec: Spec, own: np.ndarray, shape: tuple[int, ...], as_given: bool
    ) -> np.ndarray:
        """Draw a mask of the elements given. If these are all equal, it also has the
        other values of such a mask, unless it is to be ``as_given``."""
        if own.size and not as_given and (own == own[0]).all():
            values = domain.mask_values(spec, own)
            return domain.drawn_mask(spec, shape, self.rng, values)
        return domain.not_hidden(spec, self.rng.choice(own, shape))

    def _in_range(
        self, spec: Spec, values: np.ndarray, lengths: Mapping[str, Any] | None
    ) -> bool:
        below = domain.bound(spec, lengths or self.bound)
        return below is None or not values.size or values.max() < below

    def other_integers(self) -> tuple[list[str], Inputs]:
        """Return the names of inputs of integers with a declared range, and the inputs
        with others there, the largest among them. Offsets keep theirs, and so does a
        permutation. What is sorted or distinct along the last axis stays so, and so do
        integers that are nowhere larger than those of another input."""
        given, drawn = self.case.inputs, {}
        for at, value in enumerate(given):
            spec = self.spec(at)
            if not is_array(value) or is_floating(value) or not spec or spec.offsets:
                continue
            own, below = to_numpy(value), domain.bound(spec, self.bound)
            every_place = np.array_equal(np.sort(own, None), np.arange(own.size))
            if below and own.size and not every_place:
                below = min(below, int(np.iinfo(own.dtype).max) + 1)
                drawn[at] = self._others(spec, own, below)
        for one, other in itertools.permutations(drawn, 2):
            first, second = to_numpy(given[one]), to_numpy(given[other])
            if first.shape == second.shape and (first <= second).all():
                pair = drawn[one], drawn[other]
                drawn[one], drawn[other] = np.minimum(*pair), np.maximum(*pair)
        names = [self.name(at) for at in drawn]
        inputs = (
            to_kind_of(value, drawn[at].astype(to_numpy(value).dtype))
            if at in drawn
            else value
            for at, value in enumerate(given)
        )
        return names, tuple(inputs)

    def _others(self, spec: Spec, own: np.ndarray, below: int) -> np.ndarray:
        """Draw integers below a number, with the largest among them."""
        if spec.sentinels or not own.ndim:
            return self._integers(spec, own.ravel(), own.shape, None)
        count = own.shape[-1]
        rows = own.reshape(-1, count)
        distinct = below >= count and all(len({*row}) == count for row in rows.tolist())
        drawn = np.stack(
            [self.rng.choice(below, count, replace=not distinct) for _ in rows]
        )
        is_sorted = bool((np.diff(rows, axis=-1) >= 0).all())
        if is_sorted:
            drawn.sort(-1)
        if below - 1 not in drawn[0]:
            drawn[0, -1 if is_sorted else 0] = below - 1
        return drawn.reshape(own.shape)

    def _integers(
        self,
        spec: Spec,
        own: np.ndarray,
        shape: tuple[int, ...],
        lengths: Mapping[str, Any] | None,
    ) -> np.ndarray:
        """Draw integers of the declared range. As many are a sentinel as were."""
        below = domain.bound(spec, lengths or self.bound)
        if below is None:
            return self.rng.choice(own, shape)
        drawn = domain.drawn_integers(spec, shape, below, self.rng)
        if not spec.sentinels:
            return drawn
        picked = self.rng.choice(own, shape)
        return np.where(np.isin(picked, spec.sentinels), picked, drawn)


def sums_to_one(x: np.ndarray) -> bool:
    """Whether each row of x is a distribution, of which a backward may know the sum."""
    return bool(x.ndim and np.allclose(x.sum(-1), 1.0) and x.shape[-1] > 1)


def is_mask(spec: Spec) -> bool:
    """Whether an input is declared a mask."""
    return spec.boolean or spec.structure == "mask"


def is_symmetric(values: np.ndarray) -> bool:
    """Whether each matrix equals its transpose."""
    square = values.ndim > 1 and values.shape[-2] == values.shape[-1]
    return square and bool(np.allclose(values, np.swapaxes(values, -2, -1)))


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
