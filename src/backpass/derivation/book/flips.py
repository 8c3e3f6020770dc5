"""Make every single mistake in a derivation, and find those not noticed.

The mistakes are in the displayed lines: in a sign, an index, a factor, sin for cos, <
for >, or a transpose. A flip changes the author's text in one place and is checked as
if the author had written it. A flip that no check notices is a survivor. It is
equivalent if the expression it changes has the same value for every index at every
size, which is decided exactly. If a derivation's only survivors are equivalent, none of
these mistakes in it would go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
from lark import Token, Tree

from backpass.derivation.equality.check import (
    Chain,
    chain_of,
    difference,
    first_mistake,
)
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.names import Call, Expression
from backpass.derivation.language.parse import (
    DECLARING,
    DerivationError,
    Line,
    span_of,
    tokens_of,
)
from backpass.derivation.language.values.arrays import each
from backpass.expressions.exact import NotRepresentable

if TYPE_CHECKING:
    from backpass.derivation.book.derivation import Derivation

Letters = dict[str, str]  # the index letters in scope, with their dimensions
Edit = tuple[int, int, str, str]  # start, end, replacement, description


@dataclass(frozen=True)
class Flip:
    """One mistake.

    `line` is a position among all lines. `text` is the whole text of the derivation
    `piece` with the mistake in it.
    """

    piece: Derivation
    line: int
    number: int
    side: str
    description: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.piece.name} ({self.number}), {self.side} side: {self.description}"
        )


@dataclass(frozen=True)
class Survivor:
    """A flip that no check notices, and whether it changes no value."""

    flip: Flip
    equivalent: bool

    def __str__(self) -> str:
        return f"{self.flip} {'(the value is the same)' if self.equivalent else '— NOT NOTICED'}"


def flips(derivation: Derivation) -> Iterator[Flip]:
    """Yield every flip of a derivation and of those before it."""
    places = [(piece, line) for piece in derivation.pieces for line in piece.lines]
    numbers = [number for _, number in derivation.places]
    for k, (piece, line) in enumerate(places):
        if not line.numbered:
            continue
        for side, (expression, letters) in _sides(derivation, k).items():
            part = expression.part
            for start, end, new, description in _all_edits(expression, letters):
                before = part.source[: part.start + start]
                text = before + new + part.source[part.start + end :]
                yield Flip(piece, k, numbers[k], side, description, text)
        if line.conditions:
            text = line.conditions.source
            start = text.rindex("\\q", 0, line.conditions.start)
            end = text.index(")", line.conditions.start + len(line.conditions.text)) + 1
            dropped, text = (
                f"{text[start:end].strip()} dropped",
                text[:start] + text[end:],
            )
            yield Flip(piece, k, numbers[k], "right", dropped, text)


def survivors(derivation: Derivation) -> list[Survivor]:
    """Return the flips that no check notices."""
    return [
        Survivor(flip, _same_value(derivation, flip))
        for flip in flips(derivation)
        if not is_caught(derivation, flip)
    ]


def is_caught(derivation: Derivation, flip: Flip) -> bool:
    """Whether the derivation with the flip fails, in its lines or against an operation
    that it is bound to."""
    try:
        flipped = _with(derivation, flip)
        if derivation.all_lines[flip.line].kind in ("let", "function"):
            # Comparing a definition with forward takes less time than evaluating every
            # statement.
            _verify_operations(flipped)
            return _is_wrong(flipped, flipped.chains)
        old, new = (_statement(one, flip.line) for one in (derivation, flipped))
        if flip.side == "right" and old.has_cases_of(new):
            # The rest of the statement is as correct as before. If the flip does not
            # change the value, backward still equals the last line.
            return _is_wrong(flipped, [new.pair(flip.line)])
        if _is_wrong(flipped, [new]):
            return True
        _verify_operations(flipped)
    except (DerivationError, NotRepresentable, ZeroDivisionError):
        return True
    return False


def _is_wrong(derivation: Derivation, chains: list[Chain]) -> bool:
    """Whether a line of the chains differs from the line above it at some sizes."""
    return any(
        first_mistake(chain, evaluator)
        for evaluator in derivation.everywhere()
        for chain in chains
    )


def _verify_operations(derivation: Derivation) -> None:
    """Raise `DerivationError` if a piece differs from the operation it is bound to."""
    for piece in derivation.pieces:
        if piece.operation or piece.forward:
            piece.verify_operation()


def _statement(derivation: Derivation, line: int) -> Chain:
    """Return the statement that has a line."""
    return next(chain for chain in derivation.chains if line in chain.lines)


def _with(derivation: Derivation, flip: Flip) -> Derivation:
    """Return the derivation with one piece's text replaced, unchecked.

    If the definitions are still the same, their values and derivatives are shared with
    the derivation instead of computed again, and so are the statements that the flip is
    not in.
    """
    if flip.piece not in derivation.pieces:
        return derivation
    after = derivation.after and _with(derivation.after, flip)
    text = flip.text if flip.piece is derivation else derivation.text
    flipped = replace(derivation, text=text, after=after)
    if _definitions(flipped) == _definitions(derivation):
        flipped.known = derivation.known
        flipped.chains = [
            chain_of(flipped.all_lines, chain.lines, flipped.scope)
            if flip.line in chain.lines
            else chain
            for chain in derivation.chains
        ]
    return flipped


def _definitions(derivation: Derivation) -> list[tuple[str, str]]:
    """Return a derivation's declarations and definitions, as written."""
    return [
        (line.kind, line.latex)
        for line in derivation.all_lines
        if line.kind in DECLARING
    ]


