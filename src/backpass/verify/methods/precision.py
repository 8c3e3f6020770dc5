"""Compare a float32, bfloat16 or float16 result with float64, element by element.

Both start from the same inputs, already rounded to the low precision. The reference is
autograd's gradient in float64 through the subject's forward, or else through the given
operator. It does not use the backward under test. The error allowed for an element
depends on the subject:

- For this package's operations it is the bound of a rounding array: the largest error
  that the lines of our forward and backward can make at that dtype. Inputs that
  ``check`` drew are random, so the root mean square of the errors must not exceed the
  expected one much.
- For anything else it is twice the largest error of PyTorch's operator, or of autograd
  through the subject's own forward, at that dtype, over these inputs and a few
  neighbours of them; or, if that is larger, eight times the root mean square of these
  errors, or the change that a different rounding of the inputs would cause. For
  element-wise functions, only elements of the same size are compared. In half
  precision, where PyTorch may add in bfloat16, running the operator in float32 and
  rounding once would give a sharper bound, but it would reject PyTorch's own gradients
  of logsumexp, mse_loss and others.

PyTorch's operator rounds once. Code composed of operations in half precision rounds
after each. If it is right in float64, only its arithmetic is in question, and its error
may be several times what one rounding of all inputs and of the result causes. A factor
that large elements have in common has a bound of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from backpass import ops
from backpass.contract.arrays import is_array
from backpass.interpreters import rounding
from backpass.operation import Operation
from backpass.verify import composed, domain, kinks, ties
from backpass.verify.case import Case, NotRun
from backpass.verify.comparison import Judge, Key
from backpass.verify.convert import (
    EPSILON,
    dtype_name,
    in_dtype,
    is_floating,
    is_torch,
    to_kind_of,
    to_numpy,
)
from backpass.verify.differences import best_step
from backpass.verify.drawing import generator
from backpass.verify.magnitude import largest, most_by_size
from backpass.verify.methods.autograd import (
    contradicted,
    differentiate,
    differentiate_forward,
)
from backpass.verify.methods.pytorch import bound_operator
from backpass.verify.report import FAILED, PASSED, Row
from backpass.verify.sides import differing, is_subgradient, kink_note

NAME = "low precision"
WIDER = "and in float32"  # the next rows, for a subject that does not accept float64
RESOLUTION = 1e-12  # of the float64 reference
LOW = ("float32", "float16", "bfloat16")
# Times the expected root mean square: the largest of random errors in half precision.
RANDOM = 1.5
EACH = 6  # times an element's expected error: the largest of random errors in float32
EITHER = "the gradient of either side passes"
SPREAD = 8.0  # twice the largest of thousands of errors, by their root mean square
NEIGHBOURS, FEW = 8, 1  # neighbours of inputs of up to MANY elements, and of more
MORE = 32  # neighbours if a gradient has so few elements that their errors are few
MANY = 1 << 16
# Of the largest element: the most that cancellation may leave of dy's own rounding.
CANCELLED = 0.01
NEARBY = 4  # the distance of neighbours, in units in the last place
# The change of the inputs, in units in the last place, with which a gradient may move:
# half a unit is one rounding, and in float32 sums add more.
ROUNDED = {"float32": 2, "float16": 0.5, "bfloat16": 0.5}
NEIGHBOUR, HALF = 7, 20  # streams of the seed
TOLERANCE = None  # a bound for each element, unless the user gives a number
KEY = "tolerances={'precision': (number, reason)} replaces this tolerance"
LOOK_FOR = (
    "look for an overflow, an underflow, a sum or a difference that loses digits, or a "
    "branch for this dtype"
)

Results = dict[Key, np.ndarray]


@dataclass(frozen=True)
class Bound:
    """The largest error allowed for each element of y or of one gradient.

    ``words`` say how it was computed. ``rms`` is the largest root mean square allowed,
    and ``factor`` the largest distance from 1 of a common factor, if that is checked
    too.
    """

    each: np.ndarray
    words: str
    rms: float | None = None
    factor: float | None = None


def run(case: Case) -> list[Row]:
    """Return a row for y and one for each gradient; none in float64.

    A subject in half precision that float64 cannot judge, because it does not accept
    float64 or because its backward computes in float32, is also judged in float32 if it
    accepts that: in half precision, errors of small elements beside large ones cannot
    be told from rounding. Raises NotRun without a float64 reference.
    """
    backward = [p for p in case.found.precisions.values() if p != "float64"]
    dtype = max(case.dtype, case.computes_in, *backward, key=EPSILON.__getitem__)
    if dtype not in LOW:
        return []
    rows = _rows(_at(case, dtype), NAME, dtype)
    unjudged = {*backward} == {"float32"} or not case.takes_float64
    if dtype != "float32" and unjudged and (wider := _in_float32(case)):
        rows += _rows(wider, WIDER, "float32")
    return rows


def _rows(case: Case, method: str, dtype: str) -> list[Row]:
    y, saved = case.subject.forward(*case.given())
    got = case.slots.by_input(case.subject.backward(to_kind_of(y, case.dy), saved))
    return rows_against_float64(
        case,
        method,
        to_numpy(y),
        got,
        dtype,
        drawn=case.drawn,
        any_order=case.subject.stem is None,
    )


def _in_float32(case: Case) -> Case | None:
    """Return the case with the same numbers as float32 arrays; None if forward or
    backward does not accept them, or the declared dtypes do not include them."""
    shapes = case.subject.shapes
    if shapes and shapes.dtypes and "float32" not in shapes.dtypes:
        return None
    inputs = tuple(in_dtype(value, "float32") for value in case.inputs)
    wider = replace(case, inputs=inputs, given_dy=case.dy)
    try:
        y, saved = wider.subject.forward(*wider.given())
        wider.slots.by_input(wider.subject.backward(to_kind_of(y, case.dy), saved))
    except Exception:
        return None
    return wider if dtype_name(y) == "float32" else None


def rows_against_float64(
    case: Case,
    method: str,
    y: np.ndarray,
    got: dict[int, np.ndarray | None],
    dtype: str,
    *,
    world: rounding.Namespace | None = None,
    drawn: bool = False,
    any_order: bool = False,
    floor: float = 0.0,
) -> list[Row]:
    """Compare y and gradients that were computed at ``dtype`` with those in float64.

    The inputs are numbers of that dtype, or of float32 where the operation accepts it
    beside half precision. ``world`` is the rounding array's namespace
    for a kernel that does not round where its operation does. ``drawn`` says that the
    inputs are random numbers. With ``any_order``, sums of float32 may be as inexact as
    terms added one by one. An error of ``floor`` times the largest element is allowed
    for each.
    """
    function, source, exact = _reference(case)
    right = _by_key(case, function)
    if case.subject.stem in ops.STEMS:
        bounds = _computed(case, dtype, world, drawn)
        vacuous = [
            key for key in right if (np.abs(right[key]) <= bounds[key].each).all()
        ]
        if any(right[key].any() for key in vacuous):
            # In an operation composed of many, the worst case may exceed every element.
            measured = _measured(case, dtype, method, function, exact, right, any_order)
            bounds |= {key: measured[key] for key in vacuous}
    else:
        bounds = _measured(case, dtype, method, function, exact, right, any_order)
    if floor:
        for key, bound in bounds.items():
            each = np.maximum(bound.each, floor * largest(right[key]))
            bounds[key] = replace(bound, each=each)
    judged = case.differentiable if function is case.operator else case.derived
    found: dict[Key, np.ndarray | None] = {"y": y, **{at: got[at] for at in judged}}
    if method == NAME and "precision" in case.tolerances:
        share, reason = case.tolerances["precision"]
        bounds = {
            key: Bound(np.full(of.shape, share * largest(of)), reason)
            for key, of in right.items()
        }
    named = dict(zip(case.subject.input_names, case.inputs, strict=False))
    rows, reference = [], partial(_by_key, function=function)
    beside = ties.Beside(case, reference)
    allowed = {key: bounds[key].each for key in found}
    around = kinks.Kinks(case, dtype, reference, found, allowed)
    away = domain.is_away(case.subject.shapes, named)
    for key, of in found.items():
        how = f"{dtype} against float64{source}; {bounds[key].words}"
        judge = Judge(case, method, key, 0.0, how, RESOLUTION)
        row = _judged(judge, of, right[key], bounds[key])
        may_be_at_kinks = dtype != "float32" and key != "y" and not away
        if row.verdict == FAILED and may_be_at_kinks:
            excused = around.within_a_unit(key)
            row = _unless(row, excused, judge, of, right[key], bounds[key])
        if row.verdict == FAILED and case.subject.stem not in ops.STEMS:
            other, n = beside.excused(key, of, bounds[key].each)
            if n:
                row = replace(
                    _judged(judge, other, right[key], bounds[key]), note=ties.note(n)
                )
            elif may_be_at_kinks and around.excused:
                excused = around.excused[key]
                row = _unless(row, excused, judge, of, right[key], bounds[key])
        if row.verdict == FAILED:
            own = _unlike_autograd(case, key, function, right[key])
            if own is not None:
                judge = replace(judge, how=f"{dtype} against backward in float64")
                row = _judged(judge, of, own, _at_least(bounds[key], own, dtype))
        if row.verdict == FAILED and dtype != "float32" and method == NAME:
            row = _explained(case, row, dtype, composed.is_right(case, key, right[key]))
        rows.append(row)
    return rows


def _explained(case: Case, row: Row, dtype: str, right_in_float64: bool) -> Row:
    """Return a failed row with what is known of its cause, and the key of its
    tolerance.

    If the code is right in float64, its formula is not at fault, and no search for a
    wrong one would say more.
    """
    if not right_in_float64:
        known = case.takes_float64 and case.computes_in == "float64"
        return row if known else replace(row, note=KEY)
    case.found.suspects.pop((NAME, row.quantity), None)
    reason = f"right in float64, but not in {dtype}: {LOOK_FOR}"
    if row.error is None or not np.isfinite(row.error):
        return replace(row, reason=f"{row.reason}; {reason}")
    return replace(row, reason=reason, note=KEY)


def _unlike_autograd(
    case: Case, key: Key, function: Callable, reference: np.ndarray
) -> np.ndarray | None:
    """Return backward's own gradient in float64, if a difference agrees with it and not
    with autograd's reference, or if both are subgradients; otherwise None."""
    if key == "y" or function is case.operator or case.subject.stem is not None:
        return None
    if not case.takes_float64:
        return None
    own = case.gradients[key]
    if own is None or contradicted(case, key, own, reference):
        return own
    apart = differing(own, reference, RESOLUTION * largest(reference))
    step = best_step(case, key)
    return own if is_subgradient(case, key, own, apart, step) else None


