"""What to recompute and what to save (§4.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backpass import cost
from backpass.ops import attention, flash_attention
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.checkpoint_code import (
    Stack,
    keep_inputs,
    tensors,
)
from backpass_ledger.claims.gradient_flow_post.saved_activations import (
    ROWS,
    kept,
    mib,
    pinned,
    saved,
)
from backpass_ledger.claims.tools import numbers, same, torch

CLAIMS = """
F313  inconsistent  2  recomputation  numerics/recomputation  §4.5, rule, against §4.2
F314  caveat        2  recomputation  numerics/recomputation  §4.5, norms
F315  caveat        1  recomputation  numerics/recomputation  §4.5, dropout masks
F316  false         5  recomputation  numerics/recomputation  §4.5, inputs of the projections
F317  inconsistent  4  recomputation  numerics/recomputation  §4.5, inputs of the projections, against the norms
F318  caveat        2  recomputation  numerics/recomputation  §4.5, outputs of the projections
F319  false         4  recomputation  numerics/recomputation  §4.5, gate
F320  true          0  flash          attention/flash         §4.5, flash attention, saved
F321  true          0  flash          attention/flash         §4.5, flash attention, cost
"""


def flops(*calls: str, kind: str = "products") -> int:
    """Return the forward FLOPs of some calls in a layer of Llama 3 70B at 8,192 tokens,
    or of all."""
    step = cost.tally("llama-3-70b", 1, 8192).only(lambda row: row.part == "layer")
    rows = step.only(lambda row: not calls or row.term.call in calls)
    return rows.flops(kind)["forward"] // 80


def operations(function: Callable[[], Any]) -> list[tuple[str, int]]:
    """Return the operations that PyTorch runs, each with the number of elements of its
    first array."""
    from backpass.torch_internals import TorchDispatchMode

    found = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # type: ignore
            size = args[0].numel() if isinstance(args[0], torch.Tensor) else 0
            found.append((str(op), size))
            return op(*args, **(kwargs or {}))

    with Noted():
        function()
    return found


def products(function: Callable[[], Any]) -> int:
    """Return how many matrix products PyTorch runs."""
    return sum("mm" in name for name, _ in operations(function))


def norm(x: Any) -> Any:
    """RMSNorm without a weight."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:])


def checkpointed(function: Any, x: Any) -> Any:
    """Run a function under PyTorch's checkpoint."""
    return torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)


def F313(it: Evidence) -> None:
    """Checkpoint the activations that are expensive to store and cheap to recompute.

    In `§4.2` a checkpoint is what is saved. These should be dropped and recomputed."""
    stack, x = Stack(), tensors()[0].requires_grad_()
    two, inner = torch.nn.Sequential(*stack.layers[:2]), stack.layers[0](x).detach()

    def among(arrays: Any) -> bool:
        return any(same(array.detach(), inner) for array in arrays)

    it.right(among(kept(lambda: two(x))))
    it.clashes(among(keep_inputs(stack, x, 1).values()))
    it.clashes(not among(kept(lambda: checkpointed(two, x))))


def F314(it: Evidence) -> None:
    """RMSNorm's output should always be recomputed: it takes a few element-wise steps.

    It is cheap. But recomputing the norm alone frees nothing: the next product saves
    the norm's output as its input. The product has to be in the same segment."""
    x, w = (torch.tensor(numbers(n, 6), requires_grad=True) for n in (5, 6))

    def held(block: Callable[[], Any]) -> int:
        return pinned(block, x, w).count((5, 6))

    plain, alone = held(lambda: norm(x) @ w), held(lambda: checkpointed(norm, x) @ w)
    it.elsewhere(alone < plain)
    it.right(alone == plain == 1)
    it.as_printed(held(lambda: checkpointed(lambda x: norm(x) @ w, x)) == 0)
    it.right(1000 * flops("first norm", kind="counted") < flops("query projection"))


