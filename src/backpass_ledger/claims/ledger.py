"""The texts whose claims are judged, and their claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

from backpass_ledger.claims.record import Claim, claims_of


@dataclass(frozen=True)
class Text:
    """A text whose claims are judged. Its page is ``chapters/claims/<stem>.md``, and
    each of its parts is a module of ``backpass_ledger.claims.<stem>``."""

    letter: str  # of its claims' numbers
    stem: str
    name: str  # in a sentence
    citation: str  # the key in references.bib, "" for several texts

    @property
    def titles(self) -> dict[str, str]:
        """The title of each part by its name, in the text's order. The titles are ours,
        and the headings of the page."""
        return import_module(f"backpass_ledger.claims.{self.stem}").PARTS

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its parts, in the text's order."""
        return tuple(self.titles)

    def part(self, name: str) -> list[Claim]:
        """Return the claims of one part. Raises ValueError for an unknown part."""
        if name not in self.parts:
            raise ValueError(
                f"part: expected one of {', '.join(self.parts)}; got {name!r}"
            )
        module = import_module(f"backpass_ledger.claims.{self.stem}.{name}")
        return list(_claims(module, module.CLAIMS))

    def claims(self) -> list[Claim]:
        """Return all claims of the text, in its order."""
        return [claim for name in self.parts for claim in self.part(name)]


@cache
def _claims(module: ModuleType, table: str) -> tuple[Claim, ...]:
    """Return the claims of a module with this table. They are cached, because reading
    them takes longer than many of their checks."""
    return tuple(claims_of(module))


TEXTS = (
    Text("G", "gpt2_post", "the GPT-2 FLOPs post", "post2024gpt2"),
    Text("T", "thesis", "the thesis", "barbato2025cost"),
    Text("N", "trace_notes", "the trace-form notes", "notes2024traceform"),
    Text("F", "gradient_flow_post", "the gradient-flow post", "post2024gradientflow"),
    Text("W", "twice_note", "the 2× note", "note2024twice"),
    Text("U", "usual", "claims that recur", ""),
)


def text(stem: str) -> Text:
    """Return the text with this stem. Raises ValueError if there is none."""
    for found in TEXTS:
        if found.stem == stem:
            return found
    raise ValueError(
        f"text: expected one of {', '.join(t.stem for t in TEXTS)}; got {stem!r}"
    )


def text_of(claim: Claim) -> Text:
    """Return the text that makes a claim."""
    return next(found for found in TEXTS if found.letter == claim.name[0])


@cache
def by_page() -> dict[str, list[Claim]]:
    """Return the claims of all texts by the chapter that has the right derivation."""
    found: dict[str, list[Claim]] = {}
    for claim in every():
        found.setdefault(claim.page, []).append(claim)
    return found


def every() -> Iterator[Claim]:
    """Go through the claims of all texts."""
    for found in TEXTS:
        yield from found.claims()
