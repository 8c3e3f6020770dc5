"""The FLOPs of a layer, and the time of a step (§6.1)."""

from __future__ import annotations

from functools import cache
from typing import Any

from backpass import cost
from backpass.cost.duration import MACHINES
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import torch

CLAIMS = """
F386  true          0  FLOPs         cost/ratio            §6.1, rule
F387  true          0  matmul        cost/ratio            §6.1, reason
F388  true          0  FLOPs         cost/tally            §6.1, table, Q
F389  false         1  FLOPs         cost/tally            §6.1, table, K
F390  false         1  FLOPs         cost/tally            §6.1, table, V
F391  caveat        3  attention     attention/flash       §6.1, table, scores
F392  caveat        2  attention     attention/flash       §6.1, table, A·V
F393  true          0  FLOPs         cost/tally            §6.1, table, O
F394  false         3  feed-forward  cost/tally            §6.1, table, W1
F395  false         3  feed-forward  cost/tally            §6.1, table, W3
F396  false         3  feed-forward  cost/tally            §6.1, table, W2
F397  caveat        1  FLOPs         cost/tally            §6.1, table, total, forward
F398  false         6  FLOPs         cost/tally            §6.1, table, total, backward
F399  caveat        1  FLOPs         cost/ratio            §6.1, table, ratio
F400  left-out      1  FLOPs         cost/tally            §6.1, table, what it omits
F401  true          0  FLOPs         foundations/counting  §6.1, note, rule
F402  true          0  flash         attention/flash       §6.1, note, recomputation
F403  caveat        1  FLOPs         cost/tally            §6.1, 80 layers, forward
F404  false         5  FLOPs         cost/tally            §6.1, 80 layers, backward
F405  false         5  FLOPs         cost/tally            §6.1, step
F406  left-out      4  FLOPs         cost/tally            §6.1, step, what it omits
F407  true          0  time          cost/time             §6.1, throughput
F408  false         3  time          cost/time             §6.1, throughput, word
F409  false         4  time          cost/time             §6.1, utilisation
F410  caveat        3  time          cost/time             §6.1, time
F411  inconsistent  6  parallel      cost/memory           §6.1, setting, against §3.1
"""


# Rows of [M, K] @ [K, N], or of one such product for each head, at full size.
PRODUCTS = {
    "Q": ((8192, 8192), (8192, 8192)),
    "K": ((8192, 8192), (8192, 1024)),
    "V": ((8192, 8192), (8192, 1024)),
    "scores": ((64, 8192, 128), (64, 128, 8192)),
    "A·V": ((64, 8192, 8192), (64, 8192, 128)),
    "O": ((8192, 8192), (8192, 8192)),
    "W1": ((8192, 8192), (8192, 28672)),
    "W3": ((8192, 8192), (8192, 28672)),
    "W2": ((8192, 28672), (28672, 8192)),
}
PRINTED = {
    "Q": (1100, 2200),
    "K": (138, 275),
    "V": (138, 275),
    "scores": (1100, 2200 + 1100),
    "A·V": (1100, 2200),
    "O": (1100, 2200),
    "W1": (3858, 7717),
    "W3": (3858, 7717),
    "W2": (3858, 7717),
}
GIGA, TERA = 10**9, 10**12
PEAK = 989  # TFLOP/s of an H100, BF16, dense


@cache
def counted(row: str) -> tuple[float, float]:
    """Return the GFLOPs of the forward and of the backward of a row's product, as
    PyTorch's counter has them, with arrays of full size that hold no data."""
    from torch.utils.flop_counter import FlopCounterMode

    a, b = (torch.empty(s, device="meta", requires_grad=True) for s in PRODUCTS[row])
    with FlopCounterMode(display=False) as forward:
        y = a @ b
    with FlopCounterMode(display=False) as backward:
        y.backward(torch.empty_like(y))
    return forward.get_total_flops() / GIGA, backward.get_total_flops() / GIGA


def layer() -> tuple[float, float]:
    """Return the GFLOPs of a layer, forward and backward, with recomputed scores."""
    both = [counted(row) for row in PRODUCTS]
    again = counted("scores")[0]
    return sum(f for f, _ in both), sum(b for _, b in both) + again


def causal() -> tuple[float, float]:
    """Return the same with the products of attention over half of the pairs."""
    forward, backward = layer()
    one = counted("scores")[0]
    return forward - 2 * one / 2, backward - 5 * one / 2


def head() -> float:
    """Return the TFLOPs of the output head, forward and backward."""
    step = cost.tally("llama-3-70b", 1, 8192)
    flops = step.only(lambda row: row.term.call == "output head").flops("products")
    return (flops["forward"] + flops["backward"]) / TERA


def row(it: Evidence, name: str, forward: int, backward: int) -> None:
    """Compare a printed row with what was counted, at the digits that are printed."""
    found = [round(x, -2 if x < 3000 and x > 1000 else 0) for x in counted(name)]
    it.as_printed(found == [forward, backward])


def F386(it: Evidence) -> None:
    """A backward has about twice the FLOPs of its forward."""
    forward, backward = layer()
    it.as_printed(1.9 < backward / forward < 2.1)


