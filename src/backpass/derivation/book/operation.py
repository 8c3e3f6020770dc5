"""Check a derivation against `forward` and `backward` of its operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import sympy

from backpass import operation as operations
from backpass.contract.shapes import parse
from backpass.contract.spec import is_product, letters_of
from backpass.derivation.equality.check import Chain, difference
from backpass.derivation.language.calculus import Indices, Value
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.names import Variable
from backpass.derivation.language.parse import DerivationError
from backpass.expressions import exact


class Operation:
    """An operation of `backpass.ops` at an evaluator's sizes, with the derivation's
    names for its arrays.

    `names` maps the operation's names to the derivation's where they differ by more
    than case. `options` are forward's; a string among them is a name of the derivation
    (a symbol such as \\epsilon, or a dimension).

    In a derivation, an input of integers, such as targets, is a constant array with one
    more axis: each row is 1 at the integer's position, or nowhere if the integer is to
    be ignored, and 0 elsewhere. An input of booleans, such as a mask, is a constant
    array of 1 for True and 0 for False. An array that forward gets as an option, and
    saves, is a constant of the derivation that `names` maps, and so is one that a
    property of what it saved draws, such as dropout's mask. It is replaced by that
    array, with 1 for True and 0 for False.
    """

    def __init__(
        self,
        stem: str,
        evaluator: Evaluator,
        names: dict[str, str],
        options: dict[str, object],
    ) -> None:
        self.stem, self.evaluator, self.options = stem, evaluator, options
        self.calculus, self.variables = evaluator.calculus, evaluator.scope.variables
        operation = operations.Operation(stem)
        self.module, spec = operation.op, parse(operation.op.SHAPES)
        self.specs = {s.name: s for s in (*spec.inputs, *spec.outputs)}
        self.heads = spec.factors
        fields = *self.module.Saved._fields, *_drawn_again(self.module.Saved)
        unknown = sorted(names.keys() - self.specs.keys() - {*fields})
        if unknown:
            raise DerivationError(
                f"{stem} has no array called {unknown[0]}: {self.module.SHAPES}"
            )
        takes = operation.option_names
        if wrong := sorted(options.keys() - takes):
            raise DerivationError(
                f"options of {stem}: expected {', '.join(takes) or 'none'}; "
                f"got {wrong[0]}"
            )
        self.inputs = {
            s.name: (self._found if s.optional else self._variable)(s.name, names)
            for s in spec.inputs
        }
        self.differentiable = [s.name for s in operation.differentiable]
        self.saved = {
            field: self._variable(field, names)
            for field in fields
            if field in names and field not in self.specs
        }
        self.output_name = spec.outputs[0].name
        self.output = self._variable(self.output_name, names)

    def _found(self, name: str, names: dict[str, str]) -> Variable | None:
        """Return the derivation's variable for an array; None if it has none."""
        known = [one for one in _candidates(name, names) if one in self.variables]
        return self.variables[known[0]] if known else None

    def _variable(self, name: str, names: dict[str, str]) -> Variable:
        """Return the derivation's variable for an array that it has to have."""
        variable = self._found(name, names)
        if variable is None:
            raise DerivationError(
                f"{self.stem} has an array {name}, but the derivation has no "
                f"{' or '.join(_candidates(name, names))}; name it: "
                f"names={{{name!r}: …}}"
            )
        return variable

    def verify_forward(self) -> NamedTuple:
        """Raise `DerivationError` unless `forward` returns the output as defined;
        return what it saved."""
        arguments = [
            self._argument(name, variable) for name, variable in self.inputs.items()
        ]
        options = {key: self._option(value) for key, value in self.options.items()}
        y, saved = self._run("forward", *arguments, **options)
        self.marks = self._marks(saved)
        element = partial(self.calculus.element, self.output)
        derived = self.calculus.array(self.output, element)
        what = f"the definition of {self.output.name}"
        self._compare(derived, y, what, f"{self.stem}.forward")
        return saved

    def verify(self, chains: list[Chain]) -> None:
        """Raise `DerivationError` unless the derivation starts at `forward` and its
        last lines are `backward`."""
        saved = self.verify_forward()
        dy = self._array(self.output_name, self.output, self.calculus.cotangent)
        gradients = self._run("backward", dy, saved)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        for name, gradient in zip(self.differentiable, gradients, strict=True):
            if (variable := self.inputs[name]) is not None:
                last = self._last_line(name, variable, chains)
                what = rf"the last line for \bar{{{variable.name}}}"
                self._compare(last, gradient, what, f"{self.stem}.backward")

    def _run(self, part: str, *arguments: object, **options: object):
        """Run forward or backward on symbols, in the case that holds around the
        evaluator's point."""
        from backpass.interpreters import symbolic

        try:
            with symbolic.session(self.evaluator.point):
                return getattr(self.module, part)(*arguments, **options)
        except symbolic.Undecided as error:
            message = (
                f"{self.stem}.{part} depends on a sign, but no line of the derivation "
                f"does: {error}"
            )
            raise DerivationError(message) from None

    def _last_line(self, name: str, variable: Variable, chains: list[Chain]) -> Value:
        """Return the value of the last line of the last unconditional statement that
        begins with a variable's gradient."""
        derived = [chain for chain in chains if _derives(chain, variable)]
        if not derived:
            raise DerivationError(
                rf"no line \bar{{{variable.name}}} = … ends in what "
                f"{self.stem}.backward returns for {name}"
            )
        left, last = derived[-1].expressions[0], derived[-1].expressions[-1]
        letters = [str(token) for token in left.references[id(left.tree)].indices]
        if not letters:
            return self.evaluator.value(last)
        return self.calculus.array(
            variable,
            lambda at: self.evaluator.value(last, dict(zip(letters, at, strict=True))),
        )

    def _option(self, value: object) -> object:
        """Return an option's value; a string may name a dimension or a variable."""
        if not isinstance(value, str):
            return value
        if value in self.evaluator.sizes:
            return self.evaluator.sizes[value]
        if value in self.variables:
            return self.calculus.element(self.variables[value], ())
        return value

    def _argument(self, name: str, variable: Variable | None):
        """Return the argument of forward for an input."""
        from backpass.interpreters import symbolic

        if variable is None:
            return None
        spec = self.specs[name]
        if spec.integer:
            return symbolic.xp.asarray(self._chosen(variable))
        if spec.boolean:
            shape = self._shape_in_operation(name, variable)
            return symbolic.xp.asarray(self._seen(variable).reshape(shape))
        return self._array(name, variable, self.calculus.element)

    def _chosen(self, variable: Variable) -> np.ndarray:
        """Return the integers whose positions a variable's rows mark.

        They are 0, 1, … in turn. Of several, the last is ignored if forward can do
        that.
        """
        *rows, places = self._sizes(variable)
        integers = np.arange(np.prod(rows, dtype=int)) % places
        ignored = inspect.signature(self.module.forward).parameters.get("ignore_index")
        if ignored is not None and len(integers) > 1:
            integers[-1] = ignored.default
        return integers.reshape(rows)

    def _seen(self, variable: Variable) -> np.ndarray:
        """Return the booleans of a variable: two of three are True, in each row
        another two."""
        return np.indices(self._sizes(variable)).sum(axis=0) % 3 != 1

    def _marks(self, saved: NamedTuple) -> dict[sympy.Symbol, sympy.Expr]:
        """Return the numbers of the elements that are known.

        In the rows for integers they are 1 at the integer's position and 0 elsewhere;
        for booleans, they are 1 and 0; for an array that forward saved, they are its
        elements.
        """
        calculus, known = self.calculus, []
        for name, variable in self.inputs.items():
            if variable is not None and self.specs[name].integer:
                places = np.arange(self._sizes(variable)[-1])
                chosen = self._chosen(variable)[..., None]
                known.append((variable, (chosen == places).astype(int)))
            elif variable is not None and self.specs[name].boolean:
                known.append((variable, self._seen(variable).astype(int)))
        for field, variable in self.saved.items():
            value = getattr(saved, field)
            value = (
                value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
            )
            values = value.astype(int) if variable.axes else value
            known.append((variable, values))
        return {
            calculus.element(variable, at): sympy.Rational(str(values[at]))
            for variable, values in known
            for at in calculus.positions(variable)
        }

    def _array(
        self,
        name: str,
        variable: Variable,
        element: Callable[[Variable, Indices], sympy.Expr],
    ):
        """Return a symbolic array of a variable, in its shape in the operation."""
        from backpass.interpreters import symbolic

        values = self.calculus.array(variable, lambda at: element(variable, at))
        shape = self._shape_in_operation(name, variable)
        return symbolic.xp.asarray(np.asarray(values, dtype=object).reshape(shape))

    def _sizes(self, variable: Variable) -> list[int]:
        return [self.calculus.size(side) for side in _sides(variable)]

    def _shape_in_operation(self, name: str, variable: Variable) -> list[int]:
        """Return the shape of a variable in the operation.

        An axis 2k or g*n is two axes of the derivation, in either order. So is a last
        axis that an option divides into p parts, as with `options={"p": "p"}`. If the
        derivation has no axes of heads, there is one head.
        """
        spec, sides, shape = self.specs[name], _sides(variable), self._sizes(variable)
        is_divided = (
            len(sides) > 1
            and sides[-2] in self.options.values()
            and not spec.axes[-1].startswith("*")
        )
        if spec.in_pairs or is_divided:
            return [*shape[:-2], shape[-2] * shape[-1]]
        axes = [axis for axis in spec.axes if not axis.startswith("*")]
        of_heads = [
            at for at, axis in enumerate(axes) if self.heads & {*letters_of(axis)}
        ]
        if len(shape) == len(axes) - len(of_heads):
            for at in of_heads:
                shape.insert(at, 1)
        elif len(shape) == len(axes) + 1:
            products = [at for at in of_heads if is_product(axes[at])]
            if products:
                at = products[0]
                shape[at : at + 2] = [shape[at] * shape[at + 1]]
        return shape

    def _compare(self, derived: Value, returned, what: str, function: str) -> None:
        derived = np.ravel(np.asarray(derived, dtype=object))
        computed = np.ravel(returned.to_numpy())
        if derived.shape != computed.shape:
            raise DerivationError(
                f"{what} has {derived.size} elements, but {function} returns "
                f"{computed.size}"
            )
        definitions = self._definitions()
        place = difference(derived, computed, definitions)
        if place is not None:
            sizes = ", ".join(
                f"{side} = {size}" for side, size in self.evaluator.sizes.items()
            )
            of_derived = derived[place]
            if self.marks:
                of_derived = definitions.expand(of_derived)
            raise DerivationError(
                f"{what} is not what {function} returns\n"
                f"  at {sizes}, element {place[0] + 1}:\n"
                f"    derived:  {of_derived}\n    returned: {computed[place]}"
            )

    def _definitions(self) -> exact.Definitions:
        """Return the definitions, with the marks replaced by their numbers."""
        if not self.marks:
            return self.calculus.definitions

        def definition_of(symbol: sympy.Symbol) -> sympy.Expr | None:
            defined = self.calculus.definition(symbol)
            return self.marks.get(symbol) if defined is None else defined

        def expand(value: sympy.Expr) -> sympy.Expr:
            return self.calculus.expand(value).xreplace(self.marks)

        return exact.Definitions(definition_of, expand)


def _drawn_again(saved: type) -> list[str]:
    """Return the names of the properties of a Saved, which draw arrays."""
    return [name for name, of in vars(saved).items() if isinstance(of, property)]


def _candidates(name: str, names: dict[str, str]) -> list[str]:
    """Return the names that an array of the operation may have in a derivation."""
    return [names[name]] if name in names else [name, name.upper()]


def _sides(variable: Variable) -> tuple[str, ...]:
    """Return the variable's axes in the operation: a column is a vector there, and a
    row is a matrix with one row."""
    shape = variable.shape
    return shape[:1] if len(shape) == 2 and shape[1] == "1" else shape


def _derives(chain: Chain, variable: Variable) -> bool:
    left = chain.expressions[0]
    reference = left.references.get(id(left.tree))
    return (
        chain.conditions is None
        and reference is not None
        and reference.accent == "bar"
        and reference.name == variable.name
        and len(chain.free) == len(reference.indices)
    )
