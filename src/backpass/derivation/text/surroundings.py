"""Whether the prose around a display says what a line rests on.

A line that is wrong in general may be right in its text: the text says that a matrix is
orthogonal, that terms are neglected, or that the line is a mistake. Such a line is not
refused, but asked about. For a form of an input, such as an orthogonal matrix, the line
has to hold for this form, and the prose has to name it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import sympy

from backpass.derivation.equality.check import Chain, evaluators_in, first_mistake
from backpass.derivation.equality.comparing import Refused, members_chain, uses_states
from backpass.derivation.equality.special import UNVALUED, Differing, Form, Values
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.parse import Part, parse
from backpass.derivation.language.values.points import DRAWS
from backpass.derivation.text.assumed import assumed
from backpass.derivation.text.imposed import ASKS, ZERO, may_impose
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text
from backpass.derivation.text.wording import (
    CLAUSE,
    DECOMPOSED,
    DENIED,
    GENERAL,
    INEXACT,
    INTRODUCED,
    IS,
    NUMERIC,
    OF_SEVERAL,
    POOR,
    SIGNED,
    SIZES,
    THEOREM,
    WORDS,
)

_ENOUGH = 40  # characters of prose; a shorter paragraph goes on from the one above
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z$\\*])|\n\s*\n")
_GOES_ON = re.compile(r"[a-z]|(?:This|That|It|Here|But|However|Since|Because)\b")
_FORMULA = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)", re.S)
_RELATION = re.compile(
    r"=|\\(?:perp|propto|equiv)(?![a-zA-Z])|\\in(?![a-zA-Z])(?!\s*\\mathbb)|\\to(?![a-zA-Z])"
)
_STATED = re.compile(r"([^=<>]+?)\s*:?=\s*([^=<>]+)")
_WORDS_BELOW = re.compile(r"_\s*\{?\s*\\(?:text|mathrm)[a-z]*\s*\{[^{}]*\}\s*\}?")
_LABEL = r"(?!\s*\}?\s*_\s*(?:\{\s*)?(?:\\(?:text|math)[a-z]*(?![a-z])|[A-Z]))"
_DEFINED = re.compile(
    r"\s*((?:\\[a-zA-Z]+\s*)?\{?\s*\\?[a-zA-Z]+\s*\}?[^=+\-(]*?)\s*:?="
)
_INVERSE = re.compile(r"\^\s*\{\s*-|\\det(?![a-zA-Z])")
_DERIVATIVE = re.compile(
    r"\\(?:partial|nabla)(?![a-zA-Z])|\\frac\s*\{\s*\\?d(?![a-z])|'"
)


def asked_of_prose(
    known: Knowledge, refused: Refused, head: Part, part: Part, to_left: bool
) -> str:
    """Return what to ask about a line that is wrong in general, if the prose around it
    may restrict it; otherwise "". The equation begins with `head`, with which the line
    is compared if `to_left`."""
    if ZERO.fullmatch(part.text) or ZERO.fullmatch(head.text):
        asks = _is_set_to_zero(known, refused, (head, part))
        if asks is not None:
            return ASKS if asks else ""
    before, after = _around(known)
    for sentence in (_SENTENCE.split(before)[-1], _SENTENCE.split(after)[0]):
        if found := INEXACT.search(sentence):
            return (
                f"it does not hold exactly: does “{_whole(found)}” in the text say so? If it "
                r"does, write \approx in place of ="
            )
        if found := DENIED.search(sentence):
            return f"it does not hold: does “{_whole(found)}” in the text say so?"
    differing = Differing(refused.chain, _at_larger_sizes(known, refused))
    if said := _equations(known, differing, _expanded(known, before) + after):
        return f"it holds if {said}, as the text says: state it in a comment, with let"
    forms = [*differing.forms()] if before or after else []
    for by_clause, form in itertools.product((False, True), forms):
        said = _said(known, form, before, after, by_clause)
        if said and differing.equal_in(form):
            return (
                f"it holds if {_in_words(form)}: does “{said}” in the text say so? "
                f"{_declared(form)}"
            )
    last = " ".join([before.split("\n\n")[-1], after])
    if {*assumed(known, known.here[0])} & known.used(refused.chain.expressions):
        return ""  # it is wrong under the assumption, too
    for name, size in itertools.product(refused.evaluator.sizes, SIZES):
        stated = re.compile(rf"(?<!\w){re.escape(name)}\s*=\s*{size}\b")
        found = SIZES[size].search(last) or stated.search(last)
        if found and _is_of_size(known, refused, name, size):
            said = _whole(found)
            return f"it holds if {name} = {size}: does “{said}” in the text say so?"
    if said := _of_region(known, refused, last):
        return (
            f"it holds for some signs alone: does “{said}” in the text restrict them?"
        )
    left, right = (known.used((one,)) for one in refused.chain.expressions)
    numeric = NUMERIC.search(last)
    if numeric and left and not right:
        return (
            "the left side is not a constant: is this its value at one point, as "
            f"“{_whole(numeric)}” in the text may say?"
        )
    if to_left and before and _is_condition(known, refused.chain, part):
        return ASKS
    return ""


def asked_of_new_names(known: Knowledge, parts: Sequence[Part]) -> str:
    """Return what to ask about a line with names of the wrong shapes, if the sentence
    before the display introduces one of them, or states a theorem; otherwise ""."""
    before, _ = _around(known)
    sentence = _SENTENCE.split(before)[-1]
    if found := THEOREM.search(sentence):
        return (
            f"does “{_whole(found)}” in the text mean that its names are new here? If they "
            "are, write restart before it, and declare them"
        )
    for names in INTRODUCED.findall(sentence):
        for name in re.findall(r"\\?[a-zA-Z]+", names):
            if any(_letter(name).search(part.text) for part in parts):
                return (
                    f"does the text introduce {name} anew? If it does, write restart "
                    f"before it, and declare {name}"
                )
    return ""


def _is_set_to_zero(
    known: Knowledge, refused: Refused, sides: tuple[Part, Part]
) -> bool | None:
    """Whether to ask if an equation with a side that is 0 is imposed: not if the
    sentence before it says so, because it claims nothing; None if nothing in the
    paragraph says so."""
    other = sides[0] if ZERO.fullmatch(sides[1].text) else sides[1]
    left = "".join(other.text.split())
    is_said = known.imposed.by_sentence or known.imposed.perhaps
    if not is_said and may_impose(_around(known)[0]):
        return True
    if not is_said and left not in known.set_to_zero:
        return None
    used, variables = known.used(refused.chain.expressions), known.scope.variables
    inputs = {name for name in used if variables[name].kind == "given"}
    known.set_to_zero.setdefault(left, set()).update(inputs)
    return not is_said


def _around(known: Knowledge) -> tuple[str, str]:
    """Return the prose before the display that is judged, and the sentence behind it if
    that goes on from the display."""
    start, end = known.here
    paragraphs = re.split(r"\n\s*\n", known.prose_above(start))
    before = ""
    while paragraphs and len(before) < _ENOUGH:
        before = f"{paragraphs.pop().strip()}\n\n{before}".strip()
    below = (one.start for one in known.document.items if one.start >= end)
    after = known.source[end : min(below, default=None)].lstrip(" $.,;\n\\])")
    return before, after.split("\n\n")[0] if _GOES_ON.match(after) else ""


def _expanded(known: Knowledge, before: str) -> str:
    """Return the prose before the display with its macros expanded."""
    at = known.source.rfind(before, 0, known.here[0])
    return known.document.written(at, at + len(before)) if at >= 0 else before


def _in_words(form: Form) -> str:
    words = IS[form.kind][0]
    if form.kind in OF_SEVERAL:
        return words.format(*form.names)
    return " and ".join(words.format(name) for name in form.names)


def _declared(form: Form) -> str:
    if form.kind == "symmetric" and len(form.names) == 1:
        (name,) = form.names
        return rf"If it does, declare constant {name}, and say: assume {name} = {name}^\top"
    return "This cannot be declared"


def _said(
    known: Knowledge, form: Form, before: str, after: str, by_clause: bool
) -> str:
    """Return the words by which the prose says that inputs have a form: in a sentence
    that has their letters, or near the display in one without formulas; "" if there are
    none. With `by_clause`, a clause near the display that has their letters and begins
    with since, if, or let counts, whatever it says."""
    is_poor = form.kind in POOR
    if form.kind in ("orthogonal", "orthonormal") and not by_clause:
        if found := DECOMPOSED.search(known.prose):
            return found[0]
    whole = "" if is_poor or by_clause else known.prose
    for prose, is_near in ((before, True), (after, True), (whole, False)):
        for sentence in _SENTENCE.split(prose):
            formulas = [one or other for one, other in _FORMULA.findall(sentence)]
            named = _named(form, formulas)
            if by_clause:
                clause = None if GENERAL.search(sentence) else CLAUSE.search(sentence)
                if clause and clause[0].lower() in ("let", "where", "given"):
                    named = [one for one in named if not _defines_another(form, one)]
                if clause and named and not is_poor:
                    return " ".join(sentence[clause.start() :].split())
                continue
            counts = is_near and not formulas and form.kind != "zero"
            if (counts or named) and (found := WORDS[form.kind].search(sentence)):
                return _whole(found)
            for formula in named:
                if _RELATION.search(formula) and _is_of_these(form, formula):
                    return formula.strip()
    return ""


def _named(form: Form, formulas: Sequence[str]) -> list[str]:
    """Return the formulas with a letter of a form's names, if each has its letter in
    one; for an eigenvector, one is enough."""
    letters = [_letter(name) for name in form.names]
    read = {one: _WORDS_BELOW.sub(r"_{\\text}", one) for one in formulas}
    used = [letter for letter in letters if any(map(letter.search, read.values()))]
    if len(used) < len(letters) and form.kind != "eigenpair":
        return []
    return [one for one in formulas if any(letter.search(read[one]) for letter in used)]


def _defines_another(form: Form, formula: str) -> bool:
    """Whether a formula gives another name a value, which says nothing of the form."""
    defined = _DEFINED.match(formula)
    if not defined:
        return False
    base = "".join(defined[1].partition("_")[0].split())
    return base not in {name.partition("_")[0] for name in form.names}


def _is_of_these(form: Form, formula: str) -> bool:
    """Whether a formula has no letter but those of a form's names, I, and T."""
    for name in form.names:
        formula = _letter(name).sub(" ", formula)
    return not re.search(r"[a-zA-HJ-SU-Z]", re.sub(r"\\[a-zA-Z]+", " ", formula))


