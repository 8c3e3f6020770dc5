r"""A linear layer: every row of x times one weight matrix, and a bias where there is
one.

.. math:: Y = X W + \mathbf{1}_m b^\top, \qquad
          \bar{X} = \bar{Y} W^\top, \quad \bar{W} = X^\top \bar{Y}, \quad
          \bar{b} = \bar{Y}^\top \mathbf{1}_m

Derived on the page ``operations/linear``. Weights are ``[in, out]``. A bias's gradient
of 16 bits is summed in float32.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.arrays import Array, as_matrix, as_type_of, transpose, widened
from backpass.shapes import Outline, check_cotangent, check_inputs, check_saved
from backpass.wanted import Wanted, check_narrowed, check_wanted, kept, sum_wanted

SHAPES = "x[*, n], w[n, p], b[p]? -> y[*, p]"
PARAMETERS = ("w", "b")


class Saved(NamedTuple):
    """Both factors: each is needed for the gradient of the other, where that is
    wanted."""

    x: Array | Outline  # [*, n]
    w: Array | Outline  # [n, p], a parameter
    wanted: tuple[str, ...]


def forward(
    x: Array, w: Array, b: Array | None = None, *, wanted: Wanted = None
) -> tuple[Array, Saved]:
    """``y[*, p]``, each row of ``x[*, n]`` times ``w[n, p]``, plus ``b[p]``.

    Raises TypeError for what is no floating-point array or of another library, device
    or dtype than ``x``, ValueError for shapes that do not fit.
    """
    check_inputs(SHAPES, x=x, w=w, b=b)
    wanted = check_wanted(SHAPES, wanted, b=b)
    y = x @ w
    if b is not None:
        y = y + b
    return y, Saved(kept(x, "w" in wanted), kept(w, "x" in wanted), wanted)


def backward(
    dy: Array, saved: Saved, *, wanted: Wanted = None
) -> tuple[Array | None, ...]:
    """``dx[*, n]``, ``dw[n, p]`` and ``db[p]`` (None without a bias) from ``dy[*,
    p]``."""
    x, w, _ = check_saved(saved, Saved)
    xp = check_cotangent(dy, (*x.shape[:-1], w.shape[1]), like=x)
    wanted = check_narrowed(wanted, saved)

    dx = dy @ transpose(w) if "x" in wanted else None
    # In the forward pass every row met the same w and b, so now their gradients sum
    # over rows.
    drows = as_matrix(dy)  # [m, p]
    dw = transpose(as_matrix(x)) @ drows if "w" in wanted else None
    db = as_type_of(xp.sum(widened(drows), axis=0), dy) if "b" in wanted else None
    return dx, dw, db


def forward_flops(m, n, p, has_b=True):
    """A dot product of n terms is n products and n − 1 sums; the bias is one more sum
    each."""
    return m * p * (2 * n - 1) + (m * p if has_b else 0)


def backward_flops(m, n, p, has_b=True, wanted=None):
    """dx: m·n dot products of p terms; dw: n·p of m terms; db: p sums of m terms."""
    dx, dw = m * n * (2 * p - 1), n * p * (2 * m - 1)
    db = p * (m - 1) if has_b else 0
    return sum_wanted(wanted, {"x": dx, "w": dw, "b": db})


# Facts for checks, pages and functional: see backpass.ops.
PLACES = (
    "project to q, k, v",
    "output projection",
    "up projection",
    "down projection",
    "logits",
)
AUTOCAST = "matmul"
