"""Sides of shapes that are found to be equal, and the kinds of names."""

from __future__ import annotations

from dataclasses import dataclass, field


class Side:
    """A side of a shape. It shares its label with the sides that equal it."""

    def __init__(self, label: str = "") -> None:
        self._same: Side | None = None
        self._label = label

    def root(self) -> Side:
        """Return the side that stands for all that equal this one."""
        return self._same.root() if self._same else self

    @property
    def label(self) -> str:
        """The name of its length; "" if it has none."""
        return self.root()._label

    @label.setter
    def label(self, label: str) -> None:
        self.root()._label = label

    @property
    def is_one(self) -> bool:
        """Whether its length is 1."""
        return self.label == "1"

    def equals(self, other: Side) -> bool:
        """Record that two sides are equal; return False if their labels differ,
        or only one is 1."""
        mine, theirs = self.root(), other.root()
        if mine is theirs:
            return True
        labels = {mine._label, theirs._label}
        if "1" in labels or "" not in labels:  # an axis is never as short as that
            return len(labels) == 1
        theirs._label = theirs._label or mine._label
        mine._same = theirs
        return True


Shape = tuple[Side, Side]


def one() -> Side:
    """Return a side of length 1."""
    return Side("1")


def number() -> Shape:
    """Return the shape of a number."""
    return one(), one()


def is_number(shape: Shape | None) -> bool:
    """Whether a shape is known to be that of a number."""
    return shape is not None and shape[0].is_one and shape[1].is_one


@dataclass
class Found:
    """The shape of a name: its rank, or None, the sides of its axes, and why.

    `strength` is "stated" if the text states its shape, "index" if its indices show it,
    and "guess" otherwise. `listed` says whether it is a list of vectors,
    and `sliced` whether its rows have names: A_i is row i of A, as a column.
    """

    name: str
    rank: int | None = None
    axes: list[Side] = field(default_factory=list)
    why: str = ""
    line: int = 0
    strength: str = "guess"
    listed: bool = False
    sliced: bool = False
    positive: bool = False
    row: bool = False

    def be(self, rank: int, why: str, line: int, strength: str = "guess") -> None:
        """Set the rank, with fresh sides."""
        self.rank, self.why, self.line, self.strength = rank, why, line, strength
        self.axes = [Side() for _ in range(rank)]

    def shape(self) -> Shape | None:
        """Return the shape without indices; None if it is not known."""
        if self.rank == 0:
            return number()
        if self.rank == 1:
            return (one(), self.axes[0]) if self.row else (self.axes[0], one())
        if self.rank == 2 and not self.listed:
            return self.axes[0], self.axes[1]
        return None