def _letter(name: str) -> re.Pattern[str]:
    letter, _, label = name.partition("_")
    other = "" if label else _LABEL  # S_{\\text{A}} is not S
    return re.compile(rf"(?<![a-zA-Z\\]){re.escape(letter)}(?![a-zA-Z]){other}")


def _equations(known: Knowledge, differing: Differing, prose: str) -> str:
    """Return equations in the prose that give values to inputs, if the members are
    equal with these values; otherwise ""."""
    said: list[str] = []
    values: dict[sympy.Symbol, sympy.Expr] = {}
    for written, given in _values(known, differing, prose):
        values = {key: one.xreplace(given) for key, one in values.items()}
        values.update(given)
        said.append(written)
    if values and all(differing.equal_at(values, number) for number in range(3)):
        return " and ".join(said)
    return ""


def _values(
    known: Knowledge, differing: Differing, prose: str
) -> Iterator[tuple[str, Values]]:
    """Yield the equations in formulas of the prose that give a value to an input, or to
    a name that is defined by inputs, with the values of elements of inputs."""
    evaluator = differing.evaluator
    for match in _FORMULA.finditer(prose):
        equation = _STATED.fullmatch((match[1] or match[2]).strip(" .,;"))
        if equation is None:
            continue
        try:
            left, right = (
                known.part(Text(one, tuple(range(len(one)))))
                for one in equation.groups()
            )
            if known.scope.resolve(parse(left, "moved")) is None:
                continue
            chain = members_chain(known.scope, left, left, right, None)
            sides = [
                [
                    np.ravel(evaluator.value(one, indices, frozenset()))
                    for one in chain.expressions
                ]
                for indices in chain.cases(evaluator)
            ]
            expand = evaluator.calculus.expand
            values = _solved(expand, *map(np.concatenate, zip(*sides, strict=True)))
        except UNVALUED:
            continue
        yield f"{left.text.strip()} = {right.text.strip()}", values


