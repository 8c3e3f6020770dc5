"""Fused layers whose backward belongs to another formula."""

import numpy as np
import torch
import torch.nn.functional as F

from . import bug, normal, require, twins
from .elementwise import sigmoid
from .norms_and_losses import derived, tensors
from .rows import softmax


@bug(
    "tinygrad/tinygrad#17861",
    "erf was sign(x)·f(|x|), whose factors both have derivative 0 at 0 there: so had erf.",
    "dx = dy·2/√π·exp(−x²), at 0 too",
    kind="activations and powers",
    inputs=tensors((4, 6)),
    telling=lambda rng: (torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64),),
    telling_inputs="x = 0",
    seen="varied",
    gradcheck="telling",
)
def erf_at_zero():
    def backward(dy, x):
        return dy * 2 / np.sqrt(np.pi) * torch.exp(-x * x)

    return twins(
        lambda x: (torch.erf(x), x), backward, lambda dy, x: backward(dy, x) * (x != 0)
    )


@bug(
    "harvard-edge/cs249r_book#1399",
    "GELU was x·σ(1.702x), its backward the derivative of the tanh formula.",
    "dx = dy·(s + 1.702·x·s·(1 − s)) with s = σ(1.702x)",
    kind="activations and powers",
    inputs=normal((4, 6)),
)
def gelu_of_another_formula():
    def forward(x):
        return x * sigmoid(1.702 * x), x

    def backward(dy, x):
        s = sigmoid(1.702 * x)
        return dy * (s + 1.702 * x * s * (1 - s))

    def wrong(dy, x):
        c = np.sqrt(2 / np.pi)
        t = np.tanh(c * (x + 0.044715 * x**3))
        return dy * (1 + t + x * (1 - t * t) * c * (1 + 0.134145 * x * x)) / 2

    return twins(forward, backward, wrong)


@bug(
    "foundation-model-stack/fms-acceleration#97",
    "A fused LoRA layer applied dropout in its weights' gradients and not in its input's.",
    "dx = dy·wᵀ + s·(dy·Bᵀ·Aᵀ)·mask",
    kind="products and convolutions",
    inputs=lambda rng: (
        *normal((3, 4), (4, 5), (4, 2), (2, 5))(rng),
        rng.random((3, 4)) > 0.5,
    ),
    says="the derivative of multiply",
)
def lora_dropout():
    scale = 0.5

    def forward(x, w, a, b, mask):
        require(x.ndim == 2 and x.shape == mask.shape, "a mask of x's shape")
        m = mask / 0.5
        return x @ w + scale * (x * m) @ a @ b, (x, w, a, b, m)

    def masking(masked):
        def backward(dy, saved):
            x, w, a, b, m = saved
            dh = scale * dy @ b.T
            dx = dy @ w.T + masked(dh @ a.T, m)
            return dx, x.T @ dy, (x * m).T @ dh, scale * ((x * m) @ a).T @ dy

        return backward

    return twins(forward, masking(lambda dx, m: dx * m), masking(lambda dx, m: dx))


@bug(
    "Blaizzy/mlx-vlm#845",
    "A LoRA layer was scaled by α, not by α over its rank.",
    "y = x·wᵀ + α/r·x·aᵀ·bᵀ with r the rank",
    kind="products and convolutions",
    inputs=tensors((3, 4), (5, 4), (2, 4), (5, 2)),
    keywords={
        "operator": lambda x, w, a, b: (
            F.linear(x, w) + 3 / len(a) * F.linear(F.linear(x, a), b)
        )
    },
    gradcheck="never",
)
def lora_without_rank():
    alpha = 3.0

    def scaled(scale):
        def layer(x, w, a, b):
            require(x.ndim == 2 and w.ndim == a.ndim == b.ndim == 2, "matrices")
            return F.linear(x, w) + scale(a) * F.linear(F.linear(x, a), b)

        return derived(layer)

    return scaled(lambda a: alpha / len(a)), scaled(lambda a: alpha)


@bug(
    "pytorch/pytorch#11551",
    "The gradient of an ignored row was multiplied by 0: a row of −∞ has no softmax, and 0·NaN is NaN.",
    "dx = 0 in an ignored row, whatever it holds",
    kind="softmax and losses",
    inputs=lambda rng: (rng.standard_normal((4, 5)), np.array([1, -100, 4, 0])),
    telling=lambda rng: (
        np.vstack([rng.standard_normal((2, 5)), np.full((1, 5), -np.inf)]),
        np.array([1, 3, -100]),
    ),
    telling_inputs="an ignored row of −∞",
    seen="telling",
    gradcheck="telling",
)
def ignored_row_of_infinities():
    def forward(x, t):
        require(x.ndim == 2 and t.shape == x.shape[:1], "a target for each row")
        counted = t >= 0
        rows, labels = x[counted], t[counted]
        top = rows.max(axis=-1)
        lse = np.log(np.exp(rows - top[:, None]).sum(axis=-1)) + top
        return (lse - rows[np.arange(len(rows)), labels]).sum(), (x, t)

    def backward(dy, saved):
        x, t = saved
        dx, counted = np.zeros_like(x), t >= 0
        p = softmax(x[counted])
        p[np.arange(len(p)), t[counted]] -= 1
        dx[counted] = dy * p
        return dx

    def wrong(dy, saved):
        x, t = saved
        with np.errstate(invalid="ignore"):
            p = softmax(x)
        p[np.arange(len(p)), np.maximum(t, 0)] -= 1
        return dy * p * (t >= 0)[:, None]

    return twins(forward, backward, wrong)
