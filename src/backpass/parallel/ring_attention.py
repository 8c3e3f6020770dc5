"""Ring attention: each rank holds a part of the sequence, and the keys and values
travel around the ring of ranks (Liu et al., 2023, arXiv:2310.01889).

The keys of each rank give an output and a row of log-sum-exps, those of
``flash_attention``. The log-sum-exp of these is that of the whole row, and the outputs
are added with the weights ``exp(lse_of_part - lse)``, as the page ``parallel/ring``
derives. Values and gradients are those of ``attention`` on the whole sequence. Every
input, output, and gradient is a shard: the same positions of it, on the same rank.

Without ``zigzag``, rank p holds the part p of r equal parts of the sequence. With it,
rank p holds the parts p and 2r − 1 − p of 2r, one after the other; then a causal mask
gives every rank the same work in every step. ``positions`` says which positions these
are. Blocks of scores in which every score is hidden are skipped. In half precision
everything between the inputs and the results is computed in float32; keys and values
travel in half precision, their gradients in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from backpass.contract.arrays import (
    Array,
    as_number,
    as_type_of,
    bounded_below,
    namespace,
    size,
    widened,
)
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved
from backpass.contract.values import (
    check_bool,
    check_head_order,
    check_natural,
    check_scale,
)
from backpass.ops import flash_attention
from backpass.ops._heads import inverse_root
from backpass.parallel._sequence import SHAPES, check_lengths, cut
from backpass.parallel.group import Group


class Saved(NamedTuple):
    """The rank's inputs and output, and a number per query: no array of scores."""

    q: Array  # [*, n_h, s, d]
    k: Array  # [*, n_kv, s, d]
    v: Array  # [*, n_kv, s, d_v]
    y: Array  # [*, n_h, s, d_v]
    lse: Array  # [*, n_h, s], over all ranks' keys
    causal: bool
    zigzag: bool
    scale: float
    head_order: str


def forward(
    group: Group,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    zigzag: bool = False,
    scale: float | None = None,
    head_order: str = "consecutive",
) -> tuple[Array, Saved]:
    """Return ``y[*, n_h, s, d_v]`` for the rank's queries ``q[*, n_h, s, d]``, keys
    ``k[*, n_kv, s, d]``, and values ``v[*, n_kv, s, d_v]``: shards of the sequence.

    ``scale`` is 1/√d unless given. Raises TypeError if an input is not a floating-point
    array, if inputs differ in library, device, or dtype, or for an option of the wrong
    type; ValueError if shapes do not fit, if the ranks' lengths differ, if ``zigzag``
    is asked for with an odd s, or for an unknown ``head_order``.
    """
    xp = check_inputs(SHAPES, q=q, k=k, v=v)
    check_bool(causal=causal)
    check_scale(scale)
    check_head_order(head_order)
    check_lengths(group, q)
    own = parts_of(group.rank, group.size, zigzag)
    queries = _cut(widened(q), len(own))
    scale = inverse_root(max(q.shape[-1], 1), xp) if scale is None else as_number(scale)

    options: dict[str, Any] = {"scale": scale, "head_order": head_order}
    so_far: list[Any] = [None] * len(own)
    moving = k, v
    for step in range(group.size):
        if step:
            moving = tuple(group.shift(x) for x in moving)
        theirs = parts_of((group.rank - step) % group.size, group.size, zigzag)
        keys, values = (_cut(widened(x), len(own)) for x in moving)
        for i, j, diagonal in visible(own, theirs, causal):
            y, block = flash_attention.forward(
                queries[i], keys[j], values[j], causal=diagonal, **options
            )
            so_far[i] = merge(so_far[i], (y, block.lse))

    y = as_type_of(xp.concat([y for y, _ in so_far], axis=-2), q)
    lse = xp.concat([lse for _, lse in so_far], axis=-1)
    return y, Saved(q, k, v, y, lse, causal, zigzag, scale, head_order)


