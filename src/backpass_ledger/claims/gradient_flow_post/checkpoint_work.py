"""The work of recomputation (§4.4)."""

from __future__ import annotations

from functools import cache

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.checkpoint_code import (
    DEPTH,
    order_of_work,
)
from backpass_ledger.claims.gradient_flow_post.checkpoint_memory import (
    FLASH,
    LAYERS,
    gib,
    most,
)

CLAIMS = """
F290  false         6  recomputation  numerics/recomputation  §4.4, dependence
F291  true          0  recomputation  numerics/recomputation  §4.4, every layer, runs
F292  true          0  FLOPs          cost/ratio              §4.4, backward
F293  true          0  recomputation  numerics/recomputation  §4.4, every layer, overhead
F294  caveat        3  recomputation  numerics/recomputation  §4.4, every layer, word
F295  true          0  recomputation  numerics/recomputation  §4.4, every k layers, runs
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


PRINTED = {20: (42, 73, 5), 10: (21, 87, 10), 5: (14, 91, 20), 1: (12, 92, 33)}


@cache
def layers(recompute: int | None = None) -> dict[str, int]:
    """Return the FLOPs of the products of the 80 layers of Llama 3 70B, a sequence of
    8,192 tokens, flash attention's recomputed scores not among them."""
    options = {} if recompute is None else {"recompute": recompute}
    step = cost.tally("llama-3-70b", 1, 8192, **options)
    return step.only(lambda row: row.part == "layer").flops("products")


def share_of_step(k: int) -> float:
    """Return what checkpoints every k layers add to a step of the layers."""
    step = layers(k)
    return step["recomputation"] / (step["forward"] + step["backward"])


def F290(it: Evidence) -> None:
    """The cost of recomputation depends on how often a checkpoint is saved.

    The memory does. The work is one forward of the layers for every k (less the last
    segment, if its activations are kept).
    """
    again = {layers(k)["recomputation"] for k in (1, 2, 5, 10, 20, 80)}
    it.as_printed(len(again) > 1)
    it.right(again == {layers()["forward"]})


def F291(it: Evidence) -> None:
    """With a checkpoint every layer, each layer's forward is computed twice, and the
    forward's work doubles."""
    step = layers(1)
    it.as_printed(step["forward"] + step["recomputation"] == 2 * layers()["forward"])
    # PyTorch keeps the last segment, here the last layer.
    it.as_printed(order_of_work(1)[0] == [2] * (DEPTH - 1) + [1])


def F292(it: Evidence) -> None:
    """A backward costs about twice its forward, since it computes the gradients of the
    data and of the weights."""
    step = cost.tally("llama-3-70b", 1, 8192)
    it.as_printed(layers()["backward"] == 2 * layers()["forward"])
    rows = step.only(
        lambda row: row.part == "layer" and row.term.call == "up projection"
    )
    flops = rows.flops("products")
    it.as_printed(flops["backward"] == 2 * flops["forward"] > 0)


def F293(it: Evidence) -> None:
    """With a checkpoint every layer, a step costs 4 forwards in place of 3: 33 %
    more."""
    it.as_printed(round(100 * share_of_step(1)) == 33)
    step, head = layers(), cost.tally("llama-3-70b", 1, 8192).flops("products")
    it.as_printed(
        round(100 * step["forward"] / (head["forward"] + head["backward"])) == 33
    )


def F294(it: Evidence) -> None:
    """A checkpoint every layer is the most aggressive choice.

    It is the most frequent one. It does not save the most memory, which k = 2 does. Nor
    does it cost the most work, which is the same for all k, unless the last segment is
    kept.
    """
    every = range(1, LAYERS + 1)
    it.as_printed(
        len(range(0, LAYERS, 1)) == max(len(range(0, LAYERS, k)) for k in every)
    )
    it.elsewhere(most(1) == min(map(most, every)))
    it.elsewhere(share_of_step(1) > share_of_step(2))
    it.right(min(every, key=most) == 2)


def F295(it: Evidence) -> None:
    """With a checkpoint every k layers, each layer's forward is recomputed once.

    If the last segment is kept, as PyTorch's `checkpoint_sequential` does, its k layers
    run once only.
    """
    it.as_printed(
        all(layers(k)["recomputation"] == layers()["forward"] for k in (5, 10))
    )
    for k in (2, 3):
        runs = order_of_work(k)[0]
        it.as_printed(runs[:-k] == [2] * (DEPTH - k))
        it.right(runs[-k:] == [1] * k)


