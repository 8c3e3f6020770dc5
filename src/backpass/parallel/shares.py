"""What a rank has of a network's parameters in tensor parallelism.

Query heads, key heads, hidden columns, and tokens of the vocabulary are divided in
order, as evenly as possible. If there are fewer key heads than ranks, several ranks
have the same key head, and divide the query heads that use it. Weights of norms,
positions, and the biases that a block adds to its output are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, namespace
from backpass.models import gpt2, llama
from backpass.models._parameters import HEAD
from backpass.models.layers import gpt2_layer, llama_layer

LAYERS = {gpt2: gpt2_layer, llama: llama_layer}
# The axis along which a layer's parameter is divided, and what is divided, by argument.
AXES: dict[ModuleType, dict[str, tuple[int, str]]] = {
    gpt2_layer: {
        "w_qkv": (1, "thirds"),
        "b_qkv": (0, "thirds"),
        "w_o": (0, "queries"),
        "w_up": (1, "hidden"),
        "b_up": (0, "hidden"),
        "w_down": (0, "hidden"),
    },
    llama_layer: {
        "w_q": (0, "queries"),
        "w_k": (0, "keys"),
        "w_v": (0, "keys"),
        "w_o": (1, "queries"),
        "b_q": (0, "queries"),
        "b_k": (0, "keys"),
        "b_v": (0, "keys"),
        "w_gate": (0, "hidden"),
        "w_up": (0, "hidden"),
        "w_down": (1, "hidden"),
    },
}

Span = tuple[int, int]  # from the first to before the last


class Share(NamedTuple):
    """The part of a parameter that a rank has: along ``axis``, these ``spans``, one
    after the other. ``first`` says whether no rank before it has the same part."""

    axis: int
    spans: tuple[Span, ...]
    first: bool

    def of(self, whole: Array) -> Array:
        """Return the rank's part of ``whole[*]``."""
        if not self.spans:
            return whole
        parts = [whole[self._at(whole, span)] for span in self.spans]
        return namespace(whole).concat(parts, axis=self.axis)

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the rank's part of an array of shape ``whole``."""
        if not self.spans:
            return whole
        length = sum(stop - start for start, stop in self.spans)
        return *whole[: self.axis], length, *whole[self.axis + 1 :]

    def put(self, part: Array, length: int) -> Array:
        """Return an array like the whole parameter, of ``length`` along the axis, with
        ``part[*]`` in its place and 0 elsewhere."""
        if not self.spans:
            return part
        xp, pieces, at, done = namespace(part), [], 0, 0
        for start, stop in self.spans:
            pieces.append(self._zeros(part, start - done))
            pieces.append(part[self._at(part, (at, at + stop - start))])
            at, done = at + stop - start, stop
        pieces.append(self._zeros(part, length - done))
        return xp.concat(pieces, axis=self.axis)

    def _at(self, x: Array, span: Span) -> tuple[slice, ...]:
        return tuple(
            slice(*span) if axis == self.axis else slice(None) for axis in range(x.ndim)
        )

    def _zeros(self, like: Array, length: int) -> Array:
        shape = list(like.shape)
        shape[self.axis] = length
        return namespace(like).zeros(shape, dtype=like.dtype, device=like.device)


class Heads(NamedTuple):
    """Which heads a rank has."""

    queries: Span
    keys: Span
    sharers: Span  # the ranks that have the same key heads


def span(n: int, rank: int, ranks: int) -> Span:
    """Return the rank's part of the numbers from 0 to n − 1, in order."""
    return rank * n // ranks, (rank + 1) * n // ranks


def heads_of(heads: int, key_heads: int, rank: int, ranks: int) -> Heads:
    """Return the heads of a rank. Raises ValueError if a rank would have none."""
    group = heads // key_heads
    if key_heads >= ranks:
        start, stop = span(key_heads, rank, ranks)
        return Heads((start * group, stop * group), (start, stop), (rank, rank + 1))
    key = rank * key_heads // ranks
    sharers = [p for p in range(ranks) if p * key_heads // ranks == key]
    if len(sharers) > group:
        raise ValueError(
            f"tensor: expected at most {group} ranks for each of the {key_heads} key "
            f"heads, one for each query head that uses it; got {len(sharers)}"
        )
    start, stop = span(group, rank - sharers[0], len(sharers))
    first = key * group
    return Heads(
        (first + start, first + stop), (key, key + 1), (sharers[0], sharers[-1] + 1)
    )


def heads_in(config: Any, rank: int, ranks: int) -> Heads:
    """Return the heads of a rank in a network of this configuration."""
    key_heads = getattr(config, "key_heads", config.heads)
    return heads_of(config.heads, key_heads, rank, ranks)


def shares(model: ModuleType, config: Any, rank: int, ranks: int) -> dict[str, Share]:
    """Return the rank's share of each parameter, by its name.

    Raises ValueError if a rank would have no head, no hidden column, or no token.
    """
    for name in ("feed_forward", "vocabulary"):
        if getattr(config, name) < ranks:
            raise ValueError(
                f"tensor: expected at most {name} = {getattr(config, name)} ranks; "
                f"got {ranks}"
            )
    heads = heads_in(config, rank, ranks)
    d = getattr(config, "head_width", config.width // config.heads)
    queries, keys = (tuple(d * at for at in each) for each in heads[:2])
    spans: dict[str, tuple[Any, ...]] = {
        "queries": (queries,),
        "keys": (keys,),
        "thirds": tuple(
            tuple(i * config.width + at for at in queries) for i in range(3)
        ),
        "hidden": (span(config.feed_forward, rank, ranks),),
    }
    first = {"keys": rank == heads.sharers[0]}
    tokens = Share(0, (span(config.vocabulary, rank, ranks),), True)

    layer = LAYERS[model]
    found = {}
    for name in model.parameter_shapes(config):
        argument = _argument(layer, name)
        if name in (model.TABLE, HEAD):
            found[name] = tokens
        elif argument in AXES[layer]:
            axis, what = AXES[layer][argument]
            found[name] = Share(axis, spans[what], first.get(what, True))
        else:
            found[name] = Share(0, (), rank == 0)
    return found


def _argument(layer: ModuleType, name: str) -> str | None:
    """Return the argument of the layer for a parameter of a network, if it has one."""
    names: Mapping[str, str] = layer.NAMES
    for argument, own in names.items():
        if name.endswith(f".{own}"):
            return argument
    return None
