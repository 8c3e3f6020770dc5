"""The encoder's block that a text counts: its forward for autograd, its printed
backward, and the steps of arithmetic that the printed lines take."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from backpass.interpreters import counting
from backpass_ledger import sources
from backpass_ledger.claims.tools import numbers, torch

WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")
FED = ("W_1", "b_1", "W_2", "b_2")
SIZES = ((1, 3), (5, 3), (4, 7), (6, 5))  # tokens and width
Pair = tuple[SimpleNamespace, SimpleNamespace]
xp: Any = counting.xp
flip = xp.matrix_transpose
ATTENTION = r"""
    given X \in \mathbb{R}^{n \times d}, W^Q, W^K, W^V, W^O \in \mathbb{R}^{d \times d}
    let Q = XW^Q; let K = XW^K; let V = XW^V
    let S = \frac{1}{\sqrt{d}} QK^T
    let A_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}
    let Y = AV
    let Z = YW^O
    bar gradient
"""


def attention(X: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any) -> dict[str, Any]:
    """Return the arrays of attention with one head, without a mask, by name."""
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V
    S = Q @ K.T / X.shape[1] ** 0.5
    A = S.softmax(1)
    Y = A @ V
    return {"Q": Q, "K": K, "V": V, "S": S, "A": A, "Y": Y, "Z": Y @ W_O}


def feed_forward(X: Any, W_1: Any, b_1: Any, W_2: Any, b_2: Any) -> dict[str, Any]:
    """Return the arrays of the feed-forward layer with ReLU, by name."""
    H = X @ W_1 + b_1
    U = H.clamp(min=0)
    return {"H": H, "U": U, "Z": U @ W_2 + b_2}


def norm(X: Any, gamma: Any, beta: Any, epsilon: float = 0.0) -> dict[str, Any]:
    """Return the arrays of LayerNorm over each row, by name."""
    centred = X - X.mean(1, keepdim=True)
    sigma = ((centred**2).mean(1, keepdim=True) + epsilon) ** 0.5
    Y = centred / sigma
    return {"sigma": sigma, "Y": Y, "Z": gamma * Y + beta}


def traced(build: Callable[..., dict[str, Any]], **arrays: Any) -> Pair:
    """Run ``build`` on torch tensors and return the values of all its arrays, and the
    gradients of all of them by autograd, from a random gradient of Z."""
    given = {name: torch.tensor(a, requires_grad=True) for name, a in arrays.items()}
    found = build(**given)
    for tensor in found.values():
        tensor.retain_grad()
    found["Z"].backward(torch.tensor(numbers(*found["Z"].shape, seed=99)))
    every = (given | found).items()
    return (
        SimpleNamespace(**{name: t.detach().numpy() for name, t in every}),
        SimpleNamespace(**{name: t.grad.numpy() for name, t in every}),
    )


@cache
def attention_run(n: int = 5, d: int = 3) -> Pair:
    """Return the values and the gradients of attention on random arrays."""
    weights = {w: numbers(d, d, seed=i) for i, w in enumerate(WEIGHTS, 1)}
    return traced(attention, X=numbers(n, d), **weights)


@cache
def feed_forward_run(n: int = 5, d: int = 3, f: int = 0) -> Pair:
    """Return the values and the gradients of the feed-forward layer; f is 4d if 0."""
    f = f or 4 * d
    shapes = zip(FED, ((d, f), (f,), (f, d), (d,)), strict=True)
    given = {w: numbers(*shape, seed=i) for i, (w, shape) in enumerate(shapes, 1)}
    return traced(feed_forward, X=numbers(n, d), **given)


@cache
def norm_run(n: int = 5, d: int = 4) -> Pair:
    """Return the values and the gradients of LayerNorm with ε = 0."""
    parameters = {"gamma": numbers(d, seed=1), "beta": numbers(d, seed=2)}
    return traced(norm, X=numbers(n, d), **parameters)


def total(x: Any, axis: int) -> Any:
    """Return the sum over the rows, a vector, or (axis 1) over each row, a column; each
    sum starts at 0."""
    if axis == 1:
        return xp.expand_dims(total(flip(x), 0), axis=1)
    whole = xp.zeros(x.shape[1:])
    for k in range(x.shape[0]):
        whole = whole + x[k, ...]
    return whole


def product(a: Any, b: Any) -> Any:
    """Return a product of counting matrices whose sums start at 0: 2mnp steps."""
    whole = xp.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        whole = whole + a[:, k : k + 1] * b[k : k + 1, :]
    return whole


def matmul(a: Any, b: Any) -> Any:
    """Return a @ b; a sum of n terms has n − 1 additions."""
    return a @ b


def summed(x: Any, axis: int) -> Any:
    """Return the same; a sum of n terms has n − 1 additions."""
    return xp.sum(x, axis=axis, keepdims=axis == 1)


RULE = SimpleNamespace(times=product, sum=total)  # a sum of n terms counts n: the text
EXACT = SimpleNamespace(times=matmul, sum=summed)


def attention_backward(
    Z_: Any, v: Any, rule: Any, *, crossed: bool = False
) -> dict[str, Any]:
    """Return the gradients by the printed lines, from Z's gradient ``Z_``. If
    ``crossed``, the input of keys and values has a gradient of its own, E."""
    times, root = rule.times, 1 / v.X.shape[1] ** 0.5
    W_O_, Y_ = times(flip(v.Y), Z_), times(Z_, flip(v.W_O))
    A_, V_ = times(Y_, flip(v.V)), times(flip(v.A), Y_)
    S_ = of_softmax(v.A, A_, rule)
    Q_, K_ = times(S_, v.K) * root, times(flip(S_), v.Q) * root
    X_, E_ = times(Q_, flip(v.W_Q)), times(K_, flip(v.W_K)) + times(V_, flip(v.W_V))
    of_weights = {"W_Q": times(flip(v.X), Q_), "W_K": times(flip(v.X), K_)}
    of_weights |= {"W_V": times(flip(v.X), V_), "W_O": W_O_}
    return of_weights | ({"X": X_, "E": E_} if crossed else {"X": X_ + E_})


def of_softmax(A: Any, A_: Any, rule: Any) -> Any:
    """Return the gradient of the scores, by the second form of the text's box."""
    return A * (A_ - rule.sum(A * A_, 1))


