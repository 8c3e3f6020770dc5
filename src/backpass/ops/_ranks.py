"""What some collectives share."""

from __future__ import annotations

from numbers import Integral

from backpass.contract.arrays import Array, namespace, zeros


def check_root(root: object, ranks: int) -> int:
    """Return the root as an int. Raises ValueError if it is not one of the ranks."""
    if isinstance(root, Integral) and not isinstance(root, bool):
        if 0 <= int(root) < ranks:
            return int(root)
    raise ValueError(f"root: expected a rank from 0 to {ranks - 1}; got {root!r}")


def check_places(places: object) -> int:
    """Return the places as an int. Raises TypeError if they are not integers."""
    if not isinstance(places, Integral) or isinstance(places, bool):
        raise TypeError(f"places: expected an integer; got {type(places).__name__}")
    return int(places)


def placed(value: Array, root: int, ranks: int) -> Array:
    """Return ``value[1, *]`` as the root's part, and 0 as that of every other rank."""
    before, after = (
        zeros((count, *value.shape[1:]), value) for count in (root, ranks - 1 - root)
    )
    return namespace(value).concat([before, value, after], axis=0)
