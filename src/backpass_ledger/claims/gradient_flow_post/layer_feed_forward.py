"""The feed-forward half of the backward of a layer (§6, phase 1)."""

from __future__ import annotations

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.layer_code import (
    FEED_FORWARD,
    all_right,
    layer,
    listing,
    right,
)
from backpass_ledger.claims.tools import same

CLAIMS = """
F355  true  0  residual      operations/residual_stream  §6, phase 1, start
F356  true  0  feed-forward  operations/feed_forward     §6, phase 1, product
F357  true  0  feed-forward  operations/feed_forward     §6, phase 1, `grad_h`
F358  true  0  feed-forward  operations/feed_forward     §6, phase 1, `grad_W2`
F359  true  0  feed-forward  operations/feed_forward     §6, phase 1, factors
F360  true  0  activations   operations/activations      §6, phase 1, SiLU
F361  true  0  feed-forward  operations/feed_forward     §6, phase 1, `grad_W1`, `grad_W3`
F362  true  0  feed-forward  operations/feed_forward     §6, phase 1, block's input
F363  true  0  norms         operations/rms_norm         §6, phase 1, norm
F364  true  0  norms         operations/rms_norm         §6, phase 1, norm's weight
F365  true  0  residual      operations/residual_stream  §6, phase 1, sum
F366  true  0  feed-forward  operations/feed_forward     §6, phase 1, whole
"""


def F355(it: Evidence) -> None:
    """The gradient of the output goes to the feed-forward block and, as a copy, along
    the residual connection."""
    found = listing()
    it.as_printed(right("ffn_out", found))
    along = found["grad_h_mid"] - found["grad_h_mid_from_ffn"]
    it.as_printed(same(along.numpy(), layer()["output"].numpy(), 1e-12))


def F356(it: Evidence) -> None:
    """`silu_g1 * g3` recomputes the input of $W_2$."""
    it.as_printed(same(listing()["h"].numpy(), layer()["h"].numpy(), 1e-15))


def F357(it: Evidence) -> None:
    """`grad_ffn_out @ W_2.T` is the gradient of that input."""
    it.as_printed(right("h", listing()))


def F358(it: Evidence) -> None:
    """`h.reshape(-1, d_ff).T @ grad_ffn_out.reshape(-1, d)` is the gradient of
    $W_2$."""
    it.as_printed(right("W_2", listing()))


def F359(it: Evidence) -> None:
    """`grad_h * g3` and `grad_h * silu_g1` are the gradients of SiLU's output and of
    $g_3$."""
    found = listing()
    it.as_printed(same(found["grad_silu"].numpy(), layer()["grad_silu_g1"].numpy()))
    it.as_printed(right("g3", found))


def F360(it: Evidence) -> None:
    r"""With $\sigma (1 + g_1 (1 - \sigma))$ as SiLU's derivative, `grad_g1` is the
    gradient of $g_1$."""
    it.as_printed(right("g1", listing()))


def F361(it: Evidence) -> None:
    """The gradients of $W_1$ and $W_3$ are the norm's output, transposed, times those
    of $g_1$ and $g_3$."""
    found = listing()
    it.as_printed(right("W_1", found) and right("W_3", found))


def F362(it: Evidence) -> None:
    """`grad_g1 @ W_1.T + grad_g3 @ W_3.T` is the gradient of the norm's output."""
    it.as_printed(right("x_norm_ffn", listing()))


def F363(it: Evidence) -> None:
    """The four lines of the norm give its input's gradient: `(dx_hat - x_hat * proj) /
    rms_ffn`."""
    along = layer()["grad_h_mid"] - layer()["output"]
    it.as_printed(same(listing()["grad_h_mid_from_ffn"].numpy(), along.numpy()))


def F364(it: Evidence) -> None:
    """`(grad_x_norm_ffn * x_hat).sum(dim=(0, 1))` is the gradient of the norm's
    weight."""
    it.as_printed(right("gamma_ffn", listing()))


def F365(it: Evidence) -> None:
    """The block's gradient is added to the one along the residual connection."""
    it.as_printed(right("h_mid", listing()))


def F366(it: Evidence) -> None:
    """The feed-forward half gives the right gradients, as printed."""
    it.as_printed(all_right(()) >= FEED_FORWARD and right("h_mid", listing()))
