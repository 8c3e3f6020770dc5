"""Derivatives and gradients: the text's section on notation."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import sympy

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import (
    derives,
    jacobian,
    numbers,
    raises,
    same,
    torch,
    vjp,
)
from backpass_ledger.claims.trace_notes.program import DY, gradients, program, softmax

CLAIMS = """
N55  caveat  1  chain rule  foundations/chain_rule  Notation, derivative
N56  true    0  chain rule  foundations/chain_rule  Notation, first formula
N57  true    0  notation    foundations/chain_rule  Notation, Jacobian
N58  true    0  notation    foundations/notation    Notation, the dot
N59  true    0  chain rule  foundations/chain_rule  Notation, second formula
N60  inconsistent  1  chain rule  foundations/chain_rule  Notation, gradients
N61  true    0  chain rule  foundations/chain_rule  Notation, definition of the gradient
N62  false   1  chain rule  foundations/chain_rule  Notation, note on Riesz
N63  true    0  chain rule  foundations/chain_rule  Notation, type of a gradient
N64  caveat  2  optimiser   foundations/chain_rule  Notation, dynamical systems
N65  true    0  notation    foundations/chain_rule  Notation, matrices as inputs
N66  true    0  notation    foundations/chain_rule  Notation, first case
N67  caveat  1  notation    foundations/chain_rule  Notation, first case
N68  false   4  chain rule  foundations/chain_rule  Notation, first case, formula
N69  true    0  chain rule  foundations/chain_rule  Notation, first case, result
N70  true    0  notation    foundations/chain_rule  Notation, second case
N71  true    0  matmul      foundations/chain_rule  Notation, second case
N72  false   2  chain rule  foundations/chain_rule  Notation, second case
N73  true    0  chain rule  foundations/chain_rule  Notation, second case
N74  true    0  matmul      foundations/chain_rule  Notation, example
N75  true    0  matmul      foundations/chain_rule  Notation, example
N76  false   1  chain rule  foundations/chain_rule  Notation, note on gradients
N77  true    0  chain rule  foundations/chain_rule  Notation, note on gradients
N78  false   4  chain rule  foundations/chain_rule  Notation, note on the chain rule
"""

# The macros that the text defines, and what its sections on notation say.
NOTATION = r"""
    \newcommand{\R}{\mathbb{R}}
    \newcommand{\Lin}{\text{Lin}}
    \newcommand{\trace}{\text{Tr}}
    \newcommand{\der}{\partial}
    \newcommand{\st}[2]{\stackrel{#1}{#2}}
    \newcommand{\stK}[1]{\stackrel{#1}{K}}
    \newcommand{\stQ}[1]{\st{#1}{Q}}
    \newcommand{\stP}[1]{\st{#1}{P}}
    \newcommand{\sf}{\text{sf}}
    loss l
    dot differential
    layout numerator
    partial applied
    read <#1, #2> as \langle #1, #2 \rangle
    read D_{#1} as \operatorname{diag}(#1)
    read \stackrel{#1}{#2} as #2_{#1}
"""
SCALAR = (
    NOTATION
    + r"""
    given x, v \in \R^n
    let f(z) = \sum_i e^{z_i} z_i
"""
)
MATRICES = (
    NOTATION
    + r"""
    given A, B \in \R^{n \times m}, v \in \R^n, w \in \R^m
    let f(A) = v^\top A w
"""
)


def push(function: Callable[[Any], Any], x: Any, change: Any) -> Any:
    """Return ∂f(x)(change), by forward-mode autograd in float64."""
    given = [torch.tensor(np.asarray(a, np.float64)) for a in (x, change)]
    return torch.func.jvp(function, (given[0],), (given[1],))[1].numpy()


def gradient_of(function: Callable[[Any], Any], x: Any) -> Any:
    """Return the gradient, by autograd in float64. A value that is a vector raises a
    RuntimeError, which stands for the definition here: only scalars have gradients."""
    given = torch.tensor(np.asarray(x, np.float64), requires_grad=True)
    return torch.autograd.grad(function(given), given)[0].numpy()


def constant(x: Any) -> Any:
    """A torch tensor."""
    return torch.tensor(x)


def N55(it: Evidence) -> None:
    r"""A function $f: \mathbb{R}^n \to \mathbb{R}^m$ has a derivative $\partial f:
    \mathbb{R}^n \to \mathrm{Lin}(\mathbb{R}^n, \mathbb{R}^m)$, which maps a point to
    the linear map that approximates the change of f near it.

    It has one if it is differentiable; the text adds this condition only later. The
    absolute value, ReLU, and the length of a vector are not differentiable at 0."""
    x, v = numbers(7), numbers(7, seed=1)
    for h in (1e-5, 1e-6):
        change = np.tanh(x + h * v) - np.tanh(x)
        it.as_printed(same(change / h, (1 - np.tanh(x) ** 2) * v, 20 * h))
    relu = [(np.maximum(h, 0) - np.maximum(0, 0)) / h for h in (1e-6, -1e-6)]
    it.elsewhere(same(*relu))


def N56(it: Evidence) -> None:
    r"""$f(x + v) \simeq f(x) + \partial f(x)(v)$.

    As v becomes small, the error falls faster than the length of v. For softmax it
    falls with the square of the length."""
    x, v = numbers(6), numbers(6, seed=1)
    a = np.exp(x) / np.exp(x).sum()
    errors = []
    for h in (1e-2, 1e-3, 1e-4):
        moved = np.exp(x + h * v) / np.exp(x + h * v).sum()
        errors.append(abs(moved - a - push(lambda z: z.softmax(0), x, h * v)).max())
    it.as_printed(all(0.008 < b / a < 0.012 for a, b in pairwise(errors)))


def N57(it: Evidence) -> None:
    r"""$\partial f(x)$ is the Jacobian of f at x, with m rows and n columns."""
    m, x, v = numbers(3, 5), numbers(5), numbers(5, seed=1)
    h = 1e-6
    change = (np.sin(m @ (x + h * v)) - np.sin(m @ (x - h * v))) / (2 * h)
    found = jacobian(lambda z: (constant(m) @ z).sin(), x)
    it.as_printed(found.shape == (3, 5) and same(found @ v, change, 1e-8))


def N58(it: Evidence) -> None:
    r"""A change $\dot x$ has the shape of x. From $\partial f(x)(\dot x)$ for any $\dot
    x$ the Jacobian is easily read off.

    The change $e_i$ gives its column i."""
    x = numbers(5)
    columns = [push(lambda z: z.softmax(0), x, e) for e in np.eye(5)]
    it.as_printed(same(np.stack(columns, axis=1), jacobian(lambda z: z.softmax(0), x)))
    it.as_printed(raises(RuntimeError, lambda: push(lambda z: z**2, x, numbers(4))))


def N59(it: Evidence) -> None:
    r"""$\partial f(x)(\dot x) = \sum_{i=1}^n \frac{\partial f(x)}{\partial x_i} \dot
    x_i$.

    The formula holds where f is differentiable. The existence of the partial
    derivatives is not enough: $x^2 y/(x^2 + y^2)$ has both partial derivatives 0 at 0,
    but its derivative along $(1, 1)$ is ½."""
    given = r"given x \in \R^n, W \in \R^{m \times n}; let f(z) = \text{softmax}(W z)"
    it.derives(NOTATION + given)
    h = 1e-6

    def g(a: float, b: float) -> float:
        return a * a * b / (a * a + b * b)

    it.right(g(h, 0) == g(0, h) == 0 and np.isclose(g(h, h) / h, 1 / 2))


def N60(it: Evidence) -> None:
    r"""Only functions $\mathbb{R}^n \to \mathbb{R}$ have gradients.

    The values have to be scalars, but the inputs need not be vectors: the definition
    that follows takes any space with an inner product, such as that of matrices. In the
    check, the error that PyTorch raises for a vector stands in for the definition."""
    v, w, a = numbers(3), numbers(4), numbers(3, 4)
    it.right(raises(RuntimeError, lambda: gradient_of(lambda z: z.sin(), v)))
    found = gradient_of(lambda z: constant(v) @ z @ constant(w), a)
    it.clashes(same(found, np.outer(v, w)))


def N61(it: Evidence) -> None:
    r"""In a space with an inner product, $\nabla f(x)$ is the unique vector with
    $\langle \nabla f(x), \dot x \rangle = \partial f(x)(\dot x)$.

    The equation has to hold for all $\dot x$, which the text adds further on; one $\dot
    x$ does not determine the gradient. The gradient depends on the inner product: with
    $v^\top W w$ it is $W^{-1} \partial f(x)^\top$."""
    x, changes = numbers(5), numbers(5, 5, seed=1)  # five independent ones
    root = numbers(5, 5, seed=2)
    w, row = root @ root.T + np.eye(5), np.cos(x)
    found = np.linalg.solve(changes @ w, changes @ row)
    it.derives(SCALAR)
    it.as_printed(np.linalg.matrix_rank(changes @ w) == 5)
    more = numbers(9, 5, seed=3)
    it.as_printed(same(more @ w @ found, more @ row, 1e-7))
    it.right(same(found, np.linalg.inv(w) @ row, 1e-7))
    it.right(np.linalg.matrix_rank(changes[:1] @ w) < 5)


def N62(it: Evidence) -> None:
    r"""Such a vector always exists, by the theorem of Riesz.

    It exists in finite dimension, which is all that the text needs. A space of infinite
    dimension has to be complete, and the derivative bounded. The polynomials with
    $\int_0^1 p q$ are not complete: no polynomial represents the bounded map $p \mapsto
    \int_0^{1/2} p$. Among those up to degree n one does. Its squared length rises with
    $n = 1, 3, 5, 7$ and stays below ½. If a polynomial represented the map on the whole
    space, the length would stop rising at its degree."""
    half = Fraction(1, 2)
    squares = []
    for n in (1, 3, 5, 7):
        gram = sympy.Matrix(n + 1, n + 1, lambda i, j: sympy.Rational(1, i + j + 1))
        row = sympy.Matrix(
            [sympy.Rational(half ** (i + 1)) / (i + 1) for i in range(n + 1)]
        )
        riesz = gram.LUsolve(row)
        it.right(gram * riesz == row)
        squares.append((riesz.T * gram * riesz)[0])
    it.as_printed(any(lower == higher for lower, higher in pairwise(squares)))
    it.right(bool(sorted(squares) == squares and squares[-1] < half))


def N63(it: Evidence) -> None:
    """A gradient has the type of the input, so the two can be added."""
    for shape in ((5,), (3, 4)):
        found = gradient_of(lambda z: z.flatten().logsumexp(0), numbers(*shape))
        it.as_printed(found.shape == shape)


def N64(it: Evidence) -> None:
    """Deep learning changes the input along the direction of the gradient.

    Gradient descent moves against the gradient. Most optimisers do not follow its
    direction either: Adam's first step divides each component by its own size."""
    x = numbers(6)
    gradient = gradient_of(lambda z: (z**4).sum(), x)
    step = 1e-3 * gradient
    it.as_printed(((x - step) ** 4).sum() < (x**4).sum())  # on the line of the gradient
    it.elsewhere(((x + step) ** 4).sum() < (x**4).sum())
    adam = gradient / np.sqrt(gradient**2)
    cosine = adam @ gradient / np.linalg.norm(adam) / np.linalg.norm(gradient)
    it.elsewhere(np.isclose(cosine, 1))


def N65(it: Evidence) -> None:
    """Matrices could be flattened into vectors instead, with the same gradient."""
    a = numbers(3, 4)
    whole = gradient_of(lambda z: (z @ z.T).det(), a)
    flat = gradient_of(lambda z: (z.reshape(3, 4) @ z.reshape(3, 4).T).det(), a.ravel())
    it.as_printed(same(whole.ravel(), flat))


def N66(it: Evidence) -> None:
    r"""For $f: \mathbb{R}^n \to \mathbb{R}$ the derivative is a $1 \times n$ matrix,
    and $\partial f(x)(v) = \partial f(x)\,v$.

    The text prints `partial f` there, without the backslash."""
    x, v = numbers(5), numbers(5, seed=1)
    row = jacobian(lambda z: z.exp().sum(0, keepdim=True), x)
    it.as_printed(row.shape == (1, 5))
    it.as_printed(same(row @ v, push(lambda z: z.exp().sum(0, keepdim=True), x, v)))


def N67(it: Evidence) -> None:
    """Gradients with respect to vectors are probably the most common in deep learning.

    They are if parameter arrays are counted: 8 of the 12 arrays of a Transformer layer
    with biases are vectors. Without biases 2 of 6 are. If elements are counted, nearly
    all belong to matrices."""
    for bias, report in ((True, it.as_printed), (False, it.elsewhere)):
        layer = torch.nn.TransformerEncoderLayer(64, 4, 256, bias=bias, device="meta")
        arrays = list(layer.parameters())
        vectors = [a.numel() for a in arrays if a.ndim == 1]
        report(len(vectors) > len(arrays) / 2)
        it.right((len(vectors), len(arrays)) == ((8, 12) if bias else (2, 6)))
        it.elsewhere(sum(vectors) > sum(a.numel() for a in arrays) / 50)


def N68(it: Evidence) -> None:
    r"""$\langle \nabla f(x), v \rangle = \nabla f(x)^\top v = \partial f(x)(v) =
    f(x)\,v$.

    The last expression lacks its $\partial$: it has to be $\partial f(x)\,v$. $f(x)\,v$
    is a number times a vector, but the other expressions are numbers. For $n = 1$ all
    are numbers, and the last one has another value."""
    printed = r"<\nabla f(x), v> = \nabla f(x)^T v = \partial f(x) (v) = f(x) v"
    x, v = numbers(5), numbers(5, seed=1)
    it.as_printed(np.shape((x @ x) * v) == np.shape(x @ v))
    numbers_alone = r"given x, v \in \R; let f(z) = z^2; factor v"
    it.as_printed(derives(printed, NOTATION + numbers_alone))
    right = r"<\nabla f(x), v> = \nabla f(x)^T v = \partial f(x) (v) = \partial f(x) v"
    it.right(derives(right, SCALAR))


def N69(it: Evidence) -> None:
    r"""For $\langle v, w \rangle = v^\top w$, $\nabla f(x) = \partial f(x)^\top$, a
    vector of n numbers."""
    x = numbers(5)
    row = jacobian(lambda z: z.sin().prod(0, keepdim=True), x)
    it.as_printed(same(row.T[:, 0], gradient_of(lambda z: z.sin().prod(), x)))


def N70(it: Evidence) -> None:
    r"""$\langle A, B \rangle = \mathrm{Tr}(A^\top B)$ is an inner product of $n \times
    m$ matrices, and it is $\sum_{ij} A_{ij} B_{ij}$.

    The two expressions are equal, not only equivalent."""
    it.derives(MATRICES)
    a, b, c = (numbers(3, 5, seed=seed) for seed in range(3))
    inner = np.trace(a.T @ b)
    it.as_printed(np.isclose(inner, np.trace(b.T @ a)) and np.trace(a.T @ a) > 0)
    it.as_printed(
        np.isclose(np.trace((2 * a + c).T @ b), 2 * inner + np.trace(c.T @ b))
    )


def N71(it: Evidence) -> None:
    r"""The trace has useful algebraic properties, which the text uses later: it is
    cyclic, $\mathrm{Tr}(ABC) = \mathrm{Tr}(CAB)$.

    The text uses this in its example and in the gradients of Q and K. Exchanging two of
    three factors is not allowed."""
    a, b, c = numbers(3, 4), numbers(4, 5), numbers(5, 3)
    it.as_printed(np.isclose(np.trace(a @ b @ c), np.trace(c @ a @ b)))
    db, dq, k = numbers(5, 7), numbers(5, 3), numbers(7, 3)
    moved = np.trace(k.T @ db.T @ dq)  # as in the gradient of Q
    change = push(lambda q: q @ constant(k).T, numbers(5, 3), dq)
    it.as_printed(np.isclose(moved, (db * change).sum()))
    m = numbers(3, 3, 3)
    it.right(not np.isclose(np.trace(m[0] @ m[1] @ m[2]), np.trace(m[1] @ m[0] @ m[2])))


def N72(it: Evidence) -> None:
    r"""For matrices, $\partial f(A)$ is only a linear function, so the gradient is not
    its transpose in any clear sense.

    It is the adjoint: $\nabla f(A) = \partial f(A)^*(1)$ for the adjoint $\partial
    f(A)^*: \mathbb{R} \to \mathbb{R}^{n \times m}$; with A flattened it is the
    transpose of a row. (“The derivative of $\partial f(A)$” in the text means $\partial
    f(A)$.)"""
    a = numbers(3, 4)
    gradient = gradient_of(lambda z: (z @ z.T).logdet(), a)
    row = jacobian(lambda z: (z.view(3, 4) @ z.view(3, 4).T).logdet(), a.ravel())[None]
    adjoint = row.T  # a linear map from R to R^12
    it.as_printed(not same((adjoint @ [1.0]).reshape(3, 4), gradient))
    b = numbers(3, 4, seed=1)
    it.right(np.isclose((gradient * b).sum(), (row @ b.ravel())[0]))


def N73(it: Evidence) -> None:
    r"""The gradient is the one matrix with $\langle \nabla f(A), B \rangle = \partial
    f(A)(B)$ for all B."""
    a = numbers(3, 4)
    gradient = gradient_of(lambda z: (z @ z.T).logdet(), a)
    for b in (*np.eye(12).reshape(12, 3, 4), numbers(3, 4, seed=1)):
        change = push(lambda z: (z @ z.T).logdet(), a, b)
        it.as_printed(np.isclose(np.trace(gradient.T @ b), change))


def N74(it: Evidence) -> None:
    r"""$v^\top B w = \mathrm{Tr}(v^\top B w) = \mathrm{Tr}(w v^\top B)$."""
    v, b, w = numbers(3), numbers(3, 4), numbers(4)
    it.as_printed(np.isclose(v @ b @ w, np.trace(v[None] @ b @ w[:, None])))
    it.as_printed(np.isclose(v @ b @ w, np.trace(np.outer(w, v) @ b)))


def N75(it: Evidence) -> None:
    r"""If $\partial f(A)(B) = v^T B w$ for all B, then $\nabla f(A) = v w^T$."""
    it.derives(MATRICES)


def N76(it: Evidence) -> None:
    r"""In practice gradients are all that is computed.

    The results of the program are gradients, but its $d_i = \nabla_{Y_i} l^\top Y_i$ is
    not one: it is the derivative of the loss along $Y_i$."""
    member = ("Linear", "Softmax")
    found = program(member)
    it.right(all(map(same, (found["dq"], found["dk"], found["dv"]), gradients(member))))
    along = [
        push(lambda z: (z * constant(DY)).sum(), found["y"], found["y"] * rows)
        for rows in np.eye(5)[:, :, None]
    ]
    it.right(same(found["along"], along))
    it.as_printed(found["along"].shape in {found[name].shape for name in "qkvab"})


def N77(it: Evidence) -> None:
    """A derivative needs neither an inner product nor scalar values.

    The gradient changes with the inner product; the derivative does not."""
    x, v, w = numbers(4), numbers(4, seed=1), np.diag([1.0, 2, 3, 4])
    row = np.exp(x)
    gradients = [np.linalg.solve(inner, row) for inner in (np.eye(4), w)]
    changes = [
        g @ inner @ v for g, inner in zip(gradients, (np.eye(4), w), strict=True)
    ]
    it.as_printed(np.isclose(*changes) and not same(gradients[0], gradients[1]))
    it.as_printed(np.isclose(changes[0], push(lambda z: z.exp().sum(), x, v)))
    it.as_printed(push(lambda z: z.outer(z), x, v).shape == (4, 4))


def N78(it: Evidence) -> None:
    r"""Gradients do not have a clear chain rule.

    An inner function whose values are vectors has no gradient, but the composition has,
    with a clear rule: $\nabla (l \circ g)(x) = \partial g(x)^* \, \nabla l(g(x))$. This
    is backpropagation, which the text uses from here on."""
    x, dy = numbers(5), numbers(5, seed=1)
    outer = vjp(lambda y: y.sin(), softmax(x), dy)
    both = vjp(lambda z: z.softmax(0).sin(), x, dy)
    rule = jacobian(lambda z: z.softmax(0), x).T @ outer
    it.as_printed(not same(rule, both))
    it.right(same(rule, both))
