r"""The formulas of an operation's docstring, read and checked like the lines of any derivation.

A module's docstring holds one ``.. math::`` of statements parted by ``\quad`` or ``\qquad``: what the output is, after
what it is defined by, then the gradient of each differentiable input. What its letters range over follows from SHAPES: a
capital is a matrix, whose rows are the leading axes, and of several heads one; a small letter has as many axes as it has indices there, an axis of
pairs counting two, and one of s+r being as long as s. Integers are rows of V elements, one of which is 1.
"""

from __future__ import annotations

import inspect
import re

from backpass import ops, shapes
from backpass.derivation.derivation import Derivation, derive

# An option's letter in mathematics, the same for all operations.
OPTIONS = {"factor": "c", "copies": "k", "eps": r"\epsilon"}
# An option's value, where forward takes no symbol for it.
VALUES = {
    "dropout": {"p": 0.25},
    "feed_forward": {"activation": "swiglu"},
    "multilinear_attention": {"normalization": "simplex"},
}
# What forward saves of such an option, and what it draws: constants too, and how they are declared.
SAVED = {"dropout": {"mask": r"M \in \mathbb{R}^m", "p": r"p \in \mathbb{R}"}}
# An array's letter, where that is not its name's.
LETTERS = {"bias": "M", "memory": "M"}
# The sizes of the letters' lengths, where the usual ones would make for long expressions.
SIZES = {
    "multi_head_attention": [
        {"s": 2, "h": 3, "d": 2, "d_{v}": 2, "t": 3},
        {"s": 2, "h": 2, "d": 2, "d_{v}": 3, "t": 2},
    ]
}
# An array without a gradient.
CONSTANTS = {"cos": "C", "sin": "S"}


def formulas(stem: str) -> Derivation:
    """The docstring's formulas as a derivation: the output is checked against forward, the gradients against backward.

    Raises ValueError when the docstring has no ``.. math::``, DerivationError when a formula is wrong.
    """
    module = ops.load(stem)
    statements = _statements(stem, inspect.getdoc(module) or "")
    mathematics = " ".join(statements)
    declaration = shapes.parse(module.SHAPES)
    axes = {axis for spec in declaration.inputs for axis in spec.axes}
    heads = declaration.factors | {axis for axis in axes if shapes.is_product(axis)}
    parameters = inspect.signature(module.forward).parameters
    letters = {name: letter for name, letter in OPTIONS.items() if name in parameters}
    values = VALUES.get(stem, {})
    constant = [spec for spec in declaration.inputs if spec.name in getattr(module, "CONSTANTS", ())]
    differentiable = [spec for spec in declaration.inputs if not spec.integer and spec not in constant]
    arrays = [_declared(spec, mathematics, heads) for spec in differentiable]
    positive = [spec.name in getattr(module, "POSITIVE", ()) for spec in differentiable]
    arrays = [
        array.replace(r"\in \mathbb{R}", r"\in \mathbb{R}_{>0}") if signless else array
        for array, signless in zip(arrays, positive, strict=True)
    ]
    arrays += [
        rf"\bar{{{name}}} \in {space}"
        for name, space in (_space(s, mathematics, heads) for s in declaration.outputs)
    ]
    lengths = {axis for spec in (*declaration.inputs, *declaration.outputs) for axis in spec.axes}
    scalars = [rf"{letter} \in \mathbb{{R}}" for letter in letters.values() if letter not in lengths]
    rows = [rf"{spec.name} \in \mathbb{{R}}^{{m \times V}}" for spec in declaration.inputs if spec.integer]
    drawn = SAVED.get(stem, {})
    names = {spec.name: CONSTANTS[spec.name] for spec in constant}
    renamed = [s for s in differentiable if "_" in s.name or s.name in LETTERS]
    names |= {s.name: _space(s, mathematics, heads)[0] for s in renamed}
    rows += [rf"{names[spec.name]} \in {_space(spec, '', heads)[1]}" for spec in constant]
    rows += drawn.values()
    names |= {field: declared.partition(" ")[0] for field, declared in drawn.items()}
    lines = [f"given {', '.join(arrays)}"]
    lines += [f"constant {', '.join(scalars + rows)}"] * bool(scalars + rows)
    lines += [s if s.startswith(r"\bar") else f"let {s}" for s in statements]
    return derive(
        "\n".join(lines),
        name=f"{stem}-formulas".replace("_", "-"),
        operation=stem,
        names=names,
        options=letters | values,
        sizes=SIZES.get(stem),
    )


def _statements(stem: str, docstring: str) -> list[str]:
    block = re.search(r"\.\. math::(.*?)(?:\n\n(?=\S)|\Z)", docstring, re.DOTALL)
    if block is None:
        raise ValueError(f"{stem}: the module's docstring has no formulas, no '.. math::'")
    return [part.strip(" ,\n") for part in re.split(r"\\q?quad", " ".join(block[1].split()))]


def _declared(spec: shapes.Spec, mathematics: str, heads: frozenset[str]) -> str:
    name, space = _space(spec, mathematics, heads)
    return rf"{name} \in {space}"


def _space(spec: shapes.Spec, mathematics: str, heads: frozenset[str]) -> tuple[str, str]:
    """The array's name in mathematics, a capital if the docstring has it so, and the space it is of."""
    letters = [axis.partition("+")[0] for axis in spec.axes if not axis.startswith("*") and axis not in heads]
    if spec.in_pairs:
        letters[-1:] = ["2", letters[-1].removeprefix("2")]
    group = spec.group
    name, _, label = LETTERS.get(spec.name, spec.name).partition("_")
    if label:
        label = rf"_{{\text{{{label}}}}}" if len(label) > 1 else f"_{{{label.upper()}}}"
    capital = f"\\bar{{{name.upper()}}}{label}" in mathematics
    if capital:
        letters = letters if len(letters) >= 2 else ["m", *letters]
    else:
        indices = re.search(rf"\\bar\{{{spec.name}\}}_(?:\{{(\w+)\}}|(\w))", mathematics)
        rank = len(indices[1] or indices[2]) if indices else len(letters)
        if group is not None and len(letters) < rank:
            letters.insert(group, "m")
    lengths = r" \times ".join(letters)
    space = rf"\mathbb{{R}}^{{{lengths}}}" if letters else r"\mathbb{R}"
    return (name.upper() if capital else name) + label, space
