"""Gathers, pools, convolutions, means, heads and masks: a gradient that goes to another
place, or to too few."""

import numpy as np
import torch
import torch.nn.functional as F

from . import bug, normal, require, twins
from .rows import softmax


@bug(
    "ooples/AiDotNet.Tensors#894",
    "The backward of a gather gathered again; it has to scatter and add.",
    "dx[i_k] += dy[k]",
    kind="means, pooling, and indexing",
    inputs=lambda rng: (rng.standard_normal((4, 3)), np.array([2, 0, 2, 3, 1])),
)
def gather():
    def forward(x, index):
        return x[index], (index, len(x))

    def backward(dy, saved):
        index, length = saved
        dx = np.zeros((length, *dy.shape[1:]))
        np.add.at(dx, index, dy)
        return dx

    def wrong(dy, saved):
        index, length = saved
        return dy[index[np.arange(length) % len(index)]]

    return twins(forward, backward, wrong)


@bug(
    "PaddlePaddle/Paddle#30604",
    "Rows that a scatter had overwritten passed dy on to what they were before.",
    "dx = dy, and 0 in the overwritten rows",
    kind="means, pooling, and indexing",
    inputs=lambda rng: (
        rng.standard_normal((5, 3)),
        np.array([1, 3]),
        rng.standard_normal((2, 3)),
    ),
)
def scatter():
    def forward(x, index, updates):
        require(len(np.unique(index)) == len(index), "each index once")
        y = x.astype(np.result_type(x, updates))
        y[index] = updates
        return y, index

    def backward(dy, index):
        dx = dy.copy()
        dx[index] = 0
        return dx, dy[index]

    return twins(forward, backward, lambda dy, index: (dy.copy(), dy[index]))


def embedding(row_gradient):
    """A table of rows whose gradient ``row_gradient(dy, tokens, rows)`` adds up."""

    def forward(tokens, w):
        return w[tokens], (tokens, len(w))

    def backward(dy, saved):
        tokens, rows = saved
        return row_gradient(dy.reshape(-1, dy.shape[-1]), tokens.reshape(-1), rows)

    return twins(forward, backward, backward)[0]


@bug(
    "pytorch/pytorch#26302",
    "The row of the padding token received a gradient.",
    "dw = 0 in row padding_idx",
    kind="embeddings",
    inputs=lambda rng: (np.array([[1, 0, 2], [0, 3, 1]]), rng.standard_normal((4, 3))),
    keywords={
        "operator": lambda tokens, w: F.embedding(tokens, w, padding_idx=0),
        "conventions": {
            "w": "the padding token is not trained: its row's gradient is 0"
        },
    },
    gradcheck="never",
)
def padding_row():
    def added(dy, tokens, rows):
        dw = np.zeros((rows, dy.shape[-1]))
        np.add.at(dw, tokens, dy)
        return dw

    def masked(dy, tokens, rows):
        dw = added(dy, tokens, rows)
        dw[0] = 0
        return dw

    return embedding(masked), embedding(added)


@bug(
    "tenstorrent/tt-metal#53386",
    "Repeated tokens were added up in bfloat16, whose running sum stops growing.",
    "dw is accumulated in float32 and rounded once",
    kind="low precision",
    inputs=lambda rng: (
        torch.tensor([[1, 0, 2], [0, 2, 1]]),
        torch.tensor(rng.standard_normal((4, 3))),
    ),
    telling=lambda rng: (
        torch.tensor(rng.integers(0, 3, 2000)),
        torch.tensor(rng.standard_normal((3, 4)), dtype=torch.bfloat16),
    ),
    telling_inputs="bfloat16, 2000 tokens of three kinds",
    keywords={"operator": F.embedding},
    missed="PyTorch's own gradient adds up in bfloat16 on a CPU: twice its error allows as much",
    gradcheck="never",
)
def repeated_tokens():
    def summed(running):
        def add(dy, tokens, rows):
            dw = torch.zeros(rows, dy.shape[-1], dtype=running(dy.dtype))
            if dw.dtype != torch.bfloat16:
                return dw.index_add_(0, tokens, dy.to(dw.dtype)).to(dy.dtype)
            for token, row in zip(tokens.tolist(), dy, strict=True):
                dw[token] += row  # index_add_ would round less often
            return dw

        return add

    return embedding(
        summed(lambda dtype: torch.promote_types(dtype, torch.float32))
    ), embedding(summed(lambda dtype: dtype))


