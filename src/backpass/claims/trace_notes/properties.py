"""What multiples and shifts of a row do."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backpass.claims.evidence import CAVEAT, FALSE, TRUE, Evidence
from backpass.claims.record import claim
from backpass.claims.tools import jacobian, numbers, same, vjp
from backpass.claims.trace_notes.derivatives import constant
from backpass.claims.trace_notes.normalisations import alpha, beta
from backpass.claims.trace_notes.program import DY, GIVEN, softmax, weights

X = numbers(7, low=0.5, high=2.0) * np.where(np.arange(7) == 2, -1, 1)
SIMPLEX, SPHERE = (partial(weights, kind=kind) for kind in ("Simplex", "Sphere"))


def input_gradients(kind: str, r: float, q: Any, k: Any) -> Any:
    """The gradients of Q and K through weights of r Q Kᵀ, by autograd."""
    v = constant(GIVEN["V"])
    return vjp(lambda a, b: weights(r * a @ b.T, kind) @ v, [q, k], DY)


@claim(
    "Properties, factors", CAVEAT, topic="norms", page="attention/multilinear", harm=1
)
def N117(it: Evidence) -> None:
    r"""$\alpha(rx) = r^{-1} \alpha(x)$ for $r \in \mathbb{R}$.

    For either sign of r, but not for $r = 0$.
    """
    for r in (3, 0.2, -2):
        it.as_printed(np.isclose(alpha(r * X), alpha(X) / r))
    with np.errstate(divide="ignore"):
        it.elsewhere(bool(np.isfinite(alpha(0 * X))))


@claim(
    "Properties, factors", FALSE, topic="norms", page="attention/multilinear", harm=4
)
def N118(it: Evidence) -> None:
    r"""$\beta(rx) = r^{-1} \beta(x)$ for $r \in \mathbb{R}$.

    $\beta(rx) = |r|^{-1} \beta(x)$, since a length has no sign; and $r = 0$ is
    excluded.
    """
    for r in (3, 0.2, -2):
        it.as_printed(np.isclose(beta(r * X), beta(X) / r))
        it.right(np.isclose(beta(r * X), beta(X) / abs(r)))


@claim(
    "Properties, invariance",
    CAVEAT,
    topic="norms",
    page="attention/multilinear",
    harm=1,
)
def N119(it: Evidence) -> None:
    r"""$f_\alpha(rx) = \alpha(rx)\,rx = \alpha(x)\,x = f_\alpha(x)$: a multiple of a
    row has the same weights on the simplex.

    Unless the multiple is 0.
    """
    for r in (3, 0.2, -2):
        it.as_printed(same(alpha(r * X) * r * X, alpha(X) * X))
    with np.errstate(divide="ignore", invalid="ignore"):
        it.elsewhere(bool(np.isfinite(alpha(0 * X) * 0 * X).all()))


@claim(
    "Properties, invariance", FALSE, topic="norms", page="attention/multilinear", harm=4
)
def N120(it: Evidence) -> None:
    r"""On the sphere, a multiple of a row has the same weights too.

    A negative multiple has the opposite ones, so the output changes its sign:
    $f_\beta(rx) = \mathrm{sign}(r)\,f_\beta(x)$.
    """
    for r in (3, 0.2, -2):
        it.as_printed(same(beta(r * X) * r * X, beta(X) * X))
        it.right(same(beta(r * X) * r * X, np.sign(r) * beta(X) * X))


@claim(
    "Properties, form of the Jacobians",
    TRUE,
    topic="norms",
    page="attention/multilinear",
)
def N121(it: Evidence) -> None:
    r"""$\partial f_\gamma(x) = \gamma(x)\,C$ for both, with a matrix C that depends on
    x and is the same for multiples of x.

    For negative multiples too, since the sign drops out of $f_\beta f_\beta^\top$; 0 is
    excluded.
    """
    for norm, gamma in ((SIMPLEX, alpha), (SPHERE, beta)):
        c = jacobian(norm, X) / gamma(X)
        for r in (3, 0.2, -2):
            it.as_printed(same(jacobian(norm, r * X) / gamma(r * X), c))
        it.as_printed(not same(jacobian(norm, X**2) / gamma(X**2), c))


@claim(
    "Properties, scale of the Jacobians",
    CAVEAT,
    topic="norms",
    page="attention/multilinear",
    harm=1,
)
def N122(it: Evidence) -> None:
    r"""Both Jacobians are scaled inversely: $\partial f_\gamma(rx) = r^{-1} \partial
    f_\gamma(x)$.

    The simplex's for either sign of r, the sphere's with $|r|^{-1}$.
    """
    for norm in (SIMPLEX, SPHERE):
        it.as_printed(same(jacobian(norm, 10 * X), jacobian(norm, X) / 10))
    it.elsewhere(same(jacobian(SPHERE, -2 * X), jacobian(SPHERE, X) / -2))
    it.right(same(jacobian(SPHERE, -2 * X), jacobian(SPHERE, X) / 2))
    it.right(same(jacobian(SIMPLEX, -2 * X), jacobian(SIMPLEX, X) / -2))


@claim(
    "Properties, control of the gradients",
    CAVEAT,
    topic="norms",
    page="attention/multilinear",
    harm=5,
)
def N123(it: Evidence) -> None:
    r"""The scale of the preattention is a very simple way to control the size of
    gradients.

    Of $\nabla_B l$ only. A positive factor in $B = r\,QK^\top$ leaves the outputs and
    the gradients of Q and K as they are: the Jacobian is divided by r, and the chain
    rule multiplies by r. Larger queries have smaller gradients, but the keys' stay the
    same.
    """
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


@claim(
    "Properties, first note",
    CAVEAT,
    topic="norms",
    page="attention/multilinear",
    harm=3,
)
def N124(it: Evidence) -> None:
    r"""With the mean in place of the sum, $\alpha$ and $\beta$ would perhaps be more
    stable as t grows.

    The mean makes the gradient of one score level. For values with mean 0, the sphere's
    outputs are level with the sum and grow as $\sqrt{t}$ with the mean; the simplex's
    fall as $1/\sqrt{t}$ with the sum and grow as $\sqrt{t}$ with the mean.
    """
    out: dict[str, list[float]] = {}
    for t in (64, 1024):
        v, dy = numbers(t, 64), numbers(64, seed=1)
        for name, b in (
            ("simplex", numbers(t, low=0.5, high=1.5)),
            ("sphere", numbers(t)),
        ):
            a = b / (b.sum() if name == "simplex" else np.linalg.norm(b))
            gain = t if name == "simplex" else t**0.5  # of the mean over the sum
            db = gain * vjp(partial(weights, kind=name.title()), b, v @ dy)
            for key, x in (("sum", a @ v), ("mean", gain * a @ v), ("score", db)):
                out.setdefault(f"{name} {key}", []).append(np.sqrt((x**2).mean()))
    growth = {key: large / small for key, (small, large) in out.items()}
    root = 16**0.5
    it.as_printed(all(0.7 < growth[f"{n} score"] < 1.4 for n in ("simplex", "sphere")))
    it.elsewhere(all(0.7 < growth[f"{n} mean"] < 1.4 for n in ("simplex", "sphere")))
    it.right(all(0.7 < growth[f"{n} mean"] / root < 1.4 for n in ("simplex", "sphere")))
    it.right(
        0.7 < growth["sphere sum"] < 1.4 and 0.7 < growth["simplex sum"] * root < 1.4
    )


@claim("Properties, second note", TRUE, topic="softmax", page="attention/multilinear")
def N125(it: Evidence) -> None:
    """Softmax behaves differently on its fibres, the sets of rows with equal weights.

    There its Jacobian is the same; those of the simplex and the sphere are divided by
    the factor between the rows.
    """
    shifted = jacobian(lambda x: x.softmax(0), X + 10)
    it.as_printed(same(shifted, jacobian(lambda x: x.softmax(0), X)))
    for norm in (SIMPLEX, SPHERE):
        it.as_printed(same(jacobian(norm, 10 * X), jacobian(norm, X) / 10))


@claim("Properties, second note", TRUE, topic="softmax", page="attention/multilinear")
def N126(it: Evidence) -> None:
    r"""If $\mathrm{sf}(x) = \mathrm{sf}(x')$ then $\partial\,\mathrm{sf}(x) =
    \partial\,\mathrm{sf}(x')$.

    The text leaves the proof for another time. It is its own formula for the Jacobian,
    which contains $\mathrm{sf}(x)$ only.
    """
    for shift in (10, -3.5):
        it.as_printed(same(softmax(X), softmax(X + shift)))
        found, there = (jacobian(lambda x: x.softmax(0), x) for x in (X, X + shift))
        it.as_printed(same(found, there))
    f = softmax(X)
    it.right(same(np.diag(f) - np.outer(f, f), there))
