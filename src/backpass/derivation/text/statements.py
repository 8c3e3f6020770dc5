"""Split displays into statements: members set equal, and what is beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from backpass.derivation.language.brackets import outside
from backpass.derivation.text.conditions import Condition, in_force, with_condition
from backpass.derivation.text.displays import IMPLIES, Display
from backpass.derivation.text.imposed import with_marks
from backpass.derivation.text.openings import (
    ONLY_WORDS,
    split_reasons,
    without_opening,
)
from backpass.derivation.text.passages import Text
from backpass.derivation.text.reasons import without_reason
from backpass.derivation.text.relations import (
    GREATER,
    LESS,
    Link,
    begins_with_relation,
    chain,
    ends_with_relation,
    has_relation,
)
from backpass.derivation.text.rewriting import LABEL, PROSE


@dataclass(frozen=True)
class Statement:
    """Members that a display sets equal, with the words and conditions beside them.

    `fault` says why the display cannot be split with certainty, or is empty.
    `conditional` says whether it is a premise, or a conclusion that may need one, and
    `concludes` whether it stands behind the last arrow of its row. `introduced` says
    whether it is in a clause of the statement above, after "where"; `clause` is that
    clause. `relation` is a sign other than =, whose two sides are not
    compared; `sides` are these. `conditions` are those under which each member is equal
    to the first.
    """

    members: tuple[Text, ...]
    beside: tuple[Text, ...] = ()
    fault: str = ""
    conditional: bool = False
    concludes: bool = False
    introduced: bool = False
    clause: Text | None = None
    relation: str = ""
    conditions: tuple[Condition | None, ...] = ()
    sides: tuple[Text, Text] | None = None  # of \\approx, and of an inequality


_WITH_SIDES = {r"\approx", *LESS, *GREATER}
_OPERATOR = r"(?:[+\-=/]|\\(?:cdot|times|odot)(?![a-zA-Z]))"
_CONTINUES = re.compile(rf"\s*{_OPERATOR}")
_MEMBER = re.compile(r"\\in(?![a-zA-Z])")
_UNFINISHED = re.compile(rf"(?<!\^){_OPERATOR}\s*$")  # x^- has no operator
# Also words between equations, which have spaces at their ends.
_SPACE = (
    r"\\q?quad(?![a-zA-Z])|\\text\s*\{\s+and\s+\}"
    r"|\\(?:text(?:rm|normal)?|mbox|mathrm)\s*\{\s*,?\s*and\s*,?\s*\}"
    rf"|{IMPLIES.pattern}"
)
# Words that begin a clause, which is apart from the formula even without a space.
_FIRST = (
    "if|for|when|whenever|where|with|unless|provided|assuming|given|since|because|as|by"
    "|using|from|at"
)
_CLAUSE = rf"(?=\\(?:text(?:rm|bf|it|normal)?|mbox)\s*\{{\s*\(?\s*(?:{_FIRST})[\s}}])"
_APART = re.compile(rf"{_SPACE}|{_CLAUSE}")
_OR = re.compile(r"\\(?:text(?:rm|normal)?|mbox|mathrm)\s*\{\s*,?\s*or\s*,?\s*\}")
_WIDE = re.compile(r"(?:\s|[.,;]|~|\\[,;: ]|\\q?quad(?![a-zA-Z]))+")
_BEFORE_WORDS = re.compile(rf"(?:{_WIDE.pattern})?(?:\(\s*)?\\(?:text|mbox)")
_TRAILING = re.compile(r"(?:\\[,;: ]|~|\s|[.,;])+$")
_DEFINING = re.compile(r":(?==)")
_EQUAL_COLON = re.compile(r"\\(?:eqqcolon|eqcolon)(?![a-zA-Z])")
_COLON_EQUAL = re.compile(r"\\(?:coloneqq|coloneq)(?![a-zA-Z])")
_EQUIVALENT = re.compile(
    r"\\equiv(?![a-zA-Z])(?!\s*\})"
)  # a definition, or an identity
_NOT_EQUAL = re.compile(  # modulo a number, of problems, or of statements
    r"\\[bp]?mod(?![a-zA-Z])|\bmod(?:ulo)?\b|\b(?:arg)?(?:min|max)|\\arg(?![a-zA-Z])"
    r"|\\(?:iff|implies|land|lor|neg|lnot|wedge|vee|Leftrightarrow|Rightarrow)(?![a-zA-Z])"
)
_NAMED_AT_END = re.compile(r"\A=\s*:\s*(.+)\Z", re.S)
_LINKS = re.compile(
    r"^\s*\\text\s*\{\s*(?:,\s*)?(?:and|so|thus|hence|therefore)\s*,?\s*\}\s*$"
)
_NUMBER = re.compile(
    r"\s*(?:\\text\s*\{)?\s*\((?:\d+(?:\.\d+)*[a-z]?'?|[a-z]|[ivx]+)\)\s*\}?\s*\Z"
    r"|\s*\\(?:blacksquare|square|Box|qed|qedhere|qedsymbol)(?![a-zA-Z])\s*\Z"
)
_SIGNATURE = re.compile(  # f: \mathbb{R}^n \to \mathbb{R}
    r"\s*\\?[a-zA-Z]+\s*(?::|\\colon)\s*\\mathbb[^=]*\\(?:to|rightarrow)(?![a-zA-Z])"
    r"\s*\\mathbb[^=]*\Z"
)


def statements(
    display: Display, brackets: frozenset[str] = frozenset()
) -> list[Statement]:
    """Split a display into statements; `brackets` are signs that the text reads as
    brackets, and not as relations."""
    found: list[Statement] = []
    above = 0  # where the statements of the row above begin, which may be premises
    for joined in _logical_rows(display):
        row = _in_one_form(joined.text + joined.reason)
        if IMPLIES.match(row.characters):
            found[above:] = map(_as_premise, found[above:])
        above = len(found)
        if row.characters.strip():
            found += _of_row(row, joined, bool(found), brackets)
        if joined.because:  # the rows may hold only for this reason
            found[above:] = map(_as_premise, found[above:])
        for reason in map(_in_one_form, joined.because):
            plain = _Row(reason, Text("", ()))
            more = _of_row(reason, plain, True, brackets)
            found += map(_as_premise, more)
    return [*map(_as_premise, found)] if display.conditional else found


def _as_premise(statement: Statement) -> Statement:
    return replace(statement, conditional=True, concludes=False)


def _in_one_form(row: Text) -> Text:
    """Return a row with = for signs that define, and for an equivalence of terms."""
    row = (
        with_marks(row)
        .replaced(_COLON_EQUAL, "=")
        .replaced(_EQUAL_COLON, "=:")
        .replaced(_DEFINING)
    )
    if not _NOT_EQUAL.search(row.characters):
        row = row.replaced(_EQUIVALENT, "=")
    return row


def _of_row(
    row: Text, joined: _Row, follows: bool, brackets: frozenset[str]
) -> Iterator[Statement]:
    """Yield the statements of a row; `follows` says whether others are above it."""
    fault, pieces = joined.fault, _pieces(row)
    # y = x alone is an equation, and beside one a range of an index.
    clauses = {piece: _behind_where(piece) for piece in pieces}
    pieces = [clauses[piece] or piece for piece in pieces]
    behind = {new: old for old, new in clauses.items() if new}
    equations = [
        piece
        for piece in pieces
        if _is_equation(piece) or (piece is pieces[0] and _leads(pieces))
    ] or [piece for piece in pieces[:1] if len(piece.split("=")) > 1]
    beside = tuple(
        piece
        for piece in pieces
        if piece not in equations
        and not _LINKS.match(piece.characters)
        and not (piece is pieces[0] and _is_source(piece, row))
        and not _NUMBER.match(piece.characters)
        and not _SIGNATURE.match(piece.characters)
    )
    conditions = joined.conditions
    if len(equations) > 1:
        beside += tuple(piece for one in conditions for piece in one.pieces)
        conditions = ()
    if not equations:
        alone = len(pieces) == 1 and not conditions
        for piece in pieces:
            sides = _compared(piece, brackets) if alone else None
            yield Statement((piece,), (), fault, sides=sides)
    if _OR.search(row.characters):
        fault = "two equations with or between them: which one is claimed?"
    introduced = False
    for equation in equations:
        clause = behind.get(equation)
        introduced = introduced or (clause is not None and follows)
        arrows = [match.start() for match in IMPLIES.finditer(row.characters)]
        concludes = bool(arrows) and equation.origins[0] > row.origins[arrows[-1]]
        if beside and equation is not equations[-1]:
            fault = "does what stands beside another equation hold for this one?"
        one = Statement((), beside, fault, bool(arrows), concludes, introduced, clause)
        links = chain(equation, brackets)
        if name := _NAMED_AT_END.search(links[-1].whole.characters):
            # a = b =: c defines c as b.
            place = slice(name.start(1), name.end(1))
            named = (links[-1].whole[place], links[-2].term)
            links = links[:-1]
            yield from _of_chain(one, links, conditions) if len(links) > 1 else ()
            yield replace(one, members=named)
        else:
            yield from _of_chain(one, links, conditions)
        fault, follows = "", True


def _is_source(piece: Text, row: Text) -> bool:
    """Whether a piece consists of the words from which an arrow concludes a row."""
    return (
        ONLY_WORDS.fullmatch(piece.characters) is not None
        and IMPLIES.search(row.characters) is not None
    )


def _compared(
    piece: Text, brackets: frozenset[str] = frozenset()
) -> tuple[Text, Text] | None:
    """Return the two sides of an inequality, or of an approximation."""
    links = chain(piece, brackets)
    if len(links) != 2 or links[1].sign not in _WITH_SIDES:
        return None
    return links[0].term, links[1].term


def _of_chain(
    one: Statement, links: list[Link], conditions: tuple[Condition, ...]
) -> Iterator[Statement]:
    """Yield the equations of a chain, and its other relations between them."""
    hold, fault = in_force(conditions, [link.term for link in links])
    one = replace(one, fault=one.fault or fault)
    runs: list[list[int]] = []
    for number, link in enumerate(links):
        if link.sign in ("", "="):
            runs[-1:] = [[*(runs[-1] if runs else ()), number]]
        else:
            runs.append([number])
    for at, run in enumerate(runs):
        first = links[run[0]]
        if first.sign:
            above = runs[at - 1]
            whole = first.whole
            if at == 1 and len(above) == 1 and links[above[0]].term.characters:
                whole = links[above[0]].term + whole
            sides = (links[run[0] - 1].term, first.term)
            near = sides if first.sign in _WITH_SIDES else None
            yield replace(
                one, members=(whole,), relation=first.sign, fault="", sides=near
            )
        if len(run) > 1:
            yield replace(
                one,
                members=tuple(links[number].term for number in run),
                conditions=tuple(hold[number] for number in run),
            )
            one = replace(one, fault="")


@dataclass
class _Row:
    """A row joined to those that continue it, without the words and the conditions at
    their ends, the reasons behind it, and why it cannot be split with certainty."""

    text: Text
    reason: Text
    conditions: tuple[Condition, ...] = ()
    fault: str = ""
    because: tuple[Text, ...] = ()

    def go_on(self, row: _Row, text: Text) -> None:
        """Join a row that continues this one, whose end is `text`."""
        self.text = text + row.text
        self.reason += row.reason
        self.conditions += row.conditions
        self.because += row.because


def _logical_rows(display: Display) -> list[_Row]:
    """Return the rows, each joined to those that continue it."""
    rows: list[_Row] = []
    aligned_first = bool(display.starts) and display.starts[0]
    following = [*display.rows, Text("", ())][1:]
    for written, begins, below in zip(
        display.rows, display.starts, following, strict=True
    ):
        written, reasons = split_reasons(without_opening(written))
        if not written.characters:
            if reasons and not rows:
                rows.append(_Row(written, written))
            if reasons:
                rows[-1].because += (*reasons,)
            continue
        row = _row(written, rows)
        row.because = (*reasons,)
        text = row.text
        if rows and (display.joined or _goes_on(rows[-1].text, text)):
            rows[-1].go_on(row, _without_end(rows[-1].text))
            continue
        if rows and re.match(r"\s*-", text.characters) and (begins or aligned_first):
            if begins and not aligned_first:
                rows[-1].go_on(row, rows[-1].text)
                continue
            row.fault = (
                "does the row that begins with - continue the row above, or begin anew?"
            )
        elif rows and not _stands_alone(text, below):
            row.fault = "does the row without = continue the row above?"
        if row.fault:
            rows[-1].fault = row.fault
        rows.append(row)
    return rows


def _row(written: Text, above: list[_Row]) -> _Row:
    """Split the words and the conditions off a row that has or continues an
    equation."""
    row, reason = _without_words(written)
    rest, condition = with_condition(row)
    if condition is not None:
        rest, more = _without_words(without_reason(rest))
        reason = more + reason
    if not (
        has_relation(rest.characters) or (above and _goes_on(above[-1].text, rest))
    ):
        return _Row(*_without_words(written))
    rest, apart = _without_last_piece(rest)
    return _Row(rest, apart + reason, (condition,) if condition else ())


def _without_last_piece(row: Text) -> tuple[Text, Text]:
    """Split off a row what follows a wide space without being an equation, so that the
    row below does not continue it."""
    for at in outside(row.characters):
        if not at or not _APART.match(row.characters, at):
            continue
        pieces = [piece.characters for piece in _pieces(row[at:])]
        if (
            pieces
            and not any(map(_may_go_on, pieces))
            and not _UNFINISHED.search(row.characters[:at])
        ):
            return row[:at], Text(r"\quad", 5 * (row.origins[at],)) + row[at:]
    return row, Text("", ())


def _may_go_on(piece: str) -> bool:
    """Whether a piece may be a part of an equation."""
    is_related = has_relation(piece) and not piece.startswith("(")
    return is_related or _CONTINUES.match(piece) is not None


def _without_words(row: Text) -> tuple[Text, Text]:
    """Split a row before the words at its end that may give a reason; a wide space
    begins these."""
    for at in outside(row.characters):
        if at and _BEFORE_WORDS.match(row.characters, at):
            space = Text(r"\quad", 5 * (row.origins[at],))
            words = _WIDE.match(row.characters, at)
            reason = row[words.end() if words else at :]
            if PROSE.fullmatch(reason.characters):
                return row[:at], space + reason
    return row, Text("", ())


def _stands_alone(row: Text, below: Text) -> bool:
    """Whether a row is an equation, a declaration, or the left side of the next row, or
    begins with words and a colon."""
    text = row.characters
    return (
        has_relation(text)
        or r"\in" in text
        or begins_with_relation(below.characters)
        or LABEL.match(text) is not None
    )


def _goes_on(above: Text, row: Text) -> bool:
    start = row.characters.lstrip()
    if start.startswith("-"):
        return (
            len(row.split("=")) == 1 or _UNFINISHED.search(above.characters) is not None
        )
    return (
        _CONTINUES.match(start) is not None
        or _UNFINISHED.search(above.characters) is not None
        or begins_with_relation(start)
        or _MEMBER.match(start) is not None
        or ends_with_relation(above.characters)
        or len(above.characters) not in outside(above.characters)
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
    for piece in row.split(_APART.pattern):
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
    r"\s*(?:\\forall|\\(?:text(?:rm|bf|it|sf|normal)?|mbox|mathrm)\s*\{(?:[^{}]*\s"
    rf"|\s*(?:and|or)\s*|\s*\(?\s*(?:{_FIRST})(?:\s[^{{}}]*)?)\}})"
)


_WHERE = re.compile(
    r"\A\\(?:text(?:rm|bf|it|normal)?|mbox)\s*\{\s*(?:where|with)\s*\}(?:\s|~|\\[,;: ])*"
)


def _behind_where(piece: Text) -> Text | None:
    """Return the equation in a clause such as "where r = 2 x"; None if it is none."""
    match = _WHERE.match(piece.characters)
    rest = piece[match.end() :] if match else None
    return rest if rest and _is_equation(rest) else None


_LETTERS = re.compile(r"\s*([a-zA-Z])\s*=\s*[a-zA-Z]\s*")


def _leads(pieces: list[Text]) -> bool:
    """Whether the first of several pieces is an equation of two letters, and not a
    range of an index that the others have."""
    match = _LETTERS.fullmatch(pieces[0].characters)
    rest = " ".join(piece.characters for piece in pieces[1:])
    if match is None or "=" not in rest or _WORDS.match(pieces[1].characters):
        return False
    plain = re.sub(r"\\[a-zA-Z]+", " ", rest)
    return not re.search(rf"[_^]\s*(?:{match[1]}|\{{[^{{}}]*{match[1]})", plain)


def _is_equation(piece: Text) -> bool:
    text = piece.characters
    return (
        len(piece.split("=")) > 1
        and not _INDEX_RANGE.match(text)
        and not _WORDS.match(text)
    )
