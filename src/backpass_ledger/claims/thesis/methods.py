"""§4.2.3 and §4.2.4: what can be made cheaper, and one head or several."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass.ops import flash_attention, linear_attention
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import product, steps
from backpass_ledger.claims.evidence import Evidence
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
T232  left-out      4  memory        attention/heads          §4.2.4, conclusion
"""


def linear(s: int) -> int:
    """Return the FLOPs of linear attention's forward over s tokens."""
    return int(linear_attention.forward_flops(m=1, s=s, d=64, d_v=64))


def flash(s: int) -> int:
    """Return the FLOPs of flash attention's forward over s tokens."""
    lengths = {"m": 1, "g": 1, "n_kv": 1, "s_q": s, "s_k": s, "d": 64, "d_v": 64}
    return int(flash_attention.forward_flops(**lengths))


def T213(it: Evidence) -> None:
    r"""Methods for attention aim at a cost below the quadratic one, because of the
    $n^2d$ term.

    Linear attention does. Flash attention, which is in wide use, computes all $n^2$
    scores and saves memory and time. The text leaves such methods out.
    """
    it.as_printed(linear(4_096) < 2.01 * linear(2_048))
    it.elsewhere(flash(4_096) < 2.01 * flash(2_048))
    it.right(flash(4_096) > 3.99 * flash(2_048))


def T214(it: Evidence) -> None:
    """Methods for attention below the quadratic cost are proven empirically, and they
    often cost expressivity and stability.

    The text cites neither a method nor a measurement.
    """


def T215(it: Evidence) -> None:
    r"""Attention's quadratic nature is still a fundamental limitation.

    It is one for the arithmetic of softmax attention. With flash attention its memory
    is linear in $n$, and linear attention is linear in both.
    """

    def saved(op: str, n: int) -> int:
        return cost.saved_bytes(op, (1, n, 4), (1, n, 4), (1, n, 4))

    it.as_printed(flash(4_096) > 3.99 * flash(2_048))
    it.elsewhere(saved("flash_attention", 128) > 3.5 * saved("flash_attention", 64))
    it.elsewhere(linear(4_096) > 3.99 * linear(2_048))
    it.right(saved("attention", 128) > 3 * saved("attention", 64))


def T216(it: Evidence) -> None:
    r"""Feed-forward layers scale as $O(nd^2)$.

    This holds for $d_{ff}$ in proportion to $d$; in general it is $O(ndd_{ff})$.
    """

    def ran(n: int, d: int, f: int) -> int:
        return its.counted(its.feed_forward_run(n, d, f), its.feed_forward_backward)

    it.as_printed(all(ran(n, d, 4 * d) <= 33 * n * d**2 for n, d in its.SIZES))
    it.right(all(ran(n, 3, f) <= 8 * n * 3 * f for n in (1, 5) for f in (2, 9)))


def T217(it: Evidence) -> None:
    r"""Low-rank factors of the weights reduce the cost to $O(ndr)$ with $r \ll d$.

    This is for matrices that are replaced by two factors. With $d$ rows and $4d$
    columns, the factors are cheaper only for $r < 0.8d$.
    """
    n, d = 3, 10
    whole = steps(product, numbers(n, d), numbers(d, 4 * d))

    def factors(r: int) -> int:
        first = steps(product, numbers(n, d), numbers(d, r))
        return first + steps(product, numbers(n, r), numbers(r, 4 * d))

    it.as_printed(all(factors(r) == 10 * n * d * r for r in (1, 2, 5)))
    it.right(all((factors(r) < whole) == (r < 0.8 * d) for r in range(1, 11)))


