"""The simplex, the sphere and softmax, and their Jacobians."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, jacobian, numbers, raises, same, torch
from backpass_ledger.claims.trace_notes.derivatives import (
    NOTATION,
    constant,
    gradient_of,
)
from backpass_ledger.claims.trace_notes.program import softmax, weights
from backpass_ledger.claims.trace_notes.values_and_weights import VALUES

CLAIMS = """
N97   caveat        2  norms       attention/multilinear   Norms, first sentence
N98   true          0  softmax     operations/softmax      Norms, second sentence
N99   inconsistent  1  notation    attention/multilinear   Norms, the factor
N100  caveat        2  norms       attention/multilinear   Norms, the factor
N101  true          0  matmul      attention/multilinear   Norms, the output
N102  true          0  chain rule  attention/multilinear   Norms, product rule
N103  true          0  norms       attention/multilinear   Simplex, the factor
N104  true          0  norms       attention/multilinear   Simplex, derivative of the factor
N105  true          0  norms       attention/multilinear   Simplex, line 1
N106  true          0  norms       attention/multilinear   Simplex, line 2
N107  true          0  norms       attention/multilinear   Simplex, line 3
N108  true          0  norms       attention/multilinear   Simplex, line 4 and result
N109  true          0  norms       attention/multilinear   Sphere, derivative of the factor, line 1
N110  true          0  norms       attention/multilinear   Sphere, derivative of the factor, line 2
N111  true          0  norms       attention/multilinear   Sphere, derivative of the factor, line 3
N112  true          0  norms       attention/multilinear   Sphere, line 1
N113  true          0  norms       attention/multilinear   Sphere, line 2
N114  true          0  norms       attention/multilinear   Sphere, line 3 and result
N115  inconsistent  1  notation    foundations/chain_rule  Norms, heading, and softmax
N116  caveat        3  precision   operations/softmax      Softmax
N117  true          0  chain rule  attention/multilinear   Softmax, line 1
N118  true          0  softmax     attention/multilinear   Softmax, line 2
N119  false         6  softmax     attention/multilinear   Softmax, line 3
N120  true          0  softmax     operations/softmax      Softmax, line 4
"""

X = numbers(7, low=0.5, high=2.0)
DX = numbers(7, seed=1)
FACTORS = (
    NOTATION
    + r"""
    given x \in \R^t
    let u = \mathbf{1}_t
    let \alpha(x) = (\sum_i x_i)^{-1}
    let \beta(x) = (\sum_i x_i^2)^{-\frac{1}{2}}
    let f_\alpha(x) = \alpha(x) x
    let f_\beta(x) = \beta(x) x
    let \sf(x)_i = \frac{e^{x_i}}{\sum_k e^{x_k}}
