"""Introduction, the architecture, the chain rule, and the classes of operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass.cost.published import named, value
from backpass.models import gpt2
from backpass_ledger import sources
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
G8   true         0  loss        operations/cross_entropy  architecture
G9   caveat       3  chain rule  foundations/chain_rule    chain rule
G10  true         0  chain rule  foundations/chain_rule    chain rule
G11  caveat       5  chain rule  foundations/chain_rule    chain rule
G12  caveat       2  chain rule  foundations/chain_rule    chain rule
G13  true         0  chain rule  foundations/chain_rule    chain rule
G14  inconsistent  0  notation    foundations/notation      chain rule
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
CONFIG = cost.configuration("gpt2")
SHAPES = gpt2.parameter_shapes(CONFIG)
# of a layer's products: its norms have others
BIASES = [n for n in SHAPES if n.startswith("h.0.") and ".c_" in n and "bias" in n]
X, DY, W = numbers(5), numbers(5, seed=1), numbers(5, 5)


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

    with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
        return function(torch.tensor(x, requires_grad=True)), stored


def flash_stores_less() -> bool:
    """Whether flash attention stores less for GPT-2's backward."""
    kinds = (cost.activations(CONFIG, 1, 64, flash=flash) for flash in (True, False))
    flash, plain = (kind.bytes or 0 for kind in kinds)
    return flash < plain


def weighted(x: Any) -> Any:
    """Return the product with the module's matrix."""
    return x @ x.new_tensor(W)


def residual(x: Any) -> Any:
    """Return a small block with a residual connection."""
    return x + torch.tanh(weighted(x))


def G1(it: Evidence) -> None:
    """GPT's forward FLOPs are often analysed, those of the backward in less detail.

    This is a statement about the literature; our copy of the text lacks its three
    references. Papers on large-scale training count the backward's products."""


def G2(it: Evidence) -> None:
    """The backward is usually quoted as about twice the FLOPs of the forward.

    It has exactly twice as many in matrix products. With every operation counted, the
    ratio is 1.9969 for GPT-2 at 1,024 tokens."""
    it.as_printed(named("hoffmann-backward").at(F=1) == 2)
    at = {**GPT2, "f": 4 * GPT2["h"]}
    forward = GPT2["L"] * named("narayanan-layer").at(**at)
    forward += GPT2["b"] * named("hoffmann-logits").at(**at)
    it.as_printed(named("korthikanti-model").at(**at) == 3 * forward)
    nano = [named(f"nanogpt-{part}").at(**at) for part in ("step", "forward")]
    it.as_printed(nano[0] == 3 * nano[1])
    step = cost.tally("gpt2", 1, 1024)
    it.right(step.ratio("products") == 2 and round(step.ratio(), 4) == 1.9969)


def G3(it: Evidence) -> None:
    """The text explains the factor 2.

    The text counts no forward and forms no ratio. Its printed total is 2.0058 times the
    forward's products for GPT-2 at 1,024 tokens; with a forward counted in the same way
    the ratio is below 2."""
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
    mentions none of them, and derives no gradient of attention's two products."""
    it.left_out(sum(SHAPES[name][0] for name in BIASES))
    it.right(len(BIASES) == 4 and CONFIG.tied)
    plain, dropped = (
        cost.tally("gpt2", 1, 8, masks=masks).by(lambda row: row.term.call)
        for masks in (False, True)
    )
    places = [call for call in dropped if dropped[call] != plain.get(call)]
    it.left_out(len(places))
    it.right(len(places) == 4)


def G5(it: Evidence) -> None:
    r"""GPT-2 looks each token up in a $(V, h)$ matrix, adds positional embeddings, and
    passes the sum through a stack of layers."""
    it.as_printed(SHAPES["wte.weight"] == (CONFIG.vocabulary, CONFIG.width))
    it.as_printed(first_calls("embedding") == ["token embedding", "position embedding"])
    parts = dict.fromkeys(row.part for row in cost.tally("gpt2", 1, 8).rows)
    it.as_printed([*parts][:2] == ["embedding", "layer"] and CONFIG.layers > 1)


def G6(it: Evidence) -> None:
    """In each layer a norm precedes attention and the feed-forward block, and a
    residual connection follows each."""
    attention = ("first norm", "attention", "first residual sum")
    block = ("second norm", "up projection", "second residual sum")
    order = [*map(first_calls("layer").index, attention + block)]
    it.as_printed(order == sorted(order))


