"""The memory of checkpoints, for 80 layers of 2,016 MiB (§4.3)."""

from __future__ import annotations

from dataclasses import replace

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.checkpoint_code import (
    DEPTH,
    order_of_work,
)
from backpass_ledger.claims.gradient_flow_post.layer_code import SIZES, backward
from backpass_ledger.claims.gradient_flow_post.saved_activations import (
    FLASH,
    GIB,
    MIB,
    saved,
)

CLAIMS = """
F274  caveat    2  memory         cost/memory             §4.3, units
F275  true      0  memory         cost/memory             §4.3, no checkpoints
F276  true      0  recomputation  numerics/recomputation  §4.3, every layer, saved
F277  caveat    3  recomputation  numerics/recomputation  §4.3, every layer, peak
F278  left-out  6  recomputation  numerics/recomputation  §4.3, every layer, what the peak omits
F279  true      0  recomputation  numerics/recomputation  §4.3, every layer, saving
F280  true      0  recomputation  numerics/recomputation  §4.3, every 10, checkpoints
F281  caveat    1  recomputation  numerics/recomputation  §4.3, every 10, peak
F282  true      0  recomputation  numerics/recomputation  §4.3, every 10, saving
F283  false     7  recomputation  numerics/recomputation  §4.3, every 10, overhead
F284  true      0  recomputation  numerics/recomputation  §4.3, chart, no checkpoints
F285  false     3  recomputation  numerics/recomputation  §4.3, chart, every 20
F286  true      0  recomputation  numerics/recomputation  §4.3, chart, every 10
F287  false     5  recomputation  numerics/recomputation  §4.3, chart, every 5
F288  true      0  recomputation  numerics/recomputation  §4.3, chart, every layer
F289  false     7  recomputation  numerics/recomputation  §4.3, chart, order
"""

LAYERS = 80
INPUT = 2 * 8192 * 8192 // MIB  # MiB
PLAIN = LAYERS * FLASH  # without checkpoints


def most(k: int, *, twice: bool = True) -> int:
    """Return the most MiB that are saved at once with a checkpoint every k layers, by
    walking through the step. A segment's first layer saves its input, which is a
    checkpoint already: ``twice`` counts it again, as the text does."""
    firsts = range(0, LAYERS, k)
    checkpoints = {first: alive * INPUT for alive, first in enumerate(firsts, start=1)}
    peak = max(checkpoints[i] + min(k, LAYERS - i) * FLASH for i in firsts)
    return peak if twice else peak - INPUT


def gib(mib: float, digits: int = 2) -> float:
    """Return MiB as GiB, rounded."""
    return round(mib / 1024, digits)


def gb(mib: float, digits: int = 1) -> float:
    """Return MiB as GB, rounded."""
    return round(mib * MIB / 10**9, digits)


def saving(k: int) -> float:
    """Return by how many per cent checkpoints every k layers lower the memory."""
    return 100 * (1 - most(k) / PLAIN)


def checkpoints(every: int) -> list[int]:
    """Return the bytes that a network of two such layers saves for its layers."""
    few = replace(cost.configuration("llama-3-70b"), layers=2)
    kept = cost.activations(few, 1, 8192, dtype="bfloat16", recompute=every)
    return [row.bytes or 0 for row in kept.rows if row.part.startswith("layers.")]


def F274(it: Evidence) -> None:
    """Without checkpoints the activations take 157.5 GB; with one every layer 12.0,
    with one every ten 20.7.

    The numbers are right in GiB. In GB they are 169.1, 12.9, and 22.2."""
    peaks = [PLAIN, most(1), most(10)]
    it.as_printed([gib(x, 1) for x in peaks] == [157.5, 12.0, 20.7])
    it.elsewhere([gb(x) for x in peaks] == [157.5, 12.0, 20.7])
    it.right([gb(x) for x in peaks] == [169.1, 12.9, 22.2])


def F275(it: Evidence) -> None:
    """80 layers of 2,016 MiB are 161,280 MiB."""
    it.as_printed(PLAIN == 161_280 and FLASH == 2016)


def F276(it: Evidence) -> None:
    """With a checkpoint every layer, its input is all that it saves: 128 MiB."""
    it.as_printed(checkpoints(1) == [128 * MIB, 128 * MIB])


def F277(it: Evidence) -> None:
    """The peak is one whole layer and 80 checkpoints: 2,016 + 80 · 128 = 12,256 MiB.

    The layer's 2,016 contain its input, which is one of the 80 checkpoints: 12,128 MiB,
    11.84 GiB. With the norm's output that the table forgot, it is 12,256 again."""
    it.as_printed(most(1) == 12_256 == 2016 + 80 * 128)
    it.elsewhere(most(1, twice=False) == 12_256)
    it.right(most(1, twice=False) == 12_128 and gib(12_128) == 11.84)
    it.right(most(1, twice=False) + 128 == 12_256)


