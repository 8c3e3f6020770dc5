"""Draw random inputs of the shapes that an operation declares.

Their lengths are odd and all different, so that a wrong axis shows. Further
requirements of an operation's inputs are in its module, under the names that
``backpass.ops`` lists.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from backpass.contract.shapes import Shapes, Spec, parse
from backpass.contract.spec import axis_length
from backpass.operation import Operation
from backpass.verify import domain
from backpass.verify.arguments import check_drawn, required_options
from backpass.verify.convert import in_dtype, is_floating, to_torch
from backpass.verify.subject import is_function

LENGTHS = (5, 7, 3, 9, 11, 13)  # for a declaration's letters, in order of appearance
FACTORS = (2, 3)  # for letters in a product such as g*n: of heads, a few are enough
LEADING = {"*": (3,), "*a": (2, 1), "*b": (4,)}  # for its groups of leading axes
TIMES = 11  # axes are longer in half precision: enough for sums to lose digits
TIMES_WITH_HEADS = 4  # the same where there are heads, whose scores grow quadratically
WIDE = 4  # the first input of one case is larger, to show what happens far from 0

Drawn = tuple[np.ndarray | None, ...]  # None for an optional input that is left out

# Streams of one seed.
INPUTS, COTANGENT, DIRECTIONS, MEASURING, VARYING, RERUNNING = range(6)


def generator(seed: int, stream: int) -> np.random.Generator:
    """Return one of the seed's independent streams.

    None of them equals ``default_rng(seed)``, from which a user may draw inputs: the
    cotangent must not have the same numbers.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))


class Directions:
    """The random directions of each input, drawn when they are first requested.

    They are 0 where the input is infinite, because −∞ plus a step stays −∞.
    """

    def __init__(self, inputs: Sequence[Any], seed: int) -> None:
        self._inputs, self._seed = inputs, seed
        self._drawn: dict[int, tuple[np.random.Generator, list[np.ndarray]]] = {}

    def of(self, at: int, count: int) -> list[np.ndarray]:
        """Return the first ``count`` directions of an input."""
        x = self._inputs[at]
        rng, drawn = self._drawn.setdefault(at, (generator(self._seed, DIRECTIONS), []))
        while len(drawn) < count:
            drawn.append(np.where(np.isfinite(x), rng.standard_normal(x.shape), 0.0))
        return drawn[:count]

    def first(self, at: int) -> np.ndarray:
        """Return the first direction of an input."""
        return self.of(at, 1)[0]


def draw(
    op: object,
    rng: np.random.Generator,
    *,
    lengths: Mapping[str, int] | None = None,
    leading: Mapping[str, tuple[int, ...]] | None = None,
    without: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
) -> Drawn:
    """Draw standard normal float64 arrays for the inputs of ``op.SHAPES``.

    The result has None for each input in ``without``. Integers are shuffled tokens or
    targets: about √count distinct classes, each about √count times, and with three
    classes or more always the last. Three booleans of four are True. Inputs in
    ``op.POSITIVE`` are replaced by their
    absolute values. Weights in ``op.FAN_IN`` are divided by the root of their number of
    rows. The values that the declaration states are obeyed.

    ``lengths`` and ``leading`` replace the drawn length of a letter and the shape of a
    group of leading axes. ``options`` are those of the call, of which SHAPES may name
    one for an integer. Raises ValueError if ``op`` declares no SHAPES, or for a name
    that they do not have; TypeError if ``rng`` is not a generator.
    """
    operation = Operation(op)
    shapes = operation.shapes
    if shapes is None:
        raise ValueError(
            "inputs: they cannot be drawn for an object that declares no SHAPES; "
            "give them in order"
        )
    shapes = domain.with_options(shapes, {**_defaults(op), **(options or {})})
    lengths, leading = lengths or {}, leading or {}
    check_drawn(shapes, rng, lengths, leading, [*LEADING], without)
    lengths = fitting(op, {**_lengths(shapes), **lengths})
    drawn = draw_shapes(shapes, rng, lengths, {**LEADING, **leading}, without)
    dtype = domain.drawn_dtype(shapes)
    suited = (
        values
        if values is None
        else domain.away(shapes, spec.name, operation.suited(spec.name, values))
        for spec, values in zip(shapes.inputs, drawn, strict=True)
    )
    # NumPy has no bfloat16.
    return tuple(
        suited if dtype == "bfloat16" else (in_dtype(x, dtype) for x in suited)
    )


def drawn_inputs(
    op: object,
    rng: np.random.Generator,
    *,
    tensors: bool = False,
    options: Mapping[str, object] | None = None,
) -> tuple[Any, ...]:
    """Draw inputs as ``draw`` does: tensors for an autograd.Function, with ``tensors``,
    and in a declared dtype that NumPy does not have."""
    drawn, operation = draw(op, rng, options=options), Operation(op)
    assert operation.shapes is not None
    dtype = domain.drawn_dtype(operation.shapes)
    if not (tensors or is_function(op) or dtype == "bfloat16"):
        return drawn
    return tuple(in_dtype(to_torch(value), dtype) for value in drawn)