def feed_forward_backward(Z_: Any, v: Any, rule: Any) -> dict[str, Any]:
    """Return the gradients of all rows, with the sums over rows."""
    times, U_ = rule.times, rule.times(Z_, flip(v.W_2))
    H_ = xp.where(v.H > 0, U_, xp.zeros_like(U_))
    of_weights = {"W_1": times(flip(v.X), H_), "W_2": times(flip(v.U), Z_)}
    of_biases = {"b_1": rule.sum(H_, 0), "b_2": rule.sum(Z_, 0)}
    return of_weights | of_biases | {"X": times(H_, flip(v.W_1))}


def norm_backward(Z_: Any, v: Any, rule: Any) -> dict[str, Any]:
    """Return the gradients of LayerNorm by the printed lines. A row's means are always
    counted as the text counts them: a sum of d terms as d − 1."""
    of_parameters = {"gamma": rule.sum(Z_ * v.Y, 0), "beta": rule.sum(Z_, 0)}
    return of_parameters | {"X": of_normalised(Z_ * v.gamma, v.Y, v.sigma, EXACT)}


def of_normalised(Y_: Any, Y: Any, sigma: Any, rule: Any) -> Any:
    """Return the gradient of a norm's input, each mean computed once a row."""
    mean, dot = (rule.sum(a, 1) / Y.shape[1] for a in (Y_, Y_ * Y))
    return (Y_ - mean - Y * dot) / sigma


def lines(
    backward: Callable[..., Any], values: Any, Z_: Any, rule: Any = EXACT
) -> tuple[dict[str, Any], int]:
    """Run a printed backward on counting arrays; return its gradients and steps."""
    arrays = {name: counting.array(a) for name, a in vars(values).items()}
    Z_ = counting.array(Z_)
    with counting.tally() as steps_:
        found = backward(Z_, SimpleNamespace(**arrays), rule)
    return {name: a.to_numpy() for name, a in found.items()}, steps_.total


def steps(function: Callable[..., Any], *arrays: Any) -> int:
    """Run a function on counting arrays and return the number of its additions,
    subtractions, multiplications, divisions, and other steps of arithmetic."""
    given = [counting.array(np.asarray(a, np.float64)) for a in arrays]
    with counting.tally() as found:
        function(*given)
    return found.total


def counted(run: Callable[..., Pair], backward: Callable[..., Any]) -> Any:
    """Return a layer's steps as a function of n, d, a rule, and another width."""

    def ran(n: int, d: int, rule: Any = RULE, *width: int) -> int:
        values, gradients = run(n, d, *width)
        return lines(backward, values, gradients.Z, rule)[1]

    return ran


