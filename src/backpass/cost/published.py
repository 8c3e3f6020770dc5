"""The formulas for FLOPs and memory that papers and tools print, as data.

Each ``Formula`` stores the expression as its source groups it, in this project's
letters, and what it claims to count. ``formula.at(b=…, s=…)`` evaluates it exactly, and
``formula.symbolic()`` returns it in SymPy's symbols. ``backpass.cost.mistakes`` shows
where formulas in use are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backpass.cost.printed import (
    LETTERS,
    Printed,
    contents_of,
    records,
    symbolic,
    value,
)

__all__ = ["FORMULAS", "LETTERS", "Formula", "named", "symbolic", "value"]


@dataclass(frozen=True)
class Formula(Printed):
    """One published formula, and what it claims to count."""

    name: str
    says: str  # in one line
    text: str  # the publication or the file
    place: str  # in it; "" if the text is one place
    expression: str  # grouped as the source groups it
    counts: str = "step"  # or "forward", "backward"; "" for memory and parameters
    per: str = "step"  # or "token", "sequence", "layer"
    unit: str = "FLOPs"  # or "bytes", "parameters"
    attention: str = "whole"  # or "half", if causal; "none" if not counted
    embedding: str = "no"  # the token lookup: "no", "as a product", or "in N"
    head: bool = True  # whether the output head's product is counted
    recomputed: str = "nothing"  # or "layers", "attention"

    @property
    def citation(self) -> str:
        """The text and the place."""
        return ", ".join(filter(None, (self.text, self.place)))


def named(name: str) -> Formula:
    """Return the formula of that name. Raises LookupError if there is none."""
    for formula in FORMULAS:
        if formula.name == name:
            return formula
    raise LookupError(f"{name}: expected one of {', '.join(f.name for f in FORMULAS)}")


_CONTENTS = contents_of(Path(__file__).with_name("published.toml"))
FORMULAS = records(Formula, _CONTENTS, "formulas")
