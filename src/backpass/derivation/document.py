"""Find the displayed mathematics of a text, and the definitions in its comments.

A text is Markdown, LaTeX or a notebook. Its macros are expanded. Each character of what
is found keeps its place in the text, also where something before it (an alignment, a
label) is removed; what a macro expands to has the place of its use.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from backpass.derivation.language.parse import Part, Unreadable
from backpass.derivation.text.decorations import BRACED, decorations, framed
from backpass.derivation.text.macros import Expander

FORMS = ("markdown", "latex", "notebook")


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
        found: list[str] = []
        origins: list[int] = []
        at = 0
        for match in pattern.finditer(self.characters):
            start, end = match.span()
            new = match.expand(by) if by else " " * (end - start)
            found += [self.characters[at:start], new]
            origins += self.origins[at:start]
            origins += (
                [self.origins[start]] * len(new) if by else self.origins[start:end]
            )
            at = end
        found.append(self.characters[at:])
        return Text("".join(found), (*origins, *self.origins[at:]))

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

    def pointer(self, position: int) -> str:
        at = self.start
        if self.origins:
            last = len(self.origins) - 1
            at = self.origins[min(position, last)] + (position > last)
        return Part(self.source, at, "").pointer(0)


@dataclass(frozen=True)
class Comment:
    """The definitions in a comment, each as one text."""

    directives: tuple[Text, ...]
    start: int


@dataclass(frozen=True)
class Heading:
    """A heading; `level` is 1 for the highest."""

    level: int
    start: int


@dataclass(frozen=True)
class Display:
    """A display: its rows as written, without commands that print nothing or a number.

    `starts` says for each row whether it begins with an alignment.
    """

    rows: tuple[Text, ...]
    starts: tuple[bool, ...]
    joined: bool  # whether all rows are one formula, as in multline
    start: int
    end: int


Item = Comment | Heading | Display


@dataclass(frozen=True)
class Document:
    """A text, and its displays, headings and comments.

    `cells` are the lines on which a notebook's cells begin, each with the cell's
    number. `expanded` is the text with its macros expanded. `faults` are the reasons
    why a macro was not, by the place of its use.
    """

    source: str
    items: tuple[Item, ...]
    cells: tuple[tuple[int, int], ...]
    expanded: Text
    faults: dict[int, str] = field(default_factory=dict)

    def line(self, start: int) -> int:
        """Return the number of the line in which a place is."""
        return self.source.count("\n", 0, start) + 1

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

    def place(self, line: int) -> str:
        """Return where a line is, in words: its number, or in a notebook the numbers of
        its cell and of the line in the cell."""
        for first, number in reversed(self.cells):
            if first <= line:
                return f"cell {number}, line {line - first + 1}"
        return str(line)


def form_of(name: str, source: str) -> str:
    """Return the form of a text, from the ending of its name or from its contents."""
    for ending, form in (
        (".md", "markdown"),
        (".markdown", "markdown"),
        (".tex", "latex"),
        (".latex", "latex"),
        (".ipynb", "notebook"),
    ):
        if name.lower().endswith(ending):
            return form
    if source.lstrip().startswith("{") and '"cells"' in source:
        return "notebook"
    is_latex = re.search(
        r"\\documentclass|\\begin\{document\}|^\s*%\s*derive:", source, re.M
    )
    return "latex" if is_latex else "markdown"


def read_document(source: str, form: str, preamble: str = "") -> Document:
    """Find the displays, headings and definitions of a text.

    `preamble` is a text whose macros also apply here. Raises `ValueError` for
    a notebook that cannot be read.
    """
    cells: tuple[tuple[int, int], ...] = ()
    if form == "notebook":
        source, cells = _of_notebook(source)
    scanner = _LATEX if form == "latex" else _MARKDOWN
    expander = Expander()
    expander.expand(preamble)
    expander.grouped = form == "latex"
    expander.faults.clear()
    text = _usual(Text(*expander.expand(_without_code(source, scanner))))
    items = tuple(_continued(_items(text, len(source), scanner), source))
    return Document(source, items, cells, text, expander.faults)


def directives(source: str) -> tuple[Text, ...]:
    """Return the definitions in a text of definitions, with its macros expanded."""
    return _directives(_usual(Text(*Expander().expand(source))))


def _directives(text: Text) -> tuple[Text, ...]:
    """Split definitions at the ends of lines and at semicolons."""
    found = []
    for match in re.finditer(r"(?:\\.|[^;\n\\])+", text.characters):
        directive = text[slice(*match.span())].strip()
        if directive.characters:
            found.append(directive)
    return tuple(found)


def _of_notebook(source: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the Markdown cells as one text, with the line on which each begins."""
    try:
        cells = json.loads(source)["cells"]
        texts = [
            (number, "".join(cell["source"]))
            for number, cell in enumerate(cells, start=1)
            if cell["cell_type"] == "markdown"
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"expected a notebook; {type(error).__name__}: {error}"
        ) from None
    joined, places = "", []
    for number, text in texts:
        places.append((joined.count("\n") + 1, number))
        joined += f"{text}\n\n"
    return joined, tuple(places)


