"""Suggest a declaration for the inputs of a check."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from string import ascii_letters

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case
from backpass.verify.convert import is_floating, to_numpy

# For the first input, by its number of axes, and for further lengths.
USUAL = {1: "n", 2: "bn", 3: "bsn", 4: "bhsn"}
FURTHER = "kmpqrt"


def declaration(case: Case, square: bool = False) -> str:
    """Return a declaration with the axes that the inputs and outputs of a case have.

    Equal lengths get the same letter; two axes of one array do only if it has to be
    ``square``. An axis of length 1 is declared as 1.
    """
    inputs = [
        (name, value)
        for name, value in zip(case.subject.input_names, case.inputs, strict=False)
        if is_array(value)
    ]
    outputs = case.subject.outputs(*case.subject.forward(*case.given()))
    names = ["y"] if len(outputs) == 1 else [f"y{at + 1}" for at in range(len(outputs))]
    taken = {name for name, _ in inputs}
    letters = _Letters(
        max((value.ndim for _, value in inputs), default=0), taken, square
    )
    left = [
        f"{name}[{letters.of(value.shape)}]{_mark(value)}" for name, value in inputs
    ]
    right = [
        f"{name}[{letters.of(value.shape)}]"
        for name, value in zip(names, outputs, strict=True)
    ]
    return f"{', '.join(left)} -> {', '.join(right)}"


class _Letters:
    """The letters of lengths, in order of appearance."""

    def __init__(self, most: int, taken: Collection[str], square: bool) -> None:
        self.square = square
        self.known: list[tuple[int, str]] = []
        self.first: list[str] = []  # those of the first array
        usual = "n" if square else USUAL.get(most, "")
        usual = usual.replace("b", "m") if "b" in taken else usual  # a bias
        listed = dict.fromkeys(usual + FURTHER + ascii_letters)
        self.free = (letter for letter in listed if letter not in taken)

    def of(self, shape: Sequence[int]) -> str:
        """Return the letters of an array's axes."""
        axes: list[str] = []
        for at, length in enumerate(shape):
            if length == 1:
                axes.append("1")
                continue
            used = () if self.square else axes
            same = [x for of, x in self.known if of == length and x not in used]
            if not same:
                same = [next(self.free)]
                self.known.append((length, same[0]))
            # Of two equal lengths, the one at the same place from the end: a weight
            # of a square input belongs to its last axis.
            there = self.first[at - len(shape)] if len(shape) <= len(self.first) else ""
            axes.append(there if there in same else same[0])
        self.first = self.first or axes
        return ", ".join(axes)


def _mark(value: object) -> str:
    if is_floating(value):
        return ""
    return ":bool" if to_numpy(value).dtype == np.bool_ else ":int"
