"""What a text contains: displays, headings, and definitions in comments."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from backpass.derivation.language.parse import Part, Unreadable
from backpass.derivation.text.displays import Display
from backpass.derivation.text.passages import Passage, Text


@dataclass(frozen=True)
class Comment:
    """The definitions in a comment, each as one text. `open` says whether it has no
    end."""

    directives: tuple[Text, ...]
    start: int
    open: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading; `level` is 1 for the highest."""

    level: int
    start: int


Item = Comment | Heading | Display


@dataclass(frozen=True)
class Document:
    """A text, and its displays, headings and comments.

    `cells` are the lines on which a notebook's cells begin, each with the cell's
    number. `expanded` is the text with its macros expanded. `faults` are the reasons
    why a macro was not, by the place of its use. `unseen` is what may have mathematics
    and is not looked at: the line, and what it is.
    """

    source: str
    items: tuple[Item, ...]
    cells: tuple[tuple[int, int], ...]
    expanded: Text
    faults: dict[int, str] = field(default_factory=dict)
    unseen: tuple[tuple[int, str], ...] = ()

    def line(self, start: int) -> int:
        """Return the number of the line in which a place is."""
        return self.source.count("\n", 0, start) + 1

    def line_of(self, text: Text) -> int:
        """Return the number of the line on which a text begins; 0 if it is empty."""
        return self.line(text.origins[0]) if text.origins else 0

    def written(self, start: int, end: int) -> str:
        """Return what stands between two places, with its macros expanded."""
        first, last = (bisect_left(self.expanded.origins, at) for at in (start, end))
        return self.expanded.characters[first:last]

    def explained(self, error: Unreadable) -> str:
        """Return an error's message, or the reason if it shows a macro that was not
        expanded."""
        part = error.part
        if part is not None:
            at = part.start
            if isinstance(part, Passage) and part.origins:
                at = part.origins[min(error.position, len(part.origins) - 1)]
            if at in self.faults:
                return str(Unreadable(self.faults[at], Part(self.source, at, "")))
        return str(error)

    def where(self, line: int) -> str:
        """Return where a line is, in words, for a sentence."""
        return self.place(line) if self.cells else f"line {self.place(line)}"

    def place(self, line: int) -> str:
        """Return where a line is: its number, or in a notebook the numbers of its cell
        and of the line in the cell."""
        for first, number in reversed(self.cells):
            if first <= line:
                return f"cell {number}, line {line - first + 1}"
        return str(line)
