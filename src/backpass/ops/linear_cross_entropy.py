r"""The output head and the loss together, computed a chunk of tokens at a time: the
scores of all tokens never exist at once.

.. math:: Z = X W + \mathbf{1}_m b^\top, \quad
          q_{ij} = c_j \Big( (1 - \epsilon) \, t_{ij}
              + \frac{\epsilon}{V} \Big( \sum_k t_{ik} \Big) \Big), \quad
          y = \frac{
              \sum_{i,j} q_{ij} \Big( \log \Big( \sum_k e^{Z_{ik}} \Big) - Z_{ij} \Big)
              }{\sum_{i,j} t_{ij} c_j}, \qquad
          \bar{Z}_{ij} = \Big( \frac{e^{Z_{ij}}}{\sum_k e^{Z_{ik}}}
              \Big( \sum_k q_{ik} \Big) - q_{ij} \Big)
                         \frac{\bar{y}}{\sum_{k,l} t_{kl} c_l}, \quad
          \bar{X} = \bar{Z} W^\top, \quad \bar{W} = X^\top \bar{Z}, \quad
          \bar{b} = \bar{Z}^\top \mathbf{1}_m

Derived on the page ``operations/output_head``. In the formulas a target is a row, as in
``cross_entropy``, which has the same values, class weights ``c``, smoothing ``ε``, and
edge cases. The loss is one number, so its gradient is one number too and a factor of
every other gradient: ``forward`` computes the gradients, chunk by chunk, for a factor
of 1, and ``backward`` multiplies them by the actual one. The loss of each row, which
``cross_entropy`` returns for ``reduction="none"``, has a gradient of m numbers, and the
gradients of ``w`` and ``b`` are sums over rows: they do not follow from sums that were
taken before. Weights are ``[in, out]``.

In half precision the scores are rounded to the dtype of ``x``, as by ``linear``. What
is computed from them is float32, and so are the gradients of ``w`` and ``b`` until they
are returned. The loss is rounded as by ``cross_entropy``, unless ``wide`` keeps it in
float32; under ``torch.autocast`` it is float32.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_matrix,
    as_type_of,
    bounded_below,
    namespace,
    pick,
    transpose,
    widened,
)
from backpass.contract.shapes import (
    Kind,
    Outline,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.contract.values import (
    at_least_one,
    check_bool,
    check_label_smoothing,
    check_reduced,
    check_targets,
    chunk_or_default,
    weights_at,
)
from backpass.contract.wanted import Wanted, check_wanted, kept, narrowed, sum_wanted
from backpass.ops import linear, nll
from backpass.ops._tiling import add_product, exp_in_place, less_at, plus, set_rows

SHAPES = "x[*, h], w[h, V>0], t[*]:int, b[V]?, weight[V]? -> y[]"
PARAMETERS = ("w", "b")
CONSTANTS = ("weight",)
POSITIVE = ("weight",)


class Saved(NamedTuple):
    """The gradients of the sum over tokens, and their divisor: no scores, and no
    input."""

    dx: Array | Outline  # [*, h]
    dw: Array | None  # [h, V]
    db: Array | None  # [V]
    divisor: float | Array | None  # on a device or with class weights, []
    like: Kind
    wanted: tuple[str, ...]


def forward(
    x: Array,
    w: Array,
    t: Array,
    b: Array | None = None,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    chunk: int | None = None,
    wide: bool = False,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return the loss ``y[]`` of the scores ``x[*, h] @ w[h, V] + b[V]`` at the targets
    ``t[*]``; ``weight[V]`` are the weights of the classes.

    ``chunk`` is the number of tokens whose scores exist at a time. By default these
    scores are a quarter as large as the gradients of ``x`` and ``w`` together, so that
    the memory in use is largest in the backward. ``wide`` leaves the loss of
    half-precision inputs in float32, and ``backward`` then expects ``dy`` in float32: a
    scaled loss may exceed float16, whose largest number is 65504.

    Raises TypeError unless ``x``, ``w``, ``b``, and ``weight`` are floating-point
    arrays of one dtype and ``t`` is an integer array, all of one library and device, or
    if an option has the wrong type; ValueError if shapes do not fit, ``reduction`` is
    neither "mean" nor "sum", ``label_smoothing`` is not from 0 to 1, or ``chunk`` is
    below 1; IndexError for a target outside the V classes.
    """
    xp = check_inputs(SHAPES, x=x, w=w, t=t, b=b, weight=weight)
    check_bool(wide=wide)
    check_reduced(reduction)
    check_label_smoothing(label_smoothing)
    wanted = check_wanted(SHAPES, wanted, b=b, weight=None)
    rows, targets = as_matrix(x), xp.reshape(t, (-1,))
    (m, h), V = rows.shape, w.shape[1]
    chunk = chunk_or_default(chunk, m, h, V)
    targets, divisor = check_targets(targets, V, ignore_index, reduction, weight)
    classes = _classes(weight, label_smoothing, w)

    total: Array = None
    dw, db = None, None
    dx = xp.zeros_like(rows) if "x" in wanted else None
    for start in range(0, max(m, 1), chunk):
        stop = min(start + chunk, m)
        loss, part, dw, db = _add_chunk(
            rows[start:stop, ...], w, targets[start:stop], b, dw, db, classes, wanted
        )
        total = plus(total, loss)
        dx = set_rows(dx, part, start) if "x" in wanted else None

    y = total if divisor is None else total / divisor
    y = y if wide else as_type_of(y, x)
    dx = kept(x, needed=False) if dx is None else xp.reshape(dx, x.shape)
    divisor = at_least_one(divisor, targets) if wanted else None
    return y, Saved(dx, dw, db, divisor, kind(y), wanted)


