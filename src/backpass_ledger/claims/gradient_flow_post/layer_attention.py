"""The attention half of the backward of a layer (§6, phase 2)."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

from backpass.ops import flash_attention
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.layer_code import (
    RESHAPES,
    RETURNED,
    SHAPES,
    SIZES,
    all_right,
    attended,
    backward,
    flash,
    given,
    layer,
    right,
)
from backpass_ledger.claims.tools import numbers, same, torch

CLAIMS = """
F367  true          0  residual   operations/residual_stream  §6, phase 2, start
F368  true          0  attention  attention/heads             §6, phase 2, comment on heads
F369  false         9  attention  attention/heads             §6, phase 2, `attn_out_flat`
F370  caveat        4  attention  attention/heads             §6, phase 2, `grad_W_O`
F371  true          0  matmul     operations/linear           §6, phase 2, `grad_attn_out_flat`
F372  false         9  attention  attention/heads             §6, phase 2, `grad_attn_out`
F373  inconsistent  4  flash      attention/flash             §6, phase 2, flash attention, against §4.5
F374  left-out      2  flash      attention/flash             §6, phase 2, flash attention, mask and scale
F375  true          0  flash      attention/flash             §6, phase 2, flash attention, memory
F376  true          0  attention  attention/grouped_query     §6, phase 2, flash attention, shapes
F377  false         9  attention  attention/heads             §6, phase 2, `grad_Q_flat`
F378  false         9  attention  attention/heads             §6, phase 2, `grad_K_flat`
F379  false         9  attention  attention/heads             §6, phase 2, `grad_V_flat`
F380  caveat        4  matmul     operations/linear           §6, phase 2, `grad_W_Q` to `grad_W_V`
F381  caveat        4  attention  attention/heads             §6, phase 2, `grad_x_norm_attn`
F382  true          0  norms      operations/rms_norm         §6, phase 2, norm
F383  true          0  norms      operations/rms_norm         §6, phase 2, norm's weight
F384  true          0  residual   operations/residual_stream  §6, phase 2, sum
F385  true          0  notation   networks/llama              §6, result, shapes
"""

BUT_QKV = ("y", "dy")


def flat(name: str) -> Any:
    """Return the gradient of queries, keys, values, or attention's output as autograd
    gives it, with the heads of a token beside each other: [B, S, heads · d_k]."""
    return layer()[1][name].transpose(1, 2).flatten(2)


def projected(it: Evidence, name: str) -> None:
    """Compare the flattened gradient of queries, keys, or values, and the gradient of
    their weight."""
    mended = (*BUT_QKV, "d" + name)
    it.as_printed(same(backward(BUT_QKV)["flat_" + name], flat(name)))
    it.right(same(backward(mended)["flat_" + name], flat(name)))
    it.right("w_" + name in all_right(mended) - all_right(BUT_QKV))


def F367(it: Evidence) -> None:
    """The gradient of h_mid goes to attention's block and, as a copy, along the
    residual connection."""
    along = backward()["x"] - backward()["branch_1"]
    it.as_printed(right("attended") and same(along, layer()[1]["mid"], 1e-12))


def F368(it: Evidence) -> None:
    """The block's output is the heads, concatenated token by token, times $W_O$."""
    t, _ = layer()
    block = torch.cat(list(t["y"].unbind(1)), -1) @ t["w_o"]
    it.as_printed(same(block, t["mid"] - t["x"]))


def F369(it: Evidence) -> None:
    """A reshape of attention's output to [B, S, n_h · d_k] concatenates the heads.

    The array is [B, n_h, S, d_k], so the rows mix tokens, and the gradient of $W_O$ is
    wrong without an error. `.transpose(1, 2)` has to come first."""
    it.as_printed("w_o" in all_right())
    it.right("w_o" in all_right(("y",)) and "w_o" not in all_right(RESHAPES[1:]))


def F370(it: Evidence) -> None:
    """The gradient of $W_O$ is the flattened output of attention, transposed, times the
    gradient of the block.

    The product is right; as printed its first factor is not."""
    it.as_printed(right("w_o", mended=("y",)))
    it.elsewhere(right("w_o"))


def F371(it: Evidence) -> None:
    """The gradient of the concatenated heads is the block's, times $W_O$ transposed."""
    it.as_printed(same(backward()["joined"], flat("y")))


def F372(it: Evidence) -> None:
    """A reshape to [B, n_h, S, d_k] divides it among the heads.

    It has to be a reshape to [B, S, n_h, d_k] and `.transpose(1, 2)`. Without it the
    gradients of $W_Q$, $W_K$, $W_V$, the norm's weight, and x are wrong."""
    it.as_printed(right("y"))
    it.right(right("y", mended=("dy",)))
    lost = set(RETURNED) - all_right(("y", "dq", "dk", "dv"))
    it.right(lost == {"w_q", "w_k", "w_v", "x", "gamma_1"})


