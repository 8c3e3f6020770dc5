"""§3.1.3: the normalisation layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import printed, row, takes
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, same, torch

CLAIMS = """
T155  true          0  norms     operations/layer_norm  §3.1.3, shapes
T156  true          0  norms     operations/layer_norm  §3.1.3, forward, mean
T157  true          0  norms     operations/layer_norm  §3.1.3, forward, variance
T158  caveat        1  norms     operations/layer_norm  §3.1.3, forward, normalised row
T159  true          0  norms     operations/layer_norm  §3.1.3, forward, output
T160  inconsistent  2  notation  reference/letters      Chapter 3, letters
T161  true          0  norms     operations/layer_norm  §3.1.3, γ
T162  true          0  norms     operations/layer_norm  §3.1.3, β
T163  true          0  norms     operations/layer_norm  §3.1.3, Y
T164  inconsistent  5  notation  foundations/notation   §3.1.3 and §3.1.2, parameters
T165  false         4  FLOPs     operations/layer_norm  §3.1.3, parameters, cost in the text
T166  true          0  norms     operations/layer_norm  §3.1.3, quotient rule
T167  true          0  norms     operations/layer_norm  §3.1.3, mean's derivative
T168  true          0  norms     operations/layer_norm  §3.1.3, difference's derivative
T169  true          0  norms     operations/layer_norm  §3.1.3, deviation's derivative, first step
T170  true          0  norms     operations/layer_norm  §3.1.3, deviation's derivative, second step
T171  true          0  norms     operations/layer_norm  §3.1.3, deviation's derivative, result
T172  true          0  norms     operations/layer_norm  §3.1.3, Jacobian, first form
T173  true          0  norms     operations/layer_norm  §3.1.3, Jacobian, second form
T174  true          0  norms     operations/layer_norm  §3.1.3, input, sum
T175  true          0  norms     operations/layer_norm  §3.1.3, input, result
T176  true          0  FLOPs     operations/layer_norm  §3.1.3, input, cost
T177  true          0  FLOPs     operations/layer_norm  §3.1.3, input, condition
T178  inconsistent  4  FLOPs     foundations/counting   Chapter 3, how a sum is counted
T179  inconsistent  5  FLOPs     operations/layer_norm  §3.1.3, summary, parameters
T180  true          0  FLOPs     operations/layer_norm  §3.1.3, summary, input
T181  false         4  FLOPs     operations/layer_norm  §3.1.3, summary, a token
T182  false         4  FLOPs     operations/layer_norm  §3.1.3, summary, all rows
T183  caveat        1  FLOPs     operations/layer_norm  §3.1.3, summary, token by token
"""

NORM = r"""
    given x \in \mathbb{R}^{n \times d}, \gamma, \beta \in \mathbb{R}^d
    let X = x
    let \mu_i = \frac{1}{d} \sum_{j=1}^d X_{ij}
    let \sigma_i = \sqrt{\frac{1}{d} \sum_{j=1}^d (X_{ij} - \mu_i)^2}
    let Y_{ij} = \frac{X_{ij} - \mu_i}{\sigma_i}
    let Z_{ij} = \gamma_j Y_{ij} + \beta_j
    slice Y_i \in \mathbb{R}^d
    factor d
    bar gradient
"""


def T155(it: Evidence) -> None:
    r"""$\underline\gamma, \underline\beta \in \mathbb R^d$; a row is normalised over
    $d$."""
    values, gradients = its.norm_run(5, 4)
    it.as_printed(gradients.gamma.shape == gradients.beta.shape == (4,))
    it.as_printed(same(values.Y.mean(1) + 1, np.ones(5)))
    it.as_printed(same((values.Y**2).mean(1), np.ones(5)))


def normalised(x: Any) -> Any:
    """Return the rows as the text normalises them."""
    d = x.shape[1]
    mu = sum(x[:, j] for j in range(d))[:, None] / d
    sigma = (sum((x[:, j : j + 1] - mu) ** 2 for j in range(d)) / d) ** 0.5
    return (x - mu) / sigma


def library(x: Any, *parameters: Any) -> Any:
    """Return PyTorch's norm with ε = 0."""
    given = [torch.tensor(a) for a in (x, *parameters)]
    return torch.nn.functional.layer_norm(given[0], x.shape[1:], *given[1:], eps=0.0)


