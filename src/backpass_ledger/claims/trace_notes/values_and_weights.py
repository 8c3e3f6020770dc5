"""Gradients with respect to V and A."""

from __future__ import annotations

from functools import partial

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, jacobian, numbers, same, torch, vjp
from backpass_ledger.claims.trace_notes.derivatives import (
    NOTATION,
    constant,
    gradient_of,
)
from backpass_ledger.claims.trace_notes.program import (
    DY,
    GIVEN,
    MEMBERS,
    WEIGHTS,
    attention,
    forward,
    gradients,
    program,
    weights,
)

CLAIMS = """
N79  inconsistent  1  notation    reference/letters         Gradients wrt V and A, letters
N80  false         3  attention   networks/encoder_decoder  Gradients wrt V and A
N81  caveat        2  flash       attention/flash           Gradients wrt V and A
N82  true          0  chain rule  foundations/chain_rule    Gradients wrt V and A, first formula
N83  true          0  chain rule  foundations/chain_rule    Gradients wrt V and A, V
N84  true          0  matmul      operations/linear         Gradients wrt V and A, V
N85  true          0  matmul      operations/linear         Gradients wrt V and A, V
N86  true          0  matmul      operations/linear         Gradients wrt V and A, V
N87  false         1  notation    attention/multilinear     Gradients wrt V and A, A and B
N88  true          0  softmax     operations/softmax        Gradients wrt V and A, A and B
N89  inconsistent  6  attention   attention/multilinear     Gradients wrt V and A, A and B
N90  false         2  notation    attention/multilinear     Gradients wrt V and A, A and B
N91  caveat        3  softmax     attention/multilinear     Gradients wrt V and A, A and B
N92  inconsistent  1  notation    attention/multilinear     Gradients wrt V and A, A and B
N93  true          0  chain rule  foundations/chain_rule    Gradients wrt V and A, A and B
N94  true          0  matmul      operations/linear         Gradients wrt V and A, A
N95  true          0  attention   attention/multilinear     Gradients wrt V and A, plan
N96  true          0  matmul      operations/linear         Gradients wrt V and A, A
"""

HEADINGS = (  # of the text, in its order
    "Transformer Forward and Backward Passes",
    "Notation",
    "Gradients wrt V and A",
    "Preattention Gradients: Simplex, Sphere and Softmax",
    "Properties of the derivative",
    "Gradients wrt preattention B",
    "Gradients wrt K and Q",
)
OUTPUT = r"""
    let Y = A V
    slice A_i \in \R^s, Y_i \in \R^p
    let d_i = \nabla_{Y_i} l^\top Y_i
"""
VALUES = (
    NOTATION
    + r"""
    given A \in \R^{t \times s}, V \in \R^{s \times p}
    given \nabla_Y l \in \R^{t \times p}
"""
    + OUTPUT
)
SCORES = (
    NOTATION
    + r"""
    given B \in \R^{t \times s}, V \in \R^{s \times p}
    given \nabla_Y l \in \R^{t \times p}
    slice B_i \in \R^s
    let u = \mathbf{1}_s
"""
)
SIMPLEX = (
    SCORES
    + r"""
    let \alpha(x) = (\sum_i x_i)^{-1}
    let A_{ij} = \frac{B_{ij}}{\sum_k B_{ik}}
    let a_i = \alpha(B_i)
    read \alpha(B) as a
"""
    + OUTPUT
)
SPHERE = (
    SCORES
    + r"""
    let \beta(x) = (\sum_i x_i^2)^{-\frac{1}{2}}
    let A_{ij} = \frac{B_{ij}}{\sqrt{\sum_k B_{ik}^2}}
    let b_i = \beta(B_i)
    read \beta(B) as b
"""
    + OUTPUT
)
SOFTMAX = (
    SCORES
    + r"""
    let \sf(x)_i = \frac{e^{x_i}}{\sum_k e^{x_k}}
    let A_{ij} = \frac{e^{B_{ij}}}{\sum_k e^{B_{ik}}}
"""
    + OUTPUT
)


def N79(it: Evidence) -> None:
    r"""V is a vector space of matrices, A a point of it, and B any change of A.

    From this section on V are the values, A the weights, and B the scores, and B
    determines A."""
    v, w, a, b = numbers(5), numbers(5, seed=1), numbers(5, 5), numbers(5, 5, seed=1)
    gradient = gradient_of(lambda z: constant(v) @ z @ constant(w), a)
    it.right(np.isclose(np.trace(gradient.T @ b), v @ b @ w))  # for any A and B
    for kind in WEIGHTS:
        it.clashes(not same(a, weights(constant(b), kind)))


