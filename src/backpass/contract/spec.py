"""Bind the axes of one array to its part of a declaration.

The docstring of ``contract.shapes`` explains the language.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

TWICE = "2"  # before a letter: an axis of pairs
_MORE = "+"  # after a letter: an axis at least as long
_TIMES = "*"  # after a letter: an axis that is a multiple
PAIRED = ("halves", "pairs")  # tables whose last axis is even


@dataclass(frozen=True)
class Spec:
    """One array of a declaration.

    Its axes are letters or numbers, and at most one group of any number of axes ("*" or
    "*a"). ``least`` has the declared smallest length of each letter that has one, such
    as 2 for ``n>1``. ``below``, a letter or a number, bounds its integers.
    ``sentinels`` are further integers, and ``named`` are options of forward whose
    values are further integers.
    ``structure`` is "table", "halves", "pairs", "mask", or "" for an array that has a
    gradient, and ``choices`` are the values of a mask. ``some`` says that no row of a
    mask hides everything, and ``inverted`` that its True hides.
    """

    name: str
    axes: tuple[str, ...]
    least: tuple[tuple[str, int], ...] = ()
    optional: bool = False
    integer: bool = False
    boolean: bool = False
    broadcast: bool = False
    shared: bool = False
    below: str = ""
    sentinels: tuple[int, ...] = ()
    named: tuple[str, ...] = ()
    offsets: bool = False
    structure: str = ""
    choices: tuple[float, ...] = ()
    some: bool = False
    inverted: bool = False

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.axes)}]"

    @property
    def floating(self) -> bool:
        """Whether the array holds floating-point numbers."""
        return not self.integer and not self.boolean

    @property
    def group(self) -> int | None:
        """The index of the group among the axes, or None if there is no group."""
        return next(
            (i for i, axis in enumerate(self.axes) if axis.startswith("*")), None
        )

    @property
    def in_pairs(self) -> bool:
        """Whether the last axis is twice a letter."""
        return bool(self.axes) and self.axes[-1].startswith(TWICE)


def axis_length(axis: str, lengths: Mapping[str, int]) -> int:
    """Return the length of an axis, given the lengths of the letters.

    The axis is a number, a letter, twice a letter, or the sum or the product of two
    letters. The second part of a sum may be a number.
    """
    if axis.isdigit():
        return int(axis)
    parts = [lengths[letter] for letter in letters_of(axis)]
    added = axis.partition(_MORE)[2]
    parts += [int(added)] if added.isdigit() else []
    length = math.prod(parts) if is_product(axis) else sum(parts)
    return 2 * length if axis.startswith(TWICE) else length


def letters_of(axis: str) -> list[str]:
    """Return the letters in the name of an axis; a number has none."""
    parts = (
        axis.split(_TIMES)
        if is_product(axis)
        else axis.removeprefix(TWICE).split(_MORE)
    )
    return [part for part in parts if part and not part.isdigit()]


def is_axis(axis: str) -> bool:
    """Whether the form of an axis is valid. A letter may be a word."""
    if axis.startswith("*"):
        return axis == "*" or axis[1:].isidentifier()
    if not all([letter.isidentifier() for letter in letters_of(axis)]):
        return False
    if is_product(axis):
        return len(letters_of(axis)) == 1 + axis.count(_TIMES)
    return bool(letters_of(axis)) or axis.isdigit()


def is_product(axis: str) -> bool:
    """Whether an axis is a product of letters. A group only begins with ``*``."""
    return _TIMES in axis[1:]


def bind_one(
    spec: Spec, shape: tuple[int, ...], lengths: dict, found_in: dict[str, str]
) -> list[tuple[str, int]]:
    """Bind the letters of an array's axes; return its products with their lengths."""
    products = []
    for axis, length in _pair(spec, shape):
        if is_product(axis):
            products.append((axis, length))
            continue
        if axis.isdigit():
            if length != int(axis):
                raise ValueError(
                    f"{spec.name}: expected {spec}; got shape {list(shape)}"
                )
            continue
        if axis.startswith(TWICE):
            axis = axis.removeprefix(TWICE)
            if length % 2:
                raise ValueError(
                    f"{spec.name}: expected {spec} with an even length of 2{axis}; "
                    f"got shape {list(shape)}"
                )
            length //= 2
        if _MORE in axis:
            least, axis = axis.split(_MORE)
            if axis.isdigit():
                least, axis, more = axis, least, int(axis)
                if length < more:
                    raise ValueError(
                        f"{spec.name}: expected {spec} with {axis}+{more} of at least "
                        f"{more}; got shape {list(shape)}"
                    )
                length -= more
            elif length < lengths[least]:
                raise ValueError(
                    f"{spec.name}: expected {spec} with {least}+{axis} of at least "
                    f"{least} = {lengths[least]}, as in {found_in[least]}; "
                    f"got shape {list(shape)}"
                )
            else:
                length -= lengths[least]
        for letter, fewest in spec.least:
            if letter == axis and length < fewest:
                raise ValueError(
                    f"{spec.name}: expected {spec} with {axis} of at least {fewest}; "
                    f"got shape {list(shape)}"
                )
        known = lengths.setdefault(axis, length)
        found_in.setdefault(axis, spec.name)
        if known != length:
            what = (
                f"leading axes {list(known)}"
                if axis.startswith("*")
                else f"{axis} = {known}"
            )
            raise ValueError(
                f"{spec.name}: expected {spec} with {what}, as in {found_in[axis]}; "
                f"got shape {list(shape)}"
            )
    return products


