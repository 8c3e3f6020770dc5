"""The parts of a language model, one by one, so that a rank can have some of them, or
their parameters for a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from backpass.contract.arrays import Array, widened
from backpass.models import stacks
from backpass.models.layers import output_head
from backpass.models.layers.kernel import (
    differentiable,
    gradients_of,
    scheme_for,
    unwrapped,
)
from backpass.ops import embedding


class Piece(stacks.Piece):
    """A part of a network: an operation or a layer, with the names of its parameters by
    argument, and its options. Its backward runs whole (B), or computes the gradient of
    x (I) and those of the parameters (W) apart."""

    def backward(
        self, dy: Array, saved: Any, wanted: str
    ) -> tuple[Array | None, dict[str, Array]]:
        """Return the gradients of x and of the parameters, by name: both for ``wanted``
        B, the first for I, the second for W."""
        if self.operation is embedding:
            table, own = unwrapped(embedding, saved)
            found = {} if wanted == "I" else {"w": table.backward(dy, own)}
        else:
            names = (*("x" * (wanted != "W")), *(self.names if wanted != "I" else ()))
            d = gradients_of(self.operation, dy, saved, names)
            found = dict(zip(differentiable(self.operation), d, strict=True))
        own = {} if wanted == "I" else self.names
        return found.get("x"), {name: found[argument] for argument, name in own.items()}


def pieces(model: ModuleType, config: Any) -> list[Piece]:
    """Return the parts of a GPT-2 or a Llama, in the order of the forward. The first
    takes the tokens, the last the targets too. Raises ValueError for dropout."""
    rates = [name for name, p in vars(config).items() if "dropout" in name and p]
    if rates:
        raise ValueError(
            "config: expected no dropout in a pipeline or on shards; "
            f"got {', '.join(rates)}"
        )
    family = model.FAMILY
    stack = model.stack(config)
    *parts, head = (Piece(*part) for part in family.pieces(config, stack) if part.names)
    embedded = Piece("embedding", embedding, {"w": family.table}, {}, {})
    return [embedded, *parts, head._replace(options={"wide": True})]


def stages(
    model: ModuleType, config: Any, layers: Sequence[int]
) -> list[tuple[Piece, ...]]:
    """Return the pieces of each stage, by the number of its layers. What comes before
    the layers is on the first stage, what comes after them on the last."""
    every = pieces(model, config)
    first = len(every) - config.layers - 2
    ends = [first + sum(layers[: k + 1]) for k in range(len(layers))]
    starts = [0, *ends[:-1]]
    ends[-1] = len(every)
    return [tuple(every[a:b]) for a, b in zip(starts, ends, strict=True)]


class Runner:
    """Runs the forwards of pieces, with what they need besides x and parameters: the
    schemes of ``Network``, and what all layers receive, computed once."""

    def __init__(self, model: ModuleType, config: Any, schemes: Any) -> None:
        self.model, self.config, self.schemes = model, config, schemes
        self._shared: Mapping[str, Any] | None = None

    def forward(
        self, piece: Piece, x: Array, w: Mapping[str, Array], targets: Array
    ) -> tuple[Array, Any]:
        """Return what the piece's operation, or the scheme in its place, returns."""
        run = scheme_for(piece.operation, self.schemes).forward
        inputs = piece.arrays(w)
        if hasattr(piece.operation, "BLOCKS"):  # a layer
            if self._shared is None:
                self._shared = self.model.FAMILY.shared(self.config, x, self.schemes)
            shared = {**self._shared, "kernels": self.schemes}
            return run(x, **inputs, **piece.options, **shared)
        more = {"t": targets} if piece.operation is output_head else {}
        return run(x, *inputs.values(), **piece.options, **more)


def add(total: dict[str, Array], gradients: Mapping[str, Array]) -> None:
    """Add the gradients to those of the same names in ``total``, in half precision as
    float32. No array is modified."""
    for name, d in gradients.items():
        d = widened(d)
        total[name] = total[name] + d if name in total else d