def T156(it: Evidence) -> None:
    r"""$\mu_i = \frac1d\sum_{j=1}^d X_{ij}$."""
    it.as_printed(same(normalised(numbers(5, 4)), library(numbers(5, 4))))


def T157(it: Evidence) -> None:
    r"""$\sigma_i^2 = \frac{1}{d} \sum_{j=1}^d (X_{ij} - \mu_i)^2$, $\sigma_i =
    \sqrt{\sigma_i^2}$."""
    it.derives(NORM)
    it.as_printed(same(normalised(numbers(3, 7)), library(numbers(3, 7))))


def T158(it: Evidence) -> None:
    r"""$Y_{ij} = (X_{ij} - \mu_i)/\sigma_i$.

    This needs $\sigma_i > 0$: with $\varepsilon = 0$, a row of equals gives 0/0."""
    it.as_printed(same(normalised(its.norm_run()[0].X), its.norm_run()[0].Y))
    with np.errstate(all="ignore"):
        it.elsewhere(bool(np.isfinite(normalised(np.full((1, 4), 3.0))).all()))


def T159(it: Evidence) -> None:
    r"""$Z_i = \underline\gamma \odot Y_i + \underline\beta$."""
    v, _ = its.norm_run(5, 4)
    rows = [v.gamma * y + v.beta for y in v.Y]
    it.as_printed(same(rows, library(v.X, v.gamma, v.beta)))


def T160(it: Evidence) -> None:
    r"""$X$ is a layer's input, $Y$ the array before its last step, and $Z$ its output.

    The letters are reused in each layer: with the norm first, attention's $X$ is the
    norm's $Z$, and each has its own $X$ and $Y$. The gradients cannot be chained as
    printed."""
    w, x = its.block_weights(4, 7), torch.tensor(numbers(5, 4))
    of_norm = its.norm(x, w["gamma_1"], w["beta_1"])
    of_attention = its.attention(of_norm["Z"], *(w[name] for name in its.WEIGHTS))
    it.clashes(not same(of_norm["Z"], x, 1e-3))
    for letter in "YZ":
        it.clashes(not same(of_attention[letter], of_norm[letter], 1e-3))


def T161(it: Evidence) -> None:
    r"""$\bar{\gamma}_j = \sum_i \bar{Z}_{ij} Y_{ij}$."""
    it.derives(NORM)


def T162(it: Evidence) -> None:
    r"""$\bar{\beta}_j = \sum_i \bar{Z}_{ij}$."""
    it.derives(NORM)


def T163(it: Evidence) -> None:
    r"""$\bar{Y}_{ij} = \bar{Z}_{ij} \gamma_j$."""
    it.derives(NORM)


def T164(it: Evidence) -> None:
    r"""The overbar of a parameter is the loss's derivative.

    It is for $\underline\gamma$ and $\underline\beta$: sums over the rows. The same
    overbar of the feed-forward layer's weights and biases means one row's share."""
    of_norm, of_layer = its.norm_run()[1], its.feed_forward_run()[1]
    beta_is_whole = same(sum(of_norm.Z), of_norm.beta)
    it.clashes(beta_is_whole is not same(of_layer.Z[0], of_layer.b_2, 1e-3))
    it.right(same(sum(of_layer.Z), of_layer.b_2))


def of_parameters(n: int, d: int, rule: Any = its.RULE) -> int:
    """Return the steps of the gradients of γ, β, and Y for n rows."""

    def ran(z_: Any, y: Any, gamma: Any) -> Any:
        return rule.sum(z_ * y, 0), rule.sum(z_, 0), z_ * gamma

    return its.steps(ran, numbers(n, d), numbers(n, d, seed=1), numbers(d))


def of_input(n: int, d: int, rule: Any = its.EXACT) -> int:
    """Return the steps of the printed gradient of the input of n rows."""
    rows, sigma = numbers(2, n, d), numbers(n, 1, low=1)
    return its.steps(partial(its.of_normalised, rule=rule), *rows, sigma)


