"""Norms and losses: mistakes in a mean, a statistic, or the use of dy."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from . import bug, normal, require, twins
from .rows import normalised, normalised_backward, over_rows, softmax


def tensors(*shapes):
    """Draws standard normal tensors of these shapes."""
    return lambda rng: tuple(map(torch.tensor, normal(*shapes)(rng)))


def derived(function):
    """An object whose backward is autograd's through its own forward, so that only the
    forward can be wrong."""

    @functools.wraps(function)
    def forward(*inputs):
        return function(*inputs), inputs

    def backward(dy, inputs):
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        with torch.enable_grad():
            y = function(*leaves)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = torch.autograd.grad(y, wanted, dy)
        return gradients if len(gradients) > 1 else gradients[0]

    return SimpleNamespace(forward=forward, backward=backward)


def normalised_by_length(norm, guarded=True):
    """x/(‖x‖ + ε), whose backward divides by ``norm(n, m)`` where it differentiates
    the norm n; m is n + ε."""

    def forward(x, eps=1e-5):
        n = np.sqrt((x * x).sum(axis=-1, keepdims=True))
        return x / (n + eps), (x, n, n + eps)

    def backward(dy, saved):
        x, n, m = saved
        along = (x * dy).sum(axis=-1, keepdims=True)
        by = norm(n, m)
        if guarded:
            by = np.where(n > 0, by, 1)
        return dy / m - x * along / (by * m * m)

    return twins(forward, backward, backward)[0]


@bug(
    "chainer/chainer#4190",
    "The derivative of x/(‖x‖ + ε) used ‖x‖ + ε in place of ‖x‖ where it differentiates the norm.",
    "dx = dy/m − x·Σ(x·dy)/(n·m²) with n = ‖x‖ and m = n + ε",
    kind="norms",
    inputs=normal((4, 6)),
    telling=normal((4, 6)),
    telling_inputs="ε = 0.5",
    telling_keywords={"eps": 0.5},
    gradcheck="telling",
)
def l2_normalisation():
    return normalised_by_length(lambda n, m: n), normalised_by_length(lambda n, m: m)


@bug(
    "chainer/chainer#4765",
    "The corrected backward of x/(‖x‖ + ε) divided 0 by 0 in a row of zeros.",
    "dx = dy/ε in a row of zeros",
    kind="norms",
    inputs=normal((4, 6)),
    telling=lambda rng: (np.vstack([rng.standard_normal((2, 5)), np.zeros((1, 5))]),),
    telling_inputs="a row of zeros",
    telling_keywords={"eps": 0.5},
    seen="varied",
    gradcheck="telling",
)
def l2_normalisation_of_zeros():
    return normalised_by_length(lambda n, m: n), normalised_by_length(
        lambda n, m: n, guarded=False
    )


@bug(
    "flagos-ai/FlagGems#5392",
    "LayerNorm's backward took the first axis for the rows and all other axes for one row.",
    "a row is the last axis, whatever the number of axes",
    kind="norms",
    inputs=normal((4, 6), (6,), (6,)),
    telling=normal((2, 3, 6), (6,), (6,)),
    telling_inputs="three axes",
    seen="varied",
    gradcheck="telling",
)
def layer_norm_of_three_axes():
    def forward(x, w, b):
        require(w.ndim == b.ndim == 1, "a weight and a bias of one axis")
        mean = x.mean(axis=-1, keepdims=True)
        x_hat, rstd = normalised(x)
        return x_hat * w + b, (x, mean, rstd, w)

    def with_rows(rows):
        def backward(dy, saved):
            x, mean, rstd, w = saved
            m = rows(x)
            x_hat = (x.reshape(m, -1) - mean.reshape(-1, 1)[:m]) * rstd.reshape(-1, 1)[
                :m
            ]
            dx_hat = (dy * w).reshape(m, -1)
            dx = normalised_backward(dx_hat, x_hat, rstd.reshape(-1, 1)[:m])
            dw, db = over_rows(dy.reshape(m, -1) * x_hat), over_rows(dy.reshape(m, -1))
            return dx.reshape(x.shape), dw[: len(w)], db[: len(w)]

        return backward

    return twins(
        forward,
        with_rows(lambda x: x.size // x.shape[-1]),
        with_rows(lambda x: x.shape[0]),
    )


@bug(
    "linkedin/Liger-Kernel#1375",
    "GroupNorm's backward counted W elements in a channel of H·W; it wrote out of bounds and then raised an error (the silent twin is ours).",
    "the sums and their divisors cover the H·W elements of each channel",
    kind="norms",
    inputs=normal((2, 4, 5), (4,)),
    telling=normal((2, 4, 3, 5), (4,)),
    telling_inputs="four axes",
    seen="telling",
    gradcheck="telling",
)
def group_norm_of_images():
    groups = 2

    def forward(x, w):
        require(x.ndim > 2 and x.shape[1:2] == w.shape, "a weight for each channel")
        x_hat, rstd = normalised(x.reshape(len(x), groups, -1))
        y = x_hat.reshape(*x.shape[:2], -1) * w[:, None]
        return y.reshape(x.shape), (x_hat, rstd, w)

    def counting(elements):
        def backward(dy, saved):
            x_hat, rstd, w = saved
            (n, c), size = dy.shape[:2], elements(dy)
            parts = (n, groups, c // groups, -1)
            dx_hat = (dy.reshape(n, c, -1) * w[:, None]).reshape(parts)
            x_hat, rstd = x_hat.reshape(parts), rstd[..., None]
            g, h = dx_hat[..., :size], x_hat[..., :size]
            mean = g.mean(axis=(2, 3), keepdims=True)
            along = (g * h).mean(axis=(2, 3), keepdims=True)
            dx = rstd * (dx_hat - mean - x_hat * along)
            terms = dy.reshape(n, c, -1) * x_hat.reshape(n, c, -1)
            return dx.reshape(dy.shape), terms[..., :size].sum(axis=(0, 2))

        return backward

    return twins(
        forward,
        counting(lambda dy: int(np.prod(dy.shape[2:]))),
        counting(lambda dy: dy.shape[-1]),
    )


@bug(
    "flagos-ai/FlagGems#5222",
    "BatchNorm's backward took the saved 1/σ for a variance and applied rsqrt to it again.",
    "rstd is the saved statistic itself",
    kind="norms",
    inputs=normal((7, 3), (3,), (3,)),
)
def batch_norm_rsqrt():
    eps = 1e-5

    def forward(x, w, b):
        require(x.ndim == 2, "x of two axes")
        mean = x.mean(axis=0)
        _, rstd = normalised(x, axis=0, eps=eps)
        return (x - mean) * rstd * w + b, (x, mean, rstd, w)

    def reading(statistic):
        def backward(dy, saved):
            x, mean, saved_rstd, w = saved
            rstd = statistic(saved_rstd)
            x_hat = (x - mean) * rstd
            dx = normalised_backward(dy * w, x_hat, rstd, axis=0)
            return dx, over_rows(dy * x_hat), over_rows(dy)

        return backward

    return twins(forward, reading(lambda s: s), reading(lambda s: 1 / np.sqrt(s + eps)))


@bug(
    "tenstorrent/tt-metal#53204",
    "LayerNorm's dx subtracted the mean of dy·γ twice, from a register that still held it.",
    "dx = rstd·(g − mean g − x̂·mean(g·x̂)) with g = dy·γ",
    kind="norms",
    inputs=normal((4, 6), (6,)),
    says="reference − got = 1/6·saved[1]·Σ(w·dy)",
)
def mean_subtracted_twice():
    def forward(x, w):
        x_hat, rstd = normalised(x)
        return x_hat * w, (x_hat, rstd, w)

    def subtracting(times):
        def backward(dy, saved):
            x_hat, rstd, w = saved
            g = dy * w
            mean = g.mean(axis=-1, keepdims=True)
            along = (g * x_hat).mean(axis=-1, keepdims=True)
            return rstd * (g - times * mean - x_hat * along), over_rows(dy * x_hat)

        return backward

    return twins(forward, subtracting(1), subtracting(2))


@bug(
    "BobMcDear/attorch#18",
    "Partial sums of dw went to a buffer with one entry for each full block of rows: the last, incomplete block was left out.",
    "dw sums over all rows",
    kind="norms",
    inputs=normal((7, 5), (5,), (5,)),
)
def last_block_of_rows():
    block = 4

    def forward(x, w, b):
        x_hat, rstd = normalised(x)
        return x_hat * w + b, (x_hat, rstd, w)

    def summing(rows):
        def backward(dy, saved):
            x_hat, rstd, w = saved
            dx = normalised_backward(dy * w, x_hat, rstd)
            terms, dys = (dy * x_hat).reshape(-1, len(w)), dy.reshape(-1, len(w))
            kept = rows(len(dys))
            return dx, terms[:kept].sum(axis=0), dys[:kept].sum(axis=0)

        return backward

    return twins(
        forward, summing(lambda rows: rows), summing(lambda rows: rows // block * block)
    )


@bug(
    "Dao-AILab/quack#53",
    "RMSNorm of x + residual also returns that sum; the sum's gradient was added to dy before the norm's backward.",
    "dx = norm_backward(dy) + dsum",
    kind="norms",
    inputs=normal((4, 6), (4, 6), (6,)),
)
def gradient_of_residual():
    def forward(x, residual, w):
        h = x + residual
        rstd = 1 / np.sqrt((h * h).mean(axis=-1, keepdims=True) + 1e-6)
        return (h * rstd * w, h), (h * rstd, rstd, w)

    def norm_backward(dy, saved):
        h_hat, rstd, w = saved
        g = dy * w
        dh = rstd * (g - h_hat * (g * h_hat).mean(axis=-1, keepdims=True))
        return dh, over_rows(dy * h_hat)

    def backward(dys, saved):
        dh, dw = norm_backward(dys[0], saved)
        return dh + dys[1], dh + dys[1], dw

    def wrong(dys, saved):
        dh, _ = norm_backward(dys[0] + dys[1], saved)
        return dh, dh, norm_backward(dys[0], saved)[1]

    return twins(forward, backward, wrong)


def cross_entropy(x, t):
    """Each row's loss and its gradient with respect to the row."""
    rows = np.arange(len(t))
    top = x.max(axis=-1)
    loss = np.log(np.exp(x - top[:, None]).sum(axis=-1)) + top - x[rows, t]
    g = softmax(x)
    g[rows, t] -= 1
    return loss, g


