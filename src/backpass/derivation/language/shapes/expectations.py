"""The shapes of expectations, variances, and covariances."""

from __future__ import annotations

import re

from lark import Token, Tree

from backpass.derivation.language.names import LOSS, Reference, Shape, in_words
from backpass.derivation.language.shapes.derivatives import Derivatives
from backpass.derivation.language.shapes.names import Names


class Expectations(Derivatives, Names):
    """Averages over random names."""

    def expectation(self, tree: Tree) -> Shape:
        *over, body = tree.children
        if not self.scope.chances.random:
            self.reject(
                r"which names are random? Say: random x, or random x \in \mathbb{R}^n",
                tree,
            )
        self.expression.averages[id(tree)] = self._averaged(over[0]) if over else ()
        return self._inside(body)

    def _averaged(self, over: Tree) -> tuple[str, ...]:
        """Return the names below an expectation; () for all random names."""
        names, law = [], ""
        for child in over.children:
            if isinstance(child, Token):
                law = re.sub(r"\\left|\\right|\s", "", child)
                continue
            found = self.scope.resolve(child)
            if found is None and len(over.children) == 1:
                return ()  # of a distribution
            if found is None or not self.scope.are_random([found.name]):
                written = self.part.written(child)
                self.reject(f"{written} is not random: say random {written}", child)
            if found.indices:
                self.reject("write the name without an index here", child)
            names.append(found.name)
        if law:
            self._one_law(over, names, law)
        return tuple(names)

    def _one_law(self, over: Tree, names: list[str], law: str) -> None:
        """Reject a name with two distributions, and a distribution that depends on a
        declared name without saying how."""
        for name in names:
            if self.laws.setdefault(name, law) != law:
                self.reject(f"{name} has two distributions here", over)
        stated = {
            r.name
            for left, right, _ in (
                *self.scope.chances.means,
                *self.scope.chances.variances,
            )
            if any(r.name in names for r in left.used)
            for r in right.used
        }
        for name, variable in self.scope.variables.items():
            word = rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])"
            if name in names or name in stated or name == LOSS:
                continue
            if variable.kind != "constant" and re.search(word, law):
                self.reject(
                    f"how does the distribution depend on {name}? Declare its mean and its "
                    "variance, or leave it out",
                    over,
                )

    def variance(self, tree: Tree) -> Shape:
        self.expression.averages[id(tree)] = ()
        shape = self._inside(tree.children[-1])
        if shape:
            self.reject(
                r"the variance of an array is not read; write that of an element, or "
                r"\mathrm{Cov}(x, x)",
                tree,
            )
        return ()

    def covariance(self, tree: Tree) -> Shape:
        self.expression.averages[id(tree)] = ()
        shapes = [self._inside(child) for child in tree.children[-2:]]
        sides = []
        for shape in shapes:
            if shape and (len(shape) != 2 or shape[1] != "1"):
                self.reject(
                    f"a covariance is of numbers or columns; this is {in_words(shape)}",
                    tree,
                )
            sides.append(shape[0] if shape else "1")
        return tuple(sides) if any(shapes) else ()

    def _inside(self, body: Tree) -> Shape:
        """Return the shape of what is averaged, which must not depend on a sign."""
        compared = len(self.expression.comparisons)
        shape = self.visit(body)
        names, calls = set(), []
        for node in body.iter_subtrees():
            reference = self.expression.references.get(id(node))
            if reference is not None and reference.kind == "variable":
                names.add(reference.name)
            calls += self.expression.calls.get(id(node), ())
        definitions = [
            self.scope.variables[name].definition for name in self.scope.upstream(
                [self.scope.variables[name] for name in names]
            )
        ]  # fmt: skip
        if (
            len(self.expression.comparisons) > compared
            or any(call.body.compared for call in calls)
            or any(one is not None and one.compared for one in definitions)
        ):
            self.reject("a comparison inside an expectation is not read", body)
        return shape

    # ---- derivatives -----------------------------------------------------------------

    def partial(self, tree: Tree) -> Shape:
        shape = super().partial(tree)
        self._not_by_random(tree, *tree.children)
        return shape

    def differentiate(self, tree: Tree) -> Shape:
        shape = super().differentiate(tree)
        self._not_by_random(tree, tree.children[1], tree.children[0].children[0])
        return shape

    def nabla_of(self, tree: Tree) -> Shape:
        shape = super().nabla_of(tree)
        self._not_by_random(tree, tree.children[1], tree.children[0])
        return shape

    def directional(self, tree: Tree) -> Shape:
        shape = super().directional(tree)
        self._not_by_random(tree, *tree.children[:2])
        return shape

    def _not_by_random(self, tree: Tree, above: Tree, below: Tree) -> None:
        """Reject the derivative of an expectation by what it averages over, or by what
        sets a distribution, because nothing says how."""
        by = self.expression.references.get(id(below))
        if by is None or not (why := self._is_moved(by.name)):
            return
        nodes = [*above.iter_subtrees()]
        found = self.expression.references
        references = [found[id(node)] for node in nodes if id(node) in found]
        averaged = any(id(node) in self.expression.averages for node in nodes)
        if averaged or self._is_average(references):
            self.reject(why, tree)

    def _is_moved(self, name: str) -> str:
        """Return why an expectation has no derivative by a name; "" if it may."""
        scope = self.scope
        if scope.are_random([name]):
            return f"{name} is random, so it is not held in an expectation"
        for left, right, _ in (*scope.chances.means, *scope.chances.variances):
            used = [scope.variables[r.name] for r in right.used if r.kind == "variable"]
            if name in scope.upstream(used):
                moved = next(r.name for r in left.used if r.kind == "variable")
                return (
                    f"how does the distribution of {moved} depend on {name}? Write {moved} "
                    "by a random name that does not depend on it"
                )
        return ""

    def _is_average(self, references: list[Reference]) -> bool:
        """Whether names are defined by an expectation."""
        names = {r.name for r in references if r.kind == "variable"}
        if any(r.kind == "loss" or r.name == LOSS for r in references):
            names |= {variable.name for variable in self.scope.outputs()}
        variables = [self.scope.variables[name] for name in names]
        upstream = (
            self.scope.variables[name] for name in self.scope.upstream(variables)
        )
        return any(
            variable.definition is not None
            and any(part.averages for part in variable.definition.parts)
            for variable in upstream
        )

    def _shape_of_variable(self, found: Reference, tree: Tree) -> Shape:
        if found.accent and self.scope.chances.random:
            why = self._is_moved(found.name)
            if why and (
                found.accent == "dot" or self._is_average([Reference("loss", LOSS)])
            ):
                self.reject(why, tree)
        return super()._shape_of_variable(found, tree)
