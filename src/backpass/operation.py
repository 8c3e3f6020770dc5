"""One view of an operation for checks, costs, derivations and benchmarks.

It reads a module of ``backpass.ops`` and a reader's own object alike: a fact that the
object does not state has its default here. ``backpass.ops`` says what each fact means.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass import ops
from backpass.contract.shapes import Shapes, Spec, parse


def _fact(name: str, default: Any) -> Any:
    """A property that reads a constant of the operation."""
    return property(lambda self: getattr(self.op, name, default))


class Operation:
    """An operation from its stem, its module, or any object with the same names.

    Raises LookupError for an unknown stem.
    """

    def __init__(self, op: object) -> None:
        self.op: Any = ops.load(op) if isinstance(op, str) else op

    named_constants = _fact("CONSTANTS", ())
    conventions = _fact("CONVENTIONS", {})
    examples = _fact("EXAMPLES", ({},))
    fan_in = _fact("FAN_IN", ())
    float32_defaults = _fact("FLOAT32_DEFAULTS", {})
    formula_options = _fact("FORMULA_OPTIONS", {})
    formula_sizes = _fact("FORMULA_SIZES", None)
    left_out = _fact("LEFT_OUT", {})
    letters = _fact("LETTERS", {})
    multiples = _fact("MULTIPLES", {})
    parameters = _fact("PARAMETERS", ())
    wide = _fact("WIDE", ())
    positive = _fact("POSITIVE", ())
    unreduced = _fact("UNREDUCED", {})
    zero_gradients = _fact("ZERO_GRADIENTS", ())
    zero_products = _fact("ZERO_PRODUCTS", None)

    @property
    def constants(self) -> tuple[str, ...]:
        """The floating-point inputs without a gradient: those of ``CONSTANTS``, and the
        tables and masks of the declaration."""
        named = tuple(self.named_constants)
        tables = self.shapes.tables if self.shapes else ()
        return (*named, *(name for name in tables if name not in named))

    @property
    def name(self) -> str:
        """The stem of a module, the name of a class, or that of an object's class."""
        name = getattr(self.op, "__name__", type(self.op).__name__)
        return name.rpartition(".")[2]

    @property
    def shapes(self) -> Shapes | None:
        """The declaration, or None if the object makes none."""
        return self.shapes_with({})

    def shapes_with(self, options: Mapping[str, object]) -> Shapes | None:
        """The declaration that holds with these options, or None."""
        text = getattr(self.op, "SHAPES", "")
        if isinstance(text, str) and any(
            options.get(name) == value for name, value in self.unreduced.items()
        ):
            shapes, semicolon, clauses = text.partition(";")
            text = shapes.rstrip().removesuffix("[]") + f"[*]{semicolon}{clauses}"
        if not isinstance(text, str):
            raise TypeError(
                f'SHAPES: expected a text such as "x[*, n] -> y[*, n]"; got {text!r}'
            )
        return parse(text) if text else None

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """The declared inputs; none without a declaration."""
        return self.shapes.inputs if self.shapes else ()

    @property
    def differentiable(self) -> list[Spec]:
        """The declared inputs that have a gradient."""
        return [
            spec
            for spec in self.inputs
            if spec.floating and spec.name not in self.constants
        ]

    def conventions_with(self, options: Mapping[str, object]) -> dict[str, str]:
        """The inputs whose gradients are conventions with these options, each with the
        reason. An option that is None is not given."""
        return {
            name: reason
            for option, reasons in self.conventions.items()
            if options.get(option) is not None
            for name, reason in reasons.items()
        }

    def suited(self, name: str, values: np.ndarray) -> np.ndarray:
        """Random values, made such as the input of that name must be."""
        if name in self.positive:
            values = np.abs(values)
        if name in self.fan_in:
            values = values / math.sqrt(max(1, len(values)))
        return values

    @property
    def option_names(self) -> list[str]:
        """The names of forward's options. The wanted gradients are not an option."""
        parameters = _parameters(self.op.forward).values()
        names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        return [name for name in names if name != "wanted"]

    @property
    def takes_wanted(self) -> bool:
        """Whether forward and backward take the names of the wanted gradients."""
        if any(spec.name == "wanted" for spec in self.inputs):
            return False
        parts = (self.op.forward, self.op.backward)
        return all("wanted" in _parameters(part) for part in parts)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters by name; none without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
