"""Follow the directives in comments, which declare what a text leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from backpass.derivation.language.names import LOSS, is_special
from backpass.derivation.language.parse import (
    DECLARING,
    Line,
    Part,
    Unreadable,
    parse,
    read,
)
from backpass.derivation.text.einstein import with_sums
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.notation import notation
from backpass.derivation.text.passages import Text, relocated


def follow(known: Knowledge, text: Text, source: str, line_number: int) -> None:
    """Follow one directive. Raises `Unreadable`."""
    word, _, rest = text.characters.partition(" ")
    rest = rest.strip()
    now = known.now
    if word == "restart" and not rest:
        known.now = known.at_start
        known.restrictions.restart()
        _uncontest(known, {*known.contested}, text, source)
    elif word == "loss" and rest:
        _call_loss(known, rest, text.part(source), line_number)
    elif (word, rest) in (("bar", "gradient"), ("dot", "differential")):
        known.now = replace(now, accents=now.accents | {word})
    elif (word, rest) == ("d", "differential"):
        if {"d"} & {*known.scope.variables, *known.scope.dimensions}:
            raise Unreadable("d is a name here", text.part(source))
        known.now = replace(now, accents=now.accents | {"dot", "d"})
    elif (word, rest) == ("keep", "definitions"):
        known.now = replace(now, kept=True)
    elif (word, rest) == ("sums", "implied"):
        known.now = replace(now, summed=True)
    elif (word, rest) == ("partial", "total"):
        known.through_definitions()
    elif (word, rest) == ("partial", "direct"):
        known.now = replace(now, total=False)
        known.add(Line("direct", right=text.part(source)), line_number)
    elif (word, rest) == ("partial", "applied"):
        known.add(Line("applied", right=text.part(source)), line_number)
    elif word == "broadcast" and not rest:
        known.add(Line("broadcast"), line_number)
    elif word == "when" and rest:
        known.condition = text[text.characters.index(rest) :]
    elif word == "read" and rest:
        found = notation(text[text.characters.index(rest) :], source)
        known.now = replace(now, notations=(*now.notations, found))
        if source == known.source:
            known.notations[found] = text
    elif word in DECLARING:
        text = known.defining(text, source)
        try:
            (line,) = read(text.characters)
        except Unreadable as error:
            raise relocated(error, text, source) from None
        line = _placed(line, text, source)
        if line.kind == "function" and line.left is not None:
            head = known.without_arguments(line.left)
            line = line if head == line.left else replace(line, kind="let", left=head)
        if known.now.summed and line.kind == "let":
            assert line.left is not None and line.right is not None
            line = replace(line, right=with_sums(line.left, line.left, line.right)[2])
        before = {*known.scope.variables}
        known.add(line, line_number)
        _uncontest(known, {*known.scope.variables} - before, text, source)
        accents = {w for w in ("bar", "dot") if f"\\{w}" in text.characters}
        known.now = replace(known.now, accents=known.now.accents | accents)
    else:
        raise Unreadable(
            "expected given, constant, let, assume, slice, factor, layout, range, random, "
            "independent, identical, mean, variance, read, loss, when, restart, "
            "broadcast, keep definitions, bar gradient, dot differential, d "
            "differential, sums implied, partial total, partial direct or partial "
            "applied",
            text.part(source),
        )


def _uncontest(known: Knowledge, names: set[str], text: Text, source: str) -> None:
    """Let the equations above a directive define none of some names: they are of other
    names than those that it declares."""
    if source != known.source or not text.origins:
        return  # a file of definitions
    for name in names & known.contested.keys():
        left = known.contested[name].left
        if left is not None and left.start < text.origins[0]:
            del known.contested[name]


def _call_loss(known: Knowledge, name: str, directive: Part, line_number: int) -> None:
    """Let a name be that of the loss. If it is defined above, that is the loss."""
    part = replace(directive, text=name)
    losses = known.now.losses
    try:
        found = known.scope.resolve(parse(part, "moved"))
    except Unreadable:
        found = None
    if found is not None and found.kind == "variable" and not found.indices:
        variable = known.scope.variables[found.name]
        if variable.kind != "defined" or variable.shape:
            what = "declared" if variable.kind != "defined" else "an array"
            raise Unreadable(
                f"the loss is a number with a definition, but {name} is {what}", part
            )
        if LOSS not in known.scope.variables:
            known.add(Line("let", replace(part, text=LOSS), part), line_number)
    known.now = replace(known.now, losses=losses | {name})


Faults = list[tuple[Text, Unreadable]]


def follow_all(
    known: Knowledge, texts: Iterable[Text], source: str, line_of: Callable[[Text], int]
) -> Faults:
    """Follow directives, in any order of declarations and definitions that use each
    other; return those that cannot be followed. If a name cannot be
    declared, the other names of its directive still are."""
    faults = _follow_all(known, texts, source, line_of)
    names = [_by_name(text) for text, _ in faults]
    if all(len(pieces) == 1 for pieces in names):
        return faults
    again = [piece for pieces in names for piece in pieces]
    left = dict(_follow_all(known, again, source, line_of))
    found: Faults = []
    for pieces, (text, error) in zip(names, faults, strict=True):
        here = [(piece, left[piece]) for piece in pieces if piece in left]
        found += here if len(here) < len(pieces) else [(text, error)]
    return found


def _follow_all(
    known: Knowledge, texts: Iterable[Text], source: str, line_of: Callable[[Text], int]
) -> Faults:
    # The convention holds for the definitions in its comment, too.
    waiting = sorted(texts, key=lambda text: text.characters.split() != _IMPLIED)
    waiting = [piece for text in waiting for piece in _declarations(text)]
    faults: list[tuple[Text, Unreadable]] = []
    while waiting:
        left: list[tuple[Text, Unreadable]] = []
        later: set[str] = set()  # names whose definition waits
        for number, text in enumerate(waiting):
            below = {n for one in waiting[number + 1 :] for n in _defined_in(one)}
            names = {*_NAMES.findall(text.characters)} - {*_defined_in(text)}
            names &= later | {name for name in below if is_special(name)}
            try:
                if names:
                    message = f"{min(names)} is not declared or defined above"
                    raise Unreadable(message, text.part(source))
                follow(known, text, source, line_of(text))
            except Unreadable as error:
                left.append((text, error))
                later |= {*_defined_in(text)}
        missing = [one for one in left if _NOT_ABOVE.search(one[1].message)]
        faults += [one for one in left if one not in missing]
        if len(missing) == len(waiting):
            return faults + missing
        waiting = [text for text, _ in missing]
    return faults


def _declarations(text: Text) -> list[Text]:
    """Return the declarations of a directive as directives, so that one that cannot be
    read does not drop the others."""
    word = _DECLARES.match(text.characters)
    if word is None:
        return [text]
    pieces: list[Text] = []
    start = word.end()
    for comma in _AFTER_SPACE.finditer(text.characters, start):
        pieces.append(text[: word.end()] + text[start : comma.end(1)])
        start = comma.end()
    return [*pieces, text[: word.end()] + text[start:]] if pieces else [text]


def _by_name(text: Text) -> list[Text]:
    """Return a declaration of several names as a declaration of each."""
    word = _DECLARES.match(text.characters)
    space = re.search(r"\\in(?![a-zA-Z])", text.characters)
    if word is None or space is None:
        return [text]
    names = text[word.end() : space.start()].split(",")
    return [
        text[: word.end()].strip() + name.strip() + text[space.start() :]
        for name in names
    ]


def _defined_in(text: Text) -> list[str]:
    """Return the name that a directive defines, without its indices."""
    return _LET.findall(text.characters)


_DECLARES = re.compile(r"(?:given|constant|slice)\s+")
_AFTER_SPACE = re.compile(
    r"(\\mathbb\s*(?:\{R\}|R)(?:_\{>0\})?"
    r"(?:\s*\^\s*(?:\w|\{(?:[^{}]|\{[^{}]*\})*\}))?)\s*,\s*"
)
_IMPLIED = ["sums", "implied"]
_NAMES = re.compile(r"\\[a-zA-Z]+|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_LET = re.compile(r"^let\s+(?:\\[a-zA-Z]+\s*\{)?(\\[a-zA-Z]+|[a-zA-Z])")
_NOT_ABOVE = re.compile(
    r"is not declared or defined above$|is neither a dimension nor an index of a name$"
    r"|^what does \w+ run over\?"
)


def _placed(line: Line, text: Text, source: str) -> Line:
    """Return a line that was read from a text, at its places in the source."""

    def placed(part: Part | None) -> Part | None:
        if part is None:
            return None
        return text[part.start : part.start + len(part.text)].part(source)

    return replace(
        line,
        left=placed(line.left),
        right=placed(line.right),
        conditions=placed(line.conditions),
    )
