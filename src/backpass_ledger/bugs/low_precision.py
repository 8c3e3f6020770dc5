"""Sums and counts in half precision: mistakes that float64 cannot show."""

import torch

from . import bug, require, twins
from .norms_and_losses import tensors


def half(dtype, *shapes):
    """Draws standard normal tensors of these shapes, rounded to ``dtype``."""
    return lambda rng: tuple(x.to(dtype) for x in tensors(*shapes)(rng))


def wider(x):
    """x in float32, or as it is if it is of float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def running_sum(terms, dtype):
    """The sum of the rows of ``terms``; one after the other, each sum rounded to
    ``dtype``, if that is half precision."""
    if dtype not in (torch.bfloat16, torch.float16):
        return terms.to(dtype).sum(dim=0)
    total = torch.zeros_like(terms[0], dtype=dtype)
    for row in terms.to(dtype):  # index_add_ would round less often
        total += row
    return total


@bug(
    "karpathy/llm.c#476",
    "LayerNorm's weight gradient was added up in bfloat16, row by row.",
    "dw is summed in float32 and rounded once",
    kind="low precision",
    inputs=tensors((4, 6), (6,), (6,)),
    telling=half(torch.bfloat16, (200, 3), (3,), (3,)),
    telling_inputs="bfloat16, 200 rows",
    seen="varied",
    gradcheck="never",
)
def layer_norm_summed_in_bfloat16():
    def summing(dtype):
        def forward(x, w, b):
            require(w.shape == b.shape == x.shape[-1:], "a weight for each column")
            wide = wider(x)
            centred = wide - wide.mean(dim=-1, keepdim=True)
            rstd = torch.rsqrt((centred * centred).mean(dim=-1, keepdim=True) + 1e-5)
            x_hat = centred * rstd
            return (x_hat * wider(w) + wider(b)).to(x.dtype), (x_hat, rstd, w)

        def backward(dy, saved):
            x_hat, rstd, w = saved
            dx_hat = wider(dy) * wider(w)
            along = (dx_hat * x_hat).mean(dim=-1, keepdim=True)
            dx = rstd * (dx_hat - dx_hat.mean(dim=-1, keepdim=True) - x_hat * along)
            terms = (wider(dy) * x_hat).reshape(-1, len(w))
            dw = running_sum(terms, dtype(dy)).to(w.dtype)
            db = wider(dy).reshape(-1, len(w)).sum(dim=0).to(w.dtype)
            return dx.to(dy.dtype), dw, db

        return twins(forward, backward, None)[0]

    return summing(lambda dy: wider(dy).dtype), summing(lambda dy: dy.dtype)


@bug(
    "tinygrad/tinygrad#12296",
    "The gradient of a maximum is shared among ties, which were counted in the gradient's dtype: 70 000 in float16 are ∞, and every gradient 0.",
    "ties are counted in float32",
    kind="low precision",
    inputs=tensors((4, 6)),
    keywords={"operator": lambda x: x.amax(dim=-1)},
    missed="it shows only with more than 65 504 ties in float16, which these inputs do not have",
    gradcheck="never",
)
def ties_counted_in_float16():
    def maximum(dtype):
        def forward(x):
            y = x.amax(dim=-1)
            return y, x == y[..., None]

        def backward(dy, at):
            count = at.sum(dim=-1, keepdim=True).to(dtype(dy))
            return (dy[..., None] * at / count).to(dy.dtype)

        return twins(forward, backward, None)[0]

    return maximum(lambda dy: wider(dy).dtype), maximum(lambda dy: dy.dtype)


@bug(
    "pytorch/pytorch#190626",
    "Reductions were to run in float32; the one over the tensor-parallel ranks ran in bfloat16.",
    "dw is summed over the ranks in float32",
    kind="low precision",
    inputs=tensors((3, 2, 4), (4,)),
    keywords={"operator": lambda x, w: x * w},
    seen="varied",
    gradcheck="never",
)
def ranks_summed_in_bfloat16():
    def reducing(dtype):
        def forward(x, w):
            require(x.ndim == 3 and w.ndim == 1, "ranks of tokens")
            return x * w, (x, w)

        def backward(dy, saved):
            x, w = saved
            parts = (wider(dy) * wider(x)).sum(dim=1).to(dy.dtype)
            return dy * w, running_sum(parts, dtype(dy)).to(w.dtype)

        return twins(forward, backward, None)[0]

    return reducing(lambda dy: wider(dy).dtype), reducing(lambda dy: dy.dtype)