def _sides(derivation: Derivation, k: int) -> dict[str, tuple[Expression, Letters]]:
    """Return the expressions of a line, by their sides, with their free letters."""
    line = derivation.all_lines[k]
    assert line.right is not None
    if line.kind == "assume":
        return {}
    if line.kind == "let":
        variable = derivation.scope.defined_as(line.right)
        assert variable.definition is not None
        letters = dict(zip(variable.letters, variable.axes, strict=False))
        return {"right": (variable.definition, letters)}
    if line.kind == "function":
        call = _call(derivation, line)  # the body is the same text in every call
        if call is None:
            return {}
        letters = dict(zip(call.function.letters, call.sides, strict=True))
        return {"right": (call.body, letters)}
    chain = _statement(derivation, k)
    sides = {"right": (chain.expressions[1 + chain.lines.index(k)], chain.free)}
    if line.kind == "statement":
        return {"left": (chain.expressions[0], chain.free), **sides}
    return sides


def _call(derivation: Derivation, line: Line) -> Call | None:
    """Return a call of the function that a line defines."""
    stated = (e for chain in derivation.chains for e in chain.expressions)
    for expression in (*derivation.scope.definitions, *stated):
        for part in expression.parts:
            for call, *_ in part.calls.values():
                if call.function.body == line.right:
                    return call
    return None


def _same_value(derivation: Derivation, flip: Flip) -> bool:
    """Whether the flipped expression has the original one's value for every index at
    every size; False for a function's body, which has no value of its own."""
    if derivation.all_lines[flip.line].kind == "function":
        return False
    flipped = _with(derivation, flip)
    lines = derivation.all_lines[flip.line], flipped.all_lines[flip.line]
    if bool(lines[0].conditions) != bool(lines[1].conditions):
        return False
    old, _ = _sides(derivation, flip.line)[flip.side]
    new, letters = _sides(flipped, flip.line)[flip.side]
    chains = (chain for chain in derivation.chains if flip.line in chain.lines)
    chain = next(chains, Chain((), (), None, letters))
    for both in _pairs(derivation, flipped):
        for indices in chain.cases(both[0]):
            before, after = (
                each(one.value(side, indices, chain.still), one.calculus.expand)
                for one, side in zip(both, (old, new), strict=True)
            )
            if (
                np.shape(before) != np.shape(after)
                or difference(before, after, both[0].calculus.definitions) is not None
            ):
                return False
    return True


def _pairs(
    derivation: Derivation, flipped: Derivation
) -> Iterator[tuple[Evaluator, Evaluator]]:
    """Yield evaluators of both derivations at the same sizes and points."""
    for evaluator in derivation.everywhere():
        yield evaluator, flipped.at(evaluator)
    for evaluator in flipped.everywhere():
        if evaluator.point is not None:
            yield derivation.at(evaluator), evaluator


# ---- the places where a mistake can be made ------------------------------------------


def _all_edits(expression: Expression, letters: Letters) -> Iterator[Edit]:
    """Yield every edit of an expression's text that is one mistake."""
    if not expression.shape:
        yield from _one(expression.part.text, expression.tree)
    yield from _edits(expression, expression.tree, letters)


