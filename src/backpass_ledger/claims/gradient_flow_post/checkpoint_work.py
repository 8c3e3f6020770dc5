"""The work of recomputation (§4.4)."""

from __future__ import annotations

from functools import cache, partial

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.checkpoint_code import (
    DEPTH,
    Stack,
    by_listing,
    by_pytorch,
    order_of_work,
)
from backpass_ledger.claims.gradient_flow_post.checkpoint_memory import (
    LAYERS,
    PLAIN,
    gb,
    gib,
    most,
    saving,
)

CLAIMS = """
F290  false         6  recomputation  numerics/recomputation  §4.4, dependence
F291  true          0  recomputation  numerics/recomputation  §4.4, every layer, runs
F292  true          0  FLOPs          cost/ratio              §4.4, backward
F293  true          0  recomputation  numerics/recomputation  §4.4, every layer, overhead
F294  caveat        3  recomputation  numerics/recomputation  §4.4, every layer, word
F295  caveat        1  recomputation  numerics/recomputation  §4.4, every k layers, runs
F296  false         5  recomputation  numerics/recomputation  §4.4, every k layers, overlap
F297  false         8  recomputation  numerics/recomputation  §4.4, every k layers, formula
F298  false         7  recomputation  numerics/recomputation  §4.4, every 10 layers
F299  false         7  recomputation  numerics/recomputation  §4.4, every 5 layers
F300  inconsistent  6  recomputation  numerics/recomputation  §4.4, table, compute overhead
F301  inconsistent  4  time           numerics/recomputation  §4.4, table, wall clock
F302  true          0  recomputation  numerics/recomputation  §4.4, table, none
F303  false         3  recomputation  numerics/recomputation  §4.4, table, every 20, memory
F304  false         7  recomputation  numerics/recomputation  §4.4, table, every 20, overhead
F305  true          0  recomputation  numerics/recomputation  §4.4, table, every 10, memory
F306  false         7  recomputation  numerics/recomputation  §4.4, table, every 10, overhead
F307  false         5  recomputation  numerics/recomputation  §4.4, table, every 5, memory
F308  false         7  recomputation  numerics/recomputation  §4.4, table, every 5, overhead
F309  true          0  recomputation  numerics/recomputation  §4.4, table, every layer, memory and compute
F310  false         6  time           numerics/recomputation  §4.4, table, every layer, time
F311  false         5  time           numerics/recomputation  §4.4, table, note on time
F312  true          0  flash          numerics/recomputation  §4.4, table, note on FLOPs
"""

# Every so many layers: the memory, the saving, and the overhead of the table's rows.
PRINTED = {20: (42, 73, 5), 10: (21, 87, 10), 5: (14, 91, 20), 1: (12, 92, 33)}
OVERHEADS = [percent for *_, percent in PRINTED.values()]
TIMES = [5, 3.5, 7, 11]  # of the same rows


@cache
def layers(recompute: int | None = None) -> dict[str, int]:
    """Return the FLOPs of the products of the 80 layers of Llama 3 70B, a sequence of
    8,192 tokens, flash attention's recomputed scores not among them."""
    step = cost.tally("llama-3-70b", 1, 8192, recompute=recompute)
    return step.only(lambda row: row.part == "layer").flops("products")


def again(k: int) -> float:
    """Return what checkpoints every k layers recompute, in forwards of the layers."""
    return layers(k)["recomputation"] / layers()["forward"]


def of_step(k: int, kept: int = 0) -> float:
    """Return what they add to a step of the layers, in per cent, if ``kept`` layers do
    not run again."""
    step = layers(k)
    whole = 100 * step["recomputation"] / (step["forward"] + step["backward"])
    return whole * (LAYERS - kept) / LAYERS


def memory(it: Evidence, k: int) -> None:
    """Compare the memory and the saving of a row with the text's own sum, in either
    unit."""
    printed, less, _ = PRINTED[k]
    it.as_printed(printed in (gib(most(k), 0), gb(most(k), 0)))
    it.as_printed(round(saving(k)) == less)


def compute(it: Evidence, k: int) -> None:
    """Compare the overhead of a row with that of the products, a third of a step."""
    it.as_printed(round(of_step(k)) == PRINTED[k][2])
    it.right(abs(of_step(k) - 100 / 3) < 1e-9)


def overlaps(k: int) -> bool:
    """Whether a segment of k layers runs again before the backward of the segment above
    has ended, or after its own has begun."""
    at = {event: i for i, event in enumerate(order_of_work(k)[1])}
    for first in range(0, DEPTH - k, k):
        again, own = (
            [at[w, first + i] for i in range(k)] for w in ("again", "backward")
        )
        above = [at["backward", first + k + i] for i in range(k)]
        if min(again) < max(above) or max(again) > min(own):
            return True
    return False


