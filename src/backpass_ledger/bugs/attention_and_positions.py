"""Attention and rotary positions: heads, masks, gates, dropout, and pairs of
channels."""

import numpy as np
import torch

from . import bug, normal, require, twins
from .norms_and_losses import derived, tensors
from .places import attention, attention_backward
from .rows import softmax


@bug(
    "XunhaoLai/native-sparse-attention-triton#27",
    "dk and dv split the query head's number by the number of query heads per key head, the forward by the number of key heads.",
    "query head h shares key head h mod n_kv",
    kind="attention",
    inputs=normal((6, 3, 4), (2, 5, 4), (2, 5, 4)),
)
def interleaved_heads():
    def forward(q, k, v):
        require(
            q.ndim == 3 and k.shape == v.shape and len(q) % len(k) == 0,
            "whole groups of query heads",
        )
        at = np.arange(len(q)) % len(k)
        y, p, _ = attention(q, k[at], v[at])
        return y, (q, k, v, p)

    def backward(dy, saved, split=None):
        q, k, v, p = saved
        heads = np.arange(len(q))
        dq, *of_each = attention_backward(
            dy, q, k[heads % len(k)], v[heads % len(k)], p
        )
        share = len(q) // len(k)
        by = split(len(k), share) if split else len(k)
        found = [dq]
        for part in of_each:
            slots = np.zeros((len(k), share, *part.shape[1:]))
            for head, gradient in zip(heads, part, strict=True):
                if head % by < len(k) and head // by < share:
                    slots[head % by, head // by] = gradient
            found.append(slots.sum(axis=1))
        return tuple(found)

    def wrong(dy, saved):
        return backward(dy, saved, split=lambda kv_heads, share: share)

    return twins(forward, backward, wrong)


@bug(
    "meta-pytorch/MSLK#263",
    "The backward of causal attention in a sliding window was called without either mask.",
    "p = exp(s − lse) where 0 ≤ i − j < window, else 0",
    kind="attention",
    inputs=normal((5, 3), (5, 3), (5, 3)),
)
def sliding_window():
    window = 3

    def forward(q, k, v):
        require(q.ndim == 2 and len(q) == len(k), "as many queries as keys")
        distance = np.arange(len(q))[:, None] - np.arange(len(k))
        y, p, _ = attention(q, k, v, (distance >= 0) & (distance < window))
        return y, (q, k, v, p)

    def wrong(dy, saved):
        q, k, v, _ = saved
        return attention_backward(dy, q, k, v, attention(q, k, v)[1])

    return twins(forward, lambda dy, saved: attention_backward(dy, *saved), wrong)


@bug(
    "huggingface/diffusers#14265",
    "Ring attention's backward passed keys and values round and computed each step's gradient from the saved ones, those of the first step.",
    "step r uses block r of the keys and values",
    kind="parallel training",
    inputs=normal((4, 3), (3, 5, 3), (3, 5, 3)),
)
def ring_attention():
    def forward(q, k, v):
        require(q.ndim == 2 and k.ndim == v.ndim == 3, "blocks of keys and values")
        y, _, lse = attention(q, k.reshape(-1, k.shape[-1]), v.reshape(-1, v.shape[-1]))
        return y, (q, k, v, y, lse)

    def receiving(block):
        def backward(dy, saved):
            q, k, v, y, lse = saved
            scale = np.sqrt(q.shape[-1])
            dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
            for step in range(len(k)):
                at = block(step)
                p = np.exp(q @ k[at].T / scale - lse[:, None])
                ds = p * (dy @ v[at].T - (dy * y).sum(axis=-1)[:, None]) / scale
                dq += ds @ k[at]
                dk[step], dv[step] = ds.T @ q, p.T @ dy
            return dq, dk, dv

        return backward

    return twins(forward, receiving(lambda step: step), receiving(lambda step: 0))


@bug(
    "ISEEKYAN/Megatron-LM#205",
    "The gradient of attention's learnable sink was computed and not passed on.",
    "da = −Σ p_sink·Σ dy·y",
    kind="attention",
    inputs=normal((4, 3), (5, 3), (5, 2), (1,)),
    says="da: expected an array; got None",
)
def attention_sink():
    def forward(q, k, v, a):
        require(q.ndim == 2 and a.shape == (1,), "one sink")
        scores = np.concatenate(
            [q @ k.T / np.sqrt(q.shape[-1]), np.broadcast_to(a, (len(q), 1))], axis=-1
        )
        p = softmax(scores)
        return p[:, :-1] @ v, (q, k, v, p)

    def backward(dy, saved):
        q, k, v, p = saved
        p, sink = p[:, :-1], p[:, -1]
        dp = dy @ v.T
        along = (dp * p).sum(axis=-1)
        ds = p * (dp - along[:, None]) / np.sqrt(q.shape[-1])
        return ds @ k, ds.T @ q, p.T @ dy, np.array([-(sink * along).sum()])

    return twins(forward, backward, lambda dy, saved: (*backward(dy, saved)[:3], None))


@bug(
    "fla-org/flash-linear-attention#6",
    "Gated linear attention's value gradient was computed without the gates.",
    "dv_s = Σ_{t≥s} (q_t·k_s)·Π_{s<r≤t} g_r·dy_t",
    kind="attention",
    inputs=lambda rng: (
        *normal((5, 3), (5, 3), (5, 2))(rng),
        -rng.uniform(0, 1, 5),
    ),
)
def gated_linear_attention():
    def forward(q, k, v, log_g):
        require(q.ndim == 2 and log_g.shape == (len(q),), "a gate for each token")
        total = np.cumsum(log_g)
        decay = np.tril(np.exp(total[:, None] - total))
        return (q @ k.T * decay) @ v, (q, k, v, decay)

    def backward(dy, saved):
        q, k, v, decay = saved
        da = dy @ v.T
        a = q @ k.T * decay
        dtotal = (da * a).sum(axis=1) - (da * a).sum(axis=0)
        ds = da * decay
        return ds @ k, ds.T @ q, a.T @ dy, np.cumsum(dtotal[::-1])[::-1].copy()

    def wrong(dy, saved):
        q, k, _, _ = saved
        dq, dk, _, dlog_g = backward(dy, saved)
        return dq, dk, np.tril(q @ k.T).T @ dy, dlog_g

    return twins(forward, backward, wrong)


@bug(
    "aws-neuron/nki-samples#81",
    "Attention's backward took the probabilities after dropout for the softmax's, and left dropout out of their gradient.",
    "da = (dy·vᵀ)·mask/(1 − p), ds = a·(da − Σ a·da) with the softmax a",
    kind="attention",
    inputs=lambda rng: (*normal((4, 5), (5, 2))(rng), rng.random((4, 5)) > 0.25),
)
def dropout_of_probabilities():
    def forward(s, v, mask, rate=0.25):
        require(s.shape == mask.shape, "a mask of the scores' shape")
        a = softmax(s)
        m = mask / (1 - rate)
        return (a * m) @ v, (a, m, v)

    def backward(dy, saved):
        a, m, v = saved
        da = dy @ v.T * m
        return a * (da - (a * da).sum(axis=-1, keepdims=True)), (a * m).T @ dy

    def wrong(dy, saved):
        a, m, v = saved
        z, da = a * m, dy @ v.T
        return z * (da - (z * da).sum(axis=-1, keepdims=True)), z.T @ dy

    return twins(forward, backward, wrong)


@bug(
    "NVIDIA/apex#1444",
    "A row whose keys are all masked came out as 1/n, and the backward, which knows the mask by y = 0, passed a gradient on.",
    "y = 0 and dx = 0 in such a row",
    kind="softmax and losses",
    inputs=lambda rng: (
        rng.standard_normal((3, 4)),
        np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1]], dtype=bool),
    ),
    telling=lambda rng: (
        rng.standard_normal((3, 4)),
        np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=bool),
    ),
    telling_inputs="a row without keys",
    seen="varied",
    gradcheck="telling",
)
def rows_without_keys():
    def masked(empty):
        def forward(x, mask):
            require(x.shape == mask.shape, "a mask of x's shape")
            p = softmax(np.where(mask, x, -10000.0))
            y = np.where(mask.any(axis=-1, keepdims=True), p, empty(p))
            return y, y

        def backward(dy, y):
            return y * (dy - (y * dy).sum(axis=-1, keepdims=True))

        return twins(forward, backward, backward)[0]

    return masked(np.zeros_like), masked(lambda p: p)


