"""Random inputs of the shapes an operation declares: odd sizes, all different, so that a wrong axis shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from backpass.shapes import Shapes, Spec, axis_length, parse
from backpass.verify.arguments import check_drawn
from backpass.verify.subject import load

LENGTHS = (5, 7, 3, 9, 11, 13)  # for a declaration's letters, in order of appearance
FACTORS = (2, 3)  # for the letters of which an axis is the product: heads, of which few show all
LEADING = {"*": (3,), "*a": (2, 1), "*b": (4,)}  # for its groups of leading axes
TIMES = 11  # as long are the axes in 16 bits: enough for sums to lose digits
TIMES_WITH_HEADS = 4  # where there are heads, whose scores grow with the square
WIDE = 4  # times as large is the first input of one case: what happens far from 0 shows too

INPUTS, COTANGENT, DIRECTIONS, MEASURING, VARYING = range(5)  # streams of one seed

# Options without which forward cannot run, or whose default would hide a mistake.
OPTIONS: dict[str, dict[str, Any]] = {
    "scale": {"factor": -1.75},
    "fork": {"copies": 3},
    "dropout": {"p": 0.25, "seed": 10},
    "nll": {"ignore_index": 1},
    "cross_entropy": {"ignore_index": 1},
    "linear_cross_entropy": {"ignore_index": 1, "chunk": 2},
    "feed_forward": {"activation": "swiglu"},
    "flash_attention": {"tile": 2},
    "multilinear_attention": {"p": 3, "normalization": "simplex"},
    "linear_attention": {"causal": True, "chunk": 2},
}
# Other values of options, for `cases`: one more case each. A letter among them is a length to draw.
OTHER_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "nll": ({"reduction": "sum"},),
    "cross_entropy": ({"reduction": "sum"},),
    "soft_cross_entropy": ({"reduction": "sum"},),
    "linear_cross_entropy": ({"reduction": "sum"}, {"chunk": None}),
    "rope": ({"interleaved": True},),
    "position_embedding": ({"offset": 2}, {"offset": 3}),
    "rms_norm": ({"eps": 0.25},),
    "simplex_norm": ({"mean": True},),
    "sphere_norm": ({"mean": True},),
    "dropout": ({"training": False},),
    "gelu": ({"approximate": "tanh"},),
    "swiglu": ({"keep_sigmoid": True},),
    "attention": (
        {"causal": True, "head_order": "interleaved", "scale": 0.75},
        {"causal": True, "causal_variant": "lower_right"},
        {"causal": True, "s_k": 8, "g": 1},
        {"causal": True, "causal_variant": "lower_right", "s_k": 8, "n_kv": 1},
    ),
    "flash_attention": (
        {"causal": True, "head_order": "interleaved", "scale": 0.75},
        {"causal": True, "causal_variant": "lower_right", "tile": None},
        {"causal": True, "s_k": 8, "g": 1},
        {"causal": True, "causal_variant": "lower_right", "s_k": 8, "n_kv": 1},
    ),
    "multilinear_attention": (
        {"p": 1, "causal": True, "s_k": 8},
        {"p": 2, "causal": True, "causal_variant": "lower_right", "s_k": 8},
        {"p": 2, "normalization": "sphere"},
        {"normalization": "sphere", "causal": True},
        {"p": 1, "normalization": "softmax", "causal": True, "causal_variant": "lower_right"},
        {"normalization": "softmax"},
    ),
    "linear_attention": ({"causal": False}, {"chunk": 1}),
    "multi_head_attention": (
        {"causal": True, "causal_variant": "lower_right", "head_order": "interleaved", "scale": 0.75},
        {"causal": True, "g": 1},
        {"n_kv": 1},
    ),
}

# Operations that multiply dot products, of which one more case has some that are exactly 0, and the options of that case.
WITH_ZEROS: dict[str, dict[str, Any]] = {
    "multilinear_attention": {"normalization": "softmax"},
}

# Lengths that have to be multiples of a number: of every p among the options, for one.
MULTIPLES: dict[str, dict[str, int]] = {
    "multilinear_attention": {"d": 6},
    "linear_attention": {"d": 2},  # of width 1 a query has no gradient: its length does not matter
}

# Weights that are divided by the root of their length, as networks begin: others would make scores so large that one key
# has all the weight.
INITIAL: dict[str, tuple[str, ...]] = {
    "multi_head_attention": ("w_q", "w_k"),
}

# Inputs that cannot be left out alone: what goes with them, and the options with which forward then runs.
LEFT_OUT: dict[str, dict[str, tuple[tuple[str, ...], dict[str, Any]]]] = {
    "feed_forward": {"w_gate": (("b_gate",), {"activation": "gelu"})},
}


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
    last among them. Inputs that ``op`` lists as ``POSITIVE`` are without their signs. The weights that
    make queries and keys are divided by the root of their length.

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
    lengths = fitting(_stem(op), {**_lengths(shapes), **lengths})
    drawn = draw_shapes(shapes, rng, lengths, {**LEADING, **leading}, without)
    positive, initial = getattr(op, "POSITIVE", ()), INITIAL.get(_stem(op), ())
    found = dict(zip((spec.name for spec in shapes.inputs), drawn, strict=True))
    found |= {name: np.abs(found[name]) for name in positive}
    found |= {name: found[name] / math.sqrt(max(1, len(found[name]))) for name in initial}
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
        None if spec.name in without else _draw_one(spec, _shape(spec, lengths, leading), lengths, rng)
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
    all_lengths = {letter: found[letter] for letter in shapes.letters if letter in found}
    if most:
        all_lengths = {letter: min(length, most[letter]) for letter, length in all_lengths.items()}
    all_lengths |= lengths or {}
    without = [name for name in (spec.name for spec in shapes.inputs) if given.get(name) is None]
    return draw_shapes(shapes, rng, all_lengths, leading, without)


def options_for(op: object) -> dict[str, Any]:
    """The options with which the operation is checked when none are given."""
    return dict(OPTIONS.get(_stem(op), {}))


def fitting(stem: str | None, lengths: Mapping[str, int]) -> dict[str, int]:
    """The lengths, those that have to be multiples of a number rounded up to one."""
    multiples = MULTIPLES.get(stem, {})
    return {letter: -(-length // (k := multiples.get(letter, 1))) * k for letter, length in lengths.items()}


def leaving_out(op: object, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The optional inputs to leave out where ``names`` are, and the options with which forward then runs."""
    without, options = list(names), options_for(op)
    for name, (others, instead) in LEFT_OUT.get(_stem(op), {}).items():
        if name in names:
            without += [other for other in others if other not in without]
            options |= instead
    return without, options


