"""§2.3: how networks are trained, and what a step costs."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
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

    This is a matter of terms. A language model's targets are its own inputs, one
    position later: usually called self-supervised. Translation is supervised."""


def T71(it: Evidence) -> None:
    """Data preparation turns text into discrete units and then into vectors.

    Data preparation gives integers. The vectors are rows of a table inside the network,
    which is trained; the text leaves out the cost of its gradient."""
    tokens, dy = np.array([2, 0, 2]), numbers(3, 4)
    of_table = vjp(lambda table: table[tokens], numbers(5, 4, seed=1), dy)
    it.as_printed(same(np.eye(5)[tokens].T @ dy, of_table))
    it.elsewhere(not of_table.any())


def T72(it: Evidence) -> None:
    """In training, each token has to be predicted from the tokens before it.

    The block that is analysed has no mask, so position i sees token i + 1, which is its
    target. The objective needs the causal mask, which the text never writes."""
    next_token = np.eye(5, k=1, dtype=bool)
    it.clashes(bool(reaches(attended, numbers(5, 3))[next_token].all()))
    masked = reaches(partial(attended, causal=True), numbers(5, 3))
    it.right(not masked[next_token].any())


def T73(it: Evidence) -> None:
    r"""Adam is a variant of gradient descent, used with a variable learning rate.

    Without its moments, and with a large $\varepsilon$, Adam is gradient descent. With
    a constant gradient its steps are as long as the schedule's rates."""
    g = torch.tensor(numbers(7, seed=1))

    def moved(number: int, **options: Any) -> Any:
        theta = torch.nn.Parameter(torch.tensor(numbers(7)))
        optimiser = torch.optim.Adam([theta], **options)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: 1 / (1 + t))
        theta.grad, found = g, [theta.detach().clone()]
        for _ in range(number):
            optimiser.step()
            schedule.step()
            found.append(theta.detach().clone())
        return np.diff(torch.stack(found).numpy(), axis=0)

    plain = moved(1, lr=1e7, eps=1e9, betas=(0.0, 0.0))[0]
    it.as_printed(same(plain, -g / 100, 1e-6))
    rates = np.abs(moved(3, lr=0.01)).max(1)
    it.as_printed(same(rates, [0.01, 0.01 / 2, 0.01 / 3], 1e-6))


def T74(it: Evidence) -> None:
    """Scheduling the learning rate ensures stable training.

    The text gives no measurement and no source. A rate that is too large at a
    schedule's peak still raises the loss."""


