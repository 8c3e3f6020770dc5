"""Compare with torch.autograd through forward, in float64, every element."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backpass.contract.arrays import Array
from backpass.verify.case import FUNCTIONS_OF_XP, Case, NotRun, advised, first_line
from backpass.verify.comparison import Judge
from backpass.verify.convert import (
    EPSILON,
    dtype_name,
    is_floating,
    is_torch,
    to_numpy,
    to_torch,
)
from backpass.verify.differences import best_step, difference, first_difference
from backpass.verify.magnitude import largest, within
from backpass.verify.methods.finite_difference import wrong_at_ties
from backpass.verify.numpy_only import function_of_numpy
from backpass.verify.outputs import join
from backpass.verify.report import FAILED, NOT_RUN, Row
from backpass.verify.sides import excused

NAME = "torch autograd"
TOLERANCE = 1e-12
WHY = "every element; rounding in a different order"
ANOTHER = "forward computes a different y on tensors than on the arrays that were given"
CONTRADICTED = (
    "autograd and finite differences of forward disagree: autograd returns NaN, or "
    "does not follow all of forward (look for a detach, .data, or another library)"
)
HIDDEN = (
    "forward hides an operation from autograd, as by torch.no_grad, detach, or another "
    "library, and the rest of the gradient is 0 or nearly the same"
)
UNSEEN = 1e-10  # of a gradient: a smaller error is not seen by differences
HIDING = {"_set_grad_enabled", "detach", "numpy", "__array__", "tolist", "item"}
NOT_FOLLOWED = "forward does not run on tensors that autograd follows"
CUT = 1e-5  # of a slope: a difference that is closer agrees with it
# Where autograd follows all but a small part: the distance of backward from differences
# in several directions, of its distance from autograd.
PART, DIRECTIONS = 0.05, 4


def run(case: Case) -> list[Row]:
    """Return one row for each gradient that the object does not declare a convention.

    Raises NotRun if forward is not made of operations that autograd follows.
    """
    case.require_float64()
    _, reference = differentiate_forward(case, case.subject.plain_forward)
    _, got = case.on_tensors
    tolerance = case.tolerance("autograd", TOLERANCE, WHY)
    names, declared = case.subject.input_names, case.subject.conventions
    rows = []
    for at in case.differentiable:
        if names[at] not in declared:
            row = Judge(case, NAME, at, *tolerance).row(got[at], reference[at])
            if row.verdict == FAILED and contradicted(case, at, got[at], reference[at]):
                row = Row(NAME, row.quantity, NOT_RUN, reason=CONTRADICTED)
            # Differences judge a gradient of which autograd follows nothing.
            small = (row.error or 1.0) < UNSEEN or not reference[at].any()
            if row.verdict == FAILED and small and hides(case):
                row = Row(NAME, row.quantity, NOT_RUN, reason=HIDDEN)
            rows.append(_unless_at_kinks(case, row, at, got[at], reference[at]))
    return rows


def contradicted(
    case: Case, at: int, got: np.ndarray | None, reference: np.ndarray
) -> bool:
    """Whether differences of forward agree with backward and not with autograd.

    Autograd then does not follow all of forward, or follows a convention at a kink of
    one of its operations. An intended detach should be declared a convention. The part
    that it does not follow may be small, as behind a factor of 1e-6.
    """
    if at not in case.derived or got is None or got.shape != reference.shape:
        return False
    if _disagrees(case, at, got, reference):
        return True
    if not np.isfinite(got).all() or not np.isfinite(reference).all():
        return False
    step = best_step(case, at)
    for direction in case.directions.of(at, DIRECTIONS):
        change, moved = difference(case, at, direction, step)
        apart = abs(float(np.sum(got * moved)) - float(np.sum(case.dy * change)))
        if not apart <= PART * abs(float(np.sum((got - reference) * moved))):
            return False
    return True


def _disagrees(case: Case, at: int, got: np.ndarray, reference: np.ndarray) -> bool:
    """Whether a difference is close to backward's slope and not to autograd's."""
    change, moved = first_difference(case, at)
    slope = float(np.sum(case.dy * change))
    with np.errstate(invalid="ignore"):  # a gradient may be infinite
        of_autograd, of_backward = (
            abs(float(np.sum(gradient * moved)) - slope)
            for gradient in (reference, got)
        )
    agreed = CUT * abs(slope)
    return of_backward <= agreed and not of_autograd <= agreed  # which may be NaN


def _unless_at_kinks(
    case: Case, row: Row, at: int, got: np.ndarray | None, reference: np.ndarray
) -> Row:
    """Return the row, passed if backward and autograd differ only at kinks, where both
    follow a convention."""
    if row.verdict != FAILED or at not in case.derived or row.tolerance is None:
        return row
    judge, step = Judge(case, NAME, at, row.tolerance, row.how), best_step(case, at)
    found = excused(judge, got, reference, step)
    return row if found is None or wrong_at_ties(case, at, step) else found


def hides(case: Case) -> bool:
    """Whether forward calls a function of PyTorch that ends what autograd follows."""
    from torch.overrides import TorchFunctionMode

    called: set[str] = set()

    class Listening(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.add(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    inputs = [to_torch(value, case.device) for value in case.inputs]
    for at in case.differentiable:
        inputs[at].requires_grad_()
    with Listening():
        case.subject.plain_forward(*inputs)
    return bool(called & HIDING)


def computes_another(case: Case) -> bool:
    """Whether forward computes a different y on tensors than on the arrays that were
    given. A long row may hide that, as it hides the 1 in n − 1."""
    key = computes_another
    if key not in case.shared:
        try:
            differentiate_forward(case, case.subject.plain_forward)
            case.shared[key] = False
        except NotRun as reason:
            case.shared[key] = str(reason) == ANOTHER
        except Exception:  # the method itself reports it
            case.shared[key] = False
    return case.shared[key]


def differentiate_forward(
    case: Case, function: Callable[..., Array]
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Do the same as ``differentiate`` in float64, for a function that may be forward.

    Raises NotRun if lines that were given NumPy arrays compute a different y on
    tensors, as ``x.var()`` does.
    """
    y, gradients = differentiate(case, function)
    if function is case.subject.plain_forward and not case.subject.stem:
        exact = case.takes_float64
        coarsest = max(case.dtype, case.y_dtype, key=EPSILON.__getitem__)
        near = EPSILON["float64" if exact else coarsest] ** 0.5
        # A small element may be what remains of large ones that cancel.
        if not within(y, case.y if exact else case.y_as_given, near * largest(y)):
            raise NotRun(ANOTHER)
    return y, gradients