def G7(it: Evidence) -> None:
    """After the layers come a LayerNorm and a linear map to logits of all tokens."""
    it.as_printed(first_calls("last norm") == ["last norm"])
    it.as_printed(first_calls("output head")[0] == "output head")


def G8(it: Evidence) -> None:
    """The loss is the cross-entropy of the logits against the tokens' true
    distribution.

    Softmax is applied to the logits first; the loss is the mean over positions."""
    logits, t = torch.tensor(numbers(4, 7)), torch.tensor([3, 0, 6, 2])
    one_hot = torch.nn.functional.one_hot(t, 7)
    entropy = -(one_hot * torch.softmax(logits, -1).log()).sum(-1).mean()
    it.as_printed(same(entropy, torch.nn.functional.cross_entropy(logits, t)))


def G9(it: Evidence) -> None:
    r"""The model is one composition $L = f_1 \circ f_2 \circ \dots \circ f_n$ of
    functions such as projections, softmax, and LayerNorm.

    This holds if each function is a whole block with its residual connection; $f_n$
    then runs first. The functions that the text names form a graph: a layer's input is
    used by the norm and by the sum, and the norm's output by three projections."""
    after = residual(torch.tensor(X)).numpy()
    whole = jacobian(lambda x: residual(residual(x)), X)
    first = jacobian(residual, X)
    it.as_printed(same(jacobian(residual, after) @ first, whole))
    functions = jacobian(torch.tanh, X @ W) @ jacobian(weighted, X)
    it.elsewhere(same(functions, first))
    it.right(same(np.eye(5) + functions, first))


def G10(it: Evidence) -> None:
    """Any intermediate value has a gradient, because the functions are differentiable.

    This holds for softmax, LayerNorm with a positive ε, and GELU. ReLU, which GPT-2
    does not use, has no derivative at 0."""
    functional = torch.nn.functional
    given = torch.tensor(numbers(3, 5), requires_grad=True)
    for operation in (
        weighted,
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x, -1),
        lambda x: functional.layer_norm(x, (5,), eps=0.1),
        lambda x: functional.gelu(x, approximate="tanh"),
        lambda x: functional.cross_entropy(x, torch.tensor([3, 0, 4])),
    ):
        it.as_printed(torch.autograd.gradcheck(operation, given))
    it.right([max(step, 0) / step for step in (1e-6, -1e-6)] == [1.0, 0.0])


def G11(it: Evidence) -> None:
    r"""For an input $x$ of $f_i$ and its output $y$, $\partial L/\partial x$ is
    $\partial L/\partial y$ times $\partial y/\partial x$.

    This holds if $x$ is used only by $f_i$. The gradient of a value that is used
    several times is the sum of such products: at residual connections, at queries,
    keys, and values, and at a shared table."""
    printed = DY @ jacobian(torch.tanh, X)
    it.as_printed(same(printed, vjp(torch.tanh, X, DY)))
    twice = vjp(lambda x: x + torch.tanh(x), X, DY)
    it.elsewhere(same(printed, twice))
    it.right(same(DY + printed, twice))


def G12(it: Evidence) -> None:
    r"""$\partial L/\partial y$ is multiplied by $\partial y/\partial x$, which is the
    gradient of $f_i$ with respect to its input.

    This is ordinary multiplication if both are single numbers, and so for each element
    of an element-wise function. For arrays, $\partial y/\partial x$ is a Jacobian, and
    the product sums over the axes of $y$: `np.einsum("ij,ijkl->kl", dy, slope)`."""
    x, dy = numbers(3, 5), numbers(3, 5, seed=1)
    own = [[jacobian(torch.tanh, each) for each in row] for row in x]
    it.as_printed(same(dy * np.array(own), vjp(torch.tanh, x, dy)))
    slope = jacobian(lambda x: torch.softmax(weighted(x), -1), x)
    dx = vjp(lambda x: torch.softmax(weighted(x), -1), x, dy)
    it.elsewhere(same(dy * slope, dx))
    it.right(same(np.einsum("ij,ijkl->kl", dy, slope), dx))


