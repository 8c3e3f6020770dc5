"""Obey the values that a declaration states: check given ones, and draw others.

``contract.shapes`` explains the declaration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backpass.contract.arrays import is_array, namespace
from backpass.contract.shapes import Shapes, Spec
from backpass.contract.spec import PAIRED
from backpass.verify.arguments import reject_unknown
from backpass.verify.convert import dtype_name, is_floating, to_numpy

APART = 1 / 16  # times 1 or the kink, the larger: the least distance from a kink


def check_names(
    name: str, shapes: Shapes, inputs: Sequence[str], options: Sequence[str] | None
) -> None:
    """Raise ValueError for an option or an input that is declared but that the object
    does not have. ``options`` is None if its forward takes any."""
    if options is not None:
        named = [of for of, _ in shapes.options]
        reject_unknown(f"SHAPES: options of {name}", named, options)
        named = [of for spec in shapes.inputs for of in spec.named]
        reject_unknown(f"SHAPES: integers of {name}", named, options)
    reject_unknown(f"SHAPES: kinks of {name}", [of for of, _ in shapes.kinks], inputs)


def with_options(shapes: Shapes, options: Mapping[str, object]) -> Shapes:
    """Return the declaration with the values of the options that it names for
    integers. One that is None names no integer."""
    if not any(spec.named for spec in shapes.inputs):
        return shapes

    def valued(spec: Spec) -> Spec:
        values = (options.get(name) for name in spec.named)
        known = [value for value in values if type(value) is int]
        new = [value for value in known if value not in spec.sentinels]
        return replace(spec, sentinels=(*spec.sentinels, *new), named=())

    return replace(shapes, inputs=tuple(map(valued, shapes.inputs)))


def check_options(shapes: Shapes, options: Mapping[str, object]) -> None:
    """Raise ValueError for an option whose value is not declared."""
    for name, values in shapes.options:
        given = options.get(name, values[0])
        if not any(_equal(given, value) for value in values):
            listed = " or ".join(map(repr, values))
            raise ValueError(
                f"{name}: expected {listed}, as SHAPES declares; got {given!r}"
            )


def _equal(given: object, value: object) -> bool:
    return (type(given) is type(value) and given == value) or given is value


def check_dtypes(shapes: Shapes, given: Mapping[str, Any]) -> None:
    """Raise TypeError for an array whose dtype is not declared."""
    for name, value in given.items():
        if shapes.dtypes and dtype_name(value) not in shapes.dtypes:
            listed = " or ".join(shapes.dtypes)
            raise TypeError(
                f"{name}: expected {listed}, as SHAPES declares; "
                f"got {dtype_name(value)}"
            )


def check_values(shapes: Shapes, given: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError for an array that has other values than declared.

    Its shapes have to fit.
    """
    lengths: Mapping[str, Any] | None = None
    for spec in shapes.inputs:
        value = given.get(spec.name)
        if value is None or not (spec.below or spec.structure or spec.some):
            continue
        lengths = shapes.bind(given) if lengths is None else lengths
        integers = namespace(value).isdtype(value.dtype, "integral")
        if (spec.below and not integers) or (spec.structure and not is_floating(value)):
            kind = "integers" if spec.below else "floating-point numbers"
            raise TypeError(
                f"{spec.name}: expected {kind}, as SHAPES declares; "
                f"got {dtype_name(value)}"
            )
        if problem := _problem(spec, to_numpy(value), lengths):
            expected, got = problem
            raise ValueError(
                f"{spec.name}: expected {expected}, as SHAPES declares; got {got}"
            )


