"""§3.1.3: the normalisation layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass.interpreters import counting
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import at_all_sizes, printed, steps
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, numbers, same, torch

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
T177  caveat        1  FLOPs     operations/layer_norm  §3.1.3, input, condition
T178  inconsistent  4  FLOPs     foundations/counting   Chapter 3, how a sum is counted
T179  inconsistent  5  FLOPs     operations/layer_norm  §3.1.3, summary, parameters
T180  true          0  FLOPs     operations/layer_norm  §3.1.3, summary, input
T181  false         4  FLOPs     operations/layer_norm  §3.1.3, summary, a token
T182  false         4  FLOPs     operations/layer_norm  §3.1.3, summary, all rows
T183  caveat        1  FLOPs     operations/layer_norm  §3.1.3, summary, token by token
"""


xp: Any = counting.xp
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
    r"""$\underline\gamma, \underline\beta \in \mathbb R^d$, and a row is normalised
    over its $d$ features."""
    values, gradients = its.norm_run(5, 4)
    it.as_printed(gradients.gamma.shape == gradients.beta.shape == (4,))
    it.as_printed(same(values.Y.mean(1) + 1, np.ones(5)))
    it.as_printed(same((values.Y**2).mean(1), np.ones(5)))


def T156(it: Evidence) -> None:
    r"""$\mu_i = \frac1d\sum_{j=1}^d X_{ij}$."""
    values, _ = its.norm_run(5, 4)
    mu = [sum(values.X[i, j] for j in range(4)) / 4 for i in range(5)]
    it.as_printed(same(values.Y * values.sigma + np.array(mu)[:, None], values.X))


def T157(it: Evidence) -> None:
    r"""$\sigma_i^2 = \frac1d\sum_{j=1}^d (X_{ij} - \mu_i)^2$, $\sigma_i =
    \sqrt{\sigma_i^2}$."""
    lines = r"""
        \sigma_i^2 &= \frac{1}{d} \sum_{j=1}^d (X_{ij} - \mu_i)^2, \\
        \sigma_i &= \sqrt{\sigma_i^2},
    """
    it.as_printed(derives(lines, NORM))
    x = numbers(5, 4)
    sigma = x.std(1, keepdims=True)
    expected = torch.nn.functional.layer_norm(torch.tensor(x), (4,), eps=0.0)
    it.as_printed(same((x - x.mean(1, keepdims=True)) / sigma, expected))


def T158(it: Evidence) -> None:
    r"""$Y_{ij} = (X_{ij} - \mu_i)/\sigma_i$.

    This needs $\sigma_i > 0$, which the text does not say. With $\varepsilon = 0$, a
    row of equal elements gives 0/0.
    """

    def normalised(x: Any) -> Any:
        return (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)

    values, _ = its.norm_run()
    it.as_printed(same(normalised(values.X), values.Y))
    with np.errstate(all="ignore"):
        it.elsewhere(bool(np.isfinite(normalised(np.full((1, 4), 3.0))).all()))


def T159(it: Evidence) -> None:
    r"""$Z_i = \underline\gamma \odot Y_i + \underline\beta$."""
    values, _ = its.norm_run(5, 4)
    given = [torch.tensor(a) for a in (values.X, values.gamma, values.beta)]
    library = torch.nn.functional.layer_norm(given[0], (4,), given[1], given[2], 0.0)
    rows = [values.gamma * values.Y[i] + values.beta for i in range(5)]
    it.as_printed(same(rows, library))


