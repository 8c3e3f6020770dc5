"""What multiples and shifts of a row do."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, jacobian, numbers, same, vjp
from backpass_ledger.claims.trace_notes.derivatives import constant
from backpass_ledger.claims.trace_notes.normalisations import FACTORS, alpha, beta
from backpass_ledger.claims.trace_notes.program import DY, GIVEN, softmax, weights

CLAIMS = """
N121  caveat  1  norms    attention/multilinear  Properties, factors
N122  false   4  norms    attention/multilinear  Properties, factors
N123  caveat  1  norms    attention/multilinear  Properties, invariance
N124  false   4  norms    attention/multilinear  Properties, invariance
N125  caveat  1  norms    attention/multilinear  Properties, form of the Jacobians
N126  caveat  1  norms    attention/multilinear  Properties, scale of the Jacobians
N127  caveat  5  norms    attention/multilinear  Properties, control of the gradients
N128  false   3  norms    attention/multilinear  Properties, first note
N129  true    0  softmax  attention/multilinear  Properties, second note
N130  true    0  softmax  attention/multilinear  Properties, second note
"""

X = numbers(7, low=0.5, high=2.0) * np.where(np.arange(7) == 2, -1, 1)
MULTIPLES = FACTORS + r"given r \in \R"
SIMPLEX, SPHERE = (partial(weights, kind=kind) for kind in ("Simplex", "Sphere"))


def input_gradients(kind: str, r: float, q: Any, k: Any) -> Any:
    """The gradients of Q and K through weights of r Q Kᵀ, by autograd."""
    v = constant(GIVEN["V"])
    return vjp(lambda a, b: weights(r * a @ b.T, kind) @ v, [q, k], DY)


def N121(it: Evidence) -> None:
    r"""$\alpha(rx) = r^{-1} \alpha(x)$ for $r \in \mathbb{R}$.

    It holds for either sign of r, but not for $r = 0$, where $\alpha$ is not
    defined."""
    it.derives(MULTIPLES)
    with np.errstate(divide="ignore"):
        it.elsewhere(bool(np.isfinite(alpha(0 * X))))


def N122(it: Evidence) -> None:
    r"""$\beta(rx) = r^{-1} \beta(x)$ for $r \in \mathbb{R}$.

    $\beta(rx) = |r|^{-1} \beta(x)$, since a length has no sign, and r must not be 0."""
    it.derives(MULTIPLES)
    for r in (3, 0.2, -2):
        it.right(np.isclose(beta(r * X), beta(X) / abs(r)))


def N123(it: Evidence) -> None:
    r"""$f_\alpha(rx) = \alpha(rx)\,rx = \alpha(x)\,x = f_\alpha(x)$: a multiple of a
    row has the same weights on the simplex.

    It holds for either sign of r, but not for $r = 0$: a row of zeros has no
    weights."""
    it.derives(MULTIPLES)
    with np.errstate(divide="ignore", invalid="ignore"):
        it.elsewhere(bool(np.isfinite(alpha(0 * X) * 0 * X).all()))


def N124(it: Evidence) -> None:
    r"""On the sphere, a multiple of a row has the same weights too.

    A negative multiple has weights of the opposite sign, so the output changes its
    sign: $f_\beta(rx) = \mathrm{sign}(r)\,f_\beta(x)$."""
    it.as_printed(derives(r"f_\beta(rx) = f_\beta(x)", MULTIPLES))
    for r in (3, 0.2, -2):
        it.right(same(beta(r * X) * r * X, np.sign(r) * beta(X) * X))


def N125(it: Evidence) -> None:
    r"""$\partial f_\gamma(x) = \gamma(x)\,C$ for both, with a matrix C that depends on
    x and is the same for multiples of x.

    C is the same for negative multiples too, since the sign drops out of $f_\beta
    f_\beta^\top$, but it is not defined for the multiple 0."""
    for norm, gamma in ((SIMPLEX, alpha), (SPHERE, beta)):
        c = jacobian(norm, X) / gamma(X)
        for r in (3, 0.2, -2):
            it.as_printed(same(jacobian(norm, r * X) / gamma(r * X), c))
        it.as_printed(not same(jacobian(norm, X**2) / gamma(X**2), c))
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = jacobian(norm, 0 * X) / gamma(0 * X)
        it.elsewhere(same(zero, c))


def N126(it: Evidence) -> None:
    r"""Both Jacobians are scaled inversely if x is scaled.

    $\partial f_\gamma(rx) = r^{-1} \partial f_\gamma(x)$ for $r > 0$. For negative r
    this holds on the simplex; the sphere's Jacobian is divided by $|r|$."""
    for norm in (SIMPLEX, SPHERE):
        it.as_printed(same(jacobian(norm, 10 * X), jacobian(norm, X) / 10))
    it.elsewhere(same(jacobian(SPHERE, -2 * X), jacobian(SPHERE, X) / -2))
    it.right(same(jacobian(SPHERE, -2 * X), jacobian(SPHERE, X) / 2))
    it.right(same(jacobian(SIMPLEX, -2 * X), jacobian(SIMPLEX, X) / -2))


