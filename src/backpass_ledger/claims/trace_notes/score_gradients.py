"""Gradients with respect to the preattention B."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, numbers, same, vjp
from backpass_ledger.claims.trace_notes.derivatives import NOTATION, constant
from backpass_ledger.claims.trace_notes.normalisations import alpha
from backpass_ledger.claims.trace_notes.program import softmax, weights
from backpass_ledger.claims.trace_notes.values_and_weights import (
    HEADINGS,
    SIMPLEX,
    SOFTMAX,
    SPHERE,
)

CLAIMS = """
N131  true          0  norms      attention/multilinear  Simplex, lines 1 and 2
N132  true          0  norms      attention/multilinear  Simplex, line 3
N133  true          0  norms      attention/multilinear  Simplex, line 4
N134  true          0  flash      attention/multilinear  Simplex, line 5
N135  true          0  norms      attention/multilinear  Simplex, one row
N136  true          0  norms      attention/multilinear  Simplex, result
N137  inconsistent  1  notation   reference/letters      Simplex, words
N138  inconsistent  1  notation   foundations/notation   Simplex, words
N139  true          0  notation   foundations/notation   Simplex, words
N140  true          0  notation   foundations/notation   Simplex, words
N141  true          0  norms      attention/multilinear  Sphere, lines 1 and 2
N142  true          0  norms      attention/multilinear  Sphere, line 3
N143  true          0  norms      attention/multilinear  Sphere, lines 4 and 5
N144  true          0  norms      attention/multilinear  Sphere, result
N145  inconsistent  0  notation   attention/multilinear  Sphere, last sentence
N146  true          0  softmax    operations/softmax     Softmax, lines 1 and 2
N147  true          0  softmax    operations/softmax     Softmax, line 3
N148  true          0  softmax    operations/softmax     Softmax, lines 4 and 5
N149  true          0  softmax    operations/softmax     Softmax, one row
N150  true          0  softmax    operations/softmax     Softmax, result
N151  left-out      4  attention  attention/multilinear  The three results
"""

B, V, DY = numbers(5, 7), numbers(7, 6), numbers(5, 6)
DA = DY @ V.T
ALPHA = 1 / B.sum(1)
D = (DY * (ALPHA[:, None] * B @ V)).sum(1)  # on the simplex


def gradient(kind: str) -> Any:
    """The gradient of B, by autograd."""
    return vjp(lambda b: weights(b, kind) @ constant(V), B, DY)


def N131(it: Evidence) -> None:
    r"""On the simplex, $\frac{\partial l}{\partial B_i} = \frac{\partial l}{\partial
    A_i} \frac{\partial A_i}{\partial B_i} = \nabla_{A_i} l^\top \alpha(B_i)\,(I - A_i
    u^\top)$."""
    it.derives(SIMPLEX)


def N132(it: Evidence) -> None:
    r"""On the simplex, $\frac{\partial l}{\partial B_i} = \alpha(B_i)\,(\nabla_{A_i}
    l^\top - \nabla_{Y_i} l^\top V^\top A_i u^\top)$."""
    it.derives(SIMPLEX)


def N133(it: Evidence) -> None:
    r"""On the simplex, $\frac{\partial l}{\partial B_i} = \alpha(B_i)\,(\nabla_{A_i}
    l^\top - \nabla_{Y_i} l^\top Y_i u^\top)$."""
    it.derives(SIMPLEX)


def N134(it: Evidence) -> None:
    r"""On the simplex, $\frac{\partial l}{\partial B_i} = \alpha(B_i)\,(\nabla_{A_i}
    l^\top - d_i u^\top)$ with $d_i = \nabla_{Y_i} l^\top Y_i$."""
    it.derives(SIMPLEX)


def N135(it: Evidence) -> None:
    r"""$\nabla_{B_i} l = \alpha(B_i)\left( \nabla_{A_i} l - d_i u \right)$, for one row
    by itself."""
    it.derives(SIMPLEX)


def N136(it: Evidence) -> None:
    r"""$\nabla_B l = D_{\alpha(B)}\,(\nabla_A l - d u^\top)$.

    The gradient of a row is orthogonal to the row, since multiples have the same
    weights."""
    it.derives(SIMPLEX)
    it.right(derives(r"\nabla_{B_i} l^T B_i = 0", SIMPLEX))


def N137(it: Evidence) -> None:
    r"""$d \in \mathbb{R}^T$.

    It has t numbers, one per query. Everywhere else T stands for a transpose, as in the
    result of the same section."""
    result = r"\nabla_B l = D_{\alpha(B)}\left( \nabla_A l - d u^T \right)"
    it.clashes(derives(result, SIMPLEX))
    without = result.replace("u^T", "u")
    it.clashes(not derives(without, SIMPLEX))
    it.right(D.shape == (len(B),))


def N138(it: Evidence) -> None:
    r"""Notation is defined before it is used.

    $D_{\exp(x)}$ occurs in the Jacobian of softmax, but D is defined only here.
    $\gamma$ and $\odot$ are used one section before their definitions. $\alpha(x)$ was
    defined as one number, but $\alpha(B)$ is a vector."""
    uses = {  # the sections of the first use and of the definition
        r"\gamma": (HEADINGS[2], HEADINGS[3]),
        "D": (HEADINGS[3], HEADINGS[5]),
        r"\odot": (HEADINGS[5], HEADINGS[6]),
    }
    for used, defined in uses.values():
        it.clashes(HEADINGS.index(used) < HEADINGS.index(defined))
    it.clashes(np.shape(alpha(B)) != ALPHA.shape)  # by the definition, and here
    it.right(same(ALPHA, [alpha(row) for row in B]))


def N139(it: Evidence) -> None:
    r"""$D_x$, the diagonal matrix of x, scales rows from the left, and $d u^\top$ has a
    copy of d in each column."""
    given = r"given d \in \R^t, M \in \R^{t \times s}; let u = \mathbf{1}_s"
    it.as_printed(derives(r"(D_d M)_{ij} = d_i M_{ij}", f"{NOTATION}; {given}"))
    it.as_printed(derives(r"(d u^T)_{ij} = d_i", f"{NOTATION}; {given}"))


def N140(it: Evidence) -> None:
    r"""The result broadcasts in two different ways.

    The diagonal matrix scales each row, and $d u^\top$ subtracts one number from each
    row. In code both are columns: `(dA - d[:, None]) * alpha[:, None]`."""
    left = DA - np.outer(D, np.ones(7))
    scaled = np.diag(ALPHA) @ left
    it.as_printed(same(left - left[:, :1], DA - DA[:, :1]))  # differences in a row stay
    it.as_printed(same(scaled / scaled[:, :1], left / left[:, :1]))  # ratios stay
    it.as_printed(not same(left / left[:, :1], DA / DA[:, :1]))
    it.right(same((DA - D[:, None]) * ALPHA[:, None], gradient("Simplex")))


def N141(it: Evidence) -> None:
    r"""On the sphere, $\frac{\partial l}{\partial B_i} = \nabla_{A_i} l^\top
    \beta(B_i)\,(I - A_i A_i^\top)$."""
    it.derives(SPHERE)


def N142(it: Evidence) -> None:
    r"""On the sphere, $\frac{\partial l}{\partial B_i} = \beta(B_i)\,(\nabla_{A_i}
    l^\top - \nabla_{Y_i} l^\top V^\top A_i A_i^\top)$."""
    it.derives(SPHERE)


def N143(it: Evidence) -> None:
    r"""On the sphere, $\frac{\partial l}{\partial B_i} = \beta(B_i)\,(\nabla_{A_i}
    l^\top - \nabla_{Y_i} l^\top Y_i A_i^\top) = \beta(B_i)\,(\nabla_{A_i} l^\top - d_i
    A_i^\top)$."""
    it.derives(SPHERE)


def N144(it: Evidence) -> None:
    r"""$\nabla_B l = D_{\beta(B)}\,(\nabla_A l - D_d A)$.

    The program's line is different: it lacks A."""
    it.derives(SPHERE)
    of_program = r"\nabla_B l = D_{\beta(B)}\left( \nabla_A l - d u^T \right)"
    it.right(not derives(of_program, SPHERE))


