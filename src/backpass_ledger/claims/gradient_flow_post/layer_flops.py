"""The FLOPs of a layer, and the time of a step (§6.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from backpass import cost
from backpass.cost.duration import MACHINES
from backpass.ops import attention, flash_attention
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.saved_activations import STATES
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
F397  false         2  FLOPs         cost/tally            §6.1, table, total, forward
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
F408  caveat        2  time          cost/time             §6.1, throughput, word
F409  false         4  time          cost/time             §6.1, utilisation
F410  caveat        3  time          cost/time             §6.1, time
F411  inconsistent  6  parallel      cost/memory           §6.1, setting, against §3.1
"""

# How many products [M, K] @ [K, N] a row is, M, K, and N, at full size; and the row as
# printed, recomputed scores apart.
TABLE = {
    "Q": ((1, 8192, 8192, 8192), (1100, 2200)),
    "K": ((1, 8192, 8192, 1024), (138, 275)),
    "V": ((1, 8192, 8192, 1024), (138, 275)),
    "scores": ((64, 8192, 128, 8192), (1100, 2200)),
    "A·V": ((64, 8192, 8192, 128), (1100, 2200)),
    "O": ((1, 8192, 8192, 8192), (1100, 2200)),
    "W1": ((1, 8192, 8192, 28672), (3858, 7717)),
    "W3": ((1, 8192, 8192, 28672), (3858, 7717)),
    "W2": ((1, 8192, 28672, 8192), (3858, 7717)),
}
AGAIN = 1100  # the recomputed scores
ROWS = [sum(printed[i] for _, printed in TABLE.values()) for i in (0, 1)]
TOTALS, STEP = (16_250, 34_301), (1300, 2744, 4044)  # of a layer and of 80, as printed
GIGA, TERA = 10**9, 10**12
PEAK = int(MACHINES["h100"].product_rate("bfloat16") / TERA)  # BF16, dense
MASK = 8193 / 8192 / 2  # the share of the pairs of tokens that a causal mask leaves


