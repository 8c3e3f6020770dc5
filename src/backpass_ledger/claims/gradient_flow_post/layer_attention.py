"""The attention half of the backward of a layer (§6, phase 2)."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

from backpass.ops import flash_attention
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.layer_code import (
    CODE,
    MENDED,
    RETURNED,
    SIZES,
    WEIGHTS,
    all_right,
    attended,
    flash,
    layer,
    listing,
    right,
)
from backpass_ledger.claims.tools import numbers, same

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


EVERY = tuple(MENDED)
BUT_QKV = ("attn_out_flat", "grad_attn_out")


def flat(name: str) -> Any:
    """Return the gradient of queries, keys, values, or attention's output as autograd
    gives it, with the heads of a token beside each other: [B, S, heads · d_k]."""
    return layer()["grad_" + name].transpose(1, 2).flatten(2).numpy()


def F367(it: Evidence) -> None:
    """The gradient of h_mid goes to attention's block and, as a copy, along the
    residual connection."""
    found = listing()
    it.as_printed(
        same(found["grad_attn_block"].numpy(), layer()["grad_attn_final"].numpy())
    )
    along = found["grad_x"] - found["grad_x_from_attn"]
    it.as_printed(same(along.numpy(), layer()["grad_h_mid"].numpy(), 1e-12))


def F368(it: Evidence) -> None:
    """The block's output is the heads, concatenated token by token, times $W_O$."""
    import torch

    heads = list(layer()["attn_out"].unbind(1))
    made = torch.cat(heads, dim=-1) @ layer()["W_O"]
    it.as_printed(same(made.numpy(), (layer()["h_mid"] - layer()["x"]).numpy()))


def F369(it: Evidence) -> None:
    """`attn_out.reshape(B, S, n_h * d_k)` concatenates the heads.

    The array is [B, n_h, S, d_k]. A reshape keeps the order in memory, so its rows mix
    tokens, and the gradient of $W_O$ is wrong without an error:
    `attn_out.transpose(1, 2).reshape(B, S, n_h * d_k)`.
    """
    it.as_printed("W_O" in all_right(()))
    it.right("W_O" in all_right(("attn_out_flat",)))
    it.right("W_O" not in all_right(tuple(n for n in EVERY if n != "attn_out_flat")))


def F370(it: Evidence) -> None:
    """The gradient of $W_O$ is the flattened output of attention, transposed, times
    the gradient of the block.

    The product is right; as printed its first factor is not.
    """
    it.as_printed(right("W_O", listing(("attn_out_flat",))))
    it.elsewhere(right("W_O", listing()))


def F371(it: Evidence) -> None:
    """`grad_attn_block @ W_O.T` is the gradient of the concatenated heads."""
    it.as_printed(same(listing()["grad_attn_out_flat"].numpy(), flat("attn_out")))


def F372(it: Evidence) -> None:
    """`grad_attn_out_flat.reshape(B, n_h, S, d_k)` divides it among the heads.

    It has to be `.reshape(B, S, n_h, d_k).transpose(1, 2)`. Without it every later
    gradient is wrong: those of queries, keys, values, three weights, the norm, and x.
    """
    it.as_printed(right("attn_out", listing()))
    it.right(right("attn_out", listing(("grad_attn_out",))))
    others = tuple(name for name in EVERY if name != "grad_attn_out")
    lost = set(RETURNED) - all_right(others)
    it.right(lost == {"W_Q", "W_K", "W_V", "x", "gamma_attn"})


def F373(it: Evidence) -> None:
    """Flash attention's backward is called with the gradient, Q, K, V, and the
    logarithms of sums; in `§4.5` it saves its output as well.

    The output gives each row's sum of gradient times output, which softmax's gradient
    subtracts. Without it that number takes another pass over all weights.
    """
    import torch

    q, k, v = (layer()[name] for name in "QKV")
    y, _ = attended(q, k, v)
    dy = layer()["grad_attn_out"]
    eye = torch.eye(SIZES["S"], dtype=torch.float64).expand(2, 2, 5, 5)
    weights, _ = attended(q, k, eye)  # values that pick out the weights
    again = (weights * (dy @ v.repeat_interleave(2, dim=1).mT)).sum(-1)
    it.right(same((dy * y).sum(-1).numpy(), again.numpy()))
    given = re.search(r"= flash_attn_backward\((.*?)\)", CODE, re.DOTALL)
    assert given
    names = [name.strip() for name in given[1].split(",")]
    it.right(names == ["grad_attn_out", "Q", "K", "V", "attn_lse"])
    _, kept = flash_attention.forward(*(numbers(1, 2, 5, 4, seed=i) for i in range(3)))
    it.right({"q", "k", "v", "y", "lse"} <= set(kept._fields))
    it.clashes("y" in kept._fields and "attn_out" not in names)


