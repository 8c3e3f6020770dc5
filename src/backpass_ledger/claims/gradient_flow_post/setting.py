"""The introduction, the layer, and its residual connection."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np

from backpass import cost
from backpass.models import llama
from backpass_ledger import sources

from ..evidence import Evidence
from ..tools import jacobian, numbers, same, torch, vjp

CLAIMS = """
F1   uncheckable  0  training      cost/calculator             List of the series
F2   true         0  training      networks/llama              Introduction
F3   caveat       2  memory        cost/memory                 Introduction
F4   false        2  notation      networks/llama              Introduction, promise
F5   false        4  memory        cost/memory                 Introduction, promise
F6   uncheckable  0  notation      foundations/notation        Introduction, promise
F7   true         0  residual      operations/residual_stream  §1.1, both formulas
F8   true         0  notation      networks/llama              §1.1, sizes
F9   uncheckable  0  training      networks/llama              §1.1, sizes
F10  true         0  chain rule    foundations/chain_rule      §1.1, the incoming gradient
F11  true         0  chain rule    networks/llama              §1.1, list
F12  true         0  feed-forward  operations/feed_forward     §1.1, list, item 3
F13  true         0  residual      operations/residual_stream  §1.2, formula
F14  true         0  residual      operations/residual_stream  §1.2, prose
F15  false        6  residual      numerics/gradient_flow      §1.2, prose
F16  true         0  chain rule    foundations/chain_rule      §1.2, prose
F17  true         0  residual      operations/residual_stream  §1.2, code
"""

LLAMA: Any = cost.presets()["llama-3-70b"]  # the sizes of the published model
SHAPES = llama.parameter_shapes(LLAMA)  # [out, in]
LAYER = [name for name in SHAPES if name.startswith("layers.7.")]
MIB, GIB = 2**20, 2**30
EPS = 0.3  # large, so that a formula that forgets it fails
# Of a layer 7 wide with 4 query heads and 2 key heads of 4: the first norm's scale,
# W_Q, W_K, W_V, W_O, the second norm's scale, W_1, W_3, and W_2.
WEIGHTS = ((7,), (7, 16), (7, 8), (7, 8), (16, 7), (7,), (7, 11), (7, 11), (11, 7))
X, G = numbers(2, 3, 7), numbers(2, 3, 7, seed=1)


def tensors(*arrays: Any) -> list[Any]:
    """Return arrays as tensors of PyTorch."""
    return [torch.tensor(array) for array in arrays]


def weights() -> list[Any]:
    """Return random arrays of the shapes in WEIGHTS."""
    return [numbers(*shape, seed=5 + i) for i, shape in enumerate(WEIGHTS)]


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


def attention(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
    """Causal attention with 4 query heads and 2 of keys, by PyTorch's function."""
    heads = ((x @ w_q, 4), (x @ w_k, 2), (x @ w_v, 2))
    q, k, v = (of.unflatten(2, (n, -1)).transpose(1, 2) for of, n in heads)
    o = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    return o.transpose(1, 2).flatten(2) @ w_o


def gated(x: Any, w_1: Any, w_3: Any, w_2: Any) -> Any:
    """The SwiGLU block."""
    return (torch.nn.functional.silu(x @ w_1) * (x @ w_3)) @ w_2


def layer(x: Any, *w: Any) -> Any:
    """The layer as the text's first two formulas have it, weights as in WEIGHTS."""
    h_mid = x + attention(norm(x, w[0]), *w[1:5])
    return h_mid + gated(norm(h_mid, w[5]), *w[6:])


def block(x: Any) -> Any:
    """The norm and the feed-forward block on the rows of h_mid."""
    w = tensors(*weights())
    return gated(norm(x, w[5]), *w[6:])


def printed(place: str, name: str) -> float:
    """Return a figure that the text prints."""
    rows = (n for n in sources.NUMBERS if n.source == sources.GRADIENT_FLOW)
    return next(float(n.printed) for n in rows if (n.place, n.name) == (place, name))


@cache
def activations(flash: bool = True, tokens: int = 8192) -> Any:
    """Return the rows of what this project's Llama 3 70B saves for one sequence, with
    two bytes per element."""
    options: dict[str, Any] = {"dtype": "bfloat16", "flash": flash, "chunked": False}
    return cost.activations("llama-3-70b", 1, tokens, **options).rows


def of_a_layer(flash: bool = True, tokens: int = 8192) -> dict[str, int]:
    """Return the bytes of the arrays that a layer saves."""
    rows = activations(flash, tokens)
    return {row.array: row.bytes for row in rows if row.part == "layers.1"}


