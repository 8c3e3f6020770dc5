"""§2.1: the element-wise product, the softmax, the chain rule, and the loss."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from backpass import cost
from backpass.interpreters import counting
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, jacobian, numbers, same, torch, vjp

CLAIMS = """
T15  true         0  notation    foundations/notation      §2.1.1, element-wise product
T16  true         0  notation    foundations/notation      §2.1.1, Kronecker delta
T17  caveat       3  softmax     operations/softmax        §2.1.2, definition
T18  false        4  softmax     operations/softmax        §2.1.2, weights
T19  caveat       1  softmax     operations/softmax        §2.1.2, distribution
T20  true         0  softmax     operations/softmax        §2.1.2, derivative
T21  caveat       3  chain rule  foundations/chain_rule    §2.1.3, first sentence
T22  caveat       1  chain rule  foundations/chain_rule    §2.1.3, one variable
T23  true         0  chain rule  foundations/chain_rule    §2.1.3, several variables
T24  caveat       1  chain rule  operations/activations    §2.1.3, kinks
T25  caveat       3  chain rule  foundations/chain_rule    §2.1.3, last sentence
T26  false        4  loss        operations/cross_entropy  §2.1.4, what a loss measures
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
    r"""$(\mathbf a \odot \mathbf b)_{i,j} = a_{i,j}\,b_{i,j}$ for two $n \times m$
    matrices."""
    printed = r"(\mathbf{a} \odot \mathbf{b})_{i,j} = a_{i,j} \cdot b_{i,j}"
    given = r"given a, b \in \mathbb{R}^{n \times m}"
    it.as_printed(derives(printed, f"{BOLD}; {given}"))
    a, b = torch.tensor(numbers(3, 5)), torch.tensor(numbers(3, 5, seed=1))
    each = [[a[i, j] * b[i, j] for j in range(5)] for i in range(3)]
    it.as_printed(same(torch.mul(a, b), each))


def T16(it: Evidence) -> None:
    r"""$\delta_{ij}$ is 1 if $i = j$ and otherwise 0, and the derivations of the
    backward use it often: it is the derivative of $x_i$ with respect to $x_j$."""
    printed = r"""
        \delta_{ij} = \begin{cases} 1 & \text{if } i = j \\
        0 & \text{if } i \neq j \end{cases}
    """
    it.as_printed(derives(printed, VECTOR))
    it.as_printed(derives(r"\frac{\partial z_i}{\partial z_j} = \delta_{ij}", VECTOR))


def T17(it: Evidence) -> None:
    r"""$\mathrm{softmax}(\mathbf z)_i = e^{z_i} / \sum_{j=1}^n e^{z_j}$.

    The formula is right for real numbers. In float32 $e^{z}$ overflows at $z = 89$, and
    the printed line returns NaN; the maximum has to be subtracted first.
    """
    printed = r"\text{softmax}(\mathbf{z})_i = \frac{e^{z_i}}{\sum_{j=1}^n e^{z_j}}"
    it.as_printed(derives(printed, VECTOR))
    z = numbers(7)
    it.as_printed(same(softmax(z), torch.tensor(z).softmax(0)))
    large = np.array([89, 0], np.float32)
    with np.errstate(all="ignore"):
        it.elsewhere(bool(np.isfinite(softmax(large)).all()))
    it.right(bool(np.isfinite(softmax(large - large.max())).all()))


def T18(it: Evidence) -> None:
    r"""Softmax uses the values as weights, and therefore its outputs are positive and
    sum to 1.

    The weights are the exponentials $e^{z_i}$. With the values themselves, $z_i / \sum
    z_j$ is a different vector. Here it is negative where $z_i$ is.
    """
    z = np.array([-1.0, 2.0, 0.5])
    of_values = z / z.sum()
    it.as_printed(same(of_values, softmax(z)))
    it.as_printed(bool((of_values > 0).all()))
    it.right(same(np.exp(z) / np.exp(z).sum(), softmax(z)))


