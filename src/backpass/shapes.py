"""The one declaration of an operation's shapes, and the checks that follow from it.

``"x[*, n], w[n, p], b[p]? -> y[*, p]"`` reads: ``x`` has any leading axes and ``n`` columns, ``w`` is
``n`` by ``p``, ``b`` is optional, and ``y`` has the leading axes of ``x``.

- A letter is a length, the same wherever it stands.
- ``*`` stands for any number of leading axes, the same wherever it stands.
- ``*a`` and ``*b`` are leading axes that broadcast together; ``*`` is then what they broadcast to.
- ``n>0`` says that an axis may not be empty.
- ``?`` marks an input that may be None; ``:int`` one of integers, such as tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from backpass.arrays import Array, is_array, namespace, size

_ARRAY = re.compile(r"(?P<name>\w+)\[(?P<axes>[^\]]*)\](?P<integer>:int)?(?P<optional>\?)?")


@dataclass(frozen=True)
class Spec:
    """One array of a declaration: its axes are letters, and at most one group of any number of axes ("*", "*a")."""

    name: str
    axes: tuple[str, ...]
    nonempty: frozenset[str] = frozenset()
    optional: bool = False
    integer: bool = False

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.axes)}]"

    @property
    def group(self) -> int | None:
        """Where among the axes the group of any number of axes stands."""
        return next((i for i, axis in enumerate(self.axes) if axis.startswith("*")), None)


@dataclass(frozen=True)
class Shapes:
    """A parsed declaration. ``bind`` checks arrays against it and returns the lengths it found."""

    text: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]

    @property
    def letters(self) -> tuple[str, ...]:
        """The dimension letters in order of appearance."""
        axes = (axis for spec in (*self.inputs, *self.outputs) for axis in spec.axes)
        return tuple(dict.fromkeys(axis for axis in axes if not axis.startswith("*")))

    def bind(self, arrays: dict[str, Array | None]) -> dict[str, int | tuple[int, ...]]:
        """Lengths of letters and leading groups in the arrays given, inputs or outputs, by name.

        Raises ValueError naming the first array that does not fit.
        """
        lengths: dict[str, int | tuple[int, ...]] = {}
        found_in: dict[str, str] = {}
        for spec in self.inputs:
            if arrays.get(spec.name) is not None:
                _bind_one(spec, tuple(arrays[spec.name].shape), lengths, found_in)
        groups = [value for key, value in lengths.items() if key.startswith("*") and key != "*"]
        if groups and "*" not in lengths:
            lengths["*"] = _broadcast(groups, self.text)
        for spec in self.outputs:
            if arrays.get(spec.name) is not None:
                _bind_one(spec, tuple(arrays[spec.name].shape), lengths, found_in)
        return lengths

    def dimensions(self, arrays: dict[str, Array | None]) -> dict[str, int]:
        """What the FLOP formulas are given: each letter, ``m`` for the number of elements in the leading
        axes (``m_a`` for those of ``*a``), and ``has_b`` for each optional input ``b``."""
        found: dict[str, int] = {
            f"has_{spec.name}": arrays.get(spec.name) is not None for spec in self.inputs if spec.optional
        }
        for key, value in self.bind(arrays).items():
            if key.startswith("*"):
                found["m" if key == "*" else f"m_{key[1:]}"] = size(value)
            else:
                found[key] = value
        return found


@cache
def parse(text: str) -> Shapes:
    """Read a declaration. Raises ValueError when it is not one."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(f"a declaration of shapes has inputs, '->' and outputs; got {text!r}")
    return Shapes(text, _specs(left, text), _specs(right, text))


def _specs(part: str, text: str) -> tuple[Spec, ...]:
    specs = []
    # findall rather than finditer: torch.compile traces the one, and stops at the other.
    for name, listed, integer, optional in _ARRAY.findall(part):
        axes = [axis.strip() for axis in listed.split(",") if axis.strip()]
        nonempty = frozenset(axis.removesuffix(">0") for axis in axes if axis.endswith(">0"))
        axes = [axis.removesuffix(">0") for axis in axes]
        specs.append(Spec(name, tuple(axes), nonempty, bool(optional), bool(integer)))
    if _ARRAY.sub("", part).replace(",", "").strip() or not specs:
        raise ValueError(f"cannot read {part.strip()!r} in the declaration of shapes {text!r}")
    return tuple(specs)


