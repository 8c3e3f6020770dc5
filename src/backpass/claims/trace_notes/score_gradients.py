"""Gradients with respect to the preattention B."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from backpass.claims.evidence import INCONSISTENT, LEFT_OUT, TRUE, Evidence
from backpass.claims.record import claim
from backpass.claims.tools import numbers, same, vjp
from backpass.claims.trace_notes.derivatives import constant
from backpass.claims.trace_notes.normalisations import alpha
from backpass.claims.trace_notes.program import but, softmax, weights
from backpass.claims.trace_notes.values_and_weights import HEADINGS

B, V, DY = numbers(5, 7), numbers(7, 6), numbers(5, 6)
DA = DY @ V.T
U = np.ones(7)
ALPHA, BETA = 1 / B.sum(1), 1 / np.linalg.norm(B, axis=1)
SIMPLEX, SPHERE, SOFTMAX = ALPHA[:, None] * B, BETA[:, None] * B, softmax(B)


def gradient(kind: str) -> Any:
    """The gradient of B, by autograd."""
    return vjp(lambda b: weights(b, kind) @ constant(V), B, DY)


def each(line: Callable[[int], Any]) -> Any:
    """The five rows that a line of the derivation gives."""
    return np.stack([line(i) for i in range(5)])


@claim("Simplex, lines 1 and 2", TRUE, topic="norms", page="attention/multilinear")
def N131(it: Evidence) -> None:
    r"""On the simplex, $\frac{\partial l}{\partial B_i} = \frac{\partial l}{\partial
    A_i} \frac{\partial A_i}{\partial B_i} = \nabla_{A_i} l^\top \alpha(B_i)\,(I -
    A_i u^\top)$.
    """
    printed = each(lambda i: DA[i] * ALPHA[i] @ (np.eye(7) - np.outer(SIMPLEX[i], U)))
    it.as_printed(same(printed, gradient("Simplex")))


@claim("Simplex, line 3", TRUE, topic="norms", page="attention/multilinear")
def N132(it: Evidence) -> None:
    r"""On the simplex, $\frac{\partial l}{\partial B_i} = \alpha(B_i)\,(\nabla_{A_i}
    l^\top - \nabla_{Y_i} l^\top V^\top A_i u^\top)$.
    """
    printed = each(lambda i: ALPHA[i] * (DA[i] - DY[i] @ V.T @ np.outer(SIMPLEX[i], U)))
    it.as_printed(same(printed, gradient("Simplex")))


@claim("Simplex, line 4", TRUE, topic="norms", page="attention/multilinear")
def N133(it: Evidence) -> None:
    r"""On the simplex, $\frac{\partial l}{\partial B_i} = \alpha(B_i)\,(\nabla_{A_i}
    l^\top - \nabla_{Y_i} l^\top Y_i u^\top)$.
    """
    y = SIMPLEX @ V
    printed = each(lambda i: ALPHA[i] * (DA[i] - DY[i] @ np.outer(y[i], U)))
    it.as_printed(same(printed, gradient("Simplex")))


@claim("Simplex, line 5", TRUE, topic="flash", page="attention/multilinear")
def N134(it: Evidence) -> None:
    r"""On the simplex, $\frac{\partial l}{\partial B_i} = \alpha(B_i)\,(\nabla_{A_i}
    l^\top - d_i u^\top)$ with $d_i = \nabla_{Y_i} l^\top Y_i$.
    """
    d = [DY[i] @ (SIMPLEX @ V)[i] for i in range(5)]
    it.as_printed(
        same(each(lambda i: ALPHA[i] * (DA[i] - d[i] * U)), gradient("Simplex"))
    )


@claim("Simplex, one row", TRUE, topic="norms", page="attention/multilinear")
def N135(it: Evidence) -> None:
    r"""$\nabla_{B_i} l = \alpha(B_i)\,(\nabla_{A_i} l - d_i u)$, for one row by
    itself.
    """
    for i in range(5):
        row = vjp(lambda b: weights(b, "Simplex") @ constant(V), B[i], DY[i])
        d = DY[i] @ (V.T @ SIMPLEX[i])
        it.as_printed(same((DA[i] - d) / B[i].sum(), row))


@claim("Simplex, result", TRUE, topic="norms", page="attention/multilinear")
def N136(it: Evidence) -> None:
    r"""$\nabla_B l = D_{\alpha(B)}\,(\nabla_A l - d u^\top)$.

    The gradient of a row is orthogonal to the row, since multiples have the same
    weights.
    """
    d = np.diag(DY @ (SIMPLEX @ V).T)
    printed = np.diag(ALPHA) @ (DA - np.outer(d, U))
    it.as_printed(same(printed, gradient("Simplex")))
    it.right(abs((printed * B).sum(1)).max() < 1e-9 * abs(printed * B).max())


@claim(
    "Simplex, words",
    INCONSISTENT,
    topic="notation",
    page="reference/letters",
    harm=1,
)
def N137(it: Evidence) -> None:
    r"""$d \in \mathbb{R}^T$.

    It has t numbers, one per query. Everywhere else T stands for a transpose: in the
    program, `t` is a size and `.T` an attribute of arrays.
    """
    nodes = list(ast.walk(ast.parse(but())))
    sizes = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    it.clashes("T" not in sizes and "T" in attributes)
    d = np.diag(DY @ (SIMPLEX @ V).T)
    it.right("t" in sizes and d.shape == (len(B),))


@claim(
    "Simplex, words",
    INCONSISTENT,
    topic="notation",
    page="foundations/notation",
    harm=1,
)
def N138(it: Evidence) -> None:
    r"""Notation is defined before it is used.

    $D_{\exp(x)}$ stands in the Jacobian of softmax, but D is defined only here.
    $\gamma$ and $\odot$ are used one section before their definitions. $\alpha(x)$ was
    defined as one number, but $\alpha(B)$ is a vector.
    """
    uses = {  # the sections of the first use and of the definition
        r"\gamma": (HEADINGS[2], HEADINGS[3]),
        "D": (HEADINGS[3], HEADINGS[5]),
        r"\odot": (HEADINGS[5], HEADINGS[6]),
    }
    for used, defined in uses.values():
        it.clashes(HEADINGS.index(used) < HEADINGS.index(defined))
    it.clashes(np.shape(alpha(B)) != ALPHA.shape)  # by the definition, and here
    it.right(same(ALPHA, [alpha(row) for row in B]))


@claim("Simplex, words", TRUE, topic="notation", page="foundations/notation")
def N139(it: Evidence) -> None:
    r"""$D_x$, the diagonal matrix of x, scales rows from the left, and $d u^\top$
    has a copy of d in each column.
    """
    d, m = numbers(5, seed=1), numbers(5, 7, seed=1)
    it.as_printed(all(same((np.diag(d) @ m)[i], d[i] * m[i]) for i in range(5)))
    it.as_printed(all(same(np.outer(d, U)[:, j], d) for j in range(7)))


@claim("Simplex, words", TRUE, topic="notation", page="foundations/notation")
def N140(it: Evidence) -> None:
    r"""The result uses two different types of broadcasting.

    The diagonal matrix scales each row, and $d u^\top$ subtracts one number from each
    row. In code both are columns: `(dA - d[:, None]) * alpha[:, None]`.
    """
    d = (DY * (SIMPLEX @ V)).sum(1)
    left = DA - np.outer(d, U)
    scaled = np.diag(ALPHA) @ left
    it.as_printed(same(left - left[:, :1], DA - DA[:, :1]))  # differences in a row stay
    it.as_printed(same(scaled / scaled[:, :1], left / left[:, :1]))  # ratios stay
    it.as_printed(not same(left / left[:, :1], DA / DA[:, :1]))
    it.right(same((DA - d[:, None]) * ALPHA[:, None], gradient("Simplex")))


@claim("Sphere, lines 1 and 2", TRUE, topic="norms", page="attention/multilinear")
def N141(it: Evidence) -> None:
    r"""On the sphere, $\frac{\partial l}{\partial B_i} = \nabla_{A_i} l^\top
    \beta(B_i)\,(I - A_i A_i^\top)$.
    """
    a = SPHERE
    printed = each(lambda i: DA[i] * BETA[i] @ (np.eye(7) - np.outer(a[i], a[i])))
    it.as_printed(same(printed, gradient("Sphere")))


@claim("Sphere, line 3", TRUE, topic="norms", page="attention/multilinear")
def N142(it: Evidence) -> None:
    r"""On the sphere, $\frac{\partial l}{\partial B_i} = \beta(B_i)\,(\nabla_{A_i}
    l^\top - \nabla_{Y_i} l^\top V^\top A_i A_i^\top)$.
    """
    a = SPHERE
    printed = each(lambda i: BETA[i] * (DA[i] - DY[i] @ V.T @ np.outer(a[i], a[i])))
    it.as_printed(same(printed, gradient("Sphere")))


@claim("Sphere, lines 4 and 5", TRUE, topic="norms", page="attention/multilinear")
def N143(it: Evidence) -> None:
    r"""On the sphere, $\frac{\partial l}{\partial B_i} = \beta(B_i)\,(\nabla_{A_i}
    l^\top - \nabla_{Y_i} l^\top Y_i A_i^\top) = \beta(B_i)\,(\nabla_{A_i} l^\top -
    d_i A_i^\top)$.
    """
    a, y = SPHERE, SPHERE @ V
    printed = each(lambda i: BETA[i] * (DA[i] - DY[i] @ np.outer(y[i], a[i])))
    it.as_printed(same(printed, gradient("Sphere")))
    d = (DY * y).sum(1)
    it.as_printed(
        same(each(lambda i: BETA[i] * (DA[i] - d[i] * a[i])), gradient("Sphere"))
    )


@claim("Sphere, result", TRUE, topic="norms", page="attention/multilinear")
def N144(it: Evidence) -> None:
    r"""$\nabla_B l = D_{\beta(B)}\,(\nabla_A l - D_d A)$.

    The program's line is different: it lacks A.
    """
    d = (DY * (SPHERE @ V)).sum(1)
    it.as_printed(same(np.diag(BETA) @ (DA - np.diag(d) @ SPHERE), gradient("Sphere")))
    it.right(not same(np.diag(BETA) @ (DA - d[:, None]), gradient("Sphere")))


@claim(
    "Sphere, last sentence",
    INCONSISTENT,
    topic="notation",
    page="attention/multilinear",
    harm=0,
)
def N145(it: Evidence) -> None:
    """Now the gradients of K and Q are computed, for linear and multilinear scores.

    Softmax's gradient of B comes next. The gradients of K and Q follow in the next
    section.
    """
    a = SOFTMAX
    row = DA[0] @ (np.diag(a[0]) - np.outer(a[0], a[0]))  # the lines that come next
    it.clashes(same(row, gradient("Softmax")[0]))
    at = HEADINGS.index("Gradients wrt preattention B")
    it.right(HEADINGS[at + 1] == "Gradients wrt K and Q")


@claim("Softmax, lines 1 and 2", TRUE, topic="softmax", page="operations/softmax")
def N146(it: Evidence) -> None:
    r"""For softmax, $\frac{\partial l}{\partial B_i} = \nabla_{A_i} l^\top (D_{A_i}
    - A_i A_i^\top)$.
    """
    a = SOFTMAX
    printed = each(lambda i: DA[i] @ (np.diag(a[i]) - np.outer(a[i], a[i])))
    it.as_printed(same(printed, gradient("Softmax")))


@claim("Softmax, line 3", TRUE, topic="softmax", page="operations/softmax")
def N147(it: Evidence) -> None:
    r"""For softmax, $\frac{\partial l}{\partial B_i} = \nabla_{A_i} l^\top D_{A_i} -
    \nabla_{Y_i} l^\top V^\top A_i A_i^\top$.
    """
    a = SOFTMAX
    printed = each(lambda i: DA[i] @ np.diag(a[i]) - DY[i] @ V.T @ np.outer(a[i], a[i]))
    it.as_printed(same(printed, gradient("Softmax")))


@claim("Softmax, lines 4 and 5", TRUE, topic="softmax", page="operations/softmax")
def N148(it: Evidence) -> None:
    r"""For softmax, $\frac{\partial l}{\partial B_i} = (\nabla_{A_i} l \odot
    A_i)^\top - \nabla_{Y_i} l^\top Y_i A_i^\top = (\nabla_{A_i} l \odot A_i)^\top -
    d_i A_i^\top$.
    """
    a, y = SOFTMAX, SOFTMAX @ V
    printed = each(lambda i: DA[i] * a[i] - DY[i] @ np.outer(y[i], a[i]))
    it.as_printed(same(printed, gradient("Softmax")))
    d = (DY * y).sum(1)
    it.as_printed(same(each(lambda i: DA[i] * a[i] - d[i] * a[i]), gradient("Softmax")))


@claim("Softmax, one row", TRUE, topic="softmax", page="operations/softmax")
def N149(it: Evidence) -> None:
    r"""$\nabla_{B_i} l = \nabla_{A_i} l \odot A_i - d_i A_i = (\nabla_{A_i} l - d_i
    u) \odot A_i$.
    """
    for i in range(5):
        row = vjp(lambda b: b.softmax(0) @ constant(V), B[i], DY[i])
        a, d = SOFTMAX[i], DY[i] @ (V.T @ SOFTMAX[i])
        it.as_printed(same(DA[i] * a - d * a, row) and same((DA[i] - d * U) * a, row))


@claim("Softmax, result", TRUE, topic="softmax", page="operations/softmax")
def N150(it: Evidence) -> None:
    r"""$\nabla_B l = (\nabla_A l - d u^\top) \odot A$.

    Its rows sum to 0, since a shift of a row changes nothing.
    """
    d = (DY * (SOFTMAX @ V)).sum(1)
    printed = (DA - np.outer(d, U)) * SOFTMAX
    it.as_printed(same(printed, gradient("Softmax")))
    it.right(abs(printed.sum(1)).max() < 1e-12)


@claim(
    "The three results",
    LEFT_OUT,
    topic="attention",
    page="attention/multilinear",
    harm=4,
)
def N151(it: Evidence) -> None:
    """The three results are the gradients of B. The text leaves the causal mask out
    here too.

    With a mask, softmax's formula gives 0 at hidden scores, since their weights are 0.
    On the simplex and the sphere, the formulas give a gradient for a score that the
    mask has set to 0, so the mask has to be applied to the gradient too.
    """
    tri = np.tri(5, 7, 2)
    for b, gamma in ((tri * abs(B), "Simplex"), (tri * B, "Sphere")):
        s = b.sum(1) if gamma == "Simplex" else np.linalg.norm(b, axis=1)
        a = b / s[:, None]
        d = (DY * (a @ V)).sum(1)[:, None]
        printed = (DA - (d if gamma == "Simplex" else d * a)) / s[:, None]
        it.left_out(np.count_nonzero(printed[tri == 0]))
        masked = vjp(
            lambda z, g=gamma: weights(constant(tri) * z, g) @ constant(V), b, DY
        )
        it.right(same(tri * printed, masked))
    a = softmax(np.where(tri > 0, B, -np.inf))
    it.right(not ((DA - (DY * (a @ V)).sum(1)[:, None]) * a)[tri == 0].any())