def bind_product(
    spec: Spec,
    shape: tuple[int, ...],
    axis: str,
    length: int,
    lengths: dict,
    found_in: dict[str, str],
) -> None:
    """Bind the letter of a product that is still unknown, if there is one.

    Raises ValueError for a length that is not the product, or not a multiple of the
    known letter.
    """
    unknown = [letter for letter in letters_of(axis) if letter not in lengths]
    # A list, because torch.compile cannot trace a generator as an argument.
    known = math.prod(
        [lengths[letter] for letter in letters_of(axis) if letter not in unknown]
    )
    if unknown and known and length % known == 0:
        lengths[unknown[0]] = length // known
        found_in[unknown[0]] = found_in[axis] = spec.name
    elif unknown or length != known:
        factor = (
            axis
            if not unknown
            else next(letter for letter in letters_of(axis) if letter in lengths)
        )
        what = (
            f"{axis} = {known}"
            if not unknown
            else f"{axis} a multiple of {factor} = {known}"
        )
        raise ValueError(
            f"{spec.name}: expected {spec} with {what}, as in {found_in[factor]}; "
            f"got shape {list(shape)}"
        )


def check_broadcast(
    spec: Spec, shape: tuple[int, ...], lengths: dict, found_in: dict[str, str]
) -> None:
    """Raise ValueError for an array that does not broadcast to the declared shape,
    whose lengths are all known."""
    if spec.shared:
        _pair(spec, shape)  # which raises if an axis of a letter is missing
    axes = [axis for axis in spec.axes if not axis.startswith("*")]
    leading, rest = (
        shape[: max(0, len(shape) - len(axes))],
        shape[max(0, len(shape) - len(axes)) :],
    )
    for axis, length in zip(reversed(axes), reversed(rest), strict=False):
        known = axis_length(axis, lengths)
        if length != known and (spec.shared or length != 1):
            what = f"{axis} = {known}, as in {found_in[axis]}"
            what += "" if spec.shared else ", or 1"
            raise ValueError(
                f"{spec.name}: expected {spec} with {what}; got shape {list(shape)}"
            )
    full = lengths["*"] if spec.group is not None else ()
    pairs = zip(reversed(leading), reversed(full), strict=False)
    if len(leading) > len(full) or any(
        length not in (1, known) for length, known in pairs
    ):
        what = f"leading axes that broadcast to {list(full)}, those of {found_in['*']}"
        raise ValueError(
            f"{spec.name}: expected {spec} with {what}; got shape {list(shape)}"
        )


def _pair(spec: Spec, shape: tuple[int, ...]) -> list[tuple[str, Any]]:
    """Return each axis of the declaration with its length, a group with its lengths."""
    at = spec.group
    rank = len(spec.axes) - (at is not None)
    if len(shape) < rank or (at is None and len(shape) > rank):
        wanted = f"at least {rank}" if at is not None else f"exactly {rank}"
        axes = "axis" if rank == 1 else "axes"
        raise ValueError(
            f"{spec.name}: expected {spec}, which has {wanted} {axes}; "
            f"got shape {list(shape)}"
        )
    if at is None:
        return list(zip(spec.axes, shape, strict=True))
    stop = at + len(shape) - rank
    return list(
        zip(spec.axes, (*shape[:at], shape[at:stop], *shape[stop:]), strict=True)
    )


def broadcast_groups(groups: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Broadcast the groups as NumPy's broadcast_shapes does, but also with the lengths
    that torch.compile does not know yet."""
    lengths: list[int] = []
    for column in zip_longest(
        *(reversed(group) for group in groups.values()), fillvalue=1
    ):
        lengths.append(next((length for length in column if length != 1), 1))
        if any(length not in (1, lengths[-1]) for length in column):
            shown = " and ".join(str(list(group)) for group in groups.values())
            names = ", ".join(groups)
            raise ValueError(
                f"{names}: expected leading axes that broadcast together; got {shown}"
            )
    return tuple(reversed(lengths))