def N80(it: Evidence) -> None:
    """The outputs Y, whose gradient is given, are those of the full transformer layer.

    They are the input of the output projection. The projection, the residual
    connections, the norms and the feed-forward block lie between Y and the layer's
    output, so their backward has to run first."""
    layer = torch.nn.TransformerEncoderLayer(6, 1, 12, batch_first=True).double().eval()
    core, x = layer.self_attn, constant(numbers(1, 5, 6))
    with torch.no_grad():
        qkv = (x @ core.in_proj_weight.T + core.in_proj_bias)[0].chunk(3, 1)
        y = attention(("Linear", "Softmax"), qkv[0] / 6**0.5, *qkv[1:])
        it.as_printed(same(layer(x)[0], y))
        it.right(same(core(x, x, x)[0][0], core.out_proj(y)))


def N81(it: Evidence) -> None:
    r"""The gradients have the form that is useful for FlashAttention.

    One part does: $d_i = Y_i \cdot \nabla_{Y_i} l$ replaces a sum over a row of
    weights. The remaining formulas are not tiled, and the program stores four arrays of
    $t^2$ numbers, which FlashAttention avoids: B, A and their gradients."""
    found = program(("Linear", "Softmax"))
    row = (found["a"] * found["da"]).sum(1)
    it.as_printed(same((found["y"] * DY).sum(1), row))
    squares = {key for key, x in found.items() if np.shape(x) == (5, 5)}
    it.right(squares == {"a", "b", "da", "db"})
    it.elsewhere(not squares)


def N82(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial Y}(\dot Y) = \mathrm{Tr}(\nabla_Y l^\top \dot
    Y)$."""
    loss = r"given Y \in \R^{t \times p}; let l = \log \sum_{ij} e^{Y_{ij}}"
    it.derives(NOTATION + loss)


def N83(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial V}(\dot V) = \frac{\partial l}{\partial
    Y}(\frac{\partial Y}{\partial V}(\dot V)) = \mathrm{Tr}(\nabla_Y l^\top
    \frac{\partial Y}{\partial V}(\dot V))$."""
    it.derives(VALUES)


def N84(it: Evidence) -> None:
    r"""$Y = AV$ is linear in A and in V, so $\frac{\partial Y}{\partial V}(\dot V) = A
    \dot V$.

    It is linear in each while the other is fixed. Doubling both multiplies Y by 4."""
    a, v, dot = numbers(5, 7), numbers(7, 6), numbers(7, 6, seed=1)
    it.derives(VALUES)
    it.as_printed(same(a @ (v + 3 * dot), a @ v + 3 * (a @ dot)))
    b = numbers(5, 7, seed=1)
    it.as_printed(same((a + 3 * b) @ v, a @ v + 3 * (b @ v)))
    it.right(same((2 * a) @ (2 * v), 4 * (a @ v)))


def N85(it: Evidence) -> None:
    r"""$\mathrm{Tr}(\nabla_Y l^\top A \dot V) = \langle A^\top \nabla_Y l, \dot V
    \rangle$."""
    it.derives(VALUES)


def N86(it: Evidence) -> None:
    r"""$\nabla_V l = A^T \nabla_Y l$.

    This also holds if the numbers of keys and queries differ."""
    it.derives(VALUES)


def N87(it: Evidence) -> None:
    r"""For an elegant derivation of the gradient of B, another technique is needed, row
    by row.

    It works, but it is not needed. The changes of whole matrices take one line each:
    $\dot A = D_\alpha (\dot B - D_{\dot B u} A)$ on the simplex, $\dot A = D_\beta
    (\dot B - D_{(A \odot \dot B) u} A)$ on the sphere, and $\dot A = A \odot \dot B -
    D_{(A \odot \dot B) u} A$ for softmax."""
    b, da = numbers(5, 7), numbers(5, 7, seed=1)
    for kind in ("Simplex", "Sphere", "Softmax"):
        norm = partial(weights, kind=kind)
        rows = [vjp(norm, x, g) for x, g in zip(b, da, strict=True)]
        it.right(same(rows, vjp(norm, b, da)))
    for definitions, whole in (
        (SIMPLEX, r"\dot A = D_{\alpha(B)} (\dot B - D_{\dot B u} A)"),
        (SPHERE, r"\dot A = D_{\beta(B)} (\dot B - D_{(A \odot \dot B) u} A)"),
        (SOFTMAX, r"\dot A = A \odot \dot B - D_{(A \odot \dot B) u} A"),
    ):
        it.as_printed(not derives(whole, definitions))
        it.right(derives(whole, definitions))


def N88(it: Evidence) -> None:
    r"""The derivative of A with respect to B is sparse: $B_i$ affects $A_i$ only.

    At most $t^3$ of its $t^4$ elements differ from 0."""
    for kind in ("Simplex", "Sphere", "Softmax"):
        found = jacobian(partial(weights, kind=kind), numbers(5, 5))
        other = ~np.eye(5, dtype=bool)
        it.as_printed(not found.transpose(0, 2, 1, 3)[other].any())
        it.right(np.count_nonzero(found) == 5**3)


