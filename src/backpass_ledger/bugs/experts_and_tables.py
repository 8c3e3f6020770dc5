"""Experts and tables of rows: a token that goes to one of many weights."""

import numpy as np
import torch
import torch.nn.functional as F

from . import bug, normal, require, twins
from .norms_and_losses import derived, tensors
from .rows import softmax


@bug(
    "NVIDIA/Megatron-LM#894",
    "The router's softmax was taken after the choice of the top k experts: for k = 1 it is 1, with gradient 0.",
    "y = softmax(z)[argmax z]·h",
    kind="experts",
    inputs=normal((4, 3), (4, 5)),
    says="vacuous",
    gradcheck="never",
)
def softmax_of_one_expert():
    def routed(before):
        def forward(z, h):
            require(z.ndim == h.ndim == 2, "scores and outputs of tokens")
            p, at = softmax(z), z.argmax(axis=-1)[:, None]
            w = np.take_along_axis(p, at, axis=-1) if before else np.ones((len(z), 1))
            return w * h, (p, at, w, h)

        def backward(dy, saved):
            p, at, w, h = saved
            dp = np.zeros_like(p)
            if before:
                np.put_along_axis(dp, at, (dy * h).sum(-1, keepdims=True), axis=-1)
            return p * (dp - (dp * p).sum(axis=-1, keepdims=True)), dy * w

        return twins(forward, backward, backward)[0]

    return routed(True), routed(False)


def load_balance(probabilities):
    """E·Σ f_e·mean P_e over E experts, two of which each token chooses."""

    def loss(z):
        tokens, experts = z.reshape(-1, z.shape[-1]).shape
        p = probabilities(z).reshape(tokens, experts)
        chosen = z.reshape(tokens, experts).topk(2, dim=-1).indices
        share = F.one_hot(chosen, experts).sum(dim=(0, 1)) / tokens
        return experts * (share * p.mean(dim=0)).sum()

    return loss


@bug(
    "huggingface/transformers#45120",
    "The router returned probabilities named logits, and the load-balancing loss took their softmax.",
    "P = softmax(z), once",
    kind="experts",
    inputs=tensors((5, 4)),
    keywords={"operator": load_balance(lambda z: z.softmax(dim=-1))},
    gradcheck="never",
)
def softmax_twice():
    return derived(load_balance(lambda z: z.softmax(dim=-1))), derived(
        load_balance(lambda z: z.softmax(dim=-1).softmax(dim=-1))
    )


@bug(
    "pytorch/pytorch#172439",
    "An expert without tokens had a weight gradient that no kernel had written.",
    "dw = 0 for an expert without tokens",
    kind="experts",
    inputs=lambda rng: (*normal((6, 3), (3, 3, 2))(rng), np.array([2, 3, 1])),
    telling=lambda rng: (*normal((6, 3), (3, 3, 2))(rng), np.array([4, 0, 2])),
    telling_inputs="an expert without tokens",
    seen="varied",
    gradcheck="telling",
)
def expert_without_tokens():
    def forward(x, w, counts):
        require(len(counts) == len(w) and counts.sum() == len(x), "a count per expert")
        owner = np.repeat(np.arange(len(counts)), counts)
        return np.einsum("ni,nio->no", x, w[owner]), (x, w, counts)

    def into(buffer):
        def backward(dy, saved):
            x, w, counts = saved
            owner = np.repeat(np.arange(len(counts)), counts)
            dw = buffer(w.shape)
            for expert in np.flatnonzero(counts):
                dw[expert] = x[owner == expert].T @ dy[owner == expert]
            return np.einsum("no,nio->ni", dy, w[owner]), dw

        return backward

    held_before = 1e3
    return twins(
        forward, into(np.zeros), into(lambda shape: np.full(shape, held_before))
    )


@bug(
    "huggingface/transformers#48687",
    "Slots of other ranks' experts have weight 0 and kept some expert's output: their weight's gradient was that output times dy.",
    "dw = Σ dy·h in this rank's slots, else 0",
    kind="experts",
    inputs=lambda rng: (
        *normal((4, 2), (4, 2, 3))(rng),
        np.array([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=bool),
    ),
)
def slots_of_other_ranks():
    def forward(w, h, owned):
        require(w.shape == owned.shape == h.shape[:-1], "a weight for each slot")
        return ((w * owned)[..., None] * h).sum(axis=-2), (w, h, owned)

    def wrong(dy, saved):
        w, h, owned = saved
        return (dy[..., None, :] * h).sum(axis=-1), (w * owned)[..., None] * dy[
            ..., None, :
        ]

    def backward(dy, saved):
        dw, dh = wrong(dy, saved)
        return dw * saved[2], dh

    return twins(forward, backward, wrong)


@bug(
    "pytorch/pytorch#190063",
    "An embedding's gradient was divided by the count of another token: of the sorted list's entry at the group's number.",
    "row u of dw is divided by the number of tokens u",
    kind="embeddings",
    inputs=lambda rng: (
        torch.tensor([[1, 0, 4], [1, 3, 1]]),
        torch.tensor(rng.standard_normal((5, 3))),
    ),
    keywords={
        "operator": lambda tokens, w: F.embedding(
            tokens, w, scale_grad_by_freq=True
        ).sum(dim=-2),
        "conventions": {"w": "a row's gradient is divided by the row's frequency"},
    },
    gradcheck="never",
)
def frequency_of_another_token():
    def bag(entry):
        def forward(tokens, w):
            require(tokens.ndim == 2, "bags of tokens")
            return w[tokens].sum(dim=-2), (tokens, len(w))

        def backward(dy, saved):
            tokens, rows = saved
            ordered = tokens.reshape(-1).sort().values
            groups, counts = ordered.unique(return_counts=True)
            dw = torch.zeros(rows, dy.shape[-1], dtype=dy.dtype)
            each = dy.repeat_interleave(tokens.shape[-1], dim=0)
            dw.index_add_(0, tokens.reshape(-1), each)
            by = dict(zip(groups.tolist(), counts.tolist(), strict=True))
            for number, group in enumerate(groups.tolist()):
                dw[group] /= by[entry(number, group, ordered)]
            return dw

        return twins(forward, backward, None)[0]

    return bag(lambda number, group, ordered: group), bag(
        lambda number, group, ordered: int(ordered[number])
    )
