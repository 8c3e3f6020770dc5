"""Say in a sentence how a wrong gradient is wrong.

Hypotheses are tried in turn, the simplest first: a constant ratio, a sign, a transpose,
a missing sum, a missing factor, a missing term, and last a change of forward. One is
reported only if it reproduces the numbers to the accuracy they are known to, and only
if that is hardly chance: every wrong element it gets right to 1e-9 is 30 bits of
evidence, and the more hypotheses were tried, the more bits are required.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from backpass.contract.arrays import Array
from backpass.verify.convert import to_numpy
from backpass.verify.diagnosis import relations
from backpass.verify.diagnosis.evidence import Clock, Diagnosis, Pair
from backpass.verify.diagnosis.missing import missing_term, missing_terms
from backpass.verify.diagnosis.places import largest_errors, place

SLIGHT = 1e-4  # an error relative to got that a small constant may cause
NOTHING_FOUND = "no simple relation found"
TRIES = "{name: array}) tries terms of your own"
_OF_OTHER_SHAPE = (
    relations.of_another_input,
    relations.other_shape,
    relations.missing_sum,
    relations.sum_too_many,
)
_OF_SAME_SHAPE = (
    relations.zero,
    relations.without_dy,
    relations.constant_ratio,
    relations.of_another_input,
    relations.of_outputs,
    relations.some_signs,
    relations.arranged,
    relations.reshaped,
    relations.summed,
    relations.one_place,
    relations.another_product,
    relations.missing_factor,
    relations.dropped_before,
    relations.of_a_variant,
    missing_term,
    missing_terms,
    relations.one_slice,
    relations.of_a_rerun,
    relations.one_place_alone,
    relations.of_a_term,
    relations.some_zero,
)


def diagnose(
    reference: Array,
    got: Array,
    terms: Mapping[str, Array] | None = None,
    *,
    backward: Callable[[np.ndarray], np.ndarray | None] | None = None,
    accuracy: float = 1e-9,
    others: Mapping[str, Array] | None = None,
    variants: Iterable[tuple[str, np.ndarray]] | None = None,
    reruns: Iterable[tuple[str, np.ndarray, np.ndarray | None]] | None = None,
    outputs: Iterable[tuple[str, np.ndarray, np.ndarray | None]] | None = None,
    options: Mapping[str, float] | None = None,
    fine: float = 0.0,
    seconds: float = 5.0,
) -> Diagnosis:
    """Say how ``got`` differs from ``reference``.

    ``terms`` are named arrays from which a missing factor or term may be built: dy, y,
    the inputs. ``backward`` computes ``got`` from a different cotangent; with it, a
    factor that was dropped early can be found. ``accuracy`` is the error of the
    reference, relative to its largest element. ``others`` are the references of other
    inputs' gradients, by name (``du``); ``got`` may be one of them. ``variants`` are
    backward's results with an argument changed, each with a description; the reference
    may equal one of them. They are consumed lazily; see `verify.variants`. ``reruns``
    are changes of forward in words, each with backward's gradient and forward's under
    the change, for a different cotangent; ``outputs`` are changes of the cotangents of
    several outputs, in the same form; see `verify.reruns`. ``options`` are the numbers
    with which forward is called; got may be off by one of them. ``fine`` is the
    accuracy to which a change of forward has to reproduce got if the error is slight,
    as that of a small constant that is left out. The search takes at
    most about ``seconds`` of CPU time. If it stops early, the diagnosis says so.
    """
    terms = {
        name: np.nan_to_num(to_numpy(value)) for name, value in (terms or {}).items()
    }
    others = {name: to_numpy(value) for name, value in (others or {}).items()}
    clock = Clock(seconds)
    first, again = itertools.tee(reruns or ())
    pair = Pair(
        to_numpy(reference),
        to_numpy(got),
        terms,
        backward,
        accuracy,
        others,
        variants or (),
        first,
        outputs or (),
        options or {},
        clock,
    )
    if pair.reference.shape != pair.got.shape:
        return relations.first(_OF_OTHER_SHAPE, pair) or Diagnosis("shape", pair.shapes)
    if not np.isfinite(pair.got).all():
        return Diagnosis(
            "not finite", f"got is not finite at {place(~np.isfinite(pair.got), pair)}"
        )
    if fine and np.abs(pair.difference).max() < SLIGHT * np.abs(pair.got).max():
        finer = replace(pair, accuracy=fine, reruns=again)
        if finer.wrong.any() and (
            found := relations.first((relations.of_a_rerun,), finer)
        ):
            return found
    if not pair.wrong.any():
        return Diagnosis("equal", "no difference")
    if found := relations.first(_OF_SAME_SHAPE, pair):
        return found
    stopped = f"; not searched further after {seconds:g} s" if clock.stopped else ""
    hint = "" if terms else f"; diagnose(reference, got, {TRIES}"
    return Diagnosis(
        "unknown", f"{NOTHING_FOUND}; {largest_errors(pair)}{stopped}{hint}"
    )