def T19(it: Evidence) -> None:
    r"""The outputs have the same size as the input, are all positive, and sum to 1.

    In floating point the output underflows to 0 for a value far below the maximum, and
    is 0 for a score masked with $-\infty$.
    """
    y = softmax(numbers(9))
    it.as_printed(y.shape == (9,) and bool((y > 0).all()) and same(y.sum(), 1.0))
    far = torch.tensor([0.0, -800.0], dtype=torch.float64).softmax(0)
    it.elsewhere(bool((far > 0).all()))
    masked = torch.tensor([0.0, -float("inf")]).softmax(0)
    it.elsewhere(bool((masked > 0).all()))


def T20(it: Evidence) -> None:
    r"""$\partial\,\mathrm{softmax}(\mathbf z)_i / \partial z_j =
    \mathrm{softmax}(\mathbf z)_i(\delta_{ij} - \mathrm{softmax}(\mathbf z)_j)$.

    The text calls it the gradient; it is an entry of the Jacobian, which is symmetric.
    """
    printed = r"""
        \frac{\partial \text{softmax}(\mathbf{z})_i}{\partial z_j}
        = \text{softmax}(\mathbf{z})_i (\delta_{ij} - \text{softmax}(\mathbf{z})_j)
    """
    it.as_printed(derives(printed, VECTOR))
    symmetric = r"""
        \frac{\partial \text{softmax}(\mathbf{z})_i}{\partial z_j}
        = \frac{\partial \text{softmax}(\mathbf{z})_j}{\partial z_i}
    """
    it.right(derives(symmetric, VECTOR))


def chained(*factors: Any) -> Any:
    """Return the product of matrices, from left to right."""
    first, *others = factors
    for other in others:
        first = first @ other
    return first


def T21(it: Evidence) -> None:
    """The chain rule significantly reduces the computation that training needs.

    Evaluated from the loss, it needs far fewer operations than differences of losses.
    The rule itself is an identity and sets no order: evaluated from the input, the same
    product of Jacobians costs more than three times as much. The order and the reuse of
    intermediate results save the work.
    """
    d = 6
    last, second, first = numbers(1, d), numbers(d, d, seed=1), numbers(d, d, seed=2)
    from_loss = its.steps(chained, last, second, first)
    from_input = its.steps(lambda c, b, a: c @ (b @ a), last, second, first)
    forward = its.steps(
        lambda c, b, a, x: c @ (b @ (a @ x)), last, second, first, numbers(d, 1)
    )
    it.as_printed(from_loss < 2 * d * forward)  # two evaluations for each input
    it.elsewhere(from_input < 3 * from_loss)
    it.right(from_loss == 2 * d * (2 * d - 1))


def T22(it: Evidence) -> None:
    r"""For $y = f(g(x))$, $\frac{dy}{dx} = \frac{df}{dg}\cdot\frac{dg}{dx}$.

    Here, unlike for several variables, the text does not say that $df/dg$ is taken at
    $g(x)$, and that both derivatives have to exist.
    """
    printed = r"\frac{dy}{dx} = \frac{df}{dg} \cdot \frac{dg}{dx}."
    given = r"given x \in \mathbb{R}; let g = x^2; let f = \sin(g); let y = f"
    it.as_printed(derives(printed, given))
    at_x = printed.replace(r"\frac{df}{dg}", r"\cos(x)")  # in place of g(x)
    it.elsewhere(derives(at_x, given))


def T23(it: Evidence) -> None:
    r"""For $g: \mathbb R^n \to \mathbb R^m$ and $f: \mathbb R^m \to \mathbb R$, the
    derivative $\partial y / \partial x_j$ is $\sum_{i=1}^m \frac{\partial f}{\partial
    u_i}\big|_{u = g(x)} \frac{\partial g_i}{\partial x_j}(x)$."""
    x, w, a = numbers(4), numbers(3, 4, seed=1), numbers(3, seed=2)

    def g(t: Any) -> Any:
        return (t.new_tensor(w) @ t).tanh()

    df = 2 * a * np.tanh(w @ x)  # of f(u) = Σ a_i u_i²
    found = [sum(df[i] * jacobian(g, x)[i, j] for i in range(3)) for j in range(4)]
    it.as_printed(same(found, vjp(lambda t: t.new_tensor(a) @ g(t) ** 2, x, 1.0)))


