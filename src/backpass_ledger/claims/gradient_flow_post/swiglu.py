"""The section on the SwiGLU block."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from backpass.ops import feed_forward

from ..evidence import Evidence
from ..tools import numbers, raises, run, same, torch, vjp
from .setting import GIB, MIB, SHAPES, gated, of_a_layer, operations, saved_by, tensors

CLAIMS = """
F111  true          0  feed-forward  operations/feed_forward  §1.5, formula
F112  true          0  feed-forward  operations/feed_forward  §1.5, sizes
F113  true          0  feed-forward  operations/feed_forward  §1.5, names
F114  true          0  feed-forward  operations/feed_forward  §1.5, through W_2
F115  true          0  feed-forward  operations/feed_forward  §1.5, through the product
F116  true          0  feed-forward  operations/feed_forward  §1.5, through the product
F117  true          0  activations   operations/activations   §1.5, through SiLU
F118  true          0  activations   operations/activations   §1.5, through SiLU
F119  caveat        1  matmul        operations/feed_forward  §1.5, weights
F120  left-out      1  feed-forward  operations/feed_forward  §1.5, formulas
F121  false         2  feed-forward  operations/feed_forward  §1.5, listing
F122  true          0  feed-forward  operations/feed_forward  §1.5, listing, line 1
F123  true          0  feed-forward  operations/feed_forward  §1.5, listing, lines 2 and 3
F124  true          0  activations   operations/activations   §1.5, listing, lines 4 and 5
F125  true          0  activations   operations/feed_forward  §1.5, listing, line 6
F126  true          0  feed-forward  operations/feed_forward  §1.5, listing, line 7
F127  true          0  feed-forward  operations/feed_forward  §1.5, listing, lines 8 and 9
F128  true          0  feed-forward  operations/feed_forward  §1.5, listing, line 10
F129  true          0  FLOPs         cost/ratio               §1.5, listing, comments
F130  caveat        4  memory        operations/activations   §1.5, box
F131  left-out      4  memory        cost/memory              §1.5, box
F132  true          0  memory        cost/memory              §1.5, box
F133  false         3  memory        cost/memory              §1.5, box
F134  false         3  memory        cost/memory              §1.5, box
F135  inconsistent  2  memory        cost/memory              §1.5, box, and the table of §4
F136  caveat        1  memory        cost/memory              §1.5, box
F137  false         3  memory        cost/memory              §1.5, box
"""

MATRICES = ("gate", "up", "down")
RETURNED = ("x", "W1", "W2", "W3")
X, W1, W3 = numbers(2, 5, 7), numbers(7, 11), numbers(7, 11, seed=1)
W2, G = numbers(11, 7, seed=2), numbers(2, 5, 7, seed=3)
SIZE = 3 * 8192 * 28672 * 2  # bytes, as the box has it
SILU = r"let \sigma(z) = \frac{1}{1 + e^{-z}}; let \text{SiLU}(z) = z \cdot \sigma(z)"
BLOCK = rf"""{SILU}
    given x \in \mathbb{{R}}^{{n \times d}}, U, R \in \mathbb{{R}}^{{d \times f}}
    given W_2 \in \mathbb{{R}}^{{f \times d}}
    let g = x U; let r = x R
    let s_{{ij}} = \text{{SiLU}}(g_{{ij}})
    let h = s \odot r
    let u = h W_2
    read g_1 as g; read g_3 as r; read W_1 as U; read W_3 as R; read \text{{out}} as u
    read x_\text{{norm}} as x; loss L
"""


def silu(x: Any) -> Any:
    """PyTorch's SiLU."""
    return torch.nn.functional.silu(x)


def inputs() -> dict[str, Any]:
    """Return the listing's arguments; s is SiLU of g1."""
    names = {"dy": G, "x": X, "W1": W1, "W2": W2, "W3": W3, "g1": X @ W1, "g3": X @ W3}
    found = dict(zip(names, tensors(*names.values()), strict=True))
    return {**found, "s": silu(found["g1"])}


