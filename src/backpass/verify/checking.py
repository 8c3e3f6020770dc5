"""Run every check that applies and collect the results in one table."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.text.progress import Progress
from backpass.verify import updating, vacuous
from backpass.verify.allocation import memory_kept
from backpass.verify.arguments import (
    check_conventions,
    check_operator,
    check_options,
    check_precision,
    check_seed,
    check_tolerances,
    chosen_methods,
)
from backpass.verify.case import Case, NotRun, describe, first_line
from backpass.verify.conditioned import unless_digits, unless_rounded, unless_rounding
from backpass.verify.diagnosis import NOTHING_FOUND, TRIES
from backpass.verify.drawing import INPUTS, drawn_inputs, generator, options_for
from backpass.verify.findings import SLOPES_DIFFER, Wrong
from backpass.verify.forms import Form, counts_of, usual
from backpass.verify.gradient_names import WHERE
from backpass.verify.kernels import CAPABILITY, Configurations, Kernels
from backpass.verify.memory import LAYOUTS
from backpass.verify.methods import (
    Method,
    autograd,
    compiled,
    complex_step,
    contract,
    finite_difference,
    kernel,
    precision,
    pytorch,
    second_derivative,
    symbolic,
)
from backpass.verify.methods.compiled import (
    as_executed,
    but_atomic_sums,
    is_fault,
    launched,
    launching,
    proofs_of,
)
from backpass.verify.outputs import Malformed
from backpass.verify.report import (
    COULD_NOT_RUN,
    FAILED,
    NOT_RUN,
    VACUOUS,
    VARIATIONS,
    Report,
    Row,
)
from backpass.verify.seeded import numbers_kept
from backpass.verify.signatures import with_options
from backpass.verify.subject import Subject, is_function, load, subject
from backpass.verify.vary import executed, work
from backpass.verify.vary.call import varied_call
from backpass.verify.vary.judging import varied
from backpass.verify.vary.rows import RowsOf

METHODS: dict[str, Method] = {
    "contract": contract,
    "finite_difference": finite_difference,
    "complex_step": complex_step,
    "symbolic": symbolic,
    "autograd": autograd,
    "pytorch": pytorch,
    "precision": precision,
    "kernel": kernel,
    "compiled": compiled,
    "second_derivative": second_derivative,
}
ASKED_FOR = ("compiled", "second_derivative")  # methods that run only if named
USUAL = tuple(name for name in METHODS if name not in ASKED_FOR)
# These methods compare with forward's own derivative, even where a convention applies.
DERIVING: tuple[Method, ...] = (finite_difference, complex_step, symbolic)
# These compare with a gradient that is exact in float64, up to rounding.
EXACT: tuple[Method, ...] = (complex_step, autograd, pytorch)
OPTIONAL = {"torch": "PyTorch", "triton": "Triton", "sympy": "SymPy"}  # by import name
SLIGHT = 1e-3  # of the largest element: an error that rounding may cause by cancelling
# Usual names of the targets of a loss, which have no gradient.
TARGETS = ("t", "target", "targets", "label", "labels", "y_true", "mask")
SEARCH = 5.0  # seconds for all diagnoses of one check
STRIDES = "call contiguous() on each such tensor, or pass its strides to the kernel"
NOTHING_VARIED = "vary=True: no variation was compared with anything"
NO_GRADIENT = f"no attribute holds its gradient; looked for one such as {WHERE}"


def check(
    op: object,
    *inputs: Array | object,
    seed: int = 0,
    methods: Sequence[str] | None = None,
    dy: Array | None = None,
    operator: Callable[..., Array] | None = None,
    zero_gradients: Sequence[str] = (),
    constants: Sequence[str] = (),
    conventions: Mapping[str, str] | None = None,
    precision: str | None = None,
    tolerances: dict[str, tuple[float, str]] | None = None,
    vary: bool | None = None,
    compiled: bool = False,
    capability: tuple[int, int] = CAPABILITY,
    configurations: Configurations = 1,
    atomic_sums: bool = False,
    tf32_products: bool = False,
    prove: bool = False,
    explain: bool = True,
    raises: bool = True,
    options: Mapping[str, object] | None = None,
    **named_options: object,
) -> Report:
    """Check ``op``'s backward by every method that applies; the report is a table.

    ``op`` is one of these:

    - the name or module of an operation;
    - a pair of functions, ``forward(*inputs) -> (y, saved)`` and ``backward(dy, saved)
      -> gradients``, or an object with two functions of these names. The page "Check
      your own backward" lists the other forms that they may have;
    - a layer that keeps its state: an instance whose ``backward(dy)`` stores the
      gradients of its parameters in attributes;
    - a ``torch.autograd.Function``, a ``torch.nn.Module`` whose forward applies one, or
      an operator of ``torch.library.custom_op`` with a registered backward.

    ``inputs`` are NumPy or PyTorch arrays; without any, they are drawn if the object
    declares SHAPES and is not a layer. The parameters of a layer or a module follow
    them as further inputs. A forward may return several outputs as a tuple; backward's
    ``dy`` is then a tuple too. Other keywords are options of ``forward``. An option
    that has the name of a parameter of ``check``, such as dropout's ``seed``, goes in
    ``options``.

    - ``seed`` seeds the cotangent, the directions, and the inputs if they are drawn;
    - ``methods`` names the methods to run (default: all of METHODS but "compiled" and
      "second_derivative"; a row reports a wrong second derivative, but does not fail);
    - ``dy`` replaces the random cotangent; for several outputs it is a single vector of
      all their elements;
    - ``operator`` is a PyTorch function of all inputs that computes the same y; for a
      layer or a module, its inputs come first and then its parameters; it is given the
      options that it has by name;
    - ``zero_gradients`` names inputs whose gradient is identically zero, which is
      otherwise reported as vacuous;
    - ``constants`` names floating-point inputs that have no gradient;
    - ``conventions`` maps each input whose gradient is intentionally not forward's
      derivative (padding, ``detach``, a straight-through estimator) to the reason; only
      autograd and the operator then judge that gradient;
    - ``precision`` is the dtype in which forward and backward compute, if it is
      narrower than the output's; by default it is measured;
    - ``tolerances`` maps a method to a pair: a tolerance that replaces its own, and the
      reason, which the table then shows; that of "precision" is a share of the largest
      element of y or of a gradient;
    - ``vary`` repeats the check at inputs of other shapes and values, drawn from the
      elements given, and with other calls, such as one with an option changed, an
      optional input left out, or an output unused. By default, a check that passed at
      the inputs given is repeated with variations that suit every function or that
      SHAPES allows, if their counted work is small and neither ``methods`` nor ``dy``
      is given; True tries all variations, and False none;
    - ``compiled`` also executes the Triton kernels that are launched as they are
      compiled, in bfloat16, float16 and float32, without a GPU. Of the other methods,
      only the contract then runs by default, and differences without an
      ``operator`` that gives the derivative; ``vary`` then concerns the kernels;
    - ``capability``, with ``compiled``, is the compute capability for which kernels are
      compiled: (8, 0), (8, 9), or (9, 0);
    - ``configurations``, with ``compiled``, is the number of an autotuned kernel's
      configurations to check, None for all, or a function that selects some from a list
      of them; each is executed and compared by itself;
    - ``atomic_sums`` accepts floating-point sums by ``tl.atomic_add``, whose rounding
      depends on the order of the programs, as does ``ATOMIC_SUMS = True`` on the
      object;
    - ``tf32_products`` accepts products of float32 whose operands are rounded to TF32,
      as those of ``tl.dot`` are by default; so does ``TF32_PRODUCTS = True`` on the
      object. The kernels are then compared as executed with all digits of these
      operands, and a note says by how much TF32 changes the result;
    - ``prove``, with ``compiled``, passes each launch to SentryWard, an external prover
      that has to be installed, and adds a row for what it proves: that no schedule of
      the launch has a race; what it cannot prove is not run, and does not fail;
    - ``explain=False`` skips the diagnosis of wrong gradients, which takes up to five
      seconds, and names only the first fault of an operation with ``wanted``.

    Raises VerificationError, which carries the report, if a row failed, was vacuous or
    could not run, or if no row passed for a gradient. ``raises=False`` returns the
    report in either case. Raises TypeError, ValueError or LookupError if ``op`` or its
    inputs cannot be checked.
    """
    chosen = chosen_methods(USUAL if methods is None else methods, tuple(METHODS))
    chosen += ["compiled"] if compiled and "compiled" not in chosen else []
    if prove and "compiled" not in chosen:
        raise ValueError(
            "prove=True: expected compiled=True too, because only kernels are proved"
        )
    check_seed(seed)
    check_tolerances(
        tolerances,
        [name for name, method in METHODS.items() if hasattr(method, "TOLERANCE")],
    )
    check_operator(operator)
    if dy is not None and not is_array(dy):
        raise TypeError(
            "dy: expected an array of the output's shape, or for several outputs one "
            f"vector of all their elements; got {type(dy).__name__}"
        )
    check_precision(precision)
    options = {**check_options(options), **named_options}
    settings = Kernels.of(
        load(op),
        "compiled" in chosen,
        capability=capability,
        configurations=configurations,
        atomic_sums=atomic_sums,
        tf32_products=tf32_products,
    )
    op, drawn = load(op), not inputs
    if drawn and is_function(op):  # its options are positional, after the inputs
        inputs = drawn_inputs(op, generator(seed, INPUTS), options=options)
    given = op, inputs, options
    form = usual(op, inputs, options)
    op, inputs, without = form.op, form.inputs, form.without
    options = options if form.options is None else {**form.options}
    if not inputs:
        inputs = drawn_inputs(op, generator(seed, INPUTS), options=options)
        options = {**options_for(op), **options}
    under_test = subject(op, len(inputs), options, zero_gradients, constants)
    conventions = check_conventions(conventions, under_test.input_names)
    inputs = under_test.complete(inputs)
    case = Case(
        under_test,
        inputs,
        seed,
        dy,
        with_options(operator, len(inputs), options),
        tolerances or {},
        explain,
        declared=precision,
        conventions=conventions,
        drawn=drawn,
        held=form.held,
        counts=counts_of(given[0]),
        again=form.again,
        kernels=settings,
    )
    if under_test.conventions:  # forward alone does not determine such a gradient
        case = replace(case, operator=pytorch.bound_operator(case))
    elements = sum(math.prod(value.shape) for value in case.arrays)
    with (
        numbers_kept(),
        launching(case, "compiled" in chosen),
        memory_kept(elements),
        Progress(f"checking {under_test.name}") as progress,
    ):
        if dy is not None:
            _ = case.dy  # raises ValueError if its shape is not that of y

        def rows_of(case: Case, names: Sequence[str]) -> list[Row]:
            """Return the rows of a case, by those of these methods that were chosen."""
            runs = (_run(name, case, progress) for name in names if name in chosen)
            return [row for rows in runs for row in rows]

        def subject_of(form: Form) -> Subject:
            """Return the same layer in another state."""
            count = len(form.inputs)
            return subject(form.op, count, options, zero_gradients, constants)

        def update_of() -> updating.Update | None:
            return updating.update_of(case, given, subject_of, rows_of)

        rows = [
            Row("form", f"d{name}", NOT_RUN, reason=NO_GRADIENT) for name in without
        ]
        unrestricted = methods is None and dy is None
        own = under_test.stem is None and "compiled" in chosen
        if own and launched(case, found := rows_of(case, ["compiled"])):
            rows += [*found, *_beside(case, found, rows_of, methods)]
            all_of = methods is None or chosen == ["compiled"]
            may = vary is None and all_of and dy is None
            if vary or (may and _passed(case, but_atomic_sums(rows))):
                rows += executed.varied(case, vary)
            rows += proofs_of(case) if prove else []
        else:
            found = finite_difference.unless_seen(rows_of(case, chosen))
            found = complex_step.unless_contradicted(found)
            settled = case
            own = not under_test.stateless and updating.is_wrong(found)
            if own and (update := update_of()):
                found, settled = updating.reconsidered(found, case, update, rows_of)
            rows += vacuous.advised(found, case, rows_of)
            if unrestricted and _passed(case, rows):
                rows += second_derivative.noticed(case)
            if vary or (vary is None and unrestricted and _may_be_varied(case, rows)):
                found = _varied(settled, rows_of, vary)
                wrong = {row.quantity for row in found if row.verdict == FAILED}
                if wrong and settled is case and (update := update_of()):
                    settled = update.without(case, wrong)
                    found = _varied(settled, rows_of, vary)
                rows += found
        if vary and not any(row.variation and row.verdict != NOT_RUN for row in rows):
            rows.append(Row(VARIATIONS, "", VACUOUS, reason=NOTHING_VARIED))
        rows, arrays = _explained(rows, case, progress)
    inputs_shown = describe(under_test, case.inputs)
    report = Report(
        under_test.name, inputs_shown, tuple(rows), case.quantities, seed, arrays
    )
    return report.raise_unless_passed() if raises else report


def _beside(
    case: Case, found: list[Row], rows_of: RowsOf, methods: Sequence[str] | None
) -> list[Row]:
    """Return the rows of the other methods for an object whose kernels were executed,
    given their rows.

    Executing a kernel is slow, and a value in low precision shows what a difference
    would. So by default only the contract runs, in an executed dtype, and differences
    along few directions if a reference is missing.
    """
    if methods is not None:
        return rows_of(case, [name for name in methods if name != "compiled"])
    if any(row.verdict == FAILED and not row.quantity for row in found):
        return []  # a kernel does not run to its end
    rows = [_with_cure(row) for row in rows_of(as_executed(case), ["contract"])]
    if all(row.verdict == NOT_RUN for row in found):
        rows += rows_of(replace(case, slow=True), ["finite_difference"])
    return rows


def _with_cure(row: Row) -> Row:
    """Return a row of the contract; if strides matter, with what a kernel's host code
    does about them."""
    if row.verdict != FAILED or not any(of.words in row.reason for of in LAYOUTS):
        return row
    return replace(row, reason=f"{row.reason}; {STRIDES}")


def _may_be_varied(case: Case, rows: list[Row]) -> bool:
    """Whether a check is varied by default: that of a user's object which passed at the
    inputs given, by references that hold elsewhere.

    For operations of the package, ``verify`` draws inputs of many shapes.
    """
    follows = all(row.reason != autograd.CONTRADICTED for row in rows)
    return _passed(case, rows) and follows and not case.subject.stateless


def _passed(case: Case, rows: list[Row]) -> bool:
    return Report(case.subject.name, "", tuple(rows), case.quantities).passed


def _varied(case: Case, rows_of: RowsOf, vary: bool | None) -> list[Row]:
    """Return the rows of the variations; without being asked for them, of those that
    are in the domain of the object, if they are few enough to be quick."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that of a mean of no rows
        if not vary and (reason := work.too_large(case)):
            reason = (
                f"variations not run: the check would be slow ({reason}); vary=True "
                "runs them"
            )
            return [Row(VARIATIONS, "", NOT_RUN, reason=reason)]
        left = work.Work(work.ASKED_FOR if vary else work.BY_DEFAULT)
        return [  # the calls first: they take less work, and are few
            *varied_call(case, rows_of, vary, left),
            *varied(case, rows_of, vary, left),
        ]


