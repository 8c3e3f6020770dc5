"""In-place writes, races, frozen inputs, state between calls, recomputation: formulas
that are right, and values that were overwritten."""

import numpy as np
import torch

from . import bug, normal, require, twins
from .elementwise import sigmoid
from .norms_and_losses import cross_entropy, tensors
from .rows import normalised, normalised_backward, over_rows, softmax
from .strides import OF_OTHERS


@bug(
    "linkedin/Liger-Kernel#254",
    "SwiGLU's backward wrote its gradients over its inputs, which other operations may have saved (intended, say the maintainers).",
    "da = dy·b·silu′(a) and db = dy·silu(a), in memory of their own",
    kind="in-place writes",
    inputs=normal((4, 6), (4, 6)),
    says="a was modified in place",
)
def swiglu_over_its_inputs():
    def forward(a, b):
        require(a.shape == b.shape, "a and b of one shape")
        return a * sigmoid(a) * b, (a, b)

    def backward(dy, saved):
        a, b = saved
        s = sigmoid(a)
        return dy * b * s * (1 + a * (1 - s)), dy * a * s

    def wrong(dy, saved):
        for array, gradient in zip(saved, backward(dy, saved), strict=True):
            array[...] = gradient
        return saved

    return twins(forward, backward, wrong)


@bug(
    "linkedin/Liger-Kernel#272",
    "A cross-entropy's forward stored the gradient in its input, which a softmax before it had saved as its output.",
    "the gradient has memory of its own",
    kind="in-place writes",
    inputs=lambda rng: (rng.standard_normal((5, 7)), rng.integers(0, 7, 5)),
    says="x was modified in place",
)
def loss_over_its_input():
    def storing(into):
        def forward(x, t):
            require(x.ndim == 2 and len(x) == len(t), "a label for each row")
            loss, g = cross_entropy(x, t)
            return loss.mean(), into(x, g / len(t))

        def backward(dy, g):
            return dy * g

        return twins(forward, backward, backward)[0]

    def over(x, g):
        x[...] = g
        return x

    return storing(lambda x, g: g), storing(over)


@bug(
    "ml-explore/mlx#3630",
    "LayerNorm's backward sums dy into db and writes dx over dy's memory; without a barrier the two overlapped in about one run of 18 (108 of 2000 in tillahoffmann/jax-mps#168).",
    "db = Σ dy before dx is written",
    kind="races",
    inputs=normal((4, 6), (6,), (6,)),
    seen="varied",
    gradcheck="never",
)
def layer_norm_without_barrier():
    class LayerNorm:
        def __init__(self, overlaps):
            self.overlaps = overlaps
            self.runs = 0

        def forward(self, x, w, b):
            x_hat, rstd = normalised(x)
            return x_hat * w + b, (x_hat, rstd, w)

        def backward(self, dy, saved):
            x_hat, rstd, w = saved
            self.runs += 1
            dx = normalised_backward(dy * w, x_hat, rstd)
            donated = dy.copy()
            if self.overlaps(self.runs):
                donated[0] = dx[0]
            return dx, over_rows(dy * x_hat), over_rows(donated)

    return LayerNorm(lambda run: False), LayerNorm(lambda run: run % 18 == 0)


@bug(
    "Dao-AILab/flash-attention#2481",
    "The kernel that sums o·dy could start before the one that writes dy had ended: about once in 3000 steps.",
    "the row sums take the whole dy",
    kind="races",
    inputs=normal((4, 3), (5, 3), (5, 2)),
    missed="check calls backward fewer than 3000 times",
    gradcheck="never",
)
def row_sums_too_early():
    class Attention:
        def __init__(self, early):
            self.early = early
            self.runs = 0

        def forward(self, q, k, v):
            require(q.ndim == 2, "q of two axes")
            p = softmax(q @ k.T / np.sqrt(q.shape[-1]))
            return p @ v, (q, k, v, p, p @ v)

        def backward(self, dy, saved):
            q, k, v, p, y = saved
            self.runs += 1
            written = dy.copy()
            if self.early(self.runs):
                written[-1] = 0
            sums = (y * written).sum(axis=-1, keepdims=True)
            ds = p * (dy @ v.T - sums) / np.sqrt(q.shape[-1])
            return ds @ k, ds.T @ q, p.T @ dy

    return Attention(lambda run: False), Attention(lambda run: run % 3000 == 0)