def T24(it: Evidence) -> None:
    """The chain rule as printed holds for the functions of the text.

    ReLU, of the feed-forward layer, has no derivative at 0. With a value chosen there
    the rule can be wrong: max(0, x) − max(0, −x) is x, and autograd's derivative at 0
    is 0.
    """

    def twice(t: Any) -> Any:
        return t.relu() - (-t).relu()

    x = numbers(5)
    it.as_printed(same(vjp(twice, x, np.ones(5)), np.ones(5)))
    it.elsewhere(same(vjp(twice, np.zeros(1), np.ones(1)), np.ones(1)))


def states(x: Any, *layers: Any) -> list[Any]:
    """Return a column and what each matrix, one after another, makes of it."""
    found = [x]
    for w in layers:
        found.append(w @ found[-1])
    return found


def reverse(row: Any, x: Any, *layers: Any) -> list[Any]:
    """Return the gradient of ``row @ (… @ x)`` with respect to each matrix, from the
    loss's side."""
    before, found = states(x, *layers), []
    for i in reversed(range(len(layers))):
        found.append(its.flip(row) * its.flip(before[i]))
        row = row @ layers[i]
    return found[::-1]


def forward_mode(row: Any, x: Any, *layers: Any) -> list[Any]:
    """Return the same gradients, with a pass from each element of a matrix on."""
    before, found = states(x, *layers), []
    for i, w in enumerate(layers):
        for j in range(w.shape[0]):
            unit = np.eye(w.shape[0])[:, j : j + 1]
            column = unit if isinstance(w, np.ndarray) else counting.array(unit)
            for k in range(w.shape[1]):
                tangent = column * before[i][k : k + 1, :]
                found.append(row @ states(tangent, *layers[i + 1 :])[-1])
    return found


def T25(it: Evidence) -> None:
    """The sum over the paths makes backpropagation much more efficient than naive
    approaches.

    One backward gives the gradients of all parameters, and central differences need two
    evaluations of the loss for each parameter. The sum is not the reason: forward-mode
    differentiation uses the same sum and needs a pass for each parameter.
    """
    d = 6
    column, row = numbers(d, 1), numbers(1, d, seed=9)  # the input, the last layer
    layers = [numbers(d, d, seed=i) for i in range(3)]
    one_evaluation = its.steps(
        lambda y, x, *w: y @ states(x, *w)[-1], row, column, *layers
    )
    backward = its.steps(reverse, row, column, *layers)
    differences = 2 * len(layers) * d**2 * one_evaluation
    it.as_printed(20 * backward < differences)
    tangents = its.steps(forward_mode, row, column, *layers)
    it.elsewhere(tangents < 3 * backward)
    found, again = reverse(row, column, *layers), forward_mode(row, column, *layers)
    it.right(same(np.concatenate(found).ravel(), np.ravel(again)))


def T26(it: Evidence) -> None:
    """The loss measures the correlation, or the lack of it, between predictions and
    targets.

    It measures a discrepancy. The predictions (0.34, 0.33, 0.33) have correlation 1
    with the target (1, 0, 0), like the perfect prediction, but a cross-entropy of 1.08.
    """
    target, weak = np.array([1.0, 0, 0]), np.array([0.34, 0.33, 0.33])
    perfectly_correlated = same(np.corrcoef(target, weak)[0, 1], 1.0)
    it.as_printed(perfectly_correlated and same(-log(weak[0]), 0.0))
    it.right(perfectly_correlated and round(-log(weak[0]), 2) == 1.08)


def T27(it: Evidence) -> None:
    """For language models, cross-entropy is the loss that is primarily used.

    This is a statement about what others use. The networks of this book use it too.
    """