of_attention = counted(attention_run, attention_backward)
of_feed_forward = counted(feed_forward_run, feed_forward_backward)  # f is 4d by default
of_norm = counted(norm_run, norm_backward)


def of_block(n: int, d: int, rule: Any = RULE) -> int:
    """Return the steps of the backward of a block with its residual sums and biases."""
    layers = of_attention(n, d, rule) + of_feed_forward(n, d, rule)
    return int(layers + 2 * of_norm(n, d, rule) + 2 * n * d)


def products(shapes: str, **lengths: int) -> Callable[..., int]:
    """Return a function of n, d, and a rule that runs products of random matrices and
    counts their steps: ``"dnd ndf"`` is a d×n by an n×d and an n×d by a d×f matrix. f
    is 4d unless ``lengths`` give it."""

    def ran(n: int, d: int, rule: Any = RULE) -> int:
        at = {"n": n, "d": d, "f": 4 * d, "1": 1} | lengths
        each = ([at[letter] for letter in shape] for shape in shapes.split())
        return sum(steps(rule.times, numbers(i, j), numbers(j, k)) for i, j, k in each)

    return ran


def printed(name: str, **lengths: Any) -> Any:
    """Evaluate a row or a total that the text prints, exactly."""
    whole = {t.name: t.printed for t in sources.TOTALS if t.source == sources.THESIS}
    rows = {r.name: r.expression for r in sources.ROWS if r.source == sources.THESIS}
    return sources.value((whole | rows)[name], **lengths)


def row(name: str) -> Callable[[int, int], Any]:
    """Return a row or a total of the text as a function of n tokens and width d."""
    return lambda n, d: printed(name, s=n, h=d, f=4 * d)


def takes(
    ran: Callable[..., int], formula: Callable[[int, int], Any], rule: Any = RULE
) -> bool:
    """Whether a count is the formula at every size tried."""
    return all(ran(n, d, rule) == formula(n, d) for n, d in SIZES)


def block(x: Any, w: dict[str, Any], *, pre: bool) -> Any:
    """Return a block's output for torch tensors, with both residual sums and the norms
    before each sub-layer (``pre``) or after each sum."""

    def scaled(name: str, of: Any) -> Any:
        return norm(of, w[f"gamma_{name}"], w[f"beta_{name}"])["Z"]

    def attended(of: Any) -> Any:
        return attention(of, *(w[name] for name in WEIGHTS))["Z"]

    def fed(of: Any) -> Any:
        return feed_forward(of, *(w[name] for name in FED))["Z"]

    if pre:
        x = x + attended(scaled("1", x))
        return x + fed(scaled("2", x))
    x = scaled("1", x + attended(x))
    return scaled("2", x + fed(x))


@cache
def block_weights(d: int = 4, f: int = 7) -> dict[str, Any]:
    """Return random weights of a block as torch tensors."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(WEIGHTS, (d, d))
    shapes |= {"W_1": (d, f), "b_1": (f,), "W_2": (f, d), "b_2": (d,)}
    shapes |= {f"{name}_{i}": (d,) for i in "12" for name in ("gamma", "beta")}
    each = enumerate(shapes.items())
    return {name: torch.tensor(numbers(*shape, seed=i)) for i, (name, shape) in each}


def chained_backward(x: Any, dy: Any, *, residual: bool) -> Any:
    """Return the gradient of the input of ``block(x, block_weights(), pre=True)``, by
    the printed lines of its layers one after another, with or without the gradients
    that pass by each sub-layer."""
    w = {name: t.numpy() for name, t in block_weights().items()}

    def back(backward: Any, values: Any, Z_: Any) -> Any:
        return lines(backward, values, Z_)[0]["X"]

    first = traced(norm, X=x, gamma=w["gamma_1"], beta=w["beta_1"])[0]
    attended = traced(attention, X=first.Z, **{k: w[k] for k in WEIGHTS})[0]
    middle = x + attended.Z
    second = traced(norm, X=middle, gamma=w["gamma_2"], beta=w["beta_2"])[0]
    fed = traced(feed_forward, X=second.Z, **{k: w[k] for k in FED})[0]
    dm = back(norm_backward, second, back(feed_forward_backward, fed, dy))
    dm = dm + dy if residual else dm
    dx = back(norm_backward, first, back(attention_backward, attended, dm))
    return dx + dm if residual else dx