@bug(
    "jmschrei/cherimoya#25",
    "A dilated convolution's backward loaded, added, and stored dx from many lanes at once, which lost some of the terms.",
    "dx_{l−d}, dx_l, and dx_{l+d} are added to atomically",
    kind="races",
    inputs=normal((7,), (3,)),
)
def lost_updates():
    dilation = 2

    def places(length):
        at = np.arange(length) + dilation * np.arange(-1, 2)[:, None]
        return at, (at >= 0) & (at < length)

    def forward(x, w):
        require(x.ndim == 1 and w.shape == (3,), "one channel and three taps")
        at, inside = places(len(x))
        return (w[:, None] * np.where(inside, x[at % len(x)], 0)).sum(axis=0), (x, w)

    def adding(add):
        def backward(dy, saved):
            x, w = saved
            at, inside = places(len(x))
            dx = np.zeros_like(x)
            add(dx, at[inside], (w[:, None] * dy)[inside])
            return dx, (dy * np.where(inside, x[at % len(x)], 0)).sum(axis=1)

        return backward

    def lossy(dx, at, terms):
        dx[at] += terms  # of equal places the last one wins

    return twins(forward, adding(np.add.at), adding(lossy))


@bug(
    "NVIDIA/Megatron-LM#5981",
    "A rotary backward reordered the gradient from halves to pairs in place; numbers were overwritten before they were read.",
    "out_{2i} = in_i and out_{2i+1} = in_{i+d/2}, from a copy",
    kind="races",
    inputs=normal((3, 6)),
)
def reordered_in_place():
    def forward(x):
        require(x.shape[-1] % 2 == 0, "pairs of channels")
        return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1), None

    def reading(source):
        def backward(dy, _):
            dx = dy.copy()
            taken = source(dx)
            half = dy.shape[-1] // 2
            for i in range(half):
                first, second = taken[..., i].copy(), taken[..., i + half].copy()
                dx[..., 2 * i], dx[..., 2 * i + 1] = first, second
            return dx

        return backward

    return twins(forward, reading(np.copy), reading(lambda dx: dx))


@bug(
    "mgmalek/efficient_cross_entropy#1",
    "A frozen projection's gradient was never assigned and still multiplied by dy: UnboundLocalError.",
    "None where the projection requires no gradient",
    kind="frozen inputs",
    inputs=lambda rng: (*tensors((5, 3), (7, 3))(rng), torch.tensor([0, 6, 2, 1, 3])),
    says="fails when w does not require a gradient",
    gradcheck="never",
)
def frozen_projection():
    class Right(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, t):
            require(x.ndim == w.ndim == 2 and len(x) == len(t), "a label for each row")
            logp = (x @ w.T).log_softmax(dim=-1)
            rows = torch.arange(len(t))
            g = logp.exp()
            g[rows, t] = g[rows, t] - 1
            ctx.dx = (g @ w / len(t)).detach()
            ctx.dw = None
            if ctx.needs_input_grad[1]:
                ctx.dw = (g.T @ x / len(t)).detach()
            return -logp[rows, t].mean()

        @staticmethod
        def backward(ctx, dy):
            return dy * ctx.dx, None if ctx.dw is None else dy * ctx.dw, None

    class Wrong(torch.autograd.Function):
        forward = Right.forward

        @staticmethod
        def backward(ctx, dy):
            dx = dy * ctx.dx
            if ctx.dw is not None:
                dw = ctx.dw
            return dx, dy * dw, None

    return Right, Wrong


