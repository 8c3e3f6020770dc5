"""The section on the SwiGLU block."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from backpass.ops import feed_forward
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.heads import SHAPES, tensors
from backpass_ledger.claims.gradient_flow_post.setting import (
    GIB,
    LLAMA,
    MIB,
    gated,
    of_a_layer,
)
from backpass_ledger.claims.tools import numbers, raises, run, same, torch, vjp

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


RETURNED = ("x", "W1", "W2", "W3")
X, W1, W3 = numbers(2, 5, 7), numbers(7, 11), numbers(7, 11, seed=1)
W2, G = numbers(11, 7, seed=2), numbers(2, 5, 7, seed=3)
SIZE = 3 * 8192 * 28672 * 2  # bytes, as the box has it


def silu(x: Any) -> Any:
    """PyTorch's SiLU."""
    return torch.nn.functional.silu(x)


def slope(x: Any) -> Any:
    """Return SiLU's derivative by autograd, at each element of x."""
    dy = numbers(*x.shape, seed=4)
    return vjp(silu, x, dy) / dy


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


def ran() -> dict[str, Any]:
    """Return the listing's gradients as arrays."""
    return {name: array.numpy() for name, array in steps(**inputs()).items()}


@cache
def expected() -> dict[str, Any]:
    """Return the gradients by autograd, of what the block computes on its way too."""
    g1, g3 = X @ W1, X @ W3
    s = silu(tensors(g1)[0]).numpy()
    names = ("x", "W1", "W3", "W2")
    found = dict(zip(names, vjp(gated, [X, W1, W3, W2], G), strict=True))

    def rest(g1: Any, g3: Any) -> Any:
        return (silu(g1) * g3) @ tensors(W2)[0]

    found["g1"], found["g3"] = vjp(rest, [g1, g3], G)
    found["s"] = vjp(lambda s: (s * tensors(g3)[0]) @ tensors(W2)[0], s, G)
    found["h"] = vjp(lambda h: h @ tensors(W2)[0], s * g3, G)
    return found


def F111(it: Evidence) -> None:
    r"""$\text{FFN}(x) = (\text{SiLU}(x W_1) \odot (x W_3)) W_2$ is Llama's block."""
    y, _ = feed_forward.forward(X, W3, W2, w_gate=W1, activation="swiglu")
    it.as_printed(same(gated(*tensors(X, W1, W3, W2)).numpy(), y))


def F112(it: Evidence) -> None:
    r"""$W_1$ and $W_3$ are $d \times d_{ff}$ and $W_2$ is $d_{ff} \times d$, with
    $d_{ff} = 28672$ for Llama 3 70B."""
    it.as_printed(LLAMA.feed_forward == 28672)
    for name, shape in (
        ("gate", (8192, 28672)),
        ("up", (8192, 28672)),
        ("down", (28672, 8192)),
    ):
        it.as_printed(SHAPES[f"layers.0.mlp.{name}_proj.weight"][::-1] == shape)


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
    it.as_printed(expected()["h"].shape == (2, 5, 11))


def F115(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial s} = \frac{\partial L}{\partial h} \odot g_3$."""
    it.as_printed(same(expected()["h"] * (X @ W3), expected()["s"]))


def F116(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial g_3} = \frac{\partial L}{\partial h} \odot s$."""
    s = silu(tensors(X @ W1)[0]).numpy()
    it.as_printed(same(expected()["h"] * s, expected()["g3"]))


def F117(it: Evidence) -> None:
    r"""$\text{SiLU}'(x) = \sigma(x)(1 + x(1 - \sigma(x)))$."""
    import sympy

    x = sympy.Symbol("x", real=True)
    sigma = 1 / (1 + sympy.exp(-x))
    it.as_printed(
        sympy.simplify(sympy.diff(x * sigma, x) - sigma * (1 + x * (1 - sigma))) == 0
    )


def F118(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial g_1} = \frac{\partial L}{\partial s} \odot
    \text{SiLU}'(g_1)$."""
    g1 = X @ W1
    it.as_printed(same(expected()["s"] * slope(g1), expected()["g1"]))


