"""The summary, and the cost of a training step."""

from __future__ import annotations

from operator import matmul
from typing import Any

from backpass import cost
from backpass.claims.evidence import CAVEAT, INCONSISTENT, TRUE, Evidence
from backpass.claims.record import claim
from backpass.claims.tools import numbers
from backpass.claims.twice_note.product import product_flops
from backpass.claims.twice_note.transformers import attend
from backpass.interpreters import counting


@claim("cause", TRUE, topic="chain rule", page="cost/ratio")
def W51(it: Evidence) -> None:
    """The factor 2 comes from the structure of backpropagation.

    More exactly, from products of two factors, as weights times activations or
    activations times activations. One product after another keeps it.
    """

    def block(x: Any, q: Any, k: Any, v: Any, up: Any, down: Any) -> Any:
        y = attend(x @ q, x @ k, x @ v)
        return (y @ up).tanh() @ down

    shapes = (6, 5), (5, 4), (5, 4), (5, 4), (4, 9), (9, 3)
    forward, backward = product_flops(block, *shapes)
    it.as_printed(backward == 2 * forward)


@claim("the two lines", TRUE, topic="FLOPs", page="cost/ratio")
def W52(it: Evidence) -> None:
    """A linear layer has one product in the forward and two in the backward, for the
    gradients of input and weight.

    Both gradients have to be wanted.
    """
    one, two = product_flops(matmul, (5, 7), (7, 3))
    it.as_printed((one, two) == (2 * 5 * 7 * 3, 2 * 2 * 5 * 7 * 3))


@claim("universal", CAVEAT, topic="FLOPs", page="cost/ratio", harm=5)
def W53(it: Evidence) -> None:
    """The factor 2 applies universally to networks with linear layers.

    It does where every layer is trained. A frozen layer below the trained ones has no
    backward, one above them only its input's gradient; with low-rank adapters on frozen
    weights the ratio is near 1.
    """

    def adapted(x: Any, w: Any, a: Any, b: Any) -> Any:
        return x @ w + x @ a @ b

    shapes = (50, 40), (40, 40), (40, 1), (1, 40)
    forward, backward = product_flops(adapted, *shapes)
    it.as_printed(backward == 2 * forward)
    forward, backward = product_flops(adapted, *shapes, frozen=(1,))
    it.elsewhere(backward == 2 * forward)
    it.right(1 < backward / forward < 1.1)


@claim("reliable", CAVEAT, topic="FLOPs", page="cost/ratio", harm=4)
def W54(it: Evidence) -> None:
    """The factor 2 is very reliable for estimating the FLOPs of training transformers.

    It is for model FLOPs of full training: within 0.2 % for GPT-2 and Llama 3 8B. For
    what the hardware runs it is up to a half too low: at 131,072 tokens with flash
    attention and recomputed layers the ratio of Llama 3 8B is 3.33.
    """
    for model, s in (("gpt2", 1024), ("llama-3-8b", 8192)):
        it.as_printed(100 * abs(cost.tally(model, 1, s).ratio() / 2 - 1) < 0.2)
    long = cost.tally("llama-3-8b", 1, 131_072, flash=True, recompute=1)
    it.elsewhere(abs(long.ratio("products") / 2 - 1) < 0.1)
    it.right(round(long.ratio("products"), 2) == 3.33)


@claim("in parentheses", CAVEAT, topic="attention", page="cost/ratio", harm=2)
def W55(it: Evidence) -> None:
    r"""Transformers are built from linear layers.

    Attention's two products are between activations. Unmasked, they are as many FLOPs
    as those with a layer's weights at $s = 6h$.
    """
    step = cost.tally("gpt2-xl", 1, 1024).only(lambda row: row.part == "layer")
    products = step.by(lambda row: row.term.call, "products-whole")
    per_pair = products["attention"]["forward"] / 1024**2
    everything = step.flops("products-whole")["forward"]
    per_token = (everything - products["attention"]["forward"]) / 1024
    it.as_printed(per_pair * 1024**2 < per_token * 1024)
    it.right(per_token / per_pair == 6 * 1600)
    it.elsewhere(per_pair * (7 * 1600) ** 2 < per_token * 7 * 1600)


@claim("last line", TRUE, topic="FLOPs", page="cost/ratio")
def W56(it: Evidence) -> None:
    """Training costs about three times the forward.

    Forward and backward of a plain step: 2.9969 times for GPT-2 at 1,024 tokens.
    """
    flops = cost.tally("gpt2", 1, 1024).flops()
    it.as_printed(round(sum(flops.values()) / flops["forward"]) == 3)
    it.right(round(sum(flops.values()) / flops["forward"], 4) == 2.9969)


@claim("last line", INCONSISTENT, topic="optimiser", page="numerics/optimiser", harm=5)
def W57(it: Evidence) -> None:
    """The three forwards are the forward, the backward, and the optimiser's step.

    By the lines above, forward and backward are three already. The optimiser costs some
    FLOPs for each parameter and step, whatever the tokens: AdamW's 15 are more
    than the rest for one or two tokens, and 0.24 % of it for 1,024.
    """
    forward, backward = product_flops(matmul, (5, 7), (7, 3))
    optimiser = 0  # what is left of three forwards
    it.clashes(forward + backward + optimiser == 3 * forward)
    arrays: Any = [counting.array(numbers(3, seed=i) ** 2) for i in range(4)]
    w, g, m, v = arrays
    with counting.tally() as adamw:
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g * g
        w = 0.9 * w - 0.1 * (m / 0.5 / (counting.xp.sqrt(v) / 0.5 + 1e-8))
    it.right(adamw.total == 3 * 15)
    shares = [round(100 * 15 / (6 * tokens), 2) for tokens in (1, 2, 1024)]
    it.right(min(shares[:2]) > 100 and shares[2] == 0.24)