# ---- scanning ------------------------------------------------------------------------

_ENVIRONMENTS = (
    r"equation|align|gather|multline|eqnarray|flalign|alignat|displaymath|math"
)
_DISPLAYS = rf"""
    (?<!\\)\$\$(?P<dollars>.*?)(?<!(?<!\\)\\)\$\$
  | ^[ \t]*\\\\\[(?P<escaped>.*?)\\\\\]
  | (?<!\\)\\\[(?P<brackets>.*?)(?<!\\)\\\]
  | \\begin\{{(?P<environment>(?:{_ENVIRONMENTS})\*?)\}}(?P<body>.*?)\\end\{{(?P=environment)\}}
"""
_FLAGS = re.S | re.M | re.X
_MARKDOWN = re.compile(
    rf"""
    ^(?P<fence>[ \t]*(?P<ticks>`{{3,}}|~{{3,}}))[ \t]*(?P<info>[^\n]*)\n(?P<fenced>.*?)
        (?:^[ \t]*(?P=ticks)[ \t]*$|\Z)
  | <!--[ \t]*derive:(?P<comment>.*?)-->
  | <!--.*?-->
  | (?P<code>`+)(?!`).+?(?<!`)(?P=code)(?!`)
  | ^(?P<heading>\#{{1,6}})[ \t]
  | {_DISPLAYS}
    """,
    _FLAGS,
)
_PERCENT = r"(?:(?<!\\)|(?<=(?<!\\)\\\\))%"  # a comment starts at % and \\%, not at \%
_LATEX = re.compile(
    rf"""
    \\begin\{{(?P<verbatim>verbatim|lstlisting|minted|comment)\*?\}}.*?\\end\{{(?P=verbatim)\*?\}}
  | {_PERCENT}[ \t]*derive:(?P<comment>[^\n]*)
  | {_PERCENT}[^\n]*
  | \\(?P<heading>part|chapter|section|subsection|subsubsection|paragraph)\*?[\[{{]
  | {_DISPLAYS}
    """,
    _FLAGS,
)
_MATHEMATICS = ("math", "{math}")  # the fences of displays
_LEVELS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph")


# Names of functions in other type, unless they are a subscript.
_FUNCTION = re.compile(
    r"(?<![_^])(?<![_^]\{)\\(?:operatorname\*?|text(?:rm|normal)?|mathrm|mathop)"
    r"\s*\{\s*(?:\\rm\s+)?([tT]r|diag)\s*\}(?!\s*[_}])"
)
_LOWER = re.compile(r"(?<=\\operatorname\{)Tr(?=\})")
_BOLD = re.compile(r"\\bm(?![a-zA-Z])")


def _usual(text: Text) -> Text:
    """Return a text with the names that derivations have for trace, diag, and bold."""
    text = text.replaced(_FUNCTION, r"\\operatorname{\1}")
    return text.replaced(_LOWER, "tr").replaced(_BOLD, r"\\boldsymbol")


def _without_code(source: str, scanner: re.Pattern[str]) -> str:
    """Replace by spaces what is code or a comment without definitions."""
    found, at = "", 0
    for match in scanner.finditer(source):
        group = match.groupdict()
        kept = any(
            group[name] is not None
            for name in ("comment", "heading", "dollars", "escaped", "brackets", "body")
        )
        if not kept and (group.get("info") or "").strip() not in _MATHEMATICS:
            blank = re.sub(r"[^\n]", " ", match[0])
            found, at = found + source[at : match.start()] + blank, match.end()
    return found + source[at:]


