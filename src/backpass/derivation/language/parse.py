"""Split the text of a derivation into lines, and parse pieces of LaTeX.

A derivation is plain text. The first word of a line says what the line is:

    given     x, \\bar{y} \\in \\mathbb{R}^n        inputs, with their shapes
    constant  \\epsilon \\in \\mathbb{R}_{>0}       inputs without a gradient, which do
                                                  not move
    slice     A_i \\in \\mathbb{R}^n               a row of a matrix, as a column
    factor    a, x                                a(x + 1) is a product
    range     t = 1, \\dots, T                     t is an index of time
    layout    numerator                           the shape of derivatives by arrays
    assume    \\sum_i t_i = 1                     what holds of constants
    random    z \\in \\mathbb{R}^n                a random name
    independent z_i                             its elements are independent,
    identical   z_i                             and have one distribution
    mean      z_i = 0                           its mean, and
    variance  z_i = \\sigma^2                    its variance
    variance  z = \\Sigma                       or the covariances of its elements
    let       S = \\sum_j e^{x_j}                 a definition
    let       f(x) = 2 x                          a definition for every x
    note      The other outputs, $j \\ne i$.      prose
    \\bar{x}_i = …  \\quad (j \\ne i)  | reason    a statement, perhaps with conditions
              = …  | reason                       its next line

A physical line without `=` outside brackets continues the line above it. Mathematics
that the grammar (language.lark) does not cover raises `Unreadable`, which shows the
place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from lark import Token, Tree
from lark.exceptions import UnexpectedEOF, UnexpectedInput

from backpass.derivation.language.brackets import outside
from backpass.derivation.language.grammar import parser

KEYWORDS = (
    "given", "constant", "let", "assume", "slice", "factor", "layout", "note", "range",
    "random", "independent", "identical", "mean", "variance",
)  # fmt: skip
# The kinds of lines that a scope is built from.
DECLARING = (
    "given", "constant", "let", "function", "assume", "layout", "factor", "slice",
    "applied", "broadcast", "direct", "range", "positive", "random", "independent",
    "identical", "mean", "variance",
)  # fmt: skip
_LAYER = re.compile(  # W^{(l-1)}, W^{(\ell)}
    r"\^\s*\{\s*\(\s*(?:\w|\\[a-z]+)\s*(?:[+-]\s*\d+\s*)?\)\s*\}"
)
_CONDITION = re.compile(r"\\q?quad\s*\((?P<conditions>[^()]*)\)\s*$")


class DerivationError(ValueError):
    """Raised for a derivation that is wrong or cannot be read.

    If it could be read, `derivation` is the `Derivation`, which shows its wrong lines.
    """

    derivation: object | None = None


class Unreadable(DerivationError):
    """Raised for mathematics that the parser does not know or that has no meaning.

    The message shows the place.
    """

    def __init__(
        self, message: str, part: Part | None = None, position: int = 0
    ) -> None:
        super().__init__(f"{message}\n{part.pointer(position)}" if part else message)
        self.message, self.part, self.position = message, part, position


class Misfit(Unreadable):
    """Raised for shapes or ranges that do not fit as declared, although another reading
    of the declarations may make them fit.

    `other` is the other side, if two sides of an equation do not fit. `ranges` says
    whether two ranges of an index do not fit, and `diagonal` whether only their common
    part may be meant.
    """

    other: Part | None = None

    def __init__(
        self,
        message: str,
        part: Part | None = None,
        position: int = 0,
        ranges: bool = False,
        diagonal: bool = False,
    ) -> None:
        super().__init__(message, part, position)
        self.ranges, self.diagonal = ranges, diagonal


class NotANumber(Unreadable):
    """Raised for an array where a number is read."""


class Undefined(Unreadable):
    """Raised for what has no value at the sizes tried: the inverse of a matrix that is
    singular there, or a division by 0."""


class Contradicted(Unreadable):
    """Raised for a declaration that contradicts one above, of which `value` is the
    right side."""

    value: Part | None = None


class Unfinished(Unreadable):
    """Raised for what takes too long."""


class Loose(Unreadable):
    """Raised for an index that stands on one side of an equation only."""

    letter: str = ""


class Unbound(Unreadable):
    """Raised for a sum whose letter is also used outside it, or does not occur in it.

    `limits` is what stands between its sign and `body`, which is summed.
    """

    letter: str = ""
    limits: tuple[int, int] = (0, 0)
    body: tuple[int, int] = (0, 0)
    reused: bool = False


@dataclass(frozen=True)
class Part:
    """A piece of mathematics: `text`, at the position `start` of `source`."""

    source: str
    start: int
    text: str

    @property
    def line(self) -> int:
        """The number of the source line on which the part begins."""
        return self.source.count("\n", 0, self.start) + 1

    def written(self, node: Tree | Token) -> str:
        """Return the text of a node of its tree."""
        return self.text[slice(*span_of(node))]

    def between(self, first: Tree | Token, second: Tree | Token) -> str:
        """Return the text between two nodes of its tree."""
        return self.text[span_of(first)[1] : span_of(second)[0]]

    def place(self, position: int) -> int:
        """Return where a position of the text is in the source."""
        return self.start + position

    def pointer(self, position: int) -> str:
        """Return the source line around a position of the text, with its number and a
        caret below the position."""
        at = min(self.place(position), len(self.source))
        first = self.source.rfind("\n", 0, at) + 1
        line = self.source[first:].partition("\n")[0]
        number = self.source.count("\n", 0, first) + 1
        indent = len(line) - len(line.lstrip())
        prefix = f"    {number}: "
        return f"{prefix}{line.strip()}\n{' ' * (len(prefix) + max(at - first - indent, 0))}^"


@dataclass(frozen=True)
class Line:
    """One line of a derivation.

    `kind` is "given", "constant", "let", "function", "assume", "slice", "factor",
    "layout", "range", "note", "statement" or "step". A `let` with a bracket on its left
    is a "function". A step has no left side. A declaration has its list in `right`, and
    a layout its name. A note has only words, in `reason`.
    """

    kind: str
    left: Part | None = None
    right: Part | None = None
    conditions: Part | None = None
    reason: str = ""

    @property
    def numbered(self) -> bool:
        return self.kind in ("let", "function", "assume", "statement", "step")

    @property
    def latex(self) -> str:
        """The line's mathematics as written, in one line of text."""
        shown = (
            [self.left.text, "="] if self.left else ["="] if self.kind == "step" else []
        )
        shown.append(self.right.text if self.right else "")
        if self.conditions:
            shown.append(rf"\quad ({self.conditions.text})")
        return " ".join(" ".join(shown).split())