def _at(case: Case, dtype: str) -> Case:
    """Return the case with its inputs and cotangent rounded to ``dtype``, in the dtypes
    they had."""
    if case.dtype == dtype:
        return case

    def rounded(value: object) -> object:
        return (
            to_kind_of(value, rounding.rounded(to_numpy(value), dtype))
            if is_floating(value)
            else value
        )

    dy = rounding.rounded(case.dy, dtype)
    return replace(case, inputs=tuple(map(rounded, case.inputs)), given_dy=dy)


# The reference.


def _differentiate(case: Case, function: Callable, dtype: str = "float64"):
    import torch

    return differentiate(case, function, getattr(torch, dtype))


def _reference(case: Case) -> tuple[Callable, str, bool]:
    """Return the function that autograd differentiates, its name if it is the operator,
    and whether forward computes in float64."""
    forward, options = case.judge, case.subject.options
    if case.subject.stem in ops.STEMS:
        operation = Operation(case.subject.stem)
        defaults = operation.float32_defaults
        if unset := {
            name: value for name, value in defaults.items() if options.get(name) is None
        }:
            # These defaults depend on the dtype: in float64 the function would differ.
            forward = partial(_value_of, operation.op.forward, **{**options, **unset})
    exact = case.computes_in == "float64"
    try:
        if exact or case.operator is None:
            differentiate_forward(case, forward)
            return forward, "", exact
    except NotRun as reason:
        if case.operator is None:
            raise NotRun(f"{reason}; an operator= would give the reference") from None
    return case.operator, " of PyTorch's operator", True


