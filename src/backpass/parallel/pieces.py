"""The parts of a GPT-2 or a Llama, one by one, so that a rank can have some of them, or
their parameters for a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, widened
from backpass.models import gpt2
from backpass.models._parameters import HEAD
from backpass.models.layers import llama_layer, output_head
from backpass.models.layers.kernel import (
    differentiable,
    gradients_of,
    scheme_for,
    unwrapped,
)
from backpass.ops import embedding, layer_norm, position_embedding, rms_norm, rope
from backpass.parallel.shares import LAYERS


class Piece(NamedTuple):
    """A part of a network: an operation or a layer, the names of its parameters by
    argument, and its options."""

    operation: ModuleType
    names: Mapping[str, str]
    options: Mapping[str, Any]

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
    layer, head = LAYERS[model], {"w": model.TABLE if config.tied else HEAD}
    eps = {"eps": config.eps}
    options = eps | ({"heads": config.heads} if model is gpt2 else {})
    layers = [Piece(layer, names, options) for names in model.layer_names(config)]
    if model is gpt2:
        layers.insert(0, Piece(position_embedding, {"w": gpt2.POSITIONS}, {}))
        norm = Piece(layer_norm, gpt2.NORM, eps)
    else:
        norm = Piece(rms_norm, {"w": model.NORM}, eps)
    embedded = Piece(embedding, {"w": model.TABLE}, {})
    return [embedded, *layers, norm, Piece(output_head, head, {"wide": True})]


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
    schemes of ``Network``, and RoPE's tables, once for all rows of one number."""

    def __init__(self, config: Any, schemes: Any) -> None:
        self.config, self.schemes = config, schemes
        self._tables: dict[str, Array] = {}

    def forward(
        self, piece: Piece, x: Array, w: Mapping[str, Array], targets: Array
    ) -> tuple[Array, Any]:
        """Return what the piece's operation, or the scheme in its place, returns."""
        run = scheme_for(piece.operation, self.schemes).forward
        inputs = {argument: w[name] for argument, name in piece.names.items()}
        if piece.operation in LAYERS.values():
            rope_of = piece.operation is llama_layer
            tables = self._rope(x) if rope_of else {}
            return run(x, **inputs, **piece.options, **tables, kernels=self.schemes)
        more = {"t": targets} if piece.operation is output_head else {}
        return run(x, *inputs.values(), **piece.options, **more)

    def _rope(self, x: Array) -> dict[str, Array]:
        if not self._tables:
            c, tables = self.config, scheme_for(rope, self.schemes).tables
            cos, sin = tables(x.shape[-2], c.head_width, base=c.base, like=x)
            self._tables = {"cos": cos, "sin": sin}
        return self._tables


def add(total: dict[str, Array], gradients: Mapping[str, Array]) -> None:
    """Add the gradients to those of the same names in ``total``, in half precision as
    float32. No array is modified."""
    for name, d in gradients.items():
        d = widened(d)
        total[name] = total[name] + d if name in total else d
