"""Gradients with respect to K and Q."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import (
    derives,
    jacobian,
    numbers,
    raises,
    same,
    vjp,
)
from backpass_ledger.claims.trace_notes.derivatives import NOTATION, constant, push
from backpass_ledger.claims.trace_notes.program import (
    DY,
    GIVEN,
    MEMBERS,
    forward,
    gradients,
    program,
    weights,
)

CLAIMS = """
N152  true          0  chain rule  attention/scaled_dot_product  K and Q, first sentence
N153  true          0  matmul      attention/scaled_dot_product  Linear, Q
N154  true          0  matmul      attention/scaled_dot_product  Linear, Q, result
N155  true          0  matmul      attention/scaled_dot_product  Linear, K
N156  true          0  matmul      attention/scaled_dot_product  Linear, K, result
N157  inconsistent  3  notation    reference/letters             Multilinear, shapes
N158  uncheckable   0  notation    attention/multilinear         Multilinear, note on arrays
N159  caveat        1  notation    attention/multilinear         Multilinear, note on arrays
N160  inconsistent  1  notation    attention/multilinear         Multilinear, word
N161  true          0  attention   attention/multilinear         Multilinear, B
N162  true          0  attention   attention/multilinear         Multilinear, derivative, line 1
N163  true          0  attention   attention/multilinear         Multilinear, derivative, line 2
N164  false         5  notation    attention/multilinear         Multilinear, derivative, line 3
N165  caveat        5  attention   attention/multilinear         Multilinear, derivative, line 3
N166  caveat        4  attention   attention/multilinear         Multilinear, derivative, line 4
N167  caveat        4  precision   attention/multilinear         Multilinear, $P_m$
N168  true          0  notation    foundations/notation          Multilinear, result on traces
N169  true          0  notation    foundations/notation          Multilinear, corollary
N170  true          0  chain rule  attention/multilinear         Multilinear, loss, lines 1 and 2
N171  true          0  matmul      attention/multilinear         Multilinear, loss, line 3
N172  true          0  matmul      attention/multilinear         Multilinear, loss, line 4
N173  true          0  attention   attention/multilinear         Multilinear, Q, result
N174  true          0  attention   attention/multilinear         Multilinear, K, derivative
N175  true          0  matmul      attention/multilinear         Multilinear, K, loss
N176  true          0  attention   attention/multilinear         Multilinear, K, result
N177  left-out      1  memory      attention/multilinear         whole text
"""

LINEAR = (
    NOTATION
    + r"""
    given Q \in \R^{t \times d}, K \in \R^{s \times d}
    given \nabla_B l \in \R^{t \times s}
    let B = Q K^\top
"""
)
MULTILINEAR = (
    NOTATION
    + r"""
    given Q, K \in \R^{p \times t \times d}
    given \nabla_B l \in \R^{t \times t}
    let B_{ij} = \prod_k (\sum_a Q_{kia} K_{kja})
    let P_{mij} = \prod_{k \ne m} (\sum_a Q_{kia} K_{kja})
    slice Q_m, K_m \in \R^{t \times d}, P_m \in \R^{t \times t}