def _explained(
    rows: list[Row], case: Case, progress: Progress
) -> tuple[list[Row], dict[str, Wrong]]:
    """Return the rows with one diagnosis for each wrong quantity, against the most
    accurate reference, and the arrays of these quantities."""
    failed = {(row.method, row.quantity) for row in rows if row.verdict == FAILED}
    found = case.found.suspects
    suspects = {key: suspect for key, suspect in found.items() if key in failed}
    sentences: dict[str, str] = {}
    arrays: dict[str, Wrong] = {}
    left = SEARCH
    for method, quantity in sorted(suspects, key=lambda key: suspects[key].accuracy):
        if quantity not in sentences:
            progress.now(f"finding out what is wrong with {quantity}")
            start = time.thread_time()
            suspect = suspects[method, quantity]
            sentences[quantity] = suspect.diagnose(max(left, 0.5))
            left -= time.thread_time() - start
            if suspect.arrays:
                arrays[quantity] = suspect.arrays()
                if NOTHING_FOUND in sentences[quantity]:
                    sentences[quantity] += f'; report.diagnose("{quantity}", {TRIES}'
    rows = [
        replace(row, reason=sentences[row.quantity])
        if (row.method, row.quantity) in suspects
        or (row.reason == SLOPES_DIFFER and row.quantity in sentences)
        else row
        for row in rows
    ]
    wrong = {row.quantity for row in rows if row.verdict == FAILED}
    targets = {of: _if_a_target(case, of) for of in case.quantities if of in wrong}
    rows = [
        replace(row, reason=f"{row.reason}{targets[row.quantity]}")
        if row.verdict == FAILED and targets.get(row.quantity) and row.reason
        else row
        for row in rows
    ]
    return rows, arrays


