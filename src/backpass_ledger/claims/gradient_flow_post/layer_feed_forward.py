"""The feed-forward half of the backward of a layer (§6, phase 1)."""

from __future__ import annotations

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.layer_code import (
    FEED_FORWARD,
    backward,
    layer,
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
    along = backward()["mid"] - backward()["branch_2"]
    it.as_printed(right("fed") and same(along, layer()[0]["dout"], 1e-12))


def F356(it: Evidence) -> None:
    """The product of SiLU's output and $g_3$ is the input of $W_2$, recomputed."""
    t, _ = layer()
    it.as_printed(same(t["act"] * t["up"], t["h"], 1e-15))


def F357(it: Evidence) -> None:
    """The gradient of that input is the output's, times $W_2$ transposed."""
    it.as_printed(right("h"))


def F358(it: Evidence) -> None:
    """The gradient of $W_2$ is its input, transposed, times the output's gradient, both
    with a row for each token."""
    it.as_printed(right("w_down"))


def F359(it: Evidence) -> None:
    """The gradient of the product, times $g_3$ and times SiLU's output, is the gradient
    of SiLU's output and of $g_3$."""
    it.as_printed(right("act", "up"))


def F360(it: Evidence) -> None:
    r"""SiLU's derivative $\sigma (1 + g_1 (1 - \sigma))$ gives $g_1$'s gradient."""
    it.as_printed(right("gate"))


def F361(it: Evidence) -> None:
    """The gradients of $W_1$ and $W_3$ are the norm's output, transposed, times those
    of $g_1$ and $g_3$."""
    it.as_printed(right("w_gate", "w_up"))


def F362(it: Evidence) -> None:
    r"""The norm's output's gradient sums products with $W_1^\top$ and $W_3^\top$."""
    it.as_printed(right("n2"))


def F363(it: Evidence) -> None:
    """The four lines of the norm give its input's gradient."""
    branch = layer()[1]["mid"] - layer()[0]["dout"]
    it.as_printed(same(backward()["branch_2"], branch))


def F364(it: Evidence) -> None:
    """The gradient of the norm's weight is that of its output times the normalised
    input, summed over batch and positions."""
    it.as_printed(right("gamma_2"))


def F365(it: Evidence) -> None:
    """The block's gradient is added to the one along the residual connection."""
    it.as_printed(right("mid"))


def F366(it: Evidence) -> None:
    """The feed-forward half gives the right gradients, as printed."""
    it.as_printed(right(*FEED_FORWARD, "mid"))