def F387(it: Evidence) -> None:
    r"""Each product $Y = X W$ has two in the backward, $\bar Y W^\top$ and
    $X^\top \bar Y$, each as large as the first."""
    it.as_printed(all(counted(name)[1] == 2 * counted(name)[0] for name in PRODUCTS))


def F388(it: Evidence) -> None:
    """The projection to Q: 1,100 and 2,200 GFLOPs, rounded to hundreds."""
    row(it, "Q", 1100, 2200)


def F389(it: Evidence) -> None:
    """The projection to K: 138 and 275 GFLOPs.

    137.4, which rounds to 137, and 274.9.
    """
    row(it, "K", 138, 275)
    forward, backward = counted("K")
    it.right(round(forward, 1) == 137.4 and round(forward) == 137)
    it.right(round(backward, 1) == 274.9)


def F390(it: Evidence) -> None:
    """The projection to V: 138 and 275 GFLOPs.

    As for K: 137.4 and 274.9.
    """
    row(it, "V", 138, 275)
    it.right([round(x, 1) for x in counted("V")] == [137.4, 274.9])


def F391(it: Evidence) -> None:
    """The scores: 1,100 GFLOPs, and 2,200 in the backward with 1,100 more for
    recomputing them, 2 to 3 times as many.

    With all pairs of tokens. The text's attention is causal, and flash attention skips
    the tiles above the diagonal: half, 550 and 1,649.
    """
    row(it, "scores", 1100, 2200)
    one, two = counted("scores")
    it.as_printed(two / one == 2 and (two + one) / one == 3)
    pairs = 8192 * 8193 // 2  # what the mask leaves
    share = pairs / 8192**2
    it.elsewhere(round(share * one, -2) == 1100)
    it.right(round(share * one) == 550 and round(share * (one + two)) == 1649)


def F392(it: Evidence) -> None:
    """Weights times values: 1,100 and 2,200 GFLOPs.

    With all pairs of tokens; half with the causal mask.
    """
    row(it, "A·V", 1100, 2200)
    share = 8193 / 8192 / 2
    it.elsewhere(round(share * counted("A·V")[0], -2) == 1100)


def F393(it: Evidence) -> None:
    """The output projection: 1,100 and 2,200 GFLOPs, rounded to hundreds."""
    row(it, "O", 1100, 2200)


def F394(it: Evidence) -> None:
    """$W_1$: 3,858 and 7,717 GFLOPs, twice as many.

    3,848 and 7,697. Twice the printed 3,858 would be 7,716.
    """
    row(it, "W1", 3858, 7717)
    it.right([round(x) for x in counted("W1")] == [3848, 7697])
    it.right(2 * PRINTED["W1"][0] == 7716)


def F395(it: Evidence) -> None:
    """$W_3$: 3,858 and 7,717 GFLOPs.

    3,848 and 7,697.
    """
    row(it, "W3", 3858, 7717)
    it.right([round(x) for x in counted("W3")] == [3848, 7697])


def F396(it: Evidence) -> None:
    """$W_2$: 3,858 and 7,717 GFLOPs.

    3,848 and 7,697.
    """
    row(it, "W2", 3858, 7717)
    it.right([round(x) for x in counted("W2")] == [3848, 7697])


def F397(it: Evidence) -> None:
    """A layer's forward has 16,250 GFLOPs.

    The printed rows sum to that. The products themselves have 16,218.
    """
    it.as_printed(sum(forward for forward, _ in PRINTED.values()) == 16_250)
    it.elsewhere(round(layer()[0]) == 16_250)
    it.right(round(layer()[0]) == 16_218)


def F398(it: Evidence) -> None:
    """A layer's backward has 34,301 GFLOPs.

    The printed rows sum to 33,601 with the recomputed scores and to 32,501 without.
    The products have 33,535.
    """
    rows = sum(backward for _, backward in PRINTED.values())
    it.as_printed(rows == 34_301)
    it.right(rows == 33_601 and rows - 1100 == 32_501 and round(layer()[1]) == 33_535)


def F399(it: Evidence) -> None:
    """Backward over forward is 2.1.

    2.068 from the products; 2.11 from the printed totals, of which one is wrong. With
    the causal mask it is 2.04.
    """
    forward, backward = layer()
    it.as_printed(round(backward / forward, 1) == 2.1)
    masked = causal()
    it.elsewhere(round(masked[1] / masked[0], 1) == 2.1)
    it.right(round(backward / forward, 3) == 2.068)
    it.right(
        round(34_301 / 16_250, 2) == 2.11 and round(masked[1] / masked[0], 2) == 2.04
    )


def F400(it: Evidence) -> None:
    """The table's rows are a layer's FLOPs.

    They are its products. Norms, rotations, the softmax, SwiGLU, and the sums are left
    out: less than 1 %.
    """
    step = cost.tally("llama-3-70b", 1, 8192).only(lambda row: row.part == "layer")
    whole, products = (sum(step.flops(c).values()) for c in ("counted", "products"))
    it.left_out((whole - products) / 80 / GIGA)
    it.right(0 < (whole - products) / products < 0.01)