"""
)


def alpha(x: Any) -> Any:
    """1 over the sum."""
    return 1 / x.sum()


def beta(x: Any) -> Any:
    """1 over the length."""
    return 1 / (x**2).sum() ** 0.5


def N97(it: Evidence) -> None:
    r"""The attention vectors are the preattention vectors, projected to the simplex or
    the sphere.

    They are projected along the ray through 0. On the sphere this gives the nearest
    point. On the simplex it does not: the weights of $(2, 1)$ are $(\frac{2}{3},
    \frac{1}{3})$, but $(1, 0)$ is nearer. A row with numbers of both signs does not
    reach the simplex at all."""
    x = np.array([2.0, 1.0])
    turned = [np.array([np.cos(at), np.sin(at)]) for at in np.linspace(0, 7, 400)]
    on_sphere = np.linalg.norm(x - beta(x) * x)
    it.as_printed(all(on_sphere <= np.linalg.norm(x - point) for point in turned))
    it.as_printed(np.isclose((alpha(X) * X).sum(), 1) and (alpha(X) * X > 0).all())
    here = np.linalg.norm(x - np.array([2 / 3, 1 / 3]))
    it.elsewhere(here <= np.linalg.norm(x - np.array([1, 0])))
    signed = X * np.where(np.arange(7) == 3, -1, 1)
    it.elsewhere((alpha(signed) * signed >= 0).all())


def N98(it: Evidence) -> None:
    """The simplex and the sphere are alike, a row times a number that depends on it,
    and softmax is built on the simplex."""
    for kind in ("Simplex", "Sphere"):
        ratio = weights(torch.tensor(X), kind) / torch.tensor(X)
        it.as_printed(same(ratio, ratio[:1].repeat(7)))
    it.as_printed(
        same(weights(torch.tensor(DX).exp(), "Simplex"), torch.tensor(DX).softmax(0))
    )


def N99(it: Evidence) -> None:
    r"""$\gamma$ and $\beta$ are introduced as normalisation functions $\mathbb{R}^t \to
    \mathbb{R}$.

    The two factors are called $\alpha$ and $\beta$ in the rest of the text, and
    $\gamma$ stands for either of them."""
    introduced = r"\gamma, \beta: \R^t \to \R"
    used = r"""\alpha(x) = \left(\sum_i x_i \right)^{-1}
        \beta(x) = \left(\sum_i x_i^2 \right)^{-\frac{1}{2}}"""
    letters = [
        set(re.findall(r"alpha|beta|gamma", line)) for line in (introduced, used)
    ]
    it.clashes(letters[0] != letters[1])
    it.right(letters[0] | letters[1] == {"alpha", "beta", "gamma"})
    for gamma, kind in ((alpha, "Simplex"), (beta, "Sphere")):
        it.right(same(gamma(X) * X, weights(constant(X), kind)))


def N100(it: Evidence) -> None:
    r"""$\alpha(x) = (\sum_i x_i)^{-1}$ and $\beta(x) = (\sum_i x_i^2)^{-\frac{1}{2}}$
    are functions on $\mathbb{R}^t$.

    $\alpha$ is not defined where the sum is 0, and $\beta$ is not defined at 0."""
    it.as_printed(np.isfinite([alpha(DX), beta(DX)]).all())
    with np.errstate(divide="ignore"):
        it.elsewhere(bool(np.isfinite(alpha(np.array([3.0, 1, -4])))))
        it.elsewhere(bool(np.isfinite(beta(np.zeros(3)))))


def N101(it: Evidence) -> None:
    r"""$Y_i = V^T A_i$, row i of $AV$ written as a column."""
    it.derives(VALUES)


def N102(it: Evidence) -> None:
    r"""$f_\gamma(x) = \gamma(x)\,x$ has the derivative $\partial f_\gamma(x)(\dot x) =
    \partial \gamma(x)(\dot x)\,x + \gamma(x)\,\dot x$."""
    # The line has γ's value and derivative at x. Those of a + cᵀx may be any.
    any_factor = r"""
        given x, c \in \R^t, a \in \R
        let \gamma(x) = a + c^\top x
        let f_\gamma(x) = \gamma(x) x
    """
    it.derives(NOTATION + any_factor)


def N103(it: Evidence) -> None:
    r"""$\alpha$ takes preattention vectors of the positive quadrant to the simplex of
    dimension $t - 1$.

    The row of zeros is excluded. For $t > 2$ the word is “orthant”. The program does
    not ensure that the scores are positive."""
    rows = numbers(50, 7, low=0.0)
    found = rows / rows.sum(1)[:, None]
    it.as_printed((found >= 0).all() and np.allclose(found.sum(1), 1))
    it.as_printed(np.linalg.matrix_rank(found[1:] - found[0]) == 7 - 1)


def N104(it: Evidence) -> None:
    r"""$\partial \alpha(x) (\dot x) = -\left(\sum_i x_i\right)^{-2} \sum_i \dot x_i = -
    \alpha(x)^2 u^T \dot x$, where u is all ones."""
    it.derives(FACTORS)


def N105(it: Evidence) -> None:
    r"""$\partial f_\alpha (x)(\dot x) = - \alpha(x)^2 u^T \dot x x + \alpha(x) \dot x$.

    The first term means $(u^\top \dot x)\,x$."""
    it.derives(FACTORS)


def N106(it: Evidence) -> None:
    r"""$\partial f_\alpha (x)(\dot x) = \alpha(x) ( \dot x - \alpha(x) u^T \dot x
    x)$."""
    it.derives(FACTORS)


def N107(it: Evidence) -> None:
    r"""$\partial f_\alpha (x)(\dot x) = \alpha(x) ( I - \alpha(x) x u^T ) \dot x$."""
    it.derives(FACTORS)


def N108(it: Evidence) -> None:
    r"""$\partial f_\alpha(x) = \alpha(x)\,(I - f_\alpha(x)\,u^\top)$.

    The formula holds wherever the sum is not 0, for negative numbers too."""
    it.derives(FACTORS)


def N109(it: Evidence) -> None:
    r"""$\partial \beta(x)(\dot x) = -\frac{1}{2} \left(\sum_i x_i^2
    \right)^{-\frac{3}{2}} \sum_i 2 x_i \dot x_i$."""
    it.derives(FACTORS)


def N110(it: Evidence) -> None:
    r"""$\partial \beta(x)(\dot x) = - \beta(x)^3 x^T \dot x$."""
    it.derives(FACTORS)


def N111(it: Evidence) -> None:
    r"""$\partial \beta(x)(\dot x) = - \beta(x)^2 f_\beta(x)^T \dot x$."""
    it.derives(FACTORS)


def N112(it: Evidence) -> None:
    r"""$\partial f_\beta (x)(\dot x) = - \beta(x)^2 f_\beta(x)^T \dot x x + \beta(x)
    \dot x$."""
    it.derives(FACTORS)


def N113(it: Evidence) -> None:
    r"""$\partial f_\beta (x)(\dot x) = \beta(x) ( \dot x - \beta(x) f_\beta(x)^T \dot x
    x)$."""
    it.derives(FACTORS)


def N114(it: Evidence) -> None:
    r"""$\partial f_\beta(x) = \beta(x)\,(I - f_\beta(x)\,f_\beta(x)^\top)$.

    The formula holds wherever x is not 0. This Jacobian is symmetric; the simplex's is
    not."""
    it.derives(FACTORS)
    it.right(derives(r"\partial f_\beta(x)^T = \partial f_\beta(x)", FACTORS))
    it.right(not derives(r"\partial f_\alpha(x)^T = \partial f_\alpha(x)", FACTORS))


def N115(it: Evidence) -> None:
    """The simplex and softmax have gradients.

    By the section on notation only functions with scalar values have gradients, and the
    values of these are vectors. The text computes their Jacobians. In the check, the
    error that PyTorch raises for a vector stands in for the definition."""
    x = numbers(5)
    it.clashes(raises(RuntimeError, lambda: gradient_of(lambda z: z.softmax(0), x)))
    it.clashes(raises(RuntimeError, lambda: gradient_of(lambda z: z / z.sum(), x)))
    it.right(jacobian(lambda z: z.softmax(0), x).shape == (5, 5))


def N116(it: Evidence) -> None:
    r"""$\mathrm{sf}(x) = f_\alpha(\exp(x))$.

    Computed in this order it gives NaN for a score of 88.8 in float32 and of 709.8 in
    float64, because the exponential overflows. Subtracting the row's maximum first
    avoids this and does not change the result."""
    it.derives(FACTORS)
    with np.errstate(over="ignore", invalid="ignore"):
        for largest, dtype in ((88.8, np.float32), (709.8, np.float64)):
            for x, report in ((largest - 0.1, it.right), (largest, it.elsewhere)):
                exp = np.exp(np.array([0, x], dtype))
                report(np.isfinite(exp / exp.sum()).all())
    it.right(same(softmax(np.array([1000, 0])), np.array([1.0, 0.0])))


def N117(it: Evidence) -> None:
    r"""$\partial\,\mathrm{sf}(x) = \partial f_\alpha(\exp(x))\;\partial \exp(x)$."""
    it.derives(FACTORS)


def N118(it: Evidence) -> None:
    r"""$\partial\,\mathrm{sf}(x) = \alpha(\exp(x))\,(I -
    f_\alpha(\exp(x))\,u^\top)\,D_{\exp(x)}$."""
    it.derives(FACTORS)


def N119(it: Evidence) -> None:
    r"""$\partial\,\mathrm{sf}(x) = \alpha(\exp(x))\,D_{\exp(x)} -
    \mathrm{sf}(x)\,u^\top D_{\exp(x)}$.

    The second term lacks its factor $\alpha(\exp(x))$, so it is $\sum_k e^{x_k}$ times
    the right one: 30.2 times for $x = (1, 2, 3)$. The next line has the factor
    again."""
    right = r"""
        \der \sf(x)
        &= \alpha(\exp(x)) D_{\exp(x)} - \alpha(\exp(x)) \sf(x) u^T D_{\exp(x)}
    """
    it.derives(FACTORS)
    it.right(derives(right, FACTORS))
    it.right(abs(np.exp(np.array([1.0, 2.0, 3.0])).sum() - 30.2) < 0.05)


def N120(it: Evidence) -> None:
    r"""$\partial\,\mathrm{sf}(x) = D_{\mathrm{sf}(x)} -
    \mathrm{sf}(x)\,\mathrm{sf}(x)^\top$.

    The line is right, although it does not follow from the previous line as printed."""
    it.derives(FACTORS)
