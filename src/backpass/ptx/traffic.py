"""How many bytes of global memory a launch moves.

One instruction of a block loads or stores a byte once, however many of the block's
threads access it. So a value that each thread needs is read once.

How often a byte is *moved* is decided by one block, the one that accesses it most
often. A second pass of a block over its data therefore counts again, and parameters
that all blocks read once count once: a GPU's L2 cache usually holds them. A byte is
*asked for* by each instruction of each block: this count ignores caches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Moved(NamedTuple):
    """The bytes of one tensor that a launch loads and stores, and how many its blocks
    ask for, loads and stores together. An atomic instruction loads and stores."""

    tensor: str
    loaded: int
    stored: int
    asked: int


class _Accesses(NamedTuple):
    """Accesses of ``size`` bytes at addresses ``[n]`` by blocks ``[n]``: those of one
    instruction, each once."""

    tensor: str
    stores: bool
    blocks: np.ndarray
    addresses: np.ndarray
    size: int


class Traffic:
    """Counts the bytes that the blocks of a launch move."""

    def __init__(self) -> None:
        self._accesses: list[_Accesses] = []
        self._begun = 0

    def add(
        self,
        tensor: str,
        stores: bool,
        addresses: np.ndarray,
        size: int,
        blocks: np.ndarray,
        instructions: np.ndarray,
    ) -> None:
        """Count the accesses of threads: ``addresses[n]`` in one tensor, each of
        ``size`` bytes, the block ``[n]`` of each thread, and the number ``[n]`` of its
        instruction."""
        if not len(addresses):
            return
        groups = (blocks - blocks.min()) * (int(instructions.max()) + 1) + instructions
        places = addresses - addresses.min()
        _, first = np.unique(
            groups * (int(places.max()) + 1) + places, return_index=True
        )
        own = blocks[first], addresses[first], size
        self._accesses.append(_Accesses(tensor, stores, *own))

    def begin(self) -> None:
        """Mark the start of a block's run, which ``undo`` forgets."""
        self._begun = len(self._accesses)

    def undo(self) -> None:
        """Forget what has been counted since ``begin``."""
        del self._accesses[self._begun :]

    def clear(self) -> None:
        """Forget everything."""
        self._accesses, self._begun = [], 0

    def moved(self) -> tuple[Moved, ...]:
        """Return what was moved of each tensor, in the order of the first accesses."""
        found = []
        for tensor in dict.fromkeys(x.tensor for x in self._accesses):
            own = [x for x in self._accesses if x.tensor == tensor]
            loaded, stored = (
                _largest([x for x in own if x.stores == side]) for side in (False, True)
            )
            asked = sum(x.size * len(x.addresses) for x in own)
            found.append(Moved(tensor, loaded, stored, asked))
        return tuple(found)


def _largest(accesses: list[_Accesses]) -> int:
    """Return how many bytes are moved: each as often as one block accesses it at
    most."""
    if not accesses:
        return 0
    first = min(int(x.addresses.min()) for x in accesses)
    last = max(int(x.addresses.max()) + x.size for x in accesses)
    sizes = [x.size for x in accesses]
    steps = [np.gcd.reduce(x.addresses - first) for x in accesses]
    unit = int(np.gcd.reduce(np.array([*sizes, *steps])))
    count = (last - first) // unit
    keys = []
    for x in accesses:
        places = (x.addresses - first)[:, None] // unit + np.arange(x.size // unit)
        keys.append((x.blocks[:, None] * count + places).reshape(-1))
    key, times = np.unique(np.concatenate(keys), return_counts=True)
    most = np.zeros(count, np.int64)
    np.maximum.at(most, key % count, times)
    return int(most.sum()) * unit
