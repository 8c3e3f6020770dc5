"""The eight statements at the end, of which the text says that some are wrong."""

from __future__ import annotations

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.checkpoint_memory import (
    FLASH,
    INPUT,
    most,
)
from backpass_ledger.claims.gradient_flow_post.layer_flops import (
    PRINTED,
    counted,
    layer,
)
from backpass_ledger.claims.gradient_flow_post.loss_scaling import all_numbers, bits
from backpass_ledger.claims.tools import jacobian, numbers, same, torch

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
F438  caveat        3  precision      numerics/precision        challenge 8, difference
F439  true          0  precision      numerics/precision        challenge 8, unit in the last place
"""


def F428(it: Evidence) -> None:
    """Some of the eight statements hold, and some are wrong."""
    forward, backward = layer()
    holds = {
        2: 64 // 8 == 8,
        6: backward == 2 * forward,
        7: round(0.97**80, 3) == 0.088,
        8: float(np.spacing(np.float16(1))) == 2**-10,
    }
    it.as_printed(any(holds.values()) and not all(holds.values()))


def F429(it: Evidence) -> None:
    r"""RMSNorm's Jacobian is $\frac{1}{\text{rms}} \operatorname{diag}(\gamma) \left(I
    - \frac{x x^\top}{d \, \text{rms}^2}\right)$."""
    x, w, eps = numbers(7), numbers(7, seed=1), 0.3
    found = jacobian(
        lambda x: x / (x.square().mean() + eps).sqrt() * torch.tensor(w), x
    )
    rms = np.sqrt(np.square(x).mean() + eps)
    it.as_printed(
        same(found, np.diag(w) @ (np.eye(7) - np.outer(x, x) / (7 * rms**2)) / rms)
    )


def F430(it: Evidence) -> None:
    r"""The formula is consistent in dimensions, and $x x^\top$ is a correction of rank
    1."""

    def of(x: np.ndarray, eps: float) -> np.ndarray:
        rms = np.sqrt(np.square(x).mean() + eps)
        return (np.eye(7) - np.outer(x, x) / (7 * rms**2)) / rms

    x = numbers(7)
    it.as_printed(
        same(of(100 * x, 100**2 * 0.3), of(x, 0.3) / 100)
    )  # another unit of x
    rms = np.sqrt(np.square(x).mean() + 0.3)
    it.as_printed(np.linalg.matrix_rank(rms * of(x, 0.3) - np.eye(7)) == 1)


def F431(it: Evidence) -> None:
    """With 64 query heads and 8 key-value heads, 8 gradients are summed for each key
    head."""
    dk = torch.tensor(numbers(1, 64, 3, 2))
    keys = torch.tensor(numbers(1, 8, 3, 2)).requires_grad_()
    keys.repeat_interleave(64 // 8, dim=1).backward(dk)
    assert keys.grad is not None
    used = [int((dk[0, :, 0, 0] == value).sum()) for value in dk[0, :8, 0, 0]]
    it.as_printed(sum(used) == 8)
    it.as_printed(same(keys.grad[0, 0].numpy(), dk[0, :8].sum(0).numpy()))
    it.as_printed(not same(keys.grad[0, 0].numpy(), dk[0, :4].sum(0).numpy(), 1e-3))


def F432(it: Evidence) -> None:
    r"""Softmax's $a_i (\bar a_i - \sum_j a_j \bar a_j)$ follows from
    $\partial a_i / \partial p_j = a_i (\delta_{ij} - a_j)$."""
    import sympy

    a, da = sympy.symbols("a:4"), sympy.symbols("g:4")
    for i in range(4):
        summed = sum(
            da[k] * a[k] * (sympy.KroneckerDelta(k, i) - a[i]) for k in range(4)
        )
        formula = a[i] * (da[i] - sum(a[j] * da[j] for j in range(4)))
        it.as_printed(sympy.expand(summed - formula) == 0)
    p = numbers(5)
    e = np.exp(p) / np.exp(p).sum()
    found = jacobian(lambda p: torch.softmax(p, 0), p)
    it.as_printed(same(found, np.diag(e) - np.outer(e, e)))


def F433(it: Evidence) -> None:
    """SwiGLU's three arrays take 1.33 GB a layer, and 106 GB in 80 layers.

    1.41 GB or 1.3125 GiB a layer, 112.7 GB or 105 GiB in all. No unit gives the printed
    figures.
    """
    one = torch.empty(1, 8192, 28672, dtype=torch.float16, device="meta").nbytes
    layer_bytes, units = 3 * one, (10**9, 2**30, 1000 * 2**20)
    it.as_printed(1.33 in [round(layer_bytes / unit, 2) for unit in units])
    it.as_printed(106 in [round(80 * layer_bytes / unit) for unit in units])
    it.right(round(layer_bytes / 10**9, 2) == 1.41 and layer_bytes / 2**30 == 1.3125)
    it.right(round(80 * layer_bytes / 10**9, 1) == 112.7)
    it.right(80 * layer_bytes / 2**30 == 105)


def F434(it: Evidence) -> None:
    """80 checkpoints of 128 MB are 10.0 GB, and with a layer's 2,016 MB the sum is 12.0
    GB.

    In GiB it is 11.97, which rounds to 12.0; 11.9 would be cut off. One input is
    counted twice: 11.84 without. In GB it is 12.85.
    """
    mib = 80 * INPUT + FLASH
    it.as_printed(80 * INPUT / 1024 == 10.0 and round(mib / 1024, 1) == 12.0)
    it.as_printed(INPUT == 128 and FLASH == 2016)
    it.elsewhere(round(mib * 2**20 / 1e9, 1) == 12.0)
    it.elsewhere(round(most(1, twice=False) / 1024, 1) == 12.0)
    it.right(round(mib / 1024, 2) == 11.97 and int(10 * mib / 1024) / 10 == 11.9)
    it.right(round(most(1, twice=False) / 1024, 2) == 11.84)
    it.right(round(mib * 2**20 / 1e9, 2) == 12.85)


def F435(it: Evidence) -> None:
    """The backward has exactly twice the FLOPs of the forward.

    With the scores that flash attention recomputes it has 2.068 times as many.
    Without them the products have exactly twice as many. (The text itself says
    "approximately".)
    """
    forward, backward = layer()
    it.as_printed(backward == 2 * forward)
    it.right(round(backward / forward, 3) == 2.068)
    it.right(abs((backward - counted("scores")[0]) / forward - 2) < 1e-12)


def F436(it: Evidence) -> None:
    """The ratio follows from the table.

    Its totals give 2.11 and its rows 2.068, since one total is not the sum of its rows.
    """
    rows = [sum(pair[i] for pair in PRINTED.values()) for i in (0, 1)]
    it.clashes(round(rows[1] / rows[0], 3) != round(34_301 / 16_250, 3))
    it.right(round(rows[1] / rows[0], 3) == 2.068 and round(34_301 / 16_250, 2) == 2.11)


def F437(it: Evidence) -> None:
    r"""$0.97^{80} \approx 0.088$.

    0.08745, which rounds to 0.087.
    """
    from fractions import Fraction

    power = float(Fraction(97, 100) ** 80)
    it.as_printed(round(power, 3) == 0.088)
    it.right(round(power, 3) == 0.087 and round(power, 5) == 0.08745)
    it.right(abs(np.prod(np.full(80, 0.97)) - power) < 1e-12)


def F438(it: Evidence) -> None:
    r"""FP16's smallest difference from 1.0 is $2^{-10} \approx 0.000977$.

    Above 1. The number before 1 is half as far away, $2^{-11} \approx 0.000488$.
    """
    values = all_numbers("float16")
    above = float(values[values > 1.0].min() - 1)
    below = float(1 - values[values < 1.0].max())
    it.as_printed(above == 2**-10 and round(above, 6) == 0.000977)
    it.elsewhere(min(above, below) == 2**-10)
    it.right(below == 2**-11 and round(below, 6) == 0.000488)


def F439(it: Evidence) -> None:
    r"""FP16 has 10 bits of mantissa, and its unit in the last place at 1 is
    $2^{-10}$."""
    it.as_printed(bits("float16") == (5, 10))
    it.as_printed(float(np.spacing(np.float16(1))) == 2**-10)
    it.as_printed(
        np.float16(1).view(np.uint16) + 1 == np.float16(1 + 2**-10).view(np.uint16)
    )