def angles(length, pairs):
    """Rotary angles: one row a position, the first of which is 1, one column a pair of
    channels."""
    return (1 + np.arange(length))[:, None] / 10 ** np.arange(pairs)


def rotated(x, theta):
    """x[..., d] with neighbouring channels turned by the angles theta[..., d/2]."""
    a, b, c, s = x[..., 0::2], x[..., 1::2], np.cos(theta), np.sin(theta)
    return np.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(x.shape)


@bug(
    "huggingface/candle#3612",
    "A fused rotary embedding was registered without a backward: the parameters before it received no gradient, and no error was raised.",
    "dx = R(−θ)dy",
    kind="positions",
    inputs=normal((3, 4)),
    says="expected an array; got None",
)
def rope_without_backward():
    def forward(x):
        require(x.shape[-1] % 2 == 0, "pairs of channels")
        theta = angles(x.shape[-2], x.shape[-1] // 2)
        return rotated(x, theta), theta

    return twins(forward, lambda dy, theta: rotated(dy, -theta), lambda dy, theta: None)


@bug(
    "raiyanyahya/how-to-train-your-gpt#7",
    "Angles were laid out for neighbouring channels, and channel j was paired with j + d/2: no rotation.",
    "the channels of a pair have the same angle",
    kind="positions",
    inputs=tensors((3, 6)),
    keywords={
        "operator": lambda x: torch.view_as_real(
            torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            * torch.exp(1j * torch.tensor(angles(x.shape[-2], x.shape[-1] // 2)))
        ).reshape(x.shape)
    },
    gradcheck="never",
)
def rope_pairs():
    def with_partner(partner):
        def rope(x):
            require(x.shape[-1] % 2 == 0, "pairs of channels")
            theta = torch.tensor(angles(x.shape[-2], x.shape[-1] // 2))
            theta = theta.repeat_interleave(2, dim=-1)
            return x * theta.cos() + partner(x) * theta.sin()

        return derived(rope)

    def neighbour(x):
        return torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).reshape(x.shape)

    def other_half(x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    return with_partner(neighbour), with_partner(other_half)


@bug(
    "NVIDIA/Megatron-LM#7103",
    "The last, incomplete block of heads also rotated the rows after it in place: the next token's first heads were rotated twice.",
    "only heads below H are rotated",
    kind="positions",
    inputs=tensors((3, 3, 4)),
    keywords={
        "operator": lambda x: torch.view_as_real(
            torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            * torch.exp(1j * torch.tensor(angles(x.shape[0], x.shape[-1] // 2)))[
                :, None
            ]
        ).reshape(x.shape)
    },
    gradcheck="never",
)
def rope_blocks_of_heads():
    block = 2

    def rope(heads):
        def turned(x, sign):
            length, count, channels = x.shape
            rows = x.reshape(-1, channels)
            out = rows.clone()
            theta = sign * torch.tensor(angles(length, channels // 2))
            for t in range(length):
                at = slice(t * count, t * count + heads(count))
                a, b = out[at, 0::2].clone(), out[at, 1::2].clone()
                c, s = theta[t].cos(), theta[t].sin()
                out[at, 0::2], out[at, 1::2] = a * c - b * s, a * s + b * c
            return out.reshape(x.shape)

        def forward(x):
            require(x.ndim == 3 and x.shape[-1] % 2 == 0, "tokens of heads of pairs")
            return turned(x, 1), None

        return twins(forward, lambda dy, _: turned(dy, -1), None)[0]

    return rope(lambda count: count), rope(lambda count: -(-count // block) * block)


def rotated_by_halves(x, cos, sin):
    """x rotated by tables of its shape: each half of a row by its own."""
    a, b = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-b, a], axis=-1) * sin


@bug(
    "PaddlePaddle/Paddle#74716",
    "A rotary embedding's backward multiplied by sin after it had exchanged the halves of dy, in place of before.",
    "dx = dy·cos − rotate(dy·sin), with the halves exchanged last",
    kind="positions",
    inputs=lambda rng: (
        rng.standard_normal((3, 4)),
        *(np.tile(f(rng.uniform(0, 3, (3, 2))), 2) for f in (np.cos, np.sin)),
    ),
    telling=normal((3, 4), (3, 4), (3, 4)),
    telling_inputs="tables whose halves differ",
    keywords={"constants": ("cos", "sin")},
    seen="telling",
    gradcheck="telling",
)
def rotation_by_unequal_halves():
    def turned(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([-b, a], axis=-1)

    def forward(x, cos, sin):
        require(x.shape == cos.shape == sin.shape, "tables of the shape of x")
        return rotated_by_halves(x, cos, sin), (cos, sin)

    def backward(dy, saved):
        cos, sin = saved
        return dy * cos - turned(dy * sin)

    def wrong(dy, saved):
        cos, sin = saved
        return dy * cos - turned(dy) * sin

    return twins(forward, backward, wrong)


@bug(
    "NVIDIA/TransformerEngine#2188",
    "A fused rotary embedding rotated from a start position that its backward did not take: dy was turned back from position 0.",
    "dx turns dy back by the angles of positions start, start + 1, …",
    kind="positions",
    inputs=normal((3, 4)),
    keywords={"options": {"start": 2}},
    says="with start=0",
)
def start_position_forgotten():
    def angles(x, start):
        positions = start + np.arange(len(x))
        each = np.outer(positions, 1 / 100 ** (np.arange(x.shape[-1] // 2) / 2))
        return np.tile(each, 2)

    def forward(x, start=0):
        require(x.ndim == 2 and x.shape[-1] % 2 == 0, "tokens of pairs of channels")
        at = angles(x, start)
        return rotated_by_halves(x, np.cos(at), np.sin(at)), (start,)

    def starting(first):
        def backward(dy, saved):
            at = angles(dy, first(*saved))
            return rotated_by_halves(dy, np.cos(at), -np.sin(at))

        return backward

    return twins(forward, starting(lambda start: start), starting(lambda start: 0))
