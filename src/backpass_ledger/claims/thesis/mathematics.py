"""§2.1: the element-wise product, the softmax, the chain rule, and the loss."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, product
from math import log
from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence, equations_of
from backpass_ledger.claims.tools import derives, jacobian, numbers, same, torch, vjp

CLAIMS = """
T15  true         0  notation    foundations/notation      §2.1.1, element-wise product
T16  true         0  notation    foundations/notation      §2.1.1, Kronecker delta
T17  caveat       3  softmax     operations/softmax        §2.1.2, definition
T18  false        2  softmax     operations/softmax        §2.1.2, weights
T19  caveat       1  softmax     operations/softmax        §2.1.2, distribution
T20  true         0  softmax     operations/softmax        §2.1.2, derivative
T21  caveat       3  chain rule  foundations/chain_rule    §2.1.3, first sentence
T22  true         0  chain rule  foundations/chain_rule    §2.1.3, one variable
T23  true         0  chain rule  foundations/chain_rule    §2.1.3, several variables
T24  caveat       1  chain rule  operations/activations    §2.1.3, kinks
T25  caveat       3  chain rule  foundations/chain_rule    §2.1.3, last sentence
T26  caveat       1  loss        operations/cross_entropy  §2.1.4, what a loss measures
T27  uncheckable  0  loss        operations/cross_entropy  §2.1.4, primary loss
T28  caveat       3  loss        operations/cross_entropy  §2.1.4, cross-entropy
T29  caveat       1  loss        operations/cross_entropy  §2.1.4, below the cross-entropy
T30  caveat       1  training    numerics/optimiser        §2.1.4, aim
T31  caveat       1  optimiser   numerics/optimiser        §2.1.4, gradient descent in words
T32  true         0  chain rule  foundations/chain_rule    §2.1.4, an efficient gradient
T33  true         0  notation    foundations/notation      §2.1.4, overbar
"""

BOLD = r"\renewcommand{\mathbf}[1]{#1}"  # bold letters are read like others
VECTOR = rf"{BOLD}; given z \in \mathbb{{R}}^n"


def softmax(z: Any) -> Any:
    """Return the softmax of a vector as the text prints it."""
    return np.exp(z) / sum(np.exp(z[j]) for j in range(len(z)))


def T15(it: Evidence) -> None:
    r"""$(\mathbf{a} \odot \mathbf{b})_{i,j} = a_{i,j} \cdot b_{i,j}$ for two
    matrices."""
    it.derives(rf"{BOLD}; given a, b \in \mathbb{{R}}^{{n \times m}}")
    a, b = torch.tensor(numbers(2, 3, 5))
    each = [[a[i, j] * b[i, j] for j in range(5)] for i in range(3)]
    it.as_printed(same(torch.mul(a, b), each))


def T16(it: Evidence) -> None:
    r"""$\delta_{ij} = \begin{cases} 1 & \text{if } i = j \\ 0 & \text{if } i \neq j
    \end{cases}$, and the derivations of the backward use it often, as $\frac{\partial
    z_i}{\partial z_j} = \delta_{ij}$."""
    it.derives(VECTOR)


def T17(it: Evidence) -> None:
    r"""$\text{softmax}(\mathbf{z})_i = \frac{e^{z_i}}{\sum_{j=1}^n e^{z_j}}$.

    The formula is right for real numbers. In float32 $e^{z}$ overflows at $z$ from 89
    on, and the line returns NaN; the maximum has to be subtracted first."""
    it.derives(VECTOR)
    it.as_printed(same(softmax(numbers(7)), torch.tensor(numbers(7)).softmax(0)))
    large = np.array([89, 0], np.float32)
    with np.errstate(all="ignore"):
        it.elsewhere(bool(np.isfinite(softmax(large)).all()))
    it.right(bool(np.isfinite([softmax(large - 1), softmax(large - 89)]).all()))


def T18(it: Evidence) -> None:
    r"""Softmax uses the values as weights, so its outputs are positive and sum to 1.

    The weights are the exponentials $e^{z_i}$. With the values themselves, $z_i / \sum
    z_j$ is a different vector, negative here where $z_i$ is."""
    z = np.array([-1.0, 2.0, 0.5])
    it.as_printed(same(z / z.sum(), softmax(z)))
    it.as_printed(bool((z / z.sum() > 0).all()))
    it.right(same(np.exp(z) / np.exp(z).sum(), softmax(z)))


def T19(it: Evidence) -> None:
    r"""The outputs have the same size as the input, are all positive, and sum to 1.

    So it is for real numbers. In floating point the output is 0 for a value far below
    the maximum, and for a score masked with $-\infty$."""
    y = softmax(numbers(9))
    it.as_printed(y.shape == (9,) and bool((y > 0).all()) and same(y.sum(), 1.0))
    for far in (-800.0, -np.inf):
        it.elsewhere(bool((softmax(np.array([0.0, far])) > 0).all()))


def T20(it: Evidence) -> None:
    r"""$\frac{\partial \text{softmax}(\mathbf{z})_i}{\partial z_j} =
    \text{softmax}(\mathbf{z})_i (\delta_{ij} - \text{softmax}(\mathbf{z})_j)$.

    The text calls it the gradient; it is an entry of the Jacobian, which is symmetric:
    $\frac{\partial \text{softmax}(\mathbf{z})_i}{\partial z_j} = \frac{\partial
    \text{softmax}(\mathbf{z})_j}{\partial z_i}$."""
    it.derives(VECTOR)
    it.derives_right(VECTOR)


def T21(it: Evidence) -> None:
    """The chain rule significantly reduces the computation that training needs.

    Evaluated from the loss, it needs far fewer operations than differences of losses.
    The rule itself sets no order: evaluated from the input, the same product of
    Jacobians costs more than three times as much."""
    d = 6
    last, (second, first), x = numbers(1, d), numbers(2, d, d), numbers(d, 1)
    from_loss = its.steps(lambda c, b, a: c @ b @ a, last, second, first)
    from_input = its.steps(lambda c, b, a: c @ (b @ a), last, second, first)
    loss = its.steps(lambda c, b, a, x: c @ (b @ (a @ x)), last, second, first, x)
    it.as_printed(from_loss < 2 * d * loss)  # two evaluations for each input
    it.elsewhere(from_input < 3 * from_loss)
    it.right(from_loss == 2 * d * (2 * d - 1))


def T22(it: Evidence) -> None:
    r"""For $y = f(g(x))$, $\frac{dy}{dx} = \frac{df}{dg} \cdot \frac{dg}{dx}$.

    Both derivatives have to exist, which the text does not say. $\frac{df}{dg}$ is
    meant at $g(x)$: for $\sin(x^2)$, $\frac{dy}{dx} = \cos(x^2) \cdot 2x$."""
    rule, given = equations_of(it.says)[1], r"given x \in \mathbb{R}; "
    for inner, outer in (("e^x", "g^3"), ("x^3", "e^g"), ("x^2", r"\sin(g)")):
        functions = f"{given}let g = {inner}; let f = {outer}; let y = f"
        it.as_printed(derives(rule, functions))
    it.derives_right(functions)


def T23(it: Evidence) -> None:
    r"""For $g: \mathbb R^n \to \mathbb R^m$ and $f: \mathbb R^m \to \mathbb R$, the
    derivative $\partial y / \partial x_j$ is $\sum_{i=1}^m \frac{\partial f}{\partial
    u_i}\big|_{u = g(x)} \frac{\partial g_i}{\partial x_j}(x)$."""
    x, w, a = numbers(4), torch.tensor(numbers(3, 4)), torch.tensor(numbers(3))

    def g(t: Any) -> Any:
        return (w @ t).tanh()

    of_f = 2 * a * g(torch.tensor(x))  # of f(u) = Σ a_i u_i²
    found = [sum(of_f[i] * jacobian(g, x)[i, j] for i in range(3)) for j in range(4)]
    it.as_printed(same(found, vjp(lambda t: a @ g(t) ** 2, x, 1.0)))


def T24(it: Evidence) -> None:
    """The chain rule as printed holds for the functions of the text.

    ReLU has no derivative at 0. With a value chosen there the rule can be wrong: max(0,
    x) − max(0, −x) is x, and autograd's derivative at 0 is 0."""
    for x, judge in ((numbers(5), it.as_printed), (np.zeros(5), it.elsewhere)):
        found = vjp(lambda t: t.relu() - (-t).relu(), x, np.ones(5))
        judge(same(found, np.ones(5)))