def _value_of(forward: Callable, *inputs: object, **options: object) -> object:
    return forward(*inputs, **options)[0]


# The error that is allowed.


def _computed(
    case: Case, dtype: str, world: rounding.Namespace | None, drawn: bool
) -> dict[Key, Bound]:
    """Return the bounds computed by the operation's own lines on rounding arrays."""
    tensors = [array for array in case.arrays if is_torch(array)]
    on_cuda = any(tensor.is_cuda for tensor in tensors)
    world = world or rounding.Namespace(
        short_sums=not tensors, inverses=on_cuda, random=drawn
    )
    assert case.subject.stem is not None
    op = ops.load(case.subject.stem)
    y, returned = rounding.run(
        op, case.float64, case.dy, dtype, case.subject.options, world, case.wide
    )
    gradients = case.slots.by_position(returned)
    found: dict[Key, rounding.Array] = {"y": y}
    found |= {at: array for at, array in gradients.items() if array is not None}
    words = "the bound computed from the operation's own lines"
    if not drawn:
        return {key: Bound(array.d, words) for key, array in found.items()}
    if dtype == "float32":
        return {
            key: Bound(np.minimum(a.d, EACH * a.p), words) for key, a in found.items()
        }
    return {key: Bound(a.d, words, RANDOM * _rms(a.p)) for key, a in found.items()}


