"""Collect what the methods of one check find, for its diagnoses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from backpass.contract.arrays import Array
from backpass.verify.diagnosis import Diagnosis, diagnose

COORDINATES = 128  # up to this many elements, each coordinate is a direction as well
SLOPES_DIFFER = (
    "the slopes along random directions differ; only inputs of at most "
    f"{COORDINATES} elements are compared by element"
)


@dataclass(frozen=True)
class Wrong:
    """A wrong quantity beside its reference, and the check's arrays by name."""

    reference: np.ndarray
    got: np.ndarray
    terms: Mapping[str, np.ndarray]
    accuracy: float

    def diagnose(self, terms: Mapping[str, Array], seconds: float) -> Diagnosis:
        """Say how the two differ, with these terms besides the check's own."""
        terms = {**terms, **{n: x for n, x in self.terms.items() if n not in terms}}
        return diagnose(
            self.reference, self.got, terms, accuracy=self.accuracy, seconds=seconds
        )


@dataclass(frozen=True)
class Suspect:
    """A wrong quantity, with everything that its diagnosis needs.

    It is diagnosed once, against the best reference. ``accuracy`` is that of the
    reference; ``diagnose(seconds)`` returns the sentence; ``arrays()`` returns what was
    compared, if that was the quantity itself.
    """

    accuracy: float
    diagnose: Callable[[float], str]
    arrays: Callable[[], Wrong] | None = None


@dataclass(frozen=True)
class Findings:
    """The suspects, the references, and the errors of slopes with their directions,
    each by method and quantity; and, where it was measured, the precision in which
    backward computes a gradient, by the position of its input, and that of y."""

    suspects: dict[tuple[str, str], Suspect] = field(default_factory=dict)
    references: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    slopes: dict[tuple[str, str], list[tuple[float, np.ndarray]]] = field(
        default_factory=dict
    )
    precisions: dict[int | str, str] = field(default_factory=dict)

    def suspect(
        self,
        method: str,
        quantity: str,
        accuracy: float,
        diagnose: Callable[[float], str],
        arrays: Callable[[], Wrong] | None = None,
    ) -> None:
        """Add a suspect. Only the first of a method and quantity counts."""
        suspect = Suspect(accuracy, diagnose, arrays)
        self.suspects.setdefault((method, quantity), suspect)
