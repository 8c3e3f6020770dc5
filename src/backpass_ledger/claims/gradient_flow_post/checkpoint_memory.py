"""The memory of checkpoints, for 80 layers of 2,016 MiB (§4.3)."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.checkpoint_code import (
    DEPTH,
    order_of_work,
)
from backpass_ledger.claims.gradient_flow_post.layer_code import SIZES, backward
from backpass_ledger.claims.gradient_flow_post.saved_activations import FLASH, GIB, MIB

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


def most(k: int, *, twice: bool = True) -> int:
    """Return the most MiB that are saved at once with a checkpoint every k layers, by
    walking through the step. A segment's first layer saves its input, which is a
    checkpoint already: ``twice`` counts it again, as the text does."""
    firsts = list(range(0, LAYERS, k))
    peak = 0
    for alive, first in enumerate(firsts, start=1):
        segment = min(k, LAYERS - first) * FLASH
        peak = max(peak, alive * INPUT + segment - (0 if twice else INPUT))
    return peak


def checkpoints(layers: int, every: int) -> list[int]:
    """Return the bytes that a network of few such layers saves for its layers."""
    few = replace(cost.configuration("llama-3-70b"), layers=layers)
    kept = cost.activations(few, 1, 8192, dtype="bfloat16", recompute=every)
    return [row.bytes or 0 for row in kept.rows if row.part.startswith("layers.")]


def gib(mib: float) -> float:
    """Return MiB as GiB, with two decimals."""
    return round(mib / 1024, 2)


def F274(it: Evidence) -> None:
    """Without checkpoints the activations take 157.5 GB; with one every layer 12.0,
    with one every ten 20.7.

    In GiB. In GB they are 169.1, 12.9, and 22.2.
    """
    peaks = [LAYERS * FLASH, most(1), most(10)]
    it.as_printed([round(x * MIB / GIB, 1) for x in peaks] == [157.5, 12.0, 20.7])
    it.elsewhere([round(x * MIB / 1e9, 1) for x in peaks] == [157.5, 12.0, 20.7])
    it.right([round(x * MIB / 1e9, 1) for x in peaks] == [169.1, 12.9, 22.2])


def F275(it: Evidence) -> None:
    """80 layers of 2,016 MiB are 161,280 MiB."""
    it.as_printed(LAYERS * FLASH == 161_280 and FLASH == 2016)


def F276(it: Evidence) -> None:
    """With a checkpoint every layer, only the layer's input is saved: 128 MiB a
    layer."""
    it.as_printed(checkpoints(layers=2, every=1) == [128 * MIB, 128 * MIB])


def F277(it: Evidence) -> None:
    """The peak is one whole layer and 80 checkpoints: 2,016 + 80 · 128 = 12,256 MiB.

    The layer's 2,016 contain its input, which is one of the 80 checkpoints: 12,128 MiB,
    11.84 GiB. With the norm's output that the table forgot, it is 12,256 again.
    """
    it.as_printed(most(1) == 12_256 == 2016 + 80 * 128)
    it.elsewhere(most(1, twice=False) == 12_256)
    it.right(most(1, twice=False) == 12_128 and gib(12_128) == 11.84)
    it.right(most(1, twice=False) + 128 == 12_256)


def F278(it: Evidence) -> None:
    """12.0 GB is the peak of activation memory.

    The probabilities of the output head alone take 3.91 GiB in FP32, unless they are
    computed in chunks; they are alive with all checkpoints. A layer's backward holds
    gradients beside what it saved: the text's listing of it makes four arrays of [S,
    d_ff], 1.75 GiB.
    """
    few = replace(cost.configuration("llama-3-70b"), layers=2)
    kept = cost.activations(few, 1, 8192, recompute=1, chunked=False)
    head = sum(row.bytes or 0 for row in kept.rows if row.array == "loss.p")
    it.left_out(head)
    of_rows = (SIZES["B"], SIZES["S"], SIZES["d_ff"])
    wide = [name for name, array in backward().items() if array.shape == of_rows]
    it.left_out(len(wide) * 2 * 8192 * 28_672)
    it.right(round(head / GIB, 2) == 3.91)
    it.right(len(wide) * 2 * 8192 * 28_672 / GIB == 1.75)
    it.right(round(most(1) * MIB / GIB, 1) == 12.0)


def F279(it: Evidence) -> None:
    """From 157.5 to 12.0 the memory falls by 92 %."""
    it.as_printed(round(100 * (1 - most(1) / (LAYERS * FLASH))) == 92)
    it.as_printed(round(100 * (1 - 12.0 / 157.5)) == 92)


def F280(it: Evidence) -> None:
    """A checkpoint every ten layers are 8, together 1,024 MiB."""
    size = checkpoints(layers=2, every=2)
    it.as_printed(len(range(0, LAYERS, 10)) == 8 and size == [128 * MIB])
    it.as_printed(8 * size[0] == 1024 * MIB)


def F281(it: Evidence) -> None:
    """The peak is ten layers and 8 checkpoints: 10 · 2,016 + 1,024 = 21,184 MiB.

    One input is counted twice again: 21,056 MiB.
    """
    it.as_printed(most(10) == 21_184 == 10 * 2016 + 1024)
    it.elsewhere(most(10, twice=False) == 21_184)
    it.right(most(10, twice=False) == 21_056)


def F282(it: Evidence) -> None:
    """With a checkpoint every ten layers the memory falls by 87 %."""
    it.as_printed(round(100 * (1 - most(10) / (LAYERS * FLASH))) == 87)


def F283(it: Evidence) -> None:
    """A checkpoint every ten layers costs less recomputation than one every layer.

    Every layer runs again once in both cases. Longer segments save memory of
    checkpoints and nothing of the work. Only if the last segment is kept is there a
    small saving: 70 layers run again in place of 79.
    """
    again = {
        k: cost.tally("llama-3-70b", 1, 8192, recompute=k).flops("products")[
            "recomputation"
        ]
        for k in (1, 10)
    }
    it.as_printed(again[10] < again[1])
    it.right(again[10] == again[1] > 0)
    # PyTorch's checkpoint_sequential keeps the last segment.
    reruns = {k: sum(order_of_work(k)[0]) - DEPTH for k in (1, 2, 3)}
    it.right(all(count == DEPTH - k for k, count in reruns.items()))
    it.right([LAYERS - k for k in (10, 1)] == [70, 79])


def F284(it: Evidence) -> None:
    """Without checkpoints: 157 GiB, cut off."""
    it.as_printed(LAYERS * FLASH // 1024 == 157)


def F285(it: Evidence) -> None:
    """With a checkpoint every 20 layers: 42 GB.

    The text's own sum gives 40,832 MiB, which is 39.88 GiB or 42.8 GB. So 42 is GB with
    its decimals cut off, while the bars of every ten and every layer are GiB.
    """
    it.as_printed(round(gib(most(20))) == 42)
    it.right(most(20) == 40_832 and gib(most(20)) == 39.88)
    it.right(round(most(20) * MIB / 1e9, 1) == 42.8)
    it.right([round(gib(most(k))) for k in (10, 1)] == [21, 12])


def F286(it: Evidence) -> None:
    """With a checkpoint every ten layers: 21 GiB."""
    it.as_printed(round(gib(most(10))) == 21)


def F287(it: Evidence) -> None:
    """With a checkpoint every 5 layers: 14 GB.

    The text's own sum gives 11.84 GiB. This is less than with a checkpoint every layer,
    11.97 GiB.
    """
    it.as_printed(round(gib(most(5))) == 14)
    it.right(gib(most(5)) == 11.84 and gib(most(1)) == 11.97)


def F288(it: Evidence) -> None:
    """With a checkpoint every layer: 12 GiB."""
    it.as_printed(round(gib(most(1))) == 12)


def F289(it: Evidence) -> None:
    """The more often a checkpoint is saved, the less memory is needed.

    Checkpoints take memory too. With these sizes the least is at one every 2 layers,
    8.94 GiB; every 3, 4, and 5 layers need less than every layer, too. The real minimum
    is at $k = \\sqrt{80 \\cdot 128 / 2016} \\approx 2.25$.
    """
    peaks = {k: most(k) for k in range(1, LAYERS + 1)}
    shown = [peaks[k] for k in (1, 2, 3, 4, 5, 10, 20)]
    it.as_printed(shown == sorted(shown))
    it.right(min(peaks, key=lambda k: peaks[k]) == 2 and gib(peaks[2]) == 8.94)
    it.right(max(peaks[k] for k in (2, 3, 4, 5)) < peaks[1])
    it.right(round((80 * 128 / 2016) ** 0.5, 2) == 2.25)
    it.right(all(peaks[k] == k * FLASH + ceil(80 / k) * 128 for k in (1, 2, 5, 10, 20)))