@bug(
    "pytorch/FBGEMM#5754",
    "The gradient's buffer was not cleared, and rows beyond the longest segment allowed are never written.",
    "dx = 0 in the rows that the forward cut off",
    kind="means, pooling, and indexing",
    inputs=lambda rng: (rng.standard_normal((6, 3)), np.array([2, 3, 1])),
    telling=lambda rng: (rng.standard_normal((7, 3)), np.array([2, 4, 1])),
    telling_inputs="a segment longer than the maximum",
    seen="varied",
    gradcheck="telling",
)
def packed_segments():
    longest = 3

    def forward(x, lengths):
        y = np.zeros((len(lengths), longest, x.shape[-1]), dtype=x.dtype)
        for part, (start, length) in enumerate(
            zip(np.cumsum(lengths) - lengths, lengths, strict=True)
        ):
            kept = min(length, longest)
            y[part, :kept] = x[start : start + kept]
        return y, (lengths, len(x))

    def into(buffer):
        def backward(dy, saved):
            lengths, rows = saved
            dx = buffer((rows, dy.shape[-1]))
            for part, (start, length) in enumerate(
                zip(np.cumsum(lengths) - lengths, lengths, strict=True)
            ):
                kept = min(length, longest)
                dx[start : start + kept] = dy[part, :kept]
            return dx

        return backward

    held_before = 1e3
    return twins(
        forward, into(np.zeros), into(lambda shape: np.full(shape, held_before))
    )


@bug(
    "tracel-ai/burn#5604",
    "Average pooling divided an overhanging last window by the kernel's size in the backward only.",
    "dx = dy over the number of elements in the window",
    kind="means, pooling, and indexing",
    inputs=normal((2, 6)),
    telling=normal((2, 5)),
    telling_inputs="a length that is not a multiple of the stride",
    seen="varied",
    gradcheck="telling",
)
def average_pool():
    size = 2

    def windows(length):
        return [
            slice(start, min(start + size, length)) for start in range(0, length, size)
        ]

    def forward(x):
        return np.stack(
            [x[:, at].mean(axis=-1) for at in windows(x.shape[-1])], axis=-1
        ), x.shape

    def dividing(divisor):
        def backward(dy, shape):
            dx = np.zeros(shape)
            for column, at in enumerate(windows(shape[-1])):
                dx[:, at] = dy[:, column, None] / divisor(at)
            return dx

        return backward

    return twins(
        forward, dividing(lambda at: at.stop - at.start), dividing(lambda at: size)
    )


@bug(
    "sebgao/cTensor#3",
    "A convolution's weight gradient was divided by the number of windows.",
    "dw = Σ dy·x over the batch and the windows",
    kind="products and convolutions",
    inputs=normal((2, 3, 6), (4, 3, 3)),
)
def convolution():
    def forward(x, w):
        patches = np.lib.stride_tricks.sliding_window_view(x, w.shape[-1], axis=-1)
        return np.einsum("bclk,ock->bol", patches, w), (x, w)

    def dividing(divisor):
        def backward(dy, saved):
            x, w = saved
            size = w.shape[-1]
            patches = np.lib.stride_tricks.sliding_window_view(x, size, axis=-1)
            dx = np.zeros_like(x)
            for k in range(size):
                dx[..., k : k + dy.shape[-1]] += np.einsum("bol,oc->bcl", dy, w[..., k])
            return dx, np.einsum("bol,bclk->ock", dy, patches) / divisor(dy)

        return backward

    return twins(
        forward, dividing(lambda dy: 1), dividing(lambda dy: dy.shape[0] * dy.shape[-1])
    )


@bug(
    "NervanaSystems/neon#111",
    "A three-dimensional convolution's backward wrote the input's gradient at the depth of the output, another loop's index.",
    "dx[m·stride + k] += Σ dy[m]·w[k] along each axis",
    kind="products and convolutions",
    inputs=normal((2, 4, 3, 3), (2, 2, 2, 2, 2)),
)
def convolution_of_three_axes():
    def patches(x, w):
        return np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(1, 2, 3))

    def forward(x, w):
        require(x.ndim == 4 and w.ndim == 5, "channels of three axes")
        return np.einsum("cdhwijk,ocijk->odhw", patches(x, w), w), (x, w)

    def at_depth(depth):
        def backward(dy, saved):
            x, w = saved
            dx = np.zeros_like(x)
            _, height, width = dy.shape[1:]
            for m, i, j, k in np.ndindex(dy.shape[1], *w.shape[2:]):
                part = np.einsum("ohw,oc->chw", dy[:, m], w[:, :, i, j, k])
                dx[:, depth(m, i), j : j + height, k : k + width] += part
            return dx, np.einsum("odhw,cdhwijk->ocijk", dy, patches(x, w))

        return backward

    return twins(forward, at_depth(lambda m, i: m + i), at_depth(lambda m, i: m))


@bug(
    "torch/nn#345",
    "The backward of a mean read dy in the order of its memory, whatever its strides.",
    "dx = dy/n, by index",
    kind="strides",
    inputs=normal((2, 3, 4)),
    gradcheck="never",
)
def mean_of_strided_dy():
    def forward(x):
        return x.mean(axis=-1), x.shape

    def backward(dy, shape):
        return np.broadcast_to(dy[..., None] / shape[-1], shape).copy()

    def wrong(dy, shape):
        strides = (
            dy.itemsize * np.cumprod([1, *dy.shape[:0:-1]])[::-1]
        )  # of a contiguous array of this shape
        return backward(np.lib.stride_tricks.as_strided(dy, dy.shape, strides), shape)

    return twins(forward, backward, wrong)


