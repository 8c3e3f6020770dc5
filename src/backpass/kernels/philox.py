"""Philox in Triton: which elements dropout keeps, as ``backpass.contract.philox``
describes. A thread draws eight neighbours from one counter, in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from backpass.contract import philox
from backpass.contract.values import check_seed

GROUP = philox.GROUP
groups, share, threshold = philox.groups, philox.share, philox.threshold

_M_0, _M_1 = (tl.constexpr(factor) for factor in philox.MULTIPLIERS)
_W_0, _W_1 = (tl.constexpr(step) for step in philox.WEYL)
_ROUNDS = tl.constexpr(philox.ROUNDS)


def seed_on(seed: int | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the seed as an int64 tensor of shape ``[]`` on the device. One that is
    there already is not read."""
    check_seed(seed=seed)
    if isinstance(seed, torch.Tensor) and seed.device == device:
        return seed
    bits = (int(seed) + 2**63) % 2**64 - 2**63
    return torch.full((), bits, dtype=torch.int64, device=device)


@triton.jit
def words(counter, seed):
    """The four words of the counters (counter, 0, 0, 0) and the key (seed, 0), all of
    them uint64."""
    a, key = counter, seed
    b, c, d, other = counter * 0, counter * 0, counter * 0, seed * 0
    for _ in tl.static_range(_ROUNDS):
        high_a, low_a = tl.umulhi(a, a * 0 + _M_0), a * _M_0
        high_c, low_c = tl.umulhi(c, c * 0 + _M_1), c * _M_1
        a, b, c, d = high_c ^ b ^ key, low_c, high_a ^ d ^ other, low_a
        key, other = key + _W_0, other + _W_1
    return a, b, c, d


@triton.jit
def kept(counter, seed, LEAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which elements are kept of the ``counter[ROWS, COLUMNS // 8]``, uint64: booleans
    ``[ROWS, COLUMNS]``. LEAST is the least number that is kept, below 2³²."""
    a, b, c, d = words(counter, seed)
    # The last axis that is joined varies fastest: the half of a word.
    low = tl.join(
        tl.join(a.to(tl.uint32), c.to(tl.uint32)),
        tl.join(b.to(tl.uint32), d.to(tl.uint32)),
    )
    high = tl.join(
        tl.join((a >> 32).to(tl.uint32), (c >> 32).to(tl.uint32)),
        tl.join((b >> 32).to(tl.uint32), (d >> 32).to(tl.uint32)),
    )
    return tl.reshape(tl.join(low, high), [ROWS, COLUMNS]) >= LEAST