def F278(it: Evidence) -> None:
    """12.0 GB is the peak of activation memory.

    The probabilities of the output head take 3.91 GiB in FP32, unless they are computed
    in chunks. A layer's backward holds gradients beside what it saved: in the text's
    listing four arrays of [S, d_ff], 1.75 GiB."""
    head = saved(part="lm_head")["loss.p"]
    of_rows = (SIZES["B"], SIZES["S"], SIZES["d_ff"])
    wide = [array.shape for array in backward().values()].count(of_rows)
    it.left_out(head)
    it.left_out(wide)
    it.right(round(head / GIB, 2) == 3.91 and gib(most(1), 1) == 12.0)
    it.right(wide == 4 and wide * 2 * 8192 * 28_672 / GIB == 1.75)


def F279(it: Evidence) -> None:
    """From 157.5 to 12.0 the memory falls by 92 %."""
    it.as_printed(gib(PLAIN, 1) == 157.5 and gib(most(1), 1) == 12.0)
    it.as_printed(round(saving(1)) == 92 == round(100 * (1 - 12.0 / 157.5)))


def F280(it: Evidence) -> None:
    """With a checkpoint every ten layers there are 8, which take 1,024 MiB."""
    size = checkpoints(every=2)  # one segment
    it.as_printed(len(range(0, LAYERS, 10)) == 8 and size == [128 * MIB])
    it.as_printed(8 * size[0] == 1024 * MIB)


def F281(it: Evidence) -> None:
    """The peak is ten layers and 8 checkpoints: 10 · 2,016 + 1,024 = 21,184 MiB.

    One input is counted twice again: 21,056 MiB."""
    it.as_printed(most(10) == 21_184 == 10 * 2016 + 1024)
    it.elsewhere(most(10, twice=False) == 21_184)
    it.right(most(10, twice=False) == 21_056)


def F282(it: Evidence) -> None:
    """With a checkpoint every ten layers the memory falls by 87 %."""
    it.as_printed(round(saving(10)) == 87)


def F283(it: Evidence) -> None:
    """A checkpoint every ten layers costs less recomputation than one every layer.

    Every layer runs again once in both cases. If the last segment is kept, as PyTorch's
    `checkpoint_sequential` does, 70 layers run again in place of 79."""
    steps = [cost.tally("llama-3-70b", 1, 8192, recompute=k) for k in (1, 10)]
    every, tenth = (step.flops("products")["recomputation"] for step in steps)
    it.as_printed(tenth < every)
    it.right(tenth == every > 0)
    it.right(all(sum(order_of_work(k)[0]) == 2 * DEPTH - k for k in (1, 2, 3)))
    it.right([LAYERS - k for k in (10, 1)] == [70, 79])


def F284(it: Evidence) -> None:
    """Without checkpoints, the activations take 157 GiB, truncated."""
    it.as_printed(PLAIN // 1024 == 157)


def F285(it: Evidence) -> None:
    """With a checkpoint every 20 layers, the activations take 42 GB.

    The text's own sum gives 40,832 MiB, which is 39.88 GiB or 42.8 GB. The chart
    truncates the GB, while its bars for a checkpoint every ten layers and every layer
    are GiB."""
    it.as_printed(42 in (gib(most(20), 0), gb(most(20), 0)))
    it.right(most(20) == 40_832 and gib(most(20)) == 39.88 and gb(most(20)) == 42.8)
    it.right([gib(most(k), 0) for k in (10, 1)] == [21, 12])


def F286(it: Evidence) -> None:
    """With a checkpoint every ten layers, the activations take 21 GiB."""
    it.as_printed(gib(most(10), 0) == 21)


def F287(it: Evidence) -> None:
    """With a checkpoint every 5 layers, the activations take 14 GB.

    The text's own sum gives 11.84 GiB, which is less than the 11.97 GiB of a checkpoint
    every layer."""
    it.as_printed(14 in (gib(most(5), 0), gb(most(5), 0)))
    it.right(gib(most(5)) == 11.84 and gib(most(1)) == 11.97)


def F288(it: Evidence) -> None:
    """With a checkpoint every layer, the activations take 12 GiB."""
    it.as_printed(gib(most(1), 0) == 12)


def F289(it: Evidence) -> None:
    """The more often a checkpoint is saved, the less memory is needed.

    Checkpoints take memory too. The least is at one every 2 layers, 8.94 GiB; every 3,
    4, and 5 layers need less than every layer, too. As a real number, $k = \\sqrt{80
    \\cdot 128 / 2016} \\approx 2.25$."""
    it.as_printed(all(most(k) < most(k + 1) for k in range(1, LAYERS)))
    it.right(min(range(1, LAYERS + 1), key=most) == 2 and gib(most(2)) == 8.94)
    it.right(max(map(most, (2, 3, 4, 5))) < most(1))
    it.right(FLASH == 2016 and round((80 * 128 / FLASH) ** 0.5, 2) == 2.25)
    it.right(all(most(k) == k * FLASH + 80 // k * 128 for k in (1, 2, 5, 10, 20)))
