"""The output head and the loss together, on the cross-entropy kernel.

Formulas: ``backpass.ops.linear_cross_entropy``. Derived on the page
``operations/output_head``. The scores of a chunk of tokens are one matrix product,
written to a buffer that all chunks share. ``cross_entropy``'s kernels compute the
losses from it and overwrite it with the scores' gradients. Two more products give the
chunk's part of the gradients of ``x`` and ``w``. The products are the library's: no
kernel here would be faster. The gradients of ``w`` and ``b`` are summed over chunks in
float32 for half precision. It uses no atomics: two runs agree to the last bit if the
library's products do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from backpass.contract.shapes import Kind, check_cotangent, check_saved, kind
from backpass.contract.values import (
    at_least_one,
    check_bool,
    check_label_smoothing,
    check_reduced,
    check_targets,
    chunk_or_default,
)
from backpass.kernels import cross_entropy
from backpass.kernels.launch import (
    Launch,
    accumulator,
    check_tensor,
    check_tensors,
    needs_launch,
    packed,
)
from backpass.kernels.products import add_weight_gradient

SHAPES = "x[*, h], w[h, V>0], t[*]:int, b[V]?, weight[V]? -> y[]"
PARAMETERS = ("w", "b")
CONSTANTS = ("weight",)
POSITIVE = ("weight",)
# The scores' gradients are stored in the dtype of the scores: half precision is rounded
# before the products.
OPERANDS = True


class Saved(NamedTuple):
    """The gradients of the sum over tokens, and their divisor: no scores, and none of
    the inputs."""

    dx: torch.Tensor  # [*, h]
    dw: torch.Tensor  # [h, V], in the dtype computed in
    db: torch.Tensor | None  # [V], in the dtype computed in
    divisor: float | torch.Tensor | None  # on a device or with class weights, []
    like: Kind


@torch.no_grad()  # products into a buffer cannot be differentiated by autograd
def forward(
    x: torch.Tensor,
    w: torch.Tensor,
    t: torch.Tensor,
    b: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    chunk: int | None = None,
    wide: bool = False,
) -> tuple[torch.Tensor, Saved]:
    """Return the loss ``y[]`` of the scores ``x[*, h] @ w[h, V] + b[V]`` at the targets
    ``t[*]``, with the class weights ``weight[V]``, computed ``chunk`` tokens at a time;
    in float32 for half precision if ``wide``.

    Does not wait for a CUDA device, where an assertion checks the targets. Raises what
    the operation raises, and TypeError for an argument that is not a tensor on a device
    where kernels run.
    """
    check_tensors(SHAPES, x=x, w=w, t=t, b=b, weight=weight)
    check_bool(wide=wide)
    check_reduced(reduction)
    check_label_smoothing(label_smoothing)
    m, h, V = t.numel(), *w.shape
    chunk = chunk_or_default(chunk, m, h, V)
    t, divisor = check_targets(t.reshape(-1), V, ignore_index, reduction, weight)
    t, options = t.contiguous(), (packed(weight), label_smoothing)

    like: dict[str, Any] = {"dtype": x.dtype, "device": x.device}
    sums: dict[str, Any] = {"dtype": accumulator(x.dtype), "device": x.device}
    rows = x.reshape(m, h)
    dx = torch.empty((m, h), **like)
    dw = torch.zeros_like(w, **sums)  # lies in memory as w does
    db = None if b is None else torch.zeros(V, **sums)
    # Each row begins at a multiple of 128 bytes, for any V, because the library's
    # matrix products are faster on aligned rows.
    aligned = 128 // x.element_size()
    scores = torch.empty((min(chunk, m), -(-V // aligned) * aligned), **like)[:, :V]
    losses = torch.empty(m, **sums)
    each = torch.ones((), **sums)
    for start in range(0, m if needs_launch(losses) else 0, chunk):
        part = slice(start, start + chunk)
        z = scores[: len(rows[part])]
        if b is None:
            torch.mm(rows[part], w, out=z)
        else:
            torch.addmm(b, rows[part], w, out=z)
        for launch in gradient_launches(z, t[part], losses[part], each, *options):
            launch.run()
        _add_gradients(z, rows[part], w, dx[part], dw, db)

    y = cross_entropy.reduced(losses, divisor)
    y = y if wide else y.to(x.dtype)
    return y, Saved(dx.reshape(x.shape), dw, db, at_least_one(divisor, t), kind(y))


def _add_gradients(
    dz: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    dx: torch.Tensor,
    dw: torch.Tensor,
    db: torch.Tensor | None,
) -> None:
    """Write a chunk's ``dx[c, h]``, and add the chunk's part of dw and db, from its
    scores' gradients ``dz[c, V]``."""
    torch.mm(dz, w.T, out=dx)

    # Every token used the same w and b, so their gradients are sums over tokens, and
    # over chunks.
    add_weight_gradient(dw, x, dz, w)
    if db is not None:
        db += torch.sum(dz, dim=0, dtype=db.dtype)


def backward(
    dy: torch.Tensor, saved: Saved
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return ``dx[*, h]``, ``dw[h, V]`` and ``db[V]`` (None without a bias) from
    ``dy[]``."""
    dx, dw, db, divisor, like = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, (), like=like)

    # In the forward pass the tokens' sum was divided by the divisor; so now dy is,
    # before it multiplies the sum's gradients.
    dy = dy.to(dw.dtype)
    factor = dy if divisor is None else dy / divisor

    def scaled(gradient: torch.Tensor) -> torch.Tensor:
        return (gradient.to(dw.dtype) * factor).to(dx.dtype)

    return scaled(dx), scaled(dw), None if db is None else scaled(db)


def gradient_launches(
    z: torch.Tensor,
    t: torch.Tensor,
    losses: torch.Tensor,
    each: torch.Tensor,
    weight: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> list[Launch]:
    """The launches that write a loss for each row of the scores ``z[c, V]``, then
    overwrite the scores with their gradients."""
    like: dict[str, Any] = {"dtype": losses.dtype, "device": losses.device}
    top, total = (torch.empty(losses.shape, **like) for _ in range(2))
    options = (weight, label_smoothing)
    return [
        cross_entropy.forward_launch(z, t, losses, top, total, *options),
        cross_entropy.backward_launch(z, t, top, total, each, z, *options),
    ]


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """The launches of ``cross_entropy``: there are no others."""
    return cross_entropy.launches(dtype)
