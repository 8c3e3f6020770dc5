"""Execute the compiled kernel on the CPU, and compare its results with float64.

``backpass.ptx`` executes the PTX. It also finds races, accesses out of bounds, and uses
of uninitialised values. For a user's object, the kernels are those that its forward and
backward launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import partial, wraps
from typing import Any, NamedTuple

from backpass import kernels, ptx
from backpass.ptx.shadow import Shadow, TooLong
from backpass.verify import allowed, departures, digits
from backpass.verify.case import Case, Inputs, NotRun, first_line
from backpass.verify.comparison import TOO_COARSE
from backpass.verify.convert import is_torch, to_kind_of, to_numpy, to_torch
from backpass.verify.kernels import Kernels
from backpass.verify.methods.kernel import length, long_rows, placed, world
from backpass.verify.methods.precision import LOW, rows_against_float64
from backpass.verify.report import FAILED, NOT_RUN, PASSED, VACUOUS, Row

NAME = "compiled kernel"
PROOF = "proof"
UNSETTLED = "not deterministic: "
ACCEPTING = "; if you accept this, pass atomic_sums=True (--atomic-sums)"
RANDOM = (
    "operator= returns a different result at each call; leave it out, or give a "
    "function that draws the same numbers as forward"
)
NO_REFERENCE = (
    "forward launches a kernel, which autograd cannot follow; an operator= would give "
    "the reference"
)


def run(case: Case) -> list[Row]:
    """Return a row for y and a row for each gradient, in bfloat16, float16, and
    float32. If the inputs have one of these dtypes, only that dtype has rows.

    A user's object that launches no kernel has no rows. Raises NotRun if the operation
    has no kernel, or if kernels cannot be compiled here.
    """
    stem = case.subject.stem
    if stem is not None and stem not in kernels.STEMS:
        raise NotRun("this operation has no kernel")
    if missing := kernels.missing():
        raise NotRun(missing)
    dtypes = (case.dtype,) if case.dtype in LOW else LOW
    if stem is None:
        return _unless_coarse([row for dtype in dtypes for row in _own(case, dtype)])
    rows = _packages(stem, _in_each(case, case.inputs, dtypes))
    if row_bytes := getattr(kernels.load(stem), "ROW_BYTES", None):
        longer = replace(case, given_dy=None, drawn=True)
        cases = _in_each(longer, long_rows(case, row_bytes), dtypes)
        rows += _packages(stem, cases, f", at rows of {length(row_bytes)}")
    return rows


def _unless_coarse(rows: list[Row]) -> list[Row]:
    """Return the rows. A gradient that passed in one dtype is not judged in another in
    which the operator's own rounding is as large."""
    passed = {row.quantity for row in rows if row.verdict == PASSED}
    return [
        Row(row.method, row.quantity, NOT_RUN, reason=row.reason)
        if row.reason == TOO_COARSE and row.quantity in passed
        else row
        for row in rows
    ]


def in_dtype(case: Case, dtype: str) -> Case:
    """Return the case with its inputs as CPU tensors of the dtype."""
    return _in_each(case, case.inputs, [dtype])[0]


def _in_each(case: Case, inputs: Inputs, dtypes: Sequence[str]) -> list[Case]:
    """Return the case with these inputs as CPU tensors, once in each dtype."""
    return [
        replace(case, inputs=placed(case, inputs, dtype, "cpu")) for dtype in dtypes
    ]


def _packages(stem: str, cases: Sequence[Case], sizes: str = "") -> list[Row]:
    """Return the rows of a kernel of the package. ``sizes`` ends their description."""
    from backpass.kernels.passes import Call, passes

    calls = [
        Call(
            case.inputs,
            case.subject.options,
            case.dy,
            approximate=case.seed,
            capability=case.kernels.capability,
        )
        for case in cases
    ]
    kernel = kernels.load(stem)
    rows: list[Row] = []
    for case, found in zip(cases, passes(stem, calls), strict=True):
        dtype = case.dtype
        if isinstance(found, ptx.Fault):
            rows.append(fault_row(found, dtype))
            continue
        rounds = world(dtype, kernel, case.drawn)
        results = to_numpy(found.y), case.slots.by_input(found.gradients), dtype
        judged = rows_against_float64(
            case, _name(dtype), *results, world=rounds, drawn=case.drawn
        )
        wrong = found.unsettled, found.unwritten
        rows += _with_verdict(judged, case.kernels, *wrong, sizes)
    return rows


