"""Execute the compiled kernel on the CPU, and compare its results with float64.

``backpass.ptx`` executes the PTX. It also finds races, accesses out of bounds, and uses
of uninitialised values. For a user's object, the kernels are those that its forward and
backward launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from backpass import kernels, ptx
from backpass.verify.case import Case, Inputs, NotRun, first_line
from backpass.verify.convert import to_kind_of, to_numpy
from backpass.verify.methods.kernel import length, long_rows, placed, world
from backpass.verify.methods.precision import LOW, rows_against_float64
from backpass.verify.report import FAILED, NOT_RUN, Row

NAME = "compiled kernel"


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
            rows.append(_fault(found, dtype))
            continue
        rounds = world(dtype, kernel, case.drawn)
        results = to_numpy(found.y), case.slots.by_input(found.gradients), dtype
        judged = rows_against_float64(
            case, _name(dtype), *results, world=rounds, drawn=case.drawn
        )
        rows += _with_verdict(judged, found.unsettled, found.unwritten, sizes)
    return rows


def _own(case: Case, dtype: str) -> Iterator[Row]:
    """Yield the rows of a user's object in one dtype."""
    from backpass.kernels import compiled
    from backpass.torch_internals import without_torch_functions

    (own,) = _in_each(case, case.inputs, [dtype])
    try:
        with compiled.executing(approximate=case.seed, as_cuda=True) as verdict:
            y, saved = own.subject.forward(*own.given())
            with without_torch_functions():  # only the user's code sees a GPU
                dy = to_kind_of(y, own.dy)
            gradients = own.subject.backward(dy, saved)
    except ptx.Fault as fault:
        yield _fault(fault, dtype)
        return
    except Exception as error:
        if dtype == case.dtype:
            raise
        yield Row(_name(dtype), "", NOT_RUN, reason=first_line(error))
        return
    if not verdict.runs:
        return
    got = own.slots.by_input(gradients)
    judged = rows_against_float64(
        own, _name(dtype), to_numpy(y), got, dtype, any_order=True
    )
    unsettled = [*map(str, verdict.unsettled)]
    rows = _with_verdict(judged, unsettled, verdict.unwritten)
    yield from (replace(row, note="; ".join(verdict.notes)) for row in rows)


def _name(dtype: str) -> str:
    return f"{NAME}, {dtype}"


def _fault(fault: ptx.Fault, dtype: str) -> Row:
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
