"""Run forward and backward on symbols: a proof for all values at once.

Backward must be the derivative of Σ dy·forward exactly. The shape is tiny. A forward
that branches on the sign of its inputs is one formula on each side. It is run at random
points, and proved in the region around each, until every comparison has had both
results. On the boundaries themselves nothing is shown. ``max`` returns a fresh symbol,
and the derivative of forward with respect to it is proved to be 0, so other derivatives
may hold it fixed.
"""

from __future__ import annotations

import importlib.util
import itertools
import textwrap
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.contract.shapes import Shapes
from backpass.contract.spec import PAIRED
from backpass.verify import domain
from backpass.verify.case import Case, NotRun, advised, first_line
from backpass.verify.convert import is_floating
from backpass.verify.diagnosis import diagnose
from backpass.verify.drawing import Drawn, draw_like, rounded_up
from backpass.verify.report import FAILED, PASSED, VACUOUS, Row

NAME = "symbolic"
ACCURACY = 1e-9  # of a region's numbers
DIGITS = 30  # of a region's numbers while they are computed
# The most elements of all inputs together if the shape cannot be made smaller. With
# more, expressions grow long.
ELEMENTS = 24
POINTS = 64  # the most points that are tried to give each comparison both results
DENOMINATOR = 10**6  # of a point's coordinates
# The most elements of all inputs together at DIFFERENT lengths. With more, the shapes
# of TWICE are used.
SYMBOLS = 72
# The largest lengths of leading axes and, in order, of a declaration's letters, all
# different.
DIFFERENT: tuple[dict[str, tuple[int, ...]], tuple[int, ...]] = (
    {"*": (2,), "*a": (2,), "*b": (1,)},
    (3, 4, 5, 6, 7),
)
# Two smaller shapes. No two letters, or a letter and a leading axis, have the same
# length in both.
TWICE = (
    ({"*": (2,)}, {"s_q": 1, "s_k": 2, "s": 3, "d": 2, "d_v": 3, "h": 3, "f": 2}),
    ({"*": ()}, {"s_q": 2, "s_k": 2, "s": 2, "d": 2, "d_v": 1, "h": 2, "f": 3}),
)
# With heads, expressions are long, so there are no leading axes. The first shape is for
# inputs that have some, the second for inputs without.
WITH_HEADS = (
    {"g": 2, "n_kv": 1, "s_q": 2, "s_k": 3, "d": 3, "d_v": 1},
    {"g": 1, "n_kv": 2, "s_q": 2, "s_k": 3, "d": 1, "d_v": 3},
)
WITH_PROJECTIONS = (  # with projections too, expressions are longer still
    {"g": 2, "n_kv": 1, "s": 2, "t": 3, "h": 1, "d": 2, "d_v": 1},
    {"g": 1, "n_kv": 1, "s": 2, "t": 2, "h": 2, "d": 3, "d_v": 3},
)


def run(case: Case) -> list[Row]:
    """Return one row for each gradient.

    Raises NotRun if forward cannot compute with symbols, or SymPy is missing.
    """
    if importlib.util.find_spec("sympy") is None:
        raise NotRun("sympy is not installed")
    if any(is_array(value) and np.iscomplexobj(value) for value in case.float64):
        raise NotRun("an input is complex, and symbols are real")
    if case.subject.torch_only:
        raise NotRun("an autograd.Function computes with tensors, not with symbols")
    runs = [_run(case, values) for values in drawn(case)]
    return [_both(rows) for rows in zip(*runs, strict=True)]


def _run(case: Case, values: Drawn) -> list[Row]:
    inputs = _symbols(case, values)
    try:
        regions = _regions(case, inputs)
    except NotRun:
        _reject_if_lengths_do_not_fit(case, values)
        raise
    return [_row(case, at, inputs[at].to_numpy(), regions) for at in case.derived]