_BLANK = re.compile(r"[\s>.,;]*")  # also the marks of a quotation


def _continued(items: Iterable[Item], source: str) -> list[Item]:
    """Join a display that begins with = or an arrow to the display just above it."""
    found: list[Item] = []
    for item in items:
        above = found[-1] if found else None
        if (
            isinstance(item, Display)
            and isinstance(above, Display)
            and item.rows
            and re.match(rf"=|{_IMPLIES.pattern}", item.rows[0].characters)
            and _BLANK.fullmatch(source, above.end, item.start)
        ):
            rows, starts = above.rows + item.rows, above.starts + item.starts
            joined = above.joined or item.joined
            found[-1] = Display(rows, starts, joined, above.start, item.end)
        else:
            found.append(item)
    return found


def _items(text: Text, end_of_source: int, scanner: re.Pattern[str]) -> Iterator[Item]:
    is_latex = scanner is _LATEX
    ends = (*text.origins, end_of_source)
    for match in scanner.finditer(text.characters):
        group = match.groupdict()
        start, end = text.origins[match.start()], ends[match.end()]
        if group["comment"] is not None:
            yield Comment(_directives(text[slice(*match.span("comment"))]), start)
        elif group["heading"]:
            level = len(group["heading"])
            if is_latex:
                level = _LEVELS.index(group["heading"])
            yield Heading(level, start)
        elif group.get("fenced") is not None:
            inner = re.compile(r"^:\w+:[^\n]*$", re.M)
            body = text[slice(*match.span("fenced"))].replaced(inner)
            yield _display(body, "", is_latex, start, end)
        else:
            for name in ("dollars", "escaped", "brackets", "body"):
                if group[name] is not None:
                    body = text[slice(*match.span(name))]
                    kind = group["environment"] or ""
                    yield _display(body, kind, is_latex, start, end)


# Spaces, also those as wide as a formula, and an empty group, which prints nothing.
_INDENT = re.compile(
    rf"\A(?:\s|~|\\[,;: ]|\\q?quad(?![a-zA-Z])|\\h?phantom\s*{BRACED}|\{{\}})+"
)
_EMPTY = re.compile(r"(?<=[=+\-&])\s*\{\}")
_COMMENT = re.compile(rf"{_PERCENT}[^\n]*")
_NOTHING = re.compile(
    rf"\\(?:label|tag\*?|vphantom)\s*{BRACED}"
    r"|\\definecolor\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\{[^{}]*\}"
    r"|\\(?:nonumber|notag|(?:display|text|script|scriptscript)style|allowbreak|nobreak"
    r"|limits|nolimits|displaylimits|mathstrut|strut)(?![a-zA-Z])|\\!"
)
# Also the environments that LaTeX does not allow within $$, as MathJax does.
_INNER = rf"(?:aligned|split|gathered|alignedat|multlined|(?:{_ENVIRONMENTS})\*?)"
_OPENS = re.compile(rf"\\begin\{{{_INNER}\}}(?:\[[tbc]\])?(?:\{{\d\}})?")
_CLOSES = re.compile(rf"\\end\{{{_INNER}\}}")
_ASIDE = re.compile(rf"\\(?:short)?intertext\s*{BRACED}")
_BREAK = re.compile(r"\\\\\*?(?:\[\s*-?[\d.]+\s*[a-z]+\s*\])?")


def _display(body: Text, kind: str, is_latex: bool, start: int, end: int) -> Display:
    if is_latex:
        body = body.replaced(_COMMENT)
    if kind.startswith("alignat"):
        body = body.replaced(re.compile(r"\A\s*\{\d\}"))
    joined = kind.startswith("multline") or r"\begin{multlined}" in body.characters
    body = body.replaced(_NOTHING).replaced(_EMPTY)
    body = body.blanked(framed(body.characters))
    body = body.blanked(decorations(body.characters)).replaced(_OPENS)
    body = body.replaced(_CLOSES, r"\\\\").replaced(_ASIDE, r"\\\\")
    if kind.startswith("eqnarray"):
        body = body.replaced(re.compile("&(?=[^&]*=[^&]*&)"))
    rows, starts = [], []
    for row in _rows(body):
        begins = row.characters.lstrip().startswith("&")
        row = _unaligned(row).replaced(_INDENT).strip()
        if row.characters.replace("~", "").strip():
            rows.append(row)
            starts.append(begins)
    return Display(tuple(rows), tuple(starts), joined, start, end)


