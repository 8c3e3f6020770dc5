"""Attention with an exchange of heads: an all-to-all gives each rank the whole sequence
of some heads, and another one brings the outputs back (DeepSpeed-Ulysses: Jacobs et
al., 2023, arXiv:2309.14509).

Between the two, each rank runs ``flash_attention`` on its heads. The adjoint of an
all-to-all is the all-to-all back, so the backward makes the opposite exchanges. Rank p
holds the part p of r equal parts of the sequence. Every input, output, and gradient is
a shard: the same positions of it, on the same rank. Values and gradients are those of
``attention`` on the whole sequence.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import Array, namespace
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved
from backpass.contract.values import check_bool, check_scale
from backpass.ops import flash_attention
from backpass.parallel._sequence import SHAPES, check_lengths
from backpass.parallel.group import Group


class Saved(NamedTuple):
    """What attention saved on the whole sequence of the rank's heads."""

    attention: flash_attention.Saved


def forward(
    group: Group,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, n_h, s, d_v]`` for the rank's queries ``q[*, n_h, s, d]``, keys
    ``k[*, n_kv, s, d]``, and values ``v[*, n_kv, s, d_v]``: shards of the sequence.

    Query heads that share a key head are consecutive. Raises TypeError if an input is
    not a floating-point array, if inputs differ in library, device, or dtype, or for an
    option of the wrong type; ValueError if shapes do not fit, if the ranks' lengths
    differ, or if the number of key heads is not a multiple of the number of ranks: a
    rank attends with whole heads.
    """
    check_inputs(SHAPES, q=q, k=k, v=v)
    check_bool(causal=causal)
    check_scale(scale)
    if k.shape[-3] % group.size:
        raise ValueError(
            f"k, v: expected a multiple of {group.size} heads, because each of the "
            f"{group.size} ranks attends with whole heads; got {k.shape[-3]}. Repeat "
            "the key heads, or use ring attention"
        )
    check_lengths(group, q)
    whole = (to_heads(group, x) for x in (q, k, v))
    y, saved = flash_attention.forward(*whole, causal=causal, scale=scale)
    return to_sequence(group, y), Saved(saved)


def backward(group: Group, dy: Array, saved: Saved) -> tuple[Array, Array, Array]:
    """Return ``dq[*, n_h, s, d]``, ``dk[*, n_kv, s, d]``, and ``dv[*, n_kv, s, d_v]``,
    shards, from the shard ``dy[*, n_h, s, d_v]``.

    In the forward pass three arrays went to the heads and one came back; so now one
    goes and three come back.
    """
    (attention,) = check_saved(saved, Saved)
    *leading, heads, s, d_v = attention.y.shape
    shape = (*leading, heads * group.size, s // group.size, d_v)
    check_cotangent(dy, shape, like=attention.y)
    gradients = flash_attention.backward(to_heads(group, dy), attention)[:3]
    dq, dk, dv = (to_sequence(group, x) for x in gradients)
    return dq, dk, dv


def to_heads(group: Group, x: Array) -> Array:
    """Return ``y[*, n/r, r·s, d]``, some heads of all positions, from
    ``x[*, n, s, d]``, all heads of some positions."""
    xp = namespace(x)
    *leading, n, s, d = x.shape
    parts = xp.reshape(x, (*leading, group.size, n // group.size, s, d))
    got = group.all_to_all(xp.moveaxis(parts, -4, 0))  # [r, *, n/r, s, d]
    return xp.reshape(
        xp.moveaxis(got, 0, -3), (*leading, n // group.size, group.size * s, d)
    )


def to_sequence(group: Group, x: Array) -> Array:
    """Return ``y[*, r·n, s/r, d]``, all heads of some positions, from
    ``x[*, n, s, d]``, some heads of all positions: the inverse of ``to_heads``."""
    xp = namespace(x)
    *leading, n, s, d = x.shape
    parts = xp.reshape(x, (*leading, n, group.size, s // group.size, d))
    got = group.all_to_all(xp.moveaxis(parts, -3, 0))  # [r, *, n, s/r, d]
    return xp.reshape(
        xp.moveaxis(got, 0, -4), (*leading, group.size * n, s // group.size, d)
    )


def bytes_moved(
    ranks: int, s: int, n_h: int, n_kv: int, d: int, d_v: int, itemsize: int = 8
) -> tuple[int, int]:
    """Return the bytes that a rank sends in the forward and in the backward, for s
    tokens of its own and numbers of ``itemsize`` bytes: (r − 1)/r of each of the four
    arrays, in both.

    The 8 bytes for the length that the ranks compare are not counted.
    """
    numbers = s * (n_h + n_kv) * (d + d_v) // ranks  # n_h and n_kv are multiples of r
    once = (ranks - 1) * numbers * itemsize
    return once, once
