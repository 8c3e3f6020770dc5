"""Norms, softmax and losses: mistakes along a row."""

import numpy as np
import torch
import torch.nn.functional as F

from . import bug, normal, require, twins


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def normalised(x, axis=-1, eps=1e-5):
    """x without mean, of variance 1, and the reciprocal of its standard deviation."""
    centred = x - x.mean(axis=axis, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=axis, keepdims=True) + eps)
    return centred * rstd, rstd


def normalised_backward(dx_hat, x_hat, rstd, axis=-1):
    along = dx_hat.mean(axis=axis, keepdims=True) + x_hat * (dx_hat * x_hat).mean(
        axis=axis, keepdims=True
    )
    return rstd * (dx_hat - along)


def over_rows(terms):
    """The sum over every axis but the last."""
    return terms.sum(axis=tuple(range(terms.ndim - 1)))


@bug(
    "microsoft/DeepSpeed#692",
    "LayerNorm recovered x̂ from y with γ and β of another column: of the thread's row within its tile.",
    "x̂ = (y − β_j)/γ_j in column j",
    kind="norms",
    inputs=normal((4, 8), (8,), (8,)),
)
def invertible_layer_norm():
    def forward(x, w, b):
        require(x.ndim == 2, "x of two axes")
        x_hat, rstd = normalised(x)
        y = x_hat * w + b
        return y, (y, w, b, rstd)

    def with_column(column):
        def backward(dy, saved):
            y, w, b, rstd = saved
            rows, columns = np.indices(y.shape)
            at = column(rows, columns)
            return (
                normalised_backward(dy * w, (y - b) / w, rstd),
                (dy * (y - b[at]) / w[at]).sum(axis=0),
                dy.sum(axis=0),
            )

        return backward

    tile = 4
    return twins(
        forward,
        with_column(lambda row, column: column),
        with_column(lambda row, column: column // tile * tile + row % tile),
    )


@bug(
    "Oneflow-Inc/oneflow#6149",
    "LayerNorm returned the gradients of γ and β in each other's place.",
    "dγ = Σ dy·x̂, dβ = Σ dy",
    kind="norms",
    inputs=normal((4, 6), (6,), (6,)),
)
def layer_norm_swapped():
    def forward(x, w, b):
        x_hat, rstd = normalised(x)
        return x_hat * w + b, (x_hat, rstd, w)

    def backward(dy, saved):
        x_hat, rstd, w = saved
        return (
            normalised_backward(dy * w, x_hat, rstd),
            over_rows(dy * x_hat),
            over_rows(dy),
        )

    def wrong(dy, saved):
        dx, dw, db = backward(dy, saved)
        return dx, db, dw

    return twins(forward, backward, wrong)


@bug(
    "tenstorrent/tt-metal#56202",
    "GroupNorm's γ read mean and rstd of group c mod G; channel c belongs to group c // (C/G).",
    "dγ_c = Σ dy·(x − mean_g)·rstd_g with g = c // (C/G)",
    kind="norms",
    inputs=normal((2, 4, 5), (4,)),
)
def group_norm():
    groups = 2

    def forward(x, w):
        require(
            x.ndim == 3 and x.shape[1] % groups == 0,
            "x of three axes, its channels in whole groups",
        )
        x_hat, rstd = normalised(x.reshape(len(x), groups, -1))
        return x_hat.reshape(x.shape) * w[:, None], (x, x_hat, rstd, w)

    def with_group(group):
        def backward(dy, saved):
            x, x_hat, rstd, w = saved
            n, c, _ = x.shape
            dx = normalised_backward(
                (dy * w[:, None]).reshape(x_hat.shape), x_hat, rstd
            ).reshape(x.shape)
            g = group(np.arange(c), c // groups)
            mean = x.reshape(n, groups, -1).mean(axis=-1)[:, g, None]
            return dx, (dy * (x - mean) * rstd[:, g]).sum(axis=(0, 2))

        return backward

    return twins(
        forward,
        with_group(lambda c, size: c // size),
        with_group(lambda c, size: c % groups),
    )


@bug(
    "pytorch/xla#3361",
    "BatchNorm in evaluation mode went backwards as in training, through the batch's mean and variance.",
    "dx = dy·w/√(running variance + ε)",
    kind="norms",
    inputs=lambda rng: (*normal((6, 3), (3,), (3,), (3,))(rng), rng.uniform(0.5, 2, 3)),
)
def batch_norm_in_evaluation():
    def forward(x, w, b, mean, var):
        rstd = 1 / np.sqrt(var + 1e-5)
        x_hat = (x - mean) * rstd
        return x_hat * w + b, (x_hat, rstd, w)

    def backward(dy, saved):
        x_hat, rstd, w = saved
        return dy * w * rstd, over_rows(dy * x_hat), over_rows(dy)

    def wrong(dy, saved):
        x_hat, rstd, w = saved
        return normalised_backward(dy * w, x_hat, rstd, axis=0), *backward(dy, saved)[
            1:
        ]

    return twins(forward, backward, wrong, CONSTANTS=("mean", "var"))


@bug(
    "pytorch/pytorch#64100",
    "BatchNorm's backward read x in the memory order of dy where dy lies channels-last and x does not.",
    "each array is read by its own strides",
    kind="strides",
    inputs=normal((2, 3, 4), (3,)),
    gradcheck="never",
)
def batch_norm_of_permuted_dy():
    def forward(x, w):
        require(x.ndim == 3, "x of three axes")
        x_hat, rstd = normalised(x, axis=(0, 2))
        return x_hat * w[:, None], (x_hat, rstd, w)

    def backward(dy, saved):
        x_hat, rstd, w = saved
        return normalised_backward(dy * w[:, None], x_hat, rstd, axis=(0, 2)), (
            dy * x_hat
        ).sum(axis=(0, 2))

    def wrong(dy, saved):
        x_hat, rstd, w = saved
        n, c, length = x_hat.shape
        if dy.strides[1] == dy.itemsize and dy.strides[2] == c * dy.itemsize:
            x_hat = x_hat.reshape(n, length, c).transpose(0, 2, 1)
        return backward(dy, (x_hat, rstd, w))

    return twins(forward, backward, wrong)


@bug(
    "unslothai/unsloth#4533",
    "RMSNorm's Function returned None for its weight, which then was never trained.",
    "dw = Σ dy·x/rms over the rows",
    kind="norms",
    inputs=lambda rng: tuple(map(torch.tensor, normal((4, 6), (6,))(rng))),
)
def rms_norm_without_weight():
    def rms_norm(weight_gradient):
        class RMSNorm(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w):
                rstd = torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6)
                ctx.save_for_backward(x, w, rstd)
                return x * rstd * w

            @staticmethod
            def backward(ctx, dy):
                x, w, rstd = ctx.saved_tensors
                x_hat, dx_hat = x * rstd, dy * w
                dx = rstd * (
                    dx_hat - x_hat * (dx_hat * x_hat).mean(dim=-1, keepdim=True)
                )
                return dx, (dy * x_hat).sum(dim=0) if weight_gradient else None

        return RMSNorm

    return rms_norm(True), rms_norm(False)


@bug(
    "linkedin/Liger-Kernel#1253",
    "GroupNorm in float16 rounded each part of dw to bfloat16 before adding it up.",
    "the parts keep the buffer's dtype",
    kind="low precision",
    inputs=lambda rng: tuple(map(torch.tensor, normal((3, 4, 5), (4,))(rng))),
    telling=lambda rng: tuple(
        torch.tensor(v, dtype=torch.float16) for v in normal((3, 4, 64), (4,))(rng)
    ),
    telling_inputs="float16",
    keywords={"operator": lambda x, w: F.group_norm(x, 1, w, eps=1e-5)},
    seen="telling",
    gradcheck="never",
)
def group_norm_in_float16():
    def group_norm(kept):
        def forward(x, w):
            require(x.ndim == 3, "x of three axes")
            wide = x.double() if x.dtype == torch.float64 else x.float()
            rows = wide.flatten(1)
            centred = rows - rows.mean(dim=-1, keepdim=True)
            rstd = torch.rsqrt((centred * centred).mean(dim=-1, keepdim=True) + 1e-5)
            x_hat = (centred * rstd).reshape(x.shape)
            return (x_hat * w[:, None]).to(x.dtype), (x_hat, rstd, w)

        def backward(dy, saved):
            x_hat, rstd, w = saved
            wide = dy.to(x_hat.dtype)
            dx_hat, rows = (wide * w[:, None]).flatten(1), x_hat.flatten(1)
            along = dx_hat.mean(dim=-1, keepdim=True) + rows * (dx_hat * rows).mean(
                dim=-1, keepdim=True
            )
            dw = torch.zeros_like(x_hat[0, :, 0])
            for part in (wide * x_hat).sum(dim=-1):
                dw = dw + part.to(kept(dy.dtype))
            dx = (rstd * (dx_hat - along)).reshape(dy.shape).to(dy.dtype)
            return dx, dw.to(w.dtype)

        return twins(forward, backward, backward)[0]

    return group_norm(lambda dtype: dtype), group_norm(
        lambda dtype: torch.bfloat16 if dtype == torch.float16 else dtype
    )


@bug(
    "NVIDIA/apex#1430",
    "A fused softmax wrote its gradient over the dy it was given.",
    "dx = scale·y·(dy − Σ dy·y), in memory of its own",
    kind="in-place writes",
    inputs=normal((4, 6)),
    says="dy was modified in place",
    gradcheck="never",
)
def softmax_over_dy():
    scale = 0.5

    def forward(x):
        y = softmax(scale * x)
        return y, y

    def backward(dy, y):
        return scale * y * (dy - (dy * y).sum(axis=-1, keepdims=True))

    def wrong(dy, y):
        dy[...] = backward(dy, y)
        return dy

    return twins(forward, backward, wrong)


@bug(
    "deeplearning4j/libnd4j#440",
    "Softmax's derivative was y·(1 − y), the diagonal of its Jacobian.",
    "dx = y·(dy − Σ dy·y)",
    kind="softmax and losses",
    inputs=normal((4, 6)),
)
def softmax_diagonal():
    def forward(x):
        y = softmax(x)
        return y, y

    def backward(dy, y):
        return y * (dy - (dy * y).sum(axis=-1, keepdims=True))

    return twins(forward, backward, lambda dy, y: dy * y * (1 - y))


@bug(
    "mlpack/mlpack#2360",
    "LogSoftmax's backward added the gradient to the probabilities.",
    "dx = dy − exp(y)·Σ dy",
    kind="softmax and losses",
    inputs=normal((4, 6)),
)
def log_softmax():
    def forward(x):
        shifted = x - x.max(axis=-1, keepdims=True)
        y = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return y, y

    def backward(dy, y):
        return dy - np.exp(y) * dy.sum(axis=-1, keepdims=True)

    return twins(forward, backward, lambda dy, y: np.exp(y) + dy)


@bug(
    "pytorch/pytorch#31829",
    "The gradient of logsumexp is exp(x − y): −∞ minus −∞ where every x is −∞.",
    "dx = 0 in a row of −∞",
    kind="softmax and losses",
    inputs=normal((3, 4)),
    telling=lambda rng: (
        np.vstack([rng.standard_normal((2, 4)), np.full((1, 4), -np.inf)]),
    ),
    telling_inputs="a row of −∞",
    seen="telling",
    gradcheck="never",
)
def logsumexp():
    def forward(x):
        top = x.max(axis=-1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0)
        with np.errstate(divide="ignore"):
            y = np.log(np.exp(x - top).sum(axis=-1)) + top[..., 0]
        return y, (x, y)

    def wrong(dy, saved):
        x, y = saved
        with np.errstate(invalid="ignore"):
            return dy[..., None] * np.exp(x - y[..., None])

    def backward(dy, saved):
        return np.where(np.isfinite(saved[1])[..., None], wrong(dy, saved), 0)

    return twins(forward, backward, wrong)


@bug(
    "PaddlePaddle/Paddle#28622",
    "Rows whose label is ignored had loss 0 and the gradient of any other row.",
    "dx = 0 in an ignored row",
    kind="softmax and losses",
    inputs=lambda rng: (rng.standard_normal((6, 5)), np.array([0, 1, 2, 1, 3, 4])),
)
def ignored_rows():
    ignored = 1

    def forward(x, t):
        rows = np.arange(len(t))
        top = x.max(axis=-1)
        loss = np.log(np.exp(x - top[:, None]).sum(axis=-1)) + top - x[rows, t]
        return np.where(t == ignored, 0, loss), (x, t)

    def wrong(dy, saved):
        x, t = saved
        dx = softmax(x)
        dx[np.arange(len(t)), t] -= 1
        return dx * dy[:, None]

    def backward(dy, saved):
        return np.where((saved[1] == ignored)[:, None], 0, wrong(dy, saved))

    return twins(forward, backward, wrong)


@bug(
    "mlpack/mlpack#1365",
    "The gradient of the Kullback–Leibler divergence was summed over the elements.",
    "dx = dy·(log x − log t + 1), element by element",
    kind="softmax and losses",
    inputs=lambda rng: (rng.uniform(0.2, 1, (3, 4)), rng.uniform(0.2, 1, (3, 4))),
)
def divergence():
    def forward(x, t):
        return (x * (np.log(x) - np.log(t))).sum(), (x, t)

    def backward(dy, saved):
        x, t = saved
        return dy * (np.log(x) - np.log(t) + 1)

    def wrong(dy, saved):
        return np.full(saved[0].shape, backward(dy, saved).sum())

    return twins(forward, backward, wrong, CONSTANTS=("t",))


@bug(
    "HIPS/autograd#412",
    "The normal density's gradient with respect to the covariance had the wrong sign.",
    "dΣ = dy·½(Σ⁻¹(x − μ)(x − μ)ᵀΣ⁻¹ − Σ⁻¹)ᵀ",
    kind="softmax and losses",
    inputs=lambda rng: (*normal((3,), (3,))(rng), np.cov(rng.standard_normal((3, 9)))),
)
def normal_density():
    def forward(x, mean, covariance):
        inverse = np.linalg.inv(covariance)
        d = x - mean
        y = -(d @ inverse @ d + np.log(np.linalg.det(2 * np.pi * covariance))) / 2
        return y, (inverse, d)

    def with_sign(sign):
        def backward(dy, saved):
            inverse, d = saved
            dx = -dy * (inverse + inverse.T) @ d / 2
            return (
                dx,
                -dx,
                sign * dy * (inverse @ np.outer(d, d) @ inverse - inverse).T / 2,
            )

        return backward

    return twins(forward, with_sign(1), with_sign(-1))


@bug(
    "jingyaogong/minimind#858",
    "A router's weights were divided by their sum after the choice, which for one expert makes them 1 and their gradient 0.",
    "one chosen weight is not divided by itself",
    kind="experts",
    inputs=normal((4, 6)),
    says="vacuous",
    gradcheck="never",
)
def router_of_one():
    def routed(divided):
        def forward(x):
            p = softmax(x)
            chosen = p.max(axis=-1)
            return chosen / (chosen if divided else 1), (
                p,
                p.argmax(axis=-1)[..., None],
            )

        def backward(dy, saved):
            p, at = saved
            dp = np.zeros_like(p)
            np.put_along_axis(dp, at, 0 if divided else dy[..., None], axis=-1)
            return p * (dp - (dp * p).sum(axis=-1, keepdims=True))

        return twins(forward, backward, backward)[0]

    return routed(False), routed(True)