def T75(it: Evidence) -> None:
    """To train GPT-3 takes hundreds of GPUs, or thousands.

    The cited paper does not say how many. The number depends on the time: a month takes
    972 V100 GPUs at their peak of 125 TFLOP/s. Memory alone requires fewer: weights,
    gradients, and Adam's moments in float32 are 2.8 TB for 175 billion parameters,
    which fit on 88 GPUs of 32 GB, without any activation."""
    parameters, tokens, month = 175 * 1e9, 300e9, 30 * 24 * 3_600
    for_a_month = 6 * parameters * tokens / (125 * 1e12 * month)
    for_memory = -(-4 * 4 * parameters // 32e9)
    it.as_printed(100 <= for_a_month < 10_000)
    it.elsewhere(for_memory >= 100)
    it.right((round(for_a_month), for_memory) == (972, 88))
    it.right(round(4 * 4 * parameters / 1e12, 1) == 2.8)


def T76(it: Evidence) -> None:
    """A training iteration is three consecutive phases: forward, backward, and update.

    The plain loop is. With recomputation the forward runs again inside the backward,
    and with accumulation the first two phases run several times for one update."""
    forwards: list[Any] = []

    def layer(x: Any) -> Any:
        forwards.append(x)
        return x.tanh() * 2

    x, dy = torch.tensor(numbers(4), requires_grad=True), torch.tensor(numbers(4))
    plain = torch.autograd.grad(layer(x), x, dy)[0]
    it.as_printed(len(forwards) == 1)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    it.right(same(plain, torch.autograd.grad(y, x, dy)[0]))
    it.elsewhere(len(forwards) == 2)
    weight = x.detach().clone().requires_grad_()
    optimiser = torch.optim.SGD([weight], lr=1.0)
    forwards.clear()
    for part in (dy / 4, 3 * dy / 4):
        layer(weight).backward(part)
    optimiser.step()
    it.right(len(forwards) == 2)
    it.right(same(weight.detach(), x.detach() - plain))


def T77(it: Evidence) -> None:
    r"""The forward produces predictions of the next token and the loss.

    An output head maps the block's $d$ columns to $V$, and its backward costs $4ndV$.
    At GPT-2's $d = 768$ and $V = 50{,}257$ this is 5.45 times a block's $48nd^2$.
    Neither the head nor the loss is counted."""
    head = its.products("nvd dnv", v=7)  # dy Wᵀ, xᵀ dy
    it.left_out(head(3, 5))
    it.right(its.takes(head, lambda n, d: 4 * n * d * 7))
    gpt2 = cost.presets()["gpt2"]
    it.right((gpt2.width, gpt2.vocabulary) == (768, 50_257))
    it.right(round(4 * 768 * 50_257 / (48 * 768**2), 2) == 5.45)


def T78(it: Evidence) -> None:
    """The backward applies the chain rule from the loss back through each layer.

    Applied one after the other, with the residual gradients added, the printed lines
    give autograd's gradient of a block."""
    x, dy = numbers(5, 4), numbers(5, 4, seed=8)
    by_autograd = vjp(partial(its.block, w=its.block_weights(), pre=True), x, dy)
    it.as_printed(same(its.chained_backward(x, dy, residual=True), by_autograd))


def T79(it: Evidence) -> None:
    r"""The update keeps more state and is still negligible beside the gradient.

    It is negligible in FLOPs if a step has many tokens. AdamW takes 15 FLOPs for each
    of the block's $12d^2$ weights: at width 512, 0.1 % of the backward's for 2,048
    tokens and more than three times the backward's for one token. In bytes it is not:
    each of its two moments is as large as the weights."""

    def share(n: int, d: int = 512) -> Any:
        return FLOPS_OF_ADAMW * 12 * d**2 / its.row("block")(n, d)

    it.as_printed(round(float(100 * share(2_048)), 1) == 0.1)
    it.elsewhere(share(1) < 0.01)
    it.right(FLOPS_OF_ADAMW == 15 and 3 < share(1) < 4)
    shares = cost.memory_budget("gpt2", 1, 1_024).shares
    parameters = cost.tally("gpt2", 1, 1_024).parameters
    it.right(sum(s.elements == parameters for s in shares) == 4)


def T80(it: Evidence) -> None:
    """Even with the chain rule, the backward is a significant part of the computation.

    It takes two thirds of the products' FLOPs in forward and backward, at any size."""
    for n, d in its.SIZES:
        it.as_printed(backward_share(n, d) > Fraction(1, 2))
        it.right(backward_share(n, d) == Fraction(2, 3))


def backward_share(n: int, d: int) -> Fraction:
    """Return the backward's share of a block's FLOPs of products."""
    backward = backward_products(n, d)
    return Fraction(backward, backward + forward_products(n, d))


def T81(it: Evidence) -> None:
    """By studies, the backward takes 60 to 70 % of the training time of large models.

    The text cites no study. Two thirds is the backward's share of the products' FLOPs;
    recomputation, communication, and the update change that of the time."""


def T82(it: Evidence) -> None:
    r"""For the gradients, the forward has to store every intermediate activation.

    The text's own backward reads neither the scores $S$ nor any sub-layer's output $Z$,
    and what it reads can be recomputed: a checkpoint gives the same gradients and
    stores nothing but its input."""
    weights = [its.block_weights()[name] for name in its.WEIGHTS]

    def stored(through: Any) -> tuple[int, Any]:
        x, kept = torch.tensor(numbers(5, 4), requires_grad=True), {}
        hooks = (lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t)
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            y = through(lambda x: its.attention(x, *weights)["Z"], x)
        gradient = torch.autograd.grad(y, x, y.detach())[0]
        return sum(t.numel() for t in kept.values()), gradient

    checkpoint = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    whole, plain = stored(lambda run, x: run(x))
    little, again = stored(checkpoint)
    it.as_printed(little >= whole)
    it.right(same(plain, again) and little <= 5 * 4 < whole)


def T83(it: Evidence) -> None:
    r"""Memory use scales with the sequence's length and the batch's size.

    Memory is proportional to the batch. If the weights $A$ are stored, it has a term in
    the square of the length: close to four times for twice a long sequence."""

    def stored(b: int, n: int) -> int:
        return cost.saved_bytes("attention", *[(b, 1, n, 4)] * 3)

    it.as_printed(stored(2, 8) == 2 * stored(1, 8))
    it.elsewhere(stored(1, 16) == 2 * stored(1, 8))
    it.right(4 * stored(1, 128) > stored(1, 256) > 3.5 * stored(1, 128))


def T84(it: Evidence) -> None:
    """Memory often limits large transformers.

    The text gives no source and counts no bytes. Whether memory is the limit depends on
    recomputation, on sharding, and on the machine."""


def T85(it: Evidence) -> None:
    """At billions of parameters, a slightly better backward greatly reduces the time.

    The reduction is big in FLOPs or hours, and small beside the run: a backward that is
    1 % cheaper makes a step at most 0.67 % cheaper."""
    saved = backward_share(5, 3) / 100
    it.as_printed(saved * 6 * 175 * 10**9 * 300 * 10**9 > 10**21)  # GPT-3's FLOPs
    it.elsewhere(saved >= Fraction(1, 100))
    it.right(round(100 * float(saved), 2) == 0.67)
