"""The introduction, the layer, and its residual connection."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np

from backpass import cost
from backpass.models import llama
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import jacobian, numbers, same, torch, vjp

CLAIMS = """
F1   uncheckable  0  training      cost/calculator             List of the series
F2   true         0  training      networks/llama              Introduction
F3   caveat       2  memory        cost/memory                 Introduction
F4   left-out     2  notation      networks/llama              Introduction, promise
F5   left-out     4  memory        cost/memory                 Introduction, promise
F6   uncheckable  0  notation      foundations/notation        Introduction, promise
F7   true         0  residual      operations/residual_stream  §1.1, both formulas
F8   true         0  notation      networks/llama              §1.1, sizes
F9   uncheckable  0  training      networks/llama              §1.1, sizes
F10  true         0  chain rule    foundations/chain_rule      §1.1, the incoming gradient
F11  true         0  chain rule    networks/llama              §1.1, list
F12  true         0  feed-forward  operations/feed_forward     §1.1, list, item 3
F13  caveat       2  residual      operations/residual_stream  §1.2, formula
F14  true         0  residual      operations/residual_stream  §1.2, prose
F15  false        6  residual      numerics/gradient_flow      §1.2, prose
F16  true         0  chain rule    foundations/chain_rule      §1.2, prose
F17  true         0  residual      operations/residual_stream  §1.2, code
"""


LLAMA: Any = cost.presets()["llama-3-70b"]  # the sizes of the published model
MIB, GIB = 2**20, 2**30
EPS = 0.3  # large, so that a formula that forgets it fails
WEIGHTS = {
    "gamma_1": (7,),
    "w_q": (7, 16),
    "w_k": (7, 8),
    "w_v": (7, 8),
    "w_o": (16, 7),
    "gamma_2": (7,),
    "w_1": (7, 11),
    "w_3": (7, 11),
    "w_2": (11, 7),
}  # of a layer 7 wide with 4 query heads and 2 key heads of 4


def weights() -> list[Any]:
    """Return random arrays of the shapes in WEIGHTS."""
    return [numbers(*shape, seed=5 + i) for i, shape in enumerate(WEIGHTS.values())]


def norm(x: Any, gamma: Any) -> Any:
    """PyTorch's RMSNorm."""
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), gamma, EPS)


