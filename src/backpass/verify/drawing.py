"""Random inputs of the shapes an operation declares: odd sizes, all different, so that a wrong axis shows.

What the inputs of an operation need besides stands in its module, under the names that
``backpass.ops`` lists.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from backpass.shapes import Shapes, Spec, axis_length, parse
from backpass.verify.arguments import check_drawn
from backpass.verify.subject import load

LENGTHS = (5, 7, 3, 9, 11, 13)  # for a declaration's letters, in order of appearance
FACTORS = (
    2,
    3,
)  # for the letters of which an axis is the product: heads, of which few show all
LEADING = {"*": (3,), "*a": (2, 1), "*b": (4,)}  # for its groups of leading axes
TIMES = 11  # as long are the axes in 16 bits: enough for sums to lose digits
TIMES_WITH_HEADS = 4  # where there are heads, whose scores grow with the square
WIDE = 4  # times as large is the first input of one case: what happens far from 0 shows too

INPUTS, COTANGENT, DIRECTIONS, MEASURING, VARYING = range(5)  # streams of one seed


def generator(seed: int, stream: int) -> np.random.Generator:
    """One of the seed's independent streams, none of them that of ``default_rng(seed)``: whoever draws an input
    from that must not meet the same numbers in the cotangent."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))


def draw(
    op: object,
    rng: np.random.Generator,
    *,
    lengths: Mapping[str, int] | None = None,
    leading: Mapping[str, tuple[int, ...]] | None = None,
    without: Sequence[str] = (),
) -> tuple[np.ndarray | None, ...]:
    """Standard normal float64 arrays for ``op.SHAPES``, one an input; None for those named in ``without``.

    Integers are tokens or targets, shuffled: of the V classes about as many as each occurs times, from three on the
    last among them. Inputs that ``op`` lists as ``POSITIVE`` are without their signs. Weights in its ``FAN_IN`` are
    divided by the root of their length.

    ``lengths`` and ``leading`` replace the drawn length of a letter and the shape of a group of leading axes.
    Raises ValueError when ``op`` declares no SHAPES, or none such; TypeError where ``rng`` is no generator.
    """
    op = load(op)
    text = getattr(op, "SHAPES", None)
    if text is None:
        raise ValueError(
            "inputs: an object that declares no SHAPES cannot have them drawn; give them in order"
        )
    shapes = parse(text)
    lengths, leading = lengths or {}, leading or {}
    check_drawn(shapes, rng, lengths, leading, [*LEADING], without)
    lengths = fitting(op, {**_lengths(shapes), **lengths})
    drawn = draw_shapes(shapes, rng, lengths, {**LEADING, **leading}, without)
    positive, fan_in = getattr(op, "POSITIVE", ()), getattr(op, "FAN_IN", ())
    found = dict(zip((spec.name for spec in shapes.inputs), drawn, strict=True))
    found |= {name: np.abs(found[name]) for name in positive}
    found |= {
        name: found[name] / math.sqrt(max(1, len(found[name]))) for name in fan_in
    }
    return tuple(found.values())


def draw_shapes(
    shapes: Shapes,
    rng: np.random.Generator,
    lengths: Mapping[str, int],
    leading: Mapping[str, tuple[int, ...]],
    without: Sequence[str] = (),
) -> tuple[np.ndarray | None, ...]:
    """``draw`` for a parsed declaration, with every length given."""
    return tuple(
        None
        if spec.name in without
        else _draw_one(spec, _shape(spec, lengths, leading), lengths, rng)
        for spec in shapes.inputs
    )


def draw_like(
    shapes: Shapes,
    rng: np.random.Generator,
    inputs: Sequence[object],
    *,
    leading: Mapping[str, tuple[int, ...]],
    most: Mapping[str, int] | None = None,
    lengths: Mapping[str, int] | None = None,
) -> tuple[np.ndarray | None, ...]:
    """Inputs with other leading axes, and with the letters' lengths of those given: at most ``most``, or in their
    place ``lengths``."""
    given = dict(zip((spec.name for spec in shapes.inputs), inputs, strict=False))
    found = shapes.bind(given)
    all_lengths = {
        letter: found[letter] for letter in shapes.letters if letter in found
    }
    if most:
        all_lengths = {
            letter: min(length, most[letter]) for letter, length in all_lengths.items()
        }
    all_lengths |= lengths or {}
    without = [
        name
        for name in (spec.name for spec in shapes.inputs)
        if given.get(name) is None
    ]
    return draw_shapes(shapes, rng, all_lengths, leading, without)


def options_for(op: object) -> dict[str, Any]:
    """The options to check the operation with when none are given: its first example."""
    return dict(_examples(op)[0])


def missing_options(op: object) -> str | None:
    """Why ``cases`` cannot call forward, and where to add what it needs, or None."""
    op = load(op)
    parameters = inspect.signature(op.forward).parameters.values()
    needed = [
        p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    ]
    missing = [name for name in needed if name not in _examples(op)[0]]
    if not missing:
        return None
    stem = _stem(op)
    example = ", ".join(f"{name!r}: …" for name in needed)
    return (
        f"{stem}: forward needs the option{'s' * (len(missing) > 1)} {', '.join(missing)}; "
        f"add EXAMPLES = ({{{example}}},) to src/backpass/ops/{stem}.py"
    )


