"""Repeat the check of executed kernels at other shapes and values.

A kernel fails at shapes: with rows that no program handles, with columns beyond a mask
or a block. So each length of the inputs is replaced by a larger odd one, which is not a
multiple of any block. Triton compiles other code for multiples of 16, so one that is
not a multiple of a block follows. The work is counted in executed instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from backpass import ptx
from backpass.contract.arrays import is_array
from backpass.text.progress import Progress
from backpass.verify import domain
from backpass.verify.case import Case, Inputs, NotRun, first_line
from backpass.verify.convert import is_floating, to_numpy, to_torch
from backpass.verify.methods import compiled, finite_difference
from backpass.verify.methods.compiled import Executed, InBackward
from backpass.verify.methods.precision import LOW
from backpass.verify.report import FAILED, NOT_RUN, PASSED, Row
from backpass.verify.state import other_inputs
from backpass.verify.vary.axes import LENGTHENED
from backpass.verify.vary.draws import Draw, Places
from backpass.verify.vary.excused import (
    NAME,
    OF_INTEGERS,
    OF_OPTIONS,
    if_right,
    with_reference,
    without_small_errors,
)
from backpass.verify.vary.groups import other_integers, twice_as_many
from backpass.verify.vary.growth import (
    aligned,
    block_of,
    expected_lines,
    extrapolated,
    is_block,
    lines_of,
)
from backpass.verify.vary.inputs import of_integers
from backpass.verify.vary.masks import other_masks
from backpass.verify.vary.options import (
    executed_options,
    left_out,
    names_an_integer,
    not_of_operator,
)
from backpass.verify.vary.rows import EXCLUDED, diagnosis, not_run, summed_up
from backpass.verify.vary.structure import (
    EXCEED,
    REPEATS,
    exceed,
    is_kept,
    repeated,
    repeats,
)
from backpass.verify.vary.vanishing import unless_vanishing
from backpass.verify.vary.work import ASKED_FOR, Instructions, Work, elements

LEAST = 37  # odd, and more rows than most programs handle
OUTER = 5  # of sequences or heads, each of which takes programs of its own
BEYOND = (131, 1061)  # if one program or block handled all LEAST, or all 131
EIGHTS = 8  # a block is not a factor of its odd multiples
LINES = 40_000  # of PTX, which take seconds to compile; more may take minutes
MULTIPROCESSORS = 9  # of as many programs with 5 rows each, one has none of 37
FEW = 3  # of more rows, so that a program adds up many
QUERY = "torch.cuda.get_device_properties"
INSTRUCTIONS = 100_000  # that all variations may execute by default
IF_ASKED = 400_000
TOGETHER = 8  # so many of programs that execute together count as one, if asked
CALLS = 24  # of forward and backward, for differences along few directions
TIMES = 20  # the factor of values far from 0
OTHER_VALUES = "other values"
STRUCTURED = (
    "drawn inputs would not keep the structure of those given; SHAPES may declare it, "
    "as in cu[g+1]:offsets<n"
)
TO_EXCLUDE = (
    "if the kernel is made for certain lengths alone, let forward raise an error for "
    "others, or declare SHAPES"
)
# Faults of the order of accesses. They are in the kernel, whatever lengths it is for.
OF_ORDER = (
    *(f"{of.__name__}: " for of in (ptx.Race, ptx.Order, ptx.Barrier, ptx.TooEarly)),
    compiled.UNSETTLED,
)
# What is varied, in words, and the inputs, or a case with other options.
Trial = tuple[str, Inputs | Case]


class _Rejected(Exception):
    """Raised if inputs are not in the domain of the object. The message says why."""


def varied(case: Case, vary: bool | None) -> Iterator[Row]:
    """Yield the rows of the variations of an object whose kernels were executed at the
    inputs given: one for each variation, or one for each quantity that is wrong in it.

    They run in the most precise dtype; if ``vary`` is true, in each: first one
    variation in each, and then the others.
    """
    done = [dtype for dtype in LOW if (Executed, dtype) in case.shared]
    budget = Instructions(IF_ASKED if vary else INSTRUCTIONS, bool(vary))
    series, otherwise = [], set[str]()
    for dtype in done if vary else done[:1]:
        here = compiled.in_dtype(case, dtype)
        varying = _Varying(here, case.shared[Executed, dtype], budget, otherwise)
        varying.dtype = case.dtype if dtype == done[0] else None
        prefix = f"{dtype}, " if vary and len(done) > 1 else ""
        series.append((prefix, varying.each()))
    for count in (1, None):
        for prefix, each in series:
            for rows in islice(each, count):
                yield from (_prefixed(row, prefix) for row in rows)


def _prefixed(row: Row, prefix: str) -> Row:
    """Return the row with the name of the dtype before that of its variation."""
    said = prefix if row.reason.startswith(f"{row.variation}: ") else ""
    return replace(row, variation=prefix + row.variation, reason=said + row.reason)


class _Varying:
    """The variations of a case whose inputs are tensors of one low precision.

    ``given`` is the execution at these inputs. ``otherwise`` has the options at which
    y is wrong in a more precise dtype: in a coarse one it may be right by chance.
    ``dtype`` is that in which differences run, those of the inputs given: they need not
    be repeated for each dtype of the kernels.
    """

    dtype: str | None = None

    def __init__(
        self, case: Case, given: Executed, budget: Instructions, otherwise: set[str]
    ) -> None:
        self.case, self.given, self.budget = case, given, budget
        self.otherwise = otherwise
        self.asked, self.first = budget.asked, True
        one = max(1, self._work(given))
        # Other options take as much, of which half may be for them.
        each = [*executed_options(case)] if case.operator is not None else []
        self.options = each[: budget.most // (2 * one)]
        budget.kept[case.dtype] = one * (1 + len(self.options))
        self.draw, self.work = Draw(case), Work(ASKED_FOR)
        self.rejected: set[Places] = set()  # lengths that cannot be others

    def _work(self, done: Executed) -> int:
        return done.work(TOGETHER if self.asked else 1)

    def each(self) -> Iterator[list[Row]]:
        """Yield the rows of each variation, up to the first that is wrong."""
        for rows in self._each():
            if any(row.verdict != NOT_RUN for row in rows):
                self.first = False
            yield rows
            if any(row.verdict == FAILED for row in rows):
                break
        self.budget.kept.pop(self.case.dtype, None)

    def _each(self) -> Iterator[list[Row]]:
        """Yield the rows of each variation."""
        for trials in self._longer_than_one():
            yield self._first(trials, any_of=True)
        # Long inner axes change what a program does, and outer ones how many there are.
        lengths = sorted(self.draw.lengths(), key=self._is_outer)
        for places in lengths:
            if self._may_change(places):
                yield from self._of_length(places)
        for places in lengths:
            outer = self._is_outer(places) and not self.asked
            if self._may_change(places) and places not in self.rejected and not outer:
                longer = max(places.length + 3, LEAST)
                yield self._first(self._resized(places, aligned(longer)))
                if not self._is_of_rows(places) and not is_block(places.length):
                    yield self._first(self._resized(places, block_of(longer)))
        for trial in self._grouped():
            yield self._first([trial])
        for trial in other_integers(self.draw):
            yield if_right(self._first([trial], integers=True), OF_INTEGERS)
        names, others = self.draw.other_integers()
        if names:
            what = f"other integers in {' and '.join(names)}"
            yield with_reference(self._first([(what, others)], integers=True))
        if together := self._in_eights():
            yield without_small_errors(self._first([together]))
        self.budget.release(self.case.dtype)
        shapes = self.case.subject.shapes
        for what, there in self.options:
            if what in self.otherwise:
                yield [replace(not_run(NAME, what, OF_OPTIONS), variation=what)]
                continue
            found = self._first([(what, there)])
            declared = shapes is not None and bool(shapes.options)
            if not declared and not names_an_integer(there, self.case):
                judged = if_right(found, OF_OPTIONS)
                self.otherwise |= {what} if judged is not found else set()
                found = judged
            yield found
        yield self._first([(OTHER_VALUES, other_inputs(self.case).inputs)])
        for trial in self._of_values() if self.asked else ():
            found = self._first([trial])
            is_far = trial[0].endswith(f"× {TIMES}")
            yield without_small_errors(found, "values given") if is_far else found
        for what, why in not_of_operator(self.case):
            yield [replace(not_run(NAME, what, why), variation=what)]

    def _longer_than_one(self) -> Iterator[list[Trial]]:
        """For each axis of length 1 of the first input, yield inputs in which it is
        longer: together with the same axis of all inputs that have length 1 there,
        counted from the last axis, from the first, or both, and alone.

        With a declaration, its letters say which lengths belong together. Without an
        operator, nothing says so.
        """
        case, first = self.case, self.draw.first
        if self.draw.declared or case.operator is None:
            return
        arrays = [(at, x.shape) for at, x in enumerate(case.inputs) if is_array(x)]
        shape = case.inputs[first].shape
        for axis in (axis for axis, length in enumerate(shape) if length == 1):
            end = axis - len(shape)
            by_end = tuple(
                (at, len(of) + end)
                for at, of in arrays
                if len(of) >= -end and of[end] == 1
            )
            by_start = tuple(
                (at, axis) for at, of in arrays if len(of) > axis and of[axis] == 1
            )
            alike = tuple(of for of in by_start if of in by_end)
            what = f"length {LENGTHENED} in place of 1 along axis {axis}"
            yield [
                (what, self.draw.resized(Places.of(places, 1, None), LENGTHENED))
                for places in dict.fromkeys([by_end, by_start, alike, ((first, axis),)])
            ]

    def _grouped(self) -> Iterator[Trial]:
        if self.case.operator is not None and not self.draw.declared:
            yield from twice_as_many(self.draw, self.asked)

    def _in_eights(self) -> Trial | None:
        """Return inputs of which all lengths that may be others are odd multiples of 8
        at once; None if they are. A heuristic may take them for whole blocks."""
        draw, said = self.draw, []
        taken = {n for x in self.case.arrays for n in tuple(x.shape)}
        for places in self.draw.lengths():
            old = places.length
            accepted = self._may_change(places) and places not in self.rejected
            accepted = accepted and not self._is_outer(places)
            if not accepted or old % (2 * EIGHTS) == EIGHTS:
                continue
            longer = range(3 * EIGHTS, old + 2 * EIGHTS * (len(taken) + 3), 2 * EIGHTS)
            new = next(n for n in longer if n > old and n not in taken)
            new = self.draw.fit(places, new)
            draw = Draw(self.case.elsewhere(draw.resized(places, new)))
            taken.add(new)
            said.append((new, old))
        if not said:
            return None
        news, olds = (" and ".join(map(str, of)) for of in zip(*said, strict=True))
        what = f"length{'s' * (len(said) > 1)} {news} in place of {olds}"
        inputs = draw.case.inputs
        return self._on_few_processors(what, inputs), inputs

    def _may_change(self, places: Places) -> bool:
        """Whether a length is varied. Without a declaration and an operator, nothing
        says which lengths belong together, so only those of the first and the last axis
        of the first input are."""
        if self.draw.is_width_of_table(places):
            return False
        if self.draw.declared or self.case.operator is not None:
            return True
        last = self.case.inputs[self.draw.first].ndim - 1
        return bool({(self.draw.first, axis) for axis in (0, last)} & {*places})

    def _is_of_rows(self, places: Places) -> bool:
        """Whether a length is that of an axis other than the last, or all inputs are
        vectors."""
        deep = [
            at for at, x in enumerate(self.case.inputs) if is_array(x) and x.ndim > 1
        ]
        return not deep or any(
            at in deep and axis < self.case.inputs[at].ndim - 1 for at, axis in places
        )

    def _is_outer(self, places: Places) -> bool:
        """Whether a length is that of an axis before the last two, such as of sequences
        or heads, in each input of three axes or more that has it."""
        shapes = {at: x.shape for at, x in enumerate(self.case.inputs) if is_array(x)}
        deep = [axis - len(shapes[at]) for at, axis in places if len(shapes[at]) > 2]
        return bool(deep) and max(deep) < -2

    def _of_length(self, places: Places) -> Iterator[list[Row]]:
        """Yield the rows of a larger length, and of still larger ones while no launch
        has more programs, and none has more instructions than for the length before;
        if asked, of all, and of a single row. A still larger one is left out if its
        code would be too long."""
        of_rows, before = self._is_of_rows(places), 0
        leasts = (OUTER, LEAST) if self._is_outer(places) else (LEAST, *BEYOND)
        lengths = (max(places.length + 3, least) | 1 for least in leasts)
        code = [(block_of(places.length), lines_of(self.given))]
        costs = [(places.length, self._work(self.given))]
        for length in dict.fromkeys(lengths):
            known = self.asked and len(costs) > 1
            count = extrapolated(costs, length) if known else 0
            if count > (left := self.budget.for_(self.case.dtype, self.first)):
                what = f"length {length} in place of {places.length}"
                reason = self._too_many(count, left)
                yield [replace(not_run(NAME, what, reason), variation=what)]
                break
            lines = expected_lines(code, block_of(length)) if len(code) > 1 else 0
            if lines > LINES:
                what = f"length {length} in place of {places.length}"
                reason = (
                    f"the kernels would be compiled to about {lines:,} lines of PTX; a "
                    f"variation compiles at most {LINES:,}"
                )
                yield [replace(not_run(NAME, what, reason), variation=what)]
                break
            yield self._first(self._trials(places, length))
            if not self.last:
                self.rejected.add(places)
            else:
                code.append((block_of(length), self.lines))
                costs.append((length, self.cost))
            more = not of_rows and 0 < before < self.count
            if not self.asked and (more or self.last != self.given.programs):
                return
            before = self.count
        one = self.draw.fit(places, 1)
        # In a row of one element, normalised parts cancel, so nothing could be judged.
        if self.asked and of_rows and one < places.length:
            yield self._first(self._resized(places, 1))

    def _trials(self, places: Places, odd: int) -> list[Trial]:
        """Return inputs of an odd length. If they are rejected, inputs of twice an
        odd length follow. If the odd length is the least that is tried, inputs of three
        times the length given and of a smaller odd length follow too."""
        length = places.length
        lengths = [odd, 2 * (odd // 2 | 1)]
        if odd == max(length + 3, OUTER if self._is_outer(places) else LEAST) | 1:
            lengths += [3 * length, (length + 3) | 1]
        fits = [self.draw.fit(places, n) for n in lengths]
        return [
            trial for n in dict.fromkeys(fits) for trial in self._resized(places, n)
        ]

    def _resized(self, places: Places, length: int) -> list[Trial]:
        length = self.draw.fit(places, length)
        what = f"length {length} in place of {places.length}"
        return [
            (self._on_few_processors(what, inputs), inputs)
            for inputs in self.draw.tries(places, length)
        ]

    def _on_few_processors(self, what: str, inputs: Inputs) -> str:
        if QUERY not in self.given.verdict.stood_in:
            return what
        return f"{self._processors(inputs)} multiprocessors, {what}"

    def _processors(self, inputs: Inputs) -> int:
        """Return how many multiprocessors there are at inputs of other lengths."""
        lengths = [
            n
            for given, x in zip(self.case.inputs, inputs, strict=True)
            if is_array(x)
            for n in x.shape
            if n not in given.shape
        ]
        return FEW if max(lengths, default=0) > 2 * LEAST else MULTIPROCESSORS

    def _of_values(self) -> Iterator[Trial]:
        """Yield other values: far from 0, two that are equal, an ignored integer,
        masks, and an optional input left out."""
        draw, at = self.draw, self.draw.first
        x = self.case.float64[at]
        # In half precision, a right result may overflow there.
        exact = self.case.dtype == "float32"
        if exact and x.size and x.min() < 0 < x.max():
            yield f"{draw.name(at)} × {TIMES}", draw.replaced(at, TIMES * x)
        if x.ndim and x.size and x.shape[-1] > 1:
            tied = x.reshape(-1, x.shape[-1]).copy()
            second, first = np.argsort(tied[0])[-2:]
            tied[0, second] = tied[0, first]
            what = f"two equal largest elements of {draw.name(at)}"
            yield what, draw.replaced(at, tied.reshape(x.shape))
        for variation in of_integers(draw):
            yield variation.what, variation.tries[0]
        for what, tries, *_ in other_masks(draw):
            yield what, tries[0]
        for what, without in left_out(self.case):
            yield what, without.inputs

    def _first(
        self,
        trials: Sequence[Trial],
        *,
        any_of: bool = False,
        integers: bool = False,
    ) -> list[Row]:
        """Return the rows of the first trial that is not rejected; one row if all
        are. With ``any_of``, a trial that passes excuses failures before it. With
        ``integers``, those of the trial are meant to be others."""
        self.last: list[tuple[str, int]] = []
        self.count = self.cost = self.lines = 0
        reasons, what, wrong = [], trials[0][0], []
        for name, trial in trials:
            try:
                there = trial if isinstance(trial, Case) else self._at(trial)
                self._affordable(there)
                with Progress(f"compiling for {name}"):
                    found = self._judged(name, there)
                if not integers:
                    self._unless_of_integers(found, there.inputs)
            except _Rejected as rejected:
                reasons.append(str(rejected))
                continue
            rows = [replace(row, variation=name) for row in found]
            if not any_of or not any(row.verdict == FAILED for row in rows):
                return rows
            wrong = wrong or rows
        self.last = self.last if wrong else []
        return wrong or [replace(not_run(NAME, what, reasons[0]), variation=what)]

    def _unless_of_integers(self, found: Sequence[Row], inputs: Inputs) -> None:
        """Raise _Rejected if what failed may be due to integers that exceed the length
        of an axis, or that repeat, where those given do not. Without a declaration,
        they may be places to write to.

        Repeating is not the cause if nothing fails with integers that repeat at the
        lengths given.
        """
        given = self.case.inputs
        if self.draw.declared or not any(row.verdict == FAILED for row in found):
            return
        if exceed(given, inputs):
            raise _Rejected(EXCEED)
        if repeats(given, inputs) and not all(map(self._passes, repeated(given))):
            raise _Rejected(REPEATS)

    def _passes(self, inputs: Inputs) -> bool:
        """Whether the kernels are right at these inputs."""
        try:
            there = self._at(inputs)
            self._affordable(there)
            found = self._judged("integers that repeat", there)
        except _Rejected:
            return False
        return any(row.verdict == PASSED for row in found)

    def _at(self, inputs: Inputs) -> Case:
        """Return the case at other inputs. Raises _Rejected."""
        case, shapes = self.case, self.case.subject.shapes_for(self.case.inputs)
        named = dict(zip(case.subject.input_names, inputs, strict=False))
        if shapes is not None and not domain.fits(shapes, named):
            raise _Rejected(EXCLUDED)
        if shapes is None and not is_kept(case, inputs):
            raise _Rejected(STRUCTURED)
        return case.elsewhere(inputs)

    def _affordable(self, there: Case) -> None:
        """Raise _Rejected if a case would execute more than may be executed."""
        times = max(1.0, elements(there.arrays) / max(1, elements(self.case.arrays)))
        count = int(times * self._work(self.given))
        if count > (left := self.budget.for_(self.case.dtype, self.first)):
            raise _Rejected(self._too_many(count, left))

    def _too_many(self, count: int, left: int) -> str:
        more = "" if self.asked else f"; vary=True executes up to {IF_ASKED:,}"
        return (
            f"it would execute about {count:,} instructions; of {self.budget.most:,}, "
            f"it may execute {max(left, 0):,}{more}"
        )

    def _judged(self, what: str, case: Case) -> list[Row]:
        """Return the rows of one variation. Raises _Rejected if the operator or forward
        rejects the inputs, or if backward does."""
        shape, of_length = self._shape_of_operator(case), "length" in what
        processors = self._processors(case.inputs) if of_length else None
        found: list[Row] = []
        try:
            for done in compiled.executions(case, processors):
                self.budget.left -= self._work(done)
                if not self.last:
                    self.last, self.count = done.programs, done.instructions
                    self.cost, self.lines = self._work(done), lines_of(done)
                if shape is not None and tuple(done.y.shape) != shape:
                    raise _Rejected("forward and the operator return different shapes")
                rows = compiled.rows_again(case, done, self.given)
                found += unless_vanishing(rows, case, done, self.given)
        except _Rejected:
            raise
        except (ptx.Assertion, ptx.Unsupported, ptx.HalfWord) as error:
            raise _Rejected(first_line(error)) from None
        except ptx.Fault as fault:
            found += [compiled.fault_row(fault, case.dtype)]
        except InBackward as error:
            raised = first_line(error.__cause__)  # type: ignore[arg-type]
            reason = f"forward accepts it, but backward raises an error ({raised})"
            raise _Rejected(reason) from None
        except Exception as error:
            raise _Rejected(f"forward raises an error ({first_line(error)})") from None
        compared = any(row.verdict != NOT_RUN for row in found)
        if self.dtype and case.operator is None and not compared:
            found += self._differences(case, self.dtype)
        wrong: dict[str, Row] = {}
        for row in found:
            if row.verdict == FAILED:
                wrong.setdefault(row.quantity, row)
        hint = f"; {TO_EXCLUDE}" if of_length and not self.draw.declared else ""

        def said(row: Row) -> str:
            own = hint if not row.reason.startswith(OF_ORDER) else ""
            return diagnosis(row, case, self.work) + own

        return list(
            summed_up(
                NAME,
                what,
                found,
                wrong,
                case.quantities,
                said,
            )
        )

    def _differences(self, case: Case, dtype: str) -> list[Row]:
        """Return the rows of differences along few directions, for a kernel without any
        other reference."""
        count = CALLS * self.cost
        reason = f"differences would execute about {count:,} instructions"
        if count <= self.budget.for_(case.dtype, self.first):
            self.budget.left -= count
            wide = replace(compiled.in_dtype(case, dtype), slow=True)
            try:
                return finite_difference.run(wide)
            except NotRun as error:
                reason = str(error)
        return [Row(finite_difference.NAME, "", NOT_RUN, reason=reason)]

    def _shape_of_operator(self, case: Case) -> tuple[int, ...] | None:
        """Return the shape of the operator's output; None if it has several, or if
        an operator is missing. Raises _Rejected."""
        if case.operator is None:
            return None
        import torch

        try:
            y = case.operator(*(to_torch(x, "cpu", torch.float64) for x in case.inputs))
        except Exception as error:
            raised = first_line(error)
            raise _Rejected(f"the operator raises an error ({raised})") from None
        several = y if isinstance(y, (tuple, list)) else (y,)
        if not all(
            np.isfinite(to_numpy(of)).all() for of in several if is_floating(of)
        ):
            raise _Rejected("the operator's output is not finite")
        return None if isinstance(y, (tuple, list)) else tuple(y.shape)
