"""Save the input of layers or of operations, and run them again in the backward.

``stacked`` runs successive layers. If each ``every`` of them form a segment, a segment
saves its input only; its backward runs the forward of its layers again. ``Recomputed``
is an operation that saves its inputs instead of what its backward needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

from backpass.contract.arrays import Array

# What runs again: segments of that many layers, or operations by the names below.
Recompute = int | Collection[str] | None
OPERATIONS = {
    "attention": ("attention", "flash_attention"),
    "feed_forward": ("feed_forward",),
    "norms": ("layer_norm", "rms_norm"),
}
Layer = partial[tuple[Array, Any]]  # a layer's forward with all arguments but x


class Segment(NamedTuple):
    """What successive layers save together. Each of them has this one value."""

    x: Array  # the input of the first
    layers: tuple[Layer, ...]
    parts: list[Any]  # what they save, once they have run again

    def pop(self) -> Any:
        """Return what the last layer saves, the next time what the layer before it
        saves, and so on. The first time, the layers run again."""
        if not self.parts:
            self.run_again()
        return self.parts.pop()

    def run_again(self) -> None:
        """Run the layers, and store what they save in ``parts``."""
        _, parts = stacked(self.layers, self.x)
        self.parts.extend(parts)


class Saved(NamedTuple):
    """The inputs of an operation that runs again."""

    operation: Any  # or a kernel
    inputs: tuple[Array | None, ...]
    options: Mapping[str, Any]

    def again(self) -> Any:
        """Return what the operation saves."""
        return self.operation.forward(*self.inputs, **self.options)[1]


class Recomputing(NamedTuple):
    """What a layer takes in place of ``kernels``: the kernels, and the stems of the
    operations that run again."""

    kernels: Any
    operations: Collection[str]


class Recomputed:
    """An operation, or a kernel, that saves its inputs."""

    def __init__(self, operation: Any) -> None:
        self.operation = operation

    def forward(
        self, *inputs: Array | None, wanted: Collection[str], **options: Any
    ) -> tuple[Array, Any]:
        """Return what the operation returns, and None if nothing is wanted."""
        y, _ = self.operation.forward(*inputs, wanted=(), **options)
        if not wanted:
            return y, None
        return y, Saved(self.operation, inputs, {**options, "wanted": wanted})


def stacked(
    layers: Sequence[Layer], x: Array, every: int | None = None
) -> tuple[Array, list[Any]]:
    """Return the output of successive layers for the input ``x``, and what each saved.

    With ``every``, that many layers are a segment, and the last segment may have fewer.
    The layers without a wanted gradient come first: they save nothing and are in no
    segment.
    """
    parts: list[Any] = []
    for layer in layers:
        if every is None or not layer.keywords["wanted"]:
            x, part = layer(x)
            parts.append(part)
    if every is not None:
        for start in range(len(parts), len(layers), every):
            some = tuple(layers[start : start + every])
            parts += [Segment(x, some, [])] * len(some)
            for layer in some:
                x, _ = layer(x, wanted=())
    return x, parts


def divided(recompute: Recompute, kernels: Any) -> tuple[int | None, Any]:
    """Return the number of layers in a segment, or None; and the ``kernels`` for the
    layers, with which the operations that ``recompute`` names run again. Raises
    TypeError or ValueError for an invalid ``recompute``."""
    if recompute is None:
        return None, kernels
    if isinstance(recompute, Integral) and not isinstance(recompute, bool):
        if recompute < 1:
            raise ValueError(
                f"recompute: expected a segment of at least 1 layer; got {recompute}"
            )
        return int(recompute), kernels
    if isinstance(recompute, str) or not isinstance(recompute, Collection):
        raise TypeError(
            "recompute: expected the number of layers in a segment, a collection of "
            f"names such as ('attention',), or None; got {recompute!r}"
        )
    for name in recompute:
        if name not in OPERATIONS:
            raise ValueError(
                f"recompute: expected names among {', '.join(OPERATIONS)}; got {name!r}"
            )
    stems = {stem for name in recompute for stem in OPERATIONS[name]}
    return None, Recomputing(kernels, stems)
