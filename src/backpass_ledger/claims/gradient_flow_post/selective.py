"""What to recompute and what to save (§4.5)."""

from __future__ import annotations

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


def products(function: Any) -> int:
    """Return the FLOPs of matrix products that a function runs, as PyTorch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def forward(call: str) -> int:
    """Return the forward FLOPs of a call in one layer of Llama 3 70B at 8,192 tokens,
    element-wise steps among them."""
    step = cost.tally("llama-3-70b", 1, 8192)
    rows = step.only(lambda row: row.part == "layer" and row.term.call == call)
    return rows.flops("counted")["forward"] // 80


def F313(it: Evidence) -> None:
    """Checkpoint the activations that are expensive to store and cheap to recompute.

    In `§4.2` a checkpoint is what is saved. Such activations should be dropped and
    recomputed.
    """
    from torch.utils.checkpoint import checkpoint

    stack, x = Stack(), tensors()[0].requires_grad_()
    inner = stack.layers[0](x).detach()  # what layer 1 reads
    first_two = torch.nn.Sequential(*stack.layers[:2])

    def keeps(arrays: Any) -> bool:
        return any(same(array.detach().numpy(), inner.numpy()) for array in arrays)

    def saves(function: Any) -> bool:
        kept: dict[int, Any] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda a: kept.setdefault(a.data_ptr(), a), lambda a: a
        ):
            function(x)
        return keeps(kept.values())

    _, held = keep_inputs(stack, x, 1)
    recomputed = not saves(lambda x: checkpoint(first_two, x, use_reentrant=False))
    it.right(saves(first_two))
    it.clashes(keeps(held.values()) and recomputed)


def F314(it: Evidence) -> None:
    """RMSNorm's output should always be recomputed, because it takes a few element-wise
    steps.

    It is cheap. But if only the norm is recomputed, nothing is freed: the next product
    saves the norm's output as its input. The product has to be in the same segment.
    """
    from torch.utils.checkpoint import checkpoint

    it.as_printed(1000 * forward("first norm") < forward("query projection"))
    x, w = torch.tensor(numbers(5, 6)), torch.tensor(numbers(6, 6))
    x.requires_grad_()
    w.requires_grad_()

    def norm(x: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (6,))

    def held(block: Any) -> int:
        return pinned(block, x, parameters=(x, w)).count((5, 6))

    plain = held(lambda x: norm(x) @ w)
    alone = held(lambda x: checkpoint(norm, x, use_reentrant=False) @ w)
    both = held(lambda x: checkpoint(lambda x: norm(x) @ w, x, use_reentrant=False))
    it.elsewhere(plain - alone > 0)
    it.right(plain == alone == 1 and both == 0)


def F315(it: Evidence) -> None:
    """Dropout masks cost nothing to recompute: reseed.

    They cost no bytes. Every random number is drawn again. (Llama 3 has no dropout.)
    """
    from torch.utils.checkpoint import checkpoint

    from backpass.torch_internals import TorchDispatchMode

    class Draws(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            drawn = "bernoulli" in str(func) or "native_dropout" in str(func)
            self.count += drawn and args[0].numel()
            return func(*args, **(kwargs or {}))

    x = torch.tensor(numbers(5, 7)).requires_grad_()
    saved_shapes = pinned(
        lambda x: checkpoint(torch.nn.functional.dropout, x, use_reentrant=False),
        x,
        parameters=(x,),
    )
    it.as_printed(saved_shapes == [])
    with Draws() as draws:
        y = checkpoint(torch.nn.functional.dropout, x, use_reentrant=False)
        first = draws.count
        y.backward(torch.tensor(numbers(5, 7, seed=1)))
    it.elsewhere(draws.count - first == 0)
    it.right(first == draws.count - first == 35)


def F316(it: Evidence) -> None:
    """The inputs of the projections to Q, K, and V should always be saved, because
    recomputing them takes another matrix product.

    Their one input is the norm's output, which takes no product.
    """
    x = torch.tensor(numbers(5, 6))
    again = products(lambda: torch.nn.functional.rms_norm(x, (6,)))
    it.as_printed(again > 0)
    it.right(again == 0 and products(lambda: x @ x.T) == 2 * 5 * 5 * 6)


def F317(it: Evidence) -> None:
    """RMSNorm's outputs are always recomputed; the projections' inputs are always
    saved.

    The norm's output is the projections' input: the same array.
    """
    x, w = torch.tensor(numbers(5, 6)), torch.tensor(numbers(6, 6)).requires_grad_()
    normalised = torch.nn.functional.rms_norm(x, (6,))
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda a: kept.append(a.data_ptr()), lambda a: a
    ):
        normalised @ w
    it.clashes(normalised.data_ptr() in kept)
    it.right("attended.k.projected.x" not in saved())  # one for all three
    it.right("attended.q.projected.x" in saved())


def F318(it: Evidence) -> None:
    """Recomputing Q, K, and V means one more matrix product.

    One if their weights lie in one matrix. Three with the text's $W_Q$, $W_K$, and
    $W_V$: 8.5 % of a layer's forward, to free 160 MiB.
    """
    from backpass.torch_internals import TorchDispatchMode

    x = torch.tensor(numbers(5, 6))
    parts = [torch.tensor(numbers(6, n)) for n in (6, 2, 2)]

    def calls(function: Any) -> int:
        seen = []

        class Products(TorchDispatchMode):
            def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # type: ignore
                seen.append(op is torch.ops.aten.mm.default)
                return op(*args, **(kwargs or {}))

        with Products():
            function()
        return sum(seen)

    it.as_printed(calls(lambda: x @ torch.cat(parts, 1)) == 1)
    separate = calls(lambda: [x @ w for w in parts])
    it.elsewhere(separate == 1)
    it.right(separate == 3)
    layer = cost.tally("llama-3-70b", 1, 8192).only(lambda row: row.part == "layer")
    names = ("query projection", "key projection", "value projection")
    rows = layer.only(lambda row: row.term.call in names).flops("products")["forward"]
    it.right(round(100 * rows / layer.flops("products")["forward"], 1) == 8.5)
    qkv = (f"attended.attended.{each}" for each in "qkv")
    it.right(sum(saved()[array] for array in qkv) == 160 * 2**20)


def F319(it: Evidence) -> None:
    """Recomputing the feed-forward block's gate activations takes one matrix product.

    The activations of the text's table are $g_1$ and $g_3$: two products, 47 % of a
    layer's forward.
    """
    layer = cost.tally("llama-3-70b", 1, 8192).only(lambda row: row.part == "layer")
    one = forward("gate projection")
    both = one + forward("up projection")
    of_table = mib("fed.activated.g", "fed.activated.u")
    it.as_printed(of_table == 8192 * torch.float16.itemsize * 28_672 / 2**20)
    it.right(of_table == 896 and both == 2 * one)
    forward_flops = layer.flops("products")["forward"] / 80
    it.right(round(100 * both / forward_flops) == 47)


def F320(it: Evidence) -> None:
    """Flash attention saves Q, K, V, its output, and the logarithm of each row's sum,
    and recomputes the weights."""
    arrays = {
        a.rpartition(".")[2] for a in saved() if a.startswith("attended.attended.")
    }
    it.as_printed(arrays == {"q", "k", "v", "y", "lse"})
    q, k, v = (
        numbers(1, 2, 5, 4),
        numbers(1, 2, 5, 4, seed=1),
        numbers(1, 2, 5, 4, seed=2),
    )
    y, kept = flash_attention.forward(q, k, v)
    expected = attention.backward(numbers(*y.shape), attention.forward(q, k, v)[1])
    found = flash_attention.backward(numbers(*y.shape), kept)
    it.as_printed(all(map(same, found[:3], expected[:3])))


def F321(it: Evidence) -> None:
    """This removes the memory that grows with S², for one more product of queries and
    keys."""
    at = {"m": 1, "g": 1, "n_kv": 1, "s_q": 4096, "s_k": 4096, "d": 1024, "d_v": 1024}
    product = 2 * 4096 * 4096 * 1024
    plain = attention.backward_flops(**at) / product
    it.as_printed(round(flash_attention.backward_flops(**at) / product - plain) == 1)
    sizes = [
        sum(
            r.bytes or 0
            for r in cost.activations("gpt2", 1, s, flash=True).rows
            if r.part == "h.1"
        )
        for s in (256, 512)
    ]
    it.as_printed(sizes[1] == 2 * sizes[0])
