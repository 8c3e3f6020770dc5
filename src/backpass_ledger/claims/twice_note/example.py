"""The example with 1024 rows from 1600 to 1600 columns."""

from __future__ import annotations

from functools import partial

from backpass.cost import sources
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp

CLAIMS = """
W16  false  1  notation  operations/linear_cost  both listings
W17  true   0  matmul    operations/linear_cost  forward, shapes
W18  true   0  FLOPs     operations/linear_cost  forward, FLOPs
W19  true   0  matmul    operations/linear_cost  backward, gradient of X
W20  true   0  FLOPs     operations/linear_cost  backward, gradient of X
W21  true   0  matmul    operations/linear_cost  backward, gradient of W
W22  true   0  FLOPs     operations/linear_cost  backward, gradient of W
W23  true   0  FLOPs     operations/linear_cost  backward, total
"""


FIGURES = {n.name: n for n in sources.NUMBERS if n.source == sources.TWICE_NOTE}


def counted(rows: int, inner: int, columns: int) -> int:
    """Return PyTorch's count of a product's FLOPs, on arrays without data."""
    from torch.utils.flop_counter import FlopCounterMode

    left = torch.empty(rows, inner, device="meta")
    right = torch.empty(inner, columns, device="meta")
    with FlopCounterMode(display=False) as counter:
        left @ right
    return int(counter.get_total_flops())


def additions(m: int, n: int, p: int) -> int:
    """Add up the multiplications and additions of an (m, n) times (n, p) product."""
    return m * n * p + m * p * (n - 1)


def W16(it: Evidence) -> None:
    """The listings are Python.

    They list shapes and sums and do not compile as Python: a quotient stands before a
    colon, a name of two words is assigned, and `×` stands for a product. Their
    arithmetic is right.
    """
    for line in ("dl/dx: [2, 3]", "all flops = 6", "flops = 2 × 3"):
        it.as_printed(not raises(SyntaxError, partial(compile, line, "", "exec")))
    printed = {name: int(figure.printed) for name, figure in FIGURES.items()}
    it.right(printed["forward"] == printed["dx"] == 2 * 1024 * 1600 * 1600)
    it.right(printed["dw"] == 2 * 1600 * 1024 * 1600)
    it.right(printed["both"] == printed["dx"] + printed["dw"] == 2 * printed["forward"])


def W17(it: Evidence) -> None:
    """`[1024, 1600]` times `[1600, 1600]` is `[1024, 1600]`."""
    x, w = (
        torch.empty(1024, 1600, device="meta"),
        torch.empty(1600, 1600, device="meta"),
    )
    it.as_printed((x @ w).shape == (1024, 1600))


def W18(it: Evidence) -> None:
    """The forward costs 2 × 1024 × 1600 × 1600 = 5,242,880,000 FLOPs.

    With each sum of 1600 terms counted as 1599 additions, it costs 5,241,241,600.
    """
    it.as_printed(2 * 1024 * 1600 * 1600 == int(FIGURES["forward"].printed))
    it.as_printed(counted(1024, 1600, 1600) == int(FIGURES["forward"].printed))
    it.right(int(FIGURES["forward"].printed) == 5_242_880_000)
    it.right(
        additions(1024, 1600, 1600) == 5_241_241_600 == 1024 * 1600 * (1600 + 1599)
    )


def W19(it: Evidence) -> None:
    """`[1024, 1600]` times the transpose of `[1600, 1600]` is `[1024, 1600]`.

    The square weight hides a missing transpose: `dL/dY @ W` has the same shape and is
    not the gradient. Only different widths show it.
    """
    x, w, dy = numbers(4, 6), numbers(6, 6), numbers(4, 6, seed=1)
    dx = vjp(lambda x, w: x @ w, (x, w), dy)[0]
    it.as_printed((dy @ w.T).shape == x.shape and same(dy @ w.T, dx))
    it.right((dy @ w).shape == x.shape and not same(dy @ w, dx))


def W20(it: Evidence) -> None:
    """The gradient of X costs 5,242,880,000 FLOPs."""
    it.as_printed(counted(1024, 1600, 1600) == int(FIGURES["dx"].printed))
    it.right(int(FIGURES["dx"].printed) == 5_242_880_000)


def W21(it: Evidence) -> None:
    """`[1600, 1024]` times `[1024, 1600]` is `[1600, 1600]`."""
    x, dy = (torch.empty(1024, 1600, device="meta") for _ in range(2))
    it.as_printed((x.T @ dy).shape == (1600, 1600))


def W22(it: Evidence) -> None:
    """The gradient of W costs 2 × 1600 × 1024 × 1600 = 5,242,880,000 FLOPs."""
    it.as_printed(2 * 1600 * 1024 * 1600 == int(FIGURES["dw"].printed))
    it.as_printed(counted(1600, 1024, 1600) == int(FIGURES["dw"].printed))
    it.right(int(FIGURES["dw"].printed) == 5_242_880_000)


def W23(it: Evidence) -> None:
    """Both gradients cost 10,485,760,000 FLOPs, twice the forward.

    With every addition counted, they cost 921,600 FLOPs less than two forwards.
    """
    both = counted(1024, 1600, 1600) + counted(1600, 1024, 1600)
    it.as_printed(both == int(FIGURES["both"].printed))
    it.as_printed(both == 2 * int(FIGURES["forward"].printed))
    it.right(int(FIGURES["both"].printed) == 10_485_760_000)
    backward = additions(1024, 1600, 1600) + additions(1600, 1024, 1600)
    it.right(2 * additions(1024, 1600, 1600) - backward == 921_600)
