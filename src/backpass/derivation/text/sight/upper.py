"""Infer that indices are superscripts, as in A^{ij}, and related notations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_NAME = r"(?:\\(?:bar|mean|hat|tilde|mathbf|boldsymbol)\s*\{\s*[a-zA-Z]\s*\}|(?<![a-zA-Z\\])[a-zA-Z])"
_ABOVE = re.compile(
    rf"(?P<name>{_NAME})\s*\^\s*(?:\{{(?P<group>[^{{}}]*)\}}|(?P<one>\\?[a-zA-Z0-9]))"
)
_PAIR = re.compile(r"\s*([a-z])'?\s*,?\s*([a-z])'?\s*")
_DELTA = re.compile(r"\\delta\s*\^\s*\{?\s*[a-z]\s*\}?\s*_\s*\{?\s*[a-z]\s*\}?(?!\w)")
_PRIMED = re.compile(r"\\sum\s*_\s*\{\s*(?P<letter>[a-z])'\s*\}")
_SOFTMAX = re.compile(
    r"(?P<call>\\(?:text|mathrm|operatorname)\s*\{\s*softmax\s*\}\s*_\s*\{?\s*(?P<over>[a-z])\s*\}?"
    rf"\s*\(\s*(?P<inside>(?:{_NAME})\s*[_^]\s*\{{\s*[a-z]\s*,?\s*[a-z]\s*\}})\s*\))"
)
_ROOT = re.compile(
    r"\\sqrt\s*\{\s*(?P<name>[a-z])_(?:\{(?P<a>[a-z])\}|(?P<b>[a-z]))\s*\}"
)
_FREE = "lrstuvwzpqghc"


class Reading(NamedTuple):
    """An inferred notation, as a comment would declare it, and the reason."""

    directive: str
    reason: str
    pattern: re.Pattern[str]  # where it is used


def upper_indices(formulas: str) -> Iterator[Reading]:
    """Yield the readings of a text with superscript indices: at least two names have
    two letters there, or one has, and \\delta has one above and one below."""
    free = (one for one in _FREE if not _is_index(one, formulas))
    for match in _unique(_PRIMED, formulas, "letter"):
        letter, other = match["letter"], next(free, "")
        if other:
            reason = f"{letter}' is an index"
            yield _reading(f"{letter}'", other, reason, rf"{letter}'")
    for match in _unique(_SOFTMAX, formulas, "call"):
        inside, over, other = match["inside"], match["over"], next(free, "")
        indices = re.split(r"[_^]", inside)[1]
        if other and over in indices:
            name, sign = inside[: -len(indices) - 1], inside[-len(indices) - 1]
            summed = f"{name}{sign}{indices.replace(over, other)}"
            new = rf"\frac{{e^{{{inside}}}}}{{\sum_{{{other}}} e^{{{summed}}}}}"
            reason = f"{match['call']} is the softmax over {over}"
            yield _reading(match["call"], new, reason, re.escape(match["call"]))
    yield from _labels(formulas)
    above: dict[str, list[str]] = {}
    for match in _ABOVE.finditer(formulas):
        above.setdefault(match["name"], []).append(match["group"] or match["one"])
    pairs = {n for n, each in above.items() if all(map(_PAIR.fullmatch, each))}
    if len(pairs) + (_DELTA.search(formulas) is not None) < 2:
        return
    letters = {
        letter
        for name in pairs
        for one in above[name]
        for letter in re.findall("[a-z]", one)
    }
    single = {n for n, each in above.items() if {*each} <= letters and n != "e"}
    if _DELTA.search(formulas):
        new = r"\delta_{#1#2}"
        reason = r"\delta^i_j is \delta_{ij}"
        yield _reading(r"\delta^{#1}_{#2}", new, reason, r"\\delta\s*\^")
    for name in sorted(pairs | single):
        reason = f"{name}^{{{above[name][0]}}} is an element of {name}"
        yield _reading(
            f"{name}^{{#1}}", f"{name}_{{#1}}", reason, rf"{re.escape(name)}\s*\^"
        )


def _labels(formulas: str) -> Iterator[Reading]:
    """Yield the readings of \\sqrt{d_k} with a k that is a label, if k is also an
    index."""
    for match in _unique(_ROOT, formulas, "name"):
        name, label = match["name"], match["a"] or match["b"]
        written = match[0]
        rest = formulas.replace(written, " ")
        if re.search(rf"(?<![a-zA-Z\\]){name}\s*_", rest) or not _is_index(label, rest):
            continue
        reason = f"{label} is a label in {name}_{label}"
        inside = written[written.index("{") + 1 : -1].strip()
        yield _reading(
            inside, rf"{name}_{{\text{{{label}}}}}", reason, re.escape(inside)
        )


def _is_index(letter: str, formulas: str) -> bool:
    return bool(
        re.search(
            rf"[_^]\s*(?:{letter}(?!\w)|\{{[^{{}}]*(?<![a-zA-Z\\]){letter}?"
            rf"[a-z]?{letter}[^{{}}]*\}})",
            formulas,
        )
    )


def _reading(written: str, new: str, reason: str, pattern: str) -> Reading:
    return Reading(f"read {written} as {new}", reason, re.compile(pattern))


def _unique(
    pattern: re.Pattern[str], formulas: str, group: str
) -> Iterator[re.Match[str]]:
    found = {match[group]: match for match in pattern.finditer(formulas)}
    yield from (found[one] for one in sorted(found))
