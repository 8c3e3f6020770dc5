"""§2.2.3: the formulas of the block's components."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.sequences import attended, framework_layer, reaches
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
T55  true          0  attention     attention/heads               §2.2.3, projections
T56  caveat        3  attention     attention/scaled_dot_product  §2.2.3, attention
T57  inconsistent  2  attention     attention/heads               §2.2.3, matrices of attention
T58  caveat        2  feed-forward  networks/encoder_decoder      §2.2.3, place of the feed-forward network
T59  true          0  feed-forward  operations/feed_forward       §2.2.3, feed-forward formula and shapes
T60  true          0  feed-forward  operations/feed_forward       §2.2.3, width of the feed-forward network
T61  true          0  feed-forward  operations/feed_forward       §2.2.3, what is non-linear
T62  true          0  feed-forward  operations/feed_forward       §2.2.3, what mixes positions
T63  uncheckable   0  feed-forward  operations/feed_forward       §2.2.3, reference [4]
T64  inconsistent  5  norms         networks/encoder_decoder      §2.2.3, place of the norm
T65  true          0  norms         operations/layer_norm         §2.2.3, LayerNorm
T66  inconsistent  1  notation      reference/letters             Chapters 2 and 3, marks of vectors
T67  caveat        1  norms         operations/layer_norm         §2.2.3, variance
T68  caveat        2  norms         operations/layer_norm         §2.2.3, ε = 0
T69  uncheckable   0  norms         operations/layer_norm         §2.2.3, why to normalise
"""


def T55(it: Evidence) -> None:
    r"""$Q = XW^Q$, $K = XW^K$, $V = XW^V$ with $X \in \mathbb R^{n \times d}$ and
    learned matrices $W \in \mathbb R^{d \times d}$."""
    values, gradients = (vars(each) for each in its.attention_run(5, 3))
    for name in "QKV":
        found = np.einsum("ab,bc->ac", values["X"], values[f"W_{name}"])
        it.as_printed(same(found, values[name]))
        it.as_printed(gradients[f"W_{name}"].shape == (3, 3))


def T56(it: Evidence) -> None:
    r"""$Y = \mathrm{softmax}(QK^T/\sqrt d)\,V$ with $d$ the model's width.

    The divisor is the square root of a head's width, which is $\sqrt d$ for one head;
    with two heads, of width $d/2$, the printed root computes a different function."""
    for heads, judge in ((1, it.as_printed), (2, it.elsewhere)):
        q, k, v = torch.tensor(numbers(3, heads, 5, 3))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        judge(same((q @ k.mT / (heads * 3) ** 0.5).softmax(2) @ v, expected))


def T57(it: Evidence) -> None:
    r"""Self-attention's learned matrices are $W^Q$, $W^K$, $W^V$; its output is $Y$.

    The analysis has a fourth matrix, $W^O$, whose product is the output. The two
    gradients of that product cost $4nd^2$."""
    library = torch.nn.MultiheadAttention(6, 1, bias=False)
    elements = sum(p.numel() for p in library.parameters())
    it.clashes(elements != 3 * 6**2)
    it.right(elements == 4 * 6**2)
    it.right(its.takes(its.products("dnd ndd"), lambda n, d: 4 * n * d**2))


def T58(it: Evidence) -> None:
    """The feed-forward network is applied to each row of attention's output.

    It acts on each row by itself. Its input is not attention's output, but the norm of
    the sum of that output and the residual."""
    layer, x = framework_layer(), torch.tensor(numbers(1, 5, 4))
    inputs: list[Any] = []
    layer.linear1.register_forward_hook(lambda _, given, y: inputs.append((*given, y)))
    layer(x)
    (given, hidden), attention = inputs[0], layer.self_attn(x, x, x)[0]
    rows = torch.stack([layer.linear1(row) for row in given[0]])
    it.as_printed(same(rows.detach(), hidden[0].detach()))
    it.elsewhere(same(given.detach(), attention.detach(), 1e-2))
    it.right(same(given.detach(), layer.norm1(x + attention).detach()))


def T59(it: Evidence) -> None:
    r"""$\mathrm{FFN}(\underline x) = \max(0, \underline xW_1 + \underline b_1)W_2 +
    \underline b_2$ with $W_1 \in \mathbb R^{d \times d_{ff}}$, $W_2 \in \mathbb
    R^{d_{ff} \times d}$, $\underline b_1 \in \mathbb R^{d_{ff}}$, $\underline b_2 \in
    \mathbb R^d$; ReLU acts on each element."""
    layer, x = framework_layer(), torch.tensor(numbers(5, 4))
    one, two = layer.linear1, layer.linear2
    w_1, b_1, w_2, b_2 = (
        p.detach().numpy().T for p in (one.weight, one.bias, two.weight, two.bias)
    )
    found = [np.maximum(0, row @ w_1 + b_1) @ w_2 + b_2 for row in x.numpy()]
    it.as_printed(same(found, two(one(x).relu()).detach()))
    shapes = [a.shape for a in (w_1, w_2, b_1, b_2)]
    it.as_printed(shapes == [(4, 8), (8, 4), (8,), (4,)])


def T60(it: Evidence) -> None:
    r"""$d_{ff}$ is typically larger than $d$, often $4d$.

    This holds for the original and for GPT-2. Networks with a gate have other widths:
    Llama 2 has 11,008 for 4,096, which is 2.69."""
    known = cost.presets()
    widths = {name: (c.feed_forward, c.width) for name, c in known.items()}
    it.as_printed(all(f > d for f, d in widths.values()))
    it.as_printed(all(f == 4 * d for k, (f, d) in widths.items() if "gpt2" in k))
    it.right(
        widths["llama-2-7b"] == (11_008, 4_096) and round(11_008 / 4_096, 2) == 2.69
    )