def cases(
    op: object, rng: np.random.Generator
) -> Iterator[tuple[tuple[np.ndarray | None, ...], dict[str, Any]]]:
    """Inputs and options that between them reach each line of a backward: leading axes of every kind, each
    optional input present and absent, other values of options, numbers of 16 bits, and large ones."""
    op = load(op)
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
    for others in OTHER_OPTIONS.get(_stem(op), ()):
        lengths = {letter: others[letter] for letter in shapes.letters if letter in others}
        options = {option: value for option, value in others.items() if option not in lengths}
        yield draw(op, rng, lengths=lengths), options_for(op) | options
    if _stem(op) in WITH_ZEROS:
        yield _with_zeros(draw(op, rng)), options_for(op) | WITH_ZEROS[_stem(op)]
    leading = {"*": (LEADING["*"][0] * (1 if shapes.factors else TIMES),)}
    times = TIMES_WITH_HEADS if shapes.factors else TIMES
    lengths = {
        letter: length * (1 if letter in shapes.factors else times)
        for letter, length in _lengths(shapes).items()
    }
    yield tuple(map(_in_16_bits, draw(op, rng, lengths=lengths, leading=leading))), options_for(op)
    yield _wide(draw(op, rng, leading=leading)), options_for(op)


def _stem(op: object) -> str:
    return getattr(load(op), "__name__", "").rpartition(".")[2]


def _lengths(shapes: Shapes) -> dict[str, int]:
    others = [letter for letter in shapes.letters if letter not in shapes.factors]
    lengths = dict(zip(others, _all_different(len(others)), strict=True))
    heads = [letter for letter in shapes.letters if letter in shapes.factors]
    return {letter: lengths.get(letter) or FACTORS[heads.index(letter)] for letter in shapes.letters}


def _all_different(count: int) -> list[int]:
    return [
        LENGTHS[at] if at < len(LENGTHS) else LENGTHS[-1] + 2 * (at - len(LENGTHS) + 1) for at in range(count)
    ]


def _shape(spec: Spec, lengths: Mapping[str, int], leading: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    parts = [leading[axis] if axis.startswith("*") else (axis_length(axis, lengths),) for axis in spec.axes]
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
    first = next(at for at, value in enumerate(inputs) if np.issubdtype(value.dtype, np.floating))
    return (*inputs[:first], WIDE * inputs[first], *inputs[first + 1 :])


def _in_16_bits(values: np.ndarray | None) -> np.ndarray | None:
    if values is None or not np.issubdtype(values.dtype, np.floating):
        return values
    return values.astype(np.float16)


def _draw_one(
    spec: Spec, shape: tuple[int, ...], lengths: Mapping[str, int], rng: np.random.Generator
) -> np.ndarray:
    if not spec.integer:
        return rng.standard_normal(shape)
    count, classes = math.prod(shape), lengths.get("V", 2)
    drawn = min(classes, max(1, math.ceil(math.sqrt(count))))
    order = list(dict.fromkeys((*range(min(2, classes)), classes - 1, *range(classes))))[:drawn]
    return rng.permutation(np.resize(order, count)).reshape(shape).astype(np.int64)