def slope_by_line(g1: Any) -> Any:
    """Return SiLU's derivative as lines 4 and 5 compute it."""
    sigma = g1.sigmoid()
    return sigma * (1 + g1 * (1 - sigma))


def steps(
    dy: Any, x: Any, W1: Any, W2: Any, W3: Any, g1: Any, g3: Any, s: Any
) -> dict[str, Any]:
    """Return the gradients that the listing computes, by the names of the arrays."""

    def weight(x: Any, dy: Any) -> Any:
        return x.flatten(0, 1).T @ dy.flatten(0, 1)

    d = {"h": dy @ W2.T, "W2": weight(s * g3, dy)}
    d |= {"s": d["h"] * g3, "g3": d["h"] * s}
    d["g1"] = d["s"] * slope_by_line(g1)
    d |= {"W1": weight(x, d["g1"]), "W3": weight(x, d["g3"])}
    return {**d, "x": d["g1"] @ W1.T + d["g3"] @ W3.T}


@cache
def ran() -> dict[str, Any]:
    """Return the listing's gradients as arrays."""
    return {name: array.numpy() for name, array in steps(**inputs()).items()}


@cache
def expected() -> dict[str, Any]:
    """Return the gradients by autograd, of what the block computes on its way too."""
    of = {"x": X, "W1": W1, "W3": W3, "W2": W2}
    of = {name: torch.tensor(a, requires_grad=True) for name, a in of.items()}
    of |= {"g1": of["x"] @ of["W1"], "g3": of["x"] @ of["W3"]}
    of["s"] = silu(of["g1"])
    of["h"] = of["s"] * of["g3"]
    found = torch.autograd.grad(of["h"] @ of["W2"], [*of.values()], torch.tensor(G))
    return {name: array.numpy() for name, array in zip(of, found, strict=True)}


def computes(it: Evidence, *names: str) -> None:
    """Judge gradients that lines of the listing compute."""
    for name in names:
        it.as_printed(same(ran()[name], expected()[name]))


def F111(it: Evidence) -> None:
    r"""$\text{FFN}(x) = (\text{SiLU}(x W_1) \odot (x W_3)) W_2$ is Llama's block."""
    y, _ = feed_forward.forward(X, W3, W2, w_gate=W1, activation="swiglu")
    it.as_printed(same(gated(*tensors(X, W1, W3, W2)).numpy(), y))


def F112(it: Evidence) -> None:
    r"""$W_1$ and $W_3$ are $d \times d_{ff}$ and $W_2$ is $d_{ff} \times d$, with
    $d_{ff} = 28672$ for Llama 3 70B."""
    gate, up, down = (SHAPES[f"layers.0.mlp.{n}_proj.weight"] for n in MATRICES)
    it.as_printed(gate == up == down[::-1] == (28672, 8192))


def F113(it: Evidence) -> None:
    r"""With $g_1 = x W_1$, $g_3 = x W_3$, $s = g_1 \cdot \sigma(g_1)$ element by
    element, and $h = s \odot g_3$, the block is $h W_2$."""
    g1, g3 = X @ W1, X @ W3
    h = g1 / (1 + np.exp(-g1)) * g3
    it.as_printed(same(h @ W2, gated(*tensors(X, W1, W3, W2)).numpy()))


def F114(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial h} = \frac{\partial L}{\partial \text{out}} W_2^\top
    \in \mathbb{R}^{B \times S \times d_{ff}}$."""
    it.as_printed(same(G @ W2.T, expected()["h"]))


def F115(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial s} = \frac{\partial L}{\partial h} \odot g_3$."""
    it.derives(BLOCK)


def F116(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial g_3} = \frac{\partial L}{\partial h} \odot s$."""
    it.derives(BLOCK)


def F117(it: Evidence) -> None:
    r"""$\text{SiLU}'(x) = \sigma(x)(1 + x(1 - \sigma(x)))$."""
    it.derives(rf"{SILU}; given x \in \mathbb{{R}}; factor x")


def F118(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial g_1} = \frac{\partial L}{\partial s} \odot
    \text{SiLU}'(g_1)$."""
    it.derives(BLOCK)