@bug(
    "unslothai/unsloth-zoo#434",
    "A fused cross-entropy computed its gradient in the forward and never multiplied it by dy (the thread's code asserted dy's value; the silent form is ours).",
    "dx = dy·(p − onehot)/N",
    kind="softmax and losses",
    inputs=lambda rng: (rng.standard_normal((5, 7)), rng.integers(0, 7, 5)),
    says="got does not depend on dy",
)
def cross_entropy_without_dy():
    def forward(x, t):
        require(x.ndim == 2 and len(x) == len(t), "a label for each row")
        loss, g = cross_entropy(x, t)
        return loss.mean(), g / len(t)

    return twins(forward, lambda dy, g: dy * g, lambda dy, g: g.copy())


@bug(
    "linkedin/Liger-Kernel#1298",
    "A fused linear cross-entropy without reduction multiplied every row's gradient by the first row's dy.",
    "dx_i = dy_i·g_i·w, dw = Σ dy_i·g_i⊗x_i",
    kind="softmax and losses",
    inputs=lambda rng: (*normal((5, 3), (7, 3))(rng), rng.integers(0, 7, 5)),
)
def one_dy_for_all_rows():
    def forward(x, w, t):
        require(x.ndim == w.ndim == 2 and len(x) == len(t), "a label for each row")
        loss, g = cross_entropy(x @ w.T, t)
        return loss, (x, w, g)

    def backward(dy, saved):
        x, w, g = saved
        return (dy[:, None] * g) @ w, (dy[:, None] * g).T @ x

    def wrong(dy, saved):
        return backward(np.full_like(dy, dy[0]), saved)

    return twins(forward, backward, wrong)