def rotated(x: Any) -> Any:
    """Rotate queries or keys [*, s, d] by their positions, as Llama does."""
    s, d = x.shape[-2:]
    angles = torch.outer(
        torch.arange(s), 500_000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    )
    cos, sin = torch.cos(angles), torch.sin(angles)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attention(
    x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, *, rope: bool = False, n_kv: int = 2
) -> Any:
    """Causal attention with 4 query heads, by PyTorch's function."""
    b, s, _ = x.shape
    q = (x @ w_q).reshape(b, s, 4, -1).transpose(1, 2)
    k, v = ((x @ w).reshape(b, s, n_kv, -1).transpose(1, 2) for w in (w_k, w_v))
    if rope:
        q, k = rotated(q), rotated(k)
    k, v = (of.repeat_interleave(4 // n_kv, 1) for of in (k, v))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return o.transpose(1, 2).reshape(b, s, -1) @ w_o


def gated(x: Any, w_1: Any, w_3: Any, w_2: Any) -> Any:
    """The SwiGLU block."""
    return (torch.nn.functional.silu(x @ w_1) * (x @ w_3)) @ w_2


def layer(x: Any, *w: Any, rope: bool = False) -> Any:
    """The layer as the text's first two formulas have it, weights as in WEIGHTS."""
    h_mid = x + attention(norm(x, w[0]), *w[1:5], rope=rope)
    return h_mid + gated(norm(h_mid, w[5]), *w[6:])


@cache
def of_a_layer(flash: bool = True, tokens: int = 8192) -> dict[str, int]:
    """Return the bytes of the arrays that a layer of Llama 3 70B saves."""
    saved = cost.activations("llama-3-70b", 1, tokens, dtype="bfloat16", flash=flash)
    return {row.array: row.bytes for row in saved.rows if row.part == "layers.1"}


def block(x: Any) -> Any:
    """The norm and the feed-forward block on the rows of h_mid."""
    w = [torch.tensor(of) for of in weights()]
    return gated(norm(x, w[5]), *w[6:])


def F1(it: Evidence) -> None:
    """DeepSeek V3 trained its 671B parameters for the cost of a dense model of 70B.

    The title of another post. The cost rests on how many parameters a token uses and on
    other people's hours and prices.
    """


def F2(it: Evidence) -> None:
    """Training computes a gradient of the loss for each parameter, and a 70B model has
    billions of them."""
    count = sum(np.prod(shape) for shape in llama.parameter_shapes(LLAMA).values())
    it.as_printed(count == cost.tally("llama-3-70b", 1, 8).parameters > 70 * 10**9)
    gradients = vjp(layer, [numbers(2, 5, 7), *weights()], numbers(2, 5, 7, seed=1))
    it.as_printed(all(np.abs(g).max() > 0 for g in gradients))


def F3(it: Evidence) -> None:
    """Checkpointing and mixed precision determine whether a 70B model can be trained on
    given hardware.

    On sixteen GPUs of 80 GB, a checkpoint at each layer decides. On eight it does not:
    the text's own 1,120 GB of weights, gradients, and optimiser states are too much
    with no activation at all.
    """
    states, gpu = 16 * 70 * 10**9, 80 * 10**9
    saved = 80 * sum(of_a_layer().values())
    checkpointed = 80 * 8192 * 8192 * 2 + sum(of_a_layer().values())
    it.as_printed(states + checkpointed < 16 * gpu < states + saved)
    it.elsewhere(states < 8 * gpu)
    it.right(states == 1_120 * 10**9)


def F4(it: Evidence) -> None:
    """Every gradient's shape is explicit.

    The layer's nine parameters have their shapes. The token table, the last norm's
    scale, and the output head have none.
    """
    outside = {
        name: shape
        for name, shape in llama.parameter_shapes(LLAMA).items()
        if not name.startswith("layers.")
    }
    it.left_out(len(outside))
    it.right(set(outside) == {"embed_tokens.weight", "norm.weight", "lm_head.weight"})
    inside = [n for n in llama.parameter_shapes(LLAMA) if n.startswith("layers.7.")]
    it.right(len(inside) == 9)


def F5(it: Evidence) -> None:
    """Every memory cost is quantified.

    The text never counts the logits (1.96 GiB in two bytes at 8,192 tokens), the
    normalised input of the feed-forward block (128 MiB a layer), or the numbers that
    norms and FlashAttention save for each row (2 MiB a layer).
    """
    logits = 8_192 * LLAMA.vocabulary * 2
    saved = of_a_layer()
    rows = saved["norm_1.rstd"] + saved["norm_2.rstd"] + saved["attended.attended.lse"]
    it.left_out(logits + 80 * (saved["fed.up.x"] + rows))
    it.right(round(logits / GIB, 2) == 1.96)
    it.right(saved["fed.up.x"] == 128 * MIB and round(rows / MIB) == 2)


def F6(it: Evidence) -> None:
    """The text does not wave its hands.

    Whether an argument is hand-waving is a judgement, which no computation settles.
    """


def F7(it: Evidence) -> None:
    r"""A pre-norm layer is $h_\text{mid} = x + \text{Attn}(\text{RMSNorm}(x))$, then
    $h_\text{out} = h_\text{mid} + \text{FFN}(\text{RMSNorm}(h_\text{mid}))$.

    The check compares a network of this layer with the package's Llama on sequences of
    one token, on which Llama's rotations do nothing.
    """
    config = llama.Config(11, 7, 1, 4, 2, 4, 11, eps=EPS)
    w, table, head = weights(), numbers(11, 7), numbers(11, 7, seed=1)
    order = ("input_layernorm", *(f"self_attn.{n}_proj" for n in "qkvo"))
    order += (
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    )
    named = {f"layers.0.{n}.weight": a.T for n, a in zip(order, w, strict=True)}
    named |= {"embed_tokens.weight": table, "lm_head.weight": head}
    tokens, targets = np.array([[3], [7], [1]]), np.array([[2], [0], [9]])
    ours, _ = llama.forward(
        named | {"norm.weight": np.ones(7)}, tokens, targets, config=config
    )
    h = layer(torch.tensor(table[tokens]), *map(torch.tensor, w))
    logits = norm(h, None) @ torch.tensor(head.T)
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(targets).flatten()
    )
    it.as_printed(same(loss.numpy(), ours))


def F8(it: Evidence) -> None:
    r"""The input is $x \in \mathbb{R}^{B \times S \times d}$, and $d = 8192$ for Llama
    3 70B."""
    shapes = llama.parameter_shapes(LLAMA)
    it.as_printed(LLAMA.width == 8192 == shapes["embed_tokens.weight"][1])
    x = numbers(2, 5, 7)
    it.as_printed(vjp(layer, [x, *weights()], numbers(2, 5, 7, seed=1))[0].ndim == 3)


def F9(it: Evidence) -> None:
    """Llama 3 70B was trained on sequences of up to 8192 tokens.

    Nothing that runs here can show it. The published report
    {cite:p}`grattafiori2024llama` says so of the first stage, before the context was
    extended.
    """


def F10(it: Evidence) -> None:
    r"""The loss is a scalar, and $\partial L/\partial h_\text{out}$ has the shape of
    $h_\text{out}$, $B \times S \times d$."""
    h = numbers(2, 5, 7)
    dh = vjp(lambda h: (torch.sin(h) ** 3).mean(), h, 0.7)
    slope = 0.7 * 3 * np.sin(h) ** 2 * np.cos(h) / h.size
    it.as_printed(dh.shape == (2, 5, 7) and same(dh, slope))


def F11(it: Evidence) -> None:
    r"""A layer's backward computes ten gradients: of its input, four attention
    matrices, three feed-forward matrices, and two scales $\gamma_1$, $\gamma_2$."""
    in_layer = [n for n in llama.parameter_shapes(LLAMA) if n.startswith("layers.3.")]
    attention, norms = (
        sum(part in name for name in in_layer) for part in ("attn.", "norm.")
    )
    it.as_printed((attention, norms, len(in_layer)) == (4, 2, 9))


def F12(it: Evidence) -> None:
    """SwiGLU has three matrices."""
    wider = dataclasses.replace(LLAMA, feed_forward=LLAMA.feed_forward + 1)
    more = cost.tally(wider, 1, 8).parameters - cost.tally(LLAMA, 1, 8).parameters
    it.as_printed(more == 80 * 3 * 8192)


def F13(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial h_\text{mid}} = \frac{\partial L}{\partial
    h_\text{out}} \cdot (I + J)$ with $J$ the Jacobian of
    $\text{FFN}(\text{RMSNorm}(h_\text{mid}))$.

    This holds for gradients flattened to a row, with the output's index of $J$ first.
    The text does not name the layout and has just introduced the gradient as a $B
    \times S \times d$ array. For a column it is $I + J^\top$.
    """
    x, g = numbers(1, 3, 7), numbers(1, 3, 7, seed=1)
    dx = vjp(lambda x: x + block(x), x, g).ravel()
    J = jacobian(block, x).reshape(21, 21)
    it.as_printed(same(g.ravel() @ (np.eye(21) + J), dx))
    it.elsewhere(same((np.eye(21) + J) @ g.ravel(), dx))
    it.right(same((np.eye(21) + J.T) @ g.ravel(), dx))


def F14(it: Evidence) -> None:
    """The gradient flows through a residual connection unchanged, plus a term from the
    feed-forward path."""
    x, g = numbers(2, 3, 7), numbers(2, 3, 7, seed=1)
    it.as_printed(same(vjp(lambda x: x + block(x), x, g), g + vjp(block, x, g)))


def F15(it: Evidence) -> None:
    """Residual connections prevent vanishing gradients, because the identity path
    preserves the gradient's magnitude whatever the Jacobian of the block is.

    One term of the sum keeps its length; the sum can have any length. With a block's
    Jacobian of −I it is 0, and with −0.9 I it falls by a factor of 10⁸⁰ in 80 blocks.
    """

    def through(slope: float, blocks: int) -> float:
        x, g = numbers(3, 7), numbers(3, 7, seed=1)
        for _ in range(blocks):
            g = vjp(lambda x: x + slope * x, x, g)
        return float(np.linalg.norm(g) / np.linalg.norm(numbers(3, 7, seed=1)))

    it.as_printed(all(through(slope, 1) == 1 for slope in (-1.0, -0.9, 0.5)))
    it.right(through(-1.0, 1) == 0)
    it.right(np.isclose(np.log10(through(-0.9, 80)), -80))


def F16(it: Evidence) -> None:
    """Autograd frameworks do not form the whole Jacobian; they compute vector-Jacobian
    products."""
    from backpass.torch_internals import TorchDispatchMode

    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # type: ignore
            nonlocal largest
            found = op(*args, **(kwargs or {}))
            largest = max(
                largest,
                *(t.numel() for t in (found, *args) if isinstance(t, torch.Tensor)),
            )
            return found

    x = torch.tensor(numbers(900), requires_grad=True)
    y = torch.softmax(torch.sin(x), 0)
    with Sizes():
        torch.autograd.grad(y, x, torch.tensor(numbers(900, seed=1)))
    it.as_printed(0 < largest <= 900)  # the Jacobian has 900 times as many elements


def F17(it: Evidence) -> None:
    """The residual's backward copies the incoming gradient, passes it through block and
    norm, and adds the result to the copy.

    The text names a function for block and norm and does not give it. The copy is
    needed: without it the addition would also change the incoming gradient.
    """
    x, g = numbers(2, 3, 7), numbers(2, 3, 7, seed=1)
    expected = vjp(lambda x: x + block(x), x, g)
    for copied in (True, False):
        given = g.copy()
        both = given.copy() if copied else given
        both += vjp(block, x, given)
        it.as_printed(same(both, expected))
        it.right(same(given, g) is copied)