def _rows(body: Text) -> Iterator[Text]:
    """Split a display at \\\\, but not a matrix within it."""
    depth, first, at, text = 0, 0, 0, body.characters
    while at < len(text):
        if text.startswith(r"\begin", at):
            depth += 1
        elif text.startswith(r"\end", at):
            depth -= 1
        elif depth == 0 and (match := _BREAK.match(text, at)):
            yield body[first:at]
            first = at = match.end()
            continue
        at += 2 if text[at] == "\\" else 1
    yield body[first:]


def _unaligned(row: Text) -> Text:
    """Remove the signs of alignment, but not those within a matrix."""
    depth, at, found = 0, 0, row.characters
    while at < len(found):
        depth += found.startswith(r"\begin", at) - found.startswith(r"\end", at)
        if found[at] == "&" and depth == 0:
            found = f"{found[:at]} {found[at + 1 :]}"
        at += 2 if found[at] == "\\" else 1
    return Text(found, row.origins)


# ---- statements ----------------------------------------------------------------------


@dataclass(frozen=True)
class Statement:
    """Members that a display sets equal, with the words and conditions beside them.

    `fault` says why the display cannot be split with certainty, or is empty.
    `conditional` says whether it is a premise, or a conclusion that may need one.
    """

    members: tuple[Text, ...]
    beside: tuple[Text, ...] = ()
    fault: str = ""
    conditional: bool = False


_OPERATOR = r"(?:[+\-=/]|\\(?:cdot|times|odot)(?![a-zA-Z]))"
_CONTINUES = re.compile(rf"\s*{_OPERATOR}")
_UNFINISHED = re.compile(rf"{_OPERATOR}\s*$")
# Also words between equations, which have spaces at their ends.
_IMPLIES = re.compile(r"\\(?:implies|Rightarrow|Longrightarrow)(?![a-zA-Z])")
_SPACE = re.compile(
    r"\\q?quad(?![a-zA-Z])|\\text\s*\{\s+(?:and|or|where)\s+\}"
    rf"|{_IMPLIES.pattern}"
)
_TRAILING = re.compile(r"(?:\\[,;: ]|~|\s|[.,;])+$")
_DEFINING = re.compile(r":(?==)")
_COLON_EQUAL = re.compile(r"\\(?:coloneqq|coloneq)(?![a-zA-Z])")
_LINKS = re.compile(
    r"^\s*\\text\s*\{\s*(?:,\s*)?(?:and|so|thus|hence|therefore)\s*,?\s*\}\s*$"
)
_NUMBER = re.compile(r"\s*(?:\\text\s*\{)?\s*\(\d+(?:\.\d+)*[a-z]?'?\)\s*\}?\s*\Z")


def statements(display: Display) -> list[Statement]:
    """Split a display into statements."""
    found = []
    for row, fault in _logical_rows(display):
        row = row.replaced(_COLON_EQUAL, "=").replaced(_DEFINING)
        pieces = _pieces(row)
        # y = x alone is an equation, and beside one a range of an index.
        if found and _IMPLIES.match(row.characters):
            found[-1] = replace(found[-1], conditional=True)  # a premise
        equations = [piece for piece in pieces if _is_equation(piece)] or [
            piece for piece in pieces[:1] if len(_split(piece, "=")) > 1
        ]
        beside = tuple(
            piece
            for piece in pieces
            if piece not in equations
            and not _LINKS.match(piece.characters)
            and not _NUMBER.match(piece.characters)
        )
        if not equations:
            found.extend(Statement((piece,), (), fault) for piece in pieces)
        for equation in equations:
            members = tuple(_split(equation, "="))
            conditional = _IMPLIES.search(row.characters) is not None
            if beside and equation is not equations[-1]:
                fault = "does what stands beside another equation hold for this one?"
            found.append(Statement(members, beside, fault, conditional))
            fault = ""
    return found