def F119(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_1} = x_\text{norm}^\top \frac{\partial L}{\partial
    g_1}$, $\frac{\partial L}{\partial W_3} = x_\text{norm}^\top \frac{\partial
    L}{\partial g_3}$, $\frac{\partial L}{\partial W_2} = h^\top \frac{\partial
    L}{\partial \text{out}}$.

    This holds if both factors are flattened to B·S rows, as in the listing. If they
    have the batch axis that the text gives them, so do the products."""
    it.derives(BLOCK)
    it.elsewhere(same(np.swapaxes(X, 1, 2) @ expected()["g1"], expected()["W1"]))


def F120(it: Evidence) -> None:
    r"""The formulas are the backward of the block.

    The gradient of its input, $\frac{\partial L}{\partial x} = \frac{\partial
    L}{\partial g_1} W_1^\top + \frac{\partial L}{\partial g_3} W_3^\top$, is in the
    listing only."""
    it.left_out(np.abs(expected()["x"]).max())
    it.derives_right(BLOCK)


def F121(it: Evidence) -> None:
    """The listing runs.

    `d` and `d_ff` are not defined: `NameError`. With `d, d_ff = W1.shape` it runs."""

    def weight(**sizes: int) -> Any:
        rows = "found = x.reshape(-1, d).T @ dg1.reshape(-1, d_ff)"
        return run(rows, x=X, dg1=expected()["g1"], **sizes)["found"]

    it.as_printed(not raises(NameError, weight))
    it.right(not {"d", "d_ff"} & set(inputs()))
    it.right(same(weight(d=7, d_ff=11), expected()["W1"]))
    it.right(all(same(ran()[n], expected()[n]) for n in RETURNED))


def F122(it: Evidence) -> None:
    """The first line is the gradient of h, [B, S, $d_{ff}$]."""
    computes(it, "h")


def F123(it: Evidence) -> None:
    """The gradient of h, times g3 and times s, is the gradient of s and of g3."""
    computes(it, "s", "g3")


def F124(it: Evidence) -> None:
    """Lines 4 and 5 are SiLU's derivative, σ (1 + g1 (1 − σ)).

    It is finite for the largest and the smallest inputs too."""
    for x in (X @ W1, np.array([-1e4, -800.0, 800.0, 1e4])):
        slope = vjp(silu, x, np.ones(x.shape))
        it.as_printed(same(slope_by_line(torch.tensor(x)).numpy(), slope))


def F125(it: Evidence) -> None:
    """The gradient of s, times that derivative, is the gradient of g1."""
    computes(it, "g1")


def F126(it: Evidence) -> None:
    """The rows of s times g3, transposed, times those of the output's gradient, are the
    gradient of W2, [$d_{ff}$, d].

    It computes h a second time in place of saving it."""
    computes(it, "W2")


def F127(it: Evidence) -> None:
    """The rows of the block's input, transposed, times those of the gradients of g1 and
    g3, are the gradients of W1 and W3, [d, $d_{ff}$]."""
    computes(it, "W1", "W3")


def F128(it: Evidence) -> None:
    """The gradients of g1 and g3, times the transposes of W1 and W3, add up to the
    input's, [B, S, d]."""
    computes(it, "x")


def F129(it: Evidence) -> None:
    """The backward has six matrix products: one for h, three for weights, two for the
    input.

    The forward has three, so the rule of two for one holds here."""
    calls = (lambda: steps(**inputs()), lambda: gated(*tensors(X, W1, W3, W2)))
    names = [[name for name, _ in operations(call)] for call in calls]
    backward, forward = (of.count("mm") + of.count("bmm") for of in names)
    it.as_printed(backward == 6)
    it.right(forward == 3)


def F130(it: Evidence) -> None:
    r"""SwiGLU's backward requires g1, g3, and SiLU(g1), saved from the forward.

    The listing takes all three. The third can be computed from the first, and then a
    third less is saved."""
    names = inputs()
    del names["s"]
    it.as_printed(raises(TypeError, lambda: steps(**names)))
    found = steps(s=names["g1"] * names["g1"].sigmoid(), **names)
    it.elsewhere(not all(same(found[n].numpy(), expected()[n]) for n in RETURNED))


