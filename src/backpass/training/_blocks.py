"""Large arrays in blocks, so that what is computed in between stays in a cache and
needs little memory."""

from __future__ import annotations

from collections.abc import Iterator

from backpass.contract.arrays import Array, size

BLOCK = 1 << 17  # elements


def blocks(x: Array) -> Iterator[Array]:
    """Yield slices of ``x[*]`` along its longest axis, which together are all of it.

    A slice has at most ``BLOCK`` elements, or is one index of that axis. In NumPy and
    PyTorch it is a view, whatever the strides.
    """
    if size(x.shape) <= BLOCK:
        yield x
        return
    length = max(x.shape)
    axis = tuple(x.shape).index(length)
    step = max(1, BLOCK * length // size(x.shape))
    for start in range(0, length, step):
        yield x[(*[slice(None)] * axis, slice(start, start + step), ...)]
