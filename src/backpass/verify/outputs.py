"""Join several outputs into one vector, so that every method sees a single ``y``.

With a cotangent for each output, the loss is the sum of the outputs' inner products
with their cotangents. That equals the inner product of the two joined vectors. Outputs
that are not floating-point arrays, such as indices, are left out; their cotangent is
None. ``named_arrays`` lists the arrays that a forward saves.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, is_array, namespace
from backpass.contract.arrays import size as size_of
from backpass.verify.convert import is_floating


class Malformed(TypeError):
    """The result of a forward or a backward does not have the required form."""


class Several(NamedTuple):
    """The saved object of a forward with several outputs, the outputs, and which of
    them are joined in the vector."""

    saved: Any
    outputs: tuple[Array, ...]
    joined: tuple[bool, ...]

    def split(self, dy: Array) -> tuple[Array | None, ...]:
        """Return the cotangent of each output, in that output's shape and dtype. If dy
        is not contiguous, every second one is, so that two of one shape have different
        strides."""
        cotangents: list[Array | None] = []
        start, copies, spread = 0, False, not _is_contiguous(dy)
        for output, joined in zip(self.outputs, self.joined, strict=True):
            if not joined:
                cotangents.append(None)
                continue
            xp = namespace(output)
            stop = start + size_of(output.shape)
            part = xp.reshape(dy[start:stop], tuple(output.shape))
            if spread and copies:
                part = xp.asarray(part, copy=True)
            copies = not copies
            cotangents.append(
                part if part.dtype == output.dtype else xp.astype(part, output.dtype)
            )
            start = stop
        return tuple(cotangents)


def _is_contiguous(x: Array) -> bool:
    if hasattr(x, "is_contiguous"):
        return bool(x.is_contiguous())
    flags = getattr(x, "flags", None)
    return flags is None or bool(flags.c_contiguous)


def join(y: object, *, but: Collection[int] = ()) -> tuple[Array, Several | None]:
    """Join several outputs into one vector; return it and a Several to split it.

    A single output is returned unchanged, with None. ``but`` holds the ids of outputs
    that have no gradient. Raises Malformed if no output is a floating-point array.
    """
    if not isinstance(y, (tuple, list)):
        return y, None
    outputs = tuple(y)
    joined = tuple(is_differentiable(of) and id(of) not in but for of in outputs)
    if not any(joined):
        kinds = ", ".join(type(output).__name__ for output in outputs)
        raise Malformed(
            "forward: expected at least one floating-point array among the outputs; "
            f"got {kinds or 'an empty tuple'}"
        )
    parts = list(itertools.compress(outputs, joined))
    xp = namespace(*parts)
    flat = xp.concat([xp.reshape(part, (-1,)) for part in parts])
    return flat, Several(None, outputs, joined)


def flat(returned: object) -> list[Any]:
    """Return the gradients that a backward returns in one list, also those of a list or
    a dictionary within: ``dx, [dw, db]`` or ``dx, {"w": dw, "b": db}``."""
    if isinstance(returned, Mapping):
        return list(returned.values())
    if not isinstance(returned, tuple | list):
        return [returned]
    nested = (dict, tuple, list)
    return [
        gradient
        for part in returned
        for gradient in (flat(part) if isinstance(part, nested) else [part])
    ]


def named_arrays(saved: object) -> Iterator[tuple[str, Array]]:
    """Yield the floating-point arrays in ``saved``, each with a name."""
    if isinstance(saved, Several):
        saved = saved.saved
    if isinstance(saved, dict):
        pairs = [(str(key), value) for key, value in saved.items()]
    elif isinstance(saved, (tuple, list)):
        numbered = [f"saved[{at}]" for at in range(len(saved))]
        pairs = list(zip(getattr(saved, "_fields", numbered), saved, strict=True))
    elif hasattr(saved, "__dict__") and not is_array(saved):
        pairs = list(vars(saved).items())
    else:
        pairs = [("saved", saved)]
    return ((name, value) for name, value in pairs if is_floating(value))


def is_differentiable(output: object) -> bool:
    """Whether ``output`` is a floating-point array. Complex arrays count, because the
    complex step returns them."""
    kinds = ("real floating", "complex floating")
    return is_array(output) and namespace(output).isdtype(output.dtype, kinds)
