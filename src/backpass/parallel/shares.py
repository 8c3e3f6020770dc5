"""What a rank has of a network's parameters in tensor parallelism.

Query heads, key heads, hidden columns, and tokens of the vocabulary are divided in
order, as evenly as possible. If there are fewer key heads than ranks, several ranks
have the same key head, and divide the query heads that use it. Weights of norms,
positions, and the biases that a block adds to its output are whole on every rank.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, namespace
from backpass.models import gpt2, llama
from backpass.models._parameters import HEAD

# The divided parameters of a layer by what divides them, each with its axis.
AXES: dict[ModuleType, dict[str, dict[str, int]]] = {
    gpt2: {
        "thirds": {"w_qkv": 1, "b_qkv": 0},
        "queries": {"w_o": 0},
        "hidden": {"w_up": 1, "b_up": 0, "w_down": 0},
    },
    llama: {
        "queries": {"w_q": 0, "b_q": 0, "w_o": 1},
        "keys": {"w_k": 0, "w_v": 0, "b_k": 0, "b_v": 0},
        "hidden": {"w_gate": 0, "w_up": 0, "w_down": 1},
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

    found = dict.fromkeys(model.parameter_shapes(config), Share(0, (), rank == 0))
    found |= {name: tokens for name in (model.TABLE, HEAD) if name in found}
    for names in model.layer_names(config):
        for what, axes in AXES[model].items():
            for argument in names.keys() & axes:
                share = Share(axes[argument], spans[what], first.get(what, True))
                found[names[argument]] = share
    return found