def F119(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_1} = x_\text{norm}^\top \frac{\partial L}{\partial
    g_1}$, $\frac{\partial L}{\partial W_3} = x_\text{norm}^\top \frac{\partial
    L}{\partial g_3}$, $\frac{\partial L}{\partial W_2} = h^\top \frac{\partial
    L}{\partial \text{out}}$.

    All factors have to be flattened to B·S rows, as the listing does. With the axis of
    the batch that the text gives them, the products have it too. The block's formula
    calls $x_\text{norm}$ x.
    """
    e, h = expected(), silu(tensors(X @ W1)[0]).numpy() * (X @ W3)
    for x, g, name in ((X, e["g1"], "W1"), (X, e["g3"], "W3"), (h, G, "W2")):
        rows = x.reshape(10, -1), g.reshape(10, -1)
        it.as_printed(same(rows[0].T @ rows[1], e[name]))
        it.elsewhere(same(np.swapaxes(x, 1, 2) @ g, e[name]))


def F120(it: Evidence) -> None:
    r"""The formulas are the backward of the block.

    The gradient of its input, $\bar{g}_1 W_1^\top + \bar{g}_3 W_3^\top$, is in the
    listing only.
    """
    e = expected()
    it.left_out(np.abs(e["x"]).max())
    it.right(same(e["g1"] @ W1.T + e["g3"] @ W3.T, e["x"]))


def F121(it: Evidence) -> None:
    """The listing runs.

    `d` and `d_ff` are neither arguments nor defined: `NameError`. With
    `d, d_ff = W1.shape` it runs.
    """

    def weight(**sizes: int) -> Any:
        rows = "found = x.reshape(-1, d).T @ dg1.reshape(-1, d_ff)"
        return run(rows, x=X, dg1=expected()["g1"], **sizes)["found"]

    it.as_printed(not raises(NameError, weight))
    it.right(raises(NameError, weight) and not {"d", "d_ff"} & set(inputs()))
    d, d_ff = W1.shape
    it.right(same(weight(d=d, d_ff=d_ff), expected()["W1"]))
    it.right(all(same(ran()[n], expected()[n]) for n in RETURNED))


def F122(it: Evidence) -> None:
    """The first line is the gradient of h, [B, S, $d_{ff}$]."""
    it.as_printed(same(ran()["h"], expected()["h"]))


def F123(it: Evidence) -> None:
    """The gradient of h, times g3 and times s, is the gradient of s and of g3."""
    it.as_printed(same(ran()["s"], expected()["s"]))
    it.as_printed(same(ran()["g3"], expected()["g3"]))


def F124(it: Evidence) -> None:
    """Lines 4 and 5 are SiLU's derivative, σ (1 + g1 (1 − σ)).

    It is finite for the largest and the smallest inputs too.
    """
    it.as_printed(same(slope_by_line(tensors(X @ W1)[0]).numpy(), slope(X @ W1)))
    far = torch.tensor([-1e4, -800.0, 800.0, 1e4], dtype=torch.float64)
    it.as_printed(same(slope_by_line(far).numpy(), slope(far.numpy())))


def F125(it: Evidence) -> None:
    """The gradient of s, times that derivative, is the gradient of g1."""
    it.as_printed(same(ran()["g1"], expected()["g1"]))


def F126(it: Evidence) -> None:
    """The rows of s times g3, transposed, times those of the output's gradient, are the
    gradient of W2, [$d_{ff}$, d].

    It computes h a second time, one product an element, in place of saving it.
    """
    it.as_printed(same(ran()["W2"], expected()["W2"]))


def F127(it: Evidence) -> None:
    """The rows of the block's input, transposed, times those of the gradients of g1 and
    g3, are the gradients of W1 and W3, [d, $d_{ff}$]."""
    it.as_printed(same(ran()["W1"], expected()["W1"]))
    it.as_printed(same(ran()["W3"], expected()["W3"]))


def F128(it: Evidence) -> None:
    """The gradients of g1 and g3, times the transposes of W1 and W3, add up to the
    input's, [B, S, d]."""
    it.as_printed(same(ran()["x"], expected()["x"]))


