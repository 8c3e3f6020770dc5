r"""Read and check the formulas of an operation's docstring like any derivation.

A module's docstring holds one ``.. math::`` with statements separated by ``\quad`` or
``\qquad``: the definitions that the output uses, the output, and then the gradient of
each differentiable input. The shapes of the letters follow from SHAPES:

- A capital is a matrix whose rows are the leading axes; of several heads, it is one.
- A small letter has as many axes as it has indices in the formulas. An axis of pairs
  counts as two, and an axis s+r is as long as s.
- Integers are rows of V elements, one of which is 1.

The module's ``LETTERS``, ``FORMULA_OPTIONS`` and ``FORMULA_SIZES`` say what SHAPES does
not; ``backpass.ops`` describes them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

from backpass import ops
from backpass.contract import shapes
from backpass.derivation.book.derivation import Derivation, derive
from backpass.derivation.language.parse import DerivationError
from backpass.operation import Operation


def formulas(stem: str, *, evaluate: bool = True) -> Derivation:
    """Return the docstring's formulas as a checked derivation.

    The output is checked against forward, and the gradients against backward; without
    ``evaluate`` the formulas are only parsed. Raises ValueError if the docstring has no
    ``.. math::``, and DerivationError if a formula is wrong.
    """
    module = ops.load(stem)
    statements = _statements(stem, inspect.getdoc(module) or "")
    mathematics = " ".join(statements)
    declaration = shapes.parse(module.SHAPES)
    axes = {axis for spec in declaration.inputs for axis in spec.axes}
    heads = declaration.factors | {axis for axis in axes if shapes.is_product(axis)}
    operation = Operation(stem)
    letters, values = operation.letters, operation.formula_options
    others = letters.keys() - {spec.name for spec in declaration.inputs}
    given = inspect.signature(module.forward).parameters.keys() - values.keys()
    options = {name: letters[name] for name in letters if name in others & given}
    saved = {name: letters[name] for name in letters if name in others - given}
    arrays, names = [], {}
    for spec in operation.differentiable:
        name, space = _space(spec, letters, mathematics, heads)
        if spec.name in operation.positive:
            space = space.replace(r"\mathbb{R}", r"\mathbb{R}_{>0}")
        arrays.append(rf"{name} \in {space}")
        if "_" in spec.name or spec.name in letters:
            names[spec.name] = name
    for spec in declaration.outputs:
        name, space = _space(spec, letters, mathematics, heads)
        arrays.append(rf"\bar{{{name}}} \in {space}")
    lengths = {
        axis
        for spec in (*declaration.inputs, *declaration.outputs)
        for axis in spec.axes
    }
    constants = [
        _declared(letter) for letter in options.values() if letter not in lengths
    ]
    constants += [
        rf"{spec.name} \in \mathbb{{R}}^{{m \times V}}"
        for spec in declaration.inputs
        if spec.integer
    ]
    for spec in operation.inputs:
        if spec.name in operation.constants:
            name = names[spec.name] = letters.get(spec.name, spec.name)
            constants.append(rf"{name} \in {_space(spec, {}, '', heads)[1]}")
    for field, declared in saved.items():
        names[field] = _letter(declared)
        constants.append(_declared(declared))
    lines = [f"given {', '.join(arrays)}"]
    if constants:
        lines.append(f"constant {', '.join(constants)}")
    lines += [s if s.startswith(r"\bar") else f"let {s}" for s in statements]
    try:
        return (derive if evaluate else Derivation)(
            "\n".join(lines),
            name=f"{stem}-formulas".replace("_", "-"),
            operation=stem,
            names=names,
            options={name: _letter(declared) for name, declared in options.items()}
            | values,
            sizes=operation.formula_sizes,
        )
    except DerivationError as error:
        where = f"src/backpass/ops/{stem}.py"
        error.add_note(
            f"The formulas are those of {where}, whose LETTERS declare the letters of "
            "its options."
        )
        raise


def _statements(stem: str, docstring: str) -> list[str]:
    block = re.search(r"\.\. math::(.*?)(?:\n\n(?=\S)|\Z)", docstring, re.DOTALL)
    if block is None:
        raise ValueError(
            f"{stem}: the module's docstring has no formulas: it has no '.. math::'"
        )
    return [
        part.strip(" ,\n") for part in re.split(r"\\q?quad", " ".join(block[1].split()))
    ]


def _letter(declared: str) -> str:
    """Return a letter without the space that it may be declared with."""
    return declared.partition(r" \in ")[0]


def _declared(declared: str) -> str:
    """Return a letter of ``LETTERS`` with its space, by default the real numbers."""
    return declared if r" \in " in declared else rf"{declared} \in \mathbb{{R}}"


def _space(
    spec: shapes.Spec, named: Mapping[str, str], mathematics: str, heads: frozenset[str]
) -> tuple[str, str]:
    """Return the array's name in the formulas, perhaps a capital, and its space."""
    letters = [
        axis.partition("+")[0]
        for axis in spec.axes
        if not axis.startswith("*") and axis not in heads
    ]
    if spec.in_pairs:
        letters[-1:] = ["2", letters[-1].removeprefix("2")]
    group = spec.group
    name, _, label = named.get(spec.name, spec.name).partition("_")
    if label:
        label = rf"_{{\text{{{label}}}}}" if len(label) > 1 else f"_{{{label.upper()}}}"
    capital = f"\\bar{{{name.upper()}}}{label}" in mathematics
    if capital:
        letters = letters if len(letters) >= 2 else ["m", *letters]
    else:
        indices = re.search(
            rf"\\bar\{{{spec.name}\}}_(?:\{{(\w+)\}}|(\w))", mathematics
        )
        rank = len(indices[1] or indices[2]) if indices else len(letters)
        if group is not None and len(letters) < rank:
            letters.insert(group, "m")
    lengths = r" \times ".join(letters)
    space = rf"\mathbb{{R}}^{{{lengths}}}" if letters else r"\mathbb{R}"
    return (name.upper() if capital else name) + label, space