@bug(
    "facebookresearch/shumai#74",
    "The backward of a mean over one axis repeated dy over every axis.",
    "dx = dy/n, repeated along the axis of the mean",
    kind="means, pooling, and indexing",
    inputs=normal((2, 3)),
)
def mean_over_one_axis():
    def forward(x):
        return x.mean(axis=0, keepdims=True), x.shape

    def backward(dy, shape):
        return np.broadcast_to(dy / shape[0], shape).copy()

    return twins(forward, backward, lambda dy, shape: np.tile(dy / shape[0], shape))


@bug(
    "torch/nn#657",
    "A bilinear layer's input gradients were not weighted by dy.",
    "da_i = Σ dy_o·w_oij·b_j",
    kind="products and convolutions",
    inputs=normal((4, 2), (4, 3), (5, 2, 3)),
)
def bilinear():
    def forward(a, b, w):
        return np.einsum("oij,ni,nj->no", w, a, b), (a, b, w)

    def weighted(weight):
        def backward(dy, saved):
            a, b, w = saved
            by = weight(dy)
            return (
                np.einsum("no,oij,nj->ni", by, w, b),
                np.einsum("no,oij,ni->nj", by, w, a),
                np.einsum("no,ni,nj->oij", dy, a, b),
            )

        return backward

    return twins(forward, weighted(lambda dy: dy), weighted(np.ones_like))


def attention(q, k, v, allowed=None):
    """y, the probabilities and the log-sum-exp of the scores of q[..., s, d], k[..., t,
    d], v[..., t, e]."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    p = softmax(scores)
    top = scores.max(axis=-1)
    return p @ v, p, np.log(np.exp(scores - top[..., None]).sum(axis=-1)) + top


def attention_backward(dy, q, k, v, p, dlse=0):
    dp = dy @ np.swapaxes(v, -1, -2)
    ds = (
        p
        * (dp - (dp * p).sum(axis=-1, keepdims=True) + np.asarray(dlse)[..., None])
        / np.sqrt(q.shape[-1])
    )
    return ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dy


@bug(
    "marin-community/levanter#449",
    "Keys and values shared by a group of query heads got a gradient for each head.",
    "dk and dv sum over the group",
    kind="attention",
    inputs=normal((2, 3, 4, 5), (2, 4, 5), (2, 4, 5)),
)
def grouped_queries():
    def forward(q, k, v):
        require(q.ndim == 4, "q of four axes")
        y, p, _ = attention(q, k[:, None], v[:, None])
        return y, (q, k, v, p)

    def wrong(dy, saved):
        q, k, v, p = saved
        return attention_backward(dy, q, k[:, None], v[:, None], p)

    def backward(dy, saved):
        dq, dk, dv = wrong(dy, saved)
        return dq, dk.sum(axis=1), dv.sum(axis=1)

    return twins(forward, backward, wrong)


@bug(
    "xlite-dev/ffpa-attn#300",
    "A causal backward aligned its mask with the first key, the forward with the last.",
    "query i sees key j where i + t − s ≥ j",
    kind="attention",
    inputs=normal((4, 3), (4, 3), (4, 3)),
    telling=normal((3, 3), (5, 3), (5, 3)),
    telling_inputs="fewer queries than keys",
    seen="varied",
    gradcheck="telling",
)
def causal_alignment():
    def allowed(s, t, shift):
        return np.arange(s)[:, None] + shift >= np.arange(t)

    def forward(q, k, v):
        s, t = len(q), len(k)
        y, _, lse = attention(q, k, v, allowed(s, t, t - s))
        return y, (q, k, v, lse)

    def aligned(shift):
        def backward(dy, saved):
            q, k, v, lse = saved
            scores = q @ k.T / np.sqrt(q.shape[-1])
            p = np.where(
                allowed(len(q), len(k), shift(len(q), len(k))),
                np.exp(scores - lse[:, None]),
                0,
            )
            return attention_backward(dy, q, k, v, p)

        return backward

    return twins(forward, aligned(lambda s, t: t - s), aligned(lambda s, t: 0))


@bug(
    "ByteDance-Seed/VeOmni#1021",
    "Attention returned its log-sum-exp as a second output and dropped that output's gradient.",
    "ds = p·(dp − Σ dp·p + dlse)",
    kind="attention",
    inputs=normal((4, 3), (5, 3), (5, 2)),
)
def gradient_of_logsumexp():
    def forward(q, k, v):
        y, p, lse = attention(q, k, v)
        return (y, lse), (q, k, v, p)

    def backward(dys, saved):
        return attention_backward(dys[0], *saved, dlse=dys[1])

    return twins(
        forward, backward, lambda dys, saved: attention_backward(dys[0], *saved)
    )
