"""Infer that x_i is an element of \\mathbf{x}, and which plain words are functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backpass.derivation.language.functions import (
    BUILT_IN,
    WORD_BEFORE_BRACKET,
    WORDS,
)
from backpass.derivation.text.sight.steps import labels, steps
from backpass.derivation.text.sight.upper import Reading, upper_indices

_BOLD = re.compile(
    r"(?:\\(?P<accent>hat|tilde|bar|mean)\s*\{\s*)?"
    r"\\(?P<face>mathbf|boldsymbol|vec|underline)\s*\{\s*(?P<letter>[a-zA-Z]|\\[a-z]+)\s*\}"
    r"(?(accent)\s*\})(?P<index>\s*_)?"
)
_WORDS = re.compile(
    r"\\(?:text[a-z]*|mbox|mathrm|operatorname\*?|begin|end|mathbb|mathcal|label|tag)\s*\{[^{}]*\}"
)
_PLAIN = re.compile(
    r"(?:\\(?P<accent>hat|tilde|bar|mean)\s*(?:\{\s*(?P<below>[a-zA-Z]|\\[a-z]+)\s*\}))"
    r"|(?P<letter>[a-zA-Z](?![a-zA-Z]*\{)|\\[a-zA-Z]+)"
)
_INDEX = re.compile(
    r"\s*_\s*(?:\{\s*([a-zA-Z0-9](?:\s*,?\s*[a-zA-Z0-9])?)\s*\}|([a-zA-Z0-9]))"
)
_WORD = re.compile(
    rf"(?<![a-zA-Z\\{{])(?P<word>(?i:{'|'.join(sorted(BUILT_IN, key=len, reverse=True))}))"
    r"(?=\s*(?:\\left\s*)?\()"
)


_IDENTITY = re.compile(
    r"\\(?:mathbf|boldsymbol|mathbb|mathrm)\{I\}(?!\s*(?:_\s*\{?[ij]|\(|=))"
)
_ONES = re.compile(
    r"\\(?:mathbf|mathbb|boldsymbol)\s*(?:\{\s*1\s*\}|1)\s*_\s*"
    r"(?:\{\s*(?P<inside>[a-z])\s*\}|(?P<bare>[a-z]))(?!\s*\^)"
)
_OWN_DELTA = re.compile(r"\\delta(?![a-zA-Z])(?!\s*_\s*\{\s*[a-z]\s*,?\s*[a-z]\s*\})")
_BOLD_ONE = re.compile(r"\\(?:mathbf|mathbb|boldsymbol)\s*(?:\{\s*1\s*\}|1)")
_PAIR = re.compile(r"_\s*\{\s*([a-z])\s*,?\s*([a-z])\s*\}")
_LETTER = r"(?:[a-zA-Z]|\\(?:alpha|beta|gamma|lambda|mu|eta|rho|tau|kappa|epsilon))"
_SLASH = re.compile(
    rf"(?<![_^{{\\a-zA-Z/])(?P<above>{_LETTER})\s*/\s*(?P<below>{_LETTER})(?![a-zA-Z])"
    r"(?=\s*(?:\\sum|\\left\s*\(\s*\\sum|\\left\s*\(|[a-zA-Z]|\\mathbf)(?!\s*\())"
)
_CAPITALS = re.compile(
    r"(?<![a-zA-Z\\{])(?P<word>[A-Z][a-zA-Z]+)(?=\s*(?:\\left\s*)?\()"
)


def readings(formulas: str, names: set[str]) -> Iterator[Reading]:
    """Yield the notations of formulas; `names` are declared, and so have no other."""
    for word in sorted({match["word"] for match in _WORD.finditer(formulas)}):
        use = re.compile(rf"(?<![a-zA-Z\\{{]){word}")
        reading = rf"read {word} as \text{{{word}}}"
        yield Reading(reading, rf"{word} is the function \text{{{word}}}", use)
    for word in sorted(
        {match["word"] for match in WORD_BEFORE_BRACKET.finditer(formulas)}
    ):
        if (command := WORDS[word]) and word not in BUILT_IN and not {*word} <= names:
            use = re.compile(rf"(?<![a-zA-Z\\]){word}(?![a-zA-Z])")
            yield Reading(
                f"read {word} as {command}", rf"{word} is the function {command}", use
            )
    for bold in sorted({m[0] for m in _IDENTITY.finditer(formulas)} - names):
        use = re.compile(re.escape(bold))
        yield Reading(f"read {bold} as I", f"{bold} is the identity matrix", use)
    yield from _ones(formulas)
    yield from upper_indices(formulas)
    yield from steps(formulas)
    yield from labels(formulas)
    yield from _slashes(formulas)
    for word in sorted(_words(formulas)):
        use = re.compile(rf"(?<![a-zA-Z\\{{]){word}(?![a-zA-Z])")
        reading = rf"read {word} as \text{{{word}}}"
        yield Reading(reading, rf"{word} is one name, \text{{{word}}}", use)
    bare: dict[tuple[str, str], str] = {}
    indexed: set[tuple[str, str]] = set()
    for match in _BOLD.finditer(formulas):
        key = match["accent"] or "", match["letter"]
        whole = rf"\{match['face']}{{{match['letter']}}}"
        if match["accent"]:
            whole = rf"\{match['accent']}{{{whole}}}"
        if match["index"]:
            indexed.add(key)
        else:
            bare.setdefault(key, whole)
    plain = _plain(_WORDS.sub(" ", _BOLD.sub(" ", formulas)))
    for accent, letter in sorted(indexed - {*bare}):
        matrix = bare.get(("", letter.upper())) or (
            letter.upper() if plain.get(("", letter.upper())) == {0} else ""
        )
        if not accent and matrix and letter.isalpha() and letter.islower():
            row = rf"\mathbf{{{letter}}}"
            reading = f"read {row}_{{#1}} as {matrix}_{{#1}}"
            use = re.compile(re.escape(row) + r"\s*_")
            yield Reading(reading, rf"{row}_i is row i of {matrix}, as a column", use)
    for (accent, letter), whole in bare.items():
        count = 2 if letter.isupper() else 1
        for small in {letter, letter.lower()} if count == 2 else {letter}:
            name = rf"\{accent}{{{small}}}" if accent else small
            uses = plain.get((accent, small), set())
            bases = {one.partition("_")[0] for one in names}  # b, if b_0 is declared
            if uses == {count} and not {name, whole} & bases:
                yield _elements(name, whole, count)
    for accent, letter in plain:
        if not accent and letter.isupper() and plain[accent, letter] == {0}:
            small = letter.lower()
            if plain.get(("", small)) == {2} and not {small, letter} & names:
                yield _elements(small, letter, 2)


def _ones(formulas: str) -> Iterator[Reading]:
    """Yield the readings of \\mathbf{1}_i as an element of a vector of ones.

    Each bold 1 of the text then has an index that names have beside a second one.
    """
    ones = [*_ONES.finditer(formulas)]
    indices = {letter for pair in _PAIR.findall(formulas) for letter in pair}
    letters = {match["inside"] or match["bare"] for match in ones}
    # As \delta_{ii} it keeps its index, over which a text may sum without a sign.
    has_delta = _OWN_DELTA.search(formulas) is not None
    if len(ones) < len(_BOLD_ONE.findall(formulas)) or not letters <= indices:
        return
    for written, letter in sorted(
        {match[0]: match["inside"] or match["bare"] for match in ones}.items()
    ):
        use = re.compile(re.escape(written))
        reason = f"{written} is an element of a vector of ones"
        new = "1" if has_delta else rf"\delta_{{{letter}{letter}}}"
        yield Reading(f"read {written} as {new}", reason, use)


def _slashes(formulas: str) -> Iterator[Reading]:
    """Yield the readings of a / b before a factor as the fraction times the factor."""
    found = {(match["above"], match["below"]) for match in _SLASH.finditer(formulas)}
    for above, below in sorted(found):
        use = re.compile(rf"{re.escape(above)}\s*/\s*{re.escape(below)}(?![a-zA-Z])")
        written = f"{above} / {below}"
        fraction = rf"\frac{{{above}}}{{{below}}}"
        reason = (
            f"{written} before a factor is the fraction {fraction} times the factor"
        )
        yield Reading(f"read {written} as {fraction}", reason, use)


def _words(formulas: str) -> set[str]:
    """Return the words before a bracket whose letters occur nowhere else."""
    formulas = _WORDS.sub(" ", formulas)
    words = {m["word"] for m in _CAPITALS.finditer(formulas)}
    words = {one for one in words if one.lower() not in BUILT_IN}
    rest = formulas
    for one in words:
        rest = re.sub(rf"(?<![a-zA-Z\\]){one}(?![a-zA-Z])", " ", rest)
    letters = set("".join(re.findall(r"(?<!\\)(?<![a-zA-Z])[a-zA-Z]+", rest)))
    return {one for one in words if letters.isdisjoint(one)}


def _elements(name: str, whole: str, count: int) -> Reading:
    index = "ij"[:count]
    shown = f"{name}_i" if count == 1 else f"{name}_{{{index}}}"
    use = re.compile(rf"(?<![a-zA-Z\\]){re.escape(name)}\s*_")
    reading = f"read {name}_{{#1}} as {whole}_{{#1}}"
    return Reading(reading, f"{shown} is an element of {whole}", use)


def _plain(formulas: str) -> dict[tuple[str, str], set[int]]:
    """Return with how many indices each letter that is not bold occurs."""
    found: dict[tuple[str, str], set[int]] = {}
    for match in _PLAIN.finditer(formulas):
        letter = match["below"] or match["letter"]
        index = _INDEX.match(formulas, match.end())
        count = 0
        if index:
            count = len(re.sub(r"[\s,]", "", index[1] or index[2]))
        elif formulas[match.end() :].lstrip().startswith("_"):
            count = 9  # a label, or something else
        found.setdefault((match["accent"] or "", letter), set()).add(count)
    return found
