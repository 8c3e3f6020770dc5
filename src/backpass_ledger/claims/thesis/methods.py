"""§4.2.3 and §4.2.4: what can be made cheaper, and one head or several."""

from __future__ import annotations

import re

import numpy as np

from backpass import cost
from backpass.ops import flash_attention, linear_attention
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.attention import softmax_steps
from backpass_ledger.claims.thesis.opening import of_step
from backpass_ledger.claims.tools import numbers, torch

CLAIMS = """
T213  caveat        3  flash         attention/flash          §4.2.3, methods for attention
T214  uncheckable   0  attention     attention/linear_time    §4.2.3, methods for attention, accuracy
T215  caveat        2  attention     attention/linear_time    §4.2.3, fundamental limitation
T216  true          0  FLOPs         operations/feed_forward  §4.2.3, feed-forward layers
T217  true          0  feed-forward  cost/ratio               §4.2.3, low rank, cost
T218  false         6  feed-forward  cost/ratio               §4.2.3, low rank, reference [5]
T219  true          0  feed-forward  operations/feed_forward  §4.2.3, bottleneck
T220  inconsistent  5  feed-forward  attention/heads          §4.2.3, bottleneck, reference [1]
T221  true          0  feed-forward  operations/feed_forward  §4.2.3, experts
T222  inconsistent  3  feed-forward  attention/heads          §4.2.3, reference [3]
T223  false         4  feed-forward  cost/ratio               §4.2.3, capacity
T224  true          0  time          cost/time                §4.2.3, memory bandwidth
T225  true          0  attention     attention/heads          §4.2.4, practice
T226  caveat        3  attention     attention/heads          §4.2.4, equal order
T227  caveat        1  attention     attention/heads          §4.2.4, division
T228  uncheckable   4  attention     attention/heads          §4.2.4, stability
T229  uncheckable   1  attention     attention/heads          §4.2.4, relationships
T230  uncheckable   3  attention     attention/heads          §4.2.4, reference [7]
T231  uncheckable   1  attention     attention/heads          §4.2.4, in-context learning
T232  uncheckable   1  attention     attention/heads          §4.2.4, conclusion
"""


def linear(s: int) -> int:
    """Return the FLOPs of linear attention's forward over s tokens."""
    return int(linear_attention.forward_flops(m=1, s=s, d=64, d_v=64))


def flash(s: int) -> int:
    """Return the FLOPs of flash attention's forward over s tokens."""
    lengths = {"m": 1, "g": 1, "n_kv": 1, "s_q": s, "s_k": s, "d": 64, "d_v": 64}
    return int(flash_attention.forward_flops(**lengths))


def T213(it: Evidence) -> None:
    r"""Methods for attention aim at a cost below the quadratic one of its $n^2d$ term.

    Linear attention does. Flash attention, which is in wide use, computes all $n^2$
    scores and saves memory and time."""
    it.as_printed(linear(4_096) < 2.01 * linear(2_048))
    it.elsewhere(flash(4_096) < 2.01 * flash(2_048))
    it.right(flash(4_096) > 3.99 * flash(2_048))


def T214(it: Evidence) -> None:
    """Methods below the quadratic cost are proven empirically, and often cost
    expressivity and stability.

    The text cites neither a method nor a measurement."""


def T215(it: Evidence) -> None:
    r"""Attention's quadratic nature is still a fundamental limitation.

    It is one for the arithmetic of softmax attention. With flash attention its memory
    is linear in $n$, and linear attention is linear in both."""
    ops = ("attention", "flash_attention", "linear_attention")
    saved = {
        op: [cost.saved_bytes(op, *[(1, n, 4)] * 3) for n in (64, 128)] for op in ops
    }
    softmax, of_flash, of_linear = (more / less for less, more in saved.values())
    it.as_printed(flash(4_096) > 3.99 * flash(2_048))
    it.elsewhere(of_flash > 3.5)
    it.elsewhere(of_linear > 3.5 or linear(4_096) > 3.99 * linear(2_048))
    it.right(softmax > 3)


