"""What a layer saves, and what a training step holds (§4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.setting import activations, gated
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
F241  caveat        2  memory        cost/memory             §4.1, table, units
F242  true          0  memory        cost/memory             §4.1, table, row 1
F243  true          0  memory        cost/memory             §4.1, table, row 2
F244  true          0  memory        cost/memory             §4.1, table, row 3
F245  true          0  attention     cost/memory             §4.1, table, row 4
F246  true          0  memory        cost/memory             §4.1, table, row 5
F247  true          0  memory        cost/memory             §4.1, table, row 6
F248  true          0  feed-forward  cost/memory             §4.1, table, row 7
F249  true          0  feed-forward  cost/memory             §4.1, table, row 8, size
F250  caveat        2  feed-forward  operations/activations  §4.1, table, row 8, need
F251  left-out      6  memory        cost/memory             §4.1, table, what it omits
F252  left-out      4  feed-forward  cost/memory             §4.1, table, what autograd adds
F253  true          0  memory        cost/memory             §4.1, sum without flash attention
F254  false         3  memory        cost/memory             §4.1, 80 layers without flash attention
F255  true          0  memory        cost/memory             §4.1, sum with flash attention
F256  inconsistent  3  memory        cost/memory             §4.1, 80 layers with flash attention, against §4.3
F257  left-out      5  memory        cost/memory             §4.1, what the sums omit
F258  inconsistent  6  memory        cost/memory             §4.1, optimiser states, against §3.1
F259  false         7  memory        cost/memory             §4.1, whole memory
F260  left-out      4  memory        cost/memory             §4.1, whole memory, gradients
F261  false         3  parallel      cost/memory             §4.1, one node
"""

MIB, GIB, GB = 2**20, 2**30, 10**9
ROWS = (128, 128, 160, 8192, 128, 128, 896, 448)  # of the table, as printed
FLASH = 2016  # their sum with flash attention, as printed
WHOLE = 161 + 840 + 140 + 280  # the four items of the whole memory, as printed
STATES = 3 * 280 + 140 + 140  # the list of §3.1


def saved(flash: bool = True, part: str = "layers.1") -> dict[str, int]:
    """Return the bytes of the arrays that a part of this project's Llama 3 70B saves,
    one sequence of 8,192 tokens, two bytes per element."""
    return {row.array: row.bytes for row in activations(flash) if row.part == part}


def mib(*arrays: str, flash: bool = True) -> float:
    """Return the MiB of some arrays of a layer."""
    return sum(saved(flash)[array] for array in arrays) / MIB


def kept(function: Callable[[], Any]) -> list[Any]:
    """Return the arrays that PyTorch's autograd saves while a function runs."""
    found: list[Any] = []

    def note(array: Any) -> Any:
        found.append(array)
        return array

    with torch.autograd.graph.saved_tensors_hooks(note, lambda array: array):
        function()
    return found


