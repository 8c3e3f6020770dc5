"""§2.3: how networks are trained, and what a step costs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from backpass import cost
from backpass.cost.duration import FLOPS_OF_ADAMW
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.opening import backward_products, forward_products
from backpass_ledger.claims.thesis.sequences import attended, reaches
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
T70  uncheckable   1  training       networks/training         §2.3.1, supervised
T71  caveat        1  embeddings     operations/embeddings     §2.3.1, data preparation
T72  inconsistent  6  attention      networks/whole_network    §2.3.1, objective
T73  true          0  optimiser      numerics/optimiser        §2.3.1, optimiser
T74  uncheckable   0  optimiser      numerics/optimiser        §2.3.1, learning rate
T75  caveat        1  parallel       cost/memory               §2.3.1, GPT-3
T76  caveat        1  training       numerics/recomputation    §2.3.2, three phases
T77  left-out      6  FLOPs          operations/output_head    §2.3.2, forward
T78  true          0  chain rule     networks/encoder_decoder  §2.3.2, backward
T79  caveat        4  optimiser      numerics/optimiser        §2.3.2, update
T80  true          0  FLOPs          cost/ratio                §2.3.3, first sentence
T81  uncheckable   3  time           cost/time                 §2.3.3, share of time
T82  false         6  recomputation  numerics/recomputation    §2.3.3, stored activations
T83  caveat        2  memory         cost/memory               §2.3.3, growth of memory
T84  uncheckable   1  memory         cost/memory               §2.3.3, limiting factor
T85  caveat        2  time           cost/time                 §2.3.3, small improvements
"""


def T70(it: Evidence) -> None:
    """Transformers learn from large amounts of text, under supervision.

    This is a matter of terms. The targets of a language model are its own inputs, one
    position later, which is usually called self-supervised. Translation, the original's
    task, is supervised.
    """


def T71(it: Evidence) -> None:
    """Data preparation turns text into discrete units and then into vectors.

    Data preparation gives integers. The vectors are rows of a table inside the network.
    The table is trained, and the text leaves out the cost of its gradient.
    """
    tokens = np.array([2, 0, 2])
    dy = numbers(3, 4)
    of_table = vjp(lambda table: table[tokens], numbers(5, 4, seed=1), dy)
    it.as_printed(same(np.eye(5)[tokens].T @ dy, of_table))
    it.elsewhere(not of_table.any())


def T72(it: Evidence) -> None:
    """In training, each token has to be predicted from the tokens before it.

    The block that is analysed has no mask, so position i sees token i + 1, which is its
    target. The objective needs the causal mask, which the text never writes.
    """
    next_token = np.eye(5, k=1, dtype=bool)
    x = numbers(5, 3)
    it.clashes(bool(reaches(attended, x)[next_token].all()))
    masked = reaches(lambda t: attended(t, causal=True), x)
    it.right(not masked[next_token].any())


def T73(it: Evidence) -> None:
    r"""Adam is a variant of gradient descent, used with a variable learning rate.

    Without its moments, and with a large $\varepsilon$, Adam is gradient descent. With
    a constant gradient its steps are as long as the schedule's rates.
    """

    def moved(gradients: Any, **options: Any) -> Any:
        theta = torch.nn.Parameter(torch.tensor(numbers(7)))
        optimiser = torch.optim.Adam([theta], **options)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: 1 / (1 + t))
        found = []
        for gradient in gradients:
            before = theta.detach().clone()
            theta.grad = torch.tensor(gradient)
            optimiser.step()
            schedule.step()
            found.append((theta.detach() - before).numpy())
        return found

    g = numbers(7, seed=1)
    plain = moved([g], lr=1e7, eps=1e9, betas=(0.0, 0.0))[0]
    it.as_printed(same(plain, -g / 100, 1e-6))
    rates = [np.abs(step).max() for step in moved([g] * 3, lr=0.01)]
    it.as_printed(same(rates, [0.01, 0.01 / 2, 0.01 / 3], 1e-6))


