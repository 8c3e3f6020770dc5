"""A drawing with holes, the numbers that a reader changes, and what fills the holes."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backpass.figures.movable.marks import ARROWHEADS
from backpass.figures.page import _check_words, _figure

HOLE = re.compile(r"\[([^\[\]:]+)(?::(\d))?\]")
ATTRIBUTE = re.compile(r' (?!data-)([\w-]+)="([^"]*\[[^"]*)"')
WORDS = re.compile(r"<text([^>]*)>([^<]*\[[^<]*)</text>")


@dataclass(frozen=True)
class Number:
    """A number that the reader changes, with its label in plain text, and its bounds.

    ``step`` is the change of one press of an arrow key; a handle moves in such steps.
    """

    name: str
    label: str
    value: float
    low: float
    high: float
    step: float


@dataclass(frozen=True)
class Movable:
    """A figure that the reader moves.

    ``values`` computes from the numbers, by name, what the holes of ``drawing`` show:
    numbers, lists of numbers, or texts. ``model`` is the same function in JavaScript.
    A hole is a sum of products of names and numbers, such as ``[y.0*-60+100]``, with
    the places after the point if it is a text: ``[y.0:2]``. ``alt`` describes the
    figure, and has holes too. ``size`` is the drawing's width and height in pixels, of
    which 320 fit a phone. ``columns`` is the number of boxes in a row.
    """

    name: str
    numbers: tuple[Number, ...]
    values: Callable[[Mapping[str, Any]], dict[str, Any]]
    model: str
    drawing: str
    size: tuple[int, int]
    alt: str
    columns: int = 5

    def first(self) -> dict[str, float]:
        """Return the numbers that the first frame shows."""
        return {number.name: number.value for number in self.numbers}

    def show(self, caption: str) -> None:
        """Display the figure with its caption; see ``backpass.figures.show``."""
        from IPython.display import HTML, display

        display(HTML(self.to_html(caption)))

    def script(self) -> str:
        """Return the statement that gives the page the model."""
        return f"(self.backpassFigures ??= {{}}).{self.name} = {self.model.strip()};"

    def to_html(self, caption: str) -> str:
        """Return the first frame, the boxes, the model, and the caption.

        Raises ValueError if ``caption`` is empty, and KeyError if a hole has a name
        that is neither a number of the figure nor one of its values.
        """
        _check_words("caption", caption)
        boxes = "".join(
            f"<label>{html.escape(number.label)}"
            f'<input type="number" autocomplete="off" name="{number.name}" '
            f'value="{number.value:g}" min="{number.low:g}" '
            f'max="{number.high:g}" step="{number.step:g}"></label> '
            for number in self.numbers
        )
        control = (
            f'<form class="movable-numbers" style="--columns: {self.columns}" hidden>'
            f'{boxes}<button type="reset">Reset</button></form>'
            f"<script>{self.script()}</script>"
        )
        shown = _figure(
            "backpass-figure backpass-movable", self._drawn(), caption, control
        )
        return shown.replace("<figure", f'<figure data-figure="{self.name}"', 1)

    def _drawn(self) -> str:
        width, height = self.size
        first = self.first()
        values = first | self.values(first)
        style = (
            f"display: block; width: 100%; max-width: {width / 77:.2f}in; margin: auto"
        )
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="{self.alt}" fill="currentColor" style="{style}">'
            f"{ARROWHEADS.replace('NAME', self.name)}"
            '<g style="font: 12px system-ui, sans-serif;">'
            f"{self.drawing.replace('#NAME', '#' + self.name)}</g></svg>"
        )
        svg = WORDS.sub(r'<text\1 data-set-text="\2">\2</text>', svg)
        svg = ATTRIBUTE.sub(r' \1="\2" data-set-\1="\2"', svg)
        # Fill what is shown, and leave the holes in what the script reads.
        parts = re.split(r'( data-set-[\w-]+="[^"]*")', svg)
        return "".join(
            part if part.startswith(" data-set-") else fill(part, values)
            for part in parts
        )


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return the template with each hole filled from ``values``."""
    return HOLE.sub(lambda match: _filled(match[1], match[2], values), template)


def _filled(terms: str, places: str | None, values: Mapping[str, Any]) -> str:
    if "*" not in terms and "+" not in terms and isinstance(_value(terms, values), str):
        return str(_value(terms, values))
    total = sum(
        math.prod(_value(factor, values) for factor in product.split("*"))
        for product in terms.split("+")
    )
    if places is None:
        return f"{round(total, 2) + 0:g}"
    text = f"{total:.{places}f}"
    return text.replace("-", "" if float(text) == 0 else "−")


def _value(name: str, values: Mapping[str, Any]) -> Any:
    try:
        return float(name)
    except ValueError:
        found: Any = values
        for key in name.split("."):
            found = found[int(key)] if key.isdigit() else found[key]
        return found