def F129(it: Evidence) -> None:
    """The backward has six matrix products: one for h, three for weights, two for the
    input.

    The forward has three, so the rule of two for one holds here.
    """
    from torch.utils.flop_counter import FlopCounterMode

    def flops(function: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            function()
        return int(counter.get_total_flops())

    one = 2 * 2 * 5 * 7 * 11
    it.as_printed(flops(lambda: steps(**inputs())) == 6 * one)
    it.right(flops(lambda: gated(*tensors(X, W1, W3, W2))) == 3 * one)


def F130(it: Evidence) -> None:
    r"""SwiGLU's backward requires g1, g3, and SiLU(g1), saved from the forward.

    The listing takes all three. The third is an element-wise function of the first:
    without it the same gradients come out, and a third less is saved.
    """
    names = inputs()
    del names["s"]
    it.as_printed(raises(TypeError, lambda: steps(**names)))
    found = steps(s=names["g1"] * names["g1"].sigmoid(), **names)
    same_gradients = all(same(found[n].numpy(), ran()[n]) for n in RETURNED)
    it.elsewhere(not same_gradients)


def F131(it: Evidence) -> None:
    """These three are what the block saves.

    The listing's own comment adds the normalised input, 128 MiB a layer and 10 GiB in
    80. Plain autograd also saves h, another 448 MiB a layer.
    """
    kept: dict[int, Any] = {}
    x, w1, w3, w2 = (t.requires_grad_() for t in tensors(X, W1, W3, W2))

    def pack(t: Any) -> Any:
        kept[t.data_ptr()] = (
            t.detach().numpy().reshape(10, -1) if t.numel() in (70, 110) else None
        )
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        gated(x, w1, w3, w2)
    activations = [a for a in kept.values() if a is not None]
    names = inputs()
    listed = [names[name].numpy().reshape(10, -1) for name in ("g1", "g3", "s")]
    others = [a for a in activations if not any(same(a, b) for b in listed)]
    it.left_out(sum(a.nbytes for a in others))
    h = listed[1] * listed[2]
    it.right(len(others) == 2 and sum(same(a, h) for a in others) == 1)
    it.right(any(same(a, X.reshape(10, 7)) for a in others))
    it.right(8192 * 8192 * 2 == 128 * MIB and 80 * 128 * MIB == 10 * GIB)
    it.right(8192 * 28672 * 2 == 448 * MIB)


def F132(it: Evidence) -> None:
    """Each of the three has the shape [B, S, 28672]."""
    saved = of_a_layer()
    it.as_printed(
        saved["fed.activated.g"] == saved["fed.activated.u"] == 8192 * 28672 * 2
    )
    it.as_printed(inputs()["s"].shape == inputs()["g1"].shape == (2, 5, 11))


def F133(it: Evidence) -> None:
    r"""$3 \times 8192 \times 28672 \times 2$ bytes are 1.33 GB, for each layer.

    They are 1.41 GB, or 1.3125 GiB.
    """
    it.right(SIZE == 3 * 8192 * 28672 * 2 == 3 * of_a_layer()["fed.activated.g"])
    it.as_printed(1.33 in (round(SIZE / 1e9, 2), round(SIZE / GIB, 2)))
    it.right(round(SIZE / 1e9, 2) == 1.41 and SIZE / GIB == 1.3125)


def F134(it: Evidence) -> None:
    """Across 80 layers they are 106 GB.

    They are 113 GB, or 105 GiB.
    """
    it.as_printed(106 in (round(80 * SIZE / 1e9), round(80 * SIZE / GIB)))
    it.right(round(80 * SIZE / 1e9) == 113 and 80 * SIZE == 105 * GIB)


def F135(it: Evidence) -> None:
    """The three arrays take 1.33 GB here, and 896 + 448 MB in the table of activations.

    The table's 1,344 is right in MiB. 1.33 GB is neither 1,344 MiB nor 1,344 MB.
    """
    table = 896 + 448
    it.clashes(round(table / 1000, 2) != 1.33 != round(table * MIB / GIB, 2))
    it.right(table == 1_344 and SIZE == table * MIB)


def F136(it: Evidence) -> None:
    """These arrays are often the dominant memory of activations.

    With FlashAttention they are two thirds of the text's table, 1,344 of 2,016 MiB.
    Without it A alone is four fifths, 8,192 of 10,208.
    """
    plain, flash = (sum(of_a_layer(flash=flash).values()) for flash in (False, True))
    it.as_printed(SIZE > flash / 2)
    it.elsewhere(SIZE > plain / 2)
    it.right(SIZE == 1_344 * MIB and round(1_344 / 2_016, 2) == 0.67)
    it.right(8_192 * MIB > plain / 2 and round(8_192 / 10_208, 1) == 0.8)


def F137(it: Evidence) -> None:
    """With FlashAttention, they are larger than the attention matrix too.

    FlashAttention does not store the attention matrix. Without it, the matrix is six
    times as large at 8,192 tokens; the three arrays exceed it below 1,344 tokens.
    """
    a = {
        flash: of_a_layer(flash=flash).get("attended.attended.a", 0)
        for flash in (False, True)
    }
    it.as_printed(0 < a[True] < SIZE or a[False] < SIZE)
    it.right(a[True] == 0 and round(a[False] / SIZE) == 6)
    it.right(3 * 28672 * 1_344 == 64 * 1_344**2 and 8_192 > 1_344)