def F315(it: Evidence) -> None:
    """Dropout masks cost nothing to recompute: reseed.

    They cost no bytes. Every random number is drawn again. (Llama 3 has no dropout.)"""
    x, dy = torch.tensor(numbers(5, 7)).requires_grad_(), torch.ones(5, 7).double()

    def drawn(function: Callable[[], Any]) -> int:
        draws = ("bernoulli", "native_dropout")
        found = operations(function)
        return sum(n for op, n in found if any(draw in op for draw in draws))

    it.as_printed(not pinned(lambda: checkpointed(torch.nn.functional.dropout, x), x))
    y = checkpointed(torch.nn.functional.dropout, x)
    again = drawn(lambda: y.backward(dy))
    it.elsewhere(again == 0)
    it.right(again == drawn(lambda: torch.nn.functional.dropout(x)) == 5 * 7)


def F316(it: Evidence) -> None:
    """The inputs of the projections to Q, K, and V should always be saved, because
    recomputing them takes another matrix product.

    Their one input is the norm's output, which takes no product."""
    x = torch.tensor(numbers(5, 6))
    it.as_printed(products(lambda: norm(x)) > 0)
    it.right(products(lambda: norm(x)) == 0 and products(lambda: x @ x.T) == 1)


def F317(it: Evidence) -> None:
    """RMSNorm's outputs are always recomputed, the projections' inputs always saved.

    The norm's output is the projections' input: the same array."""
    x, w = torch.tensor(numbers(5, 6)), torch.tensor(numbers(6, 6)).requires_grad_()
    normalised = norm(x)
    at = {array.data_ptr() for array in kept(lambda: normalised @ w)}
    it.clashes(normalised.data_ptr() in at)
    it.right([f"attended.{n}.projected.x" in saved() for n in "qkv"] == [1, 0, 0])


def F318(it: Evidence) -> None:
    """Recomputing Q, K, and V means one more matrix product.

    It is one product if their weights are in one matrix, and three with the text's
    $W_Q$, $W_K$, and $W_V$: 8.5 % of a layer's forward, to free 160 MiB."""
    x, parts = torch.tensor(numbers(5, 6)), [torch.ones(6, n).double() for n in (6, 2)]
    it.as_printed(products(lambda: x @ torch.cat(parts, 1)) == 1)
    three = products(lambda: [x @ w for w in (*parts, parts[1])])
    it.elsewhere(three == 1)
    it.right(three == 3)
    again = flops("query projection", "key projection", "value projection")
    it.right(round(100 * again / flops(), 1) == 8.5)
    it.right(mib(*(f"attended.attended.{each}" for each in "qkv")) == 160)


def F319(it: Evidence) -> None:
    """Recomputing the feed-forward block's gate activations takes one matrix product.

    Those of the table are $g_1$ and $g_3$: two products, 47 % of a layer's forward."""
    one, both = flops("gate projection"), flops("gate projection", "up projection")
    it.as_printed(both == one)
    it.right(both == 2 * one and round(100 * both / flops()) == 47)
    it.right(mib("fed.activated.g", "fed.activated.u") == ROWS[6] == 896)


def F320(it: Evidence) -> None:
    """Flash attention saves Q, K, V, its output, and the logarithm of each row's sum,
    and recomputes the weights."""
    name = "attended.attended."
    arrays = {a.removeprefix(name) for a in saved() if a.startswith(name)}
    it.as_printed(arrays == {"q", "k", "v", "y", "lse"})
    q, k, v, dy = (numbers(1, 2, 5, 4, seed=seed) for seed in range(4))
    expected = attention.backward(dy, attention.forward(q, k, v)[1])
    found = flash_attention.backward(dy, flash_attention.forward(q, k, v)[1])
    it.as_printed(all(map(same, found[:3], expected[:3])))


def F321(it: Evidence) -> None:
    """This removes the memory that grows with S², for one more product of Q and K."""
    at = {"m": 1, "g": 1, "n_kv": 1, "s_q": 4096, "s_k": 4096, "d": 1024, "d_v": 1024}
    more = flash_attention.backward_flops(**at) - attention.backward_flops(**at)
    it.as_printed(round(more / (2 * 4096 * 4096 * 1024)) == 1)

    def size(s: int) -> int:
        rows = cost.activations("gpt2", 1, s, flash=True).rows
        return sum(row.bytes or 0 for row in rows if row.part == "h.1")

    it.as_printed(size(512) == 2 * size(256))