def T218(it: Evidence) -> None:
    r"""LoRA is such a decomposition: it reduces the layer's cost to $O(ndr)$.

    LoRA keeps the frozen weight and adds two factors beside it, so the forward costs
    more. It saves the weight's gradient and the optimiser's state. At $n = 8$, $d =
    16$, and $r = 1$, the products still take 79 % of the FLOPs, although $r/d$ is a
    sixteenth.
    """
    n, d, r = 8, 16, 1
    shapes = {"x W": (n, d, d), "x A": (n, d, r), "(x A) B": (n, r, d)}
    shapes |= {"dy Wᵀ": (n, d, d), "dy Bᵀ": (n, d, r), "(dy Bᵀ) Aᵀ": (n, r, d)}
    shapes |= {"dA": (d, n, r), "dB": (r, n, d), "dW": (d, n, d)}
    ran = {
        name: steps(product, numbers(m, k), numbers(k, p))
        for name, (m, k, p) in shapes.items()
    }
    whole = ran["x W"] + ran["dy Wᵀ"] + ran["dW"]
    with_adapter = sum(ran.values()) - ran["dW"]
    forward = ran["x W"] + ran["x A"] + ran["(x A) B"]
    it.as_printed(forward <= 4 * n * d * r)
    it.right(forward > ran["x W"])
    it.right(round(100 * with_adapter / whole) == 79)


def T219(it: Evidence) -> None:
    r"""A smaller intermediate dimension $d_{int}$ lowers the cost.

    The layer's cost falls linearly with it.
    """
    at = [
        its.counted(
            its.feed_forward_run(5, 3, f), its.feed_forward_backward, **its.ALL_BY_RULE
        )
        for f in (2, 4, 6)
    ]
    it.as_printed(at[0] < at[1] < at[2])
    it.right(at[2] - at[1] == at[1] - at[0])


def T220(it: Evidence) -> None:
    """Bhojanapalli et al. propose bottlenecks of a smaller width for feed-forward
    layers.

    The text's own list of references gives the title, and the title says attention. By
    its abstract, heads that are narrower than the sequence is long are a bottleneck
    that limits the network, and the remedy is wider heads.
    """
    title = "Low-Rank Bottleneck in Multi-Head Attention Models"
    it.clashes(
        not {"feed", "forward", "ffl"} & set(title.lower().replace("-", " ").split())
    )
    for width in (2, 9):  # of a head, for seven tokens
        scores = numbers(7, width) @ numbers(width, 7, seed=1)
        it.right(np.linalg.matrix_rank(scores) == min(width, 7))


def T221(it: Evidence) -> None:
    """In a mixture of experts only a few experts are active for a token.

    The other experts have no gradient from that token.
    """
    experts = torch.tensor(numbers(4, 3, 3), requires_grad=True)
    x, router = torch.tensor(numbers(3)), torch.tensor(numbers(4, 3, seed=1))
    gates, chosen = (router @ x).softmax(0).topk(2)
    y = sum(
        gate * (x @ experts[i]).tanh() for gate, i in zip(gates, chosen, strict=True)
    )
    torch.as_tensor(y).backward(torch.tensor(numbers(3, seed=2)))
    assert experts.grad is not None
    active = experts.grad.abs().sum((1, 2)) > 0
    it.as_printed({int(i) for i in active.nonzero()} == {int(i) for i in chosen})


def T222(it: Evidence) -> None:
    """With the three methods for feed-forward layers, transformers can be larger and
    more efficient, as SwitchHead shows.

    The text's own list of references gives the title, and the title says attention. By
    its abstract, SwitchHead puts experts into attention's projections of values and
    outputs. Experts in feed-forward layers can be combined with it, but they are not
    its subject.
    """
    title = "SwitchHead: Accelerating Transformers with Mixture-of-Experts Attention"
    words = set(title.lower().replace("-", " ").replace(":", "").split())
    it.clashes("attention" in words and not {"feed", "forward", "ffl"} & words)


def T223(it: Evidence) -> None:
    r"""All three methods keep or even raise the network's capacity.

    Experts raise it. Two factors of width $r$ make a matrix of rank at most $r$, so
    they cannot represent most of the matrices that they replace. A narrower layer has
    fewer units.
    """
    weight = numbers(6, 24)
    factors = numbers(6, 2) @ numbers(2, 24, seed=1)
    left, s, right = np.linalg.svd(weight, full_matrices=False)
    nearest = (left[:, :2] * s[:2]) @ right[:2]
    it.as_printed(bool(np.abs(nearest - weight).max() < 1e-6))
    it.right(np.linalg.matrix_rank(weight) == 6 and np.linalg.matrix_rank(factors) == 2)


