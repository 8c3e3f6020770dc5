"""Several outputs as one: their elements side by side in one vector, so that every method sees one ``y``.

With a cotangent for each output, the loss is the sum of their inner products, and so is the inner product of the two
vectors. Outputs that are not floating-point arrays (indices, say) take no part; their cotangent is None.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from backpass.arrays import Array, is_array, namespace
from backpass.arrays import size as size_of


class Malformed(TypeError):
    """What a forward or a backward returned does not have the form that it owes."""


class Several(NamedTuple):
    """What a forward of several outputs saved, and where each of its outputs lies in the vector."""

    saved: Any
    outputs: tuple[Array, ...]
    joined: tuple[bool, ...]

    def split(self, dy: Array) -> tuple[Array | None, ...]:
        """The cotangent of each output, in that output's shape and dtype."""
        found, start = [], 0
        for output, joined in zip(self.outputs, self.joined, strict=True):
            if not joined:
                found.append(None)
                continue
            xp = namespace(output)
            stop = start + size_of(output.shape)
            part = xp.reshape(dy[start:stop], tuple(output.shape))
            found.append(part if part.dtype == output.dtype else xp.astype(part, output.dtype))
            start = stop
        return tuple(found)


def join(y: object, *, but: Collection[int] = ()) -> tuple[Array, Several | None]:
    """One vector of several outputs, and how they lie in it; one output as it is, and None.

    ``but`` holds the ids of outputs that have no gradient. Raises Malformed where no output is a floating-point array.
    """
    if not isinstance(y, (tuple, list)):
        return y, None
    outputs = tuple(y)
    joined = tuple(_has_gradient(output) and id(output) not in but for output in outputs)
    if not any(joined):
        kinds = ", ".join(type(output).__name__ for output in outputs) or "an empty tuple"
        raise Malformed(f"forward: expected outputs of which one is a floating-point array; got {kinds}")
    parts = [output for output, kept in zip(outputs, joined, strict=True) if kept]
    xp = namespace(*parts)
    flat = xp.concat([xp.reshape(part, (-1,)) for part in parts])
    return flat, Several(None, outputs, joined)


def _has_gradient(output: object) -> bool:
    """Whether it is an array of floating-point numbers, complex ones included: a complex step makes those."""
    if not is_array(output):
        return False
    return namespace(output).isdtype(output.dtype, ("real floating", "complex floating"))