def T61(it: Evidence) -> None:
    """The feed-forward network brings a non-linear map into the model.

    It is not the only one: attention is not linear in its input either."""
    x, y = torch.tensor(numbers(2, 5, 3))
    weights = [its.block_weights(3)[k] for k in its.FED]
    fed = [its.feed_forward(t, *weights)["Z"] for t in (x, y, x + y, 0 * x)]
    it.as_printed(not same(fed[0] + fed[1] - fed[3], fed[2], 1e-3))
    it.right(not same(attended(x) + attended(y), attended(x + y), 1e-3))


def T62(it: Evidence) -> None:
    """Self-attention mixes positions; the feed-forward network mixes none of them."""
    weights = [its.block_weights(3)[k] for k in its.FED]
    of_rows = reaches(lambda t: its.feed_forward(t, *weights)["Z"], numbers(4, 3))
    it.as_printed(bool((of_rows == np.eye(4, dtype=bool)).all()))
    it.as_printed(bool(reaches(attended, numbers(4, 3)).all()))


def T63(it: Evidence) -> None:
    """A recent study shows how important the feed-forward network is.

    The study's abstract says so, of networks that have only a decoder's stack."""


def T64(it: Evidence) -> None:
    """The norm is applied to each row before each sub-layer.

    The text says three times that it studies the original block, which applies the norm
    after each residual sum, and never says which order it counts. Both orders cost the
    same; their gradients differ."""
    x, dy = numbers(5, 4), numbers(5, 4, seed=1)
    pre, post = (
        vjp(partial(its.block, w=its.block_weights(), pre=order), x, dy)
        for order in (True, False)
    )
    it.clashes(not same(pre, post, 1e-2))
    it.right(framework_layer().norm_first is False)


def T65(it: Evidence) -> None:
    r"""$\text{LayerNorm}(\underline{x}) = \underline{\gamma} \odot \frac{\underline{x}
    - \underline{\mu}}{\sqrt{\sigma^2 + \epsilon}} + \underline{\beta}$, for each
    row."""
    it.derives(r"""
        given x, \gamma, \beta \in \mathbb{R}^{1 \times d}, \epsilon \in \mathbb{R}_{>0}
        let \mu = \text{mean}(x) \mathbf{1}_d^\top
        let \sigma^2 = \text{mean}(x \odot x) - \text{mean}(x)^2
        let h(z) = \text{mean}(z \odot z) - \text{mean}(z)^2
        let g(z)_j = \frac{z_j - \text{mean}(z)}{\sqrt{h(z) + \epsilon}}
        let \text{LayerNorm}(z)_j = \gamma_j g(z)_j + \beta_j
        read \underline{#1} as #1
    """)
    x, (gamma, beta) = numbers(5, 7), numbers(2, 7)
    found = [gamma * (row - row.mean()) / np.sqrt(row.var() + 0.3) + beta for row in x]
    given = [torch.tensor(a) for a in (x, gamma, beta)]
    library = torch.nn.functional.layer_norm(given[0], (7,), *given[1:], 0.3)
    it.as_printed(same(found, library))


def T66(it: Evidence) -> None:
    r"""LayerNorm subtracts $\underline\mu$, a vector by its underline.

    The sentence below it and the later section have the number $\mu$; subtracting
    either gives the same row. The text also has both $\epsilon$ and $\varepsilon$,
    $\mathcal L(\theta)$ and $\mathcal L(\underline\theta)$, $X_{ik}$ and $x_{ik}$."""
    x = numbers(5)
    number, vector = x.mean(), np.full(5, x.mean())
    it.clashes(np.shape(number) != np.shape(vector))
    it.right(same(x - vector, x - number))


def T67(it: Evidence) -> None:
    r"""$\mu$ and $\sigma^2$ are the mean and the variance of the elements of $x$.

    The variance is divided by $d$, as in the later section. PyTorch's `var` divides by
    $d - 1$ unless told otherwise."""
    x = torch.tensor(numbers(5, 4))
    expected = torch.nn.functional.layer_norm(x, (4,), eps=0.0)
    for correction, judge in ((0, it.as_printed), (1, it.elsewhere)):
        variance = x.var(1, correction=correction, keepdim=True)
        judge(same((x - x.mean(1, keepdim=True)) / variance.sqrt(), expected))
    it.right(same(x.var(1), x.var(1, correction=1)))


def T68(it: Evidence) -> None:
    r"""The analysis assumes $\varepsilon = 0$ for simplicity.

    A row of equal elements is then divided by 0, and nothing becomes simpler: with
    $\sqrt{\sigma^2 + \varepsilon}$ for $\sigma$ every later line and count holds."""
    given = {k: vars(its.norm_run()[0])[k] for k in ("X", "gamma", "beta")}
    for epsilon, judge in ((0.0, it.as_printed), (0.3, it.right)):
        run = its.traced(partial(its.norm, epsilon=epsilon), **given)
        found, count = its.lines(its.norm_backward, run[0], run[1].Z)
        judge(same(found["X"], run[1].X) and count == its.of_norm(5, 4, its.EXACT))
    equal = its.norm(torch.ones(1, 4), 1.0, 0.0)["Z"]
    it.elsewhere(bool(equal.isfinite().all()))


def T69(it: Evidence) -> None:
    r"""LayerNorm stabilises training by normalising the inputs of the next component.

    The text gives neither a measurement nor a source. With $\gamma$ and $\beta$, these
    inputs are not normalised."""