def N127(it: Evidence) -> None:
    r"""A simple means to control the size of gradients is the preattention's scale.

    It controls only $\nabla_B l$. A positive factor in $B = r\,QK^\top$ does not change
    the outputs or the gradients of Q and K: the Jacobian is divided by r, and the chain
    rule multiplies by r. If the queries are multiplied by r, their gradients are
    divided by r, and the gradients of the keys stay the same."""
    q, k, v = GIVEN["Q"], GIVEN["K"], constant(GIVEN["V"])
    for kind in ("Simplex", "Sphere"):
        db = [
            vjp(lambda b, n=kind: weights(b, n) @ v, r * (q @ k.T), DY) for r in (1, 10)
        ]
        it.as_printed(same(db[1], db[0] / 10))
        dq, dk = input_gradients(kind, 1, q, k)
        for after, before in zip(
            input_gradients(kind, 10, q, k), (dq, dk), strict=True
        ):
            it.elsewhere(same(after, before / 10))
            it.right(same(after, before))
        larger = input_gradients(kind, 1, 10 * q, k)
        it.right(same(larger[0], dq / 10) and same(larger[1], dk))


def N128(it: Evidence) -> None:
    r"""Perhaps $\alpha$ and $\beta$ would be more stable as t grows with the mean in
    place of the sum.

    Take t queries and t keys, values of mean 0, and t from 64 to 256. On the sphere,
    the outputs and the gradients of Q, K and V keep their size with the sum, and all
    four double with the mean. On the simplex, they fall to 0.4 to 0.7 of it with the
    sum, and become 1.8 to 2.8 times as large with the mean. On
    neither is the mean more stable."""

    def growth(kind: str, power: float) -> Any:
        return sizes(256, kind, 256**power) / sizes(64, kind, 64**power)

    def sizes(t: int, kind: str, factor: float) -> Any:
        low = 0.5 if kind == "Simplex" else None
        q, k = (numbers(t, 64, seed=seed, low=low, high=1.5) for seed in (0, 1))
        v, dy = numbers(t, 64, seed=2), numbers(t, 64, seed=3)

        def out(q: Any, k: Any, v: Any) -> Any:
            return factor * weights(q @ k.T, kind) @ v

        given = [constant(array) for array in (q, k, v)]
        found = [out(*given).numpy(), *vjp(out, [q, k, v], dy)]
        return np.array([np.sqrt((array**2).mean()) for array in found])

    ranges = {"Sphere": (0.9, 1.1, 1.8, 2.2), "Simplex": (0.4, 0.7, 1.8, 2.8)}
    for kind, (low, high, least, most) in ranges.items():
        of_sum, of_mean = growth(kind, 0), growth(kind, 1 if kind == "Simplex" else 0.5)
        it.as_printed(np.abs(np.log(of_mean)).max() < np.abs(np.log(of_sum)).min())
        it.right(bool((low < of_sum).all() and (of_sum < high).all()))
        it.right(bool((least < of_mean).all() and (of_mean < most).all()))


def N129(it: Evidence) -> None:
    """Softmax behaves differently on its fibres, the sets of rows with equal weights.

    On such a set softmax's Jacobian is the same. The Jacobians of the simplex and the
    sphere are divided by the factor between the rows."""
    shifted = jacobian(lambda x: x.softmax(0), X + 10)
    it.as_printed(same(shifted, jacobian(lambda x: x.softmax(0), X)))
    for norm in (SIMPLEX, SPHERE):
        it.as_printed(same(jacobian(norm, 10 * X), jacobian(norm, X) / 10))


def N130(it: Evidence) -> None:
    r"""If $\mathrm{sf}(x) = \mathrm{sf}(x')$ then $\partial\,\mathrm{sf}(x) =
    \partial\,\mathrm{sf}(x')$.

    The text leaves the proof for another time. Its own formula for the Jacobian proves
    it, because x occurs there only in $\mathrm{sf}(x)$."""
    for shift in (10, -3.5):
        it.as_printed(same(softmax(X), softmax(X + shift)))
        found, there = (jacobian(lambda x: x.softmax(0), x) for x in (X, X + shift))
        it.as_printed(same(found, there))
    f = softmax(X)
    it.right(same(np.diag(f) - np.outer(f, f), there))
