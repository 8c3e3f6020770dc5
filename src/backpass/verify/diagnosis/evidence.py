"""Weigh the evidence for an explanation of a wrong gradient."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from backpass.verify.diagnosis.dictionary import Dictionary

Item = TypeVar("Item")
EVIDENCE = 20  # bits required beyond log₂ of the number of hypotheses tried


@dataclass(frozen=True)
class Diagnosis:
    """How a gradient differs from its reference.

    ``kind`` is for programs, the sentence for people.
    """

    kind: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


class Guess(NamedTuple):
    """A relation that may hold.

    It is a diagnosis if ``prediction`` reproduces ``target``, as ``Pair.explained``
    decides from the number of guesses ``tried`` and of numbers that were fitted,
    ``free``.
    """

    kind: str
    sentence: str
    target: np.ndarray
    prediction: np.ndarray
    tried: int = 1
    free: int = 0


class Clock:
    """A limit on the CPU time of a search, in seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.thread_time()
        self.stopped = False

    def over(self, share: float = 1.0) -> bool:
        """Whether that share of the time is spent, which stops the search."""
        over = time.thread_time() - self._start > share * self.seconds
        self.stopped = self.stopped or over
        return over

    def within(self, items: Iterable[Item], share: float = 1.0) -> Iterator[Item]:
        """Yield the items until this share of the time is spent."""
        for item in items:
            if self.over(share):
                return
            yield item


@dataclass(frozen=True)
class Pair:
    """A reference and the gradient that was returned (``got``), with what may explain
    their difference."""

    reference: np.ndarray
    got: np.ndarray
    terms: dict[str, np.ndarray]
    backward: Callable[[np.ndarray], np.ndarray | None] | None
    accuracy: float
    others: Mapping[str, np.ndarray] = field(default_factory=dict)
    variants: Iterable[tuple[str, np.ndarray]] = ()
    reruns: Iterable[tuple[str, np.ndarray, np.ndarray | None]] = ()
    outputs: Iterable[tuple[str, np.ndarray, np.ndarray | None]] = ()
    options: Mapping[str, float] = field(default_factory=dict)
    clock: Clock = field(default_factory=lambda: Clock(math.inf))

    @cached_property
    def dictionary(self) -> Dictionary:
        """The terms from which the difference may be built."""
        return Dictionary(self.terms, self.reference.shape, self.wrong, self.clock.over)

    @property
    def shapes(self) -> str:
        """The two shapes in words."""
        return (
            f"expected shape {list(self.reference.shape)}; got {list(self.got.shape)}"
        )

    @cached_property
    def difference(self) -> np.ndarray:
        """reference − got."""
        return self.reference - self.got

    @cached_property
    def allowed(self) -> float:
        """The largest difference that does not count as wrong."""
        return self.accuracy * max(
            np.abs(self.reference).max(initial=0.0), np.abs(self.got).max(initial=0.0)
        )

    @cached_property
    def wrong(self) -> np.ndarray:
        """Where the two differ."""
        return np.abs(self.difference) > self.allowed

    @cached_property
    def lengths(self) -> dict[int, str]:
        """The lengths of axes, each with every place where it occurs.

        A forgotten mean or sum multiplies by one of them. Of arrays with the same
        shape, only the first is named. An array's number of elements is included unless
        it is also a length.
        """
        named: dict[tuple[int, ...], str] = {}
        for name, array in self.terms.items():
            named.setdefault(array.shape, name)
        named.setdefault(self.reference.shape, "the gradient")
        places: dict[int, list[str]] = defaultdict(list)
        sizes: dict[int, list[str]] = defaultdict(list)
        for shape, name in named.items():
            sizes[math.prod(shape)].append(name)
            for axis, length in enumerate(shape):
                places[length].append(f"{name}'s axis {axis}")
        found = {n: f"the length of {_and(where)}" for n, where in places.items()}
        of_arrays = {
            n: f"the number of elements of {_and(of)}" for n, of in sizes.items()
        }
        return found | {n: says for n, says in of_arrays.items() if n not in found}

    def result_for(self, dy: np.ndarray) -> np.ndarray | None:
        """Return backward's result for a different cotangent, or None without one."""
        try:
            return self.backward(dy) if self.backward else None
        except Exception:
            return None

    def explained(
        self, target: np.ndarray, prediction: np.ndarray, free: int = 0, tried: int = 1
    ) -> bool:
        """Whether ``prediction`` reproduces ``target``, and hardly by chance.

        ``free`` numbers of the prediction were fitted, and it is one of ``tried``; see
        EVIDENCE.
        """
        if prediction.shape != target.shape or not np.isfinite(prediction).all():
            return False
        if np.abs(prediction - target).max(initial=0.0) > self.allowed:
            return False
        if self.reference.shape != self.got.shape:
            informative, size = target.size, np.abs(target).max(initial=0.0)
        else:
            informative, size = int(self.wrong.sum()), np.abs(self.difference).max()
        bits = (
            (informative - free) * math.log2(size / self.allowed)
            if size > self.allowed > 0
            else 0.0
        )
        return bits >= EVIDENCE + math.log2(tried)


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