def _bind_one(spec: Spec, shape: tuple[int, ...], lengths: dict, found_in: dict[str, str]) -> None:
    for axis, length in _pair(spec, shape):
        if axis in spec.nonempty and length == 0:
            raise ValueError(
                f"{spec.name}: expected {spec} with {axis} of at least 1; got shape {list(shape)}"
            )
        known = lengths.setdefault(axis, length)
        found_in.setdefault(axis, spec.name)
        if known != length:
            what = f"leading axes {list(known)}" if axis.startswith("*") else f"{axis} = {known}"
            raise ValueError(
                f"{spec.name}: expected {spec} with {what}, as in {found_in[axis]}; got shape {list(shape)}"
            )


def _pair(spec: Spec, shape: tuple[int, ...]) -> list[tuple[str, int | tuple[int, ...]]]:
    """Each axis of the declaration beside its length, the group beside its tuple of lengths."""
    at = spec.group
    rank = len(spec.axes) - (at is not None)
    if len(shape) < rank or (at is None and len(shape) > rank):
        wanted = f"at least {rank}" if at is not None else f"exactly {rank}"
        raise ValueError(f"{spec.name}: expected {spec}, which has {wanted} axes; got shape {list(shape)}")
    if at is None:
        return list(zip(spec.axes, shape, strict=True))
    stop = at + len(shape) - rank
    return list(zip(spec.axes, (*shape[:at], shape[at:stop], *shape[stop:]), strict=True))


def _broadcast(groups: list[tuple[int, ...]], text: str) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*groups)
    except ValueError:
        shown = " and ".join(str(list(group)) for group in groups)
        raise ValueError(f"leading axes {shown} do not broadcast together in {text!r}") from None


def check_inputs(text: str, **arrays: Array | None):
    """Refuse what the declaration rules out, before any arithmetic; return the arrays' namespace.

    Raises TypeError (not an array, mixed libraries, dtypes or devices) or ValueError (shapes).
    """
    shapes = parse(text)
    given = [spec for spec in shapes.inputs if arrays[spec.name] is not None or not spec.optional]
    for spec in given:
        _check_type(spec, arrays[spec.name])
    for spec in given[1:]:
        _check_same_home(spec.name, arrays[spec.name], arrays[given[0].name], f"{given[0].name}'s")
    floating = [spec.name for spec in given if not spec.integer]
    for name in floating[1:]:
        _check_same_dtype(name, arrays[name], arrays[floating[0]].dtype, f"{floating[0]}'s")
    shapes.bind(arrays)
    return namespace(*(arrays[spec.name] for spec in given))


def check_cotangent(dy: Array, shape: tuple[int, ...], like: Array | None = None):
    """Refuse a ``dy`` that is not of the output's shape, nor of the library, device and dtype of ``like``,
    an array that forward saved; return ``dy``'s namespace. Raises TypeError or ValueError."""
    _check_type(Spec("dy", ("*",)), dy)
    if like is not None:
        _check_same_home("dy", dy, like, "forward's")
        _check_same_dtype("dy", dy, like.dtype, "forward's")
    if tuple(dy.shape) != tuple(shape):
        raise ValueError(f"dy: expected the output's shape {list(shape)}; got shape {list(dy.shape)}")
    return namespace(dy)


def _check_type(spec: Spec, array: object) -> None:
    if not is_array(array):
        raise TypeError(f"{spec.name}: expected an array {spec}; got {type(array).__name__}")
    kinds = "integral" if spec.integer else ("real floating", "complex floating")
    if not namespace(array).isdtype(array.dtype, kinds):
        wanted = "integers" if spec.integer else "floating-point numbers"
        raise TypeError(f"{spec.name}: expected {wanted}; got dtype {array.dtype}")


def _check_same_home(name: str, array: Array, other: Array, whose: str) -> None:
    if namespace(array) is not namespace(other):
        raise TypeError(f"{name}: expected {whose} array library, {_library(other)}; got {_library(array)}")
    if _device(array) != _device(other):
        raise TypeError(f"{name}: expected {whose} device, {_device(other)}; got {_device(array)}")


def _check_same_dtype(name: str, array: Array, dtype: object, whose: str) -> None:
    if array.dtype != dtype:
        raise TypeError(f"{name}: expected {whose} dtype, {dtype}; got {array.dtype}")


def _library(array: Array) -> str:
    return type(array).__module__.partition(".")[0]


def _device(array: Array) -> str:
    return str(getattr(array, "device", "cpu"))