def N145(it: Evidence) -> None:
    """Now the gradients of K and Q are computed, for linear and multilinear scores.

    Softmax's gradient of B comes next. The gradients of K and Q follow in the next
    section."""
    next_line = r"""
        \frac{\der l}{\der B_i} &= \frac{\der l}{\der A_i} \der \sf(B_i)
    """
    it.clashes(derives(next_line, SOFTMAX))
    at = HEADINGS.index("Gradients wrt preattention B")
    it.right(HEADINGS[at + 1] == "Gradients wrt K and Q")


def N146(it: Evidence) -> None:
    r"""For softmax, $\frac{\partial l}{\partial B_i} = \nabla_{A_i} l^\top (D_{A_i} -
    A_i A_i^\top)$."""
    it.derives(SOFTMAX)


def N147(it: Evidence) -> None:
    r"""For softmax, $\frac{\partial l}{\partial B_i} = \nabla_{A_i} l^\top D_{A_i} -
    \nabla_{Y_i} l^\top V^\top A_i A_i^\top$."""
    it.derives(SOFTMAX)


def N148(it: Evidence) -> None:
    r"""For softmax, $\frac{\partial l}{\partial B_i} = (\nabla_{A_i} l \odot A_i)^\top
    - \nabla_{Y_i} l^\top Y_i A_i^\top = (\nabla_{A_i} l \odot A_i)^\top - d_i
    A_i^\top$."""
    it.derives(SOFTMAX)


def N149(it: Evidence) -> None:
    r"""$\nabla_{B_i} l = \nabla_{A_i} l \odot A_i \; - d_i A_i = (\nabla_{A_i} l - d_i
    u) \odot A_i$."""
    it.derives(SOFTMAX)


def N150(it: Evidence) -> None:
    r"""$\nabla_B l = (\nabla_A l - d u^\top) \odot A$.

    Its rows sum to 0, since a shift of a row changes nothing."""
    it.derives(SOFTMAX)
    it.right(derives(r"\nabla_{B_i} l^T u = 0", SOFTMAX))


def N151(it: Evidence) -> None:
    """The three results are the gradients of B. The text leaves the causal mask out
    here too.

    With a mask, softmax's formula gives 0 at hidden scores, since their weights are 0.
    On the simplex and the sphere, the formulas give a gradient for a score that the
    mask has set to 0, so the mask has to be applied to the gradient too."""
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
