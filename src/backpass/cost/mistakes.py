"""Mistakes that recur in formulas for FLOPs and memory, each with a place where it is
made, reported, or discussed: what the usual formula says, and what is right.

FLOPs here are those of matrix products, 2mnp each, as the usual formulas count them.
The tests derive each right number a second time, by running the products on PyTorch's
meta device under its FLOP counter, or by adding the bytes that autograd saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from backpass.cost.printed import contents_of, records, symbolic, value


class Compared(NamedTuple):
    """What the usual formula gives at some lengths, and what is right."""

    usual: Any
    right: Any


@dataclass(frozen=True)
class Mistake:
    """One mistake: its formula, and the right formula for the same network."""

    name: str
    says: str  # what the usual formula says
    truth: str  # what is right
    citation: str
    usual: str
    right: str
    unit: str = "FLOPs"

    def at(self, **lengths: Any) -> Compared:
        """Evaluate both formulas exactly: see ``printed.value``. Raises ValueError
        for a window of more keys than the sequence has."""
        from sympy import sympify

        found = Compared(value(self.usual, **lengths), value(self.right, **lengths))
        letters = {letter.name for letter in symbolic(self.right).free_symbols}
        if "w" in letters and sympify(lengths["w"] - lengths["s"]).is_positive:
            raise ValueError(
                f"w: expected at most s = {lengths['s']}; got {lengths['w']}"
            )
        return found


_CONTENTS = contents_of(Path(__file__).with_name("mistakes.toml"))
MISTAKES = records(Mistake, _CONTENTS, "mistakes")
