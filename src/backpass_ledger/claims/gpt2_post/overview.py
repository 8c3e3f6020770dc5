"""Introduction, the architecture, the chain rule, and the classes of operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass.cost import sources
from backpass.cost.published import named, value
from backpass.models import gpt2
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import jacobian, numbers, raises, same, torch, vjp

CLAIMS = """
G1   uncheckable  0  FLOPs       cost/tally                introduction
G2   true         0  FLOPs       cost/ratio                introduction
G3   left-out     3  FLOPs       cost/ratio                introduction
G4   left-out     4  FLOPs       cost/tally                introduction
G5   true         0  embeddings  networks/gpt2             architecture
G6   true         0  residual    networks/gpt2             architecture
G7   true         0  loss        operations/output_head    architecture
G8   caveat       1  loss        operations/cross_entropy  architecture
G9   caveat       3  chain rule  foundations/chain_rule    chain rule
G10  true         0  chain rule  foundations/chain_rule    chain rule
G11  caveat       5  chain rule  foundations/chain_rule    chain rule
G12  caveat       2  chain rule  foundations/chain_rule    chain rule
G13  caveat       1  chain rule  foundations/chain_rule    chain rule
G14  false        1  notation    foundations/notation      chain rule
G15  uncheckable  0  FLOPs       foundations/counting      classes
G16  caveat       1  FLOPs       foundations/counting      classes
G17  true         0  matmul      operations/linear         classes, 1
G18  false        4  softmax     operations/softmax        classes, 2
G19  left-out     3  FLOPs       foundations/counting      classes, 3
G20  true         0  FLOPs       cost/tally                contractions, first sentence
"""


ROWS = {row.name: row for row in sources.ROWS if row.source == sources.GPT2_POST}
TOTALS = {row.name: row for row in sources.TOTALS if row.source == sources.GPT2_POST}
GPT2 = {"b": 1, "s": 1024, "h": 768, "n_h": 12, "d": 64, "V": 50257, "L": 12}


def first_calls(part: str) -> list[str]:
    """Return the names of the calls of a part of GPT-2, in the order of the forward."""
    rows = cost.tally("gpt2", 1, 8).rows
    return list(dict.fromkeys(row.term.call for row in rows if row.part == part))


def stored_by(function: Any, x: Any) -> tuple[Any, list[Any]]:
    """Return a function's result on a tensor, and what it stores for its backward."""
    stored: list[Any] = []

    def store(tensor: Any) -> Any:
        stored.append(tensor)
        return tensor

    x = torch.tensor(x, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
        y = function(x)
    return y, stored


def G1(it: Evidence) -> None:
    """The FLOPs of GPT's forward have been analysed often, those of the backward not in
    similar detail.

    This is a statement about the literature; our copy of the text lacks its three
    references. Papers on large-scale training count the backward's products.
    """


def G2(it: Evidence) -> None:
    """The backward is usually quoted as about twice the FLOPs of the forward.

    It has exactly twice as many in matrix products. With every operation counted, the
    ratio is 1.9969 for GPT-2 at 1,024 tokens.
    """
    it.as_printed(named("hoffmann-backward").at(F=1) == 2)
    at = {**GPT2, "f": 4 * GPT2["h"]}
    layers = GPT2["L"] * named("narayanan-layer").at(**at)
    forward = layers + GPT2["b"] * named("hoffmann-logits").at(**at)
    it.as_printed(named("korthikanti-model").at(**at) == 3 * forward)
    it.as_printed(
        named("nanogpt-step").at(**at) == 3 * named("nanogpt-forward").at(**at)
    )
    step = cost.tally("gpt2", 1, 1024)
    it.right(step.ratio("products") == 2)
    it.right(round(step.ratio("counted"), 4) == 1.9969)


def G3(it: Evidence) -> None:
    """The text explains the factor 2.

    The text counts no forward and forms no ratio. Its printed total is 2.0058 times the
    forward's products for GPT-2 at 1,024 tokens; with a forward counted in the same way
    the ratio is below 2.
    """
    step = cost.tally("gpt2", 1, 1024)
    it.left_out(step.flops("sum-n")["forward"])
    printed = value(TOTALS["network"].printed, **GPT2)
    it.right(round(printed / step.flops("products")["forward"], 4) == 2.0058)
    it.right(step.ratio("sum-n") < 2)


def G4(it: Evidence) -> None:
    """The text derives the gradients of each operation of the network.

    The four matrix products of a GPT-2 layer have biases, and the model has dropout in
    four places (embeddings, attention weights, attention output, and feed-forward
    output), a causal mask, and a head that shares the table of tokens. The text
    mentions none of them, and it does not derive the gradients of attention's two
    products.
    """
    config = cost.configuration("gpt2")
    shapes = gpt2.parameter_shapes(config)
    biases = [n for n in shapes if n.startswith("h.0.") and n.endswith(".bias")]
    norms = [n for n in biases if ".ln_" in n]
    it.left_out(sum(shapes[n][0] for n in biases if n not in norms))
    it.right(len(biases) - len(norms) == 4 and config.tied)
    plain, dropped = (
        cost.tally("gpt2", 1, 8, masks=masks).by(lambda row: row.term.call)
        for masks in (False, True)
    )
    grown = {
        call: flops["backward"] - plain.get(call, {"backward": 0})["backward"]
        for call, flops in dropped.items()
    }
    it.right(sum(more > 0 for more in grown.values()) == 4)
    it.left_out(sum(grown.values()))


def G5(it: Evidence) -> None:
    r"""GPT-2 looks each token up in a $(V, h)$ matrix, adds positional embeddings, and
    passes the sum through a stack of layers."""
    config = cost.configuration("gpt2")
    shapes = gpt2.parameter_shapes(config)
    it.as_printed(shapes["wte.weight"] == (config.vocabulary, config.width))
    it.as_printed(first_calls("embedding") == ["token embedding", "position embedding"])


def G6(it: Evidence) -> None:
    """In each layer a norm precedes attention and the feed-forward block, and a
    residual connection follows each."""
    calls = first_calls("layer")
    at = [
        calls.index(name)
        for name in (
            "first norm",
            "attention",
            "first residual sum",
            "second norm",
            "up projection",
            "second residual sum",
        )
    ]
    it.as_printed(at == sorted(at))


def G7(it: Evidence) -> None:
    """After the layers come one more LayerNorm and a linear map to a logit for each
    token of the vocabulary.

    In GPT-2 the map has no bias, and its matrix is the table of tokens.
    """
    it.as_printed(first_calls("last norm") == ["last norm"])
    it.as_printed(first_calls("output head")[0] == "output head")
    untied = gpt2.Config.from_hugging_face(
        {
            **gpt2.to_hugging_face(cost.configuration("gpt2")),
            "tie_word_embeddings": False,
        }
    )
    own = set(gpt2.parameter_shapes(untied)) - set(
        gpt2.parameter_shapes(cost.configuration("gpt2"))
    )
    it.right(own == {"lm_head.weight"})


def G8(it: Evidence) -> None:
    """The loss is the cross-entropy of the logits against the true distribution of the
    next token.

    Softmax is applied to the logits first. The target of each position is one class,
    the next token, and the usual loss is the mean.
    """
    x, t = torch.tensor(numbers(4, 7)), torch.tensor([3, 0, 6, 2])
    one_hot = torch.nn.functional.one_hot(t, 7)
    expected = torch.nn.functional.cross_entropy(x, t)
    entropy = -(one_hot * torch.softmax(x, -1).log()).sum(-1).mean()
    it.as_printed(same(entropy, expected))
    it.elsewhere(same(-(one_hot * x.log()).sum(-1).mean(), expected))


def G9(it: Evidence) -> None:
    r"""The model is one composition $L = f_1 \circ f_2 \circ \dots \circ f_n$ of
    functions such as projections, softmax, and LayerNorm.

    This holds if each function is a whole block with its residual connection; $f_n$
    then runs first. The functions that the text names form a graph: a layer's input is
    used by the norm and by the sum, and the norm's output by three projections.
    """
    x, w = numbers(5), torch.tensor(numbers(5, 5))

    def block(x: Any) -> Any:
        return x + torch.tanh(x @ w)

    after = block(torch.tensor(x)).numpy()
    whole = jacobian(lambda x: block(block(x)), x)
    it.as_printed(same(jacobian(block, after) @ jacobian(block, x), whole))
    tanh, linear = jacobian(torch.tanh, x @ w.numpy()), jacobian(lambda x: x @ w, x)
    it.elsewhere(same(tanh @ linear, jacobian(block, x)))
    it.right(same(np.eye(5) + tanh @ linear, jacobian(block, x)))


def G10(it: Evidence) -> None:
    """Every intermediate value has a gradient, because the functions are
    differentiable.

    This holds for softmax, LayerNorm with a positive ε, and GELU. ReLU, which GPT-2
    does not use, has no derivative at 0.
    """
    from torch.nn import functional as F

    x = torch.tensor(numbers(3, 5), requires_grad=True)
    for operation in (
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x, -1),
        lambda x: F.layer_norm(x, (5,), eps=0.1),
        lambda x: F.gelu(x, approximate="tanh"),
    ):
        it.as_printed(torch.autograd.gradcheck(operation, x))
    step = 1e-6
    slopes = [float(np.maximum(sign * step, 0)) / (sign * step) for sign in (1, -1)]
    it.right(slopes == [1.0, 0.0])