def flops(function: Callable[[], Any]) -> int:
    """Return the FLOPs of the matrix products that PyTorch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@cache
def counted(row: str) -> tuple[float, float]:
    """Return the GFLOPs of the forward and of the backward of a row's product, with
    arrays of full size that hold no data."""
    (heads, m, k, n), _ = TABLE[row]
    empty = partial(torch.empty, device="meta", requires_grad=True)
    a, b = empty(heads, m, k), empty(heads, k, n)
    y = a @ b
    backward = flops(lambda: y.backward(torch.empty_like(y)))
    return flops(lambda: a @ b) / GIGA, backward / GIGA


def layer() -> tuple[float, float]:
    """Return the GFLOPs of a layer, forward and backward, with recomputed scores."""
    forward, backward = map(sum, zip(*map(counted, TABLE), strict=True))
    return forward, backward + counted("scores")[0]


def tera(number: float) -> int:
    """Return the GFLOPs of a layer as rounded TFLOPs of 80 layers."""
    return round(80 * number / 1000)


def head() -> float:
    """Return the TFLOPs of the output head, forward and backward."""
    step = cost.tally("llama-3-70b", 1, 8192)
    rows = step.only(lambda row: row.term.call == "output head")
    return sum(rows.flops("products").values()) / TERA


def row(it: Evidence, name: str, *printed: int, right: tuple[float, ...] = ()) -> None:
    """Compare a printed row with what was counted, at the digits that are printed; and
    what is right, to one decimal."""
    it.right(TABLE[name][1] == printed)
    found = [round(x, -2 if 1000 < x < 3000 else 0) for x in counted(name)]
    it.as_printed(found == [*printed])
    it.right(not right or right == tuple(round(x, 1) for x in counted(name)))


def F386(it: Evidence) -> None:
    """A backward has about twice the FLOPs of its forward."""
    forward, backward = layer()
    it.as_printed(1.9 < backward / forward < 2.1)


def F387(it: Evidence) -> None:
    r"""Each product $Y = X W$ has two in the backward, $\bar Y W^\top$ and $X^\top \bar
    Y$, each as large as the first."""
    it.as_printed(all(counted(name)[1] == 2 * counted(name)[0] for name in TABLE))


def F388(it: Evidence) -> None:
    """The projection to Q takes 1,100 GFLOPs in the forward and 2,200 in the backward,
    rounded to hundreds."""
    row(it, "Q", 1100, 2200)


def F389(it: Evidence) -> None:
    """The projection to K takes 138 GFLOPs in the forward and 275 in the backward.

    It takes 137.4 and 274.9. The first rounds to 137."""
    row(it, "K", 138, 275, right=(137.4, 274.9))
    it.right(round(137.4) == 137)


def F390(it: Evidence) -> None:
    """The projection to V takes 138 GFLOPs in the forward and 275 in the backward.

    It takes 137.4 and 274.9, as the projection to K does."""
    row(it, "V", 138, 275, right=(137.4, 274.9))


def F391(it: Evidence) -> None:
    """The scores take 1,100 GFLOPs in the forward and 2,200 in the backward, with 1,100
    more for recomputing them: 2 to 3 times as many.

    This holds if all pairs of tokens are computed. With the text's causal mask, half
    are enough: 550 and 1,649 GFLOPs."""
    row(it, "scores", 1100, 2200)
    one, two = counted("scores")
    it.as_printed(two / one == 2 and (two + one) / one == 3)
    it.elsewhere(round(MASK * one, -2) == 1100)
    it.right(round(MASK * one) == 550 and round(MASK * (one + two)) == 1649)


def F392(it: Evidence) -> None:
    """The weights times the values take 1,100 GFLOPs in the forward and 2,200 in the
    backward.

    This holds if all pairs of tokens are computed. With the text's causal mask, half
    are enough."""
    row(it, "A·V", 1100, 2200)
    it.elsewhere(round(MASK * counted("A·V")[0], -2) == 1100)


def F393(it: Evidence) -> None:
    """The output projection takes 1,100 GFLOPs in the forward and 2,200 in the
    backward, rounded to hundreds."""
    row(it, "O", 1100, 2200)


def F394(it: Evidence) -> None:
    """The product with $W_1$ takes 3,858 GFLOPs in the forward and 7,717 in the
    backward, twice as many.

    It takes 3,848.3 and 7,696.6. Twice the printed 3,858 would be 7,716."""
    row(it, "W1", 3858, 7717, right=(3848.3, 7696.6))
    it.right(2 * 3858 == 7716)


def F395(it: Evidence) -> None:
    """The product with $W_3$ takes 3,858 GFLOPs in the forward and 7,717 in the
    backward.

    It takes 3,848.3 and 7,696.6."""
    row(it, "W3", 3858, 7717, right=(3848.3, 7696.6))


def F396(it: Evidence) -> None:
    """The product with $W_2$ takes 3,858 GFLOPs in the forward and 7,717 in the
    backward.

    It takes 3,848.3 and 7,696.6."""
    row(it, "W2", 3858, 7717, right=(3848.3, 7696.6))


def F397(it: Evidence) -> None:
    """A layer's forward has 16,250 GFLOPs.

    Its products have 16,218. The printed rows sum to the printed total."""
    it.as_printed(round(layer()[0]) == 16_250)
    it.right(ROWS[0] == TOTALS[0] == 16_250 and round(layer()[0]) == 16_218)


def F398(it: Evidence) -> None:
    """A layer's backward has 34,301 GFLOPs.

    The printed rows sum to 33,601 with the recomputed scores and to 32,501 without. The
    products have 33,535."""
    it.as_printed(TOTALS[1] in (ROWS[1], ROWS[1] + AGAIN, round(layer()[1])))
    it.right(TOTALS[1] == 34_301 and round(layer()[1]) == 33_535)
    it.right(ROWS[1] == 32_501 and ROWS[1] + AGAIN == 33_601)


def F399(it: Evidence) -> None:
    """Backward over forward is 2.1.

    It is 2.068 by the products, 2.11 by the printed totals, and 2.04 with the causal
    mask."""
    (forward, backward), one = layer(), counted("scores")[0]
    # Of the products of attention, two in the forward and five in the backward.
    masked = (backward - 5 * one * (1 - MASK)) / (forward - 2 * one * (1 - MASK))
    it.as_printed(
        round(backward / forward, 1) == round(TOTALS[1] / TOTALS[0], 1) == 2.1
    )
    it.elsewhere(round(masked, 1) == 2.1)
    it.right(round(backward / forward, 3) == 2.068 and round(masked, 2) == 2.04)
    it.right(round(TOTALS[1] / TOTALS[0], 2) == 2.11)


def F400(it: Evidence) -> None:
    """The table's rows are a layer's FLOPs.

    Norms, rotations, the softmax, SwiGLU, and the sums are left out: less than 1 %."""
    step = cost.tally("llama-3-70b", 1, 8192).only(lambda row: row.part == "layer")
    whole, products = (sum(step.flops(c).values()) for c in ("counted", "products"))
    it.left_out((whole - products) / 80 / GIGA)
    it.right(0 < (whole - products) / products < 0.01)


def F401(it: Evidence) -> None:
    """A product of [M, K] and [K, N] has 2MNK FLOPs."""
    for name, ((heads, m, k, n), _) in TABLE.items():
        it.as_printed(2 * m * n * k * heads / 1e9 == counted(name)[0])
    it.as_printed(flops(lambda: torch.ones(3, 7) @ torch.ones(7, 5)) == 2 * 3 * 5 * 7)


def F402(it: Evidence) -> None:
    """Recomputing the scores, of all pairs, adds about 1,100 GFLOPs to the backward."""
    at: dict[str, Any] = {"m": 1, "g": 8, "n_kv": 8, "d": 128, "d_v": 128}
    at |= {"s_q": 8192, "s_k": 8192}
    more = flash_attention.backward_flops(**at, tile=8192)
    more -= attention.backward_flops(**at)
    it.as_printed(round(more / GIGA, -2) == AGAIN == 1100)


def F403(it: Evidence) -> None:
    """80 layers have 1,300 TFLOPs in the forward.

    It is 80 times the printed layer, and right to three digits; the products have
    1,297."""
    it.as_printed(tera(TOTALS[0]) == STEP[0] == 1300)
    it.elsewhere(tera(layer()[0]) == 1300)
    it.right(tera(layer()[0]) == 1297 and round(1297, -1) == 1300)


def F404(it: Evidence) -> None:
    """80 layers have 2,744 TFLOPs in the backward.

    It is 80 times the wrong total. By the table's rows the number is 2,688, and by the
    products 2,683."""
    it.as_printed(2744 in (tera(layer()[1]), tera(ROWS[1] + AGAIN)))
    it.right(tera(TOTALS[1]) == STEP[1] == 2744)
    it.right(tera(ROWS[1] + AGAIN) == 2688 and tera(layer()[1]) == 2683)


def F405(it: Evidence) -> None:
    """A step has 4,044 TFLOPs.

    The layers' products have 3,980."""
    it.as_printed(tera(sum(layer())) == 4044)
    it.right(tera(sum(layer())) == 3980 and STEP[0] + STEP[1] == STEP[2] == 4044)