def T160(it: Evidence) -> None:
    r"""$X$ is a layer's input, $Y$ the array before its last step, and $Z$ its output.

    The letters are reused in each layer. In one block with the norm first, attention's
    $X$ is the norm's $Z$, and each of the two has its own $X$ and $Y$. The printed
    gradients cannot be chained as they stand.
    """
    w, x = its.block_weights(4, 7), torch.tensor(numbers(5, 4))
    of_norm = its.norm(x, w["gamma_1"], w["beta_1"])
    x_of_attention = of_norm["Z"]
    of_attention = its.attention(x_of_attention, *(w[name] for name in its.WEIGHTS))
    it.clashes(not same(x_of_attention, x, 1e-3))
    it.clashes(not same(of_attention["Y"], of_norm["Y"], 1e-3))
    it.clashes(not same(of_attention["Z"], of_norm["Z"], 1e-3))


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

    It is for $\underline\gamma$ and $\underline\beta$, whose gradients are sums over
    the rows. The feed-forward layer's $\overline W_1$, $\overline W_2$,
    $\overline{\underline b_1}$, and $\overline{\underline b_2}$ have the same overbar
    and mean one row's share.
    """
    of_norm, of_layer = its.norm_run()[1], its.feed_forward_run()[1]
    beta_is_whole = same(sum(of_norm.Z), of_norm.beta)
    bias_is_whole = same(of_layer.Z[0], of_layer.b_2, 1e-3)
    it.clashes(beta_is_whole is not bias_is_whole)
    it.right(same(sum(of_layer.Z), of_layer.b_2))


def of_parameters(n: int, d: int, summed: Any) -> int:
    """Return the steps of the gradients of γ, β, and Y for n rows."""

    def ran(z_: Any, y: Any, gamma: Any) -> Any:
        return summed(z_ * y), summed(z_), z_ * gamma

    return steps(ran, numbers(n, d), numbers(n, d, seed=1), numbers(d))


def T165(it: Evidence) -> None:
    r"""For one row, the gradients of the parameters and of $Y$ take $3d$ operations.

    By the text's rule they take $4d$: two products and two sums over the rows. The
    exact count is $4nd - 2d$ for $n$ rows, and $2d$ for one row alone.
    """
    for n, d in its.SIZES:
        ran = of_parameters(n, d, its.total)
        it.as_printed(ran == n * 3 * d)
        it.right(printed("norm_w", h=d) == 3 * d)
        it.right(ran == 4 * n * d)
        it.right(of_parameters(n, d, its.sum_of_rows) == 4 * n * d - 2 * d)


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
    r"""The derivative of $\sigma_i^2$ is $\frac2d(x_{ik} - \mu_i)$.

    The step does not say why it may ignore that $\mu_i$ depends on $x_{ik}$ too: that
    part is a multiple of the sum of the deviations, which is 0.
    """
    line = r"""
        \frac{\partial \sigma_i}{\partial X_{ik}}
        = \frac{1}{2\sigma_i} \cdot \frac{2}{d}(x_{ik} - \mu_i)
    """
    it.as_printed(derives(line, NORM))
    it.right(derives(r"\sum_k (x_{ik} - \mu_i) = 0", NORM))


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
    r"""$\bar X_{ik} = \frac1{\sigma_i}\big(\bar Y_{ik} - \mathrm{mean}(\bar Y_i) -
    Y_{ik}\,\mathrm{mean}(\bar Y_i \odot Y_i)\big)$."""
    line = r"""
        \bar{X}_{ik}
        &= \frac{1}{\sigma_i} \left( \bar{Y}_{ik} - \text{mean}(\bar{Y}_i)
        - Y_{ik} \text{mean}(\bar{Y}_i \odot Y_i) \right),
    """
    it.as_printed(derives(line, NORM))


def of_input(y_: Any, y: Any, sigma: Any) -> Any:
    """Return the printed gradient of the input, each mean computed once a row."""
    d = y.shape[1]
    means = [xp.sum(a, axis=1, keepdims=True) / d for a in (y_, y_ * y)]
    return (y_ - means[0] - y * means[1]) / sigma


def input_steps(n: int, d: int) -> int:
    """Return the steps of the printed gradient of n rows."""
    return steps(of_input, numbers(n, d), numbers(n, d, seed=1), numbers(n, 1, low=1))


def T176(it: Evidence) -> None:
    r"""The gradient of a norm's input takes $7d$ operations a row.

    By the exact count it does, if $Y$ and $\sigma$ are saved. Each mean takes $d - 1$
    additions and a division.
    """
    it.as_printed(
        at_all_sizes(lambda n, d: input_steps(n, d) == n * printed("norm_x", h=d))
    )


def T177(it: Evidence) -> None:
    r"""The count assumes that each row's mean is computed once and used again.

    There are two means, and both have to be reused. With one of them recomputed for
    each element, a row takes more than $2d^2$. $Y$ and $\sigma_i$ have to be saved as
    well.
    """
    n, d = 3, 9

    def second_anew(y_: Any, y: Any, sigma: Any) -> Any:
        mean = xp.sum(y_, axis=1, keepdims=True) / d
        dots = [xp.sum(y_ * y, axis=1, keepdims=True) / d for _ in range(d)]
        return (y_ - mean - y * xp.concat(dots, axis=1)) / sigma

    it.as_printed(input_steps(n, d) == 7 * n * d)
    one_reused = steps(second_anew, numbers(n, d), numbers(n, d), numbers(n, 1, low=1))
    it.elsewhere(one_reused == 7 * n * d)
    it.right(one_reused > n * 2 * d**2)


def T178(it: Evidence) -> None:
    r"""A sum of $n$ terms counts $n$, as in $2mnp$ and in the softmax's $2n$, and the
    gradient of a norm's input takes $7d$ a row.

    The two counts follow different rules: $7d$ is right only if a sum of $d$ terms
    counts $d - 1$. By the rule of $2mnp$ the two means make it $7d + 2$ a row, and the
    block's total $4n$ larger.
    """

    def mean(a: Any) -> Any:  # its sum starts at 0, as those of 2mnp do
        whole = xp.zeros((a.shape[0], 1))
        for k in range(a.shape[1]):
            whole = whole + a[:, k : k + 1]
        return whole / a.shape[1]

    def by_rule(y_: Any, y: Any, sigma: Any) -> Any:
        return (y_ - mean(y_) - y * mean(y_ * y)) / sigma

    for n, d in its.SIZES:
        ran = steps(by_rule, numbers(n, d), numbers(n, d, seed=1), numbers(n, 1, low=1))
        it.clashes(ran != n * printed("norm_x", h=d))
        it.right(ran == n * (7 * d + 2))
        it.right(input_steps(n, d) == n * printed("norm_x", h=d))


def T179(it: Evidence) -> None:
    r"""The gradients of a norm's parameters and of the normalised input take $2d$ a
    row.

    For the same step the text above has $3d$. The correct count is $4d$: the $2d$ have
    neither of the two sums over rows that the section prints.
    """
    n, d = 5, 4
    it.clashes(printed("norm_w", h=d) != printed("norm_w_summary", h=d))
    it.right((printed("norm_w", h=d), printed("norm_w_summary", h=d)) == (3 * d, 2 * d))
    it.right(of_parameters(n, d, its.total) == 4 * n * d)
    it.right(of_parameters(n, d, lambda x: x) == n * printed("norm_w_summary", h=d))


def T180(it: Evidence) -> None:
    r"""In the summary, the gradient of a norm's input takes $7d$ a row."""
    for n, d in its.SIZES:
        it.as_printed(input_steps(n, d) == n * 7 * d)


