"""What is declared of random names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backpass.derivation.language.names import Expression

# Two sides, with the dimensions of their free indices.
Fact = tuple["Expression", "Expression", dict[str, str]]


@dataclass
class Chances:
    """The random names of a scope, with what is declared of their distributions.

    `independent` are sets of names that are independent of each other, `apart` the
    names whose elements are, and `identical` those whose elements have one
    distribution. `means` and `variances` are equations, and so are `covariances`, of a
    vector and a matrix.
    """

    random: set[str] = field(default_factory=set)
    independent: list[frozenset[str]] = field(default_factory=list)
    apart: set[str] = field(default_factory=set)
    identical: set[str] = field(default_factory=set)
    means: list[Fact] = field(default_factory=list)
    variances: list[Fact] = field(default_factory=list)
    covariances: list[Fact] = field(default_factory=list)

    def are_independent(self, one: str, other: str) -> bool:
        """Whether two names are declared independent of each other."""
        return any({one, other} <= names for names in self.independent)