def _problem(
    spec: Spec, values: np.ndarray, lengths: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return what a declared input should hold and what it holds, if they differ."""
    below = bound(spec, lengths)
    if spec.offsets:
        if below is None:
            return None
        if values.size and (np.diff(values) >= 0).all():
            if values[0] == 0 and values[-1] == below:
                return None
        ends = f"{values[0]} … {values[-1]}" if values.size else "no integers"
        in_order = values.size < 2 or (np.diff(values) >= 0).all()
        got = ends if in_order else f"{ends} in another order"
        return f"integers in ascending order from 0 to {spec.below} = {below}", got
    if below is not None:
        wrong = (values < 0) | (values >= below)
        wrong &= ~np.isin(values, spec.sentinels)
        most = f"{spec.below} − 1 = {below - 1}"
        most = str(below - 1) if spec.below.isdigit() else most
        others = "".join(f" or {sentinel}" for sentinel in spec.sentinels)
        expected = f"integers from 0 to {most}{others}"
    elif spec.structure in PAIRED:
        if values.shape[-1] % 2:
            return "an even length of the last axis", f"shape {list(values.shape)}"
        wrong = ~np.isclose(values, _paired(spec, values), equal_nan=True)
        expected = "two equal halves of the last axis"
        if spec.structure == "pairs":
            expected = "pairs of equal neighbours along the last axis"
    elif spec.choices:
        wrong = ~np.isin(values, spec.choices)
        expected = f"only {' and '.join(f'{choice:g}' for choice in spec.choices)}"
    else:
        return _hiding(spec, values)
    if not wrong.any():
        return _hiding(spec, values)
    at = np.argwhere(wrong)[0]
    return expected, f"{values[tuple(at)]:g} at index {at.tolist()}"


def _hiding(spec: Spec, values: np.ndarray) -> tuple[str, str] | None:
    """Return what a mask should hold and what it holds, if a row hides everything."""
    if not spec.some or not values.size:
        return None
    hidden = ~(values == shown(spec, values)).any(-1)
    if not hidden.any():
        return None
    what = f"{shown(spec, values):g} in each row"
    at = np.argwhere(hidden)[0].tolist()
    what = f"a {not spec.inverted} in each row" if spec.boolean else what
    return what, f"none in row {at}"


def shown(spec: Spec, values: np.ndarray) -> float:
    """Return the value with which a mask hides nothing: the largest, but False where
    True hides. In a mask without declared values it is at least 0."""
    return of_choices(spec, spec.choices or (float(values.max(initial=0.0)),))


def of_choices(spec: Spec, choices: Sequence[float]) -> float:
    """Return that of a mask's values with which it hides nothing."""
    return not spec.inverted if spec.boolean else max(choices)


def fits(shapes: Shapes, given: Mapping[str, Any]) -> bool:
    """Whether arrays have the declared shapes and values."""
    arrays = {name: value for name, value in given.items() if is_array(value)}
    try:
        shapes.bind(arrays)
        check_values(shapes, arrays)
    except (TypeError, ValueError):
        return False
    return True


def bound(spec: Spec, lengths: Mapping[str, Any]) -> int | None:
    """Return the number below which an input's integers are declared to be, if any. It
    is also None if no array that was given has its letter."""
    if spec.below.isdigit():
        return int(spec.below)
    return lengths.get(spec.below) if spec.below else None


# Values


def drawn_integers(
    spec: Spec, shape: tuple[int, ...], below: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw integers of the declared range, or offsets."""
    values = rng.integers(0, max(1, below), shape)
    if not spec.offsets:
        return values
    values = np.sort(values)
    values[-1:], values[:1] = below, 0
    return values


def with_sentinels(
    spec: Spec, values: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the integers with each sentinel in a place of its own, if they have twice
    as many places."""
    if values.size >= 2 * len(spec.sentinels) > 0:
        values = values.copy()
        places = rng.permutation(values.size)[: len(spec.sentinels)]
        values.reshape(-1)[places] = spec.sentinels
    return values


def mask_values(spec: Spec, given: np.ndarray) -> tuple[float, ...]:
    """Return the values of a mask: those that are declared, or the least and the
    largest that were given. A mask of only 0 may also have −∞, and one of only 1 also
    0."""
    if spec.boolean:
        return (False, True)
    if spec.choices or not given.size:
        return spec.choices or (0.0, 1.0)
    least, largest = float(given.min()), float(given.max())
    if least != largest:
        return (least, largest)
    return {0.0: (-np.inf, 0.0), 1.0: (0.0, 1.0)}.get(least, (least,))


def drawn_mask(
    spec: Spec,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    values: Sequence[float] = (0.0, 1.0),
) -> np.ndarray:
    """Draw a mask of the declared values, or of others. More than three elements of
    four hide nothing."""
    choices = spec.choices or values
    kept = rng.uniform(size=shape) < 0.75
    drawn = np.where(kept, of_choices(spec, choices), rng.choice(choices, shape))
    return not_hidden(spec, drawn)


def not_hidden(spec: Spec, values: np.ndarray) -> np.ndarray:
    """Return a mask in which no row has only −∞, and if the declaration says so, no row
    hides everything. The first element of such a row has another value."""
    if values.ndim and values.shape[-1]:
        instead = shown(spec, values)
        hidden = values != instead if spec.some else np.isneginf(values)
        values[..., 0] = np.where(hidden.all(-1), instead, values[..., 0])
    return values


def structured(spec: Spec, values: np.ndarray) -> np.ndarray:
    """Return the values with the structure of a declared table."""
    return _paired(spec, values) if spec.structure in PAIRED else values


def _paired(spec: Spec, values: np.ndarray) -> np.ndarray:
    half = values.shape[-1] // 2
    if spec.structure == "pairs":
        return np.repeat(values[..., : 2 * half : 2], 2, -1)
    return np.concatenate([values[..., :half]] * 2, -1)


def repeated_table(
    spec: Spec | None, values: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Return a table with each axis repeated, or cut, to the length in ``shape``, which
    may have more leading axes. Equal halves or pairs of columns remain equal, in a
    table without a declared structure too."""
    kinds = (spec.structure,) if spec and spec.structure in PAIRED else PAIRED
    for kind in kinds if values.ndim and shape[-1] != values.shape[-1] else ():
        paired = Spec("", (), structure=kind)
        if values.shape[-1] % 2 or not np.array_equal(values, _paired(paired, values)):
            continue
        half = values.shape[-1] // 2
        columns = values[..., ::2] if kind == "pairs" else values[..., :half]
        narrow = _repeated(columns, (*shape[:-1], -(-shape[-1] // 2)))
        twice = np.concatenate([narrow, narrow], -1)
        wide = np.repeat(narrow, 2, -1) if kind == "pairs" else twice
        return wide[..., : shape[-1]]
    return _repeated(values, shape)


def _repeated(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values with each axis repeated, or cut, to the length in ``shape``,
    which may have more leading axes."""
    own = shape[len(shape) - values.ndim :]
    at = np.ix_(*(np.arange(n) % old for n, old in zip(own, values.shape, strict=True)))
    return np.broadcast_to(values[at], shape).copy()


def away(shapes: Shapes | None, name: str, values: np.ndarray) -> np.ndarray:
    """Return an input's values, those near a declared kink moved away from it."""
    for kink in _kinks(shapes, name):
        least = _apart(kink)
        side = np.where(values < kink, -least, least)
        values = np.where(np.abs(values - kink) < least, kink + side, values)
    return values


def is_away(shapes: Shapes | None, given: Mapping[str, Any]) -> bool:
    """Whether kinks are declared, and no element of the arrays is near one."""
    if shapes is None or not shapes.kinks:
        return False
    return not any(
        (np.abs(to_numpy(given[name]) - kink) < _apart(kink) / 2).any()
        for name, kinks in shapes.kinks
        for kink in kinks
        if is_array(given.get(name))
    )


def _kinks(shapes: Shapes | None, name: str) -> Sequence[float]:
    return dict(shapes.kinks).get(name, ()) if shapes else ()


def _apart(kink: float) -> float:
    return APART * max(1.0, abs(kink))


def has_kink(shapes: Shapes | None, name: str, at: float) -> bool:
    """Whether an input is declared to have a kink there."""
    return at in _kinks(shapes, name)


def drawn_dtype(shapes: Shapes) -> str:
    """Return the dtype of drawn inputs: float64, or the first that is declared."""
    declared = shapes.dtypes or ("float64",)
    return "float64" if "float64" in declared else declared[0]


def with_sentinel(spec: Spec, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield integers with each sentinel in one place, and in a whole row, with their
    description."""
    for sentinel in spec.sentinels:
        one, row = values.copy(), values.copy()
        one.reshape(-1)[-1] = sentinel
        row[0 if values.ndim > 1 else ...] = sentinel
        yield f"{sentinel} in {spec.name}", one
        yield f"only {sentinel} in a row of {spec.name}", row
