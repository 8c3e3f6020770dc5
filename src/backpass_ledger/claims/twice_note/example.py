"""The example with 1024 rows from 1600 to 1600 columns."""

from __future__ import annotations

from functools import partial
from operator import matmul

from backpass import cost
from backpass_ledger import sources
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp
from backpass_ledger.claims.twice_note.product import product_flops

CLAIMS = """
W16  caveat  0  notation  operations/linear_cost  both listings
W17  true    0  matmul    operations/linear_cost  forward, shapes
W18  true    0  FLOPs     operations/linear_cost  forward, FLOPs
W19  true    0  matmul    operations/linear_cost  backward, gradient of X
W20  true    0  FLOPs     operations/linear_cost  backward, gradient of X
W21  true    0  matmul    operations/linear_cost  backward, gradient of W
W22  true    0  FLOPs     operations/linear_cost  backward, gradient of W
W23  true    0  FLOPs     operations/linear_cost  backward, total
"""

LAYER = (1024, 1600), (1600, 1600)
NUMBERS = (number for number in sources.NUMBERS if number.source == sources.TWICE_NOTE)
FIGURES = {number.name: int(number.printed) for number in NUMBERS}


def shape(*factors: tuple[int, int]) -> tuple[int, ...]:
    """Return the shape of a product of arrays with these shapes."""
    left, right = (torch.empty(*each, device="meta") for each in factors)
    return tuple((left @ right).shape)


def W16(it: Evidence) -> None:
    """The listings, which are marked as Python, give the FLOPs of the example.

    Their arithmetic is right. They do not compile as Python: a quotient stands before a
    colon, a name of two words is assigned, and `×` stands for a product."""
    it.as_printed(FIGURES["forward"] == FIGURES["dx"] == 2 * 1024 * 1600 * 1600)
    it.as_printed(FIGURES["dw"] == 2 * 1600 * 1024 * 1600)
    it.as_printed(FIGURES["both"] == FIGURES["dx"] + FIGURES["dw"])
    for line in ("dl/dx: [2, 3]", "all flops = 6", "flops = 2 × 3"):
        it.elsewhere(not raises(SyntaxError, partial(compile, line, "", "exec")))


def W17(it: Evidence) -> None:
    """`[1024, 1600]` times `[1600, 1600]` is `[1024, 1600]`."""
    it.as_printed(shape((1024, 1600), (1600, 1600)) == (1024, 1600))


def W18(it: Evidence) -> None:
    """The forward costs 2 × 1024 × 1600 × 1600 = 5,242,880,000 FLOPs.

    With each sum of 1600 terms counted as 1599 additions, it costs 5,241,241,600."""
    it.as_printed(FIGURES["forward"] == 2 * 1024 * 1600 * 1600 == 5_242_880_000)
    it.as_printed(FIGURES["forward"] == product_flops(matmul, *LAYER)[0])
    exact = cost.formula("matmul", *LAYER).forward
    it.right(exact == 1024 * 1600 * (1600 + 1599) == 5_241_241_600)


def W19(it: Evidence) -> None:
    """`[1024, 1600]` times the transpose of `[1600, 1600]` is `[1024, 1600]`.

    The square weight hides a missing transpose: `dL/dY @ W` has the same shape and is
    not the gradient. Only different widths show it."""
    x, w, dy = numbers(4, 6), numbers(6, 6), numbers(4, 6, seed=1)
    dx = vjp(matmul, (x, w), dy)[0]
    it.as_printed(shape((1024, 1600), (1600, 1600)) == (1024, 1600))
    it.as_printed(same(dy @ w.T, dx))
    it.right((dy @ w).shape == x.shape and not same(dy @ w, dx))


def W20(it: Evidence) -> None:
    """The gradient of X costs 5,242,880,000 FLOPs."""
    ran = product_flops(matmul, *LAYER, frozen=(1,))[1]
    it.as_printed(ran == FIGURES["dx"] == 5_242_880_000)


def W21(it: Evidence) -> None:
    """`[1600, 1024]` times `[1024, 1600]` is `[1600, 1600]`."""
    it.as_printed(shape((1600, 1024), (1024, 1600)) == (1600, 1600))


def W22(it: Evidence) -> None:
    """The gradient of W costs 2 × 1600 × 1024 × 1600 = 5,242,880,000 FLOPs."""
    it.as_printed(FIGURES["dw"] == 2 * 1600 * 1024 * 1600 == 5_242_880_000)
    it.as_printed(FIGURES["dw"] == product_flops(matmul, *LAYER, frozen=(0,))[1])


def W23(it: Evidence) -> None:
    """Both gradients cost 10,485,760,000 FLOPs, twice the forward.

    With every addition counted, they cost 921,600 FLOPs less than two forwards."""
    it.as_printed(FIGURES["both"] == product_flops(matmul, *LAYER)[1] == 10_485_760_000)
    it.as_printed(FIGURES["both"] == 2 * FIGURES["forward"])
    exact = cost.formula("matmul", *LAYER)
    it.right(2 * exact.forward - exact.backward == 921_600)