def states(x: Any, *layers: Any) -> list[Any]:
    """Return a column and what each matrix, one after another, makes of it."""
    return list(accumulate(layers, lambda column, w: w @ column, initial=x))


def reverse(row: Any, x: Any, *layers: Any) -> list[Any]:
    """Return the gradient of ``row @ (… @ x)`` with respect to each matrix, transposed,
    from the loss's side."""
    before, found = states(x, *layers), []
    for i in reversed(range(len(layers))):
        found.append(before[i] @ row)
        row = row @ layers[i]
    return found[::-1]


def forward_mode(units: Any, row: Any, x: Any, *layers: Any) -> list[Any]:
    """Return the same gradients, with a pass from each element of a matrix on."""
    before, d = states(x, *layers), units.shape[0]

    def passed(i: int, k: int, j: int) -> Any:
        tangent = units[:, j : j + 1] * before[i][k : k + 1, :]
        return row @ states(tangent, *layers[i + 1 :])[-1]

    return [passed(*each) for each in product(range(len(layers)), range(d), range(d))]


def T25(it: Evidence) -> None:
    """The sum over paths makes backpropagation much more efficient than naive methods.

    One backward gives all gradients; central differences need two losses a parameter.
    The sum is not the reason: forward-mode differentiation uses the same sum and needs
    a pass for each parameter."""
    d = 6
    given = numbers(1, d, seed=9), numbers(d, 1), *numbers(3, d, d)  # last layer, input
    loss = its.steps(lambda row, x, *w: row @ states(x, *w)[-1], *given)
    backward = its.steps(reverse, *given)
    it.as_printed(20 * backward < 2 * 3 * d**2 * loss)
    it.elsewhere(its.steps(forward_mode, np.eye(d), *given) < 3 * backward)
    it.right(same(np.ravel(reverse(*given)), np.ravel(forward_mode(np.eye(d), *given))))