def _solved(
    expand: Callable[[sympy.Expr], sympy.Expr], defined: Any, value: Any
) -> Values:
    """Return values of inputs with which a defined name has a value, each from an
    element of which it is a factor. Raises ValueError if some element has none."""
    found: dict[sympy.Symbol, sympy.Expr] = {}
    for pair in zip(np.ravel(defined), np.ravel(value), strict=True):
        one, other = (expand(sympy.sympify(each)).xreplace(found) for each in pair)
        off, free = sympy.expand(one - other), sorted(one.free_symbols, key=str)
        for symbol in free:
            slope = off.coeff(symbol, 1)
            rest = sympy.expand(off - slope * symbol)
            if slope != 0 and not (slope + rest).has(symbol):
                found[symbol] = -rest / slope
                break
        else:
            raise ValueError("no input is a factor")
    return found


def _at_larger_sizes(known: Knowledge, refused: Refused) -> Evaluator:
    """Return an evaluator at sizes from 3 on, where fewer matrices commute; that of the
    mistake if the members have inverses or states, whose elements are long there."""
    chain, evaluator = refused.chain, refused.evaluator
    used = [*chain.expressions, *known.definitions(known.used(chain.expressions))]
    is_long = any(_INVERSE.search(one.part.text) for one in used)
    if is_long or uses_states(chain, evaluator.scope):
        return evaluator
    sizes = dict(zip(evaluator.sizes, itertools.cycle((3, 4)), strict=False))
    draw = None if evaluator.point is None else 0
    return evaluators_in(known.now.lines).at(sizes, draw)