def F373(it: Evidence) -> None:
    """Flash attention's backward is called with the gradient, Q, K, V, and the
    logarithms of sums; in `§4.5` it saves its output as well.

    The output gives each row's sum of gradient times output, which softmax's gradient
    subtracts. Otherwise that number takes another pass over all weights."""
    t, passed = given(), []

    def noted(*arrays: Any) -> tuple[Any, ...]:
        passed.extend(arrays[1:])
        return flash(*arrays)

    backward(attention=noted)
    it.right([*map(id, passed)] == [id(t[name]) for name in (*"qkv", "lse")])
    _, kept = flash_attention.forward(*(numbers(1, 2, 5, 4, seed=i) for i in range(3)))
    it.clashes({*"qkvy", "lse"} <= set(kept._fields) and len(passed) == 4)
    # Values that pick out the weights.
    eye = torch.eye(SIZES["S"]).double().expand(2, 2, 5, 5)
    weights, dy = attended(t["q"], t["k"], eye)[0], layer()[1]["y"]
    again = weights * (dy @ t["v"].repeat_interleave(2, dim=1).mT)
    it.right(same((dy * t["y"]).sum(-1), again.sum(-1)))


def F374(it: Evidence) -> None:
    """The backward of flash attention is called with all that it needs.

    The call passes neither the causal mask nor the scale of the scores. With another
    choice of either, every gradient of attention changes."""
    for options in ({"causal": False}, {"scale": 6**0.5}):
        found = all_right(RESHAPES, attention=partial(flash, **options))
        it.left_out(len(set(RETURNED) - found))
        it.right(not found & {"w_q", "w_k", "w_v", "gamma_1", "x"})


def F375(it: Evidence) -> None:
    """The backward of flash attention takes memory that grows with S, not with S²."""

    def peak(s: int) -> int:
        q, k, v, dy = (numbers(1, 1, s, 8, seed=i) for i in range(4))
        _, kept = flash_attention.forward(q, k, v, tile=64)
        tracemalloc.start()
        flash_attention.backward(dy, kept)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    it.as_printed(peak(1024) < 2.5 * peak(512) and peak(1024) < 1024 * 1024 * 8)


def F376(it: Evidence) -> None:
    """It returns the gradient of Q as [B, n_h, S, d_k], and those of K and V, summed
    over the query heads that share them, as [B, n_kv, S, d_k]."""
    shapes = [tuple(backward(RESHAPES)[name].shape) for name in "qkv"]
    it.as_printed(shapes == [(2, 4, 5, 6), (2, 2, 5, 6), (2, 2, 5, 6)])
    it.as_printed(right(*"qkv", mended=RESHAPES))


def F377(it: Evidence) -> None:
    """A reshape of the queries' gradient to [B, S, n_h · d_k] is the projection's.

    The exchange of heads and tokens is missing, and the gradient of $W_Q$ is wrong."""
    projected(it, "q")


def F378(it: Evidence) -> None:
    """A reshape of the keys' gradient to [B, S, n_kv · d_k] is the projection's.

    The exchange of heads and tokens is missing, and the gradient of $W_K$ is wrong."""
    projected(it, "k")


def F379(it: Evidence) -> None:
    """A reshape of the values' gradient to [B, S, n_kv · d_k] is the projection's.

    The exchange of heads and tokens is missing, and the gradient of $W_V$ is wrong."""
    projected(it, "v")


def F380(it: Evidence) -> None:
    """The gradients of the three weights are the norm's output, transposed, times the
    flattened gradients.

    The products are right; as printed their second factors are not."""
    it.as_printed(right("w_q", "w_k", "w_v", mended=RESHAPES))
    it.elsewhere(bool({"w_q", "w_k", "w_v"} & all_right()))


def F381(it: Evidence) -> None:
    """The gradient of the norm's output is the sum of three products, with the
    transposes of $W_Q$, $W_K$, and $W_V$.

    The sum is right; as printed its terms are not."""
    it.as_printed(right("n1", mended=RESHAPES))
    it.elsewhere(right("n1"))


def F382(it: Evidence) -> None:
    """From a right gradient of its output, the lines of the norm give its input's."""
    branch = layer()[1]["x"] - layer()[1]["mid"]
    it.as_printed(same(backward(RESHAPES)["branch_1"], branch))


def F383(it: Evidence) -> None:
    """The gradient of the norm's weight is that of its output times the normalised
    input, summed over batch and positions; it is right if the first factor is."""
    it.as_printed(right("gamma_1", mended=RESHAPES))


def F384(it: Evidence) -> None:
    """The block's gradient is added to the one along the residual connection."""
    it.as_printed(right("x", mended=RESHAPES))
    it.as_printed(not same(backward(RESHAPES)["branch_1"], layer()[1]["x"], 1e-3))


def F385(it: Evidence) -> None:
    """Each returned gradient has the shape of its array; that of x is [B, S, d]."""
    it.as_printed(all(backward()[name].shape == SHAPES[name] for name in RETURNED))