def G11(it: Evidence) -> None:
    r"""For an input $x$ of $f_i$ and its output $y$, $\partial L/\partial x$ is
    $\partial L/\partial y$ times $\partial y/\partial x$.

    This holds if $x$ is used only by $f_i$. The gradient of a value that is used
    several times is the sum of such products: at residual connections, at queries,
    keys, and values, and at a shared table.
    """
    x, dy = numbers(5), numbers(5, seed=1)
    slope = jacobian(torch.tanh, x)
    it.as_printed(same(dy @ slope, vjp(torch.tanh, x, dy)))
    twice = vjp(lambda x: x + torch.tanh(x), x, dy)
    it.elsewhere(same(dy @ slope, twice))
    it.right(same(dy + dy @ slope, twice))


def G12(it: Evidence) -> None:
    r"""$\partial L/\partial y$ is multiplied by $\partial y/\partial x$, which is the
    gradient of $f_i$ with respect to its input.

    This is ordinary multiplication if both are single numbers, and so for each element
    of an element-wise function. For arrays, $\partial y/\partial x$ is a Jacobian, and
    the product sums over the axes of $y$: `np.einsum("ij,ijkl->kl", dy, slope)`.
    """
    x, dy = numbers(3, 5), numbers(3, 5, seed=1)
    own = [[jacobian(torch.tanh, x[i, j]) for j in range(5)] for i in range(3)]
    it.as_printed(same(dy * np.array(own), vjp(torch.tanh, x, dy)))
    w = numbers(5, 5)
    slope = jacobian(lambda x: torch.softmax(x @ x.new_tensor(w), -1), x)
    dx = vjp(lambda x: torch.softmax(x @ x.new_tensor(w), -1), x, dy)
    it.elsewhere(same(dy * slope, dx))
    it.right(same(np.einsum("ij,ijkl->kl", dy, slope), dx))