class _Classes(NamedTuple):
    """What the weights of the classes and the smoothing give each class."""

    weight: Array | None  # [V], 1 for each class if only smoothing is wanted
    label_smoothing: float
    spread: Array | None = None  # [V], what every target gives to each class
    sum: Array | None = None  # [], of ``spread``


def _classes(weight: Array, label_smoothing: float, w: Array) -> _Classes:
    """Return what all chunks share. Smoothing without class weights is computed with
    weights of 1, which costs little beside the head's product."""
    if weight is not None:
        weight = widened(weight)
    elif label_smoothing:
        weight = namespace(w).ones_like(widened(w[0, :]))
    if not label_smoothing:
        return _Classes(weight, label_smoothing)
    spread = label_smoothing * weight / w.shape[1]
    return _Classes(weight, label_smoothing, spread, namespace(w).sum(spread))


def _add_chunk(
    x: Array,
    w: Array,
    t: Array,
    b: Array | None,
    dw: Array | None,
    db: Array | None,
    classes: _Classes,
    wanted: tuple[str, ...],
) -> tuple[Array, Array | None, Array | None, Array | None]:
    """Return the loss of ``x[c, h]``, summed over its tokens; its dx; and dw and db
    with the tokens' terms added. The arrays of the scores' size are freed on return."""
    z = widened(linear.forward(x, w, b)[0])  # [c, V]
    xp, dx = namespace(z), None
    at_target = pick(z, t)  # [c]

    # As in log_softmax, a row of −∞ has a largest score of 0 and a sum of 1.
    top = bounded_below(xp.max(z, axis=-1, keepdims=True))  # [c, 1]
    far = z - top  # [c, V]
    del z  # so that at most two arrays of this size exist at a time
    of_all = None if classes.spread is None else far @ classes.spread[:, None]  # [c, 1]
    weights = exp_in_place(far)
    del far
    total = xp.sum(weights, axis=-1, keepdims=True)  # [c, 1]
    total = xp.where(total == 0, 1.0, total)
    log_total = xp.log(total)[:, 0]  # [c]
    losses = log_total - (at_target - top[:, 0])
    at_class = None  # [c, 1], what a target gives to its own class
    if classes.weight is not None:
        at_class = weights_at(classes.weight, t)[:, None]
        losses = losses * at_class[:, 0]
    if of_all is not None:
        rest = 1 - classes.label_smoothing
        losses = rest * losses + (classes.sum * log_total - of_all[:, 0])
    loss = xp.sum(xp.where(t < 0, 0.0, losses))
    if wanted:
        dz = _less_target(weights, total, t, at_class, classes)  # [c, V]
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


def _less_target(
    weights: Array, total: Array, t: Array, at_class: Array | None, classes: _Classes
) -> Array:
    """Return softmax, ``weights[c, V]`` over their sums ``total[c, 1]``, times the sum
    of each row's target, less the target."""
    if at_class is None:
        return less_at(weights / total, t)
    if classes.spread is None:
        return less_at(weights * (at_class / total), t, at_class)
    at_class = (1 - classes.label_smoothing) * at_class
    softmax = weights * ((at_class + classes.sum) / total)
    return less_at(softmax - classes.spread, t, at_class)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, h]``, ``dw[h, V]``, and ``db[V]`` (None without a bias) from
    ``dy[]``."""
    dx, dw, db, divisor, like, wanted = narrowed(saved, Saved, wanted)
    check_cotangent(dy, (), like=like)
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


def forward_flops(
    m,
    h,
    V,
    has_b=True,
    reduction="mean",
    label_smoothing=0.0,
    has_weight=False,
    wanted=None,
):
    """Return the FLOPs of the head, the loss (3V + 2 per token: subtract, exponentiate,
    sum, take one logarithm, subtract twice), the scores' gradient (divide, subtract 1
    at the target), and the head's backward. The sums over chunks are part of those over
    tokens, so the count does not depend on the chunk. Class weights multiply each
    token's loss and its softmax; smoothing also multiplies the scores by the shares of
    all classes, and subtracts these shares."""
    loss = m * (3 * V + 2) + nll.forward_flops(m, reduction, has_weight)
    gradient = m * (V + 2) if has_weight else m * (V + 1)
    if label_smoothing:
        loss += m * (2 * V + 3) + 3 * V - 1 + (0 if has_weight else m)
        gradient = m * (2 * V + 4)
    return (
        linear.forward_flops(m, h, V, has_b)
        + loss
        + sum_wanted(wanted, {_any(has_b): gradient, "b": 0})
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
EXAMPLES = (
    {"ignore_index": 1, "chunk": 2},
    {"reduction": "sum", "weight": None},
    {"chunk": None},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.25, "weight": None, "b": None},
)
LETTERS = {"weight": "c", "label_smoothing": r"\epsilon"}
PLACES = ("logits", "loss")
AUTOCAST = "matmul"
