"""Why the rule applies to a transformer's layers."""

from __future__ import annotations

from operator import matmul
from typing import Any

from backpass import cost
from backpass.interpreters import counting
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, same, torch, vjp
from backpass_ledger.claims.twice_note.product import product_flops

CLAIMS = """
W24  caveat    4  flash         attention/flash               attention layers
W25  true      0  attention     attention/heads               attention layers, forward
W26  left-out  2  attention     attention/heads               attention layers, backward
W27  left-out  2  attention     attention/scaled_dot_product  attention layers, by the closing section's reason
W28  caveat    2  feed-forward  operations/feed_forward       feed-forward layers, forward
W29  left-out  1  feed-forward  operations/feed_forward       feed-forward layers, backward
W30  caveat    2  FLOPs         cost/ratio                    heading on linear layers
W31  caveat    5  FLOPs         cost/ratio                    below that heading
W32  true      0  matmul        operations/linear             the two products' purposes
"""


def attend(q: Any, k: Any, v: Any) -> Any:
    """Return attention of one head, with its two products."""
    return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1) @ v


def with_products(model: str, part: str) -> dict[str, int]:
    """Return how many forward products the calls of a part of a model have."""
    rows = cost.tally(model, 1, 8, flash=False).rows
    found: dict[str, int] = {}
    for row in rows:
        if row.part == part and row.term.product and row.term.way == "forward":
            found[row.term.call] = found.get(row.term.call, 0) + 1
    return found


def W24(it: Evidence) -> None:
    """The factor 2 applies to attention layers.

    It does if the attention weights are saved. Flash attention recomputes the scores:
    its backward has five products, its forward two. For all products of Llama 3 8B at
    131,072 tokens the ratio is 2.35.
    """
    forward, backward = product_flops(attend, (6, 5), (6, 5), (6, 5))
    it.as_printed(backward == 2 * forward)
    flash = cost.tally("llama-3-8b", 1, 131_072, flash=True)
    it.elsewhere(flash.ratio("products") == 2)
    it.right(round(flash.ratio("products"), 2) == 2.35)
    attention = flash.only(lambda row: row.term.call == "attention")
    it.right(attention.ratio("products") == 5 / 2)


def W25(it: Evidence) -> None:
    """The forward has the projections to Q, K, and V, attention itself, and the
    output projection.

    These are all its products. The list leaves out the mask, the scale, and rotations.
    """
    block = {"query", "key", "value", "attention", "output"}
    calls = with_products("llama-3-8b", "layer")
    named = {call.split()[0] for call in calls} & block
    it.as_printed(named == block)
    it.right(len(calls) == len(block) + 3)  # and the three of the feed-forward block


def W26(it: Evidence) -> None:
    """The backward computes the weights' gradients, the gradients of each projection's
    input, and those through attention.

    Q, K, and V are computed from the same input, so its three gradients are added, with
    two additions an element.
    """
    x, w = numbers(6, 5), [numbers(5, 4, seed=i) for i in range(3)]
    dy = numbers(6, 4, seed=3)
    gradients = vjp(attend, [x @ each for each in w], dy)
    parts = [g @ each.T for g, each in zip(gradients, w, strict=True)]
    dx = vjp(lambda x, *w: attend(*(x @ each for each in w)), [x, *w], dy)[0]
    arrays: Any = [counting.array(part) for part in parts]
    first, *others = arrays
    with counting.tally() as ran:
        for other in others:
            first = first + other
    it.left_out(ran.total)
    it.right(ran.total == 2 * x.size and same(first.to_numpy(), dx))
    it.right(same(sum(parts), dx) and not any(same(part, dx) for part in parts))


def W27(it: Evidence) -> None:
    """The reason for the factor 2 is that each linear layer needs one gradient of its
    input and one of its weight.

    Attention's two products have no weight, and the text gives no reason for them.
    Their factor is 2 because both factors are activations: it stays 2 if all weights
    are frozen, when that of a projection is 1.
    """
    projection = product_flops(matmul, (6, 5), (5, 4), frozen=(1,))
    it.right(projection[0] == projection[1])
    weights = 5, 4

    def block(x: Any, q: Any, k: Any, v: Any) -> Any:
        return attend(x @ q, x @ k, x @ v)

    frozen = product_flops(block, (6, 5), weights, weights, weights, frozen=(1, 2, 3))
    lacking = frozen[1] - 3 * projection[1]  # with the projections' own taken away
    it.left_out(lacking)
    it.right(lacking == 2 * (frozen[0] - 3 * projection[0]))