def _if_a_target(case: Case, quantity: str) -> str:
    """Return the hint to name an input in ``constants`` if its gradient is None, or if
    it is zero and the input may be the targets of a loss; otherwise ""."""
    at = case.differentiable[case.quantities.index(quantity)]
    name, values = case.subject.input_names[at], case.float64[at]
    try:
        got = case.gradients[at]
    except Exception:
        return ""
    whole = np.array_equal(values, np.round(values))
    if got is None or (not got.any() and (whole or name.lower() in TARGETS)):
        return f'; if {name} has no gradient, return None and give constants=["{name}"]'
    return ""


def _run(name: str, case: Case, progress: Progress) -> list[Row]:
    """Return a method's rows or, if it raised, one row that names the exception."""
    method = METHODS[name]
    progress.now(method.NAME)
    try:
        rows = [
            _with_its_reason(row, case.tolerances.get(name))
            if row.method == method.NAME
            else row
            for row in method.run(case)
        ]
        own = name in case.tolerances
        if method in EXACT:
            rows = rows if own else [unless_rounded(row, case) for row in rows]
            rows = [_unless_coarse(row, case) for row in rows]
            rows = rows if own else [unless_rounding(row, case) for row in rows]
            rows = rows if own else [unless_digits(row, case) for row in rows]
    except NotRun as error:
        return [Row(method.NAME, "", NOT_RUN, reason=str(error))]
    except Malformed as error:
        return [Row(method.NAME, "", FAILED, reason=str(error))]
    except Exception as error:
        if is_fault(error):
            return [Row(method.NAME, "", FAILED, reason=compiled.said(error))]
        if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
            reason = f"{OPTIONAL[error.name]} is not installed"
            return [Row(method.NAME, "", NOT_RUN, reason=reason)]
        reason = first_line(error)
        return [Row(method.NAME, "", COULD_NOT_RUN, reason=reason, exception=error)]
    return _but_conventions(rows, method, case)