def T216(it: Evidence) -> None:
    r"""Feed-forward layers scale as $O(nd^2)$.

    This holds for $d_{ff}$ in proportion to $d$; in general it is $O(ndd_{ff})$."""
    of = its.of_feed_forward
    it.as_printed(all(of(n, d, its.EXACT) <= 33 * n * d**2 for n, d in its.SIZES))
    sizes = [(n, f) for n in (1, 5) for f in (2, 9)]
    it.right(all(of(n, 3, its.EXACT, f) <= 8 * n * 3 * f for n, f in sizes))


def T217(it: Evidence) -> None:
    r"""Low-rank factors of the weights reduce the cost to $O(ndr)$ with $r \ll d$.

    This is for matrices that are replaced by two factors. With $d$ rows and $4d$
    columns, the factors are cheaper only for $r < 0.8d$."""
    n, d = 3, 10
    factors = {r: its.products("ndr nrf", r=r)(n, d) for r in range(1, 11)}
    it.as_printed(all(ran == 10 * n * d * r for r, ran in factors.items()))
    whole = its.products("ndf")(n, d)
    it.right(all((ran < whole) == (r < 0.8 * d) for r, ran in factors.items()))


def T218(it: Evidence) -> None:
    r"""LoRA is such a decomposition: it reduces the layer's cost to $O(ndr)$.

    LoRA keeps the frozen weight and adds two factors beside it, so the forward costs
    more. It saves the weight's gradient and its optimiser's state. At $n = 8$, $d =
    16$, and $r = 1$, the products still take 79 % of the FLOPs."""
    n, d, r = 8, 16, 1

    def ran(shapes: str) -> int:
        return its.products(shapes, r=r)(n, d)

    forward = "ndd ndr nrd"  # x W, x A, (x A) B
    whole = ran("ndd ndd dnd")  # and dy Wᵀ, dW
    adapted = ran(forward) + ran("ndd ndr nrd dnr rnd")  # and dx, dA, dB
    it.as_printed(ran(forward) <= 4 * n * d * r)
    it.right(ran(forward) > ran("ndd"))
    it.right(round(100 * adapted / whole) == 79)


def T219(it: Evidence) -> None:
    r"""A smaller intermediate dimension $d_{int}$ lowers the cost.

    The layer's cost falls linearly with it."""
    at = [its.of_feed_forward(5, 3, its.RULE, f) for f in (2, 4, 6)]
    it.as_printed(at[0] < at[1] < at[2])
    it.right(at[2] - at[1] == at[1] - at[0])


def names_of(title: str) -> set[str]:
    """Return which of the two layers a title names."""
    words = re.findall(r"[a-z]+", title.lower())
    return {word for word in words if word in ("attention", "feed", "feedforward")}


def T220(it: Evidence) -> None:
    """Bhojanapalli et al. propose narrower bottlenecks for feed-forward layers.

    The title says attention. By the abstract, heads that are narrower than the sequence
    is long are a bottleneck that limits the network, and wider heads are the remedy."""
    it.clashes(
        names_of("Low-Rank Bottleneck in Multi-Head Attention Models") == {"attention"}
    )
    for width in (2, 9):  # of a head, for seven tokens
        scores = numbers(7, width) @ numbers(width, 7, seed=1)
        it.right(np.linalg.matrix_rank(scores) == min(width, 7))


def T221(it: Evidence) -> None:
    """In a mixture of experts only a few experts are active for a token.

    The other experts have no gradient from that token."""
    experts = torch.tensor(numbers(4, 3, 3), requires_grad=True)
    x, router = torch.tensor(numbers(3)), torch.tensor(numbers(4, 3, seed=1))
    gates, chosen = (router @ x).softmax(0).topk(2)
    y = sum((x @ experts[i]).tanh() * g for g, i in zip(gates, chosen, strict=True))
    y.backward(torch.tensor(numbers(3, seed=2)))
    active = experts.grad.abs().sum((1, 2)).nonzero()
    it.as_printed({int(i) for i in active} == {int(i) for i in chosen})


