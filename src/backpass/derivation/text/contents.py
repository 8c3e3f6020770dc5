"""What a text contains: displays, headings, and definitions in comments."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field

from backpass.derivation.language.parse import Part, Unreadable
from backpass.derivation.text.displays import Display
from backpass.derivation.text.parts import Piece
from backpass.derivation.text.passages import Passage, Text

_POINTER = re.compile(r"^    (\d+): ", re.M)


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


@dataclass(frozen=True)
class Aside:
    """A display that states a condition within a sentence, and claims nothing."""

    display: Display

    @property
    def start(self) -> int:
        """Where it begins."""
        return self.display.start


Item = Comment | Heading | Display | Aside


@dataclass(frozen=True)
class Document:
    """A text, and its displays, headings and comments.

    `cells` are the lines on which a notebook's cells begin, each with the cell's
    number. `expanded` is the text with its macros expanded. `faults` are the reasons
    why a macro was not, by the place of its use. `unseen` is what may have mathematics
    and is not looked at: the line, and what it is. `pieces` say which lines are those
    of files that the text includes.
    """

    source: str
    items: tuple[Item, ...]
    cells: tuple[tuple[int, int], ...]
    expanded: Text
    faults: dict[int, str] = field(default_factory=dict)
    unseen: tuple[tuple[int, str], ...] = ()
    pieces: tuple[Piece, ...] = ()

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
                error = Unreadable(self.faults[at], Part(self.source, at, ""))
        return _POINTER.sub(self._numbered, str(error)) if self.pieces else str(error)

    def _numbered(self, pointer: re.Match[str]) -> str:
        """Return a line that is shown, with its number in its file."""
        _, line = self.file_and_line(int(pointer[1]))
        return f"    {line:>{len(pointer[1])}}: "

    def file_and_line(self, line: int) -> tuple[str, int]:
        """Return the file of a line, or "" for the main one, and its number there."""
        for piece in reversed(self.pieces):
            if piece.first <= line:
                name = "" if piece.name == self.pieces[0].name else piece.name
                return name, line - piece.first + piece.line
        return "", line

    def where(self, line: int) -> str:
        """Return where a line is, in words, for a sentence."""
        if self.pieces:
            name, number = self.file_and_line(line)
            return f"{name}, line {number}" if name else f"line {number}"
        return self.place(line) if self.cells else f"line {self.place(line)}"

    def place(self, line: int) -> str:
        """Return where a line is: its number, with the name of a file that the text
        includes, or in a notebook the numbers of its cell and of the line in the cell.
        """
        if self.pieces:
            name, number = self.file_and_line(line)
            return f"{name}:{number}" if name else str(number)
        for first, number in reversed(self.cells):
            if first <= line:
                return f"cell {number}, line {line - first + 1}"
        return str(line)