def saved_by(function: Any, *arrays: Any) -> list[Any]:
    """Return the different arrays that autograd saves of a function of arrays."""
    kept: dict[int, Any] = {}

    def pack(t: Any) -> Any:
        kept[t.data_ptr()] = t.detach().numpy()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        function(*(t.requires_grad_() for t in tensors(*arrays)))
    return list(kept.values())


def operations(function: Any) -> list[tuple[str, int]]:
    """Call a function; return its operations and how many elements each result has."""
    from backpass.torch_internals import TorchDispatchMode

    seen: list[tuple[str, int]] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # type: ignore
            found = op(*args, **(kwargs or {}))
            seen.append((str(op).split(".")[1], found.numel()))
            return found

    with Noted():
        function()
    return seen


def F1(it: Evidence) -> None:
    """DeepSeek V3 trained its 671B parameters for the cost of a dense model of 70B.

    This is the title of another post, which rests on other people's hours and
    prices."""


def F2(it: Evidence) -> None:
    """Training computes a gradient of the loss for each parameter, and a 70B model has
    billions of them."""
    count = sum(np.prod(shape) for shape in SHAPES.values())
    it.as_printed(count == cost.tally("llama-3-70b", 1, 8).parameters > 70 * 10**9)
    gradients = vjp(layer, [numbers(2, 5, 7), *weights()], numbers(2, 5, 7, seed=1))
    it.as_printed(all(np.abs(g).max() > 0 for g in gradients))


def F3(it: Evidence) -> None:
    """Checkpointing and mixed precision determine whether a 70B model can be trained on
    given hardware.

    On sixteen GPUs of 80 GB, a checkpoint at each layer decides. On eight, the text's
    own 1,120 GB of weights, gradients, and optimiser states are too much by
    themselves."""
    states, gpu, full = 16 * 70 * 10**9, 80 * 10**9, sum(of_a_layer().values())
    checkpointed = 80 * 8192 * 8192 * 2 + full
    it.as_printed(states + checkpointed < 16 * gpu < states + 80 * full)
    it.elsewhere(states < 8 * gpu)
    it.right(states == 1_120 * 10**9)


def F4(it: Evidence) -> None:
    """Every gradient's shape is explicit.

    The layer's nine parameters have their shapes. The token table, the last norm's
    scale, and the output head have none."""
    outside = {name for name in SHAPES if not name.startswith("layers.")}
    it.as_printed(not outside)
    it.right(outside == {"embed_tokens.weight", "norm.weight", "lm_head.weight"})
    it.right(len(LAYER) == 9)


def F5(it: Evidence) -> None:
    """Every memory cost is quantified.

    The text never counts the logits (1.96 GiB in two bytes at 8,192 tokens), the
    normalised input of the feed-forward block (128 MiB per layer), or the numbers that
    norms and FlashAttention save for each row (2 MiB per layer)."""
    saved, logits = of_a_layer(), 8_192 * LLAMA.vocabulary * 2
    rows = saved["norm_1.rstd"] + saved["norm_2.rstd"] + saved["attended.attended.lse"]
    uncounted = sum(saved.values()) - 2_016 * MIB  # the sum of the table of §4.1
    it.as_printed(uncounted + logits == 0)
    it.right(uncounted == saved["fed.up.x"] + rows and round(logits / GIB, 2) == 1.96)
    it.right(saved["fed.up.x"] == 128 * MIB and round(rows / MIB) == 2)


def F6(it: Evidence) -> None:
    """The text does not wave its hands.

    Whether an argument is hand-waving is a judgement, which no computation settles."""


def F7(it: Evidence) -> None:
    r"""A pre-norm layer is $h_\text{mid} = x + \text{Attn}(\text{RMSNorm}(x))$, then
    $h_\text{out} = h_\text{mid} + \text{FFN}(\text{RMSNorm}(h_\text{mid}))$.

    This is checked against the package's Llama on sequences of one token, which no
    rotation changes."""
    config = llama.Config(11, 7, 1, 4, 2, 4, 11, eps=EPS)
    w, table, head = weights(), numbers(11, 7), numbers(11, 7, seed=1)
    named = dict(zip(llama.parameter_shapes(config), [table, *w], strict=False))
    named = {name: array.T for name, array in named.items()}
    named |= {"embed_tokens.weight": table, "norm.weight": np.ones(7)}
    tokens, targets = np.array([[3], [7], [1]]), np.array([[2], [0], [9]])
    ours, _ = llama.forward(
        named | {"lm_head.weight": head}, tokens, targets, config=config
    )
    h = layer(*tensors(table[tokens], *w))
    logits = norm(h, None) @ torch.tensor(head.T)
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(targets).flatten()
    )
    it.as_printed(same(loss.numpy(), ours))


