"""Notations that a text declares: `read D_{#1} as \\operatorname{diag}(#1)`.

A notation is LaTeX with #1, #2, … for its arguments, and a template in the notation of
derivations that replaces it. It is matched token by token, as TeX matches the arguments
of a macro: #1 in braces is one letter, one digit, one command, or one group; elsewhere
it is what stands before the next token of the notation, with all its brackets closed.
The replacement is one factor: a sum or a product is put in brackets. A product that
ends in \\sum_s, or in a sum over a letter that the notation shows, takes what follows:
with `read E_s as \\sum_s p_s`, E_s f_s is \\sum_s p_s f_s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from backpass.derivation.language.brackets import outside
from backpass.derivation.language.parse import Unreadable
from backpass.derivation.text.greek import LOWER
from backpass.derivation.text.passages import Text

_TOKEN = re.compile(
    # A word is one token, so that no letter of it is replaced.
    r"\\(?:text(?:rm|bf|it|normal)?|mbox|operatorname|mathrm|mathbb|mathcal|begin|end)"
    r"\s*\{[^{}#]*\}|#[1-9]|\\[a-zA-Z]+|\\.|\S",
    re.S,
)
_OPENING, _CLOSING = "{([", "})]"
_PLACE = re.compile(r"#([1-9])")
# What bounds an argument in a template on its left and on its right.
_BOUND_BEFORE = re.compile(r"(?:\A|[{(\[,]|\\langle|\\lVert|\\\|)\s*\Z")
_BOUND_AFTER = re.compile(
    r"\s*(?:\Z|[})\],]|\\rangle|\\rVert|\\\||\\right(?![a-zA-Z]))"
)
_ONE = re.compile(r"\\[a-zA-Z]+|[a-zA-Z0-9]")
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_BRACKETS = r"(?:\\left\s*)?[(\[][^()\[\]]*(?:\\right\s*)?[)\]]"
# A template that stays one factor in any formula: a name with indices, a command with
# its arguments, a function's value, or a bracket; and signs, such as \odot and ^\top.
_FACTOR = re.compile(
    rf"(?:(?:\\[a-zA-Z]+|[a-zA-Z])(?:\s*{_GROUP})*|#[1-9])"
    rf"(?:\s*_\s*(?:\w|#[1-9]|{_GROUP}))?(?:\s*\^\s*\{{\(\w\)\}})?(?:\s*{_BRACKETS})?"
    # A sign that takes what follows it: \\sum_{k=1}^K.
    rf"|\\(?:sum|prod|bigodot)(?:\s*[_^]\s*(?:\w|#[1-9]|{_GROUP})){{1,2}}"
    rf"|[0-9]|{_BRACKETS}|\\langle.*\\rangle|\\lVert.*\\rVert(?:_F)?|[+\-/=]|\^.*",
    re.S,
)

_SUM = re.compile(  # \\sum_{s=1}^n
    r"\\sum\s*_\s*(?:\{\s*)?(?P<letter>[a-zA-Z])(?![a-zA-Z])(?:[^{}]*\})?"
    rf"(?:\s*\^\s*(?:\w|{_GROUP}))?"
)
_BRACKETS_ROUND = ((r"\left( ", 0), (r" \right)", -1))
_OPENS = re.compile(r"[(\[]|\\(?:left|[bB]igg?l?|\{)")
# A name before a bracket would print like a function; d is a differential.
_FACTOR_BEFORE = re.compile(
    rf"(?:(?<![a-zA-Z\\])[a-ce-zA-Z]|\\(?!pi(?![a-z]))(?:{LOWER}))\s*\Z"
)

_IN_BRACKETS = re.compile(r"\\left\( (.*) \\right\)", re.S)
_VARIATION = re.compile(
    r"\\partial(?![a-zA-Z])\s*(?:[a-zA-Z]|\\(?!left)[a-zA-Z]+(?:\{[a-zA-Z]\})?)?"
    r"(?:_(?:\w|\{[^{}]*\}))?\s*(?=\()"
)
_NAME = re.compile(r"\\?[a-zA-Z]+(?:_(?:\w|\{[^{}]*\}))?")


class _Token(NamedTuple):
    text: str
    start: int
    end: int


def _tokens(characters: str) -> list[_Token]:
    return [_Token(m[0], *m.span()) for m in _TOKEN.finditer(characters)]


def tokens_in(characters: str) -> tuple[str, ...]:
    """Return the tokens of a formula, as notations are matched."""
    return tuple(token.text for token in _tokens(characters))


@dataclass(frozen=True)
class Notation:
    """What is read as something else: tokens with places for arguments, and a
    template with the same places. `is_open` says whether its last sum takes what
    follows, and `place` where its comment has it."""

    pattern: tuple[str, ...]
    template: str
    is_open: bool = False
    place: int = 0

    def applied(self, text: Text, source: str) -> Text:
        """Return a text of the source with this notation replaced. Raises `Unreadable`
        where an argument does not fit into the template without brackets."""
        tokens = _tokens(text.characters)
        found, at, number = Text("", ()), 0, 0
        while number < len(tokens):
            match = self._match(tokens, number)
            if match is None:
                number += 1
                continue
            end, arguments = match
            first, last = tokens[number].start, tokens[end - 1].end
            written = [self.applied(text[slice(*span)], source) for span in arguments]
            new = self._filled(text[first:last], written, source)
            inner = _IN_BRACKETS.fullmatch(new.characters)
            if inner and _is_numerator(tokens, number, end) and _is_variation(inner[1]):
                new = new[slice(*inner.span(1))]
            before = text[at:first]
            behind = tokens[end].text if end < len(tokens) else ""
            ahead = tokens[number - 1].text if number else ""
            if self.is_open and (behind in ("^", "_", "'") or ahead in ("/", "^", "_")):
                new = _bracketed(new)
            elif self.is_open and _OPENS.fullmatch(behind):
                new = _joined(new, _at(r" \,", new.origins[-1]))
            elif inner and _FACTOR_BEFORE.search(_joined(found, before).characters):
                new = _joined(_at(r"\, ", new.origins[0]), new)
            if _is_only_group(tokens, number, end) and _NAME.fullmatch(new.characters):
                before, last, end = (
                    text[at : tokens[number - 1].start],
                    tokens[end].end,
                    end + 1,
                )
            found = _joined(_joined(found, before), new)
            at, number = last, end
        return _joined(found, text[at:])

    def _match(
        self, tokens: Sequence[_Token], start: int
    ) -> tuple[int, list[tuple[int, int]]] | None:
        """Return the number of the token behind a match, and where the arguments are;
        None if the notation is not there."""
        at, spans = start, {}
        for number, wanted in enumerate(self.pattern):
            if self._is_group(number) or self._is_group(number - 2):
                continue  # braces of an argument
            if at >= len(tokens):
                return None
            if not (place := _PLACE.fullmatch(wanted)):
                if tokens[at].text != wanted:
                    return None
                at += 1
                continue
            if self._is_group(number - 1):
                end = _after_group(tokens, at)
            else:
                end = _before(tokens, at, self.pattern[number + 1])
            if end is None:
                return None
            first, last = tokens[at].start, tokens[end - 1].end
            if self._is_group(number - 1) and tokens[at].text == "{":
                first, last = first + 1, last - 1
            spans[int(place[1])] = first, last
            at = end
        return at, [spans[number] for number in sorted(spans)]

    def _is_group(self, number: int) -> bool:
        """Whether an argument in braces begins at a token of the pattern."""
        three = self.pattern[number : number + 3] if number >= 0 else ()
        return len(three) == 3 and three[0] == "{" and three[2] == "}" and (
            _PLACE.fullmatch(three[1]) is not None
        )  # fmt: skip

    def _filled(self, use: Text, arguments: list[Text], source: str) -> Text:
        """Return the template with the arguments of a use."""
        first, last = use.origins[0], use.origins[-1]
        found, at = Text("", ()), 0
        for match in _PLACE.finditer(self.template):
            argument = arguments[int(match[1]) - 1].strip()
            before, after = self.template[: match.start()], self.template[match.end() :]
            bounded = _BOUND_BEFORE.search(before) and _BOUND_AFTER.match(after)
            if not bounded and not _ONE.fullmatch(argument.characters):
                raise Unreadable(
                    f"{match[0]} is without brackets in {self.template}, so it must be "
                    f"one letter, digit, or command; got {argument.characters}",
                    argument.part(source),
                )
            found = _joined(found, _at(self.template[at : match.start()], first))
            found = _joined(found, argument)
            at = match.end()
        return _joined(found, _at(self.template[at:], last))


def notation(text: Text, source: str) -> Notation:
    """Read `PATTERN as TEMPLATE`. Raises `Unreadable`."""
    halves = re.split(r"\s+as\s+", text.characters)
    part = text.part(source)
    if len(halves) != 2 or not all(half.strip() for half in halves):
        raise Unreadable("expected read … as …, such as read D_{#1} as …", part)
    pattern = tokens_in(halves[0])
    places = [token for token in pattern if _PLACE.fullmatch(token)]
    if sorted(places) != [f"#{number + 1}" for number in range(len(places))]:
        raise Unreadable("expected each of #1, #2, … exactly once before as", part)
    if not {match[0] for match in _PLACE.finditer(halves[1])} <= {*places}:
        raise Unreadable(
            "the text after as uses an argument that does not stand before as", part
        )
    template = halves[1].strip()
    is_open = not _FACTOR.fullmatch(template) and _takes_more(template, pattern)
    if not is_open and not _FACTOR.fullmatch(template):
        template = rf"\left( {template} \right)"
    found = Notation(pattern, template, is_open, part.start)
    for number, token in enumerate(pattern):
        after = pattern[number + 1] if number + 1 < len(pattern) else "#"
        if _PLACE.fullmatch(token) and not found._is_group(number - 1):
            if number == 0 or after.startswith("#"):
                raise Unreadable(
                    f"where does {token} begin and end? Put it in braces, or put "
                    "symbols on both sides of it",
                    part,
                )
    return found


def _takes_more(template: str, pattern: tuple[str, ...]) -> bool:
    """Whether a product with sums takes what follows it: it ends in a sum without a
    term, or a notation shows the letters of its sums."""
    top = [*outside(template)]
    if any(re.match(r"[+\-=]|\\(?:pm|mp)(?![a-zA-Z])", template[at:]) for at in top):
        return False
    sums = [match for at in top if (match := _SUM.match(template, at))]
    if not sums:
        return False
    is_last = not template[sums[-1].end() :].strip()
    letters = {match["letter"] for match in sums}
    return is_last or letters <= {*pattern}


def _bracketed(text: Text) -> Text:
    opening, closing = (_at(one, text.origins[at]) for one, at in _BRACKETS_ROUND)
    return _joined(_joined(opening, text), closing)


def _is_numerator(tokens: Sequence[_Token], start: int, end: int) -> bool:
    """Whether tokens are all that is above a fraction bar."""
    before = [token.text for token in tokens[max(start - 2, 0) : start]]
    after = [token.text for token in tokens[end : end + 1]]
    return before in ([r"\frac", "{"], [r"\dfrac", "{"]) and after == ["}"]


def _is_variation(text: str) -> bool:
    """Whether a text is \\partial before one bracket or one function's value."""
    match = _VARIATION.match(text)
    if match is None:
        return False
    bracket = text[match.end() :]
    return [*outside(bracket)] == [0, len(bracket)]