def draw_shapes(
    shapes: Shapes,
    rng: np.random.Generator,
    lengths: Mapping[str, int],
    leading: Mapping[str, tuple[int, ...]],
    without: Sequence[str] = (),
) -> Drawn:
    """Do what ``draw`` does for a parsed declaration, with every length given."""
    drawn = (
        None
        if spec.name in without
        else _draw_one(spec, _shape(spec, lengths, leading), lengths, rng)
        for spec in shapes.inputs
    )
    return tuple(
        domain.away(shapes, spec.name, values) if is_floating(values) else values
        for spec, values in zip(shapes.inputs, drawn, strict=True)
    )


def draw_like(
    shapes: Shapes,
    rng: np.random.Generator,
    inputs: Sequence[object],
    *,
    leading: Mapping[str, tuple[int, ...]],
    most: Mapping[str, int] | None = None,
    lengths: Mapping[str, int] | None = None,
) -> Drawn:
    """Draw inputs with other leading axes, and the lengths of the given inputs.

    ``most`` limits the length of a letter, and ``lengths`` replaces it.
    """
    names = [spec.name for spec in shapes.inputs]
    given = dict(zip(names, inputs, strict=False))
    bound = shapes.bind(given)
    least = shapes.least
    drawn = {
        letter: max(min(bound[letter], (most or bound)[letter]), least.get(letter, 0))
        for letter in shapes.letters
        if letter in bound
    }
    without = [name for name in names if given.get(name) is None]
    return draw_shapes(shapes, rng, drawn | dict(lengths or {}), leading, without)


def options_for(op: object) -> dict[str, Any]:
    """Return the options for a check without options: the first example, and the first
    declared value of each other option that forward requires."""
    operation = Operation(op)
    declared = dict(operation.shapes.options) if operation.shapes else {}
    parameters = inspect.signature(operation.op.forward).parameters.values()
    needed = required_options(parameters) if declared else []
    first = {name: declared[name][0] for name in needed if name in declared}
    return {**first, **operation.examples[0]}


def calls(
    op: object, inputs: Sequence[object], options: Mapping[str, object]
) -> list[tuple[Sequence[object], dict[str, object]]]:
    """Return the inputs with these options, and with each other value that is declared
    for an option, one at a time."""
    operation = Operation(op)
    usual = {**_defaults(op), **options}
    found = [(inputs, dict(options))]
    for name, values in operation.shapes.options if operation.shapes else ():
        others = [value for value in values if value != usual.get(name)]
        found += [(inputs, {**options, name: value}) for value in others]
    return found


def _defaults(op: object) -> dict[str, Any]:
    """Return the default of each parameter of forward."""
    # A builtin has no signature, and a declaration alone no forward.
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        parameters = inspect.signature(Operation(op).op.forward).parameters.values()
        return {p.name: p.default for p in parameters}
    return {}


def missing_options(op: object) -> str | None:
    """Return which options ``cases`` lacks and where to add them, or None."""
    operation = Operation(op)
    forward = operation.op.forward
    needed = required_options(inspect.signature(forward).parameters.values())
    missing = [name for name in needed if name not in operation.examples[0]]
    if not missing:
        return None
    stem = operation.name
    example = ", ".join(f"{name!r}: …" for name in needed)
    return (
        f"{stem}: forward needs the option{'s' * (len(missing) > 1)} {', '.join(missing)}; "
        f"add EXAMPLES = ({{{example}}},) to src/backpass/ops/{stem}.py"
    )


def fitting(op: object, lengths: Mapping[str, int]) -> dict[str, int]:
    """Round the lengths up to the operation's ``MULTIPLES``, and to even ones for the
    halves or pairs of a table."""
    operation = Operation(op)
    even = operation.shapes.multiples if operation.shapes else {}
    return rounded_up(lengths, {**even, **operation.multiples})