def F290(it: Evidence) -> None:
    """The cost of recomputation depends on how often a checkpoint is saved.

    The memory does. The work is one forward of the layers for every k (less the last
    segment, if its activations are kept)."""
    shares = {again(k) for k in (1, 2, 5, 10, 20, 80)}
    it.as_printed(len(shares) > 1)
    it.right(shares == {1})


def F291(it: Evidence) -> None:
    """With a checkpoint every layer, each layer's forward is computed twice, and the
    forward's work doubles."""
    it.as_printed(layers(1)["forward"] == layers()["forward"] and again(1) == 1)
    stack = Stack()
    stack.after(lambda x: by_pytorch(stack, x))
    it.as_printed([stack.runs.count(i) for i in range(DEPTH)] == [2] * DEPTH)


def F292(it: Evidence) -> None:
    """A backward costs about twice its forward, since it computes the gradients of the
    data and of the weights."""
    step = cost.tally("llama-3-70b", 1, 8192).only(lambda row: row.part == "layer")
    for rows in (step, step.only(lambda row: row.term.call == "up projection")):
        flops = rows.flops("products")
        it.as_printed(flops["backward"] == 2 * flops["forward"] > 0)


def F293(it: Evidence) -> None:
    """With a checkpoint every layer, a step costs 4 forwards, not 3: 33 % more."""
    it.as_printed(round(of_step(1)) == 33)
    whole = cost.tally("llama-3-70b", 1, 8192).flops("products")
    share = layers()["forward"] / (whole["forward"] + whole["backward"])
    it.as_printed(round(100 * share) == 33)  # the output head is not recomputed


def F294(it: Evidence) -> None:
    """A checkpoint every layer is the most aggressive choice.

    It is the most frequent one. But k = 2 saves more memory, and the work is the same
    for all k, unless the last segment is kept."""
    every = range(1, LAYERS + 1)
    it.as_printed(max(every, key=lambda k: len(range(0, LAYERS, k))) == 1)
    it.elsewhere(most(1) == min(map(most, every)))
    it.elsewhere(of_step(1) > of_step(2))
    it.right(min(every, key=most) == 2)


def F295(it: Evidence) -> None:
    """With a checkpoint every k layers, each layer's forward is recomputed once.

    PyTorch's `checkpoint_sequential` keeps the last segment, whose layers run once."""
    it.as_printed(all(again(k) == 1 for k in (5, 10)))
    for k in (2, 3):
        it.as_printed(len(by_listing(k, mended=True)[1].runs) == DEPTH)
        it.elsewhere(order_of_work(k)[0] == [2] * DEPTH)
        it.right(order_of_work(k)[0] == [2] * (DEPTH - k) + [1] * k)


def F296(it: Evidence) -> None:
    """The recomputation of a segment overlaps with the backward of later segments.

    Autograd runs all of a segment again, then its backward, then the next segment.
    Overlap would need the memory of two segments, and would not remove FLOPs."""
    it.as_printed(overlaps(2))
    it.right(not overlaps(2))


def F297(it: Evidence) -> None:
    r"""The overhead is $\frac{L}{k L} = \frac{1}{k}$ of a forward.

    It is one forward for every k: each layer runs again once, as the same sentence
    says. If the last segment is kept, it is 1 − k/L of a forward."""
    it.as_printed(all(abs(again(k) - 1 / k) < 0.5 / k for k in (1, 5, 10, 80)))
    it.right(all(again(k) == 1 for k in (1, 5, 10, 80)))
    it.right(all(sum(order_of_work(k)[0]) == 2 * DEPTH - k for k in (1, 2, 3)))


def F298(it: Evidence) -> None:
    """With k = 10 the overhead is 10 % of a forward, 3.3 % of a step.

    It is one forward, 33 % of a step, or 29 % if the last segment does not run
    again."""
    it.as_printed(round(of_step(10), 1) == 3.3)
    it.right(round(10 / 3, 1) == 3.3)  # a third of 1/10
    it.right(round(of_step(10)) == 33 and round(of_step(10, kept=10)) == 29)


def F299(it: Evidence) -> None:
    """With k = 5 the overhead is 6.7 % of a step.

    It is 33 % of a step, or 31 % if the last segment does not run again."""
    it.as_printed(round(of_step(5), 1) == 6.7)
    it.right(round(20 / 3, 1) == 6.7)  # a third of 1/5
    it.right(round(of_step(5)) == 33 and round(of_step(5, kept=5)) == 31)


