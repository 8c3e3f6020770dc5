"""Pieces of a text, each of whose characters keeps its place in the source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backpass.derivation.language.brackets import CLOSING, OPENING, outside
from backpass.derivation.language.parse import Part, Unreadable


@dataclass(frozen=True)
class Text:
    """Characters, each with its place in the source."""

    characters: str
    origins: tuple[int, ...]

    def __getitem__(self, span: slice) -> Text:
        return Text(self.characters[span], self.origins[span])

    def __add__(self, other: Text) -> Text:
        """Join two texts by a space."""
        if not self.characters or not other.characters:
            return other if other.characters else self
        origins = (*self.origins, other.origins[0], *other.origins)
        return Text(f"{self.characters} {other.characters}", origins)

    def strip(self) -> Text:
        start = len(self.characters) - len(self.characters.lstrip())
        return self[start : len(self.characters.rstrip())]

    def replaced(self, pattern: re.Pattern[str], by: str = "") -> Text:
        """Return the text with each match replaced by a template, or by spaces if the
        template is empty."""
        matches = [*pattern.finditer(self.characters)]
        if not by:
            return self.blanked([match.span() for match in matches])
        return self.edited([(match.span(), match.expand(by)) for match in matches])

    def edited(self, edits: Sequence[tuple[tuple[int, int], str]]) -> Text:
        """Return the text with other characters in some places, which are in order."""
        found: list[str] = []
        origins: list[int] = []
        at = 0
        for (start, end), new in edits:
            found += [self.characters[at:start], new]
            origins += [*self.origins[at:start], *[self.origins[start]] * len(new)]
            at = end
        found.append(self.characters[at:])
        return Text("".join(found), (*origins, *self.origins[at:]))

    def split(
        self,
        sign: str,
        opening: tuple[str, ...] = OPENING,
        closing: tuple[str, ...] = CLOSING,
    ) -> list[Text]:
        """Split the text at a pattern outside all brackets."""
        pattern, start, pieces = re.compile(sign), 0, []
        for at in outside(self.characters, opening, closing):
            if match := pattern.match(self.characters, at):
                pieces.append(self[start:at])
                start = match.end()
        return [*pieces, self[start:]]

    def blanked(self, spans: list[tuple[int, int]]) -> Text:
        """Return the text with spaces in some places."""
        found = self.characters
        for start, end in spans:
            found = found[:start] + " " * (end - start) + found[end:]
        return Text(found, self.origins)

    def part(self, source: str) -> Passage:
        """Return the text as a piece of mathematics of the source."""
        text = self.strip()
        start = text.origins[0] if text.origins else (self.origins or (0,))[0]
        return Passage(source, start, text.characters, text.origins)


@dataclass(frozen=True)
class Passage(Part):
    """A piece of mathematics whose characters stand at `origins` of the source."""

    origins: tuple[int, ...] = ()

    def place(self, position: int) -> int:
        if not self.origins:
            return self.start
        last = len(self.origins) - 1
        return self.origins[min(position, last)] + (position > last)


def relocated(error: Unreadable, text: Text, source: str) -> Unreadable:
    """Return an error in a text as the same error at its place in the source."""
    start = (error.part.start if error.part else 0) + error.position
    origin = text.origins[min(start, len(text.origins) - 1)]
    return Unreadable(error.message, Part(source, origin, ""))