"""
)

# Four factors of 5 queries and 7 keys, of width 3, and a gradient of the scores.
Q, K = numbers(4, 5, 3), numbers(4, 7, 3, seed=1)
DQ, DB = numbers(5, 3, seed=2), numbers(5, 7)
FACTORS = Q @ K.transpose(0, 2, 1)
B = FACTORS.prod(0)
P = [np.delete(FACTORS, m, axis=0).prod(0) for m in range(4)]


def product(queries: Any, keys: Any) -> Any:
    """The scores of factors, as torch tensors."""
    b: Any = 1
    for q, k in zip(queries, keys, strict=True):
        b = b * (q @ k.T)
    return b


def of_query(m: int) -> Callable[[Any], Any]:
    """The scores as a function of the queries of factor m."""
    q, k = ([constant(x) for x in y] for y in (Q, K))
    return lambda x: product([*q[:m], x, *q[m + 1 :]], k)


def N152(it: Evidence) -> None:
    """The gradient of B is all that is needed for those of Q and K.

    V, A and the norm are not needed again."""
    v = constant(GIVEN["V"])
    for member in MEMBERS:
        norm = partial(weights, kind=member[1])
        db = vjp(lambda b, n=norm: n(b) @ v, forward(member)["b"], DY)
        p = 3 if member[0] == "Multilinear" else 1
        q, k = (np.split(GIVEN[name], p, axis=1) for name in "QK")
        found = vjp(lambda *qk, p=p: product(qk[:p], qk[p:]), [*q, *k], db)
        it.as_printed(same(np.concatenate(found[:p], axis=1), gradients(member)[0]))
        it.as_printed(same(np.concatenate(found[p:], axis=1), gradients(member)[1]))


def N153(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial Q}(\dot Q) = \mathrm{Tr}(\nabla_B l^\top
    \frac{\partial B}{\partial Q}(\dot Q)) = \mathrm{Tr}(\nabla_B l^\top \dot Q K^\top)
    = \mathrm{Tr}(K^\top \nabla_B l^\top \dot Q)$."""
    it.derives(LINEAR)


def N154(it: Evidence) -> None:
    r"""$\nabla_Q l = \nabla_B l\,K$.

    This holds for $B = QK^\top$. With the standard scale, it is divided by
    $\sqrt{d}$."""
    it.derives(LINEAR)
    scaled = LINEAR.replace("= Q", r"= \frac{1}{\sqrt{d}} Q")
    it.right(derives(r"\nabla_Q l = \frac{1}{\sqrt{d}} \nabla_B l K", scaled))


def N155(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial K}(\dot K) = \mathrm{Tr}(\nabla_B l^\top Q \dot
    K^\top) = \mathrm{Tr}(Q^\top \nabla_B l\,\dot K)$.

    The second step combines a transpose with a cyclic shift."""
    it.derives(LINEAR)


def N156(it: Evidence) -> None:
    r"""$\nabla_K l = \nabla_B l^T Q$."""
    it.derives(LINEAR)


def N157(it: Evidence) -> None:
    r"""There are p key and p query matrices, each in $\mathbb{R}^{t \times d}$.

    In the program d is the width of all factors together, and each has $d/p$ columns.
    The formulas hold for either width; `reshape([t, p, d//p])` works only for $d/p$."""
    found = forward(("Multilinear", "Softmax"))
    it.clashes(found["q_blocks"].shape[1:] != GIVEN["Q"].shape)
    stacked = numbers(5, 3 * 6)  # three of width 6
    it.clashes(raises(ValueError, lambda: stacked.reshape([5, 3, 6 // 3])))
    it.right(found["q_blocks"].shape == (3, 5, 6 // 3))


def N158(it: Evidence) -> None:
    """In a program, all p keys definitely belong in one array of rank 3.

    This is a preference. The text's program makes such an array from one of rank 2."""


def N159(it: Evidence) -> None:
    r"""An elegant gradient of an array of rank 3 needs algebra beyond matrices, traces
    and Hadamard products.

    The trace of such an array is not a number, so the text's argument does not apply to
    it directly. Whether an argument is elegant is a matter of taste, but more algebra
    is not needed: with indices the gradient is one line, $(\nabla_Q l)_{kia} = \sum_j
    (\nabla_B l)_{ij} P_{kij} K_{kja}$, and the trace argument holds slice by slice."""
    expected = vjp(lambda q: (q @ constant(K).transpose(1, 2)).prod(0), Q, DB)
    it.as_printed(np.ndim(np.trace(expected)) == 1)
    with_indices = r"(\nabla_Q l)_{kia} = \sum_j (\nabla_B l)_{ij} P_{kij} K_{kja}"
    it.elsewhere(not derives(with_indices, MULTILINEAR))
    slice_by_slice = r"\nabla_{\stQ m} l = (\nabla_B l \odot \stP m) \stK m"
    it.elsewhere(not derives(slice_by_slice, MULTILINEAR))


