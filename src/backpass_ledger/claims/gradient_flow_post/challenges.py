"""The eight statements at the end, of which the text says that some are wrong."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.checkpoint_memory import (
    FLASH,
    INPUT,
    gb,
    gib,
    most,
)
from backpass_ledger.claims.gradient_flow_post.layer_flops import (
    AGAIN,
    ROWS,
    TOTALS,
    counted,
    layer,
)
from backpass_ledger.claims.gradient_flow_post.loss_scaling import all_numbers, bits
from backpass_ledger.claims.tools import jacobian, numbers, same, torch, vjp

CLAIMS = """
F428  true          0  notation       foundations/verification  challenges, introduction
F429  true          0  norms          operations/rms_norm       challenge 1, formula
F430  true          0  norms          operations/rms_norm       challenge 1, dimensions and rank
F431  true          0  attention      attention/grouped_query   challenge 2
F432  true          0  softmax        operations/softmax        challenge 3
F433  false         3  feed-forward   cost/memory               challenge 4
F434  caveat        1  recomputation  numerics/recomputation    challenge 5
F435  false         3  FLOPs          cost/ratio                challenge 6
F436  inconsistent  3  FLOPs          cost/ratio                challenge 6, table's ratio
F437  false         1  norms          numerics/gradient_flow    challenge 7
F438  false         3  precision      numerics/precision        challenge 8, difference
F439  true          0  precision      numerics/precision        challenge 8, unit in the last place
"""

SWIGLU = (1.33, 106)  # GB of a layer and of 80, as printed in challenge 4


def jacobian_of_norm(x: Any, gamma: Any, eps: float = 0.3) -> Any:
    """Return RMSNorm's Jacobian by the formula of challenge 1."""
    rms, d = np.sqrt(np.square(x).mean() + eps), len(x)
    return np.diag(gamma) @ (np.eye(d) - np.outer(x, x) / (d * rms**2)) / rms