def F406(it: Evidence) -> None:
    """A full training step is the forward and the backward of 80 layers.

    The output head has 51.6 TFLOPs more. And with the text's own checkpoints the
    layers' forward runs twice: 1,297 more."""
    again = cost.tally("llama-3-70b", 1, 8192, recompute=1).flops("products")
    it.left_out(head())
    it.left_out(again["recomputation"])
    it.right(round(head(), 1) == 51.6 and round(again["recomputation"] / TERA) == 1297)


def F407(it: Evidence) -> None:
    """Eight H100 at half of their 989 TFLOP/s compute 3,956 TFLOP/s."""
    it.as_printed(PEAK == 989 and 8 * PEAK * 0.5 == 3956)


def F408(it: Evidence) -> None:
    """At 50 % MFU, the peak throughput of 8 devices is 3,956 TFLOP/s.

    It is what eight devices reach at a utilisation of a half. Their peak is 7,912."""
    it.as_printed(8 * PEAK * 0.5 == 3956)
    it.elsewhere(8 * PEAK == 3956)
    it.right(8 * PEAK == 7912)


def F409(it: Evidence) -> None:
    """The FLOPs that count at 50 % MFU are 4,044 TFLOPs.

    They leave out recomputation by definition: three times the forward, 3,892 TFLOPs
    for the layers and 3,944 with the head."""
    model = 80 * 3 * layer()[0] / 1000
    it.as_printed(STEP[2] in (round(model), round(model + head())))
    it.right(STEP[2] == 4044 and round(model) == 3892 and round(model + head()) == 3944)


def F410(it: Evidence) -> None:
    """At a utilisation of a half, a step takes 1.02 s.

    4,044 over 3,956 is 1.02. With the model's FLOPs, head included, it is 0.997 s; with
    all products of the layers 1.006 s."""
    it.as_printed(STEP[2] == 4044 and round(4044 / 3956, 2) == 1.02)
    seconds = (80 * 3 * layer()[0] / 1000 + head()) / 3956
    it.elsewhere(round(seconds, 2) == 1.02)
    it.right(round(seconds, 3) == 0.997 and 8 * PEAK * 0.5 == 3956)
    it.right(round(80 * sum(layer()) / 1000 / 3956, 3) == 1.006)


def F411(it: Evidence) -> None:
    """The step runs on 8 H100.

    Their 640 GB do not hold the 1,120 GB of states that `§3.1` counts."""
    states = 16 * cost.tally("llama-3-70b", 1, 8192).parameters / GIGA
    it.clashes(states > STATES > 8 * 80)
    it.right(8 * 80 == 640 and STATES == 1120)
