"""Take the signs of a formula one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backpass.derivation.text.formal.tokens import FACES
from backpass.derivation.text.formal.trees import Node, Unclear


@dataclass(frozen=True)
class Manner:
    """How a text writes: which names are functions, which letters above a name are
    labels, which names stand for themselves with any argument, and whether E(x) is an
    expectation. `sequences` are names that always have a letter above them, as in
    x^{t+1}; `signals` have their index in square brackets, as in x[n - 1]; `words` are
    written as letters side by side, such as RSS; `operands` are commands that are
    names."""

    is_function: Callable[[str], bool] = lambda name: True
    labels: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    expects: bool = False  # whether E(x) is an expectation
    counts: frozenset[str] = frozenset()  # letters that are numbers of things
    sequences: frozenset[str] = frozenset()
    signals: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    operands: frozenset[str] = frozenset()  # commands that LaTeX does not have


class Reading:
    """The signs of a formula, and how far they are read."""

    def __init__(self, tokens: list[str], manner: Manner) -> None:
        self.tokens, self.manner, self.at = tokens, manner, 0
        self.norms = 0  # how many norms are open
        self.from_ = self.to = 0  # where the last expectation begins and ends

    # ---- tokens ----------------------------------------------------------------------

    @property
    def token(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.token
        if not token or (expected and token != expected):
            raise Unclear(f"expected {expected}")
        self.at += 1
        return token

    def argument(self) -> list[str]:
        """Take a braced group, or one token with its own groups."""
        if self.token != "{":
            if self.token.isdigit() and len(self.token) > 1:  # \\frac12
                digit, rest = self.token[0], self.token[1:]
                self.tokens[self.at] = rest
                return [digit]
            token = self.take()
            name = token[1:]
            if token[0] == "\\" and name in FACES:
                return [token, *self.argument_with_braces()]
            if name in ("frac", "dfrac", "tfrac"):
                return [
                    token,
                    *self.argument_with_braces(),
                    *self.argument_with_braces(),
                ]
            if name == "sqrt":
                raise Unclear("a bare root in a script")
            return [token]
        return self.argument_with_braces()[1:-1]

    def argument_with_braces(self) -> list[str]:
        if self.token != "{":
            return ["{", *self.argument(), "}"]
        start, depth = self.at, 0
        while True:
            token = self.take()
            depth += (token == "{") - (token == "}")
            if not depth:
                return self.tokens[start : self.at]

    def inner(self, tokens: list[str]) -> Node:
        """Read tokens apart."""
        if r"\over" in tokens and (at := _outside(tokens)) is not None:
            return self.of_fraction(tokens[:at], tokens[at + 1 :])
        reader = type(self)(tokens, self.manner)
        tree = reader.expression()
        if reader.token:
            raise Unclear(f"cannot go on at {reader.token}")
        return tree

    # ---- what a formula consists of: see the reader ----------------------------------

    def expression(self) -> Node:
        raise NotImplementedError

    def of_fraction(self, above: list[str], below: list[str]) -> Node:
        raise NotImplementedError

    def run(self) -> Node:
        raise NotImplementedError

    def factor(self) -> Node:
        raise NotImplementedError

    def begins(self) -> bool:
        raise NotImplementedError


def _outside(tokens: list[str]) -> int | None:
    """Return where an \\over stands outside braces; None if it does not."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token == "{") - (token == "}")
        if token == r"\over" and not depth:
            return at
    return None