def F300(it: Evidence) -> None:
    """The column of the compute overhead has one measure: 5, 10, 20, and 33 % with a
    checkpoint every 20, 10, 5, and 1 layers.

    The first three are 1/k of a forward, the last is a share of a step. By one measure
    it would be 100 %, or the first three 1.7, 3.3, and 6.7 %."""
    of_forward, shares = ([round(100 / k / n, 1) for k in PRINTED] for n in (1, 3))
    it.right(of_forward == [5, 10, 20, 100] and shares[:3] == [1.7, 3.3, 6.7])
    it.clashes(OVERHEADS == [5, 10, 20, 33] and 33 == round(shares[3]) != of_forward[3])
    it.clashes(OVERHEADS[:3] == of_forward[:3] != shares[:3])


def F301(it: Evidence) -> None:
    """The time grows with the overhead: 5, 3 to 4, 7, and 11 % with a checkpoint every
    20, 10, 5, and 1 layers.

    The column falls from the first to the second row, where the overhead doubles."""
    it.clashes(sorted(TIMES) != TIMES and sorted(OVERHEADS) == OVERHEADS)
    it.right(OVERHEADS[1] == 2 * OVERHEADS[0] and TIMES[1] < TIMES[0])


def F302(it: Evidence) -> None:
    """Without checkpoints, the activations take 157.5 GiB, and nothing is computed
    again."""
    it.as_printed(gib(PLAIN, 1) == 157.5 and layers()["recomputation"] == 0)


def F303(it: Evidence) -> None:
    """A checkpoint every 20 layers needs 42 GB, which is 73 % less.

    The text's own sum gives 40,832 MiB, which is 39.9 GiB or 42.8 GB. The 42 is the
    number of GB, truncated, in a column of GiB. The saving is 74.7 %."""
    memory(it, 20)
    it.right(most(20) == 40_832 and gib(most(20), 1) == 39.9 and gb(most(20)) == 42.8)
    it.right(round(saving(20), 1) == 74.7)


def F304(it: Evidence) -> None:
    """A checkpoint every 20 layers costs about 5 % more compute and 5 % more time.

    It adds a third of a step's compute. 5 % of a forward would be 1.7 % of a step."""
    compute(it, 20)
    it.right(round(5 / 3, 1) == 1.7)


def F305(it: Evidence) -> None:
    """A checkpoint every ten layers needs 21 GiB, which is 87 % less."""
    memory(it, 10)


def F306(it: Evidence) -> None:
    """A checkpoint every ten layers costs about 10 % more compute and 3 to 4 % more
    time.

    It adds a third of a step's compute."""
    compute(it, 10)


def F307(it: Evidence) -> None:
    """A checkpoint every 5 layers needs 14 GB, which is 91 % less.

    The text's own sum gives 11.8 GiB, 92.5 % less, which saves more than a checkpoint
    every layer."""
    memory(it, 5)
    it.right(gib(most(5), 1) == 11.8 and round(saving(5), 1) == 92.5)
    it.right(most(5) < most(1) and saving(5) > saving(1))


def F308(it: Evidence) -> None:
    """A checkpoint every 5 layers costs about 20 % more compute and 7 % more time.

    It adds a third of a step's compute."""
    compute(it, 5)


def F309(it: Evidence) -> None:
    """A checkpoint every layer needs 12 GiB, which is 92 % less, and costs 33 % more
    compute."""
    memory(it, 1)
    compute(it, 1)


def F310(it: Evidence) -> None:
    """With a checkpoint every layer, a step takes 11 % longer.

    Products set the time of such a step, and there are 33 % more of them: by an H100's
    published peaks a step takes 29 % longer. 11 is a third of 33."""
    step = partial(cost.duration, "llama-3-70b", 1, 8192, "h100", dtype="bfloat16")
    longer = 100 * (step(recompute=1).seconds / step().seconds - 1)
    it.as_printed(abs(longer - 11) < 2)
    it.right(round(longer) == 29 and round(of_step(1)) == 33 == 3 * 11)


def F311(it: Evidence) -> None:
    """The time grows less than the compute, because recomputation overlaps with the
    backward.

    It does not overlap: a segment runs again between the backward of the one above and
    its own. The text's row of every 20 layers has 5 % for both compute and time."""
    it.as_printed(overlaps(3))
    it.right(not overlaps(3) and PRINTED[20][2] == TIMES[0] == 5)


def F312(it: Evidence) -> None:
    """33 % holds with flash attention too, whose backward has one product more."""
    more = layers()["forward"]
    scores = LAYERS * 2 * 64 * 8192**2 * 128
    it.as_printed(round(100 * more / (3 * more + scores)) == 33)
