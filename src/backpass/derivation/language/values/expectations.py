"""The values of expectations, variances, and covariances."""

from __future__ import annotations

import numpy as np
import sympy
from lark import Tree

from backpass.derivation.language.calculus import Value
from backpass.derivation.language.values.arrays import each
from backpass.derivation.language.values.derivatives import Derivatives
from backpass.derivation.language.values.outcomes import Outcomes


class Expectations(Derivatives):
    """Averages over random names."""

    supposed: frozenset[str] = (
        frozenset()
    )  # what is not declared of their distributions
    _outcomes: Outcomes | None = None

    @property
    def outcomes(self) -> Outcomes:
        """The values of the random names, with their probabilities."""
        if self._outcomes is None:
            self._outcomes = Outcomes(self.calculus, self.supposed)
        return self._outcomes

    def expectation(self, tree: Tree) -> Value:
        names = self.current.averages[id(tree)]
        return self._mean(self.visit(tree.children[-1]), names)

    def _mean(self, value: Value, names: tuple[str, ...] = ()) -> Value:
        return each(value, lambda one: self.outcomes.mean(one, names))

    def variance(self, tree: Tree) -> Value:
        value = self.visit(tree.children[-1])
        return self._covariance(value, value)

    def covariance(self, tree: Tree) -> Value:
        one, other = map(self.visit, tree.children[-2:])
        return self._covariance(one, other)

    def _covariance(self, one: Value, other: Value) -> Value:
        first, second = self._mean(one), self._mean(other)
        if not isinstance(one, np.ndarray) and not isinstance(other, np.ndarray):
            return self._mean(one * other) - first * second
        rows, columns = np.atleast_1d(np.ravel(one)), np.atleast_1d(np.ravel(other))
        means = np.atleast_1d(np.ravel(first)), np.atleast_1d(np.ravel(second))
        found = np.empty((len(rows), len(columns)), dtype=object)
        for i, j in np.ndindex(*found.shape):
            product = sympy.sympify(rows[i] * columns[j])
            found[i, j] = self._mean(product) - means[0][i] * means[1][j]
        return found