def _logical_rows(display: Display) -> Iterator[tuple[Text, str]]:
    """Yield the rows, each joined to those that continue it, and their faults."""
    rows: list[tuple[Text, str]] = []
    aligned_first = bool(display.starts) and display.starts[0]
    following = [*display.rows, Text("", ())][1:]
    for row, begins, below in zip(display.rows, display.starts, following, strict=True):
        if rows and (display.joined or _goes_on(rows[-1][0], row)):
            above, fault = rows[-1]
            rows[-1] = _without_end(above) + row, fault
        elif rows and re.match(r"\s*-", row.characters) and (begins or aligned_first):
            if begins and not aligned_first:
                rows[-1] = rows[-1][0] + row, rows[-1][1]
                continue
            why = (
                "does the row that begins with - continue the row above, or begin anew?"
            )
            rows[-1] = rows[-1][0], why
            rows.append((row, why))
        elif rows and not _stands_alone(row, below):
            why = "does the row without = continue the row above?"
            rows[-1] = rows[-1][0], why
            rows.append((row, why))
        else:
            rows.append((row, ""))
    return iter(rows)


def _stands_alone(row: Text, below: Text) -> bool:
    """Whether a row is an equation, a declaration, or the left side of the next row."""
    text = row.characters
    return (
        len(_split(row, "=")) > 1 or r"\in" in text or below.characters.startswith("=")
    )


def _goes_on(above: Text, row: Text) -> bool:
    start = row.characters.lstrip()
    if start.startswith("-"):
        return (
            len(_split(row, "=")) == 1
            or _UNFINISHED.search(above.characters) is not None
        )
    return (
        _CONTINUES.match(start) is not None
        or _UNFINISHED.search(above.characters) is not None
        or _depth(above.characters) != 0
    )


def _without_end(text: Text) -> Text:
    """Remove punctuation and spaces from the end."""
    match = _TRAILING.search(text.characters)
    if match and not text.characters[: match.start()].endswith("\\"):
        return text[: match.start()]
    return text


def _pieces(row: Text) -> list[Text]:
    """Split a row at wide spaces, unless they only surround a sign."""
    pieces: list[Text] = []
    for piece in _split(row, _SPACE):
        piece = piece.strip()
        if not piece.characters:
            continue
        if pieces and (
            _CONTINUES.match(piece.characters)
            or _UNFINISHED.search(pieces[-1].characters)
        ):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return [_without_end(piece) for piece in pieces]


_INDEX_RANGE = re.compile(
    r"^\s*\(?\s*[a-zA-Z]\s*=\s*(?:[a-zA-Z]|1\s*,.*)\s*\)?\s*$", re.S
)


# Words, and not the name of a function or a number: \text{softmax}(x)_i = …
_WORDS = re.compile(
    r"\s*(?:\\forall|\\(?:text|mbox|mathrm)\s*\{(?:[^{}]*\s|\s*(?:if|for|where|when|with|and|or)\s*)\})"
)


def _is_equation(piece: Text) -> bool:
    text = piece.characters
    return (
        len(_split(piece, "=")) > 1
        and not _INDEX_RANGE.match(text)
        and not _WORDS.match(text)
    )


def _split(text: Text, sign: str | re.Pattern[str]) -> list[Text]:
    """Split a text at a sign outside all brackets."""
    pattern = re.compile(re.escape(sign)) if isinstance(sign, str) else sign
    found, first, depth, at, characters = [], 0, 0, 0, text.characters
    while at < len(characters):
        if depth == 0 and (match := pattern.match(characters, at)):
            found.append(text[first:at].strip())
            first = at = match.end()
            continue
        step = 2 if characters[at] == "\\" else 1
        depth += _change(characters, at)
        at += step
    return [*found, text[first:].strip()]


def _depth(characters: str) -> int:
    depth, at = 0, 0
    while at < len(characters):
        depth += _change(characters, at)
        at += 2 if characters[at] == "\\" else 1
    return depth


def _change(characters: str, at: int) -> int:
    """Return by how much the depth of brackets changes at a character."""
    if characters.startswith((r"\begin", r"\{"), at):
        return 1
    if characters.startswith((r"\end", r"\}"), at):
        return -1
    return (characters[at] in "{([") - (characters[at] in "})]")


def relocated(error: Unreadable, text: Text, source: str) -> Unreadable:
    """Return an error in a text as the same error at its place in the source."""
    start = (error.part.start if error.part else 0) + error.position
    origin = text.origins[min(start, len(text.origins) - 1)]
    return Unreadable(error.message, Part(source, origin, ""))