def T26(it: Evidence) -> None:
    """The loss measures how predictions and targets correlate, or that they do not.

    In the word's everyday sense it does: the more probability the target has, the
    smaller is the loss. In the statistical sense it does not: the predictions (0.34,
    0.33, 0.33) have correlation 1 with the target (1, 0, 0), and a loss of 1.08."""
    target, weak = np.array([1.0, 0, 0]), np.array([0.34, 0.33, 0.33])
    it.as_printed(-log(0.9) < -log(0.5) < -log(weak[0]))
    it.right(same(np.corrcoef(target, weak)[0, 1], 1.0))
    it.elsewhere(same(-log(weak[0]), 0.0))
    it.right(round(-log(weak[0]), 2) == 1.08 and same(weak.sum(), 1.0))


def T27(it: Evidence) -> None:
    """For language models, cross-entropy is the loss that is primarily used.

    This is a statement about what others use. The networks of this book use it too."""


def T28(it: Evidence) -> None:
    r"""$\mathcal L = -\sum_{i=1}^N \sum_{j=1}^C y_{ij} \log \hat y_{ij}$.

    The formula is the sum over $N$ examples. Training code averages by default, which
    makes the loss and every gradient smaller by the factor $N$."""
    logits, y = numbers(5, 4), np.eye(4)[[0, 3, 1, 1, 2]]
    by_text = -sum(y[i] @ np.log(softmax(logits[i])) for i in range(5))
    framework = partial(
        torch.nn.functional.cross_entropy, *map(torch.tensor, (logits, y))
    )
    it.as_printed(same(by_text, framework(reduction="sum")))
    it.elsewhere(same(by_text, framework()))
    it.right(same(by_text / 5, framework()))


def T29(it: Evidence) -> None:
    r"""The formula is the cross-entropy of the predictions $\hat y$ against $y$.

    This holds for one example. For $N$ examples the formula is a sum of $N$
    cross-entropies, which grows when an example is repeated."""
    y, predicted = np.array([[0.0, 1, 0]]), softmax(numbers(3))[None]
    for times, judge in ((1, it.as_printed), (2, it.elsewhere)):
        examples = np.repeat(y, times, 0), np.repeat(predicted, times, 0)
        by_text = -(examples[0] * np.log(examples[1])).sum()
        judge(same(by_text, -np.log(predicted[0, 1])))


def T30(it: Evidence) -> None:
    """Gradient descent changes the parameters so that the loss falls.

    This holds for a small rate. On a quadratic of curvature c, one above 2/c raises
    it."""
    curvature, theta = 3.0, 1.5
    rates = [0, 0.1, 1.9 / curvature, 2.1 / curvature]
    start, *after = [curvature * (theta * (1 - r * curvature)) ** 2 / 2 for r in rates]
    it.as_printed(after[0] < start)
    it.right(after[1] < start)
    it.elsewhere(after[2] < start)


def T31(it: Evidence) -> None:
    r"""The method updates parameters with some function, typically $\underline\theta_t
    - \eta\nabla\mathcal L(\underline\theta_t)$.

    Transformers are typically trained with Adam, as the section on training says. The
    size of Adam's first step does not depend on that of the gradient."""

    def moved(optimiser: str, scale: float) -> Any:
        theta = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        theta.grad = scale * torch.tensor([0.5, 4.0], dtype=torch.float64)
        getattr(torch.optim, optimiser)([theta], lr=0.1).step()
        return -theta.detach().numpy()

    it.as_printed(same(moved("SGD", 3.0), 0.1 * 3 * np.array([0.5, 4.0])))
    it.elsewhere(same(moved("Adam", 3.0), 3 * moved("Adam", 1.0), 1e-3))
    it.right(same(moved("Adam", 3.0), moved("Adam", 1.0), 1e-6))


def T32(it: Evidence) -> None:
    """Training in a reasonable time requires an efficient way to compute the gradient.

    With one-sided differences, one loss for each parameter, a gradient of GPT-2 would
    take over forty million times the FLOPs of forward and backward."""
    step = cost.tally("gpt2", 1, 1_024)
    flops = step.flops("counted")
    both = flops["forward"] + flops["backward"]
    it.as_printed(round(step.parameters * flops["forward"] / both / 1e6) > 40)


def T33(it: Evidence) -> None:
    r"""$\bar X = \partial\mathcal L / \partial X$ for intermediates and parameters.

    The layout is not stated. Every line on the attention block fits the layout of $X$,
    with entries $\partial\mathcal L / \partial X_{ij}$."""
    values, gradients = its.attention_run()
    found = its.lines(its.attention_backward, values, gradients.Z)[0]
    for name, gradient in found.items():
        it.as_printed(same(gradient, getattr(gradients, name)))
        it.right(gradient.shape == getattr(values, name).shape)