def F8(it: Evidence) -> None:
    r"""The input is $x \in \mathbb{R}^{B \times S \times d}$, and $d = 8192$ for Llama
    3 70B."""
    it.as_printed(LLAMA.width == 8192 == SHAPES["embed_tokens.weight"][1])
    it.as_printed(layer(*tensors(X, *weights())).shape == X.shape)


def F9(it: Evidence) -> None:
    """Llama 3 70B was trained on sequences of up to 8192 tokens.

    The published report {cite:p}`grattafiori2024llama` says so of the first stage,
    before the context was extended."""


def F10(it: Evidence) -> None:
    r"""The loss is a scalar, and $\partial L/\partial h_\text{out}$ has the shape of
    $h_\text{out}$, $B \times S \times d$."""
    dh = vjp(lambda h: (torch.sin(h) ** 3).mean(), X, 0.7)
    it.as_printed(same(dh, 0.7 * 3 * np.sin(X) ** 2 * np.cos(X) / X.size))


def F11(it: Evidence) -> None:
    r"""A layer's backward computes ten gradients: of its input, four attention
    matrices, three feed-forward matrices, and two scales $\gamma_1$, $\gamma_2$."""
    kinds = [sum(part in name for name in LAYER) for part in ("attn.", "mlp.", "norm.")]
    it.as_printed(kinds == [4, 3, 2] and len(LAYER) + 1 == 10)


def F12(it: Evidence) -> None:
    """SwiGLU has three matrices."""
    wider = dataclasses.replace(LLAMA, feed_forward=LLAMA.feed_forward + 1)
    more = cost.tally(wider, 1, 8).parameters - cost.tally(LLAMA, 1, 8).parameters
    it.as_printed(more == 80 * 3 * 8192)


def F13(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial h_\text{mid}} = \frac{\partial L}{\partial
    h_\text{out}} \cdot (I + J)$ with $J$ the Jacobian of
    $\text{FFN}(\text{RMSNorm}(h_\text{mid}))$.

    The gradient is laid out as a row, with the output's index of $J$ first. For a
    column it is $I + J^\top$."""
    dx = vjp(lambda x: x + block(x), X, G).ravel()
    J = jacobian(block, X).reshape(42, 42)
    it.as_printed(same(G.ravel() @ (np.eye(42) + J), dx))
    it.right(same((np.eye(42) + J.T) @ G.ravel(), dx))
    it.right(not same((np.eye(42) + J) @ G.ravel(), dx))


def F14(it: Evidence) -> None:
    """The gradient flows through a residual connection unchanged, plus a term from the
    feed-forward path."""
    it.as_printed(same(vjp(lambda x: x + block(x), X, G), G + vjp(block, X, G)))


def F15(it: Evidence) -> None:
    """Residual connections prevent vanishing gradients, because the identity path
    preserves the gradient's magnitude whatever the Jacobian of the block is.

    One term of the sum keeps its length; the sum can have any length. With a block's
    Jacobian of −I it is 0, and with −0.9 I it falls by a factor of 10⁸⁰ in 80
    blocks."""

    def through(slope: float, blocks: int) -> float:
        g = G
        for _ in range(blocks):
            g = vjp(lambda x: x + slope * x, X, g)
        return float(np.linalg.norm(g) / np.linalg.norm(G))

    it.as_printed(all(through(slope, 1) == 1 for slope in (-1.0, -0.9, 0.5)))
    it.right(through(-1.0, 1) == 0)
    it.right(np.isclose(np.log10(through(-0.9, 80)), -80))


def F16(it: Evidence) -> None:
    """Autograd frameworks do not form the whole Jacobian; they compute vector-Jacobian
    products.

    This is shown for PyTorch: no result of its backward has more elements than the
    input."""
    x = torch.tensor(numbers(900), requires_grad=True)
    y, dy = torch.softmax(torch.sin(x), 0), torch.tensor(numbers(900, seed=1))
    sizes = [size for _, size in operations(lambda: torch.autograd.grad(y, x, dy))]
    it.as_printed(0 < max(sizes) <= 900)  # the Jacobian has 900 times as many elements


def F17(it: Evidence) -> None:
    """The residual's backward copies the incoming gradient, passes it through block and
    norm, and adds the result to the copy.

    The copy is needed: without it the addition would also change the incoming
    gradient."""
    expected = vjp(lambda x: x + block(x), X, G)
    for copied in (True, False):
        given = G.copy()
        both = given.copy() if copied else given
        both += vjp(block, X, given)
        it.as_printed(same(both, expected))
        it.right(same(given, G) is copied)
