"""Analyse expressions before anything is evaluated, once for all sizes.

The analysis ensures that every name is known, every index runs over one dimension, and
every matrix product fits. It records what evaluation needs: what each reference refers
to, and what each bound index ranges over.
"""

from __future__ import annotations

from lark import Token, Tree

from backpass.derivation.language.parse import tokens_of
from backpass.derivation.language.shapes.cases import Cases
from backpass.derivation.language.shapes.hessians import Hessians
from backpass.derivation.language.shapes.numbers import Numbers
from backpass.derivation.language.shapes.products import Products


class Analysis(Numbers, Products, Cases, Hessians):
    """Analyses expressions that share free indices, and conditions on these."""

    def conditions(self, tree: Tree) -> None:
        self.visit_children(tree)

    def condition(self, tree: Tree) -> None:
        first = tree.children[0]
        if isinstance(first, Token):
            _, _, second = tokens_of(tree)
            self.run_together(first, second)
            return
        self.visit(first)
        found = self.expression.references[id(first)]
        if found.kind != "variable" or found.accent != "dot" or found.indices:
            self.reject(
                r"expected a condition such as j \ne i, or \dot{X} = 0 for a whole X",
                first,
            )
