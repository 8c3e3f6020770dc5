"""Why the rule applies to a transformer's layers."""

from __future__ import annotations

from functools import reduce
from operator import add, matmul
from typing import Any

from backpass import cost
from backpass_ledger.claims.encoder_block import steps
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, same, torch, vjp
from backpass_ledger.claims.twice_note.product import LAYER, product_flops

CLAIMS = """
W24  caveat    4  flash         attention/flash               attention layers
W25  true      0  attention     attention/heads               attention layers, forward
W26  left-out  2  attention     attention/heads               attention layers, backward
W27  left-out  2  attention     attention/scaled_dot_product  attention layers, by the closing section's reason
W28  caveat    2  feed-forward  operations/feed_forward       feed-forward layers, forward
W29  left-out  1  feed-forward  operations/feed_forward       feed-forward layers, backward
W30  caveat    2  FLOPs         cost/ratio                    heading on linear layers
W31  false     5  FLOPs         cost/ratio                    below that heading
W32  true      0  matmul        operations/linear             the two products' purposes
"""

ATTENTION = ("query", "key", "value", "attention", "output")


def attend(q: Any, k: Any, v: Any) -> Any:
    """Return attention of one head, with its two products."""
    return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1) @ v


def projected(x: Any, q: Any, k: Any, v: Any) -> Any:
    """Return attention with its projections."""
    return attend(x @ q, x @ k, x @ v)


def gate(u: Any, v: Any) -> Any:
    """Return SwiGLU."""
    return torch.nn.functional.silu(u) * v


def added(*arrays: Any) -> tuple[Any, int]:
    """Return the sum of arrays, and the additions that it takes."""
    return sum(arrays), steps(lambda *given: reduce(add, given), *arrays)


def with_products(model: str) -> set[str]:
    """Return the first words of the calls of a layer that have a product."""
    rows = cost.tally(model, 1, 8, flash=False).rows
    calls = {row.term.call for row in rows if row.part == "layer" and row.term.product}
    return {call.removesuffix(" projection") for call in calls}


def W24(it: Evidence) -> None:
    """The factor 2 applies to attention layers.

    It does if the attention weights are saved. Flash attention recomputes the scores:
    its backward has five products, its forward two. For all products of Llama 3 8B at
    131,072 tokens the ratio is 2.35."""
    forward, backward = product_flops(attend, (6, 5), (6, 5), (6, 5))
    it.as_printed(backward == 2 * forward)
    flash = cost.tally("llama-3-8b", 1, 131_072, flash=True)
    it.elsewhere(flash.ratio("products") == 2)
    it.right(round(flash.ratio("products"), 2) == 2.35)
    attention = flash.only(lambda row: row.term.call == "attention")
    it.right(attention.ratio("products") == 5 / 2)


def W25(it: Evidence) -> None:
    """The forward has projections to Q, K, and V, attention, and an output projection.

    These are all its products. The mask, the scale, and rotations are not listed."""
    it.as_printed(with_products("llama-3-8b") - {"gate", "up", "down"} == {*ATTENTION})


def W26(it: Evidence) -> None:
    """The backward computes the weights' gradients, the gradients of each projection's
    input, and those through attention.

    Q, K, and V are computed from the same input, so its three gradients are added, with
    two additions per element."""
    x, w, dy = numbers(6, 5), [numbers(5, 4, seed=i) for i in range(3)], numbers(6, 4)
    gradients = vjp(attend, [x @ each for each in w], dy)
    parts = [g @ each.T for g, each in zip(gradients, w, strict=True)]
    dx = vjp(projected, [x, *w], dy)[0]
    whole, additions = added(*parts)
    it.left_out(additions)
    it.right(additions == 2 * x.size and same(whole, dx))
    it.right(not any(same(part, dx) for part in parts))


