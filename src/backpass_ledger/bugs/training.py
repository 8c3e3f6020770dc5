"""Several ranks, several micro-batches, clipping, and optimisers: mistakes in how parts
of a gradient are put together. The ranks, or the micro-batches, are an axis of an
array."""

import numpy as np
import torch

from . import bug, normal, require, twins
from .norms_and_losses import derived, tensors
from .places import embedding
from .rows import normalised, over_rows, softmax


@bug(
    "pytorch/pytorch#36382",
    "SyncBatchNorm averaged the ranks' mean gradients with equal weight, whatever their numbers of samples.",
    "mean dy and mean dy·x̂ are taken over the samples of all ranks",
    kind="parallel training",
    inputs=normal((4, 3), (4, 3), (3,)),
    telling=normal((5, 3), (2, 3), (3,)),
    telling_inputs="ranks with different numbers of samples",
    seen="varied",
    gradcheck="telling",
)
def sync_batch_norm():
    def forward(x0, x1, w):
        require(x0.ndim == x1.ndim == 2, "two ranks' rows")
        x_hat, rstd = normalised(np.concatenate([x0, x1]), axis=0)
        return x_hat * w, (x_hat, rstd, w, len(x0))

    def with_mean(mean):
        def backward(dy, saved):
            x_hat, rstd, w, n = saved
            g = dy * w
            dx = rstd * (g - mean(g, n) - x_hat * mean(g * x_hat, n))
            return dx[:n], dx[n:], over_rows(dy * x_hat)

        return backward

    return twins(
        forward,
        with_mean(lambda rows, n: rows.mean(axis=0)),
        with_mean(lambda rows, n: (rows[:n].mean(axis=0) + rows[n:].mean(axis=0)) / 2),
    )


def gathered(select):
    """All-gather: every rank receives every rank's x. ``select(dy)`` is the gradient of
    x[rank]; dy is indexed by receiver, sender."""

    def forward(x):
        return np.broadcast_to(x, (len(x), *x.shape)).copy(), None

    return twins(forward, lambda dy, _: select(dy), None)[0]


@bug(
    "pytorch/xla#5784",
    "All-gather's backward took its own slice of its own dy and left out the other ranks'.",
    "dx_r = Σ_s dy_s[r]",
    kind="parallel training",
    inputs=normal((3, 2, 4)),
)
def gather_of_own_slice():
    return gathered(lambda dy: dy.sum(axis=0)), gathered(
        lambda dy: np.stack([dy[rank, rank] for rank in range(len(dy))])
    )


@bug(
    "cellarium-ai/cellarium-ml#184",
    "A gather layer's backward selected each rank's slice before it reduced, so different slices were added up.",
    "dx_r = Σ_s dy_s[r], not Σ_s dy_s[s]",
    kind="parallel training",
    inputs=normal((3, 2, 4)),
)
def gather_selects_then_reduces():
    def wrong(dy):
        own = np.stack([dy[rank, rank] for rank in range(len(dy))])
        return np.broadcast_to(own.sum(axis=0), own.shape).copy()

    return gathered(lambda dy: dy.sum(axis=0)), gathered(wrong)


@bug(
    "pytorch/pytorch#120582",
    "All-gather's backward expected the reduce-scatter in its own buffer; for a buffer that is not contiguous the sum went to another and was lost.",
    "dx is what the reduce-scatter returns",
    kind="strides",
    inputs=tensors((3, 2, 4)),
    gradcheck="never",
)
def reduce_scatter_lost():
    def reduce_scatter(out, dy):
        if not out.is_contiguous():
            out = out.contiguous()
        return out.copy_(dy.sum(dim=0))

    def gather(returned):
        def forward(x):
            return x.expand(len(x), *x.shape).clone(), None

        def backward(dy, _):
            unwritten = torch.full_like(dy[0], 1e3)  # in dy's order of memory
            return returned(unwritten, reduce_scatter(unwritten, dy))

        return twins(forward, backward, None)[0]

    return gather(lambda buffer, result: result), gather(lambda buffer, result: buffer)


