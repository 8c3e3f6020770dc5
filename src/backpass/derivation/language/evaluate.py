"""Evaluate an expression at given sizes, to SymPy expressions."""

from __future__ import annotations

from lark import Token

from backpass.derivation.language.names import Expression
from backpass.derivation.language.parse import tokens_of
from backpass.derivation.language.values.cases import RELATIONS, Cases
from backpass.derivation.language.values.hessians import Hessians
from backpass.derivation.language.values.products import Products
from backpass.derivation.language.values.visitor import Frame


class Evaluator(Products, Cases, Hessians):
    """Evaluates the expressions of a scope, and conditions on indices."""

    def holds(self, conditions: Expression, indices: dict[str, int]) -> bool:
        """Whether the conditions on indices hold."""
        tokens = [
            tokens_of(condition)
            for condition in conditions.tree.children
            if isinstance(condition.children[0], Token)
        ]
        with self.within(Frame(conditions, indices)):
            return all(
                RELATIONS[relation](self.at(first), self.at(second))
                for first, relation, second in tokens
            )
