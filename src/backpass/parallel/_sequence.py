"""What the schemes that divide a sequence have in common."""

from __future__ import annotations

from backpass.contract.arrays import Array, namespace
from backpass.parallel.group import Group

SHAPES = (
    "q[*, g*n_kv, s, d], k[*, n_kv>0, s>0, d], v[*, n_kv, s, d_v]"
    " -> y[*, g*n_kv, s, d_v]"
)


def cut(x: Array, parts: int) -> list[Array]:
    """Return ``x[*, s, n]`` in equal parts along s, a multiple of ``parts``."""
    c = x.shape[-2] // parts
    return [x[..., part * c : (part + 1) * c, :] for part in range(parts)]


def check_lengths(group: Group, x: Array) -> None:
    """Raise ValueError on every rank unless ``x[*, s, n]`` has the same length s on all
    ranks. Some groups would exchange arrays of different lengths without an error."""
    xp = namespace(x)
    own = xp.full((1,), x.shape[-2], dtype=xp.float64, device=x.device)
    lengths = [int(length) for length in group.all_gather(own)[:, 0]]
    if len(set(lengths)) > 1:
        raise ValueError(
            "q, k, v: expected parts of the sequence that have the same length on all "
            "ranks, because they are exchanged; pad the sequence at its end. "
            f"Got lengths {lengths} by rank"
        )
