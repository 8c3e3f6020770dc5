r"""Draw which elements dropout keeps, from a counter: each element's random number
depends on a seed and on its place alone, so any part can be drawn, or drawn again.

The generator is Philox 4×64 with 10 rounds (Salmon, Moraes, Dror, and Shaw, 2011), with
the key (seed, 0). An array ``[*, n]`` is seen as rows of n elements. Element j of row r
uses the counter r · ⌈n/8⌉ + ⌊j/8⌋, from which Philox computes four words of 64 bits. Of
their eight halves, the lower half of each word first, it uses number j mod 8. It is
kept unless this number of 32 bits is below p · 2³², rounded.

NumPy has this generator in C, and draws on the CPU. ``drawn_by`` computes the same with
functions of the array API if the elements are on another device, so that nothing waits
for the seed. ``backpass.kernels.philox`` is the same in Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, has_values, is_traced, namespace, size

ROUNDS = 10
GROUP = 8  # elements that share a counter
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B  # what each round adds to the key

_CHUNK = 2**15  # elements that are drawn at once, which fit in a core's cache
_COUNTERS = 2**256
_LOW = 2**32 - 1


def threshold(p: float) -> int:
    """Return the least number of 32 bits whose element is kept; 2³² if none is."""
    return round(p * 2**32)


def share(p: float) -> float:
    """Return 1 − p, by which a kept element is divided; 1 for p = 1, where none is."""
    return (1 - p) or 1.0


def groups(n: int) -> int:
    """Return the number of counters of a row of ``n`` elements."""
    return -(-n // GROUP)


def mask_for(
    x: Array,
    shape: tuple[int, ...],
    p: float,
    seed: Any,
    part: Part | None = None,
) -> Array:
    """Return the mask of this shape, ``[*, n]``, in the library and on the device of
    ``x``: that of a whole array, or a ``part`` of that of a larger one. If ``x`` has a
    shape alone, the mask is false everywhere."""
    xp = namespace(x)
    if not (has_values(x) or is_traced(xp)):
        return xp.zeros(shape, dtype=xp.bool, device=x.device)
    n, rows, columns = part or Part(size(shape[-1:]), all_rows(size(shape[:-1])))
    if is_traced(xp) or not _on_host(x):
        kept = drawn_by(xp, n, p, seed, rows, columns, x.device)
    else:
        kept = xp.asarray(drawn(n, p, seed, rows, columns), device=x.device)
    return xp.reshape(kept, shape)


class Part(NamedTuple):
    """Some rows, range after range, and columns of an array of rows of n elements."""

    n: int
    rows: Sequence[range]
    columns: range | None = None  # all of them


def _on_host(x: Array) -> bool:
    """Whether ``x`` is in the memory in which NumPy draws."""
    return getattr(getattr(x, "device", None), "type", "cpu") == "cpu"


def drawn(
    n: int,
    p: float,
    seed: Any,
    rows: Sequence[range],
    columns: range | None = None,
) -> np.ndarray:
    """Return which elements are kept in some rows of ``n`` elements each, and in some
    columns, by default all, as booleans ``[rows, columns]``.

    ``rows`` are ranges of rows, one after the other. ``seed`` is an integer, or an
    array that holds one.
    """
    columns = range(n) if columns is None else columns
    least, count = threshold(p), sum(map(len, rows))
    if least > _LOW or not len(columns):
        return np.zeros((count, len(columns)), bool)
    columns, cut = _from_a_group(columns)
    kept, start = np.empty((count, len(columns)), bool), 0
    for some in rows:
        part = kept[start : start + len(some)]
        _fill(part, _Stream(int(seed), n, some.start, columns), least)
        start += len(some)
    return kept[:, cut:]


def _from_a_group(columns: range) -> tuple[range, int]:
    """Return the columns with those before them that share their first counter, and the
    number of these."""
    cut = columns.start % GROUP
    return range(columns.start - cut, columns.stop), cut


def _fill(kept: np.ndarray, stream: _Stream, least: int) -> None:
    """Write into ``kept[rows, columns]`` which elements are kept."""
    if not stream.skipped and stream.width == kept.shape[1]:
        return stream.fill(kept.reshape(-1), least)
    step = 1 if stream.skipped else max(1, _CHUNK // stream.width)
    buffer = np.empty((step, stream.width), bool)
    for start in range(0, len(kept), step):
        part = kept[start : start + step]
        stream.fill(buffer[: len(part)].reshape(-1), least)
        part[...] = buffer[: len(part), : kept.shape[1]]
        stream.skip()


class _Stream:
    """NumPy's generator, from the counter of a row's first column on."""

    def __init__(self, seed: int, n: int, row: int, columns: range) -> None:
        drawn = groups(len(columns))
        self.width = drawn * GROUP  # of the elements that the row's counters have
        self.skipped = groups(n) - drawn  # counters between the rows
        counter = row * groups(n) + columns.start // GROUP
        # NumPy adds 1 to the counter before it draws.
        key, counter = seed % 2**64, (counter - 1) % _COUNTERS
        self.generator = np.random.Philox(key=key, counter=counter)

    def fill(self, kept: np.ndarray, least: int) -> None:
        """Write into ``kept``, of a multiple of 8 elements, which are kept."""
        for start in range(0, len(kept), _CHUNK):
            part = kept[start : start + _CHUNK]
            words = self.generator.random_raw(len(part) // 2)
            # The lower half comes first in memory, whatever the machine's order.
            halves = words.astype("<u8", copy=False).view("<u4")
            np.greater_equal(halves, np.uint32(least), out=part)

    def skip(self) -> None:
        """Go on to the next row, after the last one."""
        self.generator.advance(self.skipped)


def drawn_by(
    xp: ModuleType,
    n: int,
    p: float,
    seed: Any,
    rows: Sequence[range],
    columns: range | None,
    device: Any,
) -> Array:
    """Return what ``drawn`` returns, as an array of ``xp`` on the device, from int64
    arithmetic, which wraps."""
    columns, cut = _from_a_group(range(n) if columns is None else columns)
    per_row = groups(n)
    integers = {"dtype": xp.int64, "device": device}
    row = [xp.arange(some.start, some.stop, **integers) for some in rows]
    first = columns.start // GROUP
    group = xp.arange(first, first + groups(len(columns)), **integers)
    counter = xp.concat(row)[:, None] * per_row + group
    halves = [
        half
        for word in philox(xp, counter, _signed(seed))
        for half in (word & _LOW, (word >> 32) & _LOW)
    ]
    kept = xp.stack(halves, axis=-1) >= threshold(p)
    kept = xp.reshape(kept, (counter.shape[0], counter.shape[1] * GROUP))
    return kept[:, cut : len(columns)]


def philox(xp: ModuleType, counter: Array, key: Any) -> tuple[Array, ...]:
    """Return the four words of the counters (``counter``, 0, 0, 0) and the key
    (``key``, 0). Integers of 64 bits are those of int64 with the same bits."""
    zero = xp.zeros_like(counter)
    a, b, c, d = counter, zero, zero, zero
    for i in range(ROUNDS):
        keys = (
            _signed(key + _signed(i * WEYL[0] % 2**64)),
            _signed(i * WEYL[1] % 2**64),
        )
        high_a, low_a = _product(a, MULTIPLIERS[0])
        high_c, low_c = _product(c, MULTIPLIERS[1])
        a, b, c, d = high_c ^ b ^ keys[0], low_c, high_a ^ d ^ keys[1], low_a
    return a, b, c, d


def _product(a: Array, factor: int) -> tuple[Array, Array]:
    """Return the upper and the lower half of the product, of 128 bits."""
    top, bottom = factor >> 32, factor & _LOW
    high, low = (a >> 32) & _LOW, a & _LOW
    lower, left, right = low * bottom, high * bottom, low * top
    middle = ((lower >> 32) & _LOW) + (left & _LOW) + (right & _LOW)
    carried = ((left >> 32) & _LOW) + ((right >> 32) & _LOW) + (middle >> 32)
    return high * top + carried, a * _signed(factor)


def _signed(number: Any) -> Any:
    """Return the integer of 64 bits with a sign that has the same bits. An array, which
    is one already, is returned as it is."""
    return (number + 2**63) % 2**64 - 2**63 if isinstance(number, int) else number


def all_rows(count: int) -> tuple[range, ...]:
    """Return the rows of a whole array."""
    return (range(count),)


def runs(rows: Sequence[int]) -> Iterator[range]:
    """Return the ranges of which rows in this order consist."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[end - 1] + 1:
            yield range(rows[start], rows[end - 1] + 1)
            start = end
