"""Declare an operation's shapes and values in one line, and check shapes against it.

``"x[*, n], w[n, p], b[p]? -> y[*, p]"`` reads: ``x`` has any leading axes and ``n``
columns, ``w`` is ``n`` by ``p``, ``b`` is optional, and ``y`` has the leading axes of
``x``.

- A letter is a length, the same wherever it occurs. ``2k`` is twice the length ``k``;
  ``s+r`` is ``r`` more than ``s``, which an earlier array gives; ``g*n`` is ``g`` times
  ``n``, which another array gives.
- ``*`` stands for any number of leading axes, the same wherever it occurs.
- ``*a`` and ``*b`` are leading axes that broadcast together, to ``*``.
- ``n>0`` says that an axis may not be empty, and ``n>1`` that its length is at least 2.
  A number is a fixed length, and ``g+1`` is one more than ``g``.
- ``?`` marks an input that may be None, ``:int`` one of integers, such as tokens, and
  ``:bool`` one of booleans, such as a mask.
- ``:broadcast`` marks an input that is broadcast to the declared shape: it may have
  length 1 in place of any other length, and may lack leading axes.
- ``:shared`` marks an input of which only the axes of ``*`` are broadcast.

The values that an input may have are declared too, for checks:

- ``t[b]:int<V,-100`` holds integers from 0 to V − 1, and −100, which has a meaning of
  its own; the bound is a letter or a number. In ``:int<V,ignore_index`` that integer is
  the value of an option of forward.
- ``cu[g+1]:offsets<n`` holds integers in ascending order: the first is 0, the last n.
- ``:table`` marks floating-point numbers without a gradient; ``:halves`` a table whose
  last axis has two equal halves, ``:pairs`` one with equal neighbours.
- ``:mask`` marks a floating-point mask, ``:mask=0|-inf`` one with these values.
  ``:some`` after a mask or ``:bool`` says that each row has a True, or the largest
  value; ``:bool:some=False`` that each has a False, where True hides.

Clauses may follow the outputs, each after a semicolon: ``options reduction=mean|sum``
has values of options, ``dtypes float32, bfloat16`` those of inputs with a gradient, and
``kinks x=0|0.7`` the elements at which forward has no derivative.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from backpass.contract import domain
from backpass.contract.arrays import (
    Array,
    is_array,
    is_half,
    is_plain,
    name_of,
    namespace,
    size,
)
from backpass.contract.spec import (
    PAIRED,
    TWICE,
    Spec,
    bind_one,
    bind_product,
    broadcast_groups,
    check_broadcast,
    is_axis,
    is_product,
    letters_of,
)

Record = TypeVar("Record", bound=tuple)
_ARRAY = re.compile(
    r"(?P<name>\w+)\[(?P<axes>[^\]]*)\]"
    r"(?P<marks>(?::[^,;?:\[\]]*(?:,\s*(?:-?\d+\b|[a-zA-Z_]\w*\b(?!\[)))*)*)"
    r"(?P<optional>\?)?"
)


@dataclass(frozen=True)
class Shapes:
    """A parsed declaration. ``bind`` checks arrays against it.

    ``options`` has the values of each option in its clause, and ``kinks`` those of each
    input; ``dtypes`` are the names in its clause. Without a clause they are empty.
    """

    text: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    options: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    dtypes: tuple[str, ...] = ()
    kinks: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @property
    def letters(self) -> tuple[str, ...]:
        """The dimension letters in order of appearance."""
        axes = (axis for spec in (*self.inputs, *self.outputs) for axis in spec.axes)
        return tuple(
            dict.fromkeys(
                at
                for axis in axes
                if not axis.startswith("*")
                for at in letters_of(axis)
            )
        )

    @property
    def factors(self) -> frozenset[str]:
        """The letters that occur in a product, such as ``g*n``."""
        axes = (axis for spec in self.inputs for axis in spec.axes)
        return frozenset(
            letter for axis in axes if is_product(axis) for letter in letters_of(axis)
        )

    @property
    def least(self) -> dict[str, int]:
        """The declared smallest length of each letter that has one."""
        found: dict[str, int] = {}
        for spec in (*self.inputs, *self.outputs):
            for letter, least in spec.least:
                found[letter] = max(least, found.get(letter, 0))
        return found

    @property
    def tables(self) -> tuple[str, ...]:
        """The floating-point inputs that have no gradient."""
        return tuple(spec.name for spec in self.inputs if spec.structure)

    @property
    def multiples(self) -> dict[str, int]:
        """The letters whose length is even, because a table has halves or pairs."""
        return {
            letter: 2
            for spec in self.inputs
            if spec.structure in PAIRED and spec.axes
            for letter in letters_of(spec.axes[-1])
            if letter == spec.axes[-1]
        }

    def bind(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the lengths of letters and leading groups, given arrays by name.

        The arrays may be inputs or outputs. Raises ValueError for the first array that
        does not fit.
        """
        lengths: dict[str, Any] = {}
        found_in: dict[str, str] = {}
        given = [spec for spec in self.inputs if arrays.get(spec.name) is not None]
        products = []
        for spec in given:
            if not (spec.broadcast or spec.shared):
                shape = tuple(arrays[spec.name].shape)
                products += [
                    (spec, shape, *at)
                    for at in bind_one(spec, shape, lengths, found_in)
                ]
        for product in products:
            bind_product(*product, lengths, found_in)
        groups = {
            found_in[key]: value
            for key, value in lengths.items()
            if key.startswith("*") and key != "*"
        }
        if groups and "*" not in lengths:
            lengths["*"] = broadcast_groups(groups)
        for spec in given:
            if spec.broadcast or spec.shared:
                check_broadcast(spec, tuple(arrays[spec.name].shape), lengths, found_in)
        for spec in self.outputs:
            if arrays.get(spec.name) is not None:
                shape = tuple(arrays[spec.name].shape)
                for at in bind_one(spec, shape, lengths, found_in):
                    bind_product(spec, shape, *at, lengths, found_in)
        return lengths

    def dimensions(self, arrays: Mapping[str, Any]) -> dict[str, int]:
        """Return the arguments of the FLOP formulas.

        These are the length of each letter; ``m``, the number of elements in the
        leading axes (``m_a`` for those of ``*a``); ``has_b`` for each optional input
        ``b``; and ``size_b``, the number of elements of each input ``b`` that is
        broadcast.
        """
        dimensions: dict[str, int] = {
            f"has_{spec.name}": arrays.get(spec.name) is not None
            for spec in self.inputs
            if spec.optional
        }
        for spec in self.inputs:
            if spec.broadcast:
                array = arrays.get(spec.name)
                elements = 0 if array is None else size(array.shape)
                dimensions[f"size_{spec.name}"] = elements
        for key, value in self.bind(arrays).items():
            if key.startswith("*"):
                dimensions["m" if key == "*" else f"m_{key[1:]}"] = size(value)
            else:
                dimensions[key] = value
        return dimensions