def T165(it: Evidence) -> None:
    r"""For one row, the gradients of the parameters and of $Y$ take $3d$ operations.

    By the text's rule they take $4d$: two products and two sums over the rows. The
    exact count is $4nd - 2d$ for $n$ rows, and $2d$ for one row alone."""
    it.as_printed(takes(of_parameters, lambda n, d: n * printed("norm_w", h=d)))
    it.right(takes(of_parameters, lambda n, d: 4 * n * d))
    it.right(takes(of_parameters, lambda n, d: 4 * n * d - 2 * d, its.EXACT))


def T166(it: Evidence) -> None:
    r"""$\frac{\partial Y_{ij}}{\partial X_{ik}} = \frac{1}{\sigma_i} \frac{\partial
    (X_{ij} - \mu_i)}{\partial X_{ik}} - \frac{X_{ij} - \mu_i}{\sigma_i^2}
    \frac{\partial \sigma_i}{\partial X_{ik}}$."""
    it.derives(NORM)


def T167(it: Evidence) -> None:
    r"""$\frac{\partial \mu_i}{\partial X_{ik}} = \frac{1}{d}$."""
    it.derives(NORM)


def T168(it: Evidence) -> None:
    r"""$\frac{\partial \mu_i}{\partial X_{ik}} = \frac{1}{d} \implies \frac{\partial
    (X_{ij} - \mu_i)}{\partial X_{ik}} = \delta_{jk} - \frac{1}{d}$."""
    it.derives(NORM)


def T169(it: Evidence) -> None:
    r"""$\frac{\partial \sigma_i}{\partial X_{ik}} = \frac{1}{2\sqrt{\sigma_i^2}} \cdot
    \frac{\partial \sigma_i^2}{\partial x_{ik}}$."""
    it.derives(NORM)


def T170(it: Evidence) -> None:
    r"""$\frac{\partial \sigma_i}{\partial X_{ik}} = \frac{1}{2\sigma_i} \cdot
    \frac{2}{d}(x_{ik} - \mu_i)$.

    The step ignores that $\mu_i$ depends on $x_{ik}$ too. It may: that part is a
    multiple of $\sum_k (x_{ik} - \mu_i) = 0$."""
    it.derives(NORM)
    it.derives_right(NORM)


def T171(it: Evidence) -> None:
    r"""$\frac{\partial \sigma_i}{\partial X_{ik}} = \frac{x_{ik} - \mu_i}{d
    \sigma_i}$."""
    it.derives(NORM)


def T172(it: Evidence) -> None:
    r"""$\frac{\partial Y_{ij}}{\partial X_{ik}} = \frac{1}{\sigma_i} \left(\delta_{jk}
    - \frac{1}{d} - \frac{(X_{ij} - \mu_i)(X_{ik} - \mu_i)}{d \sigma_i^2} \right)$."""
    it.derives(NORM)


def T173(it: Evidence) -> None:
    r"""$\frac{\partial Y_{ij}}{\partial X_{ik}} = \frac{1}{\sigma_i} \left(\delta_{jk}
    - \frac{1}{d} - \frac{1}{d} Y_{ij} Y_{ik} \right)$."""
    it.derives(NORM)


def T174(it: Evidence) -> None:
    r"""$\bar{X}_{ik} = \sum_{j=1}^d \bar{Y}_{ij} \frac{\partial Y_{ij}}{\partial
    X_{ik}}$."""
    it.derives(NORM)


def T175(it: Evidence) -> None:
    r"""$\bar{X}_{ik} = \frac{1}{\sigma_i} \left( \bar{Y}_{ik} - \text{mean}(\bar{Y}_i)
    - Y_{ik} \text{mean}(\bar{Y}_i \odot Y_i) \right)$."""
    it.derives(NORM)


def T176(it: Evidence) -> None:
    r"""The gradient of a norm's input takes $7d$ operations per row.

    By the exact count it does, if $Y$ and $\sigma$ are saved: a mean takes $d$
    steps."""
    it.as_printed(takes(of_input, lambda n, d: n * printed("norm_x", h=d), its.EXACT))


