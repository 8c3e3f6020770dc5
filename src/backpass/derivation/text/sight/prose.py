"""What the prose of a text says of names: shapes, kinds, and dependence."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.language.written import canonical, subscripts_of
from backpass.derivation.text.contents import Aside, Document
from backpass.derivation.text.displays import Display
from backpass.derivation.text.passages import Text
from backpass.derivation.text.sentences import is_conditional, states_condition

_INLINE = re.compile(
    r"(?<![\\$])\$(?!\$)(?P<dollar>[^$]{1,300}?)(?<!\\)\$(?!\$)"
    r"|\\\((?P<bracket>.{1,300}?)\\\)|:math:`(?P<role>[^`]{1,300})`",
    re.S,
)
_COMMENT = re.compile(r"<!--.*?-->|(?m:^[ \t]*%.*$)|(?m:^[ \t]*\.\. derive:.*$)", re.S)
_ASSIGNS = re.compile(r":\s*=|\\(?:coloneqq?|triangleq)(?![a-zA-Z])")
_NO_PART = re.compile(r"\\limits(?![a-zA-Z])|[.,;]\s*\Z")  # of an equation
_BRACED = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_REALS = r"(?:\\(?:mathbb|mathbf|mathrm|mathcal|bf|Bbb)\s*(?:\{\s*R\s*\}|R)|\\Re|\\R|ℝ)"
MEMBER = re.compile(
    rf"\\in(?![a-zA-Z])\s*(?:{_REALS})(?![a-zA-Z])(?P<sign>_\s*(?:{_BRACED}|\+))?"
    rf"(?:\s*\^\s*(?P<power>{_BRACED}|\w|\\[a-zA-Z]+))?(?P<late>_\s*(?:{_BRACED}|\+))?"
)
_BY = re.compile(r"\\times|×|\\,\s*\\times|\\by")
_NAMES = r"\$[^$]{1,40}\$(?:\s*(?:,|and|, and|or)\s*\$[^$]{1,40}\$)*"
_KINDS = {"scalar": 0, "number": 0, "vector": 1, "matrix": 2}
_KIND = r"(?P<kind>scalar|vector|matrix)"
_KINDS_OF = r"(?P<kind>scalar|vector|matri(?:x|ce))"
_BEFORE = re.compile(rf"\b{_KINDS_OF}s?\s+(?P<names>{_NAMES})", re.I)
_AFTER = re.compile(
    rf"(?P<names>{_NAMES})\s+(?:is|are|be|denotes?|being)(?:\s+(?:an?|the|some))?"
    rf"(?:\s+[\w-]+|\s*\$[^$]{{1,40}}\$){{0,3}}?[\s-]+(?P<kind>scalar|vector|matri(?:x|ce)|real number)",
    re.I,
)
# Words before an equation that holds in one case only.
_SUPPOSED = re.compile(
    r"\b(?:if|when|whenever|for|at|case|unless|assum\w+|suppose|setting|until|while|iff)\s*\Z",
    re.I,
)
# Words for what depends on other names.
_DERIVED = (
    r"(?:mean|average|variance|deviation|norm|outputs?|activations?|predictions?|residuals?"
    r"|errors?|logits?|probabilit(?:y|ies)|estimates?|functions?|solution|minimi[sz]er|sum"
    r"|normali[sz]ed|rms|scores?|states?|gradients?|pre-activations?)"
)
_DERIVED_BEFORE = re.compile(
    rf"\b{_DERIVED}\s+(?:vectors?\s+|matrix\s+)?(?P<names>{_NAMES})", re.I
)
_DERIVED_AFTER = re.compile(
    rf"(?P<names>{_NAMES})\s+(?:is|are|be|denotes?|being)\b[^.$]{{0,60}}?\b{_DERIVED}\b",
    re.I,
)
# Words for what depends on nothing.
_FREE = re.compile(
    rf"(?P<names>{_NAMES})\s+(?:is|are)\s+(?:(?!of\b|by\b|from\b|in\b|not\b)[\w-]+\s+){{0,4}}?"
    r"(?:parameters?|weights?|bias(?:es)?|constants?|hyper-?parameters?)\b",
    re.I,
)
# Words that restrict the values of some name.
_RESTRICTING = re.compile(
    r"\b(?:one-?hot|binary|orthogonal|orthonormal|symmetric|diagonal|unit|stochastic"
    r"|projection|idempotent|constrain\w*|subject to|such that|sums? to|assum\w*|suppose"
    r"|labels?|distributions?|if|when|where|centred|centered|minim\w*|optim\w*|stationary)\b",
    re.I,
)


@dataclass(frozen=True)
class Stated:
    """What the text says of a name: its sides if these are stated, otherwise its rank;
    and the words, with their line. `indexed` says whether it is said of an element."""

    name: str
    rank: int
    sides: tuple[str, ...] | None
    words: str
    line: int
    indexed: bool = False
    positive: bool = False


@dataclass(frozen=True)
class Prose:
    """What prose says: shapes, equations, names that depend on others, and whether some
    words may restrict values, or say that some name depends on others."""

    stated: tuple[Stated, ...]
    equations: tuple[Text, ...]
    supposed: tuple[Text, ...]  # equations that hold in one case only
    dependent: frozenset[str]
    derived: frozenset[str]  # those that words such as "output" stand beside
    restricting: bool
    deriving: bool
    words: str


def prose_of(document: Document) -> Prose:
    """Read the prose of a document."""
    text = _without_displays(document)
    stated: list[Stated] = []
    dependent: set[str] = set()
    origins = document.expanded.origins
    formulas = [*_INLINE.finditer(text)]
    equations: list[Text] = []
    supposed: list[Text] = []
    for match in formulas:
        inside = match[match.lastgroup or 0]
        line = document.line(origins[match.start()])
        stated += memberships(inside, line)
        dependent.update(_heads(inside))
        if "=" in inside or _ASSIGNS.search(inside):
            before = text[max(match.start() - 400, 0) : match.start()]
            is_supposed = (
                _SUPPOSED.search(before)
                or states_condition(before)
                or is_conditional(before)
            )
            (supposed if is_supposed else equations).append(
                document.expanded[slice(*match.span(match.lastgroup or 0))]
                .replaced(_ASSIGNS, "=")
                .replaced(_NO_PART)
            )
    for pattern in (_BEFORE, _AFTER):
        for match in pattern.finditer(text):
            kind = match["kind"].lower().replace("matrice", "matrix")
            rank = _KINDS[kind.removeprefix("real ")]
            line = document.line(origins[match.start()])
            for name, indexed in _named(match["names"]):
                words = " ".join(match[0].split())
                stated.append(Stated(name, rank, None, words, line, indexed))
    derived: set[str] = set()
    for pattern in (_DERIVED_BEFORE, _DERIVED_AFTER):
        for match in pattern.finditer(text):
            derived |= {name for name, _ in _named(match["names"])}
    for match in _FREE.finditer(text):
        derived -= {name for name, _ in _named(match["names"])}
    words = _INLINE.sub(" ", text)
    return Prose(
        tuple(stated),
        tuple(equations),
        tuple(supposed),
        frozenset(dependent | derived),
        frozenset(derived),
        bool(_RESTRICTING.search(words)),
        re.search(rf"\b{_DERIVED}s?\b", words, re.I) is not None,
        words,
    )


def matrices_of(document: Document, prose: Prose) -> set[str]:
    """Return the names that a text states to be matrices, also in its displays."""
    shown = (
        one
        for item in document.items
        for row in (item.rows if isinstance(item, Display) else ())
        for one in memberships(row.characters, 0)
    )
    return {one.name for one in (*prose.stated, *shown) if one.rank > 1}


def memberships(formula: str, line: int) -> Iterator[Stated]:
    """Yield the shapes that a formula states, as in x \\in \\mathbb{R}^n."""
    at = 0
    for match in MEMBER.finditer(formula):
        before = formula[at : match.start()]
        at = match.end()
        power = (match["power"] or "").strip()
        if power.startswith("{"):
            power = power[1:-1]
        sides = (
            tuple("".join(side.split()) for side in _BY.split(power)) if power else ()
        )
        sign = (match["sign"] or match["late"] or "").replace(" ", "")
        for written in re.split(r",|\\text\s*\{[^{}]*\}|\\quad|\\;|\\qquad", before):
            for name, indexed in _name(written):
                words = " ".join(f"{written.strip()} {match[0]}".split())
                positive = sign in ("_{>0}", "_{++}")
                rank = sum(side != "1" for side in sides)
                yield Stated(name, rank, sides, words, line, indexed, positive)


def _without_displays(document: Document) -> str:
    """Return the text, with its macros expanded and its displays blank."""
    text, origins = document.expanded.characters, document.expanded.origins
    for item in document.items:
        one = item.display if isinstance(item, Aside) else item
        if isinstance(one, Display):
            first, last = (bisect_left(origins, at) for at in (one.start, one.end))
            text = text[:first] + " " * (last - first) + text[last:]
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _named(written: str) -> Iterator[tuple[str, bool]]:
    for formula in re.findall(r"\$([^$]*)\$", written):
        for one in formula.split(","):
            yield from _name(one)


def _name(written: str) -> Iterator[tuple[str, bool]]:
    """Yield the name that a formula consists of, and whether it has an index."""
    text = written.strip().strip(".,;: ")
    try:
        tree = parse(Part(text, 0, text), "moved")
    except Unreadable:
        return
    indices = subscripts_of(tree)
    if indices and all(len(one) == 1 and one.isalpha() for one in indices):
        yield canonical(tree).rpartition("_")[0], True
    else:
        yield canonical(tree), False


def _heads(formula: str) -> Iterator[str]:
    """Yield the names that a formula gives a value, or a set of values."""
    sides = re.split(
        r"=|\\(?:equiv|triangleq|sim|coloneqq|mapsto|to|leftarrow)(?![a-zA-Z])|:",
        formula,
    )
    names = [name for side in sides[:-1] for name, _ in _name(side.partition("(")[0])]
    if r"\in" in formula and not MEMBER.search(formula):
        names += [name for name, _ in _name(formula.partition(r"\in")[0])]
    yield from names