def _both(rows: tuple[Row, ...]) -> Row:
    """Merge the rows of several shapes: one that fails, otherwise one that passes.

    A gradient may be 0 at one shape only.
    """
    order = (FAILED, PASSED, VACUOUS)
    first = min(rows, key=lambda row: order.index(row.verdict))
    return (
        first
        if len(rows) == 1
        else replace(first, how="; and ".join(row.how for row in rows))
    )


@dataclass(frozen=True)
class _Region:
    """The results of forward and backward on symbols around one point, and the signs
    that decided their branches."""

    point: dict[Any, Any]
    signs: dict[Any, int]
    gradients: dict[int, Array | None]
    derivatives: dict[int, np.ndarray]  # of Σ dy·y, by position of the input
    terms: dict[str, np.ndarray]
    has_maximum: bool


def _regions(case: Case, inputs: tuple[Any, ...]) -> list[_Region]:
    """Return one region if nothing branches; otherwise regions that together take each
    branch both ways. Raises NotRun if a branch is taken only one way."""
    rng = case.rng
    regions: dict[frozenset, _Region] = {}
    seen: dict[Any, set[int]] = {}
    for _ in range(POINTS):
        region = _around_a_point(case, inputs, rng)
        regions.setdefault(frozenset(region.signs.items()), region)
        for difference, sign in region.signs.items():
            seen.setdefault(difference, set()).add(sign)
        if all(len(signs) == 2 for signs in seen.values()):
            return list(regions.values())
    difference, (sign,) = next(
        (d, signs) for d, signs in seen.items() if len(signs) == 1
    )
    shown = textwrap.shorten(str(difference), 60, placeholder=" …")
    raise NotRun(
        f"a branch was taken only one way: {shown} {'>' if sign > 0 else '<'} 0 at "
        f"{POINTS} random points"
    )


def _around_a_point(
    case: Case, inputs: tuple[Any, ...], rng: np.random.Generator
) -> _Region:
    import sympy

    from backpass.interpreters import closed_world, symbolic

    point = _Point(rng)
    with symbolic.session(point) as session:
        output, saved = _computed(case, "forward", inputs)
        cotangent = symbolic.array("dy", output.shape)
        gradients = case.slots.by_position(
            _computed(case, "backward", (cotangent, saved))
        )
    y, dy = output.to_numpy(), cotangent.to_numpy()
    _reject_if_max_matters(y.flat, session.fresh)
    loss = sympy.Add(
        *(sympy.Mul(a, b, evaluate=False) for a, b in zip(dy.flat, y.flat, strict=True))
    )
    expected = _derivatives(loss, {at: inputs[at].to_numpy() for at in case.derived})
    names = zip(case.subject.input_names, inputs, strict=False)
    terms = {
        name: value.to_numpy()
        for name, value in names
        if isinstance(value, closed_world.Array)
    }
    return _Region(
        point,
        session.decided,
        gradients,
        expected,
        {**terms, "y": y, "dy": dy},
        has_maximum=bool(session.fresh),
    )