def T74(it: Evidence) -> None:
    """Scheduling the learning rate ensures stable training.

    The text gives neither a measurement nor a source. A schedule ensures nothing by
    itself: a rate that is too large at its peak still raises the loss.
    """


def T75(it: Evidence) -> None:
    """To train GPT-3 takes hundreds of GPUs, or thousands.

    The cited paper says that V100 GPUs were used, but not how many. The number depends
    on the time: a month takes 972 V100 GPUs at their peak of 125 TFLOP/s. Memory alone
    requires fewer: weights, gradients, and Adam's two moments in float32 are 2.8 TB for
    175 billion parameters, which fit on 88 GPUs of 32 GB, without any activation.
    """
    parameters, tokens = 175 * 1e9, 300e9
    month = 30 * 24 * 3_600
    for_a_month = 6 * parameters * tokens / (125 * 1e12 * month)
    it.as_printed(100 <= for_a_month < 10_000)
    for_memory = 4 * 4 * parameters / 32e9
    it.elsewhere(for_memory >= 100)
    it.right((round(for_a_month), -(-for_memory // 1)) == (972, 88))
    it.right(round(4 * 4 * parameters / 1e12, 1) == 2.8)


def T76(it: Evidence) -> None:
    """A training iteration has three consecutive phases: a forward, a backward, and an
    update.

    The plain loop has these phases. With recomputation the forward runs again inside
    the backward, and with accumulation the first two phases run several times for one
    update.
    """
    from torch.utils.checkpoint import checkpoint

    forwards = []

    def layer(x: Any) -> Any:
        forwards.append(1)
        return x.tanh() * 2

    x = torch.tensor(numbers(4), requires_grad=True)
    dy = torch.tensor(numbers(4, seed=1))
    plain = torch.autograd.grad(layer(x), x, dy)[0]
    it.as_printed(len(forwards) == 1)
    y = checkpoint(layer, x, use_reentrant=False)
    before = len(forwards)
    again = torch.autograd.grad(y, x, dy)[0]
    it.elsewhere(len(forwards) == before)
    it.right(same(plain, again))


def T77(it: Evidence) -> None:
    r"""The forward produces predictions of the next token and the loss.

    The block's output has $d$ columns. An output head maps them to $V$ columns, and its
    backward costs $4ndV$. At GPT-2's $d = 768$ and $V = 50{,}257$ this is 5.45 times a
    block's $48nd^2$. Neither the head nor the loss is counted.
    """
    n, d, v = 3, 768, 50_257
    products = [(n, v, d), (d, n, v)]  # dy Wᵀ, xᵀ dy
    head = sum(2 * m * k * p for m, k, p in products)
    it.left_out(head)
    it.right(round(head / (48 * n * d**2), 2) == 5.45)
    small = its.steps(its.product, numbers(2, 7), numbers(7, 3))
    it.right(small == 2 * 2 * 7 * 3)


def T78(it: Evidence) -> None:
    """The backward applies the chain rule from the loss back through each layer.

    The printed lines of feed-forward layer, norm, and attention, applied one after the
    other, with the residual gradients added, give autograd's gradient of a block.
    """
    x, dy = numbers(5, 4), numbers(5, 4, seed=8)
    by_autograd = vjp(lambda t: its.block(t, its.block_weights(), pre=True), x, dy)
    it.as_printed(same(its.chained_backward(x, dy, residual=True), by_autograd))


def T79(it: Evidence) -> None:
    r"""The update keeps additional state and is still negligible beside the gradient's
    computation.

    It is negligible in FLOPs if a step has many tokens. AdamW takes 15 FLOPs for each
    of the block's $12d^2$ weights: at width 512, 0.1 % of the backward's FLOPs for
    2,048 tokens and more than three times the backward's for one token. In bytes the
    update is not negligible: each of its two moments is as large as the weights.
    """

    def share(n: int, d: int = 512) -> Any:
        return FLOPS_OF_ADAMW * 12 * d**2 / its.printed("block", s=n, h=d)

    it.as_printed(round(float(100 * share(2_048)), 1) == 0.1)
    it.elsewhere(share(1) < 0.01)
    it.right(FLOPS_OF_ADAMW == 15 and 3 < share(1) < 4)
    budget = cost.memory_budget("gpt2", 1, 1_024)
    parameters = cost.tally("gpt2", 1, 1_024).parameters
    it.right(sum(s.elements == parameters for s in budget.shares) == 4)


def T80(it: Evidence) -> None:
    """Even with the chain rule, backpropagation is a significant part of training's
    computation.

    It takes two thirds of the products' FLOPs in forward and backward, at any size.
    """
    for n, d in its.SIZES:
        forward = forward_products(n, d, 4 * d)
        backward = backward_products(n, d, 4 * d)
        it.as_printed(2 * backward > forward + backward)
        it.right(Fraction(backward, forward + backward) == Fraction(2, 3))


def T81(it: Evidence) -> None:
    """Studies show that backpropagation takes 60 to 70 % of the training time of large
    models.

    The text cites no study. Two thirds is the backward's share of the products' FLOPs.
    Time has to be measured; recomputation, communication, and the update change it.
    """


def T82(it: Evidence) -> None:
    r"""For the gradients, the forward has to store every intermediate activation.

    The text's own backward reads neither the scores $S$ nor any sub-layer's output $Z$,
    and what it reads can be recomputed: a checkpoint gives the same gradients and
    stores nothing but its input. The text itself mentions techniques to handle memory.
    """
    from torch.utils.checkpoint import checkpoint

    def stored(run: Any) -> tuple[int, Any]:
        x = torch.tensor(numbers(5, 4), requires_grad=True)
        kept: dict[int, int] = {}

        def pack(t: Any) -> Any:
            kept[t.data_ptr()] = t.numel()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = run(x)
        return sum(kept.values()), torch.autograd.grad(
            y, x, torch.ones_like(y) * y.detach()
        )[0]

    weights = [its.block_weights()[name] for name in its.WEIGHTS]

    def block(x: Any) -> Any:
        return its.attention(x, *weights)["Z"]

    whole, plain = stored(block)
    little, again = stored(lambda x: checkpoint(block, x, use_reentrant=False))
    it.as_printed(little >= whole)
    it.right(same(plain, again) and little <= 5 * 4 < whole)


def T83(it: Evidence) -> None:
    r"""Memory use scales with the sequence's length and the batch's size.

    Memory is proportional to the batch. If the weights $A$ are stored, the memory has a
    term in the square of the length: twice the length takes more than twice the memory,
    and close to four times for long sequences.
    """

    def stored(b: int, n: int) -> int:
        return cost.saved_bytes("attention", *[(b, 1, n, 4)] * 3)

    it.as_printed(stored(2, 8) == 2 * stored(1, 8))
    it.elsewhere(stored(1, 16) == 2 * stored(1, 8))
    it.right(stored(1, 256) > 3.5 * stored(1, 128))


def T84(it: Evidence) -> None:
    """Memory often limits large transformers.

    The text gives no source and counts no bytes. Whether memory limits training depends
    on recomputation, on sharding, and on the machine.
    """


def T85(it: Evidence) -> None:
    """At billions of parameters even small improvements of the backward lead to big
    reductions of training time.

    The reduction is big in FLOPs or hours. In relation to the run it is not: a backward
    that is 1 % cheaper makes a step at most 0.67 % cheaper.
    """
    for n, d in its.SIZES:
        backward = backward_products(n, d, 4 * d)
        step = backward + forward_products(n, d, 4 * d)
        saved = Fraction(backward, 100 * step)
        gpt_3 = 6 * 175e9 * 300e9  # FLOPs of products
        it.as_printed(float(saved) * gpt_3 > 1e21)
        it.elsewhere(saved >= Fraction(1, 100))
        it.right(round(100 * float(saved), 2) == 0.67)