def differentiate(
    case: Case, function: Callable[..., Array], dtype=None
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Return y and its gradients by autograd, on tensors of ``dtype`` or float64.

    Raises NotRun if the function does not run on tensors, or autograd cannot follow it.
    """
    key = (differentiate, function, str(dtype or "torch.float64"))
    if key not in case.shared:
        case.shared[key] = _differentiate(case, function, dtype)
    return case.shared[key]


def _output(case: Case, function: Callable[..., Any], inputs: Sequence[Any]) -> Array:
    """Return what a function returns, in the form of forward's y: several outputs are
    joined to a vector, without those of which forward says that they have no gradient.

    An operator may leave these out, or return them too.
    """
    returned, but = function(*inputs), set[int]()
    if function is case.operator:
        try:
            saved = case.run[1]
        except NotRun:  # forward does not compute in float64
            saved = case.subject.forward(*case.given())[1]
        several = case.subject.several(saved)
        if several is not None:
            if not isinstance(returned, (tuple, list)):
                returned = (returned,)
            if len(returned) == len(several.joined):
                pairs = zip(returned, several.joined, strict=True)
                but = {id(output) for output, joined in pairs if not joined}
    return join(returned, but=but)[0]


def _differentiate(
    case: Case, function: Callable[..., Array], dtype
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    of_user = function is case.subject.plain_forward and case.subject.stem is None
    if of_user and not case.uses_torch:
        of_numpy = function_of_numpy(function, case.float64, case.differentiable)
        if of_numpy:
            raise NotRun(f"{NOT_FOLLOWED}{FUNCTIONS_OF_XP} ({of_numpy})")
    import torch

    leaves = [to_torch(value, case.device, dtype) for value in case.inputs]
    for at in case.differentiable:
        leaves[at].requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's functions warn about tensors
            y = _output(case, function, leaves)
    except NotRun:
        raise
    except Exception as error:
        of_operator = function is case.operator
        if case.subject.stem is not None or (of_operator and _is_broken(case)):
            raise
        reason = (
            f"operator= does not accept {dtype or 'float64'} ({first_line(error)})"
            if of_operator
            else f"{NOT_FOLLOWED}{advised(error)}"
        )
        raise NotRun(reason) from None
    if not is_torch(y) or not y.requires_grad:
        raise NotRun(
            "autograd cannot follow forward: its output is not a tensor that requires a "
            "gradient"
        )
    if function is case.subject.plain_forward and tuple(y.shape) != case.dy.shape:
        raise NotRun(ANOTHER)
    wanted = [leaves[at] for at in case.differentiable]
    dy = to_torch(case.dy, case.device, y.dtype)
    try:
        found = torch.autograd.grad(y, wanted, dy, allow_unused=True)
    except RuntimeError as error:
        if case.subject.stem is not None or function is case.operator:
            raise
        raise NotRun(f"autograd cannot follow forward ({first_line(error)})") from None
    gradients = {
        at: np.zeros(tuple(leaves[at].shape))
        if gradient is None
        else to_numpy(gradient)
        for at, gradient in zip(case.differentiable, found, strict=True)
    }
    return to_numpy(y), gradients


def _is_broken(case: Case) -> bool:
    """Whether the operator also raises for the inputs as they were given."""
    assert case.operator is not None
    try:
        tensors = (to_torch(x, case.device, _torch_dtype(x)) for x in case.inputs)
        case.operator(*tensors)
    except Exception:
        return True
    return False


def _torch_dtype(value: object):
    import torch

    return getattr(torch, dtype_name(value)) if is_floating(value) else None
