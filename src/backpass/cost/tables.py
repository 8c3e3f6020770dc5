"""Show what an operation costs in a table: the formula, its value, and the count."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from backpass.cost.counted import Cost, count
from backpass.cost.formulas import Flops, dimensions, formula, latex, symbolic_formula
from backpass.cost.inputs import load
from backpass.cost.shown import Sheet, Shown, typeset
from backpass.text.table import Cell


@dataclass(frozen=True, repr=False)
class Table(Shown):
    """The formulas of one operation at one set of shapes, compared with the counts."""

    cost: Cost
    value: Flops
    text: Flops  # the formulas as SymPy prints them, for a terminal
    latex: Flops  # the formulas in LaTeX, for a page
    lengths: dict[str, int]
    wanted: tuple[str, ...] | None = None  # the gradients, if not all

    @property
    def agrees(self) -> bool:
        """Whether both formulas equal the counts."""
        return self.value == self._counts

    @property
    def title(self) -> str:
        """The name of the operation, and the lengths."""
        lengths = ", ".join(
            f"{letter} = {int(value):,}" for letter, value in self.lengths.items()
        )
        title = f"{self.cost.name} at {lengths}" if lengths else self.cost.name
        if self.wanted is None:
            return title
        return f"{title}; gradients wanted: {', '.join(self.wanted) or 'none'}"

    @property
    def _counts(self) -> Flops:
        return Flops(self.cost.forward.total, self.cost.backward.total)

    def _rows(self, formulas: Flops) -> list[tuple[str, str, str, str, str]]:
        columns = zip(Flops._fields, formulas, self.value, self._counts, strict=True)
        rows = [
            (f"{way} FLOPs", text, f"{n:,}", f"{m:,}", "=" if n == m else "≠")
            for way, text, n, m in columns
        ]
        ratios = _ratio(self.value), _ratio(self._counts)
        rows.append(("backward ÷ forward", "", *ratios, ""))
        arrays = [str(x) for x in self.cost.memory.arrays if not x.is_parameter]
        kept = ", ".join(arrays) or "no activations"
        rows.append(("saved bytes", kept, "", f"{self.cost.saved_bytes:,}", ""))
        return rows

    def _in_text(self) -> Sheet:
        headings = ("", "formula", "value", "counted", "")
        return Sheet(self.title, headings, self._rows(self.text), right=(2, 3))

    def _in_page(self) -> Sheet:
        formulas = (rf"\({html.escape(formula)}\)" for formula in self.latex)
        rows = [*map(_in_page, self._rows(Flops(*formulas)))]
        headings = ("quantity", "formula", "value", "counted")
        return Sheet(self.title, headings, rows, label=f"Cost of {self.title}")


def table(op: object, *inputs: object, **options: object) -> Table:
    """Count the operation and evaluate its formulas at the same inputs.

    The arguments are those of ``count``.
    """
    op = load(op)
    lengths = dimensions(op, *inputs, **options)
    known: dict[str, Any] = {
        key: lengths.pop(key)
        for key in [*lengths]
        if key.startswith("has_") or key in options
    }
    return Table(
        cost=count(op, *inputs, **options),
        value=formula(op, *inputs, **options),
        text=Flops(*map(str, symbolic_formula(op, **known))),
        latex=latex(op, **known),
        lengths=lengths,
        wanted=None if known.get("wanted") is None else tuple(known["wanted"]),
    )


def _ratio(flops: Flops) -> str:
    return f"{flops.backward / flops.forward:.4g}" if flops.forward else "–"


def _in_page(row: tuple[str, str, str, str, str]) -> tuple[str | Cell, ...]:
    quantity, formula, value, counted, mark = row
    shown = f"{counted} {'✓' if mark == '=' else '✗ differs' if mark else ''}".strip()
    return quantity, typeset(formula), value, shown
