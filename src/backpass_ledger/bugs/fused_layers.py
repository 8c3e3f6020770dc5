"""Fused layers whose backward belongs to another formula."""

import numpy as np
import torch

from . import bug, normal, require, twins
from .elementwise import sigmoid
from .norms_and_losses import tensors


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