def read(source: str) -> list[Line]:
    """Read the lines of a derivation. Raises `Unreadable` for any other text."""
    lines = []
    for start, end in _logical_lines(source):
        line = _read_line(source, start, end)
        if line.kind == "step" and not (
            lines and lines[-1].kind in ("statement", "step")
        ):
            raise Unreadable(
                "'=' continues a statement, but there is none above it",
                Part(source, start, ""),
            )
        lines.append(line)
    return lines


def _logical_lines(source: str) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    start = 0
    for physical in source.splitlines(keepends=True):
        end = start + len(physical)
        if physical.strip():
            if spans and not _begins(physical):
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
        start = end
    return spans


def _begins(physical: str) -> bool:
    word = physical.split()[0]
    return word in KEYWORDS or (
        not word.startswith("|") and _equals_sign(physical.partition("|")[0]) >= 0
    )


def _equals_sign(text: str) -> int:
    """Return the position of the "=" outside all brackets and environments; −1 if there
    is none."""
    return next((at for at in outside(text) if text.startswith("=", at)), -1)


def _read_line(source: str, start: int, end: int) -> Line:
    text, bar, reason = source[start:end].partition("|")
    reason = " ".join(reason.split())
    keyword = text.split()[0] if text.split() else ""
    if keyword in KEYWORDS:
        skip = text.index(keyword) + len(keyword)
        start, text = start + skip, text[skip:]
    if keyword == "note":
        return Line("note", reason=" ".join(f"{text} {bar} {reason}".split()))
    if keyword in KEYWORDS and keyword not in ("let", "assume", "mean", "variance"):
        return Line(keyword, right=_part(source, start, text), reason=reason)

    equals = _equals_sign(text)
    if equals < 0:
        raise Unreadable("expected left side = right side", _part(source, start, text))
    conditions = None
    if match := _CONDITION.search(text):
        conditions = _part(
            source, start + match.start("conditions"), match["conditions"]
        )
        text = text[: match.start()]
    left, right = (
        _part(source, start, text[:equals]),
        _part(source, start + equals + 1, text[equals + 1 :]),
    )
    if (again := _equals_sign(right.text)) >= 0:
        raise Unreadable("only one '=' a line: begin a new line here", right, again)
    if not right.text:
        raise Unreadable("there is nothing on the right of '='", right)
    if keyword == "let":
        kind = "function" if "(" in _LAYER.sub("", left.text) else "let"
    elif keyword in ("assume", "mean", "variance"):
        kind = keyword
    elif left.text:
        kind = "statement"
    elif conditions:
        raise Unreadable(
            "a condition belongs on the statement's first line", conditions
        )
    else:
        return Line("step", None, right, None, reason)
    return Line(kind, left, right, conditions, reason)


