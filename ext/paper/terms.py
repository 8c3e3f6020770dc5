"""The index: the operations, the methods of checking, the terms that a page introduces in italics, and short titles.

Each is noted where a page has it first. An operation's main entry is the derivation that is bound to it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

WORDS = re.compile(r"[A-Za-z][\w'‑-]*( [\w’'‑-]+){0,3}")
MOST = 5  # words of a title in the index
# Words in italics or in bold that stress and do not introduce, or that are labels of a figure or of a column.
STRESSED = frozenset(
    "activations' added all always averaged because before beside both compiled error every exactly expected exploding "
    "factor first forward gradients hides identical last layer long longer math memory mixed model model's must normal "
    "one our output outputs padded parts pieces plans products products' projected queries query rate requires same "
    "scale scaled scores settled smaller solution spread static student stuck sum summed telling tied ties time "
    "tokens turned twice unchanged usual values varied weights wrong zero".split()
)
# What opens a sentence or names one of the texts that the book judges; the names of wrong backwards.
NO_TERM = re.compile(
    r"([Tt]he|an?|in) |plans |read it |quantise |compute |many |[Oo]urs?\b|\w*[a-z][A-Z]\w*[a-z][A-Z]|([A-Z][a-z]+){2,}$"
)
ARTICLE = re.compile(r"^(A|An|The) ")
# Titles that a reader would not look up.
SENTENCE = re.compile(
    r"(What|Where|Which|Why|When|Who|How|Whether|With|Without|From|Through|To|In|On|By|If|Is|Two|Three|Four|Five|Six|Ten"
    r"|Other|Nothing|Running|Mistake|Measured|Once|Several|Many|Every|Each|One|More|Your|Side|Beside)\b|.*[?]"
)


@dataclass
class Entry:
    """A term, the labels of the places that have it, and the labels of the places about it."""

    term: str
    is_code: bool = False
    places: list[str] = field(default_factory=list)
    main: list[str] = field(default_factory=list)


class Index:
    """The terms that were found so far."""

    def __init__(self, stems: Collection[str] = (), methods: Collection[str] = ()) -> None:
        self.entries: dict[str, Entry] = {}
        self.stems = frozenset(stems)
        self.titles: list[tuple[str, str]] = []
        self.count = 0
        names = "|".join(sorted(map(re.escape, methods), key=len, reverse=True))
        self.methods = re.compile(rf"(?<!\w)(?:{names})(?!\w)", re.IGNORECASE) if methods else None
        self.seen: set[tuple[str, str]] = set()

    def _entry(self, term: str, is_code: bool = False) -> Entry:
        return self.entries.setdefault(f"{term}{is_code}", Entry(term, is_code))

    def _first(self, term: str, page: str, is_code: bool = False) -> str | None:
        """A new label for the term, if this is the first place on the page that has it."""
        if (term, page) in self.seen:
            return None
        self.seen.add((term, page))
        self.count += 1
        name = f"index-{self.count}"
        self._entry(term, is_code).places.append(name)
        return name

    def term(self, words: str, page: str) -> str | None:
        """The label for words in italics or in bold, if they are a term."""
        words = words.replace("’", "'")
        if words.endswith((".", ":")) or NO_TERM.match(words):
            return None  # it opens a paragraph, or names a text
        if not WORDS.fullmatch(words) or words.lower() in STRESSED or len(words) < 4:
            return None
        return self._first(words if words[1:] != words[1:].lower() else words.lower(), page)

    def stem(self, words: str, page: str) -> str | None:
        """The label for code, if it is the name of an operation."""
        return self._first(words, page, is_code=True) if words in self.stems else None

    def method(self, words: str, page: str) -> tuple[int, str] | None:
        """Where in the words a method of checking is named for the first time on the page, and its label."""
        for match in self.methods.finditer(words) if self.methods else ():
            if name := self._first(
                match[0].lower().replace("pytorch", "PyTorch").replace("triton", "Triton"), page
            ):
                return match.start(), name
        return None

    def derived(self, stem: str) -> str | None:
        """A new label for a derivation of the operation."""
        if stem not in self.stems:
            return None
        self.count += 1
        self._entry(stem, True).main.append(f"index-{self.count}")
        return f"index-{self.count}"

    def heading(self, title: str, name: str) -> None:
        """Note a title."""
        self.titles.append((" ".join(title.split()), name))

    def sorted(self) -> list[Entry]:
        """All entries by letter. A title is one if it is short and no other section has it."""
        times = Counter(title for title, _ in self.titles)
        for title, name in self.titles:
            if times[title] == 1 and len(title.split()) <= MOST and not SENTENCE.match(title):
                term = ARTICLE.sub(lambda match: "", title)
                self._entry(term[0].upper() + term[1:] if term else title).main.append(name)
        merged: dict[tuple[str, bool], Entry] = {}
        for entry in self.entries.values():
            kept = merged.setdefault((entry.term.lower(), entry.is_code), Entry(entry.term, entry.is_code))
            kept.places += entry.places
            kept.main += entry.main
        return sorted(merged.values(), key=lambda entry: (entry.term.lower().lstrip("_"), entry.is_code))