def _derivatives(loss: Any, inputs: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    from backpass.expressions.derivatives import derivatives

    found = iter(
        derivatives(loss, [symbol for x in inputs.values() for symbol in x.flat])
    )
    return {
        at: np.array([next(found) for _ in x.flat], dtype=object).reshape(x.shape)
        for at, x in inputs.items()
    }


class _Point(dict):
    """A random number for each symbol, drawn when it is first used. Positive symbols
    get positive numbers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __missing__(self, symbol: Any) -> Any:
        import sympy

        value = sympy.Rational(
            int(self.rng.standard_normal() * DENOMINATOR), DENOMINATOR
        )
        self[symbol] = abs(value) if symbol.is_positive else value
        return self[symbol]


def _symbols(case: Case, values: Drawn) -> tuple[Any, ...]:
    """Return symbols that replace the inputs. A mask keeps its numbers, and a table its
    structure."""
    from backpass.interpreters import symbolic

    shapes = case.subject.shapes
    specs = {spec.name: spec for spec in (shapes.inputs if shapes else ())}

    def symbols(name: str, value: Any) -> Any:
        spec = specs.get(name)
        if not is_floating(value) or (spec and spec.structure == "mask"):
            return symbolic.xp.asarray(value) if is_array(value) else value
        found = symbolic.array(
            name, value.shape, positive=name in case.subject.positive
        )
        if spec is None or spec.structure not in PAIRED:
            return found
        return symbolic.xp.asarray(domain.structured(spec, found.to_numpy()))

    return tuple(map(symbols, case.subject.input_names, values))


def drawn(case: Case) -> list[Drawn]:
    """Return the inputs, of one or more shapes, at which the symbols run.

    They are those given or, with a declaration, short ones of the same structure. No
    two letters have the same length at all shapes. Raises NotRun if an object without
    SHAPES has too many elements.
    """
    shapes = case.subject.shapes
    if not shapes:
        if sum(value.size for value in case.float64 if is_array(value)) > ELEMENTS:
            raise NotRun(
                "without SHAPES it runs at the inputs' own shape, with at most "
                f"{ELEMENTS} elements"
            )
        return [case.float64]
    one_row = _bound(case).get("*") == ()
    if shapes.factors:
        short = WITH_PROJECTIONS if "h" in shapes.letters else WITH_HEADS
        return [_drawn(case, {}, short[one_row])]
    different = _drawn(case, DIFFERENT[0], {})
    few = sum(value.size for value in different if value is not None) <= SYMBOLS
    if few and not case.subject.multiples:
        return [different]
    return [_drawn(case, *run) for run in (TWICE[1:] if one_row else TWICE)]


def structure(case: Case) -> tuple:
    """Return everything that the symbols see of an operation's case: the shapes at
    which they run, its tokens, its options."""
    seen = [
        None
        if value is None
        else (value.shape, b"" if is_floating(value) else value.tobytes())
        for values in drawn(case)
        for value in values
    ]
    return case.seed, tuple(seen), tuple(sorted(case.subject.options.items()))


def _drawn(
    case: Case, leading: dict[str, tuple[int, ...]], lengths: dict[str, int]
) -> Drawn:
    """Draw inputs with these lengths.

    A letter keeps its given length if that is shorter and is 0 or 1, belongs to heads,
    or has to be a multiple.
    """
    shapes, multiples = case.subject.shapes, case.subject.multiples
    assert shapes is not None
    given = _bound(case)
    groups = {
        group: () if given.get(group) == () else leading.get(group, ())
        for group in DIFFERENT[0]
    }
    most = rounded_up(_different(shapes) | lengths, multiples)
    # Other lengths may become longer, so that all differ, unless options depend on
    # them.
    longer = {
        letter: length
        for letter, length in most.items()
        if not multiples
        and letter not in shapes.factors
        and 1 < given.get(letter, 0) < length
    }
    return draw_like(
        shapes, case.rng, case.inputs, leading=groups, most=most, lengths=longer
    )


def _bound(case: Case) -> dict[str, Any]:
    """Return the lengths of the letters and leading groups of the case."""
    names = case.subject.input_names
    assert case.subject.shapes is not None
    return case.subject.shapes.bind(dict(zip(names, case.float64, strict=False)))


def _different(shapes: Shapes) -> dict[str, int]:
    return dict(zip(shapes.letters, itertools.cycle(DIFFERENT[1]), strict=False))


def _computed(case: Case, part: str, arguments: tuple[Any, ...]) -> Any:
    """Run forward or backward on symbols.

    Raises NotRun if the user's function cannot compute with symbols.
    """
    from backpass.interpreters.closed_world import NotOffered
    from backpass.interpreters.symbolic import Undecided

    try:
        return getattr(case.subject, part)(*arguments)
    except NotOffered as error:
        raise NotRun(
            f"{part} uses {error.name!r}, which the symbols lack; "
            "dir(backpass.interpreters.symbolic.xp) lists what they have"
        ) from None
    except Undecided as error:
        raise NotRun(f"{part} branches on values ({first_line(error)})") from None
    except Exception as error:
        if case.subject.stem is not None:
            raise
        raise NotRun(f"{part} does not compute with symbols{advised(error)}") from None


def _reject_if_lengths_do_not_fit(case: Case, values: Drawn) -> None:
    """Raise NotRun if forward rejects numbers of the lengths that the symbols have, but
    accepts those given: it requires something that SHAPES cannot state."""
    shapes = case.subject.shapes
    if shapes is None:
        return
    try:
        case.forward(case.float64)
    except Exception:
        return
    try:
        case.forward(values)
    except Exception as error:
        bound = shapes.bind(dict(zip(case.subject.input_names, values, strict=True)))
        lengths = ", ".join(f"{axis} = {length}" for axis, length in bound.items())
        raise NotRun(
            f"forward rejects the lengths chosen for the symbols, {lengths}, although "
            f"they fit SHAPES ({first_line(error)})"
        ) from None


def _reject_if_max_matters(y, fresh) -> None:
    from backpass.expressions import exact

    for symbol in fresh:
        if not all(
            exact.is_zero(element.diff(symbol)) for element in y if element.has(symbol)
        ):
            raise NotRun(
                "y depends on a maximum, and the symbols cannot tell which input is the "
                "largest"
            )


def _row(case: Case, at: int, x: np.ndarray, regions: list[_Region]) -> Row:
    from backpass.expressions import exact

    row = partial(Row, NAME, case.subject.quantity(at))
    given, shown = case.float64[at].shape, f"at shape {list(x.shape)}"
    if len(regions) > 1:
        shown = f"in each of {len(regions)} regions, all branches both ways, {shown}"
    shown += f" in place of {list(given)}" if x.shape != given else ""
    if any(region.has_maximum for region in regions):
        shown += "; ∂y/∂max = 0 proved"
    how = f"every element, exactly, {shown}"
    zero = True
    for region in regions:
        expected, gradient = region.derivatives[at], region.gradients[at]
        zeros = np.zeros(x.shape, dtype=object)
        got = zeros if gradient is None else gradient.to_numpy()
        if got.shape != x.shape or not all(map(exact.equal, got.flat, expected.flat)):
            if case.explain:
                says = partial(_explained, got, expected, region)
                case.found.suspect(NAME, case.subject.quantity(at), ACCURACY, says)
            return row(FAILED, tolerance=0.0, how=how, reason="wrong")
        zero = zero and all(map(exact.is_zero, expected.flat))
    if zero and case.subject.input_names[at] not in case.subject.zero_gradients:
        reason = "the gradient is identically zero, but not declared to be"
        return row(VACUOUS, how=how, reason=reason)
    return row(PASSED, error=0.0, tolerance=0.0, how=how)


def _explained(
    got: np.ndarray, expected: np.ndarray, region: _Region, seconds: float
) -> str:
    """Diagnose a wrong gradient with the numbers at the region's point."""
    evaluated = partial(_evaluated, point=region.point)
    terms = {name: evaluated(value) for name, value in region.terms.items()}
    return str(diagnose(evaluated(expected), evaluated(got), terms, seconds=seconds))


def _evaluated(array: np.ndarray, point: dict[Any, Any]) -> np.ndarray:
    """Evaluate expressions at a point, in floating-point numbers.

    A shared sub-expression is evaluated once.
    """
    import sympy

    from backpass.expressions.derivatives import arguments_first

    nodes = arguments_first(sympy.Tuple(*array.flat))
    known: dict[int, Any] = {
        id(symbol): sympy.Float(point[symbol], DIGITS)
        for symbol in sorted((node for node in nodes if node.is_Symbol), key=str)
    }
    for node in nodes:
        if id(node) not in known:
            arguments = [known[id(argument)] for argument in node.args]
            known[id(node)] = node.func(*arguments) if arguments else node
    numbers = [float(value) for value in known[id(nodes[-1])]]
    return np.array(numbers).reshape(array.shape)
