"""§2.2.3: the formulas of the block's components."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.sequences import attended, framework_layer, reaches
from backpass_ledger.claims.tools import derives, numbers, same, torch

CLAIMS = """
T55  true          0  attention     attention/heads               §2.2.3, projections
T56  caveat        3  attention     attention/scaled_dot_product  §2.2.3, attention
T57  inconsistent  2  attention     attention/heads               §2.2.3, matrices of attention
T58  caveat        2  feed-forward  networks/encoder_decoder      §2.2.3, place of the feed-forward network
T59  true          0  feed-forward  operations/feed_forward       §2.2.3, feed-forward formula and shapes
T60  caveat        1  feed-forward  operations/feed_forward       §2.2.3, width of the feed-forward network
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
    values, gradients = its.attention_run(5, 3)
    for name in "QKV":
        it.as_printed(
            same(
                np.einsum("ab,bc->ac", values.X, getattr(values, f"W_{name}")),
                getattr(values, name),
            )
        )
        it.as_printed(getattr(gradients, f"W_{name}").shape == (3, 3))


def T56(it: Evidence) -> None:
    r"""$Y = \mathrm{softmax}(QK^T/\sqrt d)\,V$ with $d$ the model's width.

    The divisor is the square root of a head's width, which is $\sqrt d$ for one head;
    with two heads, of width $d/2$, the printed root computes a different function.
    """
    q, k, v = (torch.tensor(numbers(2, 5, 3, seed=i)) for i in range(3))
    library = torch.nn.functional.scaled_dot_product_attention
    one = (q[0] @ k[0].T / 3**0.5).softmax(1) @ v[0]
    it.as_printed(same(one, library(q[:1], k[:1], v[:1])[0]))
    two = (q @ k.mT / 6**0.5).softmax(2) @ v
    it.elsewhere(same(two, library(q, k, v)))


def T57(it: Evidence) -> None:
    r"""The learned matrices of self-attention are $W^Q$, $W^K$, and $W^V$, and $Y$ is
    its output.

    The analysis has a fourth matrix, $W^O$, whose product is the output. Its gradient
    and that of $Y$ cost $4nd^2$.
    """
    n, d = 5, 6
    library = torch.nn.MultiheadAttention(d, 1, bias=False)
    elements = sum(p.numel() for p in library.parameters())
    it.clashes(elements != 3 * d**2)
    it.right(elements == 4 * d**2)
    y, w = numbers(n, d), numbers(d, d)
    ran = its.steps(its.product, y.T, y) + its.steps(its.product, y, w)
    it.right(ran == 4 * n * d**2)


def T58(it: Evidence) -> None:
    """The feed-forward network is applied to each row of attention's output.

    It acts on each row by itself. Its input is the norm of the sum of attention's
    output and the residual, not attention's output.
    """
    layer, x = framework_layer(), torch.tensor(numbers(1, 5, 4))
    taken: list[Any] = []
    layer.linear1.register_forward_hook(
        lambda _, inputs, y: taken.append((inputs[0], y))
    )
    layer(x)
    (given, hidden), attention = taken[0], layer.self_attn(x, x, x)[0]
    rows = torch.stack([layer.linear1(row) for row in given[0]])
    it.as_printed(same(rows.detach(), hidden[0].detach()))
    it.elsewhere(same(given.detach(), attention.detach(), 1e-2))
    it.right(same(given.detach(), layer.norm1(x + attention).detach()))


def T59(it: Evidence) -> None:
    r"""$\mathrm{FFN}(\underline x) = \max(0, \underline xW_1 + \underline b_1)W_2 +
    \underline b_2$ with $W_1 \in \mathbb R^{d \times d_{ff}}$, $W_2 \in \mathbb
    R^{d_{ff} \times d}$, $\underline b_1 \in \mathbb R^{d_{ff}}$, $\underline b_2 \in
    \mathbb R^d$; ReLU acts on each element."""
    layer, x = framework_layer(), numbers(5, 4)
    w = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    w_1, w_2 = w["linear1.weight"].T, w["linear2.weight"].T
    b_1, b_2 = w["linear1.bias"], w["linear2.bias"]
    found = [np.maximum(0, row @ w_1 + b_1) @ w_2 + b_2 for row in x]
    expected = layer.linear2(layer.linear1(layer.norm1.weight.new_tensor(x)).relu())
    it.as_printed(same(found, expected.detach()))
    it.as_printed(
        (w_1.shape, w_2.shape, b_1.shape, b_2.shape) == ((4, 8), (8, 4), (8,), (4,))
    )


def T60(it: Evidence) -> None:
    r"""$d_{ff}$ is typically larger than $d$, often $4d$.

    This holds for the original and for GPT-2. Networks with a gate have other widths:
    Llama 2 has 11,008 for 4,096, which is 2.69.
    """
    known = cost.presets()
    it.as_printed(
        all(
            known[f"gpt2{size}"].feed_forward == 4 * known[f"gpt2{size}"].width
            for size in ("", "-medium", "-xl")
        )
    )
    it.as_printed(all(config.feed_forward > config.width for config in known.values()))
    llama = known["llama-2-7b"]
    it.elsewhere(llama.feed_forward == 4 * llama.width)
    it.right(
        (llama.feed_forward, llama.width, round(llama.feed_forward / llama.width, 2))
        == (11_008, 4_096, 2.69)
    )


def T61(it: Evidence) -> None:
    """The feed-forward network brings a non-linear map into the model.

    It is not the only one: attention is not linear in its input either.
    """
    x, y = torch.tensor(numbers(2, 5, 3))
    weights = its.block_weights(3)
    fed = [
        its.feed_forward(t, *(weights[k] for k in ("W_1", "b_1", "W_2", "b_2")))["Z"]
        for t in (x, y, x + y, 0 * x)
    ]
    it.as_printed(not same(fed[0] + fed[1] - fed[3], fed[2], 1e-3))
    it.right(not same(attended(x) + attended(y), attended(x + y), 1e-3))


