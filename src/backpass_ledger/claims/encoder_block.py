"""The encoder's block that a text counts: its forward for autograd, and its printed
backward, which runs on NumPy arrays and on arrays that count their arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from backpass.cost import sources
from backpass.interpreters import counting
from backpass_ledger.claims.tools import numbers, torch

WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")
Pair = tuple[SimpleNamespace, SimpleNamespace]


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
    every = given | found
    return (
        SimpleNamespace(**{name: t.detach().numpy() for name, t in every.items()}),
        SimpleNamespace(**{name: t.grad.numpy() for name, t in every.items()}),
    )


@cache
def attention_run(n: int = 5, d: int = 3) -> Pair:
    """Return the values and the gradients of attention on random arrays."""
    weights = {w: numbers(d, d, seed=i) for i, w in enumerate(WEIGHTS, 1)}
    return traced(attention, X=numbers(n, d), **weights)


@cache
def feed_forward_run(n: int = 5, d: int = 3, f: int = 7) -> Pair:
    """Return the values and the gradients of the feed-forward layer."""
    return traced(
        feed_forward,
        X=numbers(n, d),
        W_1=numbers(d, f, seed=1),
        b_1=numbers(f, seed=2),
        W_2=numbers(f, d, seed=3),
        b_2=numbers(d, seed=4),
    )


@cache
def norm_run(n: int = 5, d: int = 4) -> Pair:
    """Return the values and the gradients of LayerNorm with ε = 0."""
    parameters = {"gamma": numbers(d, seed=1), "beta": numbers(d, seed=2)}
    return traced(norm, X=numbers(n, d), **parameters)


def product(a: Any, b: Any) -> Any:
    """Return a product of counting matrices whose sums start at 0: 2mnp steps."""
    whole = counting.xp.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        whole = whole + a[:, k : k + 1] * b[k : k + 1, :]
    return whole


def total(x: Any) -> Any:
    """Return the sum over the rows of a counting matrix, started at 0."""
    whole = counting.xp.zeros(x.shape[1:])
    for k in range(x.shape[0]):
        whole = whole + x[k, ...]
    return whole


def matmul(a: Any, b: Any) -> Any:
    """Return a @ b; a sum of n terms has n − 1 additions."""
    return a @ b


def sum_of_rows(x: Any) -> Any:
    """Return the sum over the rows; a sum of n terms has n − 1 additions."""
    return x.sum(0) if isinstance(x, np.ndarray) else counting.xp.sum(x, axis=0)


def steps(function: Callable[..., Any], *arrays: Any) -> int:
    """Run a function on counting arrays and return the number of its additions,
    subtractions, multiplications, divisions, and other steps of arithmetic."""
    given = [counting.array(np.asarray(a, np.float64)) for a in arrays]
    with counting.tally() as found:
        function(*given)
    return found.total


def flip(x: Any) -> Any:
    """Return the transpose of a NumPy or a counting matrix."""
    return x.T if isinstance(x, np.ndarray) else counting.xp.matrix_transpose(x)


def attention_backward(Z_: Any, v: Any, times: Any = matmul) -> dict[str, Any]:
    """Return the gradients by the printed lines, from Z's gradient ``Z_``."""
    root = 1 / v.X.shape[1] ** 0.5
    W_O_, Y_ = times(flip(v.Y), Z_), times(Z_, flip(v.W_O))
    A_, V_ = times(Y_, flip(v.V)), times(flip(v.A), Y_)
    dots = times_each_row(v.A, A_, times)
    S_ = v.A * (A_ - dots)
    Q_, K_ = times(S_, v.K) * root, times(flip(S_), v.Q) * root
    X_ = times(Q_, flip(v.W_Q)) + times(K_, flip(v.W_K)) + times(V_, flip(v.W_V))
    of_weights = {"W_Q": times(flip(v.X), Q_), "W_K": times(flip(v.X), K_)}
    return of_weights | {"W_V": times(flip(v.X), V_), "W_O": W_O_, "X": X_}


def times_each_row(a: Any, b: Any, times: Any = matmul) -> Any:
    """Return the dot product of each row of ``a`` with that row of ``b``."""
    if isinstance(a, np.ndarray):
        return (a * b).sum(1, keepdims=True)
    rows = [times(a[i : i + 1, :], flip(b[i : i + 1, :])) for i in range(a.shape[0])]
    return counting.xp.concat(rows, axis=0)


def feed_forward_backward(
    Z_: Any, v: Any, times: Any = matmul, summed: Any = sum_of_rows
) -> dict[str, Any]:
    """Return the gradients of all rows, with the sums over rows."""
    H_: Any
    U_ = times(Z_, flip(v.W_2))
    if isinstance(U_, np.ndarray):
        H_ = np.where(v.H > 0, U_, 0)
    else:
        H_ = counting.xp.where(v.H > 0, U_, counting.xp.zeros_like(U_))
    of_weights = {"W_1": times(flip(v.X), H_), "W_2": times(flip(v.U), Z_)}
    of_biases = {"b_1": summed(H_), "b_2": summed(Z_)}
    return of_weights | of_biases | {"X": times(H_, flip(v.W_1))}


