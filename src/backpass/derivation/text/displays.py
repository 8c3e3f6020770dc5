"""Read displays: the rows of each, without what prints nothing or a number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from backpass.derivation.language.brackets import close, outside
from backpass.derivation.text.decorations import BRACED, decorations, framed
from backpass.derivation.text.passages import Text
from backpass.derivation.text.reasons import with_plain_equals, without_reason

ENVIRONMENTS = (
    r"equation|align|gather|multline|eqnarray|flalign|alignat|displaymath|math"
    r"|IEEEeqnarray|dmath"
)
PERCENT = r"(?:(?<!\\)|(?<=(?<!\\)\\\\))%"  # a comment starts at % and \\%, not at \%
IMPLIES = re.compile(
    r"\\(?:implies|Rightarrow|Longrightarrow|iff|(?:L|Longl)eftrightarrow)(?![a-zA-Z])"
)
# Spaces, also those as wide as a formula, and an empty group, which prints nothing.
_INDENT = re.compile(
    rf"\A(?:\\hspace\*?\s*{BRACED}|\s|~|\\[,;: ]|\\q?quad(?![a-zA-Z])|\\h?phantom\s*{BRACED}|\{{\}})+"
)
# A label in words: (Mean) \\space \\mu = …
_LABELLED = re.compile(
    r"\A\((?:[A-Z][a-z]{2,}|[A-Z]{2,})(?:\s+[a-z]+)*\)\s*"
    r"(?:(?:\\(?:space|quad|qquad|enspace)(?![a-zA-Z])|\\[,;: ]|~)\s*)+"
)
# The end of a proof. A square may also be a blank, unless there is a space before it.
_WORD = r"\\(?:text(?:bf|rm|it|sf|normal)?|math(?:rm|bf)|mbox|operatorname)"
_SPACE = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![a-zA-Z])|\\hfill(?![a-zA-Z])|&)"
_END_OF_PROOF = re.compile(
    rf"(?<=[^\s=+\-*/^_({{<>&])[.,;]?(?:{_SPACE}*(?:{_WORD}\s*\{{\s*Q\.?\s*E\.?\s*D\.?\s*\}}"
    r"|\\(?:blacksquare|qed|qedhere|qedsymbol)(?![a-zA-Z]))"
    rf"|(?:[.,;]|\\[,;: ]|\\q?quad(?![a-zA-Z])|\\hfill(?![a-zA-Z])|~|&){_SPACE}*"
    r"\\(?:square|Box)(?![a-zA-Z]))[\s.,;]*\Z"
)
_EMPTY = re.compile(r"(?<=[=+\-&])\s*\{\}")
_COMMENT = re.compile(rf"{PERCENT}[^\n]*")
_NOTHING = re.compile(
    rf"\\(?:label|tag\*?|vphantom)\s*{BRACED}"
    r"|\\definecolor\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\{[^{}]*\}"
    r"|\\IEEE(?:nonumber|yesnumber|yessubnumber)(?![a-zA-Z])"
    r"|\\(?:nonumber|notag|(?:display|text|script|scriptscript)style|allowbreak|nobreak"
    r"|limits|nolimits|displaylimits|mathstrut|strut|therefore)(?![a-zA-Z])|\\!"
)
# Equations in three columns, with each = in one of its own.
_ROW = r"(?:(?!\\\\|\\(?:begin|end)\{)[^&])*"
_ARRAY = re.compile(
    rf"\s*\\begin\s*\{{array\}}\s*\{{\s*[rlc]\s*[rlc]\s*[rlc]\s*\}}"
    rf"({_ROW}&\s*=\s*&{_ROW}(?:\\\\{_ROW}&\s*=\s*&{_ROW})*(?:\\\\\s*)?)"
    r"\\end\s*\{array\}[\s.,;]*"
)
_LINE = r"(?:(?!\\\\|\\(?:begin|end)\{).)*"
# Equations in two columns, each with = at the beginning of the second column.
_TWO_COLUMNS = re.compile(
    rf"\s*\\begin\s*\{{array\}}\s*\{{\s*[rlc]\s*[rlc]\s*\}}"
    rf"({_ROW}&\s*={_ROW}(?:\\\\{_ROW}&\s*={_ROW})*(?:\\\\\s*)?)"
    r"\\end\s*\{array\}[\s.,;]*"
)
# One column of equations.
_ONE_COLUMN = re.compile(
    rf"\s*\\begin\s*\{{(?P<kind>array|matrix)\}}(?:\s*\{{[\s|rlc]*\}})?"
    rf"(?P<rows>{_LINE}(?:\\\\{_LINE})*)\\end\s*\{{(?P=kind)\}}[\s.,;]*"
)
_WIDE_ARROW = re.compile(
    r"(?:\\q?quad(?![a-zA-Z])|\\hspace\*?\s*\{[^{}]*\})\s*\\(?:long)?rightarrow(?![a-zA-Z])\s*"
    r"(?:\\q?quad(?![a-zA-Z])|\\hspace\*?\s*\{[^{}]*\})"
)
_WIDE = re.compile(
    r"\\hspace\*?\s*\{\s*(?:0?\.[3-9]\d*|[1-9][\d.]*)\s*(?:in|cm|em)\s*\}"
)
_PERCENT_AT_END = re.compile(r"(?<!\\)%[ \t]*(?=\n)")
_PUNCTUATION = re.compile(r"\\(?:text(?:rm|normal)?|mbox|mathrm)\s*\{\s*([.,;])\s*\}")
_SPACE_IN_WORDS = re.compile(r"\\space(?![a-zA-Z])")
_BRACE = re.compile(r"\\(?:under|over)brace\s*(?=\{)")
_LABEL_OF_BRACE = re.compile(
    r"\s*[_^]\s*\{\s*(?:\{\s*\}\s*)?=\s*((?:[^{}:=]|\{(?:[^{}]|\{[^{}]*\})*\})+)\}"
)
_A_NAME = re.compile(r"\A[^0-9+\-]*\Z")  # which the brace may define
# A condition in place of a number: \tag{$i \ne j$}.
_TAGGED = re.compile(
    r"\\tag\*?\s*\{\s*(?:for |if |when )?\$([^${}]*(?:[<>]|\\(?:neq?|leq?|geq?)(?![a-zA-Z]))"
    r"[^${}]*)\$\s*\}"
)
# Also the environments that LaTeX does not allow within $$, as MathJax does.
_INNER = rf"(?:aligned|split|gathered|alignedat|multlined|(?:{ENVIRONMENTS})\*?)"
_OPENS = re.compile(rf"\\begin\{{{_INNER}\}}(?:\[[tbc]\])?(?:\{{\d\}})?")
_CLOSES = re.compile(rf"\\end\{{{_INNER}\}}")
_ASIDE = re.compile(rf"\\(?:short)?intertext\s*{BRACED}")
_ARROW_BETWEEN = re.compile(r"&?\s*\\(?:Updownarrow|Downarrow)(?![a-zA-Z])\s*&?\s*\\\\")
# Arrows that are typed as <=>, and as =>.
_TYPED_BOTH = re.compile(r"<\s*=+\s*>")
_TYPED = re.compile(r"(?<![<>=:\\])=+>(?![>=])")
_BREAK = r"\\\\\*?(?:\[\s*-?[\d.]+\s*[a-z]+\s*\])?"
_NEWLINE = re.compile(r"(?<!\\)\\newline(?![a-zA-Z])")
_BREAKS = re.compile(r"(?:\\\\\s*)+\\\\")  # Hugo's \\\\\\, which prints as one break
_TWO_ROWS = re.compile(  # \sum_{\substack{j=1 \\ j \ne i}}, and with \atop
    r"\{\s*\\substack\s*\{([^{}\\]*)\\\\(?!\[)([^{}]*)\}\s*\}"
    r"|(?<=_)\{([^{}\\]*)\\atop(?![a-zA-Z])([^{}]*)\}"
)
# What joins a column to the one before it.
_SIGN = (
    r"(?:[+\-=/<>]|\\(?:cdot|times|odot|leq?|geq?|neq?|approx|to|in|propto|sim|equiv|pm|mp)"
    r"(?![a-zA-Z])|\\(?:overset|stackrel|underset|mathrel)(?![a-zA-Z]))"
)
_JOINS = re.compile(rf"(?:\s|&|\{{\}}|~|\\[,;:! ]|\\q?quad(?![a-zA-Z]))*{_SIGN}")
_JOINED = re.compile(rf"(?:{_SIGN}|\(|\[|,)(?:\s|&|\{{\}}|~|\\[,;:! ])*\Z")
# A brace around the whole display, with a size or style.
_BRACED = re.compile(
    r"\s*\{\s*(?:\\(?:text|display|script)style(?![a-zA-Z])|\\(?:small|footnotesize|normalsize|large)(?![a-zA-Z]))?"
    r"(?P<inside>\s*\\begin\{(?P<kind>[a-z]+)\}(?:(?!\\end\{(?P=kind)\}).)*\\end\{(?P=kind)\})\s*\}\s*",
    re.S,
)
_ENVIRONMENT = ((r"\begin",), (r"\end",))


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
    conditional: bool = False  # whether its sentence states a condition


def display_of(body: Text, kind: str, is_latex: bool, start: int, end: int) -> Display:
    """Return the display with this body; `kind` is its environment, or "" if none."""
    if is_latex:
        body = body.replaced(_COMMENT)
    if boxed := _BRACED.fullmatch(body.characters):
        body = body[slice(*boxed.span("inside"))]
    if kind.startswith("IEEEeqnarray"):
        body = body.replaced(re.compile(r"\A\s*(?:\[[^\[\]]*\])?\s*\{[^{}]*\}"))
    if kind.startswith("alignat"):
        body = body.replaced(re.compile(r"\A\s*\{\d\}"))
    if array := _ARRAY.fullmatch(body.characters):
        body, kind = body[slice(*array.span(1))], "eqnarray"
    elif array := _TWO_COLUMNS.fullmatch(body.characters):
        body, kind = body[slice(*array.span(1))], "align"
    if (one := _ONE_COLUMN.fullmatch(body.characters)) and _all_equations(one["rows"]):
        body, kind = body[slice(*one.span("rows"))], "align"
    body = body.replaced(_PERCENT_AT_END).replaced(_WIDE_ARROW, r"\\quad ")
    body = body.replaced(_WIDE, r"\\quad ")
    joined = kind.startswith("multline") or r"\begin{multlined}" in body.characters
    body = body.replaced(_PUNCTUATION, r"\1").replaced(_SPACE_IN_WORDS, r"\\ ")
    body = body.replaced(_TAGGED, r"\\quad (\1)").replaced(_NOTHING).replaced(_EMPTY)
    body = body.replaced(_NEWLINE, r"\\\\").replaced(_BREAKS, r"\\\\")
    body = body.replaced(_ARROW_BETWEEN, r"\\iff ")
    body = body.replaced(_TYPED_BOTH, r"\\iff ").replaced(_TYPED, r"\\Rightarrow ")
    body = with_plain_equals(body.replaced(_TWO_ROWS, r"{\1\3, \2\4}"))
    body = body.blanked(framed(body.characters))
    body, claims = _with_claims(body)
    body = body.blanked(decorations(body.characters)).replaced(_OPENS)
    body = body.replaced(_CLOSES, r"\\\\").replaced(_ASIDE, r"\\\\")
    if kind.startswith(("eqnarray", "IEEEeqnarray")):
        body = body.replaced(re.compile("&(?=[^&]*=[^&]*&)"))
    rows, starts = [], []
    for row in body.split(_BREAK, *_ENVIRONMENT):
        begins = row.characters.lstrip().startswith("&")
        row = row.replaced(_END_OF_PROOF)
        places = outside(row.characters, *_ENVIRONMENT)  # not within a matrix
        signs = [(at, at + 1) for at in places if row.characters.startswith("&", at)]
        row = _with_columns(row, [at for at, _ in signs])
        row = without_reason(row.replaced(_INDENT).strip())
        row = row.replaced(_LABELLED).strip()
        if row.characters.replace("~", "").strip():
            rows.append(row)
            starts.append(begins)
    if not joined:
        rows += claims
        starts += [True] * len(claims)
    return Display(tuple(rows), tuple(starts), joined, start, end)


def _with_claims(body: Text) -> tuple[Text, list[Text]]:
    """Return a display without the labels of braces that begin with =, and an equation
    for each: \\underbrace{x - x}_{=0} claims that x - x = 0."""
    claims = []
    for match in _BRACE.finditer(body.characters):
        last = close(body.characters, match.end())
        label = _LABEL_OF_BRACE.match(body.characters, last + 1) if last > 0 else None
        if label is None:
            continue
        inside = body[match.end() + 1 : last]
        if re.search(r"\\\\|&|=", inside.characters):
            continue
        value = body[slice(*label.span(1))]
        brackets = [_made(sign, inside) for sign in (r"\left(", r"\right)", "=")]
        inside = brackets[0] + inside + brackets[1]
        sides = [value, inside] if _A_NAME.search(value.characters) else [inside, value]
        claims.append(sides[0] + brackets[2] + sides[1])
        body = body.blanked([label.span()])
    return body, claims


def _made(characters: str, near: Text) -> Text:
    return Text(characters, near.origins[:1] * len(characters))


def _all_equations(rows: str) -> bool:
    """Whether each row of an array has an = outside braces, and there are several."""
    found = [row for row in rows.split(r"\\") if row.strip("& \n\t")]
    return len(found) > 1 and all(
        "=" in re.sub(r"\{[^{}]*\}", "", row) for row in found
    )


def _with_columns(row: Text, signs: list[int]) -> Text:
    """Return a row without its alignments, and with a space for each that begins a
    further equation, or skips to a reason, as && does."""
    text = row.characters
    found = row.blanked([(at, at + 1) for at in signs])
    spaces = {
        first: second + 1
        for first, second in pairwise(signs)
        if not text[first + 1 : second].strip()
    }
    apart = {*outside(text)}
    ends = (*signs[1:], len(text))[: len(signs)]
    for at, end in [*zip(signs, ends, strict=True)][1::2]:
        is_joined = _JOINS.match(text, at + 1) or _JOINED.search(text[:at])
        if at in apart - {*spaces} and text[at + 1 : end].strip() and not is_joined:
            spaces[at] = at + 1
    for first, end in sorted(spaces.items(), reverse=True):
        space = Text(r"\quad", (found.origins[first],) * 5)
        found = found[:first] + space + found[end:]
    return found