def F428(it: Evidence) -> None:
    """Some of the eight statements hold, and some are wrong."""
    forward, backward = layer()
    holds = [64 // 8 == 8, backward == 2 * forward, round(0.97**80, 3) == 0.088]
    it.as_printed(any(holds) and not all(holds))


def F429(it: Evidence) -> None:
    r"""RMSNorm's Jacobian is $\frac{1}{\text{rms}} \operatorname{diag}(\gamma) \left(I
    - \frac{x x^\top}{d \, \text{rms}^2}\right)$."""
    x, gamma = numbers(7), numbers(7, seed=1)
    norm, weight = torch.nn.functional.rms_norm, torch.tensor(gamma)
    found = jacobian(lambda x: norm(x, (7,), weight, 0.3), x)
    it.as_printed(same(found, jacobian_of_norm(x, gamma)))


def F430(it: Evidence) -> None:
    r"""The formula's dimensions agree, and $x x^\top$ is a correction of rank 1."""
    x, one = numbers(7), np.ones(7)
    found = jacobian_of_norm(x, one)
    in_other_unit = jacobian_of_norm(100 * x, one, 100**2 * 0.3)
    it.as_printed(same(in_other_unit, found / 100))
    rms = np.sqrt(np.square(x).mean() + 0.3)
    it.as_printed(np.linalg.matrix_rank(rms * found - np.eye(7)) == 1)


def F431(it: Evidence) -> None:
    """With 64 query heads and 8 key-value heads, a key head sums 8 gradients."""
    dk, keys = numbers(1, 64, 3, 2), numbers(1, 8, 3, 2)
    found = vjp(lambda k: k.repeat_interleave(64 // 8, dim=1), keys, dk)
    by_size = [dk.reshape(1, -1, size, 3, 2).sum(2)[:, :8] for size in (8, 4)]
    it.as_printed([same(found, summed) for summed in by_size] == [True, False])


def F432(it: Evidence) -> None:
    r"""Softmax's $a_i (\bar a_i - \sum_j a_j \bar a_j)$ follows from $\partial a_i /
    \partial p_j = a_i (\delta_{ij} - a_j)$."""
    p, da = numbers(5), numbers(5, seed=1)
    a = np.exp(p) / np.exp(p).sum()
    of_scores = a[:, None] * (np.eye(5) - a)
    it.as_printed(same(jacobian(lambda p: torch.softmax(p, 0), p), of_scores))
    it.as_printed(same(of_scores.T @ da, a * (da - a @ da), 1e-12))


def F433(it: Evidence) -> None:
    """SwiGLU's three arrays take 1.33 GB per layer, and 106 GB in 80 layers.

    They take 1.41 GB or 1.3125 GiB per layer, and 112.7 GB or 105 GiB in all."""
    one = 3 * torch.empty(8192, 28672, dtype=torch.float16, device="meta").nbytes
    units = (10**9, 2**30, 1000 * 2**20)
    it.as_printed(SWIGLU[0] in [round(one / unit, 2) for unit in units])
    it.as_printed(SWIGLU[1] in [round(80 * one / unit) for unit in units])
    it.right(SWIGLU == (1.33, 106))
    it.right(round(one / 10**9, 2) == 1.41 and one / 2**30 == 1.3125)
    it.right(round(80 * one / 10**9, 1) == 112.7 and 80 * one / 2**30 == 105)


def F434(it: Evidence) -> None:
    """80 checkpoints of 128 MB are 10.0 GB, and with a layer's 2,016 MB, 12.0 GB.

    The units are GiB: the sum is 11.97 GiB, which is 12.0 if rounded and 11.9 if
    truncated, or 12.85 GB. One input is counted twice; counted once, the sum is 11.84
    GiB."""
    mib, once = 80 * INPUT + FLASH, most(1, twice=False)
    it.as_printed(INPUT == 128 and FLASH == 2016)
    it.as_printed(gib(80 * INPUT) == 10.0 and gib(mib, 1) == 12.0)
    it.elsewhere(12.0 in (gib(once, 1), gb(mib)))
    it.right(gib(mib) == 11.97 and int(10 * mib / 1024) / 10 == 11.9)
    it.right(gib(once) == 11.84 and gb(mib, 2) == 12.85)


def F435(it: Evidence) -> None:
    """The backward has exactly twice the FLOPs of the forward.

    With the scores that flash attention recomputes it has 2.068 times as many; without
    them exactly twice. (`§6.1` says approximately.)"""
    forward, backward = layer()
    it.as_printed(backward == 2 * forward)
    it.right(round(backward / forward, 3) == 2.068)
    it.right(abs((backward - counted("scores")[0]) / forward - 2) < 1e-12)


def F436(it: Evidence) -> None:
    """The ratio follows from the table.

    Its totals give 2.11 and its rows 2.068, since one total is not the sum of its
    rows."""
    it.clashes(round(TOTALS[1] / TOTALS[0], 2) == 2.11)
    it.clashes(round((ROWS[1] + AGAIN) / ROWS[0], 3) == 2.068)
    it.right(ROWS[0] == TOTALS[0] and ROWS[1] + AGAIN != TOTALS[1])


def F437(it: Evidence) -> None:
    r"""$0.97^{80} \approx 0.088$.

    The power is 0.08745, which rounds to 0.087."""
    power = 0.97**80
    it.as_printed(round(power, 3) == 0.088)
    it.right(round(power, 3) == 0.087 and round(power, 5) == 0.08745)
    it.right(ceil(1000 * power) / 1000 == 0.088)


def F438(it: Evidence) -> None:
    r"""FP16's smallest difference from 1.0 is $2^{-10} \approx 0.000977$.

    The number is the gap above 1. The number before 1 is half as far away, $2^{-11}
    \approx 0.000488$."""
    values = all_numbers("float16")
    above = float(values[values > 1.0].min() - 1)
    below = float(1 - values[values < 1.0].max())
    it.as_printed(min(above, below) == 2**-10)
    it.right(above == 2**-10 and round(above, 6) == 0.000977)
    it.right(below == 2**-11 and round(below, 6) == 0.000488)


def F439(it: Evidence) -> None:
    r"""FP16 has 10 bits of mantissa; its unit in the last place at 1 is $2^{-10}$."""
    one, following = (np.float16(x).view(np.uint16) for x in (1, 1 + 2**-10))
    it.as_printed(bits("float16") == (5, 10))
    it.as_printed(following == one + 1 and np.spacing(np.float16(1)) == 2**-10)
