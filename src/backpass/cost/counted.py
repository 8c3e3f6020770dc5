"""Count the arithmetic of an operation as it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from backpass.contract.arrays import Array
from backpass.cost.inputs import SEED, drawn, load
from backpass.cost.kept import Memory, memory_of
from backpass.cost.shown import Sheet, Shown
from backpass.interpreters import counting
from backpass.interpreters.counting import Tally
from backpass.operation import Operation


@dataclass(frozen=True, repr=False)
class Cost(Shown):
    """The arithmetic of one forward and one backward, and the memory kept between them.

    ``forward`` and ``backward`` are tallies with ``total`` and ``by_kind``.
    """

    name: str
    forward: Tally
    backward: Tally
    memory: Memory

    @property
    def ratio(self) -> float:
        """The backward's total over the forward's; infinite if only the forward's is 0,
        and NaN if both are."""
        if self.forward.total:
            return self.backward.total / self.forward.total
        return float("inf") if self.backward.total else float("nan")

    @property
    def saved_bytes(self) -> int:
        """The bytes of the saved arrays that are not parameters."""
        return self.memory.activations

    def _in_text(self) -> Sheet:
        forward, backward = self.forward.by_kind, self.backward.by_kind
        kinds = [kind for kind in counting.KINDS if kind in forward or kind in backward]
        rows = [(kind, forward.get(kind, 0), backward.get(kind, 0)) for kind in kinds]
        rows.append(("total", self.forward.total, self.backward.total))
        cells = [(kind, f"{first:,}", f"{second:,}") for kind, first, second in rows]
        title = f"{self.name}: counted FLOPs by kind"
        return Sheet(title, ("", "forward", "backward"), cells, right=(1, 2))

    def _in_page(self) -> Sheet:
        return self._in_text()._replace(headings=("kind", "forward", "backward"))


def count(op: Any, *inputs: object, **options: object) -> Cost:
    """Run forward and backward, with a random cotangent, on numbers that count.

    ``inputs`` are NumPy arrays, shapes, or None; ``options`` are forward's. The count
    is of what ran at these inputs in float64; ``memory`` is measured on the given
    arrays in their dtype. Raises TypeError for other inputs, and whatever forward
    raises.
    """
    op = load(op)
    arrays = drawn(op, inputs)
    for key, array in arrays.items():
        if array is not None and not isinstance(array, np.ndarray):
            raise TypeError(
                f"{key}: expected a NumPy array to count on; got {type(array).__name__}"
            )
    kept = memory_of(op, arrays, options)
    with counting.tally() as forward:
        y, saved = op.forward(*map(_counting, arrays.values()), **options)
    dy = _cotangent(y)
    with counting.tally() as backward:
        op.backward(dy, saved)
    return Cost(Operation(op).name, forward, backward, kept)


def _counting(array: np.ndarray | None) -> Array | None:
    return None if array is None else counting.array(array)


def _cotangent(y: Any) -> Array:
    return counting.array(np.random.default_rng(SEED + 1).standard_normal(y.shape))