def F296(it: Evidence) -> None:
    """The recomputation of a segment overlaps with the backward of later segments.

    Autograd runs one after the other: all of a segment, then its backward, then the
    next segment. Overlap would need the memory of two segments, and would hide time but
    not remove FLOPs.
    """
    _, events = order_of_work(2)
    kinds = [(kind, i // 2) for kind, i in events]
    first = [kinds.index(("again", segment)) for segment in (1, 0)]
    last = [max(n for n, e in enumerate(kinds) if e == ("backward", s)) for s in (2, 1)]
    overlaps = any(again < done for again, done in zip(first, last, strict=True))
    it.as_printed(overlaps)
    it.right(not overlaps)


def F297(it: Evidence) -> None:
    r"""The overhead is $\frac{L}{k L} = \frac{1}{k}$ of a forward.

    It is one forward for every k: each layer runs again once, as the same sentence
    says. If the last segment is kept, it is 1 − k/L of a forward. By 1/k, one
    checkpoint for the whole network would cost an eightieth of a forward, where it
    reruns all of it.
    """
    share = {
        k: layers(k)["recomputation"] / layers()["forward"] for k in (1, 5, 10, 80)
    }
    it.as_printed(all(abs(share[k] - 1 / k) < 0.5 / k for k in share))
    it.right(set(share.values()) == {1.0})
    kept = {k: sum(order_of_work(k)[0]) - DEPTH for k in (1, 2, 3)}
    it.right(all(kept[k] == DEPTH - k for k in kept))


def F298(it: Evidence) -> None:
    """With k = 10 the overhead is 10 % of a forward, 3.3 % of a step.

    It is one forward, 33 % of a step; 29 % if the last segment is kept and does not run
    again.
    """
    it.as_printed(round(100 * share_of_step(10), 1) == 3.3)
    it.right(round(100 * share_of_step(10)) == 33)
    it.right(round(100 * share_of_step(10) * (LAYERS - 10) / LAYERS) == 29)


def F299(it: Evidence) -> None:
    """With k = 5 the overhead is 6.7 % of a step.

    It is 33 % of a step, or 31 % if the last segment does not run again.
    """
    it.as_printed(round(100 * share_of_step(5), 1) == 6.7)
    it.right(round(100 * share_of_step(5)) == 33)
    it.right(round(100 * share_of_step(5) * (LAYERS - 5) / LAYERS) == 31)


def F300(it: Evidence) -> None:
    """The column of the compute overhead has one measure: 5, 10, 20, and 33 % with a
    checkpoint every 20, 10, 5, and 1 layers.

    The first three are 1/k of a forward, the last is a share of a step. As a share of a
    forward by 1/k it would be 100 %; as shares of a step the first three would be
    1.7, 3.3, and 6.7 %.
    """
    of_forward = [round(100 / k) for k in PRINTED]
    of_step = [round(100 / k / 3, 1) for k in PRINTED]
    column = [percent for *_, percent in PRINTED.values()]
    it.right(of_forward == [5, 10, 20, 100] and of_step[:3] == [1.7, 3.3, 6.7])
    it.clashes(column[:3] == of_forward[:3] and column[3] != of_forward[3])
    it.clashes(column[3] == round(of_step[3]) and column[:3] != of_step[:3])


def F301(it: Evidence) -> None:
    """The time grows with the overhead: 5, 3 to 4, 7, and 11 % with a checkpoint every
    20, 10, 5, and 1 layers.

    The column falls from the first to the second row, where the overhead doubles.
    """
    times, overheads = [5, 3.5, 7, 11], [percent for *_, percent in PRINTED.values()]
    by_time = sorted(range(4), key=lambda i: times[i])
    it.clashes(by_time != sorted(range(4), key=lambda i: overheads[i]))
    it.right(overheads[1] == 2 * overheads[0] and times[1] < times[0])


def F302(it: Evidence) -> None:
    """Without checkpoints 157.5 GiB, and no overhead."""
    it.as_printed(round(LAYERS * FLASH / 1024, 1) == 157.5)
    it.as_printed(layers()["recomputation"] == 0)


def F303(it: Evidence) -> None:
    """With a checkpoint every 20 layers 42 GB, 73 % less.

    The text's own sum gives 40,832 MiB, which is 39.9 GiB or 42.8 GB: 42 is GB with its
    decimals cut off, in a column of GiB. The saving is 74.7 %.
    """
    saving = 100 * (1 - most(20) / (LAYERS * FLASH))
    it.as_printed(round(gib(most(20))) == 42 and round(saving) == 73)
    it.right(round(most(20) / 1024, 1) == 39.9 and round(saving, 1) == 74.7)
    it.right(most(20) == 40_832 and round(most(20) * 2**20 / 1e9, 1) == 42.8)


def F304(it: Evidence) -> None:
    """With a checkpoint every 20 layers about 5 % more compute, 5 % more time.

    It adds a third of a step's compute. By the text's own rule, 5 % of a forward would
    be 1.7 % of a step.
    """
    it.as_printed(round(100 * share_of_step(20)) == 5)
    it.right(round(share_of_step(20), 4) == round(1 / 3, 4))
    it.right(round(100 / 20 / 3, 1) == 1.7)


def F305(it: Evidence) -> None:
    """With a checkpoint every ten layers 21 GiB, 87 % less."""
    saving = 100 * (1 - most(10) / (LAYERS * FLASH))
    it.as_printed(round(gib(most(10))) == 21 and round(saving) == 87)


def F306(it: Evidence) -> None:
    """With a checkpoint every ten layers about 10 % more compute, 3 to 4 % more time.

    It adds a third of a step's compute.
    """
    it.as_printed(round(100 * share_of_step(10)) == 10)
    it.right(round(share_of_step(10), 4) == round(1 / 3, 4))


def F307(it: Evidence) -> None:
    """With a checkpoint every 5 layers 14 GB, 91 % less.

    The text's own sum gives 11.8 GiB, which is 92.5 % less. Both are better than with a
    checkpoint every layer.
    """
    saving = {k: 100 * (1 - most(k) / (LAYERS * FLASH)) for k in (1, 5)}
    it.as_printed(round(gib(most(5))) == 14 and round(saving[5]) == 91)
    it.right(round(most(5) / 1024, 1) == 11.8 and round(saving[5], 1) == 92.5)
    it.right(most(5) < most(1) and saving[5] > saving[1])


def F308(it: Evidence) -> None:
    """With a checkpoint every 5 layers about 20 % more compute, 7 % more time.

    It adds a third of a step's compute.
    """
    it.as_printed(round(100 * share_of_step(5)) == 20)
    it.right(round(share_of_step(5), 4) == round(1 / 3, 4))


def F309(it: Evidence) -> None:
    """With a checkpoint every layer 12 GiB, 92 % less, and 33 % more compute."""
    saving = 100 * (1 - most(1) / (LAYERS * FLASH))
    it.as_printed(round(gib(most(1))) == 12 and round(saving) == 92)
    it.as_printed(round(100 * share_of_step(1)) == 33)


def F310(it: Evidence) -> None:
    """With a checkpoint every layer, a step takes 11 % longer.

    Products set the time of such a step, and there are 33 % more of them: by an H100's
    published peaks a step takes 29 % longer. 11 is a third of 33, a share of a step
    taken for a share of a forward.
    """
    plain, again = (
        cost.duration("llama-3-70b", 1, 8192, "h100", dtype="bfloat16", recompute=k)
        for k in (None, 1)
    )
    longer = 100 * (again.seconds / plain.seconds - 1)
    it.as_printed(abs(longer - 11) < 2)
    it.right(round(longer) == 29 and round(100 * share_of_step(1)) == 33 == 3 * 11)


def F311(it: Evidence) -> None:
    """The time grows less than the compute, because recomputation overlaps with the
    backward.

    It does not overlap: a segment runs again after the backward of the segment above
    and before its own. The row with a checkpoint every 20 layers gives 5 % for both
    compute and time. No measurement is given.
    """
    _, events = order_of_work(3)
    at = {event: i for i, event in enumerate(events)}
    again = [at["again", i] for i in range(3)]
    above = [at["backward", i] for i in range(3, DEPTH)]
    own = [at["backward", i] for i in range(3)]
    it.as_printed(max(above) > min(again) or max(again) > min(own))
    it.right(max(above) < min(again) and max(again) < min(own))
    it.right(len(again) == len(own) == 3 and PRINTED[20][2] == 5)


def F312(it: Evidence) -> None:
    """33 % holds with flash attention too, whose backward has one product more."""
    more = layers()["forward"]
    scores = LAYERS * 2 * 64 * 8192**2 * 128
    it.as_printed(round(100 * more / (3 * more + scores)) == 33)