def _unless_coarse(row: Row, case: Case) -> Row:
    """Return the row, marked "not run" if backward computes the gradient in low
    precision, and each element differs from the reference by no more than rounding, or
    slightly if the declared dtypes do not include float64."""
    if row.verdict != FAILED or row.quantity not in case.quantities:
        return row
    at = case.differentiable[case.quantities.index(row.quantity)]
    reason = case.coarse_backward(at)
    reference = case.found.references.get((row.method, row.quantity))
    if not reason:
        return row
    shapes = case.subject.shapes
    # Such an object computes nothing in float64; low precision judges it.
    other = shapes and shapes.dtypes and "float64" not in shapes.dtypes
    slight = other and row.error is not None and row.error < SLIGHT
    if reference is not None and not case.explained_by_rounding(at, reference):
        if not slight:
            return row
    slopes = case.found.slopes.get((row.method, row.quantity))
    if slopes and not slight and not case.explained_along(at, slopes):
        return row
    return Row(row.method, row.quantity, NOT_RUN, reason=reason)


def _but_conventions(rows: list[Row], method: Method, case: Case) -> list[Row]:
    """Return the rows, with gradients that are a convention marked "not run".

    Methods that compare with forward's derivative cannot judge them. Autograd judges
    them only if no operator was given.
    """
    if method not in DERIVING and not (method is autograd and case.operator):
        return rows
    reasons = {
        f"d{name}": f"by convention: {reason}"
        for name, reason in case.by_convention.items()
    }
    kept = [row for row in rows if row.quantity not in reasons]
    return kept + [
        Row(method.NAME, quantity, NOT_RUN, reason=reason)
        for quantity, reason in reasons.items()
    ]


def _with_its_reason(row: Row, tolerance: tuple[float, str] | None) -> Row:
    """Return the row, with a note of the reason if the tolerance is the user's."""
    return (
        replace(row, note=f"tolerance: {tolerance[1]}")
        if tolerance and row.tolerance is not None
        else row
    )
