"""Check the requirements on a backward apart from its numbers.

It returns a real gradient of the right shape for each input given, None for each input
left out, and 0 where an input is infinite. It modifies nothing. It returns the same
gradients on a second call, from arrays of other strides, after a forward with other
inputs, and when an input is frozen. In low precision, they are finite where y is and
where they are in float64. If it takes ``wanted``, it does not compute the
other gradients. The shapes must be right for an empty batch too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.contract.shapes import Shapes
from backpass.verify.case import Case, NotRun
from backpass.verify.convert import dtype_name, to_kind_of, to_numpy
from backpass.verify.diagnosis.places import index_text
from backpass.verify.drawing import draw_like
from backpass.verify.memory import Run, another_call, other_strides
from backpass.verify.methods.autograd import differentiate
from backpass.verify.methods.pytorch import bound_operator
from backpass.verify.outputs import named_arrays
from backpass.verify.report import FAILED, PASSED, Row
from backpass.verify.state import state_faults
from backpass.verify.unwanted import unwanted_faults

NAME = "contract"
HOW = (
    "a gradient of the right shape for each input; nothing modified; the same on a "
    "second call and for other strides"
)
HOW_WITH_STATE = f"{HOW}, and after other inputs"
# A gradient beyond it is infinite in that dtype.
LARGEST = {"float32": 3.4e38, "bfloat16": 3.4e38, "float16": 65504.0}
# Leading axes of an empty batch; a factor's axis is broadcast to it.
EMPTY = {"*": (0,), "*a": (1,), "*b": (0,)}


def run(case: Case) -> list[Row]:
    """Return one row, for all quantities."""
    done = Run(case)
    faults = list(_faults(done))
    faults = faults or list(another_call(done))
    faults = faults or [*other_strides(done), *_where_infinite(done)]
    how = HOW
    faults = faults or list(_overflows(done))
    if not faults and not case.subject.stateless:
        faults = list(state_faults(done))
        how = HOW_WITH_STATE
    if case.subject.told:
        how = f"{how}; unwanted gradients left out"
        most = None if case.explain else 1
        faults = faults or list(islice(unwanted_faults(done), most))
    if case.subject.shapes:
        how = f"{how}; its dtype; an empty batch too"
        empty = _faults(Run(_emptied(case)))
        faults += [f"for an empty batch, {fault}" for fault in empty]
    elif dtype_name(done.y) != case.dtype:
        how = f"{how}; forward returned {dtype_name(done.y)} for {case.dtype}"
    verdict = FAILED if faults else PASSED
    return [Row(NAME, "all", verdict, how=how, reason="; ".join(faults))]


def _emptied(case: Case) -> Case:
    assert case.subject.shapes is not None
    drawn = draw_like(case.subject.shapes, case.rng, case.inputs, leading=EMPTY)
    inputs = [
        None if value is None else to_kind_of(given, value)
        for value, given in zip(drawn, case.inputs, strict=False)
    ]
    rest = case.inputs[len(inputs) :]  # such as a Function's options
    return replace(case, inputs=(*inputs, *rest), given_dy=None)


def _faults(done: Run) -> Iterator[str]:
    """Yield faults of the output, of the gradients' form, and modified arrays."""
    case = done.case
    if case.subject.shapes:
        yield from _output_faults(case, case.subject.shapes, done)
    undefined = np.isnan(case.y_as_given)
    # An operation that declares SHAPES may return NaN by design: the mean of no rows.
    if undefined.any() and case.finite and not case.subject.shapes:
        yield (
            f"y is NaN at index {np.argwhere(undefined)[0].tolist()}, though every input is finite: no gradient can be "
            "judged there"
        )
    arrays = {name: (of, to_numpy(of)) for name, of in (("y", done.y), ("dy", done.dy))}
    names = case.subject.input_names
    inputs = zip(names, done.inputs, case.float64, strict=False)
    arrays |= {name: (now, before) for name, now, before in inputs if is_array(now)}
    for name, now in named_arrays(done.saved):
        if all(now is not known for known, _ in arrays.values()):
            name = name if name.startswith("saved") else f"saved.{name}"
            arrays[name] = (now, to_numpy(now))

    without = [names[at] for at in case.differentiable if done.gradients[at] is None]
    constants = ""
    if 0 < len(without) < len(case.differentiable):
        listed = ", ".join(f'"{name}"' for name in without)
        constants = (
            f"; if this is intended, give constants=[{listed}], or declare "
            f"{_declared(without)} on the object"
        )
    for at, gradient in done.gradients.items():
        yield from _gradient_faults(case, at, gradient, constants)
    for name, (now, before) in arrays.items():
        if not np.array_equal(to_numpy(now), before, equal_nan=True):
            yield f"{name} was modified in place"


