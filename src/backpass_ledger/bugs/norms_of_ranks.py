"""Ranks that hold parts or copies of one gradient: norms for clipping that count a part
too often or not at all, and counts and sums over the wrong ranks. The ranks are the
first axis of an array."""

import numpy as np
import torch
import torch.nn.functional as F

from . import bug, normal, require, training, twins
from .norms_and_losses import derived, tensors
from .rows import softmax


def clipped(norm):
    """The gradients of a sharded weight, ``parts[rank, n]``, and of a weight that every
    rank has, ``whole[m]``, one after the other, scaled to a norm of at most 1."""

    def clip(parts, whole):
        require(parts.ndim == 2 and whole.ndim == 1, "parts of ranks, and a vector")
        return torch.cat([parts.flatten(), whole]) * (1 / norm(parts, whole)).clamp(
            max=1
        )

    return clip


def counted_once(parts, whole):
    return torch.sqrt((parts**2).sum() + (whole**2).sum())


def clipping(wrong):
    """Twins that clip by the norm of all elements, and by ``wrong(parts, whole)``."""
    return derived(clipped(counted_once)), derived(clipped(wrong))


@bug(
    "NVIDIA-NeMo/RL#3788",
    "The squared norms of all weights were summed over the tensor ranks, those of the weights that every rank has, too.",
    "norm² = Σ_r |shard_r|² + |whole|²",
    kind="parallel training",
    inputs=tensors((3, 4), (5,)),
    keywords={"operator": clipped(counted_once)},
    gradcheck="never",
)
def whole_weights_in_the_norm():
    return clipping(
        lambda parts, whole: torch.sqrt(
            (parts**2).sum() + len(parts) * (whole**2).sum()
        )
    )


@bug(
    "modelscope/twinkle#290",
    "The squared norm of a gradient that all data ranks have summed already was summed over the data ranks.",
    "norm² = |g|², on every rank by itself",
    kind="parallel training",
    inputs=tensors((3, 4)),
    keywords={"operator": training.clipped(training.total_norm)},
    gradcheck="never",
)
def norm_over_data_ranks():
    ranks = 2

    def summed_again(g):
        return training.total_norm(g) * ranks**0.5

    return derived(training.clipped(training.total_norm)), derived(
        training.clipped(summed_again)
    )


@bug(
    "NVIDIA/Megatron-LM#7227",
    "A tied table is on the first and on the last stage of a pipeline, and its gradient counted once on each.",
    "norm² = |table|² + Σ_stages |rest|²",
    kind="parallel training",
    inputs=tensors((2, 4), (5,)),
    keywords={"operator": clipped(counted_once)},
    gradcheck="never",
)
def tied_table_in_the_norm():
    return clipping(
        lambda stages, table: torch.sqrt((stages**2).sum() + 2 * (table**2).sum())
    )


@bug(
    "NVIDIA/Megatron-LM#7530",
    "The sinks of a rank's own heads were not marked as a shard: only the first rank's entered the norm.",
    "norm² = Σ_r |sinks_r|² + |rest|²",
    kind="parallel training",
    inputs=tensors((2, 3), (5,)),
    keywords={"operator": clipped(counted_once)},
    gradcheck="never",
)
def sinks_in_the_norm():
    return clipping(
        lambda sinks, rest: torch.sqrt((sinks[0] ** 2).sum() + (rest**2).sum())
    )


@bug(
    "deepspeedai/DeepSpeed#8478",
    "The ranks' norms were averaged, as if each had all experts; each has its own.",
    "norm² = Σ_r |experts_r|² + |rest|²",
    kind="parallel training",
    inputs=tensors((2, 4), (5,)),
    keywords={"operator": clipped(counted_once)},
    gradcheck="never",
)
def norms_of_experts_averaged():
    def averaged(experts, rest):
        return torch.sqrt((experts**2).sum(dim=-1) + (rest**2).sum()).mean()

    return clipping(averaged)


def mean_of_counted(backward):
    """An object whose forward is the mean of (x·w)² over the tokens to keep; the ranks
    have parts of one sequence. ``backward(dy, each, keep)`` is the gradient of w from
    that of each token's square."""

    def forward(x, w, keep):
        require(x.shape[:-1] == keep.shape, "tokens of ranks")
        z = x @ w
        return (keep * z * z).sum() / keep.sum(), (x, z, keep)

    def passed(dy, saved):
        x, z, keep = saved
        return backward(dy, keep[..., None] * 2 * z[..., None] * x, keep)

    return twins(forward, passed, passed)[0]