def _examples(op: object) -> tuple[dict[str, Any], ...]:
    return getattr(load(op), "EXAMPLES", ()) or ({},)


def fitting(op: object, lengths: Mapping[str, int]) -> dict[str, int]:
    """The lengths, rounded up to the operation's ``MULTIPLES``."""
    return rounded_up(lengths, getattr(load(op), "MULTIPLES", {}))


def rounded_up(
    lengths: Mapping[str, int], multiples: Mapping[str, int]
) -> dict[str, int]:
    """The lengths, each rounded up to a multiple of its number where it has one."""
    return {
        letter: -(-length // (k := multiples.get(letter, 1))) * k
        for letter, length in lengths.items()
    }


def leaving_out(op: object, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The optional inputs to leave out where ``names`` are, and the options with which forward then runs."""
    without, options = list(names), options_for(op)
    for name, (others, instead) in getattr(load(op), "LEFT_OUT", {}).items():
        if name in names:
            without += [other for other in others if other not in without]
            options |= instead
    return without, options


def cases(
    op: object, rng: np.random.Generator
) -> Iterator[tuple[tuple[np.ndarray | None, ...], dict[str, Any]]]:
    """Inputs and options that between them reach each line of a backward: leading axes of every kind, each
    optional input present and absent, other values of options, numbers of 16 bits, and large ones. Raises TypeError
    when forward needs an option for which the operation has no example."""
    op = load(op)
    if reason := missing_options(op):
        raise TypeError(reason)
    shapes = parse(op.SHAPES)
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
    for others in _examples(op)[1:]:
        lengths = {
            letter: others[letter] for letter in shapes.letters if letter in others
        }
        options = {
            option: value for option, value in others.items() if option not in lengths
        }
        yield draw(op, rng, lengths=lengths), options_for(op) | options
    if hasattr(op, "ZERO_PRODUCTS"):
        yield _with_zeros(draw(op, rng)), options_for(op) | op.ZERO_PRODUCTS
    leading = {"*": (LEADING["*"][0] * (1 if shapes.factors else TIMES),)}
    times = TIMES_WITH_HEADS if shapes.factors else TIMES
    lengths = {
        letter: length * (1 if letter in shapes.factors else times)
        for letter, length in _lengths(shapes).items()
    }
    yield (
        tuple(map(_in_16_bits, draw(op, rng, lengths=lengths, leading=leading))),
        options_for(op),
    )
    yield _wide(draw(op, rng, leading=leading)), options_for(op)


def _stem(op: object) -> str:
    return getattr(op, "__name__", type(op).__name__).rpartition(".")[2]


def _lengths(shapes: Shapes) -> dict[str, int]:
    others = [letter for letter in shapes.letters if letter not in shapes.factors]
    lengths = dict(zip(others, _all_different(len(others)), strict=True))
    heads = [letter for letter in shapes.letters if letter in shapes.factors]
    return {
        letter: lengths.get(letter) or FACTORS[heads.index(letter)]
        for letter in shapes.letters
    }


def _all_different(count: int) -> list[int]:
    return [
        LENGTHS[at] if at < len(LENGTHS) else LENGTHS[-1] + 2 * (at - len(LENGTHS) + 1)
        for at in range(count)
    ]


def _shape(
    spec: Spec, lengths: Mapping[str, int], leading: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    parts = [
        leading[axis] if axis.startswith("*") else (axis_length(axis, lengths),)
        for axis in spec.axes
    ]
    shape = [length for part in parts for length in part]
    if spec.broadcast and len(shape) < 6:
        # Every second length is 1, the last excepted; leading ones are left out.
        for at in range(len(shape) - 2 - len(shape) % 2, -1, -2):
            shape[at] = 1
        while len(shape) > 1 and shape[0] == 1:
            del shape[0]
    return tuple(shape)


def _with_zeros(inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The inputs, the first two of which have rows 0 whose every part has the product 0, and rows 1 of which the first
    part has."""
    q, k, *others = inputs
    q[..., 0, 0::2] = k[..., 0, 1::2] = 0
    q[..., 1, 0] = k[..., 1, 1] = 0
    return q, k, *others


def _wide(inputs: tuple[np.ndarray | None, ...]) -> tuple[np.ndarray | None, ...]:
    """The inputs, the first floating one ``WIDE`` times as large."""
    first = next(
        at for at, value in enumerate(inputs) if np.issubdtype(value.dtype, np.floating)
    )
    return (*inputs[:first], WIDE * inputs[first], *inputs[first + 1 :])


def _in_16_bits(values: np.ndarray | None) -> np.ndarray | None:
    if values is None or not np.issubdtype(values.dtype, np.floating):
        return values
    return values.astype(np.float16)


def _draw_one(
    spec: Spec,
    shape: tuple[int, ...],
    lengths: Mapping[str, int],
    rng: np.random.Generator,
) -> np.ndarray:
    if not spec.integer:
        return rng.standard_normal(shape)
    count, classes = math.prod(shape), lengths.get("V", 2)
    drawn = min(classes, max(1, math.ceil(math.sqrt(count))))
    order = list(
        dict.fromkeys((*range(min(2, classes)), classes - 1, *range(classes)))
    )[:drawn]
    return rng.permutation(np.resize(order, count)).reshape(shape).astype(np.int64)