def T28(it: Evidence) -> None:
    r"""$\mathcal L = -\sum_{i=1}^N \sum_{j=1}^C y_{ij} \log \hat y_{ij}$.

    The formula is the sum over $N$ examples. Neither $N$ nor $C$ is defined, and $N$ is
    later the number of blocks. Training code averages by default, which makes the loss
    and every gradient smaller by the factor $N$.
    """
    logits, y = numbers(5, 4), np.eye(4)[[0, 3, 1, 1, 2]]
    by_text = -sum(y[i] @ np.log(softmax(logits[i])) for i in range(5))

    def framework(**options: Any) -> Any:
        return torch.nn.functional.cross_entropy(
            torch.tensor(logits), torch.tensor(y), **options
        )

    it.as_printed(same(by_text, framework(reduction="sum")))
    it.elsewhere(same(by_text, framework()))
    it.right(same(by_text / 5, framework()))


def T29(it: Evidence) -> None:
    r"""The formula is the cross-entropy of the predicted distribution $\hat y$ against
    the true distribution $y$.

    This holds for one example. For $N$ examples the formula is a sum of $N$
    cross-entropies, which grows when an example is repeated.
    """
    y, predicted = np.array([[0.0, 1, 0]]), softmax(numbers(3))[None]
    entropy = -np.log(predicted[0, 1])
    it.as_printed(same(-(y * np.log(predicted)).sum(), entropy))
    twice = -np.log(np.repeat(predicted, 2, 0)) * np.repeat(y, 2, 0)
    it.elsewhere(same(twice.sum(), entropy))


def T30(it: Evidence) -> None:
    """Gradient descent changes the parameters so that the loss falls.

    This holds for a small enough rate. On a quadratic of curvature c, a rate above 2/c
    raises the loss.
    """

    def after(rate: float, curvature: float = 3.0, theta: float = 1.5) -> float:
        theta -= rate * curvature * theta
        return curvature * theta**2 / 2

    it.as_printed(after(0.1) < after(0))
    it.elsewhere(after(2.1 / 3) < after(0))
    it.right(after(1.9 / 3) < after(0))


def T31(it: Evidence) -> None:
    r"""The method updates parameters with some function, typically $\underline\theta_t
    - \eta\nabla\mathcal L(\underline\theta_t)$.

    Transformers are typically trained with Adam, as the section on training says. The
    size of Adam's first step does not depend on the size of the gradient. $\eta$ is not
    defined.
    """

    def moved(optimiser: Any, scale: float) -> Any:
        theta = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        theta.grad = scale * torch.tensor([0.5, 4.0], dtype=torch.float64)
        before = theta.detach().clone()
        optimiser([theta], lr=0.1).step()
        return (before - theta.detach()).numpy()

    sgd, adam = torch.optim.SGD, torch.optim.Adam
    it.as_printed(same(moved(sgd, 3.0), 0.1 * 3 * np.array([0.5, 4.0])))
    it.elsewhere(same(moved(adam, 3.0), 3 * moved(adam, 1.0), 1e-3))


def T32(it: Evidence) -> None:
    """An efficient way to compute the gradient is necessary to train in a reasonable
    time.

    With one-sided differences, one evaluation of the loss for each parameter, a
    gradient of GPT-2 would take forty million times the FLOPs of forward and backward
    together.
    """
    found = cost.tally("gpt2", 1, 1_024)
    ways = {
        way: sum(r.flops for r in found.rows if r.term.way == way)
        for way in ("forward", "backward")
    }
    by_differences = found.parameters * ways["forward"]
    it.as_printed(by_differences > 40e6 * (ways["forward"] + ways["backward"]))


def T33(it: Evidence) -> None:
    r"""$\bar X = \partial\mathcal L / \partial X$ for an intermediate variable or for
    parameters.

    The layout is not stated. Every line on the attention block fits a gradient with the
    shape of $X$, whose entries are $\partial\mathcal L / \partial X_{ij}$.
    """
    values, gradients = its.attention_run()
    found = its.attention_backward(gradients.Z, values)
    for name, gradient in found.items():
        it.as_printed(same(gradient, getattr(gradients, name)))
        it.right(gradient.shape == getattr(values, name).shape)