class Executed(NamedTuple):
    """What a user's forward and backward returned as compiled, once, and the verdict.

    ``in_forward`` says whether forward launched a kernel. ``number`` is that of the
    configurations of autotuned kernels, of which ``most`` are checked. ``again`` runs
    both once more, with a shadow or without TF32.
    """

    y: Any
    saved: Any
    gradients: Any
    verdict: Any
    in_forward: bool
    number: int
    most: int
    again: Callable[..., Any]

    @property
    def instructions(self) -> int:
        """How many instructions the kernels' blocks executed."""
        return sum(run.report.instructions for run in self.verdict.runs)

    def work(self, together: int) -> int:
        """Return how many instructions were executed. Where the programs of a kernel
        executed together, ``together`` instructions count as one."""
        reports = [run.report for run in self.verdict.runs]
        return sum(of.instructions // (1 if of.alone else together) for of in reports)

    @property
    def programs(self) -> list[tuple[str, int]]:
        """The kernel and the number of programs of each launch."""
        return [(run.kernel, math.prod(run.grid)) for run in self.verdict.runs]


class InBackward(Exception):
    """Raised from an exception of the user's backward."""


class InOperator(Exception):
    """Raised from an exception of the operator; the message says which."""


def execute(
    case: Case,
    multiprocessors: int | None = None,
    number: int = 0,
    *,
    shadow: Shadow | None = None,
    tf32: bool = True,
    fine: bool = True,
) -> Executed:
    """Run forward and backward once, for CPU tensors, by default on a GPU with as many
    multiprocessors as an A100. ``number`` is that of the configurations of autotuned
    kernels. ``shadow`` computes in float64 beside, and ``tf32`` says whether products
    of float32 are rounded as on a GPU, and ``fine`` whether units with an error of few
    roundings have one. Raises a ``ptx.Fault``, what forward raises, and
    InBackward from what backward raises."""
    from backpass.kernels import compiled
    from backpass.torch_internals import without_torch_functions

    with compiled.executing(
        approximate=case.seed if fine else ptx.Coarse(case.seed),
        as_cuda=True,
        capability=case.kernels.capability,
        configurations=case.kernels.configurations,
        atomic_sums=case.kernels.atomic_sums,
        multiprocessors=multiprocessors,
        tf32=tf32,
    ) as verdict:
        own = kernels.executions[-1]
        own.shadow, own.tuning.number = shadow, number
        y, saved = case.subject.forward(*case.given())
        in_forward = bool(verdict.runs)
        with without_torch_functions():  # only the user's code sees a GPU
            dy = to_kind_of(y, case.dy_for(to_numpy(y)))
        try:
            gradients = case.subject.backward(dy, saved)
        except (ptx.Fault, TooLong):
            raise
        except Exception as error:
            raise InBackward from error
        own.returned = [*_tensors(y), *_tensors(gradients)]
    again = partial(execute, case, multiprocessors, number)
    most = own.tuning.most
    return Executed(y, saved, gradients, verdict, in_forward, number, most, again)


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors of what forward or backward returns."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif is_torch(value):
        yield value


def executions(case: Case, multiprocessors: int | None = None) -> Iterator[Executed]:
    """Yield an execution with each of the configurations of autotuned kernels that are
    to be checked. Raises what ``execute`` raises."""
    done = execute(case, multiprocessors)
    yield done
    for number in range(1, done.most):
        yield execute(case, multiprocessors, number)


def rows_of(case: Case, done: Executed) -> list[Row]:
    """Return the rows of a case whose inputs are tensors of one low precision: of its
    values, if they can be compared with float64, and of what the verdict lists."""
    verdict = done.verdict
    rows, again = _compared(case, done), done.again
    if case.kernels.tf32_products and any(row.verdict == FAILED for row in rows):
        if any(ptx.rounds_to_tf32(run.text) for run in verdict.runs):
            again = partial(again, tf32=False)
            rows = allowed.with_tf32(rows, case, done, again(), _compared)
    if allowed.may_be_units(rows) and any(map(_has_units, verdict.runs)):
        exact = again(fine=False)
        rows = allowed.with_units(rows, case, done, exact, _compared)
    if digits.may_be_lost(rows, case):
        rows = digits.with_lost(rows, case, done, again, _compared)
    if case.operator is not None and any(row.verdict == VACUOUS for row in rows):
        rows = _unless_random(rows, case)
    if verdict.repeated:
        rows = departures.with_cause(rows, case, "; ".join(verdict.repeated))
    else:
        rows = departures.named(rows, case, lambda shadow: again(shadow=shadow))
    if verdict.unwritten:  # the cause of NaN, as new memory is filled with it
        cause = "; ".join(verdict.unwritten)
        rows = [
            replace(row, reason=f"{row.reason}; {cause}")
            if row.verdict == FAILED and row.reason.startswith("NaN at")
            else row
            for row in rows
        ]
    unsettled = [
        f"{fault}{ACCEPTING if isinstance(fault, ptx.AtomicSum) else ''}"
        for fault in verdict.unsettled
    ]
    wrong = unsettled, verdict.unwritten
    return _with_verdict(rows, case.kernels, *wrong, notes=verdict.notes)


def rows_again(case: Case, done: Executed, given: Executed) -> list[Row]:
    """Return the rows of a variation. An atomic sum is not reported again if one was at
    the inputs given."""
    known = any(isinstance(fault, ptx.AtomicSum) for fault in given.verdict.unsettled)
    rows = rows_of(case, done)
    return but_atomic_sums(rows) if known else rows


def but_atomic_sums(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without those that say that an atomic sum has any order."""
    return [row for row in rows if not row.reason.endswith(ACCEPTING)]


def _has_units(run: Any) -> bool:
    return ".approx." in run.text or ".full." in run.text


def _compared(case: Case, done: Executed, floor: float = 0.0) -> list[Row]:
    """Return the rows of the values, compared with float64. An error of ``floor`` times
    the largest element is allowed."""
    name, got = _name(case.dtype, done.number), case.slots.by_input(done.gradients)
    reference = case
    if case.operator is not None:
        named = replace(case, operator=_raising(case.operator))
        reference = _Once.of(named, done.y, done.saved)
    try:
        if case.operator is None and done.in_forward:
            raise NotRun(NO_REFERENCE)
        return rows_against_float64(
            reference,
            name,
            to_numpy(done.y),
            got,
            case.dtype,
            any_order=True,
            floor=floor,
        )
    except NotRun as reason:
        return [Row(name, "", NOT_RUN, reason=str(reason))]


def _raising(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator; what it raises says that it is the operator that did."""

    @wraps(operator)
    def named(*inputs: Any, **options: Any) -> Any:
        try:
            return operator(*inputs, **options)
        except Exception as error:
            raised = first_line(error)
            raise InOperator(f"the operator raises an error ({raised})") from error

    return named


def _accepts(case: Case) -> bool:
    """Whether the operator accepts the inputs in float64 or in the dtype of the
    kernels."""
    assert case.operator is not None
    for inputs in (map(to_torch, case.inputs), case.given()):
        try:
            case.operator(*inputs)
        except Exception:
            continue
        return True
    return False


def _unless_random(rows: list[Row], case: Case) -> list[Row]:
    """Return the rows; those of an operator that draws random numbers say so."""
    import torch

    operator, inputs = case.operator, case.inputs
    assert operator is not None
    one, other = (
        operator(*(to_torch(x, "cpu", torch.float64) for x in inputs)) for _ in "12"
    )
    if not isinstance(one, torch.Tensor) or torch.equal(one, other):
        return rows
    return [
        replace(row, reason=RANDOM) if row.verdict == VACUOUS else row for row in rows
    ]


class _Once(Case):
    """A case whose forward has run once, in a low precision, and which an operator
    judges. Executing a compiled forward again is slow, and would show nothing new."""

    takes_float64 = False

    @classmethod
    def of(cls, case: Case, y: Any, saved: Any) -> _Once:
        """Return the case with this y and this saved object."""
        own = {field.name: getattr(case, field.name) for field in fields(case)}
        own["subject"] = replace(case.subject, forward=lambda *_, **__: (y, saved))
        return cls(**own)

    @property
    def run(self) -> tuple[Any, Any]:
        return self.subject.forward()

    @property
    def computes_in(self) -> str:
        return self.dtype


def launched(case: Case, rows: Sequence[Row]) -> bool:
    """Whether an object with these rows launches a kernel in some dtype."""
    done = any((Executed, dtype) in case.shared for dtype in LOW)
    return done or any(row.verdict != NOT_RUN for row in rows)


def proofs_of(case: Case) -> list[Row]:
    """Return a row for each launch of an object's kernels: whether an external prover
    proves that no schedule has a race."""
    from backpass.kernels import proofs

    done = [
        case.shared[Executed, dtype]
        for dtype in LOW
        if (Executed, dtype) in case.shared
    ]
    if not done:
        return []
    if proofs.missing():
        return [Row(PROOF, "", NOT_RUN, reason=proofs.MISSING)]
    rows = []
    for found in proofs.of(done[0].verdict.runs):
        count = f"{found.programs} program{'s' if found.programs > 1 else ''}"
        note = f"no race in any schedule of {count}, at these sizes: {proofs.prover()}"
        if found.proved:
            rows.append(Row(PROOF, found.kernel, PASSED, note=note))
        else:
            reason = f"not proved by {proofs.prover()}: {found.said}"
            rows.append(Row(PROOF, found.kernel, NOT_RUN, reason=reason))
    return rows


def as_executed(case: Case) -> Case:
    """Return the case in the most precise dtype in which its kernels were executed."""
    done = [dtype for dtype in LOW if (Executed, dtype) in case.shared]
    return in_dtype(case, done[0]) if done else case


def _own(case: Case, dtype: str) -> Iterator[Row]:
    """Yield the rows of a user's object in one dtype."""
    own, number = in_dtype(case, dtype), 0
    try:
        for done in executions(own):
            if done.verdict.runs:
                case.shared.setdefault((Executed, dtype), done)
                yield from rows_of(own, done)
            number += 1
    except ptx.Fault as fault:
        yield fault_row(fault, dtype, number)
    except InOperator as unknown:
        wrong = not _accepts(own)  # nothing would compare the values with anything
        verdict, name = FAILED if wrong else NOT_RUN, _name(dtype, number)
        yield Row(name, "", verdict, reason=f"{unknown}, so values are not compared")
    except Exception as raised:
        error = raised.__cause__ if isinstance(raised, InBackward) else raised
        assert isinstance(error, Exception)
        if dtype == case.dtype:
            raise error from None
        yield Row(_name(dtype, number), "", NOT_RUN, reason=first_line(error))


def _name(dtype: str, number: int = 0) -> str:
    """Return the name of rows, with the number of configurations after the first."""
    more = f", configuration {number + 1}" if number else ""
    return f"{NAME}, {dtype}{more}"


def fault_row(fault: ptx.Fault, dtype: str, number: int = 0) -> Row:
    """Return the failed row of a fault that stopped a kernel."""
    from backpass.kernels.compiled import UNSEEN

    note = f"not checked: {UNSEEN}"
    return Row(_name(dtype, number), "", FAILED, reason=said(fault), note=note)


def said(fault: Exception) -> str:
    """Return a fault in words, with its kind."""
    return f"{type(fault).__name__}: {fault}"


def is_fault(error: Exception) -> bool:
    """Whether an error is that of a kernel that is wrong, at any inputs. An assertion
    may reject some, and so may an atomic sum in bfloat16 an odd length."""
    wrong = isinstance(error, ptx.Fault)
    return wrong and not isinstance(error, (ptx.Assertion, ptx.HalfWord))


def _with_verdict(
    rows: list[Row],
    settings: Kernels,
    unsettled: Sequence[str],
    unwritten: Sequence[str],
    sizes: str = "",
    notes: Sequence[str] = (),
) -> list[Row]:
    """Return the rows with the verdict's notes, and a failed row for each problem that
    the verdict lists."""
    from backpass.kernels.compiled import UNSEEN

    major, minor = settings.capability
    where = f"as compiled for compute capability {major}.{minor}{sizes}"
    note = "; ".join(notes or [f"not checked: {UNSEEN}"])
    found = [
        replace(
            row,
            how=f"{where}, {row.how}",
            note="; ".join(filter(None, (row.note, note))),
        )
        for row in rows
    ]
    wrong = [*(f"{UNSETTLED}{fault}" for fault in unsettled), *unwritten]
    return found + [
        Row(rows[0].method, "", FAILED, how=where, reason=reason, note=note)
        for reason in dict.fromkeys(wrong)
    ]


def launching(case: Case, asked: bool) -> AbstractContextManager[object]:
    """Return a context in which every method can call a user's object that launches
    kernels on CPU tensors."""
    if (
        not asked
        or case.subject.stem is not None
        or case.device != "cpu"
        or kernels.missing()
        or kernels.interpreted()
    ):
        return nullcontext()
    from backpass.kernels import compiled

    return compiled.executing(
        as_cuda=True,
        capability=case.kernels.capability,
        configurations=case.kernels.configurations,
    )