def F131(it: Evidence) -> None:
    """These three are what the block saves.

    The listing's own comment adds the normalised input, 128 MiB per layer and 10 GiB in
    80. Autograd also saves h, 448 MiB per layer."""
    kept = [a for a in saved_by(gated, X, W1, W3, W2) if a.size in (X.size, 10 * 11)]
    three = [inputs()[name].numpy() for name in ("g1", "g3", "s")]

    def among(a: Any, arrays: Any) -> bool:
        return any(same(a.ravel(), b.ravel()) for b in arrays)

    others = [a for a in kept if not among(a, three)]
    it.left_out(sum(a.nbytes for a in others))
    it.right(
        len(others) == 2 and all(among(a, others) for a in (X, three[1] * three[2]))
    )
    it.right(8192 * 8192 * 2 == 128 * MIB and 80 * 128 * MIB == 10 * GIB)
    it.right(8192 * 28672 * 2 == 448 * MIB)


def F132(it: Evidence) -> None:
    """Each of the three has the shape [B, S, 28672]."""
    saved = of_a_layer()
    it.as_printed(saved["fed.activated.g"] == saved["fed.activated.u"])
    it.as_printed(saved["fed.activated.g"] == 8192 * 28672 * 2)
    it.as_printed(inputs()["s"].shape == inputs()["g1"].shape == (2, 5, 11))


def F133(it: Evidence) -> None:
    r"""$3 \times 8192 \times 28672 \times 2$ bytes are 1.33 GB, for each layer.

    They are 1.41 GB, or 1.3125 GiB."""
    it.right(SIZE == 3 * 8192 * 28672 * 2 == 3 * of_a_layer()["fed.activated.g"])
    it.as_printed(1.33 in (round(SIZE / 1e9, 2), round(SIZE / GIB, 2)))
    it.right(round(SIZE / 1e9, 2) == 1.41 and SIZE / GIB == 1.3125)


def F134(it: Evidence) -> None:
    """Across 80 layers they are 106 GB.

    They are 113 GB, or 105 GiB."""
    it.as_printed(106 in (round(80 * SIZE / 1e9), round(80 * SIZE / GIB)))
    it.right(round(80 * SIZE / 1e9) == 113 and 80 * SIZE == 105 * GIB)


def F135(it: Evidence) -> None:
    """The three arrays take 1.33 GB here, and 896 + 448 MB in the table of activations.

    The table's 1,344 is right in MiB. 1.33 GB is neither 1,344 MiB nor 1,344 MB."""
    table = 896 + 448
    it.clashes(round(table / 1000, 2) != 1.33 != round(table * MIB / GIB, 2))
    it.right(table == 1_344 and SIZE == table * MIB)


def F136(it: Evidence) -> None:
    """These arrays are often the dominant memory of activations.

    With FlashAttention they are two thirds of the text's table, 1,344 of 2,016 MiB.
    Without it A alone is four fifths, 8,192 of 10,208."""
    plain, flash = (sum(of_a_layer(flash=flash).values()) for flash in (False, True))
    it.as_printed(SIZE > flash / 2)
    it.elsewhere(SIZE > plain / 2)
    it.right(SIZE == 1_344 * MIB and 1_344 / 2_016 == 2 / 3 and 2_016 + 8_192 == 10_208)
    it.right(8_192 * MIB > plain / 2 and round(8_192 / 10_208, 1) == 0.8)


def F137(it: Evidence) -> None:
    """With FlashAttention, they are larger than the attention matrix too.

    FlashAttention does not store the matrix. Without it, the matrix is six times as
    large at 8,192 tokens; the three arrays exceed it below 1,344 tokens."""
    stored, a = (of_a_layer(of).get("attended.attended.a", 0) for of in (True, False))
    it.as_printed(0 < stored < SIZE or a < SIZE)
    it.right(stored == 0 and round(a / SIZE) == 6)
    it.right(3 * 28672 * 1_344 == 64 * 1_344**2 and 8_192 > 1_344)
