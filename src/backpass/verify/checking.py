"""Run every check that applies, and put what they found in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from backpass.arrays import Array, is_array
from backpass.verify import (
    autograd,
    complex_step,
    contract,
    finite_difference,
    kernel,
    precision,
    pytorch,
    symbolic,
)
from backpass.verify.arguments import (
    check_inputs,
    check_operator,
    check_options,
    check_seed,
    check_tolerances,
    chosen_methods,
)
from backpass.verify.case import Case, NotRun, describe, first_line
from backpass.verify.convert import dtype_name, is_torch
from backpass.verify.drawing import INPUTS, draw, generator, options_for
from backpass.verify.report import FAILED, NOT_RUN, Report, Row
from backpass.verify.subject import load, subject

METHODS = {
    "contract": contract,
    "finite_difference": finite_difference,
    "complex_step": complex_step,
    "symbolic": symbolic,
    "autograd": autograd,
    "pytorch": pytorch,
    "precision": precision,
    "kernel": kernel,
}


def check(
    op: object,
    *inputs: Array | object,
    seed: int = 0,
    methods: Sequence[str] | None = None,
    dy: Array | None = None,
    operator: Callable[..., Array] | None = None,
    zero_gradients: Sequence[str] = (),
    tolerances: dict[str, tuple[float, str]] | None = None,
    raises: bool = True,
    options: Mapping[str, object] | None = None,
    **named_options: object,
) -> Report:
    """Check ``op``'s backward by every method that applies; the report is a table.

    ``op`` is the name or module of an operation, any object with ``forward(*inputs) -> (y, saved)`` and
    ``backward(dy, saved)``, or a ``torch.autograd.Function``. ``inputs`` are NumPy or PyTorch arrays; an
    operation that declares SHAPES may have them drawn. Other keywords are options of ``forward``; in ``options``
    they may have names that are taken here, such as dropout's ``seed``.

    - ``seed`` draws the cotangent, the directions and, where they are not given, the inputs;
    - ``methods`` names those to run (all: see METHODS);
    - ``dy`` replaces the random cotangent;
    - ``operator`` is a function of PyTorch's that computes the same y, for an object that has no SHAPES;
    - ``zero_gradients`` names inputs whose gradient is identically zero, else reported as vacuous;
    - ``tolerances`` maps a method that has one to another and its reason, which the table then shows.

    Raises VerificationError, which carries the report, unless the report passed: when a row fails or is vacuous,
    or when nothing was shown about a gradient. ``raises=False`` returns the report all the same. Raises
    TypeError, ValueError or LookupError when ``op`` or its inputs are nothing that can be checked.
    """
    chosen = chosen_methods(methods, tuple(METHODS))
    check_seed(seed)
    check_tolerances(tolerances, [name for name, method in METHODS.items() if hasattr(method, "TOLERANCE")])
    check_operator(operator)
    options = {**check_options(options), **named_options}
    op = load(op)
    if not inputs:
        inputs = draw(op, generator(seed, INPUTS))
        options = {**options_for(op), **options}
    under_test = subject(op, len(inputs), options, zero_gradients)
    if under_test.shapes:
        check_inputs(under_test.shapes, inputs)
    inputs = (*inputs, *[None] * (len(under_test.input_names) - len(inputs)))
    _refuse(inputs, under_test.differentiable(inputs))
    if under_test.torch_only:
        _refuse_other_arrays(under_test.name, inputs)
    case = Case(under_test, inputs, seed, dy, operator, tolerances or {})
    if dy is not None:
        _ = case.dy  # refused here if its shape is not y's
    rows = [row for name in chosen for row in _run(name, case)]
    gradients = tuple(case.quantity(at) for at in case.differentiable)
    report = Report(under_test.name, describe(under_test, case.inputs), tuple(rows), gradients)
    return report.raise_unless_passed() if raises else report


def _refuse(inputs: Sequence[object], differentiable: Sequence[int]) -> None:
    if not differentiable:
        given = ", ".join(dtype_name(v) if is_array(v) else type(v).__name__ for v in inputs)
        raise TypeError(f"inputs: expected at least one array of real floating-point numbers; got {given}")


def _refuse_other_arrays(name: str, inputs: Sequence[object]) -> None:
    for kind in (type(value) for value in inputs if is_array(value) and not is_torch(value)):
        raise TypeError(
            f"inputs: {name} is a torch.autograd.Function and takes torch tensors; "
            f"got {kind.__module__}.{kind.__name__}"
        )


def _run(name: str, case: Case) -> list[Row]:
    method = METHODS[name]
    try:
        return method.run(case)
    except NotRun as reason:
        return [Row(method.NAME, "", NOT_RUN, reason=str(reason))]
    except Exception as error:
        return [Row(method.NAME, "", FAILED, reason=f"{first_line(error)}")]