def N160(it: Evidence) -> None:
    r"""$B = \bigodot_k Q_k K_k^\top$ are the preactivations.

    The same B is called preattention everywhere else. A preactivation is the input of
    an activation function, which acts element by element; softmax and the norms act on
    whole rows."""
    pairs = zip(*(np.split(GIVEN[name], 3, axis=1) for name in "QK"), strict=True)
    activations = np.prod([q @ k.T for q, k in pairs], axis=0)
    it.clashes(same(activations, forward(("Multilinear", "Softmax"))["b"]))

    def by_elements(function: Callable[[Any], Any]) -> bool:
        found = jacobian(function, B[0])
        return not np.count_nonzero(found - np.diag(np.diag(found)))

    it.right(by_elements(lambda x: x.relu()) and by_elements(lambda x: x.tanh()))
    for kind in ("Simplex", "Sphere", "Softmax"):
        it.right(not by_elements(partial(weights, kind=kind)))


def N161(it: Evidence) -> None:
    r"""$B = \bigodot_{k=1}^p \stQ k \stK k^T$.

    $B_{ij}$ is the product of the factors' scores."""
    it.derives(MULTILINEAR)


def N162(it: Evidence) -> None:
    r"""$\frac{\partial B}{\partial Q_m}(\dot Q_m) = (\bigodot_{k \ne m} Q_k K_k^\top)
    \odot ((Q_m + \dot Q_m) K_m^\top) - B$.

    This holds for changes of any size, because B is linear in $Q_m$ while the other
    factors are fixed. The text does not say so."""
    it.derives(MULTILINEAR)


def N163(it: Evidence) -> None:
    r"""$\frac{\partial B}{\partial Q_m}(\dot Q_m) = (\bigodot_{k \ne m} Q_k K_k^\top)
    \odot (\dot Q_m K_m^\top)$.

    This form also holds where factors are 0, so use it in code."""
    it.derives(MULTILINEAR)
    zero = push(of_query(0), 0 * Q[0], DQ)
    it.right(same(P[0] * (DQ @ K[0].T), zero))


def N164(it: Evidence) -> None:
    r"""$\frac{\partial B}{\partial Q_m}(\dot Q_m) = B \odot (Q_m K_m^\top)^{\odot -1}
    (\dot Q_m K_m^\top)$.

    A $\odot$ is missing before the last parenthesis. Everywhere else, two matrices side
    by side are a matrix product. Here that product has another value, and it is not
    defined if there are more keys than queries."""
    it.derives(MULTILINEAR)
    right = r"""
        \frac{\der B}{\der \stQ m}\left (\dot{\stQ m}\right)
        &= B \odot \left( {\stQ m} \stK m^T \right)^{\odot -1}
        \odot \left( \dot{\stQ m} \stK m^T \right)
    """
    it.right(derives(right, MULTILINEAR))
    it.right(raises(ValueError, lambda: (1 / FACTORS[0]) @ (DQ @ K[0].T)))


def N165(it: Evidence) -> None:
    r"""$\bigodot_{k \ne m} Q_k K_k^\top = B \odot (Q_m K_m^\top)^{\odot -1}$.

    This holds if no element of $Q_m K_m^\top$ is 0, a condition that the text does not
    state. The left side and the derivative are defined without it."""
    it.derives(MULTILINEAR)
    factors = FACTORS.copy()
    factors[0, 2, 3] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = factors.prod(0) * (1 / factors[0])
    it.elsewhere(np.isfinite(quotient).all())
    it.right(same(factors[1:].prod(0), P[0]))


def N166(it: Evidence) -> None:
    r"""$\frac{\partial B}{\partial Q_m}(\dot Q_m) = P_m \odot (\dot Q_m K_m^\top)$,
    where $P_m = B \odot (Q_m K_m^\top)^{\odot -1}$.

    As on the previous line, no element of $Q_m K_m^\top$ may be 0. With the product of
    the other factors as $P_m$, the line holds without this condition."""
    it.derives(MULTILINEAR)
    zero = Q[0] * (np.arange(5) != 2)[:, None]  # a query of zeros
    factor, change = zero @ K[0].T, DQ @ K[0].T
    with np.errstate(invalid="ignore"):
        quotient = factor * P[0] / factor
    it.elsewhere(same(quotient * change, push(of_query(0), zero, DQ)))
    it.right(same(P[0] * change, push(of_query(0), zero, DQ)))


