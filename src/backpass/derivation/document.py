"""Find the displayed mathematics of a text, and the definitions in its comments.

A text is Markdown, LaTeX or a notebook. Its macros are expanded. Each character of a
formula keeps its place in the text, also where something before it (an alignment, a
label) is removed; what a macro expands to has the place of its use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from backpass.derivation.text.barred import with_means
from backpass.derivation.text.contents import Comment, Document, Heading, Item
from backpass.derivation.text.displays import (
    ENVIRONMENTS,
    IMPLIES,
    PERCENT,
    Display,
    display_of,
)
from backpass.derivation.text.macros import Expander
from backpass.derivation.text.matrices import with_matrices, without_escapes
from backpass.derivation.text.parts import Piece, joined
from backpass.derivation.text.passages import Text
from backpass.derivation.text.relations import begins_with_relation
from backpass.derivation.text.sentences import in_sentences
from backpass.derivation.text.starred import with_labels, with_starred
from backpass.derivation.text.unseen import unseen

__all__ = ["Document", "directives", "form_of", "read_document"]


def form_of(name: str, source: str) -> str:
    """Return the form of a text, from the ending of its name or from its contents."""
    for ending, form in (
        (".md", "markdown"),
        (".markdown", "markdown"),
        (".tex", "latex"),
        (".latex", "latex"),
        (".ipynb", "notebook"),
        (".rst", "rst"),
    ):
        if name.lower().endswith(ending):
            return form
    if source.lstrip().startswith("{") and '"cells"' in source:
        return "notebook"
    is_latex = re.search(
        r"\\documentclass|\\begin\{document\}|^\s*%\s*derive:", source, re.M
    )
    return "latex" if is_latex else "markdown"


def read_document(
    source: str, form: str, preamble: str = "", path: Path | None = None
) -> Document:
    """Find the displays, headings and definitions of a text.

    `preamble` is a text, such as the definitions, whose macros and starred names also
    apply here. With the `path` of a LaTeX text, the files that it includes are read
    too. Raises `ValueError` for a notebook that cannot be read, and for a file that is
    included and missing.
    """
    pieces: tuple[Piece, ...] = ()
    if form == "latex" and path is not None:
        source, pieces = joined(source, path)
    cells: tuple[tuple[int, int], ...] = ()
    if form == "notebook":
        source, cells = _of_notebook(source)
    scanner = _SCANNERS.get(form, _MARKDOWN)
    expander = Expander()
    expander.expand(preamble)
    expander.grouped = form == "latex"
    expander.faults.clear()
    plain = _without_code(source, scanner)
    text = Text(*expander.expand(plain))
    if form not in ("latex", "rst"):
        text = without_escapes(text)
    text = with_matrices(_usual(text))
    text = with_means(with_starred(with_labels(text), preamble), preamble)
    items = _continued(_items(text, len(source), scanner), source)
    shown = tuple(in_sentences(items, source))
    found = tuple(unseen(source, plain, form))
    return Document(source, shown, cells, text, expander.faults, found, pieces)


def directives(source: str) -> tuple[Text, ...]:
    """Return the definitions in a text of definitions, with its macros expanded."""
    text = with_matrices(_usual(Text(*Expander().expand(source))))
    return _directives(with_means(with_starred(with_labels(text))))


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

_DISPLAYS = rf"""
    (?<!\\)\$\$(?P<dollars>.*?)(?<!(?<!\\)\\)\$\$
  | ^[ \t]*\\\\\[(?P<escaped>.*?)\\\\\]
  | (?<!\\)\\\[(?P<brackets>.*?)(?<!\\)\\\]
  | \\begin\{{(?P<environment>(?:{ENVIRONMENTS})\*?)\}}(?P<body>.*?)\\end\{{(?P=environment)\}}