def _measured(
    case: Case,
    dtype: str,
    method: str,
    function: Callable,
    exact: bool,
    right: Results,
    any_order: bool,
) -> dict[Key, Bound]:
    """Return the bounds measured with PyTorch.

    They are twice PyTorch's error at that dtype, here and at inputs and cotangents a
    few units in the last place away; and the change of the reference when the inputs
    move by half a unit, as rounding would move them, or by two units in float32.
    """
    operator = bound_operator(case)
    theirs = operator or case.subject.plain_forward
    few = sum(value.size for value in case.float64 if is_array(value)) < MANY
    sizes = [of.size for key, of in right.items() if key != "y"]
    count = MORE if min(sizes, default=MORE) * NEIGHBOURS < MORE else NEIGHBOURS
    neighbours = [_neighbour(case, dtype, at) for at in range(count if few else FEW)]
    # Results, what they should be, and how many times their error is allowed.
    pairs: list[tuple[Results, Results, float]] = []
    try:
        if exact:
            pairs.append((_by_key(case, theirs, dtype), right, 2))
        others = [_by_key(one, function) for one in neighbours]
        for one, reference in zip(neighbours, others, strict=True):
            pairs.append((reference, right, ROUNDED[dtype] / NEARBY if exact else 2))
            if exact:
                pairs.append((_by_key(one, theirs, dtype), reference, 2))
    except NotRun as reason:
        raise NotRun(f"PyTorch's error in {dtype} is unknown: {reason}") from None
    if exact:
        whose = "PyTorch's operator" if operator else "torch autograd"
        words = (
            f"twice {whose}'s error, the largest of {1 + len(neighbours)} inputs nearby"
        )
    else:
        words = (
            f"without an operator=, twice the change that {NEARBY} units in the last "
            f"place of {dtype} inputs cause"
        )
    by_element = _is_elementwise(case, function, right)
    words += ", at elements of that size" if by_element else ""
    more = {}
    if method == NAME and (operator or by_element):
        more = composed.allowed(case, dtype, right, others, ROUNDED[dtype] / NEARBY)
    bounds: dict[Key, Bound] = {}
    for key, of in right.items():
        own = [(got[key], wanted[key], times) for got, wanted, times in pairs]
        if by_element:
            each = most_by_size(own, np.abs(of))
            if dtype != "float32" and operator is None:
                # Autograd through a fused kernel rounds once; a backward of several
                # operations rounds several times.
                each = np.maximum(each, EPSILON[dtype] * largest(of))
        else:
            errors = [times * largest(got - wanted) for got, wanted, times in own]
            # Of few elements, the largest error may be small by chance.
            apart = [np.ravel(got - wanted) for got, wanted, times in own if times == 2]
            errors.append(SPREAD * _rms(np.concatenate(apart)) if apart else 0.0)
            each = np.array(max(*errors, _owed(case, key, of, dtype, any_order)))
        unit = EPSILON[dtype] * np.where(np.isfinite(of), np.abs(of), 0.0)
        each = np.maximum(each, unit + 2 * rounding.TINY[dtype])
        bounds[key] = Bound(each, words)
        if key in more:
            bounds[key] = _widened(bounds[key], more[key])
    return bounds


