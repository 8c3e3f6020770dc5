"""Compare with central differences of the forward.

They are taken along random directions and, for a small input, along every coordinate.
The method uses only the forward and needs no formula for its derivative. Its error is
rounding over the step plus the step squared: about ε^⅔ ≈ 4e-11 at best, and much more
if the forward is ill-conditioned. A forward that does not accept or return float64 is
evaluated at its own precision, with that precision's ε. A gradient that backward
computes in low precision gets the tolerance of that precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backpass.verify.case import Case, Inputs, NotRun
from backpass.verify.convert import EPSILON
from backpass.verify.directional import COORDINATES, Derivative, rows, spread
from backpass.verify.magnitude import farthest, largest
from backpass.verify.report import FAILED, NOT_RUN, PASSED, Row

NAME = "finite differences"
TOLERANCE = 1e-7
WHY = "step² and rounding / step"
# Times ε^⅔: the constants of both errors, and the rounding of a long sum.
LOW_TOLERANCE = 64
# At a kink, the bend exceeds KINK times the largest change, and with half the step more
# than SHARP of the bend remains: about a half, where a smooth function keeps a quarter.
KINK = 0.1
SHARP = 0.4
KINK_DIRECTIONS = 4
TIED = 1e-3  # of a slope: where ties are kept, a smaller error is not called wrong
BRIEFER, BENT_DIRECTIONS = 256, 5  # a step that crosses few kinks, and its directions
COARSEST = 0.1  # the largest tolerance at which a comparison is still useful
# Other steps show a difference's own error: truncation grows with the step's square,
# and rounding with its inverse.
OTHER_STEPS = (0.5, 0.7, 1.4)
DOUBT = 4  # times their spread: a smaller error may be that of the differences
LEAST = 1e-5  # of the gradient: smaller errors cannot be seen in float32
Step = float | np.ndarray  # for all coordinates, or one for each
Steps = dict[int, Step]  # by position of the input
KINKED = (
    "y has a kink there: its slopes on the two sides of these inputs differ, so no "
    "difference is its derivative"
)
OFF = "the error is far larger than the change of the differences with the step"


def run(case: Case) -> list[Row]:
    """Return one row for each gradient. Raises NotRun if forward is too coarse."""
    usual, why, note = TOLERANCE, WHY, ""
    try:
        case.require_float64()
    except NotRun as reason:
        case = _at_own_precision(case, reason)
        (usual, why), note = _low(case.precision), str(reason)
    steps = {at: best_step(case, at) for at in case.derived}
    judged = _rows(case, steps, usual, why, note)
    if note:
        return judged
    return [
        _unless_coarse(row, case, at, steps)
        for at, row in zip(case.derived, judged, strict=True)
    ]


def _unless_coarse(row: Row, case: Case, at: int, steps: Steps) -> Row:
    """Return the row or, if it failed and backward computes the gradient in low
    precision, the row at that precision's tolerance.

    It is "not run" if that precision is too coarse, or if backward's rounding may be as
    large as the error, as where large parts of the gradient cancel.
    """
    note = case.coarse_backward(at) if row.verdict == FAILED else ""
    if not note:
        return row
    precision = case.backward_computes_in(at)
    if _low_tolerance(precision) > COARSEST:
        reason = f"{note}, which is too coarse for differences"
        return Row(NAME, row.quantity, NOT_RUN, reason=reason)
    again = _rows(case, steps, *_low(precision), note)[case.derived.index(at)]
    if again.verdict != FAILED or again.error is None:
        return again
    noise = case.noise_of_backward(at)
    if not again.error <= DOUBT * noise:
        return again
    reason = (
        f"{note}; its rounding changes {row.quantity} by {noise:.1e}, and the error is "
        f"{again.error:.1e}"
    )
    return Row(NAME, row.quantity, NOT_RUN, reason=reason)


def _rows(case: Case, steps: Steps, usual: float, why: str, note: str) -> list[Row]:
    """Return one row for each gradient. The note, if any, says why precision is low."""
    # For the book's operations, other methods compare every element.
    in_all = COORDINATES if case.subject.stem else math.inf
    tolerance = case.tolerance("finite_difference", usual, why)
    found = rows(case, NAME, *tolerance, _derivative(case, steps), in_all)
    judged = [
        _reconsidered(row, case, at, steps, low=bool(note))
        for at, row in zip(case.derived, found, strict=True)
    ]
    return [replace(row, note=note or row.note) for row in judged]


def _reconsidered(row: Row, case: Case, at: int, steps: Steps, *, low: bool) -> Row:
    if row.verdict == FAILED:
        reason = _why_not_judged(row, case, at, steps)
        if reason == KINKED and (wrong := _wrong_at_ties(case, at, steps[at])):
            case.found.suspects.pop((NAME, row.quantity), None)
            return replace(row, reason=wrong)
        return Row(NAME, row.quantity, NOT_RUN, reason=reason) if reason else row
    # In float32 the tolerance allows for noise that may not be there.
    if (
        row.verdict == PASSED
        and low
        and row.error is not None
        and row.error > max(DOUBT * _own_error(case, at, steps), LEAST)
    ):
        case.found.suspect(NAME, row.quantity, row.error / 2, lambda seconds: OFF)
        return replace(row, verdict=FAILED, reason=OFF)
    return row


def _own_error(case: Case, at: int, steps: Steps) -> float:
    """Return how much the differences vary with the step."""
    return spread(
        case, at, [_derivative(case, steps, times) for times in (1.0, *OTHER_STEPS)]
    )


def _derivative(case: Case, steps: Steps, times: float = 1.0) -> Derivative:
    """Return a function that computes the slope of the loss along a direction, from a
    difference over ``times`` the step."""

    def derivative(at: int, direction: np.ndarray) -> tuple[float, np.ndarray]:
        if times == 1.0 and direction is case.directions.first(at):
            change, moved = first_difference(case, at, steps[at])
        else:
            change, moved = difference(case, at, direction, times * steps[at])
        return float(np.sum(case.dy * change)), moved

    return derivative


def first_difference(
    case: Case, at: int, step: Step | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``difference`` along the first direction, by default the best step's.

    The result is cached, because other methods are compared with it.
    """
    key = (first_difference, at)
    if key not in case.shared:
        step = best_step(case, at) if step is None else step
        case.shared[key] = difference(case, at, case.directions.first(at), step)
    return case.shared[key]