def norm_backward(Z_: Any, v: Any, summed: Any = sum_of_rows) -> dict[str, Any]:
    """Return the gradients of LayerNorm by the printed lines."""
    Y_ = Z_ * v.gamma
    d = Z_.shape[1]
    if isinstance(Z_, np.ndarray):
        mean, dot = Y_.mean(1, keepdims=True), (Y_ * v.Y).mean(1, keepdims=True)
    else:
        mean = counting.xp.sum(Y_, axis=1, keepdims=True) / d
        dot = counting.xp.sum(Y_ * v.Y, axis=1, keepdims=True) / d
    X_ = (Y_ - mean - v.Y * dot) / v.sigma
    return {"gamma": summed(Z_ * v.Y), "beta": summed(Z_), "X": X_}


def counted(run: Pair, backward: Callable[..., Any], **options: Any) -> int:
    """Run a printed backward on counting arrays and return its steps."""
    values, gradients = run
    arrays = {name: counting.array(a) for name, a in vars(values).items()}
    Z_ = counting.array(gradients.Z)
    with counting.tally() as found:
        backward(Z_, SimpleNamespace(**arrays), **options)
    return found.total


BY_RULE = {"times": product}  # a sum of n terms counts n, as in the text
ALL_BY_RULE = {"times": product, "summed": total}


def block_steps(n: int, d: int, f: int, *, by_rule: bool) -> int:
    """Return the steps of the backward of a block with its residual sums and biases,
    exactly or by the text's rule that a sum of n terms counts n, with the norm's means
    counted as the text counts them: a sum of d terms as d − 1."""
    of_attention = BY_RULE if by_rule else {}
    of_rest = ALL_BY_RULE if by_rule else {}
    of_norm = {"summed": total} if by_rule else {}
    return (
        counted(attention_run(n, d), attention_backward, **of_attention)
        + counted(feed_forward_run(n, d, f), feed_forward_backward, **of_rest)
        + 2 * counted(norm_run(n, d), norm_backward, **of_norm)
        + 2 * n * d
    )


def block(x: Any, w: dict[str, Any], *, pre: bool) -> Any:
    """Return a block's output for torch tensors, with both residual sums and the norms
    before each sub-layer (``pre``) or after each sum."""

    def scaled(name: str, of: Any) -> Any:
        return norm(of, w[f"gamma_{name}"], w[f"beta_{name}"], 1e-5)["Z"]

    def attended(of: Any) -> Any:
        return attention(of, *(w[name] for name in WEIGHTS))["Z"]

    def fed(of: Any) -> Any:
        return feed_forward(of, w["W_1"], w["b_1"], w["W_2"], w["b_2"])["Z"]

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
    return {
        name: torch.tensor(numbers(*shape, seed=i))
        for i, (name, shape) in enumerate(shapes.items())
    }


def printed(name: str, **lengths: int) -> Any:
    """Evaluate a row or a total that the text prints, exactly."""
    for row in sources.ROWS:
        if (row.source, row.name) == (sources.THESIS, name):
            return sources.value(row.expression, **lengths)
    for whole in sources.TOTALS:
        if (whole.source, whole.name) == (sources.THESIS, name):
            return sources.value(whole.printed, **lengths)
    raise ValueError(f"name: expected that of a row or a total; got {name!r}")


SIZES = ((1, 3), (5, 3), (4, 7), (6, 5))  # tokens and width


def at_all_sizes(holds: Callable[[int, int], bool]) -> bool:
    """Whether a statement on n tokens and width d holds at every size tried."""
    return all(holds(n, d) for n, d in SIZES)


def chained_backward(x: Any, dy: Any, *, residual: bool) -> Any:
    """Return the gradient of the input of ``block(x, block_weights(), pre=True)``, by
    the printed lines of its layers one after another, with or without the gradients
    that pass by each sub-layer."""
    w = {name: t.numpy() for name, t in block_weights().items()}

    def normed(name: str, X: Any) -> Pair:
        return traced(
            lambda X, gamma, beta: norm(X, gamma, beta, 1e-5),
            X=X,
            gamma=w[f"gamma_{name}"],
            beta=w[f"beta_{name}"],
        )

    first = normed("1", x)[0]
    attended = traced(attention, X=first.Z, **{name: w[name] for name in WEIGHTS})[0]
    middle = x + attended.Z
    second = normed("2", middle)[0]
    biased = {name: w[name] for name in ("W_1", "b_1", "W_2", "b_2")}
    fed = traced(feed_forward, X=second.Z, **biased)[0]
    by_fed = norm_backward(feed_forward_backward(dy, fed)["X"], second)["X"]
    dm = by_fed + dy if residual else by_fed
    by_attended = norm_backward(attention_backward(dm, attended)["X"], first)["X"]
    return by_attended + dm if residual else by_attended