def F401(it: Evidence) -> None:
    """A product of [M, K] and [K, N] has 2MNK FLOPs."""
    for name in ("K", "W1", "W2"):
        (m, k), (_, n) = PRODUCTS[name]
        it.as_printed(2 * m * n * k / 1e9 == counted(name)[0])
    multiplications = sum(1 for _ in range(3) for _ in range(5) for _ in range(7))
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        torch.ones(3, 7) @ torch.ones(7, 5)
    it.as_printed(counter.get_total_flops() == 2 * multiplications)


def F402(it: Evidence) -> None:
    """Recomputing the scores adds about 1,100 GFLOPs to the backward, with all pairs of
    tokens."""
    at: dict[str, Any] = {"m": 1, "g": 8, "n_kv": 8, "d": 128, "d_v": 128}
    from backpass.ops import attention, flash_attention

    lengths = {"s_q": 8192, "s_k": 8192}
    more = flash_attention.backward_flops(**at, **lengths, tile=8192)
    more -= attention.backward_flops(**at, **lengths)
    it.as_printed(abs(more / GIGA - 1100) < 20)


def F403(it: Evidence) -> None:
    """80 layers have 1,300 TFLOPs in the forward.

    80 times the printed layer; the products have 1,297.
    """
    it.as_printed(80 * 16_250 / 1000 == 1300)
    it.elsewhere(round(80 * layer()[0] / 1000) == 1300)
    it.right(round(80 * layer()[0] / 1000) == 1297)


def F404(it: Evidence) -> None:
    """80 layers have 2,744 TFLOPs in the backward.

    That is 80 times the wrong total. By the table's own rows it is 2,688, by the
    products 2,683.
    """
    it.as_printed(round(80 * layer()[1] / 1000) == 2744)
    rows = sum(backward for _, backward in PRINTED.values())
    it.right(round(80 * rows / 1000) == 2688 and round(80 * layer()[1] / 1000) == 2683)
    it.right(round(80 * 34_301 / 1000) == 2744)


def F405(it: Evidence) -> None:
    """A step has 4,044 TFLOPs.

    The layers' products have 3,980.
    """
    it.as_printed(round(80 * sum(layer()) / 1000) == 4044)
    it.right(round(80 * sum(layer()) / 1000) == 3980 and 1300 + 2744 == 4044)


def F406(it: Evidence) -> None:
    """A full training step is the forward and the backward of 80 layers.

    The output head has 51.6 TFLOPs more. And with the text's own checkpoints the
    layers' forward runs twice: 1,297 more.
    """
    it.left_out(head())
    again = cost.tally("llama-3-70b", 1, 8192, recompute=1).flops("products")
    it.left_out(again["recomputation"] / TERA)
    it.right(round(head(), 1) == 51.6 and round(again["recomputation"] / TERA) == 1297)


def F407(it: Evidence) -> None:
    """Eight H100 at half of their 989 TFLOP/s compute 3,956 TFLOP/s."""
    rate = MACHINES["h100"].product_rate("bfloat16") / TERA
    it.as_printed(int(rate) == PEAK == 989 and 8 * PEAK * 0.5 == 3956)


def F408(it: Evidence) -> None:
    """3,956 TFLOP/s is the peak throughput.

    The peak is 7,912. 3,956 is what is reached at a utilisation of a half.
    """
    peak = 8 * int(MACHINES["h100"].product_rate("bfloat16") / TERA)
    it.as_printed(peak == 3956)
    it.right(peak == 7912 == 2 * 3956)


def F409(it: Evidence) -> None:
    """The FLOPs that count at 50 % MFU are 4,044 TFLOPs.

    They leave out recomputation by definition: three times the forward, 3,892 TFLOPs
    for the layers and 3,944 with the head.
    """
    model = 80 * 3 * layer()[0] / 1000
    it.as_printed(round(model) == 4044 or round(model + head()) == 4044)
    it.right(round(model) == 3892 and round(model + head()) == 3944)


def F410(it: Evidence) -> None:
    """At a utilisation of a half, a step takes 1.02 s.

    4,044 over 3,956 is 1.02. With the model's FLOPs, head included, it is 0.997 s; with
    all products of the layers 1.006 s. The optimiser's step is not in it.
    """
    it.as_printed(round(4044 / 3956, 2) == 1.02)
    model = 80 * 3 * layer()[0] / 1000 + head()
    it.elsewhere(round(model / 3956, 2) == 1.02)
    it.right(round(model / 3956, 3) == 0.997)
    it.right(round(80 * sum(layer()) / 1000 / 3956, 3) == 1.006)


def F411(it: Evidence) -> None:
    """The step runs on 8 H100.

    Their 640 GB do not hold the 1,120 GB of states that `§3.1` counts, before any
    activation. The step cannot start.
    """
    parameters = cost.tally("llama-3-70b", 1, 8192).parameters
    states = 16 * parameters / GIGA
    it.clashes(states > 8 * 80)
    it.right(8 * 80 == 640 < 1120 < states)