def W27(it: Evidence) -> None:
    """The reason for the factor 2 is that each linear layer needs one gradient of its
    input and one of its weight.

    Attention's two products have no weight, and the text gives no reason for them.
    Their factor is 2 because both factors are activations: it stays 2 if all weights
    are frozen, when that of a projection is 1."""
    one, backward = product_flops(matmul, (6, 5), (5, 4), frozen=(1,))
    it.right(one == backward)
    shapes = (6, 5), (5, 4), (5, 4), (5, 4)
    ran = product_flops(projected, *shapes, frozen=(1, 2, 3))
    forward, backward = (flops - 3 * one for flops in ran)  # without the projections
    it.left_out(backward)
    it.right(backward == 2 * forward)


def W28(it: Evidence) -> None:
    """The forward has the three projections W1, W3, and W2, and activations.

    It has them if the block is gated, as in Llama. GPT-2, whose largest model has the
    width 1600 of the example, has two projections."""
    it.as_printed(len(with_products("llama-3-8b") - {*ATTENTION}) == 3)
    it.right(cost.configuration("gpt2-xl").width == 1600)
    of_gpt2 = {"up", "gate", "down"} & with_products("gpt2-xl")
    it.elsewhere(len(of_gpt2) == 3)
    it.right(of_gpt2 == {"up", "down"})


def W29(it: Evidence) -> None:
    """The backward computes the gradients of W1, W3, and W2, those of each projection's
    input, and those through SwiGLU.

    W1 and W3 have the same input, so its two gradients are added."""
    x, w1, w3, dy = numbers(6, 5), numbers(5, 4), numbers(5, 4, seed=1), numbers(6, 4)
    du, dv = vjp(gate, (x @ w1, x @ w3), dy)
    dx = vjp(lambda x, a, b: gate(x @ a, x @ b), (x, w1, w3), dy)[0]
    whole, additions = added(du @ w1.T, dv @ w3.T)
    it.left_out(additions)
    it.right(additions == x.size and same(whole, dx) and not same(du @ w1.T, dx))


def W30(it: Evidence) -> None:
    """Each linear layer doubles the cost.

    Its backward costs twice its forward; both together cost three forwards."""
    forward, backward = product_flops(matmul, *LAYER)
    it.as_printed(backward == 2 * forward)
    it.elsewhere(forward + backward == 2 * forward)
    it.right(forward + backward == 3 * forward)


def W31(it: Evidence) -> None:
    """Every `Y = X @ W` of the forward becomes two products in the backward.

    It becomes two if both gradients are wanted. It becomes one product if W is frozen
    or X needs no gradient, and none below the lowest trained weight. If the layer is
    recomputed, its forward product also runs again."""
    ran = {(): 6, (0,): 5, (0, 2): 4, (0, 1): 3, (0, 1, 2): 1}
    for frozen, products in ran.items():
        forward, backward = product_flops(
            lambda x, a, b, c: x @ a @ b @ c, *[(5, 5)] * 4, frozen=frozen
        )
        it.as_printed(backward == 2 * forward)
        it.right(backward == products * forward / 3)
    again = cost.tally("gpt2", 1, 8, recompute=1).flops("products")["recomputation"]
    it.right(again > 0)


def W32(it: Evidence) -> None:
    """The gradient of X is for the flow of the gradient, that of W for the update.

    If the first is not computed, the layers below receive no gradient, and W's is
    unchanged. If the second is not computed, W has none, and the others are
    unchanged."""
    x, dy = torch.tensor(numbers(5, 4)), torch.tensor(numbers(5, 3))
    below, w = (
        torch.tensor(numbers(n, m), requires_grad=True) for n, m in ((4, 7), (7, 3))
    )

    def gradients(y: Any) -> Any:
        return torch.autograd.grad(y, [below, w], dy, allow_unused=True)

    full, no_x = gradients(x @ below @ w), gradients((x @ below).detach() @ w)
    no_w = gradients(x @ below @ w.detach())
    it.as_printed(no_x[0] is None and torch.equal(no_x[1], full[1]))
    it.as_printed(no_w[1] is None and torch.equal(no_w[0], full[0]))