def T222(it: Evidence) -> None:
    """With the three methods for feed-forward layers, transformers can be larger and
    more efficient, as SwitchHead shows.

    The title says attention. By its abstract, SwitchHead puts experts into attention's
    projections of values and outputs, not into feed-forward layers."""
    title = "SwitchHead: Accelerating Transformers with Mixture-of-Experts Attention"
    it.clashes(names_of(title) == {"attention"})


def T223(it: Evidence) -> None:
    r"""All three methods keep or even raise the network's capacity.

    Experts raise it. Two factors of width $r$ make a matrix of rank at most $r$, unlike
    most matrices that they replace. A narrower layer has fewer units."""
    weight = numbers(6, 24)
    factors = numbers(6, 2) @ numbers(2, 24, seed=1)
    left, s, right = np.linalg.svd(weight, full_matrices=False)
    nearest = (left[:, :2] * s[:2]) @ right[:2]
    it.as_printed(bool(np.abs(nearest - weight).max() < 1e-6))
    it.right(np.linalg.matrix_rank(weight) == 6 and np.linalg.matrix_rank(factors) == 2)


def T224(it: Evidence) -> None:
    """On real systems memory bandwidth may matter as much as arithmetic.

    In the predicted time of a step of GPT-2 on an H100, calls bound by memory take more
    than half: not what the text says about norms."""
    waiting, whole = of_step(lambda s: s.bound == "memory")
    it.as_printed(waiting[0] > whole[0] / 2)


def T225(it: Evidence) -> None:
    """In practice most models have several heads.

    Every network whose configuration this package knows has several heads."""
    it.as_printed(all(config.heads > 1 for config in cost.presets().values()))


def T226(it: Evidence) -> None:
    r"""One head and several share the asymptotic cost $O(n^2d)$.

    Both have the order $O(nd^2 + n^2d)$; the projections' part is not $O(n^2d)$ if $n$
    is small beside $d$. The products cost the same; the softmax takes $4hn^2$."""
    n, d, products = 5, 8, its.products("ndn nnd nnd nnd")

    def between_projections(heads: int) -> int:
        return heads * (products(n, d // heads) + softmax_steps(n, n))

    it.as_printed(between_projections(4) <= 2 * between_projections(1))
    of_one_token = its.products(4 * "dnd ndd ")(1, d)  # the projections
    it.elsewhere(of_one_token <= 8 * 1**2 * d)
    for h in (1, 4):
        it.right(between_projections(h) == 8 * n**2 * d + h * 4 * n**2)


def T227(it: Evidence) -> None:
    """In multi-head attention each head has its share of the embedding dimension.

    In the original and in Llama 2 it does. A head's width can be a setting of its own:
    Qwen3's network of 0.6 billion parameters is 1,024 wide, with 16 heads of width
    128."""
    known = cost.presets()
    llama, qwen = known["llama-2-7b"], known["qwen3-0.6b"]
    it.as_printed(llama.heads * llama.head_width == llama.width)
    it.elsewhere(qwen.heads * qwen.head_width == qwen.width)
    it.right((qwen.heads, qwen.head_width, qwen.width) == (16, 128, 1_024))
    parameters = cost.tally("qwen3-0.6b", 1, 1).parameters
    it.right(round(parameters / 1e9, 1) == 0.6)


def T228(it: Evidence) -> None:
    """The parallelism of several heads increases the stability of training.

    The text's own reference gives another cause: for as many attended positions,
    several heads need fewer layers. A test would need trained networks."""


def T229(it: Evidence) -> None:
    """With several heads, more diverse relations between tokens are found.

    By the text's own reference, layers of one head attend to several positions too, and
    do so more effectively."""


def T230(it: Evidence) -> None:
    """By Liu et al., deep networks with one head are as expressive and, without careful
    initialisation, harder to train.

    The second half is what the reference says. On the first, its abstract goes further:
    once stabilised, the deeper network with one head is consistently better."""


def T231(it: Evidence) -> None:
    """Several heads are better at learning in context, and modern networks prefer them.

    The text gives no source for the first half. For the second, see T225."""


def T232(it: Evidence) -> None:
    r"""The cost remains quadratic in $n$, and the benefits justify several heads.

    This weighs benefits against costs, and the text measures neither. With one head the
    cost is quadratic too, so the order says nothing for or against several heads."""