def G13(it: Evidence) -> None:
    """The gradient of any tensor of the network has the tensor's shape.

    Tokens and targets are integers: the loss has no derivative with respect to them, of
    which the sentence speaks."""
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0)
    given = [torch.randn(4, 3, 6, requires_grad=True), *layer.parameters()]
    gradients = torch.autograd.grad(layer(given[0]).sum(), given)
    it.as_printed([g.shape for g in gradients] == [tensor.shape for tensor in given])
    it.right(raises(RuntimeError, torch.tensor([3, 1]).requires_grad_))


def G14(it: Evidence) -> None:
    r"""The derivative that each element needs is one *with respect to the loss*.

    The text's formulas have the derivative of the loss by the element, $\frac{\partial
    L}{\partial x}$, which is meant."""
    of_the_loss = vjp(lambda x: x**2, X, np.ones(5))
    it.right(same(of_the_loss, 2 * X))
    it.clashes(not same(of_the_loss, 1 / (2 * X)))  # ∂x/∂L


def G15(it: Evidence) -> None:
    """*Data Movement Is All You Need* sorts a transformer's operations into tensor
    contractions, statistical normalizations, and element-wise operators.

    This is a statement about a paper, Ivanov et al. (2021), which has these three
    classes. Its second class is softmax and LayerNorm; its third is biases, dropout,
    activations, and residual connections. The text adds log-softmax and the scale."""


def G16(it: Evidence) -> None:
    """The classes are in the order of FLOPs for each byte that is moved.

    By the text's own counts, products come before softmax, and softmax before the
    scale. But GELU's backward, with 19 FLOPs per element, precedes softmax's, of 4."""
    product = 4 * 768 * 768 / (2 * (768 + 768) + 768 * 768 / 1024)  # a token's share
    softmax, scale = (ROWS[name].at(b=1, s=1, n_h=1) for name in ("softmax", "scaling"))
    gelu = ROWS["gelu"].at(b=1, s=1, h=1) / 4
    it.as_printed(product > softmax / 3 > scale / 2)  # of three and of two arrays
    it.elsewhere(softmax / 3 > gelu / 3)
    it.right((gelu, softmax) == (19, 4))


def G17(it: Evidence) -> None:
    """The tensor contractions are the matrix products of attention, of the feed-forward
    block, and of the output head."""
    rows = cost.tally("gpt2", 1, 8).rows
    attention = {"query, key, value projection", "attention", "output projection"}
    others = {"up projection", "down projection", "output head"}
    it.as_printed({r.term.call for r in rows if r.term.product} == attention | others)


def G18(it: Evidence) -> None:
    """Softmax, log-softmax, and LayerNorm reduce over the hidden dimension.

    Only LayerNorm does. Attention's softmax reduces over the keys and log-softmax over
    the vocabulary, as they do in the text's own counts."""
    b, n_h, s, h, V = 2, 3, 5, 12, 7
    at = {"b": b, "n_h": n_h, "s": s, "h": h, "V": V}
    for name, rows, reduced in (("softmax", b * n_h * s, s), ("log_softmax", b * s, V)):
        of_a_row = ROWS[name].at(**at) // rows // 4
        it.as_printed(of_a_row == h)
        it.right(of_a_row == reduced)
    it.right(ROWS["input"].at(**at) // (b * s) // 8 == h)


def G19(it: Evidence) -> None:
    """The element-wise operators are activations, attention's scale, and residual sums.

    Biases and dropout are missing from the class and from the tally. The gradients of
    the biases alone take about $9bsh$ additions per layer."""
    b, s, h = 2, 5, 12
    ran = sum(
        cost.count("linear", (b * s, h), (h, wide), (wide,)).backward.total
        - cost.count("matmul", (b * s, h), (h, wide)).backward.total
        for wide in (3 * h, h, 4 * h, h)
    )
    it.left_out(ran)
    it.right(ran == 9 * (b * s - 1) * h)


def G20(it: Evidence) -> None:
    """Matrix multiplication dominates the FLOPs.

    Products are 99.7 % of the printed total for GPT-2 at its full context."""
    names = ("mlp_down", "mlp_up", "attn_out", "attn@value", "query@key", "qkv_proj")
    products = ROWS["lm_head"].at(**GPT2)
    products += 12 * sum(ROWS[name].at(**GPT2) for name in names)
    share = products / value(TOTALS["network"].printed, **GPT2)
    it.as_printed(share > 0.5)
    it.right(round(100 * share, 1) == 99.7)