def W28(it: Evidence) -> None:
    """The forward has the three projections W1, W3, and W2, and activations.

    It has them if the block is gated, as in Llama. GPT-2, whose largest model has the
    width 1600 of the example, has two projections.
    """
    llama = with_products("llama-3-8b", "layer")
    attention = {"query", "key", "value", "attention", "output"}
    matrices = [call for call in llama if call.split()[0] not in attention]
    it.as_printed(len(matrices) == 3)
    it.right(cost.configuration("gpt2-xl").width == 1600)
    gpt2 = {"up projection", "gate projection", "down projection"} & {
        *with_products("gpt2", "layer")
    }
    it.elsewhere(len(gpt2) == 3)
    it.right(gpt2 == {"up projection", "down projection"})


def W29(it: Evidence) -> None:
    """The backward computes the gradients of W1, W3, and W2, those of each
    projection's input, and those through SwiGLU.

    W1 and W3 have the same input, so its two gradients are added.
    """
    x, w1, w3, dy = numbers(6, 5), numbers(5, 4), numbers(5, 4, seed=1), numbers(6, 4)

    def gate(u: Any, v: Any) -> Any:
        return torch.nn.functional.silu(u) * v

    du, dv = vjp(gate, (x @ w1, x @ w3), dy)
    dx = vjp(lambda x, a, b: gate(x @ a, x @ b), (x, w1, w3), dy)[0]
    arrays: Any = [counting.array(part) for part in (du @ w1.T, dv @ w3.T)]
    with counting.tally() as ran:
        _ = arrays[0] + arrays[1]
    it.left_out(ran.total)
    it.right(ran.total == x.size)
    it.right(same(du @ w1.T + dv @ w3.T, dx) and not same(du @ w1.T, dx))


def W30(it: Evidence) -> None:
    """Each linear layer doubles the cost.

    Its backward costs twice its forward; forward and backward together cost three times
    the forward.
    """
    forward, backward = product_flops(matmul, (5, 7), (7, 3))
    it.as_printed(backward == 2 * forward)
    it.elsewhere(forward + backward == 2 * forward)
    it.right(forward + backward == 3 * forward)


def W31(it: Evidence) -> None:
    """Every `Y = X @ W` of the forward becomes two products in the backward.

    It becomes one product if W is frozen or X needs no gradient, and none below the
    lowest trained weight. If the layer is recomputed, its forward product also runs
    again.
    """

    def chain(x: Any, a: Any, b: Any, c: Any) -> Any:
        return x @ a @ b @ c

    shapes = (5, 5), (5, 5), (5, 5), (5, 5)
    forward, backward = product_flops(chain, *shapes)
    it.as_printed(forward == 3 * 250 and backward == 6 * 250)
    for frozen, products in {(0,): 5, (0, 2): 4, (0, 1): 3, (0, 1, 2): 1}.items():
        ran = product_flops(chain, *shapes, frozen=frozen)[1]
        it.elsewhere(ran == 6 * 250)
        it.right(ran == products * 250)
    again = cost.tally("gpt2", 1, 8, recompute=1).flops("products")["recomputation"]
    it.right(again > 0)


def W32(it: Evidence) -> None:
    """The gradient of X is for the flow of the gradient, that of W for the update.

    If the first is not computed, the layers below receive no gradient, and W's is
    unchanged. If the second is not computed, W has none, and the layers below are
    unaffected.
    """
    x, dy = torch.tensor(numbers(5, 4)), torch.tensor(numbers(5, 3))

    def gradients(cut_x: bool, cut_w: bool) -> list[Any]:
        below = torch.tensor(numbers(4, 7), requires_grad=True)
        w = torch.tensor(numbers(7, 3), requires_grad=True)
        hidden = (x @ below).detach() if cut_x else x @ below
        y = hidden @ (w.detach() if cut_w else w)
        return list(torch.autograd.grad(y, [below, w], dy, allow_unused=True))

    full, no_x, no_w = (
        gradients(False, False),
        gradients(True, False),
        gradients(False, True),
    )
    it.as_printed(no_x[0] is None and torch.equal(no_x[1], full[1]))
    it.as_printed(no_w[1] is None and torch.equal(no_w[0], full[0]))
