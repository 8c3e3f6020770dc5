"""The registers of all threads of several blocks: a row for each register."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from backpass.ptx.bundles import Bundle, Rows, Source
from backpass.ptx.values import Value, all_bits


class Unsure(Exception):
    """Something happens that only ``block`` can judge: a fault, or an access that may
    race with another one."""


class Chosen(NamedTuple):
    """Who executes the instructions of a bundle: these threads, or all if ``lanes`` is
    None. If they are all threads of some blocks, ``blocks`` are these. If ``rows`` is
    given, thread ``lanes[i]`` executes only instruction ``rows[i]``."""

    lanes: np.ndarray | None
    blocks: np.ndarray | None = None
    rows: np.ndarray | None = None

    def spread(self, own: np.ndarray, count: int) -> np.ndarray:
        """Return a value of each thread ``[threads]`` once for each element: each
        instruction of the bundle and each thread that executes it."""
        if self.lanes is not None:
            own = own[self.lanes]
        if self.rows is not None:
            return own
        return np.broadcast_to(own, (count, len(own))).reshape(-1)

    def numbered(self, count: int, threads: int) -> np.ndarray:
        """Return the number of each element's instruction, of ``count`` in a bundle."""
        if self.rows is not None:
            return self.rows
        n = threads if self.lanes is None else len(self.lanes)
        return np.repeat(np.arange(count), n)

    def shifted(self, values: np.ndarray, by: np.ndarray) -> np.ndarray:
        """Return the values of all elements plus a number of each instruction."""
        if self.rows is not None:
            return values + by[self.rows]
        return (values.reshape(len(by), -1) + by[:, None]).reshape(-1)


EVERYONE = Chosen(None)


class WideRegisters:
    """The registers of all threads of blocks, of which ``counts`` have each width.

    The ``defined`` bits of a register are recorded only if its row is ``partly``
    defined: otherwise, all bits are.
    """

    def __init__(self, counts: Mapping[type, int], blocks: int, threads: int) -> None:
        self.blocks, n = blocks, blocks * threads
        self.bits = {kind: np.zeros((m, n), kind) for kind, m in counts.items()}
        self.defined = {kind: np.zeros((m, n), kind) for kind, m in counts.items()}
        self.partly = {kind: np.ones(m, bool) for kind, m in counts.items()}

    def fill(self, kind: type, at: int, bits: np.ndarray) -> None:
        """Set a register of all threads."""
        self.bits[kind][at], self.partly[kind][at] = bits, False

    def read(self, source: Source, chosen: Chosen) -> Value:
        """Return an operand of all elements. ``defined`` is empty if all bits are."""
        rows, kind = source
        bits = self._gathered(self.bits[rows.kind], rows, chosen)
        own = rows.range if rows.range is not None else rows.at
        partly = self.partly[rows.kind][own]
        if partly.any():
            self.defined[rows.kind][rows.at[~partly]] = all_bits(rows.kind)
            defined = self._gathered(self.defined[rows.kind], rows, chosen)
            if not (defined == all_bits(defined.dtype)).all():
                return Value(bits, defined).resized(kind)
        return Value(bits.astype(kind, copy=False), _ALL)

    def _gathered(self, table: np.ndarray, rows: Rows, chosen: Chosen) -> np.ndarray:
        if chosen.rows is not None:
            return table[rows.at[chosen.rows], chosen.lanes]
        if chosen.blocks is not None:
            by_block = table.reshape(len(table), self.blocks, -1)
            return by_block[rows.at[:, None], chosen.blocks].reshape(-1)
        if chosen.lanes is not None:
            return table[rows.at[:, None], chosen.lanes].reshape(-1)
        if rows.range is not None:
            return table[rows.range].reshape(-1)
        return table.take(rows.at, axis=0).reshape(-1)

    def write(self, rows: Rows, value: Value, chosen: Chosen) -> None:
        """Write a result of all elements."""
        kind, bits, partly = rows.kind, value.bits, self.partly[rows.kind]
        own = rows.range if rows.range is not None else rows.at
        if is_defined(value):
            self._scatter(self.bits[kind], rows, bits.astype(kind, copy=False), chosen)
            if chosen.lanes is None:
                partly[own] = False
            elif partly[own].any():
                full = np.full(bits.shape, all_bits(kind))
                self._scatter(self.defined[kind], rows, full, chosen)
            return
        whole = rows.at[~partly[own]]  # these rows have had all bits defined
        self.defined[kind][whole] = all_bits(kind)
        partly[own] = True
        bits, defined = value.resized(kind)
        self._scatter(self.bits[kind], rows, bits, chosen)
        self._scatter(self.defined[kind], rows, defined, chosen)

    def _scatter(
        self, table: np.ndarray, rows: Rows, values: np.ndarray, chosen: Chosen
    ) -> None:
        if chosen.rows is not None:
            table[rows.at[chosen.rows], chosen.lanes] = values
        elif chosen.blocks is not None:
            by_block = table.reshape(len(table), self.blocks, -1)
            shape = len(rows.at), len(chosen.blocks), -1
            by_block[rows.at[:, None], chosen.blocks] = values.reshape(shape)
        elif chosen.lanes is not None:
            table[rows.at[:, None], chosen.lanes] = values.reshape(len(rows.at), -1)
        else:
            own = rows.range if rows.range is not None else rows.at
            table[own] = values.reshape(len(rows.at), -1)

    def chosen_by(self, bundle: Bundle, there: Chosen) -> Chosen | None:
        """Return who executes a bundle, given the threads that are there; None if
        nobody does. Raises Unsure if a guard is not defined."""
        if bundle.guard is None:
            return there
        guard = self.read(Source(bundle.guard, bool), there)
        check_defined(guard)
        yes = guard.bits.reshape(bundle.size, -1) ^ bundle.negated[:, None]
        if yes.all():
            return there
        rows, columns = np.nonzero(yes)
        if not len(rows):
            return None
        lanes = columns if there.lanes is None else there.lanes[columns]
        return Chosen(lanes, None, rows)


_ALL = np.zeros(0, np.uint8)  # in place of ``defined``, if all bits are


def is_defined(value: Value) -> bool:
    """Whether all bits of a value are defined."""
    return value.defined is _ALL


def defined_value(bits: np.ndarray) -> Value:
    """Return a value of which all bits are defined."""
    return Value(bits, _ALL)


def with_masks(value: Value) -> Value:
    """Return a value with the masks of its defined bits."""
    if not is_defined(value):
        return value
    bits = value.bits
    return Value(bits, np.full(bits.shape, all_bits(bits.dtype)))


def check_defined(value: Value) -> None:
    """Raise Unsure unless all bits of a value are defined."""
    if not is_defined(value):
        raise Unsure