@cache
def parse(text: str) -> Shapes:
    """Parse a declaration. Raises ValueError if it cannot be read."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(
            f"a declaration of shapes: expected inputs, '->' and outputs; got {text!r}"
        )
    right, *others = right.split(";")
    shapes = Shapes(text, _specs(left, text), _specs(right, text))
    if others:
        shapes = replace(shapes, **domain.clauses(others))
    return shapes if _is_plain(shapes) else _checked(shapes)


def _specs(part: str, text: str) -> tuple[Spec, ...]:
    specs = []
    # findall rather than finditer: torch.compile can trace findall, but not finditer.
    for name, listed, marks, optional in _ARRAY.findall(part):
        axes = [axis.strip() for axis in listed.split(",") if axis.strip()]
        parts = [axis.partition(">") for axis in axes]
        least = [_least(f"{name}[{listed}]", *part) for part in parts if part[1]]
        axes = [axis.strip() for axis, _, _ in parts]
        for axis in axes:
            if axis[0].isdigit() and not axis.isdigit() and not axis.startswith(TWICE):
                raise ValueError(
                    f"{name}[{listed}]: expected no factor but 2 before a letter; got "
                    f"{axis}: write g*{axis[1:]}, with a letter g"
                )
            if not is_axis(axis):
                raise ValueError(
                    f"SHAPES: {name}[{listed}]: expected a letter, a number, *, 2n, n+1, s+r or "
                    f"g*n for each axis, and n>k for a letter; got {axis}"
                )
        facts = domain.marks(f"{name}[{listed}]", marks) if marks else {}
        specs.append(Spec(name, tuple(axes), tuple(least), bool(optional), **facts))
    if _ARRAY.sub("", part).replace(",", "").strip() or not specs:
        raise ValueError(
            f"cannot read {part.strip()!r} in the declaration of shapes {text!r}"
        )
    return tuple(specs)


def _least(array: str, axis: str, sign: str, number: str) -> tuple[str, int]:
    """Return the letter of an axis such as ``n>1``, and its smallest length."""
    letter, more = axis.strip(), number.strip()
    if not letter.isidentifier() or not more.isdigit():
        least = more.removeprefix("=").strip()
        hint = ""
        if letter.isidentifier() and least.isdigit() and int(least):
            hint = f": write {letter}>{int(least) - 1}"
        raise ValueError(
            f"SHAPES: {array}: expected a letter before > and a number after it, such as n>1 "
            f"for a length of at least 2; got {axis}{sign}{number}{hint}"
        )
    return letter, int(more) + 1


def _is_plain(shapes: Shapes) -> bool:
    """Whether a declaration states no values."""
    specs = (*shapes.inputs, *shapes.outputs)
    return not any([spec.below or spec.structure or spec.some for spec in specs])


def _checked(shapes: Shapes) -> Shapes:
    """Return the declaration. Raises ValueError if its values do not fit its axes."""
    letters = [letter for spec in shapes.inputs for letter in _all_letters(spec)]
    for spec in shapes.outputs:
        if spec.below or spec.structure or spec.some:
            raise ValueError(
                f"SHAPES: expected values of inputs only; got those of the output {spec}"
            )
    for spec in shapes.inputs:
        if spec.below and not spec.below.isdigit() and spec.below not in letters:
            raise ValueError(
                f"SHAPES: expected a number or the letter of an axis after {spec}'s <; "
                f"got {spec.below}, which is not a letter of an input's axes"
            )
        if spec.offsets and len(spec.axes) != 1:
            raise ValueError(f"SHAPES: expected one axis of offsets; got {spec}")
        if (spec.some or spec.structure in PAIRED) and not spec.axes:
            kind = "rows" if spec.some else spec.structure
            raise ValueError(
                f"SHAPES: expected an axis in an array of {kind}; got {spec}"
            )
    return shapes


def _all_letters(spec: Spec) -> list[str]:
    return [
        letter
        for axis in spec.axes
        if not axis.startswith("*")
        for letter in letters_of(axis)
    ]


def check_inputs(text: str, wide: tuple[str, ...] = (), /, **arrays: Array | None):
    """Check the arrays against the declaration ``text``; return their namespace.

    The inputs in ``wide`` may be float32 where the first floating-point one has half
    precision. Raises TypeError if an input is not an array, has the wrong kind of
    dtype, or otherwise differs from the others in library, device or dtype, and
    ValueError if a shape does not fit.
    """
    facts: list[Any] = []
    for name, array in arrays.items():
        if array is None:
            facts += name, None
        elif is_plain(array):
            facts += name, type(array), array.shape, array.dtype, array.device
        else:
            return _check(text, wide, arrays)
    call = text, wide, *facts
    found = _PASSED.get(call)
    if found is None:
        found = _remember(call, _check(text, wide, arrays))
    return found


def _remember(call: tuple, namespace: Any) -> Any:
    """Note that a call has passed; return the namespace."""
    if len(_PASSED) >= MOST_CALLS:
        _PASSED.clear()
    return _PASSED.setdefault(call, namespace)


# The namespaces of calls that have passed, by all that matters to the check.
_PASSED: dict[tuple, Any] = {}
MOST_CALLS = 1024


def _check(text: str, wide: tuple[str, ...], arrays: dict[str, Array | None]):
    shapes = parse(text)
    given = [
        spec
        for spec in shapes.inputs
        if arrays[spec.name] is not None or not spec.optional
    ]
    for spec in given:
        _check_type(spec, arrays[spec.name], shapes.inputs)
    kinds = {spec.name: kind(arrays[spec.name]) for spec in given}
    floating = next((spec.name for spec in given if spec.floating), "")
    for spec in given[1:]:
        first = given[0].name
        _check_same(
            spec.name,
            kinds[spec.name],
            kinds[first],
            f"{first}'s",
            ("library", "device"),
        )
        may_be_wide = spec.name in wide and is_half(kinds[floating].dtype)
        is_wide = may_be_wide and name_of(kinds[spec.name].dtype) == "float32"
        if spec.floating and not is_wide:
            _check_same(
                spec.name,
                kinds[spec.name],
                kinds[floating],
                f"{floating}'s",
                ("dtype",),
                ", or float32" if may_be_wide else "",
            )
    shapes.bind(arrays)
    return namespace(*(arrays[spec.name] for spec in given))


class Kind(NamedTuple):
    """What a gradient shares with the arrays of the forward pass.

    An operation that saves no array saves this instead.
    """

    library: str
    device: str
    dtype: object


class Outline(NamedTuple):
    """The shape and kind of an array that ``forward`` does not save."""

    shape: tuple[int, ...]
    library: str
    device: str
    dtype: object


def kind(array: Array | Outline) -> Kind:
    """Return the library, device and dtype of an array or of an outline."""
    if isinstance(array, Outline):
        return Kind(*array[1:])
    library = namespace(array).__name__.rpartition(".")[2]
    return Kind(library, str(getattr(array, "device", "cpu")), array.dtype)


def check_cotangent(dy: Array, shape: tuple[int, ...], like: Array | Outline | Kind):
    """Check ``dy`` against the output; return its namespace.

    It must have the output's shape and the kind of ``like``, which is an array that
    forward saved, or the outline or the kind of one. Raises TypeError for a wrong kind
    and ValueError for a wrong shape.
    """
    is_known = type(like) in (Outline, Kind)
    if not (is_plain(dy) and (is_known or is_plain(like))):
        return _check_cotangent(dy, shape, like)
    of = like if is_known else (type(like), like.dtype, like.device)
    call = type(dy), dy.shape, dy.dtype, dy.device, tuple(shape), of
    found = _PASSED.get(call)
    if found is None:
        found = _remember(call, _check_cotangent(dy, shape, like))
    return found


def _check_cotangent(dy: Array, shape: tuple[int, ...], like: Array | Outline | Kind):
    _check_type(Spec("dy", ("*",) if shape else ()), dy)
    expected = like if isinstance(like, Kind) else kind(like)
    _check_same("dy", kind(dy), expected, "forward's", Kind._fields)
    if tuple(dy.shape) != tuple(shape):
        raise ValueError(
            f"dy: expected the output's shape {list(shape)}; got shape {list(dy.shape)}"
        )
    return namespace(dy)


def check_saved(saved: Any, expected: type[Record]) -> Record:
    """Return ``saved`` if forward returned it second. Raises TypeError otherwise.

    A Saved belongs to one module. That of a different operation is rejected, and so is
    the kernel's where the operation's is expected.
    """
    came = type(saved)
    if came is not expected and _identity(came) != _identity(expected):
        wanted = f"Saved({', '.join(_identity(expected)[2])})"
        raise TypeError(
            f"saved: expected what forward returned second, {wanted}; "
            f"got {_whose(came, expected)}"
        )
    return saved


def _identity(kind: type) -> tuple:
    """Return where a class is defined, and its fields. The class object itself changes
    when its module is reloaded."""
    return kind.__module__, kind.__qualname__, getattr(kind, "_fields", None)


def _whose(came: type, expected: type) -> str:
    """Return the name of a class; for a Saved, with its module."""
    if came.__name__ != "Saved":
        return came.__name__
    stem = came.__module__.rpartition(".")[2]
    of_this_stem = stem == expected.__module__.rpartition(".")[2]
    return (
        f"{came.__module__.removeprefix('backpass.') if of_this_stem else stem}'s Saved"
    )


# Of an input's dtype: the array API's kinds, and the words for them.
_INTEGERS = ("integral", "integers")
_BOOLEANS = ("bool", "booleans")
_NUMBERS = (("real floating", "complex floating"), "floating-point numbers")


def _check_type(spec: Spec, array: Any, inputs: Sequence[Spec] = ()) -> None:
    if not is_array(array):
        raise TypeError(
            f"{spec.name}: expected an array {spec}; got {type(array).__name__}"
        )
    if isinstance(array, np.matrix | np.ma.MaskedArray):
        raise TypeError(
            f"{spec.name}: expected an array; got {type(array).__name__}, which computes "
            f"otherwise: pass numpy.asarray({spec.name})"
        )
    isdtype = namespace(array).isdtype
    kinds, wanted = _kinds_of(spec)
    if not isdtype(array.dtype, kinds):
        # A bias and a mask have the same axes, and are easily exchanged.
        other = next(
            (
                f"; {words} are given as {one.name}"
                for one in inputs
                for its_kinds, words in [_kinds_of(one)]
                if (one.axes, one.broadcast) == (spec.axes, spec.broadcast)
                and isdtype(array.dtype, its_kinds)
            ),
            "",
        )
        raise TypeError(
            f"{spec.name}: expected {wanted}; got dtype {array.dtype}{other}"
        )


def _kinds_of(spec: Spec) -> tuple[Any, str]:
    return _INTEGERS if spec.integer else _BOOLEANS if spec.boolean else _NUMBERS


def _check_same(
    name: str,
    came: Kind,
    expected: Kind,
    whose: str,
    facts: Sequence[str],
    other: str = "",
) -> None:
    for fact in facts:
        if getattr(came, fact) != getattr(expected, fact):
            what = "array library" if fact == "library" else fact
            raise TypeError(
                f"{name}: expected {whose} {what}, {getattr(expected, fact)}{other}; "
                f"got {getattr(came, fact)}"
            )
