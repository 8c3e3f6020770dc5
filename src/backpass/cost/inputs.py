"""Load an operation, and turn its arguments into named inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from backpass import ops
from backpass.contract.arrays import Array, is_array
from backpass.operation import Operation

SEED = 0  # for inputs given as shapes, and for the cotangent


def load(op: object) -> Any:
    """Return a stem's module, or an object with forward and backward as it is.

    Raises LookupError for an unknown stem, and TypeError for any other object.
    """
    op = ops.load(op) if isinstance(op, str) else op
    for part in ("forward", "backward"):
        if not callable(getattr(op, part, None)):
            raise TypeError(
                "op: expected a stem or an object with forward and backward; "
                f"got {op!r}"
            )
    return op


def drawn(op: Any, inputs: Sequence[object]) -> dict[str, Array | None]:
    """Return the inputs by name, with random arrays in place of shapes.

    They are standard normal numbers in float64, made positive or scaled where the
    operation requires that, or random booleans. Raises TypeError for too few or too
    many inputs, and for one that is neither an array, nor a shape, nor None. Raises
    ValueError for the shape of an array of integers, because their range is not known
    here.
    """
    operation = Operation(op)
    specs = {spec.name: spec for spec in operation.inputs}
    rng = np.random.default_rng(SEED)

    def draw(key: str, shape: tuple[int, ...]) -> np.ndarray:
        spec = specs.get(key)
        if spec and spec.integer:
            raise ValueError(
                f"{key}: expected an array of integers; "
                f"got only the shape {list(shape)}"
            )
        if spec and spec.boolean:
            return rng.random(shape) < 0.5
        return operation.suited(key, rng.standard_normal(shape))

    return _named(op, inputs, draw)


def stand_ins(op: Any, inputs: Sequence[object]) -> dict[str, Array | None]:
    """Return the inputs by name, with zeros that take no memory in place of shapes.

    This is enough to read lengths from.
    """
    return _named(op, inputs, lambda _, shape: np.broadcast_to(np.float64(0), shape))


def _named(
    op: Any, inputs: Sequence[object], make: Callable
) -> dict[str, Array | None]:
    specs = Operation(op).inputs
    names = [spec.name for spec in specs] or _parameters(op.forward)[: len(inputs)]
    last = max((at for at, x in enumerate(specs) if not x.optional), default=None)
    required = len(inputs) if last is None else last + 1
    if not required <= len(inputs) <= len(names):
        most = "" if required == len(names) else f" to {len(names)}"
        raise TypeError(
            f"{Operation(op).name}: expected {required}{most} inputs, "
            f"{', '.join(names)}; got {len(inputs)}"
        )
    arrays = dict.fromkeys(names)
    for key, value in zip(names, inputs, strict=False):
        if value is not None and not is_array(value) and not _is_shape(value):
            raise TypeError(
                f"{key}: expected an array, a shape such as (2, 3), or None; "
                f"got {value!r}"
            )
        arrays[key] = value
        if isinstance(value, (tuple, list)):
            arrays[key] = make(key, tuple(value))
    return arrays


def _parameters(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [
        p.name
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


def _is_shape(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(
        isinstance(n, Integral) and int(n) >= 0 for n in value
    )