def _why_not_judged(row: Row, case: Case, at: int, steps: Steps) -> str:
    """Return why differences cannot judge a gradient that they find wrong: a kink, an
    infinity, or their own error; otherwise an empty string."""
    if has_kink(case, at, steps[at]):
        return KINKED
    got = case.gradients[at]
    if got is not None and np.isinf(got).any() and not np.isnan(got).any():
        return (
            "backward returns an infinity, which a difference can neither confirm nor "
            "refute"
        )
    if row.error is None or not np.isfinite(row.error):
        return ""
    own = _own_error(case, at, steps)
    if row.error > DOUBT * own:
        return ""
    return (
        f"differences are too coarse here: they vary by {own:.1e} with the step, and "
        f"differ by {row.error:.1e} from backward"
    )


def has_kink(case: Case, at: int, step: Step) -> bool:
    """Whether y's slopes on the two sides of these inputs differ."""
    return any(_kinked(case, at, step, along) for along in _breaking_ties(case, at))


def _breaking_ties(case: Case, at: int) -> Iterator[np.ndarray]:
    """Yield directions in which every coordinate moves and no two move alike, so that
    each direction leaves zeros and ties."""
    x = case.float64[at]
    rng = case.rng
    for _ in range(KINK_DIRECTIONS):
        sizes = rng.uniform(0.5, 1.5, x.shape) * rng.choice([-1.0, 1.0], x.shape)
        yield np.where(np.isfinite(x), sizes, 0.0)


def _wrong_at_ties(case: Case, at: int, step: Step) -> str:
    """Return how a gradient is wrong whichever way it is shared among equal elements of
    the input; "" if it is not, or if that is not known.

    If equal elements move together, and those that are 0 do not move, ties do not
    break. If y is smooth along such a direction, a derivative of each branch of y has
    the slope of the difference.
    """
    x, got = case.float64[at], case.gradients[at]
    values, group = np.unique(x, return_inverse=True)
    if got is None or values.size == x.size:
        return ""
    if not (np.isfinite(x).all() and np.isfinite(got).all()):
        return ""
    group, unit, rng = group.reshape(x.shape), float(np.min(step)), case.rng
    wrong = []
    for _ in range(KINK_DIRECTIONS):
        sizes = rng.uniform(0.5, 1.5, values.size) * rng.choice(
            [-1.0, 1.0], values.size
        )
        direction = np.where(values == 0, 0.0, sizes)[group]
        change, moved = difference(case, at, direction, unit)
        slope, of_backward = np.sum(case.dy * change), np.sum(got * moved)
        _, bend = _change_and_bend(case, at, unit * direction)
        bent = DOUBT * np.sum(np.abs(case.dy) * bend) / unit
        size = max(np.sum(np.abs(case.dy * change)), np.sum(np.abs(got * moved)))
        if abs(of_backward - slope) > bent + TIED * size:
            wrong.append((of_backward, slope))
    if len(wrong) < 2:
        return ""
    of_backward, slope = wrong[0]
    return (
        f"where equal elements of {case.subject.input_names[at]} move together, y has no "
        f"kink, and the slope is {slope:.4g}; backward's is {of_backward:.4g}. Equal "
        "elements may share a gradient, but their shares sum to 1"
    )


def _kinked(case: Case, at: int, step: Step, direction: np.ndarray) -> bool:
    change, bend = _change_and_bend(case, at, step * direction)
    _, bend_of_half = _change_and_bend(case, at, step / 2 * direction)
    bent = bend > KINK * change.max(initial=0.0)
    return bool((bent & (bend_of_half > SHARP * bend)).any())


