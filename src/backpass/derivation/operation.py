"""A derivation against the operation it derives: it starts at the derivative of `forward` and ends in `backward`."""

from __future__ import annotations

import numpy as np

from backpass.derivation.check import Chain, difference
from backpass.derivation.evaluate import Evaluator, Value
from backpass.derivation.names import Scope, Variable
from backpass.derivation.parse import DerivationError


class Operation:
    """An operation of `backpass.ops`, with the derivation's names for its inputs and its output.

    `names` maps the operation's names to the derivation's where they differ by more than case; `options` are forward's,
    a string among them being a name of the derivation (a symbol such as \\epsilon, or a dimension).
    """

    def __init__(self, stem: str, scope: Scope, names: dict[str, str], options: dict[str, object]) -> None:
        from backpass import ops, shapes

        self.stem, self.scope, self.options = stem, scope, options
        self.module = ops.load(stem)
        spec = shapes.parse(self.module.SHAPES)
        unknown = sorted(names.keys() - {s.name for s in (*spec.inputs, *spec.outputs)})
        if unknown:
            raise DerivationError(f"{stem} has no array called {unknown[0]}: {self.module.SHAPES}")
        constants = getattr(self.module, "CONSTANTS", ())
        self.inputs = [self._variable(s.name, names, s.optional) for s in spec.inputs]
        self.differentiable = [
            k
            for k, s in enumerate(spec.inputs)
            if not s.integer and s.name not in constants and self.inputs[k]
        ]
        self.input_names = [s.name for s in spec.inputs]
        self.output = self._variable(spec.outputs[0].name, names, optional=False)

    def _variable(self, name: str, names: dict[str, str], optional: bool) -> Variable | None:
        candidates = [names[name]] if name in names else [name, name.upper()]
        found = next((self.scope.variables[c] for c in candidates if c in self.scope.variables), None)
        if found is None and not optional:
            raise DerivationError(
                f"{self.stem} has an array {name}, and the derivation no {' or '.join(candidates)}; "
                f"name it: names={{{name!r}: …}}"
            )
        return found

    def final_lines(self, chains: list[Chain]) -> list[tuple[Variable, Chain]]:
        """For each differentiable input, the last unconditional chain that begins with its gradient."""
        found = []
        for k in self.differentiable:
            variable = self.inputs[k]
            ends = [chain for chain in chains if _derives(chain, variable)]
            if not ends:
                raise DerivationError(
                    f"no line \\bar{{{variable.name}}} = … ends in what {self.stem}.backward returns for {self.input_names[k]}"
                )
            found.append((variable, ends[-1]))
        return found

    def verify(self, evaluator: Evaluator, chains: list[Chain]) -> None:
        """Raise `DerivationError` unless the output's definition is `forward`, and the last lines are `backward`."""
        from backpass.interpreters import symbolic

        def array(variable: Variable, element) -> Value:
            values = np.asarray(evaluator.calculus.array(variable, element), dtype=object)
            return symbolic.xp.asarray(
                values.reshape([evaluator.calculus.size(side) for side in _sides(variable)])
            )

        arguments = [v and array(v, lambda at, v=v: evaluator.calculus.element(v, at)) for v in self.inputs]
        options = {key: self._option(value, evaluator) for key, value in self.options.items()}
        with symbolic.session():
            y, saved = self.module.forward(*arguments, **options)
            dy = array(self.output, lambda at: evaluator.calculus.cotangent(self.output, at))
            gradients = self.module.backward(dy, saved)
        derived = evaluator.calculus.array(
            self.output, lambda at: evaluator.calculus.element(self.output, at)
        )
        self._compare(derived, y, f"the definition of {self.output.name}", f"{self.stem}.forward", evaluator)

        gradients = list(gradients) if isinstance(gradients, tuple) else [gradients]
        returned = dict(zip(self._floating(), gradients, strict=True))
        for (variable, chain), k in zip(self.final_lines(chains), self.differentiable, strict=True):
            what = f"the last line for \\bar{{{variable.name}}}"
            self._compare(
                _last(chain, variable, evaluator), returned[k], what, f"{self.stem}.backward", evaluator
            )

    def _floating(self) -> list[int]:
        from backpass import shapes

        constants = getattr(self.module, "CONSTANTS", ())
        spec = shapes.parse(self.module.SHAPES)
        return [k for k, s in enumerate(spec.inputs) if not s.integer and s.name not in constants]

    def _option(self, value: object, evaluator: Evaluator) -> object:
        if not isinstance(value, str):
            return value
        if value in evaluator.sizes:
            return evaluator.sizes[value]
        if value in self.scope.variables:
            return evaluator.calculus.element(self.scope.variables[value], ())
        return value

    def _compare(self, derived: Value, returned, what: str, function: str, evaluator: Evaluator) -> None:
        derived = np.ravel(np.asarray(derived, dtype=object))
        computed = np.ravel(returned.to_numpy())
        if derived.shape != computed.shape:
            raise DerivationError(f"{what} has {derived.size} elements, {function} returns {computed.size}")
        place = difference(derived, computed, evaluator)
        if place is not None:
            sizes = ", ".join(f"{side} = {size}" for side, size in evaluator.sizes.items())
            raise DerivationError(
                f"{what} is not what {function} returns\n  at {sizes}, element {place[0] + 1}:\n"
                f"    derived:  {derived[place]}\n    returned: {computed[place]}"
            )


def _sides(variable: Variable) -> tuple[str, ...]:
    """The variable's axes as the operation sees them: a column is a vector, a row stays a matrix of one row."""
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


def _last(chain: Chain, variable: Variable, evaluator: Evaluator) -> Value:
    reference = chain.expressions[0].references[id(chain.expressions[0].tree)]
    last = chain.expressions[-1]
    if not reference.indices:
        return evaluator.value(last)
    letters = list(map(str, reference.indices))
    return evaluator.calculus.array(
        variable, lambda at: evaluator.value(last, dict(zip(letters, at, strict=True)))
    )
