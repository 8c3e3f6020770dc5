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
from functools import partial
from typing import Any, NamedTuple

from backpass import kernels, ptx
from backpass.ptx.shadow import Shadow
from backpass.verify import departures
from backpass.verify.case import Case, Inputs, NotRun, first_line
from backpass.verify.convert import to_kind_of, to_numpy, to_torch
from backpass.verify.methods.kernel import length, long_rows, placed, world
from backpass.verify.methods.precision import LOW, rows_against_float64
from backpass.verify.report import FAILED, NOT_RUN, PASSED, VACUOUS, Row

NAME = "compiled kernel"
PROOF = "proof"
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
        return [row for dtype in dtypes for row in _own(case, dtype)]
    rows = _packages(stem, _in_each(case, case.inputs, dtypes))
    if row_bytes := getattr(kernels.load(stem), "ROW_BYTES", None):
        longer = replace(case, given_dy=None, drawn=True)
        cases = _in_each(longer, long_rows(case, row_bytes), dtypes)
        rows += _packages(stem, cases, f", at rows of {length(row_bytes)}")
    return rows


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
        Call(case.inputs, case.subject.options, case.dy, approximate=case.seed)
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
        rows += _with_verdict(judged, found.unsettled, found.unwritten, sizes)
    return rows


class Executed(NamedTuple):
    """What a user's forward and backward returned as compiled, once, and the verdict.

    ``in_forward`` says whether forward launched a kernel. ``again`` runs both once more
    with a shadow.
    """

    y: Any
    saved: Any
    gradients: Any
    verdict: Any
    in_forward: bool
    again: Callable[..., Any]

    @property
    def instructions(self) -> int:
        """How many instructions the kernels' blocks executed."""
        return sum(run.report.instructions for run in self.verdict.runs)

    @property
    def programs(self) -> list[tuple[str, int]]:
        """The kernel and the number of programs of each launch."""
        return [(run.kernel, math.prod(run.grid)) for run in self.verdict.runs]


class InBackward(Exception):
    """Raised from an exception of the user's backward."""


def execute(
    case: Case, multiprocessors: int | None = None, shadow: Shadow | None = None
) -> Executed:
    """Run forward and backward once, for CPU tensors, by default on a GPU with as many
    multiprocessors as an A100. ``shadow`` computes in float64 beside. Raises a
    ``ptx.Fault``, what forward raises, and InBackward from what backward raises."""
    from backpass.kernels import compiled
    from backpass.torch_internals import without_torch_functions

    with compiled.executing(
        approximate=case.seed,
        as_cuda=True,
        atomic_sums=case.atomic_sums,
        multiprocessors=multiprocessors,
    ) as verdict:
        kernels.executions[-1].shadow = shadow
        y, saved = case.subject.forward(*case.given())
        in_forward = bool(verdict.runs)
        with without_torch_functions():  # only the user's code sees a GPU
            dy = to_kind_of(y, case.dy_for(to_numpy(y)))
        try:
            gradients = case.subject.backward(dy, saved)
        except ptx.Fault:
            raise
        except Exception as error:
            raise InBackward from error
    again = partial(execute, case, multiprocessors)
    return Executed(y, saved, gradients, verdict, in_forward, again)


def rows_of(case: Case, done: Executed) -> list[Row]:
    """Return the rows of a case whose inputs are tensors of one low precision: of its
    values, if they can be compared with float64, and of what the verdict lists."""
    dtype = case.dtype
    name, got = _name(dtype), case.slots.by_input(done.gradients)
    reference = case
    if case.operator is not None:
        reference = _Once.of(case, done.y, done.saved)
    try:
        if case.operator is None and done.in_forward:
            raise NotRun(NO_REFERENCE)
        rows = rows_against_float64(
            reference, name, to_numpy(done.y), got, dtype, any_order=True
        )
    except NotRun as reason:
        rows = [Row(name, "", NOT_RUN, reason=str(reason))]
    if case.operator is not None and any(row.verdict == VACUOUS for row in rows):
        rows = _unless_random(rows, case)
    rows = departures.named(rows, case, lambda shadow: done.again(shadow=shadow))
    verdict = done.verdict
    if verdict.unwritten:  # the cause of NaN, as new memory is filled with it
        cause = "; ".join(verdict.unwritten)
        rows = [
            replace(row, reason=f"{row.reason}; {cause}")
            if row.verdict == FAILED and row.reason.startswith("NaN at")
            else row
            for row in rows
        ]
    unsettled = [*map(str, verdict.unsettled)]
    rows = _with_verdict(rows, unsettled, verdict.unwritten)
    return [replace(row, note="; ".join(verdict.notes)) for row in rows]


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
    own = in_dtype(case, dtype)
    try:
        done = execute(own)
    except ptx.Fault as fault:
        yield fault_row(fault, dtype)
        return
    except Exception as raised:
        error = raised.__cause__ if isinstance(raised, InBackward) else raised
        assert isinstance(error, Exception)
        if dtype == case.dtype:
            raise error from None
        yield Row(_name(dtype), "", NOT_RUN, reason=first_line(error))
        return
    if done.verdict.runs:
        case.shared[Executed, dtype] = done
        yield from rows_of(own, done)


def _name(dtype: str) -> str:
    return f"{NAME}, {dtype}"


def fault_row(fault: ptx.Fault, dtype: str) -> Row:
    """Return the failed row of a fault that stopped a kernel."""
    from backpass.kernels.compiled import UNSEEN

    reason, note = f"{type(fault).__name__}: {fault}", f"not checked: {UNSEEN}"
    return Row(_name(dtype), "", FAILED, reason=reason, note=note)


def _with_verdict(
    rows: list[Row],
    unsettled: Sequence[str],
    unwritten: Sequence[str],
    sizes: str = "",
) -> list[Row]:
    """Return the rows with the verdict's note, and a failed row for each problem that
    the verdict lists."""
    from backpass.kernels.compiled import CAPABILITY, UNSEEN

    where = f"as compiled for compute capability {CAPABILITY / 10}{sizes}"
    note = f"not checked: {UNSEEN}"
    found = [replace(row, how=f"{where}, {row.how}", note=note) for row in rows]
    wrong = [*(f"not deterministic: {fault}" for fault in unsettled), *unwritten]
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

    return compiled.executing(as_cuda=True)