def pinned(function: Callable[[], Any], *known: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the distinct arrays, ``known`` ones apart, that PyTorch's
    autograd saves."""
    arrays = {array.data_ptr(): tuple(array.shape) for array in kept(function)}
    return [arrays[at] for at in set(arrays) - {array.data_ptr() for array in known}]


def F241(it: Evidence) -> None:
    """The sizes of the table are in MB.

    They are exact in MiB: 128 of them are 134.2 MB, and the sum of 2,016 is 2,114
    MB."""
    cells = [saved()["norm_1.x_hat"], saved()["fed.activated.g"]]
    it.as_printed([size / MIB for size in cells] == [128, 448])
    it.elsewhere([size / 10**6 for size in cells] == [128, 448])
    it.right(round(cells[0] / 10**6, 1) == 134.2)
    it.right(FLASH == 2016 and round(FLASH * MIB / 10**6) == 2114)


def F242(it: Evidence) -> None:
    """The input of the first norm takes 128 MiB."""
    it.as_printed(mib("norm_1.x_hat") == ROWS[0] == 128)


def F243(it: Evidence) -> None:
    """The norm's output, for the gradients of attention's weights, takes 128 MiB."""
    it.as_printed(mib("attended.q.projected.x") == ROWS[1] == 128)


def F244(it: Evidence) -> None:
    """Queries, keys, and values of 8192, 1024, and 1024 numbers per token take 160
    MiB."""
    found = [saved()[f"attended.attended.{each}"] for each in "qkv"]
    it.as_printed([size / 8192 / 2 for size in found] == [8192, 1024, 1024])
    it.as_printed(sum(found) / MIB == ROWS[2] == 160)


def F245(it: Evidence) -> None:
    """Without flash attention, the weights of attention take 8,192 MiB."""
    it.as_printed(mib("attended.attended.a", flash=False) == ROWS[3] == 8192)
    it.as_printed("attended.attended.a" not in saved())


def F246(it: Evidence) -> None:
    """Attention's output, for the gradient of $W_O$, takes 128 MiB."""
    it.as_printed(mib("attended.attended.y") == ROWS[4] == 128)


def F247(it: Evidence) -> None:
    """The input of the second norm takes 128 MiB."""
    it.as_printed(mib("norm_2.x_hat") == ROWS[5] == 128)


def F248(it: Evidence) -> None:
    """$g_1$ and $g_3$ together take 896 MiB."""
    it.as_printed(mib("fed.activated.g", "fed.activated.u") == ROWS[6] == 896)


def F249(it: Evidence) -> None:
    """SiLU's output has as many elements as $g_1$: 448 MiB."""
    it.as_printed(mib("fed.activated.g") == ROWS[7] == 448)


def F250(it: Evidence) -> None:
    """SiLU's output must be saved for the backward.

    Autograd saves it. It need not be saved: it follows from $g_1$ element by element,
    and all gradients of SwiGLU can be computed from $g_1$ and $g_3$."""
    g, u, dh = (numbers(3, 7, seed=seed) for seed in range(3))
    silu = torch.nn.functional.silu
    leaves = [torch.tensor(a, requires_grad=True) for a in (g, u)]
    it.as_printed(len(pinned(lambda: silu(leaves[0]) * leaves[1])) == 3)
    sigma = 1 / (1 + np.exp(-g))
    found = [dh * u * sigma * (1 + g * (1 - sigma)), dh * g * sigma]
    expected = vjp(lambda g, u: silu(g) * u, (g, u), dh)
    it.elsewhere(not all(map(same, found, expected)))


def F251(it: Evidence) -> None:
    """The table lists what a layer saves.

    It lacks the second norm's output, 128 MiB, which the code of `§6` takes; two
    numbers per token for the norms; and, with flash attention, one for each head and
    token: 2 MiB. A layer saves 2,146.06 MiB, not 2,016."""
    it.left_out(mib("norm_1.rstd", "norm_2.rstd"))
    it.right(mib("fed.up.x") == 128 and mib("attended.attended.lse") == 2)
    it.right(round(sum(saved().values()) / MIB, 2) == 2146.06 and FLASH == 2016)


def F252(it: Evidence) -> None:
    """The feed-forward block saves three arrays of [S, d_ff]: $g_1$, $g_3$, and SiLU's
    output.

    Plain autograd also saves the product of the last two, for $W_2$: 448 MiB."""
    shapes = ((5, 6), (6, 11), (6, 11), (11, 6))
    x, *w = (torch.tensor(numbers(*of), requires_grad=True) for of in shapes)
    wide = pinned(lambda: gated(x, *w), *w).count((5, 11))
    it.left_out(wide - 3)
    it.right(wide == 4 and mib("fed.activated.g") == mib("fed.down.x") == 448)


def F253(it: Evidence) -> None:
    """The rows sum to 10,208 MiB per layer without flash attention."""
    it.as_printed(sum(ROWS) == 10_208)


def F254(it: Evidence) -> None:
    """80 layers without flash attention take 816 GB.

    80 layers of 10,208 MiB take 797.5 GiB or 856.3 GB. 816 is the number of MiB divided
    by 1,000 and truncated."""
    whole = 80 * 10_208 * MIB
    it.as_printed(816 in (round(whole / GIB), round(whole / GB)))
    it.right(round(whole / GIB, 1) == 797.5 and round(whole / GB, 1) == 856.3)
    it.right(whole // MIB // 1000 == 816)


def F255(it: Evidence) -> None:
    """Without the weights of attention the rows sum to 2,016 MiB."""
    it.as_printed(sum(ROWS) - ROWS[3] == FLASH == 2016)


def F256(it: Evidence) -> None:
    """80 layers with flash attention take 161 GB; in `§4.3`, 157.5 GB.

    80 layers of 2,016 MiB take 157.5 GiB or 169.1 GB. 161 is neither: it is the number
    of MiB divided by 1,000."""
    whole = 80 * FLASH * MIB
    it.clashes(round(whole / GIB, 1) == 157.5 != 161)
    it.right(round(whole / GB, 1) == 169.1 and FLASH == 2016)
    it.right(whole // MIB // 1000 == 161)


def F257(it: Evidence) -> None:
    """The activations of the 80 layers are all activations of the model.

    Unless the output head is computed in chunks, its probabilities take 3.91 GiB in
    FP32, and the gradient of its scores takes as much again. The last norm's input and
    output take 256 MiB."""
    head, norm = saved(part="lm_head"), saved(part="norm")
    it.left_out(head["loss.p"])
    it.right(round(head["loss.p"] / GIB, 2) == 3.91)
    it.right(norm["x_hat"] + head["scores.x"] == 256 * MIB)
    scores = torch.tensor(numbers(5, 7)).float().requires_grad_()
    torch.nn.functional.cross_entropy(scores, torch.arange(5)).backward()
    it.right(scores.grad.nbytes == scores.nbytes == 4 * 5 * 7)


def F258(it: Evidence) -> None:
    """The optimiser's states take 840 GB.

    In `§3.1` they are two arrays of 280 GB, 560 GB; with the master weights, 840."""
    array = 4 * 70  # GB of FP32
    it.clashes(2 * array != 840)
    it.right(array == 280 and 2 * array == 560 and 3 * array == 840)


def F259(it: Evidence) -> None:
    """With 161 GB of activations, 840 GB of optimiser states, 140 GB of weights, and
    280 GB of master weights, training needs over 1,400 GB.

    The master weights are counted twice and the gradients not at all. By the text's own
    lists it is 1,120 GB and 169.1 GB: 1,289 GB."""
    activations = 80 * FLASH * MIB / GB
    it.as_printed(STATES + activations > 1400)
    it.right(161 + 840 + 140 + 280 == WHOLE and WHOLE // 100 * 100 == 1400)
    it.right(STATES == 1120 and round(activations, 1) == 169.1)
    it.right(round(1120 + activations) == 1289)


def F260(it: Evidence) -> None:
    """Activations, optimiser states, and weights are all that has to fit.

    The gradients are missing, 140 GB in the text's own list."""
    budget = cost.memory_budget("llama-3-70b", 1, 8192, dtype="bfloat16")
    gradients = next(s.bytes for s in budget.shares if s.what == "gradients")
    it.left_out(gradients)
    it.right(gradients // GB == 141 and 2 * 70 == 140)


def F261(it: Evidence) -> None:
    """No node holds this.

    Eight devices of 80 or 141 GB do not. Eight of 192 GB do: their 1,536 GB are more
    than the 1,421 GB that the printed items sum to."""
    nodes = [8 * size for size in (80, 141, 192)]
    it.as_printed(all(node < WHOLE for node in nodes))
    it.right(nodes[1] < STATES + 80 * FLASH * MIB / GB < WHOLE == 1421 < nodes[2])
    it.right(nodes[2] == 1536)