def _change_and_bend(
    case: Case, at: int, moved: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the change of each element of y from behind to ahead, and its bend: twice
    its distance from their mean."""
    x = case.float64[at]
    ahead, here, behind = (
        case.forward(_replaced(case, at, case.rounded(there)))
        for there in (x + moved, x, x - moved)
    )
    with np.errstate(invalid="ignore"):
        change, bend = np.abs(ahead - behind), np.abs(ahead - 2 * here + behind)
    return np.nan_to_num(change, posinf=0.0), np.nan_to_num(bend, posinf=0.0)


def errs_over_any_step(case: Case, at: int) -> bool:
    """Whether a gradient's slopes are as wrong over a step so short that kinks cannot
    be the cause.

    A kink that a step crosses bends y by twice the error that it causes, and a shorter
    step crosses fewer. The medians over random directions are compared.
    """
    got = case.gradients[at]
    if case.computes_in != "float64" or got is None:
        return False
    step = best_step(case, at)
    errors, shorter, bends = [], [], []
    for direction in case.directions.of(at, BENT_DIRECTIONS):
        for found, h in ((errors, step), (shorter, step / BRIEFER)):
            change, moved = difference(case, at, direction, h)
            found.append(abs(np.sum(case.dy * change) - np.sum(got * moved)))
        taken = step / BRIEFER * direction
        _, bend = _change_and_bend(case, at, taken)
        unit = largest(taken) / (largest(direction) or 1.0) or 1.0
        bends.append(np.sum(np.abs(case.dy) * bend) / unit)
    wrong = np.median(shorter)
    return bool(wrong > DOUBT * np.median(bends) and wrong > np.median(errors) / 2)


def _at_own_precision(case: Case, reason: NotRun) -> Case:
    """Return the case with numbers rounded to the precision in which forward computes.

    If forward does not accept float64, it gets the inputs' dtype. Raises NotRun if the
    precision is too coarse.
    """
    precision = case.computes_in
    if _low_tolerance(precision) > COARSEST:
        raise NotRun(f"{reason}, and {precision} is too coarse for differences")
    fed = "float64" if case.takes_float64 else case.dtype
    return replace(case, precision=precision, fed=fed)


def _low(precision: str) -> tuple[float, str]:
    """Return the tolerance at low precision, and why it is that."""
    return _low_tolerance(precision), f"{WHY}, {LOW_TOLERANCE}·ε^⅔ of {precision}"


def _low_tolerance(precision: str) -> float:
    return LOW_TOLERANCE * EPSILON[precision] ** (2 / 3)


def difference(
    case: Case, at: int, direction: np.ndarray, step: Step
) -> tuple[np.ndarray, np.ndarray]:
    """Return the change of y per unit of the step, and the direction actually taken,
    which differs because x + h·v rounds.

    A step for each coordinate scales that coordinate of the direction. The unit is then
    the largest step taken.
    """
    x = case.float64[at]
    taken = step * direction
    unit = largest(taken) / (largest(direction) or 1.0) or 1.0
    ahead, behind = case.rounded(x + taken), case.rounded(x - taken)
    with np.errstate(invalid="ignore"):
        moved = np.where(np.isfinite(x), (ahead - behind) / (2 * unit), 0.0)
        y_ahead, y_behind = (
            case.forward(_replaced(case, at, there)) for there in (ahead, behind)
        )
        change = y_ahead - y_behind
    return np.where(np.isfinite(change), change / (2 * unit), 0.0), moved


def best_step(case: Case, at: int) -> Step:
    """Return the step whose result agrees best with that of half the step.

    The candidates are the step for numbers about 1, the step for numbers of the input's
    size, and a step for each coordinate. A step with which a coordinate does not move,
    because x + h rounds to x, is avoided.
    """
    x = case.float64[at]
    step = EPSILON[case.precision] ** (1 / 3)
    movable = np.isfinite(x)
    size = np.where(movable, np.abs(x), 0.0)
    most = size.max(initial=0.0) or 1.0
    typical = (
        most * np.sqrt(np.mean((size[movable] / most) ** 2)) if movable.any() else 1.0
    )
    if 0.1 <= typical <= 10:
        return step
    direction = case.directions.first(at)

    def disagreement(step: Step) -> float:
        whole, moved = difference(case, at, direction, step)
        half, half_moved = difference(case, at, direction, step / 2)
        if ((moved == 0) | (half_moved == 0))[direction != 0].any():
            return np.inf
        return farthest(whole, half) / (largest(whole) or 1.0)

    return min(
        (step, step * (typical or 1.0), step * np.maximum(size, 1.0)), key=disagreement
    )


def _replaced(case: Case, at: int, value: np.ndarray) -> Inputs:
    return (*case.float64[:at], value, *case.float64[at + 1 :])