def rounded_up(
    lengths: Mapping[str, int], multiples: Mapping[str, int]
) -> dict[str, int]:
    """Round each length up to a multiple of its number in ``multiples``, if any."""
    return {
        letter: -(-length // (k := multiples.get(letter, 1))) * k
        for letter, length in lengths.items()
    }


def leaving_out(op: object, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the optional inputs to leave out together with ``names``, and the options
    with which forward then runs."""
    without, options = list(names), options_for(op)
    for name, (others, instead) in Operation(op).left_out.items():
        if name in names:
            without += [other for other in others if other not in without]
            options |= instead
    return without, options


def cases(
    op: object, rng: np.random.Generator
) -> Iterator[tuple[Drawn, dict[str, Any]]]:
    """Yield inputs and options that together reach each line of a backward.

    They have leading axes of every kind, each optional input present and absent, other
    values of the options, half precision, large numbers, and float32 inputs beside half
    precision if the operation accepts them. Raises TypeError if forward needs an option
    for which the operation has no example.
    """
    operation = Operation(op)
    if reason := missing_options(op):
        raise TypeError(reason)
    shapes = parse(operation.op.SHAPES)
    optional = [spec.name for spec in shapes.inputs if spec.optional]
    for leading in (
        {},
        {"*": (), "*a": (), "*b": ()},
        {"*": (2, 3), "*a": (3, 1), "*b": (2, 1, 4)},
        {"*": (2, 1, 3), "*a": (2, 4), "*b": (1, 4)},
    ):
        yield draw(op, rng, leading=leading), options_for(op)
    for name in optional:
        without, options = leaving_out(op, [name])
        yield draw(op, rng, without=without), options
    for others in operation.examples[1:]:
        lengths = {name: others[name] for name in shapes.letters if name in others}
        absent = [name for name in optional if name in others]
        options = options_for(op) | others
        for name in (*lengths, *absent):
            del options[name]
        yield draw(op, rng, lengths=lengths, without=absent), options
    if operation.zero_products is not None:
        yield _with_zeros(draw(op, rng)), options_for(op) | operation.zero_products
    many = {"*": (LEADING["*"][0] * (1 if shapes.factors else TIMES),)}
    times = TIMES_WITH_HEADS if shapes.factors else TIMES
    lengths = {
        letter: length if letter in shapes.factors else times * length
        for letter, length in _lengths(shapes).items()
    }

    def in_half_precision(*, but: Sequence[str] = ()) -> Drawn:
        drawn = draw(op, rng, lengths=lengths, leading=many)
        return tuple(
            in_dtype(values, "float32" if spec.name in but else "float16")
            for spec, values in zip(shapes.inputs, drawn, strict=True)
        )

    yield in_half_precision(), options_for(op)
    yield _wide(draw(op, rng, leading=many)), options_for(op)
    if operation.wide:
        yield in_half_precision(but=operation.wide), options_for(op)


def _lengths(shapes: Shapes) -> dict[str, int]:
    """Return a length for each letter, at least the declared one. All factors have
    different lengths, and so do all other letters."""
    least, taken = shapes.least, set()
    found = {}
    for letter in shapes.letters:
        factor = letter in shapes.factors
        first, step = (FACTORS, 1) if factor else (LENGTHS, 2)
        found[letter] = next(
            length
            for length in itertools.chain(
                first, itertools.count(first[-1] + step, step)
            )
            if length >= least.get(letter, 0) and (factor, length) not in taken
        )
        taken.add((factor, found[letter]))
    return found


def _shape(
    spec: Spec, lengths: Mapping[str, int], leading: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    parts = [
        leading[axis] if axis.startswith("*") else (axis_length(axis, lengths),)
        for axis in spec.axes
    ]
    shape = [length for part in parts for length in part]
    # Every second length is 1, the last such axis being ``at``; leading lengths of 1
    # are left out.
    at, missing = -1, 0
    if spec.broadcast and len(shape) < 6:
        at, missing = len(shape) - 2 - len(shape) % 2, len(shape) - 1
    elif spec.shared:
        missing = len(shape) - len(spec.axes) + 1
        at = missing - 1
    for one in range(at, -1, -2):
        shape[one] = 1
    while missing and shape[0] == 1:
        del shape[0]
        missing -= 1
    return tuple(shape)


def _with_zeros(inputs: Drawn) -> Drawn:
    """Return q and k with zeros placed so that in row 0 every factor's dot product is
    0, and in row 1 the first factor's; the other inputs are unchanged."""
    q, k, *others = inputs
    assert q is not None and k is not None
    q[..., 0, 0::2] = k[..., 0, 1::2] = 0
    q[..., 1, 0] = k[..., 1, 1] = 0
    return q, k, *others


def _wide(inputs: Drawn) -> Drawn:
    """Return the inputs, the first floating-point one ``WIDE`` times as large."""
    first, values = next(
        (at, value) for at, value in enumerate(inputs) if is_floating(value)
    )
    return (*inputs[:first], WIDE * values, *inputs[first + 1 :])


def _draw_one(
    spec: Spec,
    shape: tuple[int, ...],
    lengths: Mapping[str, int],
    rng: np.random.Generator,
) -> np.ndarray:
    if spec.structure == "mask":
        return domain.drawn_mask(spec, shape, rng)
    if spec.floating:
        return domain.structured(spec, rng.standard_normal(shape))
    below = domain.bound(spec, lengths)
    if spec.offsets:
        return domain.drawn_integers(spec, shape, below or 0, rng)
    count = math.prod(shape)
    classes = lengths.get("V", 2) if below is None else max(1, below)
    if spec.boolean:
        drawn = rng.permutation(4 * np.arange(count) < 3 * count).reshape(shape)
        return domain.not_hidden(spec, drawn) if spec.some else drawn
    few = min(classes, max(1, math.ceil(math.sqrt(count))))
    order = list(
        dict.fromkeys((*range(min(2, classes)), classes - 1, *range(classes)))
    )[:few]
    values = rng.permutation(np.resize(order, count)).reshape(shape).astype(np.int64)
    return domain.with_sentinels(spec, values, rng)