@bug(
    "linkedin/Liger-Kernel#1157",
    "For a frozen input no gradient is computed, and a fused loss with a bias detached the bias's all the same: AttributeError.",
    "the bias's gradient is saved where there is one",
    kind="frozen inputs",
    inputs=tensors((5, 3), (2, 3), (2,)),
    says="fails when x does not require a gradient",
    gradcheck="never",
)
def frozen_input_with_bias():
    def loss(saving):
        class Loss(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w, b):
                require(x.ndim == w.ndim == 2, "matrices")
                z = x @ w.T + b
                dx = dw = db = None
                if ctx.needs_input_grad[0]:
                    dx, dw, db = z @ w, z.T @ x, z.sum(dim=0)
                ctx.wanted = dx is not None
                ctx.saved = (x, z)
                ctx.save_for_backward(
                    *(None if part is None else part.detach() for part in (dx, dw)),
                    saving(b, db),
                )
                return (z * z).sum() / 2

            @staticmethod
            def backward(ctx, dy):
                dx, dw, db = ctx.saved_tensors
                if not ctx.wanted:
                    x, z = ctx.saved
                    return None, dy * (z.T @ x), dy * z.sum(dim=0)
                return dy * dx, dy * dw, dy * db

        return Loss

    return (
        loss(lambda b, db: None if db is None else db.detach()),
        loss(lambda b, db: None if b is None else db.detach()),
    )


@bug(
    "verl-project/verl#7235",
    "The backward asked the saved tensor whether it requires a gradient; the copy that flatten makes of a non-contiguous input does not.",
    "ctx.needs_input_grad decides",
    kind="frozen inputs",
    inputs=tensors((2, 3, 4), (5, 4)),
    telling=lambda rng: (
        tensors((3, 2, 4))(rng)[0].transpose(0, 1),
        *tensors((5, 4))(rng),
    ),
    telling_inputs="x of another order in memory",
    gradcheck="telling",
)
def flag_of_a_copy():
    def linear(wanted):
        class Linear(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w):
                require(x.ndim == 3 and w.ndim == 2, "x of three axes and a matrix")
                ctx.shape = x.shape
                rows = x.flatten(0, 1)
                ctx.rows, ctx.w = rows, w
                return (rows @ w.T).reshape(*x.shape[:2], -1)

            @staticmethod
            def backward(ctx, dy):
                dx, rows = None, dy.flatten(0, 1)
                if wanted(ctx):
                    dx = (rows @ ctx.w).reshape(ctx.shape)
                return dx, rows.T @ ctx.rows.detach()

        return Linear

    return (
        linear(lambda ctx: ctx.needs_input_grad[0]),
        linear(lambda ctx: ctx.rows.requires_grad),
    )


@bug(
    "torch/nn#1015",
    "A backward used the outputs that the last forward had left, whichever input that forward had.",
    "a backward uses what its own forward saved",
    kind="state between calls",
    inputs=normal((4, 6)),
    says="forward is called with other inputs",
    gradcheck="never",
)
def output_of_last_forward():
    class Sequential:
        def __init__(self, own):
            self.own = own
            self.h = None

        def forward(self, x):
            self.h = np.tanh(x)
            return self.h * self.h, self.h

        def backward(self, dy, h):
            h = h if self.own else self.h
            return dy * 2 * h * (1 - h * h)

    return Sequential(True), Sequential(False)


