"""Judge a layer whose forward updates an array that its result depends on and that does
not depend on the inputs, such as the vectors of a spectral norm, which get no gradient.

Differences of forward include the update, and backward by intention does not. Where a
further forward leaves the array as it is, a power iteration has converged, and the
update does not contribute: there, differences judge the gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.attributes import Path, copied, held, numbers, numbers_in, put
from backpass.verify.case import Case
from backpass.verify.convert import (
    epsilon,
    in_dtype,
    is_floating,
    is_torch,
    to_kind_of,
)
from backpass.verify.findings import Findings
from backpass.verify.forms import Form, usual
from backpass.verify.magnitude import farthest, largest
from backpass.verify.methods import complex_step, contract, finite_difference
from backpass.verify.outputs import flat
from backpass.verify.report import FAILED, NOT_RUN, PASSED, Row
from backpass.verify.seeded import the_same_numbers
from backpass.verify.subject import Subject
from backpass.verify.tried import same
from backpass.verify.vary.rows import RowsOf

METHODS = ("finite_difference", "complex_step")
NAMES = (contract.NAME, finite_difference.NAME, complex_step.NAME)
HINT = (
    " in each call, and y depends on that: if backward intentionally has no gradient of "
    "the update, check the layer in a mode without it, such as after eval()"
)
MOST = 1000  # calls of forward until its state no longer changes
ELEMENTS = 10_000_000  # of the layer's numbers, in all these calls together
CHANGE = 64  # units in the last place by which settled numbers may change


class Update(NamedTuple):
    """The numbers that forward updates, the gradients of the parameters on which they
    depend, the case where a further forward leaves them unchanged, and its rows; no
    case if they do not settle."""

    names: str
    through: set[str]
    there: Case | None
    rows: dict[tuple[str, str], Row]

    @property
    def right(self) -> set[str]:
        """The gradients to which the update contributes, and which differences confirm
        where there is none."""
        by = {
            verdict: {
                of for (_, of), row in self.rows.items() if row.verdict == verdict
            }
            for verdict in (PASSED, FAILED)
        }
        return self.through & by[PASSED] - by[FAILED]

    @property
    def reason(self) -> str:
        """Why differences in any other state do not judge a gradient."""
        return (
            f"forward updates {self.names} in each call, and y depends on that. "
            "Differences include the update, and backward does not. Where a further "
            f"forward leaves {self.names} unchanged, they agree: check the layer in a "
            "mode without the update, such as after eval()"
        )

    def without(self, case: Case, quantities: set[str]) -> Case:
        """Return the case with those of these gradients as conventions that are right
        where forward updates nothing."""
        named = zip(case.quantities, case.differentiable, strict=True)
        inputs = (at for of, at in named if of in quantities & self.right)
        held = {case.subject.input_names[at]: self.reason for at in inputs}
        return replace(case, conventions={**case.conventions, **held})


def update_of(
    case: Case,
    given: tuple[Any, Sequence[Any], Mapping[str, Any]],
    subject_of: Callable[[Form], Subject],
    rows_of: RowsOf,
) -> Update | None:
    """Return the update of a layer or a module; None if y depends on none.

    ``given`` are the object, its inputs, and its options.
    """
    op, inputs, options = given
    try:
        if not (paths := _updated(op, inputs, options)):
            return None
        through = _through(paths, case, *given)
        layer, inputs = _settled(*_in_float64(op, inputs, options), options)
    except Exception:  # it may not be copied, or the check reports what it raises
        return None
    listed = " and ".join(".".join(map(str, path)) for path in paths)
    if layer is None:
        return Update(listed, through, None, {})
    form = usual(layer, inputs, options)
    there = replace(
        case, subject=subject_of(form), inputs=form.inputs, found=Findings()
    )
    judged = {(row.method, row.quantity): row for row in rows_of(there, METHODS)}
    return Update(listed, through, there, judged)


def is_wrong(rows: Sequence[Row]) -> bool:
    """Whether differences find a gradient wrong, at these inputs or at others."""
    return any(row.verdict == FAILED and row.method in NAMES for row in rows)


def reconsidered(
    rows: list[Row], case: Case, update: Update, rows_of: RowsOf
) -> tuple[list[Row], Case]:
    """Return the rows, those of gradients that differences find wrong where forward
    updates nothing; and the case for variations.

    A gradient that is right there is "not run", because nothing was compared in the
    state that was given. In the case that is returned, it is a convention.
    """
    wrong = {row.quantity for row in rows if row.verdict == FAILED}
    # The contract compares slopes at other inputs, where it names no gradient.
    wrong = {*case.quantities} if "all" in wrong else wrong
    without = update.without(case, wrong)

    def again(row: Row) -> list[Row]:
        key = row.method, row.quantity
        if row.verdict != FAILED or row.method not in NAMES:
            return [row]
        if row.method == contract.NAME:
            return rows_of(without, ["contract"])
        if row.quantity in update.right:
            return [Row(*key, NOT_RUN, reason=update.reason)]
        found = update.rows.get(key)
        if row.quantity not in update.through:
            return [row]
        if update.there is None:
            return [replace(row, note=f"forward updates {update.names}{HINT}")]
        if found is None or found.verdict != FAILED:
            return [row]
        case.found.suspects.pop(key, None)
        if suspect := update.there.found.suspects.get(key):
            case.found.suspects[key] = suspect
        return [replace(found, note=f"compared where forward leaves {update.names}")]

    return [one for row in rows for one in again(row)], without


def _updated(op: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Path]:
    """Return the paths of the numbers that a second forward with the same inputs
    changes, and on which a third depends. Return none if they depend on the inputs.

    All numbers of the layer are others than those given, for which an update may have
    settled.
    """
    layer = _copy(op)
    if layer is None:
        return []
    for path, value in _state(layer).items():
        _put(layer, path, _moved(value))
    _run(layer, inputs, options)  # it may fill caches
    y, before = _run(layer, inputs, options), _state(layer)
    third, after = _run(layer, inputs, options), _state(layer)
    if _same(y, third):
        return []
    changed = [
        path
        for path, value in after.items()
        if path in before and not same(value, before[path])
    ]
    expected = _run(_copy(layer), inputs, options)

    def matters(path: Path) -> bool:
        other = _copy(layer)
        _put(other, path, before[path])
        return not _same(_run(other, inputs, options), expected)

    found = [path for path in changed if matters(path)]
    # A recurrent state depends on the inputs, and has a gradient.
    others = [1.5 * x if is_floating(x) else x for x in inputs]
    other = _copy(layer)
    _run(other, others, options)
    _run(layer, inputs, options)
    now, then = _state(layer), _state(other)
    if not all(same(now[path], then[path]) for path in found):
        return []
    return found


def _through(
    paths: Sequence[Path],
    case: Case,
    op: Any,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
) -> set[str]:
    """Return the gradients of the parameters on which an update depends."""

    def after(at: int | None) -> dict[Path, np.ndarray]:
        """Return the updated numbers, after a parameter has changed."""
        layer = _copy(op)
        if at is not None and _is_module(layer):
            own = [of for of in layer.parameters() if of.requires_grad]
            parameter = own[at - len(inputs)]
            new = to_kind_of(parameter.data, _moved(numbers(parameter)))
            parameter.data.copy_(new)
        elif at is not None:
            for path, value in _state(layer).items():
                if same(value, case.float64[at]):
                    _put(layer, path, _moved(value))
        _run(layer, inputs, options)
        state = _state(layer)
        return {path: state[path] for path in paths}

    first = after(None)
    own = [at for at in case.differentiable if at >= len(inputs)]
    return {
        case.subject.quantity(at)
        for at in own
        if not all(same(x, first[path]) for path, x in after(at).items())
    }


def _moved(x: np.ndarray) -> np.ndarray:
    return x * (1 + 0.1 * np.sin(1 + np.arange(x.size))).reshape(x.shape)


def _in_float64(
    op: Any, inputs: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Any, Sequence[Any]]:
    """Return a copy of the layer and the inputs, in float64 if forward accepts that."""
    layer = _copy(op)
    if _is_module(layer):
        layer.double()
    for path, value in _leaves(layer).items():
        if is_array(value):
            put(layer, path, in_dtype(value, "float64"))
    wide = [in_dtype(value, "float64") for value in inputs]
    try:
        _run(_copy(layer), wide, options)
    except Exception:
        return _copy(op), inputs
    return layer, wide


def _settled(
    layer: Any, inputs: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Any, Sequence[Any]]:
    """Return the layer after so many forwards that a further one leaves its numbers
    unchanged, up to rounding, or None if they do not settle; and the inputs."""
    _run(layer, inputs, options)  # it may fill caches
    before = _state(layer)
    size = sum(value.size for value in before.values())
    for _ in range(min(MOST, ELEMENTS // max(size, 1))):
        _run(layer, inputs, options)
        if _near(layer, before):
            return layer, inputs
        before = _state(layer)
    return None, inputs


def _near(layer: Any, before: dict[Path, np.ndarray]) -> bool:
    """Whether the numbers of a layer are those before, up to its coarsest rounding."""
    now = _leaves(layer)
    unit = CHANGE * epsilon(*filter(is_array, now.values()), np.zeros(1))
    return now.keys() == before.keys() and all(
        np.shape(value) == before[path].shape
        and farthest(numbers(value), before[path]) <= unit * largest(before[path])
        for path, value in now.items()
    )


def _is_module(op: Any) -> bool:
    return callable(getattr(op, "named_buffers", None))


def _copy(op: Any) -> Any:
    """Return a copy of a layer or a module; None for an object of another kind."""
    if _is_module(op):
        return copy.deepcopy(op)
    if isinstance(op, type) or not getattr(op, "__dict__", {}):
        return None
    return copied(op)


def _run(
    layer: Any, inputs: Sequence[Any], options: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return the numbers of forward's outputs."""
    own = [*map(copy.deepcopy, inputs)]
    call = layer if _is_module(layer) else layer.forward
    if _is_module(layer):  # a checkpoint would warn of inputs without a gradient
        own = [
            x.requires_grad_().clone() if is_torch(x) and is_floating(x) else x
            for x in own
        ]
    with the_same_numbers():
        y = call(*own, **options)
    return [numbers(of) for of in flat(y) if is_floating(of) or isinstance(of, float)]


def _leaves(layer: Any) -> dict[Path, Any]:
    """Return the arrays and floats of a layer; of a module, without its parameters."""
    if not _is_module(layer):
        return dict(numbers_in(layer))
    found: dict[Path, Any] = {
        tuple(name.split(".")): value for name, value in layer.named_buffers()
    }
    for name, of in layer.named_modules():
        path = tuple(name.split(".")) if name else ()
        found |= {(*path, key): value for key, value in vars(of).items()}
    return {path: value for path, value in found.items() if is_floating(value)}


def _state(layer: Any) -> dict[Path, np.ndarray]:
    return {path: numbers(value) for path, value in _leaves(layer).items()}


def _put(layer: Any, path: Path, value: np.ndarray) -> None:
    old = held(layer, path)
    new = to_kind_of(old, value) if is_array(old) else value.item()
    put(layer, path, new)


def _same(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return len(some) == len(others) and all(map(same, some, others))