def merge(
    so_far: tuple[Array, Array] | None, block: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return output ``[*, s, d_v]`` and log-sum-exp ``[*, s]`` over the keys of both,
    from those over the keys of each."""
    if so_far is None:
        return block
    xp = namespace(block[0])
    (y_a, lse_a), (y_b, lse_b) = so_far, block
    top = bounded_below(xp.max(xp.stack([lse_a, lse_b]), axis=0))
    a, b = xp.exp(lse_a - top), xp.exp(lse_b - top)
    total = a + b
    y = (a / total)[..., None] * y_a + (b / total)[..., None] * y_b
    return y, top + xp.log(total)


def backward(group: Group, dy: Array, saved: Saved) -> tuple[Array, Array, Array]:
    """Return ``dq[*, n_h, s, d]``, ``dk[*, n_kv, s, d]``, and ``dv[*, n_kv, s, d_v]``,
    shards, from the shard ``dy[*, n_h, s, d_v]``.

    In the forward pass keys and values visited every rank; so now they visit every rank
    again, and their gradients travel with them, to be added to, one place further: back
    to where they belong. What belongs to a query stays: its output, its log-sum-exp,
    and their gradients.
    """
    q, k, v, y, lse, causal, zigzag, scale, head_order = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    own = parts_of(group.rank, group.size, zigzag)
    n = len(own)
    queries, outputs, cotangents = (_cut(widened(x), n) for x in (q, y, dy))
    sums = [part[..., 0] for part in _cut(lse[..., None], n)]

    dq = [xp.zeros_like(x) for x in queries]
    moving = k, v
    gradients = xp.zeros_like(widened(k)), xp.zeros_like(widened(v))
    for step in range(group.size):
        if step:
            moving = tuple(group.shift(x) for x in moving)
            gradients = tuple(group.shift(x) for x in gradients)
        theirs = parts_of((group.rank - step) % group.size, group.size, zigzag)
        keys, values = (_cut(widened(x), n) for x in moving)
        dk, dv = (_cut(x, n) for x in gradients)
        for i, j, diagonal in visible(own, theirs, causal):
            # Output and log-sum-exp are those over all keys, not over this block's.
            tiling = flash_attention.tiling_of(
                queries[i].shape[-2],
                keys[j].shape[-2],
                size(queries[i].shape[:-2]),
                diagonal,
                "upper_left",
                None,
            )
            arrays = queries[i], keys[j], values[j], outputs[i], sums[i]
            whole = flash_attention.Saved(
                *arrays,
                bias=None,
                mask=None,
                sink=None,
                scale=scale,
                softcap=None,
                head_order=head_order,
                tiling=tiling,
                wanted=("q", "k", "v"),
            )
            parts = flash_attention.backward(cotangents[i], whole)[:3]
            dq[i], dk[j], dv[j] = (
                x + part for x, part in zip((dq[i], dk[j], dv[j]), parts, strict=True)
            )
        gradients = xp.concat(dk, axis=-2), xp.concat(dv, axis=-2)
    # They were shifted r − 1 times: one place is left to their own rank.
    dk, dv = (group.shift(x) for x in gradients)
    return as_type_of(xp.concat(dq, axis=-2), q), as_type_of(dk, k), as_type_of(dv, v)


def parts_of(rank: int, ranks: int, zigzag: bool) -> list[int]:
    """Return the numbers of the parts that a rank holds: of r equal parts, or with
    ``zigzag`` of 2r."""
    check_bool(zigzag=zigzag)
    return [rank, 2 * ranks - 1 - rank] if zigzag else [rank]


def positions(rank: int, ranks: int, s: int, *, zigzag: bool = False) -> list[int]:
    """Return the positions in the whole sequence of the s tokens that a rank holds.

    They cut an array of the whole sequence, and give RoPE its angles. Raises ValueError
    for an odd s with ``zigzag``.
    """
    check_natural(s=s)
    parts = parts_of(rank, ranks, zigzag)
    _check_even(s, len(parts))
    length = s // len(parts)
    return [part * length + i for part in parts for i in range(length)]


def visible(
    own: list[int], theirs: list[int], causal: bool
) -> Iterator[tuple[int, int, bool]]:
    """Return each pair of one's own part i and another rank's part j whose scores are
    not all hidden, and whether they are on the diagonal, where some are."""
    for i, queries in enumerate(own):
        for j, keys in enumerate(theirs):
            if not causal or keys <= queries:
                yield i, j, causal and keys == queries


def scores_seen(
    rank: int, ranks: int, s: int, *, causal: bool = True, zigzag: bool = False
) -> list[int]:
    """Return for each step how many scores of one head the rank's s queries see."""
    own = parts_of(rank, ranks, zigzag)
    _check_even(s, len(own))
    c = s // len(own)
    return [
        sum(
            c * (c + 1) // 2 if diagonal else c * c
            for *_, diagonal in visible(
                own, parts_of((rank - step) % ranks, ranks, zigzag), causal
            )
        )
        for step in range(ranks)
    ]


def bytes_moved(
    ranks: int, s: int, n_kv: int, d: int, d_v: int, itemsize: int = 8
) -> tuple[int, int]:
    """Return the bytes that a rank sends in the forward and in the backward, for s
    tokens of its own and numbers of ``itemsize`` bytes.

    Keys and values move r − 1 times in each. Their gradients move r times, in at least
    4 bytes. The 8 bytes for the length that the ranks compare are not counted.
    """
    if ranks == 1:
        return 0, 0
    numbers = n_kv * s * (d + d_v)
    once = (ranks - 1) * numbers * itemsize
    return once, once + ranks * numbers * max(itemsize, 4)


def _cut(x: Array, parts: int) -> list[Array]:
    """Return ``x[*, s, n]`` in equal parts along s."""
    _check_even(x.shape[-2], parts)
    return cut(x, parts)


def _check_even(s: int, parts: int) -> None:
    if s % parts:
        raise ValueError(
            "zigzag: expected an even number of tokens on each rank, which holds two "
            f"equal parts of the sequence; got {s}"
        )