def N167(it: Evidence) -> None:
    r"""$P_m = B \odot (Q_m K_m^\top)^{\odot -1}$, a $t \times t$ matrix, is the product
    of the other factors.

    In short floating-point types the product underflows before the quotient: in float16
    four factors of 0.01 give $P_m = 0$, and the product of three of them is
    $10^{-6}$."""
    it.derives(MULTILINEAR)
    small = np.full(4, 0.01, np.float16)
    it.elsewhere(np.isclose(small.prod() / small[0], 1e-6, rtol=0.1, atol=0))
    it.right(np.isclose(small[1:].prod(), 1e-6, rtol=0.1, atol=0))


def N168(it: Evidence) -> None:
    r"""$\mathrm{Tr}(M^\top N) = u^\top (M \odot N)\,u$.

    If M is not square, the two vectors of ones have different lengths."""
    square = r"given M, N \in \R^{t \times t}; let u = \mathbf{1}_t"
    it.derives(NOTATION + square)
    other = r"\trace(M^T N) = \mathbf{1}_t^T ( M \odot N ) \mathbf{1}_s"
    it.right(derives(other, NOTATION + r"given M, N \in \R^{t \times s}"))


def N169(it: Evidence) -> None:
    r"""$\mathrm{Tr}(M^\top (N \odot S)) = \mathrm{Tr}((M \odot N)^\top S)$."""
    given = r"given M, N, S \in \R^{t \times s}"
    it.derives(NOTATION + given)


def N170(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial Q_m}(\dot Q_m) = \mathrm{Tr}(\nabla_B l^\top
    \frac{\partial B}{\partial Q_m}(\dot Q_m)) = \mathrm{Tr}(\nabla_B l^\top (P_m \odot
    (\dot Q_m K_m^\top)))$."""
    it.derives(MULTILINEAR)


def N171(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial Q_m}(\dot Q_m) = \mathrm{Tr}((\nabla_B l \odot
    P_m)^\top \dot Q_m K_m^\top)$."""
    it.derives(MULTILINEAR)


def N172(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial Q_m}(\dot Q_m) = \mathrm{Tr}(K_m^\top (\nabla_B l
    \odot P_m)^\top \dot Q_m)$."""
    it.derives(MULTILINEAR)


def N173(it: Evidence) -> None:
    r"""$\nabla_{\stQ m} l = \left ( \nabla_B l \odot \stP m \right)\stK m$.

    The program uses the whole K in place of $K_m$."""
    it.derives(MULTILINEAR)


def N174(it: Evidence) -> None:
    r"""$\frac{\partial B}{\partial K_m}(\dot K_m) = P_m \odot (Q_m \dot K_m^\top)$."""
    it.derives(MULTILINEAR)


def N175(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial K_m}(\dot K_m) = \mathrm{Tr}(Q_m^\top (\nabla_B l
    \odot P_m)\,\dot K_m)$."""
    it.derives(MULTILINEAR)


def N176(it: Evidence) -> None:
    r"""$\nabla_{\stK m} l = \left ( \nabla_B l \odot \stP m \right)^T \stQ m$.

    The program uses the whole Q in place of $Q_m$, and it reverses all axes."""
    it.derives(MULTILINEAR)


def N177(it: Evidence) -> None:
    """The text compares its members by the size of their state and by their gradients.

    The text does not count what a member costs. A linear member's program stores four
    arrays of $t^2$ numbers. A multilinear member's program also stores the scores of p
    factors, and as many numbers again in the backward."""
    stored = {}
    for kind in ("Linear", "Multilinear"):
        found = program((kind, "Softmax"))
        arrays = {id(x): x for x in found.values() if np.shape(x)[-2:] == (5, 5)}
        stored[kind] = sum(x.size // 25 for x in arrays.values())
    it.left_out(stored["Multilinear"] - stored["Linear"])
    it.right(stored == {"Linear": 4, "Multilinear": 4 + 2 * 3})