def _of_region(known: Knowledge, refused: Refused, prose: str) -> str:
    """Return the words by which some prose restricts signs, if the members are equal
    around some of the points tried; otherwise ""."""
    found, evaluator = SIGNED.search(prose), refused.evaluator
    if found is None or evaluator.point is None:
        return ""
    others = evaluators_in(known.now.lines)
    for draw in range(DRAWS):
        if first_mistake(refused.chain, others.at(evaluator.sizes, draw)) is None:
            return _whole(found)
    return ""


def _is_of_size(known: Knowledge, refused: Refused, name: str, size: int) -> bool:
    """Whether the members are equal if a dimension has a certain size."""
    evaluator = refused.evaluator
    draw = None if evaluator.point is None else 0
    there = evaluators_in(known.now.lines).at({**evaluator.sizes, name: size}, draw)
    with suppress(*UNVALUED):
        return first_mistake(refused.chain, there) is None
    return False


def _whole(found: re.Match[str]) -> str:
    """Return the text of a match, to the end of its last word."""
    rest = re.match(r"\w*", found.string[found.end() :])
    return found[0] + (rest[0] if rest and re.search(r"\w\Z", found[0]) else "")


def _is_condition(known: Knowledge, chain: Chain, part: Part) -> bool:
    """Whether an equation of given names may be a condition, or follow from one: it
    takes no derivative, and some name is on one of its sides alone, or a side is 0."""
    sides = [known.used((one,)) for one in chain.expressions]
    if any(_DERIVATIVE.search(one.part.text) for one in chain.expressions):
        return False
    if known.scope.chances.random:
        return False
    if any((sides[0] ^ sides[1]) & inputs for inputs in known.set_to_zero.values()):
        return True  # it may follow from an equation that the text has imposed
    if any(call for e in chain.expressions for one in e.parts for call in one.called):
        return False
    variables = known.scope.variables
    if any(variables[name].kind == "defined" for name in sides[0] | sides[1]):
        return False
    return sides[0] != sides[1] or ZERO.fullmatch(part.text) is not None
