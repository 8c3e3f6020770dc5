"""Which arrays can be written over without changing another number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from array_api_compat import is_torch_array

from backpass.contract.arrays import Array, size


def writable(arrays: Mapping[str, Array]) -> frozenset[str]:
    """Return the names of the arrays ``[*]`` of NumPy and PyTorch that can be written,
    whose elements lie apart, and whose memory does not overlap that of another such
    array.

    Arrays that interleave, such as two sets of columns of one matrix, share nothing but
    are left out too.
    """
    found = {
        name: x
        for name, x in arrays.items()
        if _is_written(x) and (is_torch_array(x) or x.flags.writeable)
    }
    shared: set[str] = set()
    furthest, whose = 0, ""
    places = ((*_memory(x), name) for name, x in found.items() if size(x.shape))
    for start, stop, name in sorted(places):
        if not _lie_apart(found[name]):
            shared.add(name)
        if start < furthest:
            shared |= {name, whose}
        if stop > furthest:
            furthest, whose = stop, name
    return frozenset(found) - shared


def check_writable(parameters: Mapping[str, Array], names: Iterable[str]) -> None:
    """Raise ValueError if a named array of NumPy or PyTorch cannot be written over, or
    not without changing another one of the ``parameters[*]``."""
    own = writable(parameters)
    faults = [n for n in names if n not in own and _is_written(parameters[n])]
    if faults:
        raise ValueError(
            "in_place: expected parameters that can be written and whose memory does "
            f"not overlap; got {', '.join(faults)}"
        )


def _is_written(x: Array) -> bool:
    """Whether ``x`` is of a library whose arrays are written over."""
    return is_torch_array(x) or isinstance(x, np.ndarray)


def _memory(x: Array) -> tuple[int, int]:
    """Return the addresses at which the memory of ``x[*]`` begins and ends."""
    if isinstance(x, np.ndarray):
        return np.lib.array_utils.byte_bounds(x)
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.dtype.itemsize


def _lie_apart(x: Array) -> bool:
    """Whether no two elements of ``x[*]`` share memory: a step along each axis is at
    least as long as all that the axes with shorter steps span."""
    spanned = x.dtype.itemsize
    strides = [spanned * s for s in x.stride()] if is_torch_array(x) else x.strides
    for step, n in sorted((abs(s), n) for s, n in zip(strides, x.shape, strict=True)):
        if n > 1 and step < spanned:
            return False
        spanned += (n - 1) * step
    return True
