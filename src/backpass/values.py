"""Checks of what a declaration of shapes cannot state: the values of options, tokens and targets.

A check stands here when several modules need it; one that a single operation needs stands in that operation.
"""

from __future__ import annotations

import math
from numbers import Integral, Real

from backpass.arrays import Array, namespace, size


def check_natural(**numbers: object) -> None:
    """Refuse what cannot be a length or a position: anything but an integer of at least 0. Raises TypeError or
    ValueError, naming the number."""
    for name, value in numbers.items():
        if not isinstance(value, Integral):
            raise TypeError(f"{name}: expected an integer; got {type(value).__name__}")
        if value < 0:
            raise ValueError(f"{name}: expected an integer of at least 0; got {value}")


def check_eps(eps: object) -> None:
    """Refuse what cannot be added below a root: anything but a real number of at least 0. Raises TypeError or
    ValueError."""
    if getattr(eps, "is_real", False):  # a SymPy symbol
        return
    if not isinstance(eps, Real):
        raise TypeError(f"eps: expected a real number; got {type(eps).__name__}")
    if not float(eps) >= 0:
        raise ValueError(f"eps: expected a number of at least 0; got {eps}")


def check_bool(**flags: object) -> None:
    """Raise TypeError, with the flag's name, for a flag that is not a bool."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(
                f"{name}: expected True or False; got {type(value).__name__}"
            )


def check_one_of(name: str, value: object, words: tuple[str, ...]) -> None:
    """Raise ValueError, with the option's name, for a value that is not one of the words."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(
            f"{name}: expected {' or '.join(map(repr, words))}; got {value!r}"
        )


def check_causal(causal: object, causal_variant: object) -> None:
    """Refuse, with TypeError, what is neither true nor false, and, with ValueError, what is no way of aligning the
    positions of queries and keys."""
    check_bool(causal=causal)
    check_one_of("causal_variant", causal_variant, ("upper_left", "lower_right"))


def check_head_order(head_order: str) -> None:
    """Refuse, with ValueError, what is no way of assigning query heads to key heads."""
    check_one_of("head_order", head_order, ("consecutive", "interleaved"))


def check_scale(scale: object) -> None:
    """Refuse, with TypeError, what cannot multiply scores: anything but a real number or None."""
    if (
        scale is not None
        and not isinstance(scale, Real)
        and not getattr(scale, "is_real", False)
    ):
        raise TypeError(
            f"scale: expected a real number, or None for 1/√d; got {type(scale).__name__}"
        )


def check_tile(tile: object) -> None:
    """Refuse what cannot be the side of a tile of scores: anything but an integer of at least 1, or None. Raises TypeError
    or ValueError."""
    if tile is None or getattr(tile, "is_Symbol", False):
        return
    if not isinstance(tile, Integral):
        raise TypeError(f"tile: expected an integer; got {type(tile).__name__}")
    if tile < 1:
        raise ValueError(
            f"tile: expected at least 1 query and key at a time; got {tile}"
        )


def check_tokens(t: Array, vocabulary: int) -> Array:
    """The tokens as integers of 64 bits. Raises IndexError where one is outside the vocabulary."""
    xp = namespace(t)
    t = t if t.dtype == xp.int64 else xp.astype(t, xp.int64)
    if xp.any((t < 0) | (t >= vocabulary)):
        largest, smallest = int(xp.max(t)), -int(xp.max(-t))
        token = largest if largest >= vocabulary else smallest
        raise IndexError(f"t: expected tokens from 0 to {vocabulary - 1}; got {token}")
    return t


def check_targets(
    t: Array, classes: int, ignore_index: int, reduction: str
) -> tuple[Array, float | None]:
    """The targets with −1 for those ignored, and what ``reduction`` divides by: how many are counted, NaN
    if none are; None for the sum. Raises what ``forward`` raises."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: expected 'mean' or 'sum'; got {reduction!r}")
    if not isinstance(ignore_index, Integral):
        raise TypeError(
            f"ignore_index: expected an integer; got {type(ignore_index).__name__}"
        )
    xp = namespace(t)
    t = xp.astype(t, xp.int64)
    counted = t != int(ignore_index)
    outside = counted & ((t < 0) | (t >= classes))

    # One number says both how many count and whether one is outside, so that a GPU is waited for once.
    rows = size(t.shape)
    count = int(xp.sum(xp.where(outside, rows + 1, xp.astype(counted, xp.int64))))
    if count > rows:
        raise IndexError(
            f"t: expected targets from 0 to {classes - 1}, or {ignore_index} to ignore; "
            f"got {_first(t, outside)}"
        )
    return xp.where(counted, t, -1), (
        count or math.nan
    ) if reduction == "mean" else None


def check_sums(name: str, sums: Array, nothing: Array) -> None:
    """Refuse rows of ``name`` whose ``sums[*, 1]`` are not positive, but for those that hold ``nothing[*, 1]`` to sum.
    Raises ValueError, naming the first."""
    xp = namespace(sums)
    refused = (sums <= 0) & ~nothing  # NaN is not at most 0
    if xp.any(refused):
        rows, refused = (xp.reshape(array, (-1,)) for array in (sums, refused))
        first = next(at for at in range(rows.shape[0]) if refused[at])
        found = (
            rows[first].to_numpy()[()]
            if hasattr(rows[first], "to_numpy")
            else rows[first]
        )
        row: list[int] = []
        for length in reversed(sums.shape[:-1]):
            first, index = divmod(first, length)
            row = [index, *row]
        where = f"row {row}" if row else "the only row"
        raise ValueError(
            f"{name}: expected rows whose sums are positive; got a sum of {found} in {where}"
        )


def chosen_chunk(chunk: object, m: int, h: int, V: int) -> int:
    """How many of ``m`` tokens at a time: ``chunk``, or by default as many as have scores ``[chunk, V]`` a quarter as
    large as the gradients of ``x[m, h]`` and ``w[h, V]`` together. Raises TypeError or ValueError."""
    if chunk is None:
        return max(1, (h + m * h // V) // 4)
    if not isinstance(chunk, Integral):
        raise TypeError(f"chunk: expected an integer; got {type(chunk).__name__}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 token at a time; got {chunk}")
    return int(chunk)


def _first(values: Array, chosen: Array) -> int:
    """The first of the integers that are chosen."""
    xp = namespace(values, chosen)
    values, chosen = xp.reshape(values, (-1,)), xp.reshape(chosen, (-1,))
    return next(int(values[at]) for at in range(values.shape[0]) if chosen[at])
