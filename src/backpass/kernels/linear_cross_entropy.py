r"""The output head and the loss together: ``backpass.ops.linear_cross_entropy`` on the cross-entropy kernel.

.. math:: Z = X W + \mathbf{1}_m b^\top, \qquad
          \bar{X} = \bar{Z} W^\top, \quad \bar{W} = X^\top \bar{Z}, \quad \bar{b} = \bar{Z}^\top \mathbf{1}_m

Derived on the page ``operations/output_head``. Of a chunk of tokens the scores are one matrix product, into a buffer
that all chunks share; ``cross_entropy``'s kernels read their losses from it and write the scores' gradient over
them; two more products give what the chunk has in the gradients of ``x`` and ``w``. The products are the
library's, which no kernel here would be faster than. The gradients of ``w`` and ``b`` are added up over chunks in
float32 for 16 bits. There are no atomics: two runs agree to the last bit where the library's products do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from backpass.kernels import cross_entropy
from backpass.kernels.launch import Launch, accumulator, check_tensor, check_tensors, needs_launch
from backpass.shapes import (
    Kind,
    check_bool,
    check_cotangent,
    check_saved,
    check_targets,
    chosen_chunk,
    kind,
)

SHAPES = "x[*, h], w[h, V>0], t[*]:int, b[V]? -> y[]"
PARAMETERS = ("w", "b")
# The scores' gradients are stored in the dtype of the scores, and so rounded to 16 bits before they are multiplied.
OPERANDS = True


class Saved(NamedTuple):
    """The gradients of the sum over tokens, and what divides them: no score, and none of the inputs."""

    dx: torch.Tensor  # [*, h]
    dw: torch.Tensor  # [h, V], in the dtype computed in
    db: torch.Tensor | None  # [V], in the dtype computed in
    divisor: float | None
    like: Kind


@torch.no_grad()  # products into a buffer cannot be differentiated by autograd
def forward(
    x: torch.Tensor,
    w: torch.Tensor,
    t: torch.Tensor,
    b: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    chunk: int | None = None,
    wide: bool = False,
) -> tuple[torch.Tensor, Saved]:
    """The loss ``y[]`` of the scores ``x[*, h] @ w[h, V] + b[V]`` at the targets ``t[*]``, ``chunk`` tokens at a time; in
    float32 for 16-bit inputs if ``wide``.

    Waits for the device once, to see the targets. Raises what the operation raises, and TypeError for what is no
    tensor on a device where kernels run.
    """
    check_tensors(SHAPES, x=x, w=w, t=t, b=b)
    check_bool(wide=wide)
    m, h, V = t.numel(), *w.shape
    chunk = chosen_chunk(chunk, m, h, V)
    t, divisor = check_targets(t.reshape(-1), V, ignore_index, reduction)
    t = t.contiguous()

    like, sums = {"dtype": x.dtype, "device": x.device}, {"dtype": accumulator(x.dtype), "device": x.device}
    rows = x.reshape(m, h)
    dx = torch.empty((m, h), **like)
    dw = torch.zeros((h, V), **sums)
    db = None if b is None else torch.zeros(V, **sums)
    scores = torch.empty((min(chunk, m), V), **like)
    losses = torch.empty(m, **sums)
    each = torch.ones((), **sums)
    for start in range(0, m if needs_launch(losses) else 0, chunk):
        part = slice(start, start + chunk)
        z = scores[: len(rows[part])]
        if b is None:
            torch.mm(rows[part], w, out=z)
        else:
            torch.addmm(b, rows[part], w, out=z)
        for launch in gradient_launches(z, t[part], losses[part], each):
            launch.run()
        _add_gradients(z, rows[part], w, dx[part], dw, db)

    y = cross_entropy.reduced(losses, divisor)
    y = y if wide else y.to(x.dtype)
    if divisor is not None and math.isnan(divisor):
        divisor = 1  # the mean of no tokens is NaN; the gradients, 0, stay what they are
    return y, Saved(dx.reshape(x.shape), dw, db, divisor, kind(y))


def _add_gradients(
    dz: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    dx: torch.Tensor,
    dw: torch.Tensor,
    db: torch.Tensor | None,
) -> None:
    """Write ``dx[c, h]`` of a chunk's ``x[c, h]``, and add what its scores' ``dz[c, V]`` has in dw and db."""
    torch.mm(dz, w.T, out=dx)

    # Every token met the same w and b: their gradients sum over tokens, and so over chunks.
    dw += torch.mm(x.T, dz)
    if db is not None:
        db += torch.sum(dz, dim=0, dtype=db.dtype)


def backward(dy: torch.Tensor, saved: Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """``dx[*, h]``, ``dw[h, V]`` and ``db[V]`` (None without a bias) from ``dy[]``."""
    dx, dw, db, divisor, like = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, (), like=like)

    # In the forward pass the loss was the tokens' sum over the divisor; so now the sum's gradients get dy over it.
    factor = dy.to(dw.dtype) / (divisor or 1)
    return tuple(
        None if gradient is None else (gradient.to(dw.dtype) * factor).to(dx.dtype)
        for gradient in (dx, dw, db)
    )


def gradient_launches(
    z: torch.Tensor, t: torch.Tensor, losses: torch.Tensor, each: torch.Tensor
) -> list[Launch]:
    """The launches that write a loss for each row of the scores ``z[c, V]``, then their gradients over them."""
    top, total = (torch.empty(losses.shape, dtype=losses.dtype, device=losses.device) for _ in range(2))
    return [
        cross_entropy.forward_launch(z, t, losses, top, total),
        cross_entropy.backward_launch(z, t, top, total, each, z),
    ]


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Those of ``cross_entropy``: there are no others."""
    return cross_entropy.launches(dtype)