def G13(it: Evidence) -> None:
    """The gradient of a tensor always has the tensor's shape.

    This holds for every floating-point tensor. Tokens and targets are integers and have
    no gradient.
    """
    x, w, dy = numbers(2, 3, 5), numbers(5, 7), numbers(2, 3, 7)
    dx, dw = vjp(lambda x, w: torch.softmax(x @ w, -1), (x, w), dy)
    it.as_printed(dx.shape == x.shape and dw.shape == w.shape)
    tokens = torch.tensor([3, 1])
    it.elsewhere(not raises(RuntimeError, tokens.requires_grad_))


def G14(it: Evidence) -> None:
    """Each element needs a derivative *with respect to the loss*.

    It needs the loss's derivative with respect to the element, as in the text's
    formulas.
    """
    x = numbers(5)
    of_the_loss = vjp(lambda x: x**2, x, np.ones(5))
    it.as_printed(same(of_the_loss, 1 / (2 * x)))  # ∂x/∂L
    it.right(same(of_the_loss, 2 * x))


def G15(it: Evidence) -> None:
    """*Data Movement Is All You Need* sorts a transformer's operations into tensor
    contractions, statistical normalizations, and element-wise operators.

    This is a statement about a paper, Ivanov et al. (2021), which has these three
    classes. Its second class is softmax and LayerNorm; its third is biases, dropout,
    activations, and residual connections. The text adds log-softmax and the scale.
    """