"""
# \\[ … \\] within a paragraph of Markdown, which prints as \[ … \]. A length
# after \\[ is the space between two rows.
_OPENS = r"\\\\\[(?!\s*-?[\d.]+\s*[a-z]{2}\s*\])"
_ESCAPED = rf"{_OPENS}(?P<inline>(?:(?!\n[ \t]*\n|{_OPENS}).)*?)\\\\\]"
_BODIES = ("dollars", "escaped", "brackets", "body", "inline")
_FLAGS = re.S | re.M | re.X
_MARKDOWN = re.compile(
    rf"""
    ^(?P<fence>[ \t]*(?P<ticks>`{{3,}}|~{{3,}}|:{{3,}}(?=[ \t]*\{{math\}})))
        [ \t]*(?P<info>[^\n]*)\n(?P<fenced>.*?)
        (?:^[ \t]*(?P=ticks)[ \t]*$|\Z)
  | <!--[ \t]*derive:(?P<comment>.*?)(?:-->|(?P<open>\Z|(?=<!--)))
  | <!--.*?-->
  | (?P<code>`+)(?!`).+?(?<!`)(?P=code)(?!`)
  | ^(?P<heading>\#{{1,6}})[ \t]
  | {_DISPLAYS}
  | {_ESCAPED}
    """,
    _FLAGS,
)
_LATEX = re.compile(
    rf"""
    \\begin\{{(?P<verbatim>verbatim|lstlisting|minted|comment)\*?\}}.*?\\end\{{(?P=verbatim)\*?\}}
  | {PERCENT}[ \t]*derive:(?P<comment>[^\n]*)
  | {PERCENT}[^\n]*
  | \\(?P<heading>part|chapter|section|subsection|subsubsection|paragraph)\*?[\[{{]
  | {_DISPLAYS}
    """,
    _FLAGS,
)
_RST = re.compile(
    rf"""
    ^(?P<margin>[ \t]*)\.\.[ \t]+(?P<info>math)::(?P<fenced>[^\n]*(?:\n|\Z)
        (?:(?P=margin)[ \t]+[^\n]*(?:\n|\Z)|[ \t]*\n)*)
  | ^[ \t]*\.\.[ \t]+derive:(?P<comment>[^\n]*(?:\n[ \t]+[^\n]*)*)
  | ``.+?``
  | (?P<heading>(?!))
  | {_DISPLAYS}
    """,
    _FLAGS,
)
_SCANNERS = {"latex": _LATEX, "rst": _RST}
_MATHEMATICS = ("math", "{math}")  # the fences of displays
_LEVELS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph")


# Names of functions in other type, unless they are a subscript.
_FUNCTION = re.compile(
    r"(?<![_^])(?<![_^]\{)\\(?:operatorname\*?|text(?:rm|normal)?|mathrm|mathop)"
    r"\s*\{\s*(?:\\rm\s+)?([tT]r|diag|det)\s*\}(?!\s*[_}])"
)
_REALS = re.compile(r"(\\in\s*)(?:\\(?:R|RR|Reals|reals)(?![a-zA-Z])|R(?=\s*\^))")
# A bold accented letter prints as the accented bold one.
_BOLD_ACCENT = re.compile(
    r"\\(mathbf|boldsymbol|bm)\s*\{\s*\\(hat|bar|tilde|dot|widehat|widetilde|overline)\s*"
    r"(?:\{\s*(\\?[a-zA-Z]+)\s*\}|\s(\\?[a-zA-Z]+))\s*\}"
)
_WIDE_SPACE = re.compile(r"\\(?:enspace|enskip)(?![a-zA-Z])")
_THIN_SPACE = re.compile(r"\\(?:thin|med|thick|negthin)space(?![a-zA-Z])")
_LOWER = re.compile(r"(?<=\\operatorname\{)Tr(?=\})")
_BOLD = re.compile(r"\\bm(?![a-zA-Z])")


def _usual(text: Text) -> Text:
    """Return a text with the names that derivations have for trace, diag, and bold."""
    text = text.replaced(_FUNCTION, r"\\operatorname{\1}")
    text = text.replaced(_BOLD_ACCENT, r"\\\2{\\\1{\3\4}}")
    text = text.replaced(_REALS, r"\1\\mathbb{R}")
    text = text.replaced(_WIDE_SPACE, r"\\quad ").replaced(_THIN_SPACE, r"\\, ")
    return text.replaced(_LOWER, "tr").replaced(_BOLD, r"\\boldsymbol")


def _without_code(source: str, scanner: re.Pattern[str]) -> str:
    """Replace by spaces what is code or a comment without definitions."""
    found, at = "", 0
    for match in scanner.finditer(source):
        group = match.groupdict()
        kept = any(
            group[name] is not None
            for name in ("comment", "heading", *_BODIES)
            if name in group
        )
        if not kept and (group.get("info") or "").strip() not in _MATHEMATICS:
            blank = re.sub(r"[^\n]", " ", match[0])
            found, at = found + source[at : match.start()] + blank, match.end()
    return found + source[at:]


_BETWEEN_ROWS = re.compile(r"(?<=\S)[ \t]*\n(?:[ \t]*\n)+(?=[ \t]*\S)")
_BLANK = re.compile(r"[\s>.,;]*")  # also the marks of a quotation


def _continued(items: Iterable[Item], source: str) -> list[Item]:
    """Join a display that begins with a relation or an arrow to the one just above."""
    found: list[Item] = []
    for item in items:
        above = found[-1] if found else None
        if (
            isinstance(item, Display)
            and isinstance(above, Display)
            and item.rows
            and _goes_on(item.rows[0].characters)
            and _BLANK.fullmatch(source, above.end, item.start)
        ):
            rows, starts = above.rows + item.rows, above.starts + item.starts
            joined = above.joined or item.joined
            found[-1] = Display(rows, starts, joined, above.start, item.end)
        else:
            found.append(item)
    return found


def _goes_on(row: str) -> bool:
    return begins_with_relation(row) or IMPLIES.match(row) is not None


def _items(text: Text, end_of_source: int, scanner: re.Pattern[str]) -> Iterator[Item]:
    is_latex = scanner is _LATEX
    ends = (*text.origins, end_of_source)
    for match in scanner.finditer(text.characters):
        group = match.groupdict()
        start, end = text.origins[match.start()], ends[match.end()]
        if group["comment"] is not None:
            comment = text[slice(*match.span("comment"))]
            if group.get("open") is not None:
                yield Comment((comment.strip(),), start, True)
            else:
                yield Comment(_directives(comment), start)
        elif group["heading"]:
            level = len(group["heading"])
            if is_latex:
                level = _LEVELS.index(group["heading"])
            yield Heading(level, start)
        elif group.get("fenced") is not None:
            inner = re.compile(r"^[ \t]*:\w+:[^\n]*$", re.M)
            body = text[slice(*match.span("fenced"))].replaced(inner)
            if scanner is _RST:  # rows are also separated by blank lines
                body = body.replaced(_BETWEEN_ROWS, r"\\\\")
            yield display_of(body, "", is_latex, start, end)
        else:
            for name in _BODIES:
                if group.get(name) is not None:
                    body = text[slice(*match.span(name))]
                    kind = group["environment"] or ""
                    yield display_of(body, kind, is_latex, start, end)