def T62(it: Evidence) -> None:
    """Self-attention mixes positions, and the feed-forward network processes each
    position by itself."""
    weights = [its.block_weights(3)[k] for k in ("W_1", "b_1", "W_2", "b_2")]
    of_rows = reaches(lambda t: its.feed_forward(t, *weights)["Z"], numbers(4, 3))
    it.as_printed(bool((of_rows == np.eye(4, dtype=bool)).all()))
    it.as_printed(bool(reaches(attended, numbers(4, 3)).all()))


def T63(it: Evidence) -> None:
    """A recent study shows how important the feed-forward network is.

    The study's abstract says so. Its networks have only a decoder's stack; the text
    counts an encoder.
    """


def T64(it: Evidence) -> None:
    """The norm is applied to each row before each sub-layer.

    The text says three times that it studies the original block, which applies the norm
    after each residual sum. The text never says which order it counts. The count of one
    block is the same for both orders; the gradients are not.
    """
    x = torch.tensor(numbers(5, 4), requires_grad=True)
    dy = torch.tensor(numbers(5, 4, seed=1))
    pre, post = (
        torch.autograd.grad(its.block(x, its.block_weights(), pre=order), x, dy)[0]
        for order in (True, False)
    )
    it.clashes(not same(pre, post, 1e-2))
    it.right(framework_layer().norm_first is False)


def T65(it: Evidence) -> None:
    r"""$\mathrm{LayerNorm}(\underline x) = \underline\gamma \odot \frac{\underline x -
    \underline\mu}{\sqrt{\sigma^2 + \epsilon}} + \underline\beta$, for each row."""
    printed = r"""
        \text{LayerNorm}(\underline{\mathbf{x}})
        = \underline{\gamma} \odot
        \frac{\underline{\mathbf{x}} - \underline{\mu}}{\sqrt{\sigma^2 + \epsilon}}
        + \underline{\beta}
    """
    given = r"""
        given x, \gamma, \beta \in \mathbb{R}^{1 \times d}, \epsilon \in \mathbb{R}_{>0}
        let \mu = \text{mean}(x) \mathbf{1}_d^\top
        let \sigma^2 = \text{mean}(x \odot x) - \text{mean}(x)^2
        let h(z) = \text{mean}(z \odot z) - \text{mean}(z)^2
        let g(z)_j = \frac{z_j - \text{mean}(z)}{\sqrt{h(z) + \epsilon}}
        let \text{LayerNorm}(z)_j = \gamma_j g(z)_j + \beta_j
        read \underline{#1} as #1
        read \mathbf{x} as x
    """
    it.as_printed(derives(printed, given))
    x, gamma, beta = numbers(5, 7), numbers(7, seed=1), numbers(7, seed=2)
    found = [gamma * (row - row.mean()) / np.sqrt(row.var() + 0.3) + beta for row in x]
    arrays = [torch.tensor(a) for a in (x, gamma, beta)]
    expected = torch.nn.functional.layer_norm(
        arrays[0], (7,), arrays[1], arrays[2], 0.3
    )
    it.as_printed(same(found, expected))


def T66(it: Evidence) -> None:
    r"""LayerNorm subtracts $\underline\mu$, a vector by its underline.

    The sentence below it and the later section have the number $\mu$; subtracting
    either gives the same row. The text also writes both $\epsilon$ and $\varepsilon$,
    both $\mathcal L(\theta)$ and $\mathcal L(\underline\theta)$, and both $X_{ik}$ and
    $x_{ik}$.
    """
    x = numbers(5)
    number, vector = x.mean(), np.full(5, x.mean())
    it.clashes(np.shape(number) != np.shape(vector))
    it.right(same(x - vector, x - number))


def T67(it: Evidence) -> None:
    r"""$\mu$ and $\sigma^2$ are the mean and the variance of the elements of $x$.

    The variance is the mean square of the deviations, divided by $d$, as the later
    section writes it. PyTorch's `var` divides by $d - 1$ unless told otherwise.
    """
    x = torch.tensor(numbers(5, 4))
    expected = torch.nn.functional.layer_norm(x, (4,), eps=0.0)
    centred = x - x.mean(1, keepdim=True)
    it.as_printed(same(centred / x.var(1, correction=0, keepdim=True).sqrt(), expected))
    it.elsewhere(same(centred / x.var(1, keepdim=True).sqrt(), expected))


def T68(it: Evidence) -> None:
    r"""The analysis assumes $\varepsilon = 0$ for simplicity.

    A row of equal elements is then divided by 0, and nothing becomes simpler: with
    $\sqrt{\sigma^2 + \varepsilon}$ for $\sigma$ every later line holds as it stands, at
    the same count.
    """
    values, gradients = its.norm_run()
    it.as_printed(same(its.norm_backward(gradients.Z, values)["X"], gradients.X))
    row = np.ones((1, 4))
    with np.errstate(all="ignore"):
        it.elsewhere(bool(np.isfinite((row - row.mean()) / row.std()).all()))

    def build(**arrays: Any) -> dict[str, Any]:
        return its.norm(**arrays, epsilon=0.3)

    given = {name: getattr(values, name) for name in ("X", "gamma", "beta")}
    run = its.traced(build, **given)
    it.right(same(its.norm_backward(run[1].Z, run[0])["X"], run[1].X))


def T69(it: Evidence) -> None:
    r"""LayerNorm stabilises training by normalising the inputs of the next component.

    The text gives neither a measurement nor a source. With $\gamma$ and $\beta$, the
    inputs of the next component are not normalised.
    """
