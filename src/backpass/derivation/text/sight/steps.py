"""Infer that a subscript is a label: a step, as k in x_{k+1} = M_k x_k, or another
name, as h in W_h h."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backpass.derivation.text.sight.upper import Reading

_SUBSCRIPT = re.compile(
    r"(?P<name>\\[a-zA-Z]+(?:\s*\{\s*\\?[a-zA-Z]+\s*\})?|[a-zA-Z])\s*_\s*"
    r"(?P<below>\{\s*(?P<group>[^{}_]*)\}|[a-z])"
    r"(?P<above>\s*\^\s*(?:\{\s*\(\s*(?P<layer>\w)\s*\)\s*\}|(?P<bare>[a-z])))?"
)
_STEP = re.compile(r"([a-z])\s*(?:([+-])\s*1)?")
_MATRIX = re.compile(r"[A-Z]|\\math(?:bf|rm)\s*\{\s*[A-Z]\s*\}")
_BELOW = re.compile(r"_\s*(?:\{[^{}]*\}|\w)")
_SUMS = (r"\sum", r"\prod", r"\max", r"\min", r"\delta")
_WORDS = {"+": "next", "-": "previous", None: ""}


def steps(formulas: str) -> Iterator[Reading]:
    """Yield the readings of names at a step k, k+1, or k-1 as names of their own.

    The letter is then only a subscript, never beside another index, and no sum runs
    over it; at least two capital letters have it, and so do names at a shifted step.
    """
    found = [*_SUBSCRIPT.finditer(formulas)]
    forms = [
        (one, _STEP.fullmatch((one["group"] or one["below"]).strip())) for one in found
    ]
    letters = {form[1] for _, form in forms if form and form[2]}
    for letter in sorted(letters):
        mine = [(one, form) for one, form in forms if form and form[1] == letter]
        names = {one["name"] for one, _ in mine}
        if sum(map(bool, map(_MATRIX.fullmatch, names))) < 2:
            continue
        if names & {*_SUMS}:
            continue
        others = [one for one, form in forms if not form or form[1] != letter]
        if any(
            re.search(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])", o[0]) for o in others
        ):
            continue
        layers = {(one["name"], one["layer"]) for one, _ in mine}
        written: dict[str, Reading] = {}
        for one, form in mine:
            # \xi_k^p is \xi_k^{(p)} if that is a name; otherwise it is a power.
            layer = one["layer"] or one["bare"] or ""
            is_layer = (one["name"], layer) in layers
            text = one[0] if is_layer or not layer else one[0][: -len(one["above"])]
            label = (_WORDS[form[2]] or letter) + (layer if is_layer else "")
            written[text] = _reading(text, form[0], one["name"], label)
        # Longer readings first: u_k^{(t)} before u_k.
        yield from (written[one] for one in sorted(written, key=len, reverse=True))


def labels(formulas: str) -> Iterator[Reading]:
    """Yield the readings of W_h, and of b_h beside it, in which h is a label.

    All subscripts of W are names elsewhere, and none is an index.
    """
    found = [*_SUBSCRIPT.finditer(formulas)]
    below: dict[str, set[str]] = {}
    for one in found:
        letters = (one["group"] or one["below"]).strip()
        below.setdefault(one["name"], set()).add(letters)
    indices = {
        letter
        for name, each in below.items()
        for letters in each
        if name in _SUMS or len(letters) > 1
        for letter in re.findall(r"(?<![a-zA-Z\\])[a-z]+(?![a-zA-Z])", letters)
    }
    rest = _BELOW.sub(" ", formulas)
    names = {*re.findall(r"(?<![a-zA-Z\\{])[a-z](?![a-zA-Z])", rest)}
    names -= set("".join(indices))
    weights = {
        name
        for name, each in below.items()
        if _MATRIX.fullmatch(name) and each <= names
    }
    known = {letter for name in weights for letter in below[name]}
    biases = {name for name in below if name.islower() and below[name] <= known}
    mine = {one[0]: one for one in found if one["name"] in weights | biases}
    for written, match in sorted(mine.items()):
        if match["above"]:
            written = written[: -len(match["above"])]
        label = (match["group"] or match["below"]).strip()
        reason = f"{label} is a label in {match['name']}_{label}"
        new = rf"{match['name']}_{{\text{{{label}}}}}"
        yield Reading(
            f"read {written} as {new}", reason, re.compile(re.escape(written))
        )


def _reading(written: str, step: str, name: str, label: str) -> Reading:
    reason = f"{written} is a name, at the step {step}"
    new = rf"{name}_{{\text{{{label}}}}}"
    spaced = r"\s*".join(map(re.escape, written.split()))
    return Reading(f"read {written} as {new}", reason, re.compile(spaced))
