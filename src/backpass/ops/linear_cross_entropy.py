r"""The output head and the loss together, computed a chunk of tokens at a time: the
scores of all tokens never exist at once.

.. math:: Z = X W + \mathbf{1}_m b^\top, \quad
          y = \frac{
              \sum_{i,j} t_{ij} \Big( \log \Big( \sum_k e^{Z_{ik}} \Big) - Z_{ij} \Big)
              }{\sum_{i,j} t_{ij}}, \qquad
          \bar{Z}_{ij} = \Big( \frac{e^{Z_{ij}}}{\sum_k e^{Z_{ik}}}
              \Big( \sum_k t_{ik} \Big) - t_{ij} \Big)
                         \frac{\bar{y}}{\sum_{k,l} t_{kl}}, \quad
          \bar{X} = \bar{Z} W^\top, \quad \bar{W} = X^\top \bar{Z}, \quad
          \bar{b} = \bar{Z}^\top \mathbf{1}_m

Derived on the page ``operations/output_head``. In the formulas a target is a row, as in
``cross_entropy``, which has the same values and edge cases. The loss is one number, so
its gradient is one number too and a factor of every other gradient: ``forward``
computes the gradients, chunk by chunk, for a factor of 1, and ``backward`` multiplies
them by the actual one. Weights are ``[in, out]``.

In half precision the scores are rounded to the dtype of ``x``, as by ``linear``. What
is computed from them is float32, and so are the gradients of ``w`` and ``b`` until they
are returned. The loss is rounded as by ``cross_entropy``, unless ``wide`` keeps it in
float32; under ``torch.autocast`` it is float32.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.arrays import (
    Array,
    as_matrix,
    as_type_of,
    bounded_below,
    namespace,
    pick,
    transpose,
    widened,
)
from backpass.ops import linear, nll
from backpass.ops._tiling import (
    add_product,
    exp_in_place,
    less_at,
    plus,
    set_rows,
)
from backpass.shapes import (
    Kind,
    Outline,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.values import (
    at_least_one,
    check_bool,
    check_one_of,
    check_targets,
    chunk_or_default,
)
from backpass.wanted import Wanted, check_narrowed, check_wanted, kept, sum_wanted

SHAPES = "x[*, h], w[h, V>0], t[*]:int, b[V]? -> y[]"
PARAMETERS = ("w", "b")


class Saved(NamedTuple):
    """The gradients of the sum over tokens, and their divisor: no scores, and no
    input."""

    dx: Array | Outline  # [*, h]
    dw: Array | None  # [h, V]
    db: Array | None  # [V]
    divisor: float | None
    like: Kind
    wanted: tuple[str, ...]


def forward(
    x: Array,
    w: Array,
    t: Array,
    b: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    chunk: int | None = None,
    wide: bool = False,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return the loss ``y[]`` of the scores ``x[*, h] @ w[h, V] + b[V]`` at the targets
    ``t[*]``.

    ``chunk`` is the number of tokens whose scores exist at a time. By default these
    scores are a quarter as large as the gradients of ``x`` and ``w`` together, so that
    the memory in use is largest in the backward. ``wide`` leaves the loss of
    half-precision inputs in float32, and ``backward`` then expects ``dy`` in float32: a
    scaled loss may exceed float16, whose largest number is 65504.

    Raises TypeError unless ``x``, ``w``, and ``b`` are floating-point arrays of one
    dtype and ``t`` an integer array, all of one library and device, or if an option has
    the wrong type; ValueError if shapes do not fit, ``reduction`` is neither "mean" nor
    "sum", or ``chunk`` is below 1; IndexError for a target outside the V classes.
    """
    xp = check_inputs(SHAPES, x=x, w=w, t=t, b=b)
    check_bool(wide=wide)
    check_one_of("reduction", reduction, ("mean", "sum"))
    wanted = check_wanted(SHAPES, wanted, b=b)
    rows, targets = as_matrix(x), xp.reshape(t, (-1,))
    (m, h), V = rows.shape, w.shape[1]
    chunk = chunk_or_default(chunk, m, h, V)
    targets, divisor = check_targets(targets, V, ignore_index, reduction)

    total: Array = None
    dw, db = None, None
    dx = xp.zeros_like(rows) if "x" in wanted else None
    for start in range(0, max(m, 1), chunk):
        stop = min(start + chunk, m)
        loss, part, dw, db = _add_chunk(
            rows[start:stop, ...], w, targets[start:stop], b, dw, db, wanted
        )
        total = plus(total, loss)
        dx = set_rows(dx, part, start) if "x" in wanted else None

    y = total if divisor is None else total / divisor
    y = y if wide else as_type_of(y, x)
    dx = kept(x, needed=False) if dx is None else xp.reshape(dx, x.shape)
    return y, Saved(dx, dw, db, at_least_one(divisor), kind(y), wanted)