def N89(it: Evidence) -> None:
    """A query's scores affect no other query's weights.

    This holds in the derivations, which normalise rows. In the program, which
    normalises columns, each score affects the weights of all queries for that key."""
    by_columns = jacobian(lambda b: weights(b.T, "Simplex").T, numbers(5, 5))
    it.clashes(by_columns[0, :, 1].any())
    it.clashes(same(forward(("Linear", "Simplex"), "rows")["a"].sum(0), np.ones(5)))
    it.right(
        not jacobian(lambda b: weights(b, "Simplex"), numbers(5, 5))[0, :, 1].any()
    )


def N90(it: Evidence) -> None:
    r"""The preattention vector is $B_i = K Q_i$.

    This is so for linear scores, where it is row i of $QK^\top$, written as a column.
    For multilinear scores, half of the members, it is $\bigodot_k K_k Q_{k,i}$. The
    following derivation holds for both."""
    q, k = GIVEN["Q"], GIVEN["K"]
    linear, multilinear = (
        forward((s, "Sphere"))["b"] for s in ("Linear", "Multilinear")
    )
    it.as_printed(
        all(same(b[i], k @ q[i]) for b in (linear, multilinear) for i in range(5))
    )
    it.right(same(linear, (k @ q.T).T))
    factors = [k[:, at : at + 2] @ q[3, at : at + 2] for at in (0, 2, 4)]
    it.right(same(multilinear[3], np.prod(factors, axis=0)))


def N91(it: Evidence) -> None:
    r"""The attention vector is $A_i = \gamma(B_i)\,B_i$, a number times the
    preattention vector.

    This holds for the simplex and the sphere. Softmax's attention vector is
    $\alpha(e^{B_i})\,e^{B_i}$, which is not a multiple of $B_i$."""
    for kind in WEIGHTS:
        found = forward(("Linear", kind))
        ratio = found["a"] / found["b"]
        report = it.elsewhere if kind == "Softmax" else it.as_printed
        report(same(ratio, np.repeat(ratio[:, :1], 5, axis=1)))
    exp = np.exp(found["b"])
    it.right(same(found["a"], exp / exp.sum(1, keepdims=True)))


def N92(it: Evidence) -> None:
    """The derivatives of $A_i$ with respect to $B_i$ were worked out in the section
    “Sphere vs Simplex”.

    No section has that name. The derivatives are in the next section, on the simplex,
    the sphere and softmax."""
    it.clashes(not any(heading.startswith("Sphere vs") for heading in HEADINGS))
    here, there = (
        at
        for at, heading in enumerate(HEADINGS)
        if "V and A" in heading or "Sphere" in heading
    )
    it.clashes(here < there)


def N93(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial B_i} = \frac{\partial l}{\partial A_i}
    \frac{\partial A_i}{\partial B_i}$.

    It is a row times a matrix. No sum over other rows is needed."""
    for definitions in (SIMPLEX, SPHERE, SOFTMAX):
        it.derives(definitions)


def N94(it: Evidence) -> None:
    r"""$\frac{\partial l}{\partial A_i} = \sum_j \frac{\partial l}{\partial Y_j}
    \frac{\partial Y_j}{\partial A_i} = \frac{\partial l}{\partial Y_i} \frac{\partial
    Y_i}{\partial A_i} = \nabla_{Y_i} l^\top V^\top$."""
    it.derives(VALUES)


def N95(it: Evidence) -> None:
    r"""The norm affects $\nabla_Q l$ and $\nabla_K l$, but only through $\nabla_B l$.

    It affects $\nabla_V l$ too, through A."""
    for member in MEMBERS[:3]:
        k, v = GIVEN["K"], constant(GIVEN["V"])
        db = vjp(lambda z, m=member[1], v=v: weights(z, m) @ v, GIVEN["Q"] @ k.T, DY)
        it.as_printed(same(db @ k, gradients(member)[0]))
        it.as_printed(same(db.T @ GIVEN["Q"], gradients(member)[1]))
    for at in range(3):
        it.right(not same(gradients(MEMBERS[0])[at], gradients(MEMBERS[1])[at]))


def N96(it: Evidence) -> None:
    r"""$\nabla_A l = \nabla_Y l\,V^\top$.

    The text leaves the derivation out: $\mathrm{Tr}(\nabla_Y l^\top \dot A V) =
    \mathrm{Tr}(V \nabla_Y l^\top \dot A)$."""
    it.derives(VALUES)
    cyclic = r"\trace(\nabla_Y l^T \dot A V) = \trace(V \nabla_Y l^T \dot A)"
    it.right(derives(cyclic, VALUES))