def T224(it: Evidence) -> None:
    """On real systems memory bandwidth may matter as much as arithmetic.

    In the predicted time of a step of GPT-2 on an H100, calls bound by memory take more
    than half. This contradicts what the text says about norms.
    """
    spans = cost.duration("gpt2", 8, 1_024, "h100", dtype="bfloat16").spans
    waiting = sum(span.total for span in spans if span.bound == "memory")
    it.as_printed(waiting > sum(span.total for span in spans) / 2)


def T225(it: Evidence) -> None:
    """In practice most models have several heads.

    Every network whose configuration this package knows has several heads.
    """
    it.as_printed(all(config.heads > 1 for config in cost.presets().values()))


def attention_of_heads(n: int, d: int, heads: int) -> int:
    """Return the steps of the backward of attention between its projections, for
    several heads of width d/heads, by the text's rule."""

    def one(z_: Any, q: Any, a: Any) -> None:
        a_ = product(z_, its.flip(q))
        product(its.flip(a), z_)
        s_ = a * (a_ - its.times_each_row(a, a_, product))
        product(s_, q)
        product(its.flip(s_), q)

    w = d // heads
    return heads * steps(one, numbers(n, w), numbers(n, w), numbers(n, n))


def T226(it: Evidence) -> None:
    r"""One head and several share the asymptotic cost $O(n^2d)$.

    Both have the order $O(nd^2 + n^2d)$; the projections' part is not $O(n^2d)$ if $n$
    is small beside $d$. The products cost the same. The softmax takes $4hn^2$ instead
    of $4n^2$.
    """
    n, d = 5, 8
    one, four = (attention_of_heads(n, d, h) for h in (1, 4))
    it.as_printed(four <= 2 * one)
    projections = 4 * 4 * d**2  # one token, four matrices, two products each
    it.elsewhere(projections <= 8 * 1**2 * d)
    it.right(one == 8 * n**2 * d + 4 * n**2 and four == 8 * n**2 * d + 4 * 4 * n**2)


def T227(it: Evidence) -> None:
    """In multi-head attention each head has its share of the embedding dimension.

    In the original and in Llama 2 it does. A head's width can be a setting of its own:
    the Qwen3 network of 0.6 billion parameters has 16 heads of width 128 at a model
    width of 1,024.
    """
    known = cost.presets()
    llama, qwen = known["llama-2-7b"], known["qwen3-0.6b"]
    it.as_printed(llama.heads * llama.head_width == llama.width)
    it.elsewhere(qwen.heads * qwen.head_width == qwen.width)
    it.right((qwen.heads, qwen.head_width, qwen.width) == (16, 128, 1_024))
    parameters = cost.tally("qwen3-0.6b", 1, 1).parameters
    it.right(round(parameters / 1e9, 1) == 0.6)


def T228(it: Evidence) -> None:
    """The parallelism of several heads increases the stability of training.

    The text's own reference gives another cause: for as many attended positions, a
    network with several heads needs fewer layers. A test would need trained networks.
    """


def T229(it: Evidence) -> None:
    """With several heads, more diverse relations between tokens are found.

    The text's own reference says that layers of one head attend to several positions
    too, and do so more effectively.
    """


def T230(it: Evidence) -> None:
    """By Liu et al., deep networks with one head achieve comparable expressivity, and
    they are harder to train without careful initialisation.

    The second half is what the reference says. Its abstract goes further on the first
    half: once training is stabilised, the deeper network with one head is consistently
    better.
    """


def T231(it: Evidence) -> None:
    """Several heads are better at learning in context, and modern networks prefer them.

    The text gives no source for the first half. The second is true of every network in
    this package (T225).
    """


def T232(it: Evidence) -> None:
    r"""The cost remains quadratic in $n$, and the benefits justify several heads.

    With one head the cost is quadratic too, so the order says nothing for or against
    several heads. The text does not mention what they add: $h$ matrices of $n^2$
    weights to store, and $4n^2$ operations for the softmax of each.
    """
    n, d, heads = 5, 8, 4
    it.left_out(attention_of_heads(n, d, heads) - attention_of_heads(n, d, 1))
    stored = [cost.saved_bytes("attention", *[(h, n, d // h)] * 3) for h in (1, heads)]
    it.right(stored[1] - stored[0] == (heads - 1) * n**2 * 8)