def _widened(bound: Bound, more: composed.Allowed) -> Bound:
    """Return a bound that allows the error of code which rounds after each
    operation."""
    if (bound.each >= more.each).all():
        return bound
    each = np.maximum(bound.each, more.each)
    return Bound(each, f"{bound.words}, {composed.WORDS}", factor=more.factor)


def _at_least(bound: Bound, own: np.ndarray, dtype: str) -> Bound:
    """Return a bound that was measured where autograd does not follow all of forward,
    and at least a unit in the last place of the right gradient."""
    unit = EPSILON[dtype] * np.where(np.isfinite(own), np.abs(own), 0.0)
    return replace(bound, each=np.maximum(bound.each, unit))


def _owed(
    case: Case, key: Key, right: np.ndarray, dtype: str, any_order: bool
) -> float:
    """Return what has to be allowed beyond PyTorch's error if elements are sums.

    NumPy adds rows of float32 one by one, where PyTorch adds pairs. A kernel may add
    along any axis one by one. And without an operator, PyTorch's error is that of
    autograd through forward, whose gradient may cancel exactly where that of a correct
    backward, ``y (dy − Σ y dy)``, does not.
    """
    terms = case.dy.size / max(1, right.size)
    if any_order:
        terms = max(terms, *(max(array.shape, default=1) for array in case.arrays))
    owed, units, most = 0.0, 4 * EPSILON[dtype], float(np.abs(right).max(initial=0.0))
    if dtype == "float32" and (any_order or not case.uses_torch) and terms > 1:
        owed = units * terms**0.5 * most
    if key != "y" and bound_operator(case) is None and case.dy.size > 1:
        of_dy = min(units * largest(case.dy), CANCELLED * most)
        owed = max(owed, units * case.scales[key], of_dy)
    return owed


def _by_key(case: Case, function: Callable, dtype: str = "float64") -> Results:
    y, gradients = _differentiate(case, function, dtype)
    return {"y": y, **gradients}


def _rms(values: np.ndarray) -> float:
    """Return the root mean square of the finite values."""
    values = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _is_elementwise(case: Case, function: Callable, right: Results) -> bool:
    """Whether an element of a result depends only on the elements at its place.

    If so, no element is small because large ones cancel, and a small error in it
    counts.
    """
    y = right["y"]
    if any(gradient.shape != y.shape for gradient in right.values()) or y.size < 2:
        return False
    # Neighbours along each axis, and elements that are farther apart.
    by_turns = np.indices(y.shape).sum(0) % 2 == 0
    drawn = generator(case.seed, HALF).permutation(y.size) < y.size // 2
    for half in (by_turns, drawn.reshape(y.shape)):
        of_half = replace(case, given_dy=np.where(half, case.dy, 0.0))
        _, found = _differentiate(of_half, function)
        for at in found:
            if not np.array_equal(found[at], np.where(half, right[at], 0.0)):
                return False
    return True


def _neighbour(case: Case, dtype: str, number: int) -> Case:
    """Return the case with inputs and a cotangent that are a few units in the last
    place away."""
    rng = generator(case.seed, NEIGHBOUR + number)

    def moved(values: np.ndarray) -> np.ndarray:
        units = rng.uniform(-NEARBY, NEARBY, values.shape)
        return rounding.rounded(values * (1 + EPSILON[dtype] * units), dtype)

    return replace(case, inputs=case.changed(moved), given_dy=moved(case.dy))