@bug(
    "lucidrains/rotary-embedding-torch#11",
    "Rotary angles were cached by the length alone: a second call with another offset got the first call's.",
    "the cache's key holds the offset too",
    kind="state between calls",
    inputs=lambda rng: (*normal((3, 4))(rng), np.array([2])),
    missed="every forward of a check has the same offset",
    gradcheck="never",
)
def angles_by_length():
    class Rope:
        def __init__(self, key):
            self.key = key
            self.cache = {}

        def forward(self, x, offset):
            length, channels = x.shape[-2:]
            require(channels % 2 == 0 and offset.shape == (1,), "pairs, and one offset")
            at = (channels, self.key(length, int(offset[0])))
            if at not in self.cache:
                positions = offset + np.arange(length)
                self.cache[at] = np.outer(positions, 0.1 ** np.arange(channels // 2))
            theta = self.cache[at]
            return self.turned(x, theta), theta

        def turned(self, x, theta):
            a, b, c, s = x[..., 0::2], x[..., 1::2], np.cos(theta), np.sin(theta)
            return np.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(x.shape)

        def backward(self, dy, theta):
            return self.turned(dy, -theta)

    return Rope(lambda length, offset: (length, offset)), Rope(
        lambda length, offset: length
    )


@bug(
    "openai/guided-diffusion#167",
    "A checkpoint ran the forward again without the random state of the first time: dropout drew another mask.",
    "the recomputation starts from the forward's random state",
    kind="recomputation",
    inputs=normal((4, 6), (6, 3)),
)
def recomputed_dropout():
    def hidden(x, generator):
        return x * (generator.random(x.shape) > 0.5) / 0.5

    class Checkpoint:
        def __init__(self, restored):
            self.restored = restored

        def forward(self, x, w):
            require(x.ndim == w.ndim == 2, "matrices")
            generator = np.random.default_rng(3)
            start = generator.bit_generator.state
            return hidden(x, generator) @ w, (x, w, generator, start)

        def backward(self, dy, saved):
            x, w, generator, start = saved
            if self.restored:
                generator.bit_generator.state = start
            state = generator.bit_generator.state
            h = hidden(x, generator)
            generator.bit_generator.state = state
            return hidden(dy @ w.T, generator), h.T @ dy

    return Checkpoint(True), Checkpoint(False)


@bug(
    "ooples/AiDotNet.Tensors#643",
    "A checkpoint's recomputed segment was differentiated with respect to its input alone: its weights received no gradient.",
    "dx and dw both come from the recomputation",
    kind="recomputation",
    inputs=normal((3, 4), (4, 2)),
)
def checkpoint_of_its_input():
    def forward(x, w):
        require(x.ndim == w.ndim == 2, "matrices")
        return np.tanh(x @ w), (x, w)

    def backward(dy, saved):
        x, w = saved
        dh = dy * (1 - np.tanh(x @ w) ** 2)
        return dh @ w.T, x.T @ dh

    def wrong(dy, saved):
        return backward(dy, saved)[0], np.zeros_like(saved[1])

    return twins(forward, backward, wrong)


@bug(
    "pytorch/pytorch#193758",
    "A kernel fills the array of noise that its backward reads; a hook that copies saved arrays was given it before the kernel ran.",
    "an array is saved after the kernel has filled it",
    kind="recomputation",
    inputs=normal((4, 6)),
)
def noise_saved_too_early():
    def rrelu(after):
        def forward(x):
            noise = np.full(x.shape, OF_OTHERS)
            early = noise.copy()
            noise[...] = np.random.default_rng(3).uniform(0.1, 0.3, x.shape)
            y = np.where(x < 0, noise * x, x)
            return y, (x, noise.copy() if after else early)

        def backward(dy, saved):
            x, noise = saved
            return dy * np.where(x < 0, noise, 1)

        return twins(forward, backward, backward)[0]

    return rrelu(True), rrelu(False)


@bug(
    "pytorch/pytorch#197887",
    "A compiled x·w saved a view of x without its version counter: changing x in place before the backward no longer raised an error.",
    "autograd saves x, and rejects a backward after x has changed",
    kind="in-place writes",
    inputs=tensors((3, 4), (4, 2)),
    missed="check never changes an input between forward and backward, the only case in which the counter matters",
    gradcheck="never",
)
def version_counter():
    def product(save, saved):
        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w):
                require(x.ndim == w.ndim == 2, "matrices")
                save(ctx, x, w)
                return x @ w

            @staticmethod
            def backward(ctx, dy):
                x, w = saved(ctx)
                return dy @ w.T, x.T @ dy

        return Product

    def uncounted(ctx, x, w):
        ctx.parts = x.data, w.data

    return product(
        lambda ctx, x, w: ctx.save_for_backward(x, w), lambda ctx: ctx.saved_tensors
    ), product(uncounted, lambda ctx: ctx.parts)