@bug(
    "EleutherAI/gpt-neox#1259",
    "Under sequence parallelism the norm's weight gradient was averaged over the ranks.",
    "dw = Σ_r dw_r",
    kind="parallel training",
    inputs=normal((3, 2, 4), (4,)),
    says="got = ⅓ × reference",
)
def norm_weight_averaged():
    def forward(x, w):
        require(x.ndim == 3, "ranks of tokens")
        rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
        return x * rstd * w, (x * rstd, rstd, w)

    def reducing(reduced):
        def backward(dy, saved):
            x_hat, rstd, w = saved
            g = dy * w
            dx = rstd * (g - x_hat * (g * x_hat).mean(axis=-1, keepdims=True))
            return dx, reduced((dy * x_hat).sum(axis=1), axis=0)

        return backward

    return twins(forward, reducing(np.sum), reducing(np.mean))


def columns(x):
    """The logits x[rank, n, V/ranks] as x[n, V], and the way back."""
    return np.concatenate(list(x), axis=-1), lambda dx: np.stack(
        np.split(dx, len(x), axis=-1)
    )


@bug(
    "NVIDIA/Megatron-LM#7464",
    "Vocabulary-parallel label smoothing took each rank's number of columns for the vocabulary's, in the loss and in the gradient; here in the gradient alone.",
    "dx = dy·(p − (1 − s′)·onehot − s′/V) with s′ = s·V/(V − 1) and V all columns",
    kind="parallel training",
    inputs=lambda rng: (rng.standard_normal((2, 5, 3)), rng.integers(0, 6, 5)),
)
def smoothing_by_rank():
    def forward(x, t, smoothing=0.1):
        require(x.ndim == 3 and x.shape[1] == len(t), "a label for each token")
        whole, _ = columns(x)
        top = whole.max(axis=-1, keepdims=True)
        logp = whole - top - np.log(np.exp(whole - top).sum(axis=-1, keepdims=True))
        v = whole.shape[-1]
        s = smoothing * v / (v - 1)
        y = -(1 - s) * logp[np.arange(len(t)), t] - s * logp.mean(axis=-1)
        return y, (x, t, smoothing)

    def of_size(vocabulary):
        def backward(dy, saved):
            x, t, smoothing = saved
            whole, split = columns(x)
            v = vocabulary(x)
            s = smoothing * v / (v - 1)
            dx = softmax(whole) - s / v
            dx[np.arange(len(t)), t] -= 1 - s
            return split(dy[:, None] * dx)

        return backward

    return twins(
        forward,
        of_size(lambda x: x.shape[0] * x.shape[-1]),
        of_size(lambda x: x.shape[-1]),
    )


@bug(
    "modelscope/ms-swift#9947",
    "A label's log-probability was summed over the ranks by an operation that autograd does not see: ranks without the label received no gradient.",
    "dx = dy·(onehot − p) in every rank's columns",
    kind="parallel training",
    inputs=lambda rng: (rng.standard_normal((2, 5, 3)), rng.integers(0, 6, 5)),
)
def log_probability_by_rank():
    def forward(x, t):
        require(x.ndim == 3 and x.shape[1] == len(t), "a label for each token")
        whole, _ = columns(x)
        top = whole.max(axis=-1)
        lse = np.log(np.exp(whole - top[:, None]).sum(axis=-1)) + top
        return whole[np.arange(len(t)), t] - lse, (x, t)

    def backward(dy, saved):
        x, t = saved
        whole, split = columns(x)
        dx = -softmax(whole)
        dx[np.arange(len(t)), t] += 1
        return split(dy[:, None] * dx)

    def wrong(dy, saved):
        x, t = saved
        owner = t // x.shape[-1] == np.arange(len(x))[:, None]
        return backward(dy, saved) * owner[..., None]

    return twins(forward, backward, wrong)