# The verdict.


def _judged(
    judge: Judge, got: np.ndarray | None, reference: np.ndarray, allowed: Bound
) -> Row:
    """Return one row: every element is within its bound, or the worst one fails.

    The worst element's error and bound are shown over the largest reference element.
    """
    got = np.zeros_like(reference) if got is None else got
    if got.shape != reference.shape or not got.size:
        return judge.row(got, reference)
    bound = np.maximum(allowed.each, judge.floors[0])
    finite = np.isfinite(got) & np.isfinite(reference)
    right = np.where(finite, reference, got)
    with np.errstate(invalid="ignore"):
        error = np.where(finite, np.abs(got - reference), 0.0)
    size = np.where(finite, np.abs(reference), 0.0)
    most = float(size.max()) or 1.0
    if (size <= bound).all() and size.any() and not judge.declared_zero:
        # Vacuous, because zeros would pass, unless an element is NaN or infinite.
        return replace(judge, tolerance=np.inf).row(right, reference)

    share = np.divide(
        error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0
    )
    at = np.unravel_index(share.argmax(), share.shape)
    worst = float(error[at] / most)
    tolerance = min(float(bound[at]), float(np.finfo(float).max)) / most
    where = f", at index {[int(i) for i in at]}" if at else ""
    note = f"at worst {share[at]:.2g} of it{where}"
    failed = not share[at] <= 1
    if not failed and (found := _beyond_in_all(got, reference, error, most, allowed)):
        failed, (worst, tolerance, note) = True, found
    how = judge.how
    judge = replace(judge, how=f"{how}; {note}", tolerance=RESOLUTION)
    if failed:
        # The errors of right elements do not count as wrong entries in a diagnosis.
        inside = float(error[share <= 1].max(initial=0.0)) / most
        outside = float(error[share > 1].min(initial=np.inf)) / most
        seen = max(tolerance, 1.01 * inside) if inside < outside else tolerance
        seen = min(seen, 0.99 * float(error.max()) / most, 0.99)
        judge = replace(judge, tolerance=0.0 if judge.declared_zero else seen)
    row = judge.row(got if failed else right, reference)
    if row.verdict in (PASSED, FAILED) and np.isfinite(row.error or 0.0):
        relative = None
        if failed:
            natural = 0.0 if judge.key == "y" else judge.case.scales[judge.key]
            alike = most * bound / (bound.max() or 1.0)
            sizes = np.maximum(np.maximum(size, natural), alike)
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = float((error / sizes)[share > 1].max(initial=worst))
        return replace(row, error=worst, tolerance=tolerance, relative=relative)
    if row.verdict == FAILED and not finite.all():
        return replace(row, how=how, tolerance=tolerance)
    return row


def _unless(
    row: Row,
    excused: np.ndarray,
    judge: Judge,
    got: np.ndarray | None,
    reference: np.ndarray,
    allowed: Bound,
) -> Row:
    """Return a failed row; if elements at kinks are excused, the row of the others."""
    if got is None or not excused.any():
        return row
    row = _judged(judge, np.where(excused, reference, got), reference, allowed)
    return replace(row, note=kink_note(int(excused.sum()), EITHER))


def _beyond_in_all(
    got: np.ndarray,
    reference: np.ndarray,
    error: np.ndarray,
    most: float,
    allowed: Bound,
) -> tuple[float, float, str] | None:
    """Return an error of all elements together that exceeds its bound, the bound, and a
    note; None if none does. ``most`` is the largest element."""
    if allowed.rms is not None and (rms := _rms(error)) > allowed.rms:
        note = f"the root mean square is {rms / allowed.rms:.2g} times the allowed one"
        return rms / most, allowed.rms / most, note
    if allowed.factor is not None:
        factor = composed.common_factor(got, reference)
        if (off := abs(factor - 1)) > allowed.factor:
            return off, allowed.factor, f"most elements are {factor:.3g} times as large"
    return None