def F374(it: Evidence) -> None:
    """The backward of flash attention is called with all that it needs.

    The call passes neither the causal mask nor the scale of the scores. With another
    choice of either, every gradient of attention changes.
    """
    every = tuple(MENDED)
    for options in ({"causal": False}, {"scale": 6**0.5}):
        wrong = set(RETURNED) - all_right(
            every, backward=lambda *given, o=options: flash(*given, **o)
        )
        it.left_out(len(wrong - {"W_O"}))
        it.right({"W_Q", "W_K", "x"} <= wrong)


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

    it.as_printed(peak(1024) < 2.5 * peak(512))
    it.as_printed(peak(1024) < 1024 * 1024 * 8)


def F376(it: Evidence) -> None:
    """It returns the gradient of Q as [B, n_h, S, d_k], and those of K and V, summed
    over the query heads that share them, as [B, n_kv, S, d_k]."""
    found = listing(EVERY)
    it.as_printed(tuple(found["grad_Q"].shape) == (2, 4, 5, 6))
    for name in "KV":
        it.as_printed(tuple(found["grad_" + name].shape) == (2, 2, 5, 6))
        it.as_printed(right(name, found))


def F377(it: Evidence) -> None:
    """`grad_Q.reshape(B, S, n_h * d_k)` is the gradient of the projection's output.

    The exchange of heads and tokens is missing: `grad_Q.transpose(1, 2)` first. The
    gradient of $W_Q$ is wrong without it.
    """
    it.as_printed(same(listing(BUT_QKV)["grad_Q_flat"].numpy(), flat("Q")))
    mended = (*BUT_QKV, "grad_Q_flat")
    it.right(same(listing(mended)["grad_Q_flat"].numpy(), flat("Q")))
    it.right("W_Q" in all_right(mended) and "W_Q" not in all_right(BUT_QKV))


def F378(it: Evidence) -> None:
    """`grad_K.reshape(B, S, n_kv * d_k)` is the gradient of the projection's output.

    The exchange of heads and tokens is missing here too; the gradient of $W_K$ is
    wrong.
    """
    it.as_printed(same(listing(BUT_QKV)["grad_K_flat"].numpy(), flat("K")))
    mended = (*BUT_QKV, "grad_K_flat")
    it.right(same(listing(mended)["grad_K_flat"].numpy(), flat("K")))
    it.right("W_K" in all_right(mended) and "W_K" not in all_right(BUT_QKV))


def F379(it: Evidence) -> None:
    """`grad_V.reshape(B, S, n_kv * d_k)` is the gradient of the projection's output.

    The exchange of heads and tokens is missing here too; the gradient of $W_V$ is
    wrong.
    """
    it.as_printed(same(listing(BUT_QKV)["grad_V_flat"].numpy(), flat("V")))
    mended = (*BUT_QKV, "grad_V_flat")
    it.right(same(listing(mended)["grad_V_flat"].numpy(), flat("V")))
    it.right("W_V" in all_right(mended) and "W_V" not in all_right(BUT_QKV))


def F380(it: Evidence) -> None:
    """The gradients of the three weights are the norm's output, transposed, times the
    flattened gradients.

    The products are right; as printed their second factors are not.
    """
    three = {"W_Q", "W_K", "W_V"}
    it.as_printed(three <= all_right(EVERY))
    it.elsewhere(bool(three & all_right(())))


def F381(it: Evidence) -> None:
    """The gradient of the norm's output is the sum of three products, with the
    transposes of $W_Q$, $W_K$, and $W_V$.

    The sum is right; as printed its terms are not.
    """
    it.as_printed(right("x_norm_attn", listing(EVERY)))
    it.elsewhere(right("x_norm_attn", listing()))


def F382(it: Evidence) -> None:
    """From a right gradient of its output, the lines of the norm give its input's."""
    along = layer()["grad_x"] - layer()["grad_h_mid"]
    it.as_printed(same(listing(EVERY)["grad_x_from_attn"].numpy(), along.numpy()))


def F383(it: Evidence) -> None:
    """`(grad_x_norm_attn * x_hat_a).sum(dim=(0, 1))` is the gradient of the norm's
    weight, if `grad_x_norm_attn` is right."""
    it.as_printed(right("gamma_attn", listing(EVERY)))


def F384(it: Evidence) -> None:
    """The block's gradient is added to the one along the residual connection."""
    it.as_printed(right("x", listing(EVERY)))
    alone = listing(EVERY)["grad_x_from_attn"].numpy()
    it.as_printed(not same(alone, layer()["grad_x"].numpy(), 1e-3))


def F385(it: Evidence) -> None:
    """Each returned gradient has the shape of its weight, and that of x is
    [B, S, d]."""
    found = listing()
    it.as_printed(
        all(found[f"grad_{n}"].shape == layer()[n].shape for n in ("x", *WEIGHTS))
    )