def T181(it: Evidence) -> None:
    r"""The backward of a norm takes $9d$ a token.

    $2d + 7d$ is $9d$. With the $3d$ of the text it would be $10d$, and with both sums
    over the rows it is $11d$.
    """
    n, d = 5, 4
    whole = its.counted(its.norm_run(n, d), its.norm_backward, summed=its.total)
    it.as_printed(whole == n * 9 * d)
    it.right(printed("norm_w_summary", h=d) + printed("norm_x", h=d) == 9 * d)
    it.right(printed("norm_w", h=d) + printed("norm_x", h=d) == 10 * d)
    it.right(of_parameters(n, d, its.total) + input_steps(n, d) == n * 11 * d)


def T182(it: Evidence) -> None:
    r"""For $X \in \mathbb R^{n \times d}$ the backward of a norm takes $9nd$.

    It is exactly $11nd - 2d$, so $9nd$ is right for one token and 18 % too low for
    many.
    """
    for n, d in its.SIZES:
        ran = its.counted(its.norm_run(n, d), its.norm_backward)
        it.as_printed(ran == 9 * n * d)
        it.right(ran == 11 * n * d - 2 * d)
        it.right((ran == 9 * n * d) == (n == 1))
        it.right(printed("norm", s=n, h=d) == 9 * n * d)
    it.right(round(100 * (1 - 9 / 11)) == 18)


def T183(it: Evidence) -> None:
    r"""The cost of a norm's backward is $n$ times its cost for a token.

    This holds for the gradient of the input. The parameters' gradients are sums over
    tokens, which one token does not have: $n$ times its $2d$ is not $4nd - 2d$.
    """
    n, d = 5, 4
    it.as_printed(input_steps(n, d) == n * input_steps(1, d))
    one, all_rows = (of_parameters(k, d, its.sum_of_rows) for k in (1, n))
    it.elsewhere(all_rows == n * one)
    it.right(one == 2 * d and all_rows == 4 * n * d - 2 * d)