def G16(it: Evidence) -> None:
    """The classes are in the order of FLOPs for each byte that is moved.

    By the text's own counts, products come before softmax, and softmax before the
    scale. But GELU's backward, with 19 FLOPs an element, has more for each byte than
    softmax's, with 4.
    """
    product = 4 * 768 * 768 / (2 * (768 + 768) + 768 * 768 / 1024)  # a token's share
    softmax, scale, gelu = (
        ROWS[name].at(b=1, s=1024, n_h=1, h=768) / elements / arrays
        for name, elements, arrays in (
            ("softmax", 1024**2, 3),
            ("scaling", 1024**2, 2),
            ("gelu", 4 * 1024 * 768, 3),
        )
    )
    it.as_printed(product > softmax > scale)
    it.elsewhere(softmax > gelu)
    it.right(ROWS["gelu"].at(b=1, s=1, h=1) == 4 * 19)


def G17(it: Evidence) -> None:
    """The tensor contractions are the matrix products of attention, of the feed-forward
    block, and of the output head."""
    rows = cost.tally("gpt2", 1, 8).rows
    it.as_printed(
        {row.term.call for row in rows if row.term.product}
        == {
            "query, key, value projection",
            "attention",
            "output projection",
            "up projection",
            "down projection",
            "output head",
        }
    )


def G18(it: Evidence) -> None:
    """Softmax, log-softmax, and LayerNorm reduce over the hidden dimension.

    Only LayerNorm does. Attention's softmax reduces over the keys and log-softmax over
    the vocabulary, as they do in the text's own counts.
    """
    b, n_h, s, h, V = 2, 3, 5, 12, 7
    reduced = {"softmax": s, "log_softmax": V}
    at = {"b": b, "n_h": n_h, "s": s, "h": h, "V": V}
    for name, rows in (("softmax", b * n_h * s), ("log_softmax", b * s)):
        of_a_row = ROWS[name].at(**at) // rows // 4
        it.as_printed(of_a_row == h)
        it.right(of_a_row == reduced[name])
    it.right(ROWS["input"].at(**at) // (b * s) // 8 == h)


def G19(it: Evidence) -> None:
    """The element-wise operators are activations, the scale of attention, and residual
    connections.

    Biases and dropout are missing from the class and from the tally. The gradients of
    the biases alone take about $9bsh$ additions a layer.
    """
    b, s, h = 2, 5, 12
    widths = (3 * h, h, 4 * h, h)
    ran = sum(
        cost.count("linear", (b * s, h), (h, wide), (wide,)).backward.total
        - cost.count("matmul", (b * s, h), (h, wide)).backward.total
        for wide in widths
    )
    it.left_out(ran)
    it.right(ran == 9 * (b * s - 1) * h)


def G20(it: Evidence) -> None:
    """Matrix multiplication dominates the FLOPs.

    Products make up 99.7 % of the printed total for the smallest GPT-2 at its full
    context.
    """
    products = sum(
        ROWS[name].at(**GPT2) * (1 if name == "lm_head" else 12)
        for name in (
            "lm_head",
            "mlp_down",
            "mlp_up",
            "attn_out",
            "attn@value",
            "query@key",
            "qkv_proj",
        )
    )
    share = products / value(TOTALS["network"].printed, **GPT2)
    it.as_printed(share > 0.5)
    it.right(round(100 * share, 1) == 99.7)
