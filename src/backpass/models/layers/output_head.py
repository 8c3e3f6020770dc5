"""The output head and the loss: a score for each token of the vocabulary, and the mean
of the cross-entropies at the targets.

The gradients are derived on the page ``operations/output_head``. The weight is
``[out, in]``, as in ``torch.nn.Linear``, so that the token embedding's table can be
passed as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients, as_type_of, widened
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_bool
from backpass.contract.wanted import Wanted, check_wanted, narrowed
from backpass.models.layers import turned
from backpass.models.layers.calls import call, formulas
from backpass.models.layers.kernel import gradient_of, gradients_of, implementation
from backpass.ops import cross_entropy, linear, linear_cross_entropy

SHAPES = "x[*, h], w[V>0, h], t[*]:int -> y[]"
PARAMETERS = ("w",)


class Saved(NamedTuple):
    """What one operation saved, with chunks, or what two saved without."""

    both: Any  # linear_cross_entropy's, the gradients of x and w; None without chunks
    scores: Any  # linear's, x[*, h]; None with chunks, like loss
    loss: Any  # cross_entropy's, p[*, V]
    wanted: tuple[str, ...]


def forward(
    x: Array,
    w: Array,
    t: Array,
    *,
    chunked: bool = True,
    wide: bool = False,
    kernels: Any = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return the loss ``y[]`` of the rows ``x[*, h]`` at the targets ``t[*]``, with one
    row of ``w[V, h]`` for each token of the vocabulary. A target of −100 is ignored.

    With ``chunked`` the scores exist for some rows at a time, and the forward computes
    the gradients. Otherwise log-probabilities ``[*, V]`` are saved. In half precision,
    ``wide`` keeps the loss in float32, and the log-probabilities too. ``kernels`` is
    ``backpass.kernels``, to run its kernel of the loss, or None.

    Raises TypeError unless ``x`` and ``w`` are floating-point arrays of one dtype and
    ``t`` an integer array, all of one library and device, or if an option has the wrong
    type; ValueError if shapes do not fit; IndexError for a target outside the V tokens.
    """
    check_inputs(SHAPES, x=x, w=w, t=t)
    check_bool(chunked=chunked, wide=wide)
    wanted = check_wanted(SHAPES, wanted)
    if chunked:
        head = implementation(linear_cross_entropy, kernels)
        y, both = head.forward(x, turned(w), t, wide=wide, wanted=wanted)
        return y, Saved(both, None, None, wanted)
    z, scores = linear.forward(x, turned(w), wanted=wanted)
    z = widened(z) if wide else z
    y, loss = implementation(cross_entropy, kernels).forward(z, t)
    return y, Saved(None, scores, loss, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, h]`` and ``dw[V, h]`` from ``dy[]``."""
    both, scores, loss, wanted = narrowed(saved, Saved, wanted)
    if both is not None:
        dx, dw, _ = gradients_of(linear_cross_entropy, dy, both, wanted)
        return dx, turned(dw)
    if not wanted:
        return None, None
    dz = as_type_of(gradient_of(cross_entropy, dy, loss), scores.x)
    dx, dw, _ = linear.backward(dz, scores, wanted=wanted)
    return dx, turned(dw)


def backward_once(dy: Array, saved: Saved) -> Gradients:
    """Return what ``backward`` returns, in less memory: with ``chunked`` it writes over
    the arrays of ``saved``, which cannot be used again. A kernel does not."""
    if not isinstance(saved.both, linear_cross_entropy.Saved):
        return backward(dy, saved)
    dx, dw, _ = linear_cross_entropy.backward_once(dy, saved.both)
    return dx, turned(dw)


def calls(m, h, V, chunked=True, wanted=None):
    """Return one operation, or the two that compute the same."""
    wanted = check_wanted(SHAPES, wanted)
    rows = {"m": m, "V": V, "has_weight": False}
    if chunked:
        both = {**rows, "h": h, "has_b": False}
        return (call("output head and loss", linear_cross_entropy, wanted, **both),)
    return (
        call("output head", linear, wanted, m=m, n=h, p=V, has_b=False),
        call("loss", cross_entropy, wanted, **rows),
    )


forward_flops, backward_flops = formulas(calls)


# Facts for checks: see backpass.ops.
EXAMPLES = ({}, {"chunked": False}, {"wide": True})