def _is_only_group(tokens: Sequence[_Token], start: int, end: int) -> bool:
    """Whether tokens are in braces that only group them."""
    if start == 0 or tokens[start - 1].text != "{":
        return False
    before = tokens[start - 2].text if start > 1 else ""
    is_argument = before in ("^", "_", "}", "]") or re.fullmatch(r"\\[a-zA-Z]+", before)
    return end < len(tokens) and tokens[end].text == "}" and not is_argument


def _after_group(tokens: Sequence[_Token], at: int) -> int | None:
    """Return the number of the token behind a group or a single token."""
    if tokens[at].text != "{":
        return at + 1 if _ONE.fullmatch(tokens[at].text) else None
    return None if (end := _before(tokens, at + 1, "}")) is None else end + 1


def _before(tokens: Sequence[_Token], at: int, wanted: str) -> int | None:
    """Return the number of the first token like `wanted` outside all brackets; None if
    the tokens do not contain it there, or begin with it."""
    depth, start = 0, at
    for number in range(at, len(tokens)):
        text = tokens[number].text
        if depth == 0 and text == wanted:
            return number if number > start else None
        depth += (text in _OPENING) - (text in _CLOSING)
        if depth < 0:
            return None
    return None


def _joined(first: Text, second: Text) -> Text:
    """Join two texts, with a space where the end of a command would become longer."""
    if re.search(r"\\[a-zA-Z]+\Z", first.characters) and re.match(
        "[a-zA-Z]", second.characters
    ):
        first = Text(f"{first.characters} ", (*first.origins, first.origins[-1]))
    return Text(first.characters + second.characters, (*first.origins, *second.origins))


def _at(characters: str, origin: int) -> Text:
    return Text(characters, (origin,) * len(characters))