def _part(source: str, start: int, text: str) -> Part:
    return Part(source, start + len(text) - len(text.lstrip()), text.strip())


def parse(part: Part, rule: str = "expression") -> Tree:
    """Parse a piece of LaTeX into a tree whose nodes know their places in the text.

    Raises `Unreadable`, which shows the place.
    """
    try:
        return _tree(part.text, rule)
    except UnexpectedInput as error:
        raise _unread(part, error) from None


def _unread(part: Part, error: UnexpectedInput) -> Unreadable:
    """Return the parser's error with what would help."""
    end = len(part.text)
    token = getattr(getattr(error, "token", None), "type", "")
    if isinstance(error, UnexpectedEOF) or token == "$END":
        return Unreadable("something is missing at the end", part, end)
    position = -1 if error.pos_in_stream is None else error.pos_in_stream
    position = end if position < 0 else position
    opened = part.text.rfind("{", 0, position + 1)
    before = part.text[: max(opened, 0)].rstrip()
    if (
        opened >= 0
        and "}" not in part.text[opened:position]
        and not re.search(r"(?:[\^_}\]]|\\[a-zA-Z]+)\Z", before)
    ):
        message = (
            "cannot read this: braces that are not a command's argument print nothing, so "
            "they cannot group; write brackets"
        )
        return Unreadable(message, part, opened)
    message = "cannot read this"
    expected = {"RSQB", "_RIGHT"} & getattr(error, "expected", set())
    if token == "RELATION" and expected:
        message += (
            ": brackets hold one comparison; write a product of two, such as "
            "[a < x_i] [x_i < b]"
        )
    return Unreadable(message, part, position)


def tokens_of(tree: Tree) -> list[Token]:
    """Return the tokens that are directly below a node."""
    return [child for child in tree.children if isinstance(child, Token)]


def span_of(node: Tree | Token) -> tuple[int, int]:
    """Return where a node begins and ends in the text that was parsed."""
    place = node if isinstance(node, Token) else node.meta
    assert place.start_pos is not None and place.end_pos is not None
    return place.start_pos, place.end_pos


@lru_cache(maxsize=4096)
def _tree(text: str, rule: str) -> Tree:
    return parser().parse(text, start=rule)