def _output_faults(case: Case, shapes: Shapes, done: Run) -> Iterator[str]:
    given = dict(zip(case.subject.input_names, case.inputs, strict=False))
    outputs = case.subject.outputs(done.y, done.saved)
    names = [spec.name for spec in shapes.outputs]
    if len(outputs) != len(names):
        yield f"SHAPES declares {', '.join(names)}; forward returned {len(outputs)}"
    try:
        shapes.bind({**given, **dict(zip(names, outputs, strict=False))})
    except ValueError as error:
        yield str(error)
    if dtype_name(done.y) != case.dtype:
        yield f"forward returned {dtype_name(done.y)} for {case.dtype}"


def _declared(names: list[str]) -> str:
    """Return the declaration of inputs without a gradient: ``CONSTANTS = ("cos",)``."""
    listed = ", ".join(f'"{name}"' for name in names)
    return f"CONSTANTS = ({listed}{',' if len(names) == 1 else ''})"


def _gradient_faults(
    case: Case, at: int, gradient: Array | None, constants: str
) -> Iterator[str]:
    x, expected, got = case.inputs[at], "", "an array"
    if at not in case.differentiable:
        if gradient is not None:
            expected = "None, because the input is not differentiable"
    elif gradient is None:
        expected, got = "an array", f"None{constants}"
    elif not is_array(gradient):
        expected, got = "an array", type(gradient).__name__
    elif tuple(gradient.shape) != tuple(x.shape):
        expected, got = f"the input's shape {list(x.shape)}", f"{list(gradient.shape)}"
    elif case.subject.shapes and gradient.dtype != x.dtype:
        expected, got = f"the input's dtype {dtype_name(x)}", dtype_name(gradient)
    if expected:
        yield f"{case.subject.quantity(at)}: expected {expected}; got {got}"


def _overflows(done: Run) -> Iterator[str]:
    """Yield a fault if a gradient is not finite although y is, and the gradient in
    float64 is finite and not too large for the dtype."""
    case = done.case
    largest = LARGEST.get(case.dtype)
    if largest is None or not (case.finite and np.isfinite(case.y_as_given).all()):
        return
    for at in case.differentiable:
        gradient = done.gradients[at]
        if gradient is None or np.isfinite(got := to_numpy(gradient)).all():
            continue
        try:
            exact = case.gradients[at]
        except Exception:  # it need not accept float64
            return
        if exact is None or exact.shape != got.shape:
            continue
        lost = ~np.isfinite(got) & (np.abs(exact) < largest)  # not where exact is NaN
        if lost.any():
            index = tuple(np.argwhere(lost)[0])
            yield (
                f"{case.subject.quantity(at)} is {got[index]} at {index_text(index)} in "
                f"{case.dtype}, where y is finite; in float64 it is {exact[index]:.3g}. "
                "An intermediate result overflows or underflows"
            )


def _where_infinite(done: Run) -> Iterator[str]:
    """Yield a fault if the gradient of an infinite input is wrong.

    Such an input cannot vary, so its gradient must be 0, or the one that PyTorch's
    operator returns.
    """
    case = done.case
    for at in case.differentiable:
        infinite = ~np.isfinite(case.float64[at])
        got = to_numpy(done.gradients[at])
        wrong = infinite & (got != 0) & ~np.isnan(got)
        if wrong.any() and (operator := bound_operator(case)):
            try:
                expected = differentiate(case, operator)[1][at]
            except NotRun:
                continue
            wrong &= ~np.isclose(got, expected)
        if wrong.any():
            index = tuple(np.argwhere(wrong)[0])
            where = f"{case.subject.input_names[at]} is {case.float64[at][index]}"
            yield (
                f"{case.subject.quantity(at)}: expected 0 where {where}, at "
                f"{index_text(index)}; got {got[index]:.3g}"
            )
