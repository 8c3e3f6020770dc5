"""Asynchronous copies in flight of blocks that execute together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backpass.ptx.bundles import Bundle
from backpass.ptx.rows import Chosen, Unsure, check_defined
from backpass.ptx.tensors import SPACE
from backpass.ptx.tracked import OF_SIZE, By, SharedOfBlocks

if TYPE_CHECKING:
    from backpass.ptx.wave import Wave


class _Copy(NamedTuple):
    """Copies in flight: addresses in shared memory, data and which bytes of it are
    defined, who copies, the groups, and the buffers that are copied from."""

    to: np.ndarray
    data: np.ndarray
    defined: np.ndarray
    by: By
    groups: np.ndarray
    spaces: set[int]

    def only(self, rows: np.ndarray) -> _Copy:
        """Return those that a mask selects."""
        to, data, defined = self.to[rows], self.data[rows], self.defined[rows]
        by, groups = self.by.only(rows), self.groups[rows]
        return _Copy(to, data, defined, by, groups, self.spaces)


class Copies:
    """The copies in flight of a wave. Each block counts its groups of copies."""

    def __init__(self, blocks: int) -> None:
        self.groups = np.zeros(blocks, np.int64)
        self.flying: list[_Copy] = []

    def start(self, wave: Wave, bundle: Bundle, chosen: Chosen) -> None:
        """Start copies of all elements of a bundle."""
        shared = wave.shared
        size = int(bundle.parameters[0].text, 0)
        to, of = (wave.addresses(bundle, chosen, i) for i in (0, 1))
        by = wave.by(bundle, chosen, everywhere=False)
        everywhere = wave.by(bundle, chosen, everywhere=True)
        at = shared.places(to, size, by)
        shared.expect(at, size, by)
        if int(np.bitwise_or.reduce(of)) & (size - 1):
            raise Unsure
        data = np.zeros(len(to), OF_SIZE[size])
        defined = np.full(data.nbytes, 0xFF, np.uint8).view(data.dtype)
        rows = np.arange(len(to))
        if len(bundle.sources) > 2:
            length = wave.registers.read(bundle.sources[2], chosen)
            check_defined(length)
            if not np.isin(length.bits, (0, size)).all():
                raise Unsure
            rows = np.flatnonzero(length.bits)
        data[rows], known = wave.memory.load(of[rows], size, everywhere.only(rows))
        if known is not None:
            defined[rows] = known
        spaces = {*np.unique(of // SPACE).tolist()}
        self.flying.append(_Copy(to, data, defined, by, self.groups[by.blocks], spaces))

    def check_sources(self, addresses: np.ndarray) -> None:
        """Raise Unsure if a store may change what is being copied."""
        spaces = set().union(*(copy.spaces for copy in self.flying))
        if spaces and not spaces.isdisjoint(np.unique(addresses // SPACE).tolist()):
            raise Unsure

    def close(self, blocks: np.ndarray | None) -> None:
        """Close the groups of blocks, or of all for None."""
        self.groups[slice(None) if blocks is None else blocks] += 1

    def finish(
        self,
        shared: SharedOfBlocks,
        blocks: np.ndarray | None,
        left: int,
        *,
        everything: bool,
    ) -> None:
        """Complete the copies of all closed groups of blocks except the last
        ``left``."""
        if everything:
            self.close(blocks)
        open_ = np.full(len(self.groups), -1)
        own = slice(None) if blocks is None else blocks
        open_[own] = self.groups[own] - left
        flying = []
        for copy in self.flying:
            done = copy.groups < open_[copy.by.blocks]
            if done.any():
                _complete(copy.only(done), shared)
            if not done.all():
                flying.append(copy.only(~done))
        self.flying = flying


def _complete(copy: _Copy, shared: SharedOfBlocks) -> None:
    size = copy.data.itemsize
    at = shared.places(copy.to, size, copy.by)
    shared.arrive(at, size)
    full = (copy.defined.view(np.uint8) == 0xFF).all()
    shared.store(copy.to, copy.data, None if full else copy.defined, copy.by)