def smoothed_cross_entropy(counted):
    """The mean loss over the rows whose label is not ``ignored``; the uniform part is
    summed over the rows of ``counted``."""
    smoothing, ignored = 0.1, 1

    def loss(x, t):
        require(x.ndim == 2 and len(x) == len(t), "a label for each row")
        logp = x.log_softmax(dim=-1)
        keep = t != ignored
        one_hot = -logp[torch.arange(len(t)), t] * keep
        uniform = -logp.mean(dim=-1) * counted(keep)
        return ((1 - smoothing) * one_hot + smoothing * uniform).sum() / keep.sum()

    return derived(loss)


@bug(
    "pytorch/pytorch#73205",
    "Label smoothing's uniform part counted the ignored rows too, in the loss as in its gradient.",
    "both parts sum over the rows that are not ignored",
    kind="softmax and losses",
    inputs=lambda rng: (
        torch.tensor(rng.standard_normal((6, 5))),
        torch.tensor([0, 1, 2, 1, 3, 4]),
    ),
    keywords={
        "operator": lambda x, t: F.cross_entropy(
            x, t, ignore_index=1, label_smoothing=0.1
        )
    },
    gradcheck="never",
)
def smoothing_of_ignored_rows():
    return smoothed_cross_entropy(lambda keep: keep), smoothed_cross_entropy(
        torch.ones_like
    )