def _add_chunk(
    x: Array,
    w: Array,
    t: Array,
    b: Array | None,
    dw: Array | None,
    db: Array | None,
    wanted: tuple[str, ...],
) -> tuple[Array, Array | None, Array | None, Array | None]:
    """Return the loss of ``x[c, h]``, summed over its tokens; its dx; and dw and db
    with the tokens' terms added. The arrays of the scores' size are freed on return."""
    z = widened(linear.forward(x, w, b)[0])  # [c, V]
    xp, dx = namespace(z), None
    at_target = pick(z, t)  # [c]

    # As in log_softmax, a row of −∞ has a largest score of 0 and a sum of 1.
    top = bounded_below(xp.max(z, axis=-1, keepdims=True))  # [c, 1]
    weights = exp_in_place(z - top)  # [c, V]
    del z  # so that at most two arrays of this size exist at a time
    total = xp.sum(weights, axis=-1, keepdims=True)  # [c, 1]
    total = xp.where(total == 0, 1.0, total)
    losses = xp.log(total)[:, 0] - (at_target - top[:, 0])
    loss = xp.sum(xp.where(t < 0, 0.0, losses))
    if wanted:
        dz = less_at(weights / total, t)  # [c, V]
    del weights
    if "x" in wanted:
        dx = as_type_of(dz, x) @ transpose(w)

    # Every token used the same w and b, so their gradients are sums over tokens, and
    # thus over chunks.
    if "w" in wanted:
        dw = add_product(dw, transpose(widened(x)), dz, like=w)
    if "b" in wanted:
        db = plus(db, xp.sum(dz, axis=0))
    return loss, dx, dw, db


def backward(
    dy: Array, saved: Saved, *, wanted: Wanted = None
) -> tuple[Array | None, ...]:
    """Return ``dx[*, h]``, ``dw[h, V]``, and ``db[V]`` (None without a bias) from
    ``dy[]``."""
    dx, dw, db, divisor, like, _ = check_saved(saved, Saved)
    check_cotangent(dy, (), like=like)
    wanted = check_narrowed(wanted, saved)
    if not wanted:
        return None, None, None

    # In the forward pass the tokens' sum was divided by the divisor; so now its
    # gradients are multiplied by dy over the divisor.
    factor = widened(dy) if divisor is None else widened(dy) / divisor
    return (
        as_type_of(widened(dx) * factor, dx) if "x" in wanted else None,
        as_type_of(dw * factor, dx) if "w" in wanted else None,
        as_type_of(db * factor, dx) if "b" in wanted else None,
    )


def backward_once(dy: Array, saved: Saved) -> tuple[Array | None, ...]:
    """Return what ``backward`` returns; unless it is half precision, without a second
    array of the size of ``w``.

    NumPy and PyTorch write over the arrays of ``saved``, which cannot be used again.
    """
    dx, dw, db, divisor, like, wanted = check_saved(saved, Saved)
    check_cotangent(dy, (), like=like)
    if not wanted:
        return None, None, None
    factor = widened(dy) if divisor is None else widened(dy) / divisor
    return (
        as_type_of(_times(widened(dx), factor), dx) if "x" in wanted else None,
        as_type_of(_times(dw, factor), dx) if "w" in wanted else None,
        as_type_of(_times(db, factor), dx) if "b" in wanted else None,
    )


def _times(x: Array, factor: Array) -> Array:
    """Return ``x * factor``, in the storage of ``x``."""
    x *= factor
    return x


def forward_flops(m, h, V, has_b=True, reduction="mean", wanted=None):
    """Return the FLOPs of the head, the loss (3V + 2 per token: subtract, exponentiate,
    sum, take one logarithm, subtract twice), the scores' gradient (divide, subtract 1
    at the target), and the head's backward. The sums over chunks are part of those over
    tokens, so the count does not depend on the chunk."""
    loss = m * (3 * V + 2) + nll.forward_flops(m, reduction)
    return (
        linear.forward_flops(m, h, V, has_b)
        + loss
        + sum_wanted(wanted, {_any(has_b): m * (V + 1), "b": 0})
        + linear.backward_flops(m, h, V, has_b, wanted)
    )


def backward_flops(m, h, V, has_b=True, reduction="mean", wanted=None):
    """Return one product per element of each gradient, and the mean's division."""
    costs = {
        _any(has_b): 1 if reduction == "mean" else 0,
        "x": m * h,
        "w": h * V,
        "b": V if has_b else 0,
    }
    return sum_wanted(wanted, costs)


def _any(has_b):
    """Return the names of all gradients that exist."""
    return "x w b" if has_b else "x w"


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"ignore_index": 1, "chunk": 2}, {"reduction": "sum"}, {"chunk": None})
PLACES = ("logits", "loss")
AUTOCAST = "matmul"
