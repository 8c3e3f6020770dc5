"""Where sums begin and end."""

from __future__ import annotations

from lark import Token, Tree

from backpass.derivation.language.indices import LARGEST, Index, letter_of
from backpass.derivation.language.shapes.visitor import Visitor


class Ranges(Visitor):
    """The limits of sums: numbers, dimensions, and other indices."""

    def run_between(
        self, limits: Tree, upper: list[Tree], indices: list[Index]
    ) -> None:
        """Let the indices of a sum run over the dimension at which it ends, and
        together with the indices at which it begins and ends."""
        lower = limits.children[-1]
        if isinstance(lower, Tree):
            (first,) = lower.children
            assert isinstance(first, Token)
            if not upper:
                self.reject("this sum needs an end, such as ^n", limits)
            if first.isdigit() and int(first) >= LARGEST:
                self.reject(
                    f"a sum begins at a number below {LARGEST}, because sizes up to "
                    f"{LARGEST} are tried",
                    first,
                )
            if not first.isdigit():
                if letter_of(first) == limits.children[0] or self.is_last(first):
                    self.reject("a sum begins at a number or at another index", first)
                self._run_with(first, indices)
        for end in upper:
            name = end.children[0]
            assert isinstance(name, Tree)
            found = self.scope.resolve(name)
            letter = _plain(name)
            if found is not None and found.kind == "dimension":
                for index in indices:
                    if not index.runs_over(found.name):
                        self.reject(f"this runs to {index.dimension} elsewhere", end)
            elif found is None and letter and letter not in self.parameters:
                if str(letter) == limits.children[0]:
                    self.reject("a sum ends at a dimension or at another index", end)
                self._run_with(letter, indices)
            else:
                self.reject("a sum must end at a dimension or at an index", end)

    def _run_with(self, token: Token, indices: list[Index]) -> None:
        other = self.index(token, is_end=True)
        for index in indices:
            if not index.runs_with(other):
                self.reject(f"{token} runs over {other.dimension} elsewhere", token)


def _plain(tree: Tree) -> Token | None:
    """Return the letter that a name is; None for a name with more than a letter."""
    tokens = list(tree.scan_values(lambda one: True))
    is_letter = len(tokens) == 1 and tokens[0].type in ("LETTER", "GREEK")
    return tokens[0] if is_letter else None