@bug(
    "NVIDIA-NeMo/Automodel#2428",
    "A soft cross-entropy's backward assumed targets that sum to 1; its forward did not (found in review).",
    "dx = dy·(Σt·softmax(x) − t)",
    kind="softmax and losses",
    inputs=lambda rng: (
        rng.standard_normal((4, 6)),
        softmax(rng.standard_normal((4, 6))),
    ),
    telling=lambda rng: (rng.standard_normal((4, 6)), rng.uniform(0, 1, (4, 6))),
    telling_inputs="targets that do not sum to 1",
    keywords={"constants": ("t",)},
    seen="varied",
    gradcheck="telling",
)
def soft_targets():
    def forward(x, t):
        require(x.shape == t.shape, "a target for each element")
        top = x.max(axis=-1, keepdims=True)
        lse = np.log(np.exp(x - top).sum(axis=-1)) + top[..., 0]
        return lse * t.sum(axis=-1) - (t * x).sum(axis=-1), (x, t)

    def weighing(total):
        def backward(dy, saved):
            x, t = saved
            return dy[..., None] * (total(t) * softmax(x) - t)

        return backward

    return twins(
        forward,
        weighing(lambda t: t.sum(axis=-1, keepdims=True)),
        weighing(lambda t: 1),
    )


@bug(
    "pytorch/pytorch#192016",
    "Above 65,536 rows, here above 2,000, LayerNorm's backward made the weight's gradient as long as the last normalised axis, not as all of them.",
    "dw has the shape of w, whatever the number of rows",
    kind="norms",
    inputs=normal((5, 2, 3), (2, 3)),
    telling=normal((2_001, 2, 1), (2, 1)),
    telling_inputs="two normalised axes and 2,001 rows",
    seen="telling",
    gradcheck="never",
)
def layer_norm_of_many_rows():
    limit = 2_000

    def forward(x, w):
        require(x.ndim == 3 and x.shape[1:] == w.shape, "rows of two axes")
        x_hat, rstd = normalised(x.reshape(len(x), -1))
        return x_hat.reshape(x.shape) * w, (x_hat, rstd, w)

    def summing(columns):
        def backward(dy, saved):
            x_hat, rstd, w = saved
            dx_hat = (dy * w).reshape(x_hat.shape)
            dx = normalised_backward(dx_hat, x_hat, rstd).reshape(dy.shape)
            dw = (dy.reshape(x_hat.shape) * x_hat).sum(axis=0)
            return dx, columns(dw, len(dy)).reshape(-1, w.shape[-1])

        return backward

    def of_last_axis(dw, rows):
        return dw.reshape(-1, 1)[:1] if rows > limit else dw

    return twins(forward, summing(lambda dw, rows: dw), summing(of_last_axis))
