"""Name calls of the same object with other options, or without an optional input."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import to_kind_of, to_numpy
from backpass.verify.vary.words import words_of

# Values of an option. If it has one of them, the others in its list are tried.
WORDS = (("mean", "sum", "none"), ("none", "tanh"))
MOST_WORDS = 8  # of an option, as the source shows them

UNKNOWN = (
    "its other values are not known; list them in SHAPES: '; options act=relu|gelu'"
)
NOT_GIVEN = "it was not given"

OtherValues = Callable[[object, object], Iterator[object]]


def with_other_options(
    case: Case,
    others: OtherValues,
    declared: Mapping[str, tuple[object, ...]] | None = None,
) -> Iterator[tuple[str, object, object, Case]]:
    """Yield the case with one option changed: its name, its value, the other value, and
    the case. An input that is neither an array nor None counts as an option.

    ``others(value, default)`` yields the values to try in place of ``value``, unless
    ``declared`` has the values of each option. In place of a word, those that sources
    show are tried too.
    """
    subject = case.subject

    def of(name: str, value: object, default: object) -> Iterator[object]:
        if declared is not None:
            return iter(declared.get(name, ()))
        words = _words(case, name) if isinstance(value, str) else ()
        return itertools.chain(others(value, default), words[:MOST_WORDS])

    if subject.called_with is not None:
        for name, value in subject.all_options.items():
            for other in _once(value, of(name, value, subject.defaults.get(name))):
                try:
                    changed = subject.called_with({name: other})
                except Exception:
                    continue
                yield name, value, other, replace(case, subject=changed)
    for at, value in enumerate(case.inputs):
        if is_array(value) or value is None:
            continue
        name = subject.input_names[at]
        for other in _once(value, of(name, value, None)):
            inputs = (*case.inputs[:at], other, *case.inputs[at + 1 :])
            yield name, value, other, case.elsewhere(inputs)


def _words(case: Case, name: str) -> tuple[str, ...]:
    """Return the words of an option that the source of forward or of the operator
    shows, unless the operator is PyTorch's own: some of its words are deprecated."""
    own = not (getattr(case.operator, "__module__", None) or "").startswith("torch")
    sources = (case.subject.source, case.operator if own else None)
    return tuple(dict.fromkeys(word for of in sources for word in words_of(of, name)))


def _other(case: Case, name: str, value: object) -> object:
    """Return a value of an option that is not the one given, or None if no other is
    known."""
    words = _words(case, name) if isinstance(value, str) else ()
    return next(_once(value, itertools.chain(words, other_values(value))), None)


def untried(case: Case) -> Iterator[tuple[str, str]]:
    """Yield what no variation can try, and why: other words than an option's own, if
    forward's source shows none, and inputs and options that were not given."""
    for name, value in case.subject.all_options.items():
        if isinstance(value, str) and _other(case, name, value) is None:
            yield f"{name} other than {value!r}", UNKNOWN
    given = [at for at, value in enumerate(case.inputs) if value is not None]
    inputs = case.subject.input_names
    absent = [inputs[at] for at in case.subject.optional if at not in given]
    absent += [name for name, of in case.subject.all_options.items() if of is None]
    for name in dict.fromkeys(absent):
        yield f"with {name}", NOT_GIVEN