def T177(it: Evidence) -> None:
    r"""The count assumes that a row's mean is computed once and used again.

    So it is, if both means are meant, and if $Y$ and $\sigma_i$ are saved. With the
    second mean computed anew for each element, a row takes more than $2d^2$."""
    n, d = 3, 9

    def anew(y_: Any, y: Any, sigma: Any) -> Any:
        dots = [its.summed(y_ * y, 1) / d for _ in range(d)]
        return (y_ - its.summed(y_, 1) / d - y * its.xp.concat(dots, axis=1)) / sigma

    it.as_printed(of_input(n, d) == 7 * n * d)
    second_anew = its.steps(anew, *numbers(2, n, d), numbers(n, 1, low=1))
    it.right(second_anew > n * 2 * d**2)


def T178(it: Evidence) -> None:
    r"""A sum of $n$ terms counts $n$, as in $2mnp$; a norm's input takes $7d$.

    The two counts follow different rules: $7d$ is right if a sum of $d$ terms counts $d
    - 1$. By the rule of $2mnp$ it is $7d + 2$ a row, and the block's total $4n$
    larger."""
    for n, d in its.SIZES:
        it.clashes(of_input(n, d, its.RULE) != n * printed("norm_x", h=d))
        it.right(of_input(n, d, its.RULE) == n * (7 * d + 2))
        it.right(of_input(n, d) == n * 7 * d)


def T179(it: Evidence) -> None:
    r"""The gradients of a norm's parameters and normalised input take $2d$ a row.

    For the same step the text above has $3d$. The correct count is $4d$: the $2d$ have
    neither of the two sums over rows that the section prints."""
    n, d = 5, 4
    above, summary = printed("norm_w", h=d), printed("norm_w_summary", h=d)
    it.clashes(above != summary)
    it.right((above, summary) == (3 * d, 2 * d))
    it.right(of_parameters(n, d) == 4 * n * d == n * summary + 2 * n * d)


def T180(it: Evidence) -> None:
    r"""In the summary, the gradient of a norm's input takes $7d$ a row."""
    it.as_printed(takes(of_input, lambda n, d: n * 7 * d, its.EXACT))


def T181(it: Evidence) -> None:
    r"""The backward of a norm takes $9d$ a token.

    $2d + 7d$ is $9d$. With the $3d$ of the text it would be $10d$, and with both sums
    $11d$."""
    d = 4
    of_x = printed("norm_x", h=d)
    it.as_printed(its.of_norm(5, d) == 5 * 9 * d)
    it.right(printed("norm_w_summary", h=d) + of_x == 9 * d)
    it.right(printed("norm_w", h=d) + of_x == 10 * d)
    it.right(its.of_norm(5, d) == 5 * 11 * d)


def T182(it: Evidence) -> None:
    r"""For $X \in \mathbb R^{n \times d}$ the backward of a norm takes $9nd$.

    It is exactly $11nd - 2d$: $9nd$ is right for one token, and 18 % low for many."""
    it.as_printed(takes(its.of_norm, row("norm"), its.EXACT))
    it.right(takes(its.of_norm, lambda n, d: 11 * n * d - 2 * d, its.EXACT))
    it.right(its.of_norm(1, 3, its.EXACT) == 9 * 3 == row("norm")(1, 3))
    it.right(round(100 * (1 - 9 / 11)) == 18)


def T183(it: Evidence) -> None:
    r"""The cost of a norm's backward is $n$ times its cost for a token.

    By the text's rule it is, if a token's cost has a term of each sum over rows. In
    what runs, one token's parameters take $2d$, those of $n$ tokens $4nd - 2d$."""
    n, d = 5, 4
    it.as_printed(its.of_norm(n, d) == n * its.of_norm(1, d))
    it.elsewhere(its.of_norm(n, d, its.EXACT) == n * its.of_norm(1, d, its.EXACT))
    one, all_rows = (of_parameters(k, d, its.EXACT) for k in (1, n))
    it.right(one == 2 * d and all_rows == 4 * n * d - 2 * d)