@bug(
    "pytorch/torchtitan#4637",
    "With a table split over ranks, every rank cleared the row of its shard that has the padding token's number.",
    "the padding token's row is cleared on the rank that owns it",
    kind="embeddings",
    inputs=lambda rng: (np.array([1, 0, 2, 4, 3, 4, 1]), rng.standard_normal((6, 3))),
    keywords={
        "operator": lambda tokens, w: torch.nn.functional.embedding(
            tokens, w, padding_idx=1
        ),
        "conventions": {
            "w": "the padding token is not trained: its row's gradient is 0"
        },
    },
    gradcheck="never",
)
def padding_row_of_each_shard():
    padding, shards = 1, 2

    def clearing(cleared):
        def row_gradient(dy, tokens, rows):
            dw = np.zeros((rows, dy.shape[-1]))
            np.add.at(dw, tokens, dy)
            dw[cleared(rows // shards)] = 0
            return dw

        return embedding(row_gradient)

    return clearing(lambda size: padding), clearing(
        lambda size: padding + size * np.arange(shards)
    )


@bug(
    "NVIDIA/Megatron-LM#5956",
    "An expert's gradient holds the tokens of all ranks and was divided by the data-parallel size alone: too large by the expert-parallel size.",
    "dw is divided by all ranks, as the loss is",
    kind="parallel training",
    inputs=normal((4, 3, 2), (2, 2)),
    says="got = 2 × reference",
)
def expert_gradient_by_rank():
    expert_parallel = 2

    def forward(x, w):
        require(x.ndim == 3 and w.ndim == 2, "ranks of tokens, and a row per expert")
        return (x[..., None, :] * w).sum(axis=1).mean(axis=0), (x, w)

    def dividing(ranks):
        def backward(dy, saved):
            x, w = saved
            dx = np.broadcast_to((dy * w).sum(axis=0) / len(x), x.shape).copy()
            return dx, dy * x.sum(axis=(0, 1)) / ranks(x)

        return backward

    return twins(forward, dividing(len), dividing(lambda x: len(x) // expert_parallel))


@bug(
    "ml-explore/mlx-lm#1413",
    "Accumulation averaged the micro-batches' gradients, each a mean over its own tokens, with equal weight.",
    "dw = Σ n_k·dw_k/Σ n_k over micro-batches of n_k tokens",
    kind="accumulation and optimisers",
    inputs=lambda rng: (
        *normal((2, 3, 4), (4,))(rng),
        np.array([[True, True, True], [True, False, False]]),
    ),
    keywords={"constants": ("x",)},
)
def mean_of_means():
    def forward(x, w, keep):
        require(x.shape[:-1] == keep.shape, "tokens of micro-batches")
        z = x @ w
        return (keep * z * z).sum() / keep.sum(), (x, z, keep)

    def weighing(weights):
        def backward(dy, saved):
            x, z, keep = saved
            parts = np.einsum("kn,knd->kd", keep * 2 * z, x)
            counts = keep.sum(axis=1)
            means = parts / np.maximum(counts, 1)[:, None]
            return dy * (weights(counts)[:, None] * means).sum(axis=0)

        return backward

    return twins(
        forward,
        weighing(lambda counts: counts / counts.sum()),
        weighing(lambda counts: np.full(len(counts), 1 / len(counts))),
    )


@bug(
    "NVIDIA/Megatron-LM#3023",
    "The data-parallel mean was taken of the sum so far, not of the new part: the first micro-batch was divided again in each step.",
    "G = Σ_k g_k/R",
    kind="accumulation and optimisers",
    inputs=normal((3, 2, 4), (4,)),
)
def sum_divided_again():
    def forward(x, w):
        require(x.ndim == 3 and w.ndim == 1, "micro-batches of ranks")
        return ((x @ w) ** 3).sum() / x.shape[1], (x, w)

    def accumulating(step):
        def backward(dy, saved):
            x, w = saved
            each = 3 * dy * ((x @ w) ** 2)[..., None]
            total = np.zeros_like(w)
            for part in (each * x).sum(axis=1):
                total = step(total, part, x.shape[1])
            return each * w / x.shape[1], total

        return backward

    return twins(
        forward,
        accumulating(lambda total, part, ranks: total + part / ranks),
        accumulating(lambda total, part, ranks: total / ranks + part),
    )


def clipped(norm):
    """g[parts, n], scaled down to ``norm(g)`` of at most 1."""

    def clip(g):
        require(g.ndim == 2, "parts of a gradient")
        return g * (1 / norm(g)).clamp(max=1)

    return clip


def total_norm(g):
    return (g * g).sum().sqrt()


@bug(
    "paiml/entrenar#311",
    "Clipping squared what was already a sum of squares: the scale was c/√Σ_b (Σ g²)².",
    "the scale is min(1, c/√Σ g²)",
    kind="accumulation and optimisers",
    inputs=tensors((3, 4)),
    keywords={"operator": clipped(total_norm)},
    gradcheck="never",
)
def clipping_by_fourth_powers():
    return derived(clipped(total_norm)), derived(
        clipped(lambda g: ((g * g).sum(dim=-1) ** 2).sum().sqrt())
    )


@bug(
    "pytorch/torchtitan#649",
    "Each pipeline stage clipped its gradients by its own norm.",
    "one scale, from the norm over all stages",
    kind="accumulation and optimisers",
    inputs=tensors((3, 4)),
    keywords={"operator": clipped(total_norm)},
    gradcheck="never",
)
def clipping_by_stage():
    return derived(clipped(total_norm)), derived(
        clipped(lambda g: (g * g).sum(dim=-1, keepdim=True).sqrt())
    )


@bug(
    "TorchSSL/TorchSSL#59",
    "Gradients were clipped while still multiplied by the loss scale.",
    "the norm is that of the unscaled gradient",
    kind="accumulation and optimisers",
    inputs=tensors((3, 4)),
    keywords={"operator": clipped(total_norm)},
    gradcheck="never",
)
def clipping_before_unscaling():
    scale = 1024.0

    def scaled_first(g):
        return clipped(total_norm)(g * scale) / scale

    return derived(clipped(total_norm)), derived(scaled_first)


def two_steps(kept):
    """What diffGrad adds to the weights in the second of two steps; ``kept(first,
    second)`` is the gradient that it remembers of the first."""

    def step(first, second):
        require(first.shape == second.shape, "two gradients of one shape")
        m = (0.9 * 0.1 * first + 0.1 * second) / (1 - 0.9**2)
        v = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
        friction = torch.sigmoid((kept(first, second) - second).abs())
        return -0.1 * friction * m / (v.sqrt() + 1e-8)

    return step


@bug(
    "shivram1987/diffGrad#2",
    "The optimiser kept a reference to the gradient, and the next backward wrote into it: the difference from the last gradient was always 0.",
    "the last gradient is copied",
    kind="accumulation and optimisers",
    inputs=tensors((3, 4), (3, 4)),
    keywords={"operator": two_steps(lambda first, second: first)},
    gradcheck="never",
)
def last_gradient_by_reference():
    return derived(two_steps(lambda first, second: first)), derived(
        two_steps(lambda first, second: second)
    )


def momentum_after(dtype):
    """Muon's update before the iteration, and the momentum that it leaves behind; the
    update is normalised in place, in ``dtype``."""

    def step(momentum, g):
        require(momentum.ndim == 2, "matrices")
        kept = 0.9 * momentum + 0.1 * g
        update = kept.to(dtype)
        update /= update.clone().norm() + 1e-7
        return torch.stack([update.to(g.dtype), kept])

    return step


def copied_step(momentum, g):
    kept = 0.9 * momentum + 0.1 * g
    return torch.stack([kept / (kept.norm() + 1e-7), kept])


@bug(
    "pytorch/pytorch#194664",
    "Muon casts its momentum and normalises the result in place: a momentum that has the dtype already is not copied, and is itself normalised.",
    "the cast copies",
    kind="in-place writes",
    inputs=tensors((3, 4), (3, 4)),
    keywords={"operator": copied_step},
    gradcheck="never",
)
def momentum_normalised():
    return derived(copied_step), derived(momentum_after(torch.float64))