def executed_options(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield what is changed, in words, and the case with one option changed, for which
    its operator computes the same: as a further input, or as a parameter of the same
    name whose default is the value given."""
    shapes = case.subject.shapes
    declared = dict(shapes.options) if shapes and shapes.options else None
    again = case.elsewhere(case.inputs)
    for name, value, other, there in with_other_options(again, other_values, declared):
        operator = case.operator
        if name in case.subject.all_options:
            operator = _with_option(operator, name, value, other)
        if operator is not None:
            inputs = with_its_sentinels(there, case)
            yield f"{name}={other!r}", replace(there, operator=operator, inputs=inputs)


def with_its_sentinels(there: Case, case: Case) -> Inputs:
    """Return the inputs with the integer that an option names, such as ignore_index,
    replaced by that of its other value, if SHAPES declares it."""
    inputs = list(there.inputs)
    for at, before, after in _sentinels(there, case):
        values = to_numpy(inputs[at])
        places = [(values == one) for one in before]
        for place, one in zip(places, after, strict=True):
            values = np.where(place, one, values)
        inputs[at] = to_kind_of(inputs[at], values)
    return tuple(inputs)


def names_an_integer(there: Case, case: Case) -> bool:
    """Whether the option that differs names an integer that SHAPES declares."""
    return any(True for _ in _sentinels(there, case))


def _sentinels(there: Case, case: Case) -> Iterator[tuple[int, Sequence, Sequence]]:
    """Yield each input in which an option changes the declared integers with a special
    meaning, with these integers before and after."""
    old, new = (of.subject.shapes_for(of.inputs) for of in (case, there))
    if old is None or new is None:
        return
    for at, specs in enumerate(zip(old.inputs, new.inputs, strict=True)):
        before, after = (spec.sentinels for spec in specs)
        if before != after and len(before) == len(after) and is_array(there.inputs[at]):
            yield at, before, after


def not_of_operator(case: Case) -> Iterator[tuple[str, str]]:
    """Yield each option that cannot be changed, because nothing says what the operator
    would compute then, and why."""
    if case.operator is None or (case.subject.shapes and case.subject.shapes.options):
        return
    for name, value in case.subject.all_options.items():
        other, what = _other(case, name, value), f"{name} other than {value!r}"
        if other is None and isinstance(value, str):
            yield what, UNKNOWN
        elif other is not None and not _with_option(case.operator, name, value, other):
            yield what, f"the operator has no parameter {name} with this default"


def neutral_operators(case: Case) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield what is changed, in words, and the operator with an option that forward has
    too at a value that may have no effect."""
    for name, value in case.subject.all_options.items():
        default = case.subject.defaults.get(name)
        for other in _once(value, neutral_values(value, default)):
            operator = _with_option(case.operator, name, value, other)
            if operator is not None:
                yield f"{name}={other!r} in place of {value!r}", operator


def _with_option(operator: Any, name: str, value: object, other: object) -> Any:
    try:
        taken = inspect.signature(operator).parameters.get(name)
    except (TypeError, ValueError):  # of a builtin
        return None
    if taken is None or taken.kind is taken.POSITIONAL_ONLY:
        return None
    if not isinstance(taken.default, (int, float, str, tuple, list)):
        return None
    if taken.default != value:
        return None
    return partial(operator, **{name: other})


def left_out(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case without each input whose default is None."""
    for at in case.subject.optional:
        if at < len(case.inputs) and is_array(case.inputs[at]):
            inputs = (*case.inputs[:at], None, *case.inputs[at + 1 :])
            yield f"without {case.subject.input_names[at]}", case.elsewhere(inputs)


def other_values(value: object, default: object = None) -> Iterator[object]:
    """Yield values in the domain of an option, as far as one value shows it.

    A boolean is flipped, a float made smaller (0 becomes 0.25), an integer increased
    and decreased by one, and a word replaced by the others of its list in WORDS. 0 does
    not become negative, since -1 may mean the last of something, or nothing. The
    integers of a tuple or a list are put in reverse order, and one of its numbers is
    changed.
    """
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1) if value else (1,)
    elif isinstance(value, str):
        yield from next((words for words in WORDS if value in words), ())
    elif isinstance(value, float):
        yield float(f"{0.75 * value:.3g}") if value else 0.25
    elif isinstance(value, tuple | list) and type(value) in (tuple, list):
        yield from _other_sequences(value) if value else ()


def _other_sequences(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield integers in reverse order, with the last one increased, and with the first
    one decreased; or numbers with the first one made smaller, if that does not change
    their order, because two may be bounds.

    In a sequence of sequences, the last one is changed.
    """
    of: Any = type(values)
    kinds = {type(value) for value in values}
    if kinds <= {int, tuple, list}:
        yield of(reversed(values))
    if kinds == {int}:
        yield of([*values[:-1], values[-1] + 1])
        yield of([values[0] - 1, *values[1:]])
    elif kinds <= {int, float} and isinstance(values[0], float):
        smaller = [next(other_values(values[0])), *values[1:]]
        if _order(smaller) == _order(values):
            yield of(smaller)
    elif kinds <= {tuple, list}:
        for last in _other_sequences(values[-1]):
            yield of([*values[:-1], last])


def _order(values: Sequence[float]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


def neutral_values(value: object, default: object) -> Iterator[object]:
    """Yield values with which an option may have no effect: flipped, its default, None,
    0 and 1. A backward that forgets the option acts as if it had one of them."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float | str | None):
        yield from (default, None)
        if isinstance(value, int | float):
            yield from (type(value)(0), type(value)(1))


def _once(value: object, others: Iterator[object]) -> Iterator[object]:
    """Yield the values that are neither equal to ``value`` nor to an earlier one."""
    tried = [value]
    for other in others:
        if not any(other is known or other == known for known in tried):
            tried.append(other)
            yield other