def over_all(dy, each, keep):
    return dy * each.sum(axis=(0, 1)) / keep.sum()


def drawn(rng):
    """Draws two ranks' tokens, of which they keep three and one."""
    keep = np.array([[True, True, True], [False, True, False]])
    return (*normal((2, 3, 4), (4,))(rng), keep)


@bug(
    "NVIDIA/Megatron-LM#7513",
    "Each context rank divided by the number of its own counted tokens, and the ranks' gradients were averaged.",
    "dw = Σ_r Σ dw_token/n with n over all context ranks",
    kind="parallel training",
    inputs=drawn,
    keywords={"constants": ("x",)},
)
def count_of_context_rank():
    def wrong(dy, each, keep):
        counts = np.maximum(keep.sum(axis=1), 1)
        return dy * (each.sum(axis=1) / counts[:, None]).mean(axis=0)

    return mean_of_counted(over_all), mean_of_counted(wrong)


@bug(
    "NVIDIA/Megatron-LM#906",
    "The loss was multiplied by the number of context ranks, and the gradients were then divided by that of the data ranks alone.",
    "what multiplies the loss divides the gradients again",
    kind="parallel training",
    inputs=drawn,
    keywords={"constants": ("x",)},
    says="got = 2 × reference",
)
def loss_times_context_ranks():
    def wrong(dy, each, keep):
        return over_all(dy * len(keep), each, keep)

    return mean_of_counted(over_all), mean_of_counted(wrong)


@bug(
    "NVIDIA/Megatron-LM#7481",
    "The ranks' counts were summed in the memory of the rank's own count, which was read as the own one afterwards.",
    "own and summed counts are two arrays",
    kind="in-place writes",
    inputs=drawn,
    keywords={"constants": ("x",)},
)
def own_count_overwritten():
    def weighing(counted):
        def backward(dy, each, keep):
            own = keep.sum(axis=1)
            means = each.sum(axis=1) / np.maximum(own, 1)[:, None]
            total = counted(own)
            return dy * (own[:, None] * means).sum(axis=0) / total

        return backward

    def in_place(own):
        own[...] = own.sum()
        return own[0]

    return mean_of_counted(weighing(lambda own: own.sum())), mean_of_counted(
        weighing(in_place)
    )


@bug(
    "EleutherAI/gpt-neox#1257",
    "Under sequence parallelism the norm's weight gradient was not summed: each rank kept the sum over its own tokens.",
    "dw = Σ_r dw_r on every rank",
    kind="parallel training",
    inputs=normal((2, 3, 6), (6,)),
)
def norm_weight_not_summed():
    def forward(x, w):
        require(x.ndim == 3 and w.ndim == 1, "ranks of tokens")
        rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
        return x * rstd * w, (x * rstd, rstd, w)

    def reducing(reduced):
        def backward(dy, saved):
            x_hat, rstd, w = saved
            g = dy * w
            dx = rstd * (g - x_hat * (g * x_hat).mean(axis=-1, keepdims=True))
            return dx, reduced((dy * x_hat).sum(axis=1))

        return backward

    return twins(
        forward, reducing(lambda dw: dw.sum(axis=0)), reducing(lambda dw: dw[0])
    )


@bug(
    "NVIDIA/Megatron-LM#7452",
    "Logits that every rank had gathered went into a cross-entropy that takes them for a rank's own columns: each counted once a rank.",
    "the scores of all columns are counted once: loss = log Σ eˣ − x_t",
    kind="parallel training",
    inputs=lambda rng: (rng.standard_normal((5, 6)), rng.integers(0, 6, 5)),
    keywords={"operator": lambda x, t: F.cross_entropy(x, t, reduction="none")},
)
def gathered_logits():
    def counting(copies):
        def forward(x, t):
            require(x.ndim == 2 and t.shape == x.shape[:1], "a label for each token")
            top = x.max(axis=-1)
            total = copies * np.exp(x - top[:, None]).sum(axis=-1)
            return np.log(total) + top - x[np.arange(len(t)), t], (x, t)

        def backward(dy, saved):
            x, t = saved
            owned = t < x.shape[-1] // copies  # the first rank has all labels
            dx = softmax(x) / copies
            dx[np.arange(len(t)), t] -= owned
            return dy[:, None] * dx

        return twins(forward, backward, backward)[0]

    return counting(1), counting(2)
