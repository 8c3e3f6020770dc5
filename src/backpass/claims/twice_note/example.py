"""The example with 1024 rows from 1600 to 1600 columns."""

from __future__ import annotations

from backpass.claims.evidence import FALSE, TRUE, Evidence
from backpass.claims.record import claim
from backpass.claims.tools import numbers, raises, same, vjp
from backpass.cost import sources

FIGURES = {n.name: n for n in sources.NUMBERS if n.source == sources.TWICE_NOTE}


def additions(m: int, n: int, p: int) -> int:
    """Add up the multiplications and additions of an (m, n) times (n, p) product."""
    return m * n * p + m * p * (n - 1)


@claim("both listings", FALSE, topic="notation", page="operations/linear", harm=1)
def W16(it: Evidence) -> None:
    """The listings are Python.

    They are notes of shapes and sums under that label: neither compiles. The
    arithmetic in them does.
    """
    listing = "X: [1024, 1600]\nForward FLOPs = 2 × 1024 × 1600 × 1600"
    it.as_printed(not raises(SyntaxError, lambda: compile(listing, "", "exec")))
    arithmetic = listing.rpartition("= ")[2].replace("×", "*")
    it.right(eval(arithmetic) == int(FIGURES["forward"].printed))


@claim("forward, shapes", TRUE, topic="matmul", page="operations/linear")
def W17(it: Evidence) -> None:
    """`[1024, 1600]` times `[1600, 1600]` is `[1024, 1600]`."""
    import torch

    x, w = (
        torch.empty(1024, 1600, device="meta"),
        torch.empty(1600, 1600, device="meta"),
    )
    it.as_printed((x @ w).shape == (1024, 1600))


@claim("forward, FLOPs", TRUE, topic="FLOPs", page="operations/linear")
def W18(it: Evidence) -> None:
    """The forward costs 2 × 1024 × 1600 × 1600 = 5,242,880,000 FLOPs.

    With each sum of 1600 terms counted as 1599 additions, it is 5,241,241,600.
    """
    it.as_printed(FIGURES["forward"].exact == 5_242_880_000 == 2 * 1024 * 1600 * 1600)
    it.right(
        additions(1024, 1600, 1600) == 5_241_241_600 == 1024 * 1600 * (1600 + 1599)
    )


@claim("backward, gradient of X", TRUE, topic="matmul", page="operations/linear")
def W19(it: Evidence) -> None:
    """`[1024, 1600]` times the transpose of `[1600, 1600]` is `[1024, 1600]`.

    The square weight hides a missing transpose: `dL/dY @ W` has the same shape and is
    not the gradient. Only different widths show it.
    """
    x, w, dy = numbers(4, 6), numbers(6, 6), numbers(4, 6, seed=1)
    dx = vjp(lambda x, w: x @ w, (x, w), dy)[0]
    it.as_printed((dy @ w.T).shape == x.shape and same(dy @ w.T, dx))
    it.right((dy @ w).shape == x.shape and not same(dy @ w, dx))


@claim("backward, gradient of X", TRUE, topic="FLOPs", page="operations/linear")
def W20(it: Evidence) -> None:
    """The gradient of X costs 5,242,880,000 FLOPs."""
    it.as_printed(FIGURES["dx"].exact == 5_242_880_000)


@claim("backward, gradient of W", TRUE, topic="matmul", page="operations/linear")
def W21(it: Evidence) -> None:
    """`[1600, 1024]` times `[1024, 1600]` is `[1600, 1600]`."""
    import torch

    x, dy = (torch.empty(1024, 1600, device="meta") for _ in range(2))
    it.as_printed((x.T @ dy).shape == (1600, 1600))


@claim("backward, gradient of W", TRUE, topic="FLOPs", page="operations/linear")
def W22(it: Evidence) -> None:
    """The gradient of W costs 2 × 1600 × 1024 × 1600 = 5,242,880,000 FLOPs."""
    it.as_printed(FIGURES["dw"].exact == 5_242_880_000 == 2 * 1600 * 1024 * 1600)


@claim("backward, total", TRUE, topic="FLOPs", page="operations/linear")
def W23(it: Evidence) -> None:
    """Both gradients cost 10,485,760,000 FLOPs, twice the forward.

    With additions counted one by one, they are 921,600 fewer than twice the forward.
    """
    both = FIGURES["dx"].exact + FIGURES["dw"].exact
    it.as_printed(both == 10_485_760_000 == 2 * FIGURES["forward"].exact)
    backward = additions(1024, 1600, 1600) + additions(1600, 1024, 1600)
    it.right(2 * additions(1024, 1600, 1600) - backward == 921_600)