def _edits(expression: Expression, tree: Tree, letters: Letters) -> Iterator[Edit]:
    """Yield the edits at a node of the tree and below."""
    text = expression.part.text
    reference = expression.references.get(id(tree))
    if reference is not None:
        if reference.kind in ("variable", "parameter", "delta"):
            for token in reference.indices:
                if token.type == "ALL":
                    continue
                yield from _other_indices(text, token, letters)
        return
    tokens = [child for child in tree.children if isinstance(child, Token)]
    if tree.data in ("number", "function", "each"):
        yield from (
            _replaced(token, str(Decimal(token) + 1))
            for token in tokens
            if token[0].isdigit()
        )
    if tree.data == "function" and (other := _OTHER_FUNCTION.get(str(tokens[0]))):
        yield _replaced(tokens[0], other)
    if tree.data in ("indicator", "relation"):
        yield from (_replaced(token, _OTHER_RELATION[token]) for token in tokens)
    if tree.data == "sum":
        for token in tokens:
            where = f" before {_excerpt(text[token.end_pos :])}"
            yield _replaced(token, "+" if token == "-" else "-", where)
    if tree.data in ("product", "hadamard"):
        yield from _dropped_factors(text, tree)
    if tree.data in (
        "sum",
        "fraction",
        "bracket",
        "big",
        "indicator",
        "extreme",
        "case",
    ):
        operands = {"big": tree.children[-1:], "case": tree.children[:1]}
        for child in operands.get(tree.data, tree.children):
            yield from _one(text, child)
    if tree.data == "power" and tree.children[1].data == "top":
        start, end = tree.children[0].meta.end_pos, tree.meta.end_pos
        times = r" \cdot" if _OPENING.match(text, end) else ""
        yield (
            start,
            end,
            times,
            f"transpose of {text[tree.meta.start_pos : start]} dropped",
        )
    if tree.data == "big":
        yield from _conditions_of(text, tree, letters)
        letters = {**letters, **dict(expression.ranges[id(tree)])}
    for child in tree.children:
        if isinstance(child, Tree):
            yield from _edits(expression, child, letters)


_OTHER_RELATION = {
    "=": r"\ne", r"\ne": "=", "<": ">", ">": "<", r"\le": r"\ge", r"\leq": r"\geq", r"\ge": r"\le", r"\geq": r"\leq",
}  # fmt: skip


_OTHER_FUNCTION = {r"\sin": r"\cos", r"\cos": r"\sin"}


def _replaced(token: Token, other: str, where: str = "") -> Edit:
    return *span_of(token), other, f"{token} → {other}{where}"


def _other_indices(text: str, token: Token, letters: Letters) -> Iterator[Edit]:
    """Replace the index by each other letter in scope that runs over the same
    dimension."""
    if token.isdigit():
        others = ["2" if token == "1" else "1"]
    else:
        side = letters.get(str(token))
        others = [
            letter
            for letter, other in letters.items()
            if other == side and letter != token
        ]
    for other in others:
        before = text[: token.start_pos].rpartition(" ")[2][-20:]
        yield *span_of(token), other, f"index {token} → {other} after {before}"


# A name directly before a bracket would be rejected because it looks like a function,
# and the mistake itself would never be checked.
_OPENING = re.compile(r"\s*(?:\\left|\\[bB]igg?[lr]?)?\s*(?:[(\[]|\\\{)")
_BINDS = re.compile(r"\\(?:cdot|times|odot)")


def _dropped_factors(text: str, tree: Tree) -> Iterator[Edit]:
    """Drop each factor, with the sign that binds it to the next factor or, for the last
    factor, to the one before."""
    factors = tree.children
    for k, factor in enumerate(factors):
        last = k == len(factors) - 1
        start = factors[k - 1].meta.end_pos if last else factor.meta.start_pos
        end = factor.meta.end_pos if last else factors[k + 1].meta.start_pos
        between = text[factors[k - 1].meta.end_pos : factor.meta.start_pos]
        times = (
            0 < k
            and not last
            and _OPENING.match(text, end)
            and not _BINDS.search(between)
        )
        gone = f"factor {_excerpt(text[factor.meta.start_pos : factor.meta.end_pos])} dropped"
        yield start, end, r"\cdot " if times else "", gone


def _one(text: str, tree: Tree | Token) -> Iterator[Edit]:
    """Replace a lone factor by 1."""
    if isinstance(tree, Tree) and tree.data not in _COMPOUND:
        start, end = tree.meta.start_pos, tree.meta.end_pos
        yield start, end, "1", f"factor {_excerpt(text[start:end])} → 1"


_COMPOUND = (
    "product",
    "hadamard",
    "sum",
    "number",
    "fraction",
    "big",
    "limits",
    "upper",
)


def _conditions_of(text: str, tree: Tree, letters: Letters) -> Iterator[Edit]:
    """Drop the condition of a sum, and replace its other letter."""
    tokens = tokens_of(tree.children[1])
    if any(token.type == "RELATION" for token in tokens):
        *range_, _, second = tokens if len(tokens) == 3 else [*tokens[:2], *tokens[3:]]
        start, kept, end = (
            span_of(tokens[0])[0], span_of(range_[-1])[1], span_of(second)[1],
        )  # fmt: skip
        yield kept, end, "", f"{text[start:end]} → {text[start:kept]}"
        yield from _other_indices(text, second, letters)


def _excerpt(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 30 else words[:30] + "…"
