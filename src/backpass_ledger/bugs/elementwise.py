"""Activations, powers and quantisation: mistakes in a formula of one element."""

import numpy as np
import torch
import torch.nn.functional as F

from . import bug, normal, require, twins


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@bug(
    "RubixML/ML#427",
    "The derivative of SELU's negative branch was taken from the output as scale·(y + α).",
    "dx = dy·(y + scale·α) where x ≤ 0",
    kind="activations and powers",
    inputs=normal((4, 6)),
)
def selu():
    scale, alpha = 1.0507, 1.67326

    def forward(x):
        y = np.where(x > 0, scale * x, scale * alpha * (np.exp(x) - 1))
        return y, (y,)

    def backward(dy, saved):
        return dy * np.where(saved[0] > 0, scale, saved[0] + scale * alpha)

    def wrong(dy, saved):
        return dy * np.where(saved[0] > 0, scale, scale * (saved[0] + alpha))

    return twins(forward, backward, wrong)


@bug(
    "pytorch/pytorch#49272",
    "ELU's gradient was told from the sign of the output, which is not that of the input where α is negative.",
    "dx = dy·(1 if x > 0 else α·eˣ)",
    kind="activations and powers",
    inputs=normal((4, 6)),
    telling=normal((4, 6)),
    telling_inputs="a negative α",
    telling_keywords={"alpha": -2.0},
    seen="telling",
    gradcheck="telling",
)
def elu_of_negative_alpha():
    def forward(x, alpha=1.0):
        y = np.where(x > 0, x, alpha * (np.exp(x) - 1))
        return y, (x, y, alpha)

    def backward(dy, saved):
        x, _, alpha = saved
        return dy * np.where(x > 0, 1, alpha * np.exp(x))

    def wrong(dy, saved):
        _, y, alpha = saved
        return dy * np.where(y > 0, 1, y + alpha)

    return twins(forward, backward, wrong)


@bug(
    "tinygrad/tinygrad#17852",
    "The exponential was taken of the whole input and masked afterwards, so a large x gave ∞·0.",
    "dx = dy·(1 if x > 0 else exp(min(x, 0)))",
    kind="activations and powers",
    inputs=normal((4, 6)),
    telling=lambda rng: (np.array([-2.0, 0.5, 800.0, 3.0]),),
    telling_inputs="x above log of the largest number: 710 in float64, 89 in float32",
    seen="telling",
    gradcheck="telling",
)
def elu_of_large_inputs():
    def forward(x):
        return np.where(x > 0, x, np.exp(x * (x < 0)) - 1), x

    def backward(dy, x):
        return dy * np.where(x > 0, 1, np.exp(np.minimum(x, 0)))

    def wrong(dy, x):
        with np.errstate(over="ignore", invalid="ignore"):
            return dy * (x > 0) + np.exp(x) * (dy * (x <= 0))

    return twins(forward, backward, wrong)


@bug(
    "pytorch/pytorch#51408",
    "Hard sigmoid's slope of 1/6 was returned outside (−3, 3) as well.",
    "dx = dy/6 where |x| < 3, else 0",
    kind="activations and powers",
    inputs=normal((4, 6)),
    telling=lambda rng: (5 * rng.standard_normal((4, 6)),),
    telling_inputs="inputs beyond ±3",
    seen="varied",
    gradcheck="telling",
)
def hardsigmoid():
    def forward(x):
        return np.where(x > 3, 1.0, np.where(x < -3, 0.0, x / 6 + 0.5)), x

    return twins(forward, lambda dy, x: dy / 6 * (np.abs(x) < 3), lambda dy, x: dy / 6)


@bug(
    "BobMcDear/attorch#13",
    "Smooth L1 compared the signed difference with its threshold, forwards and backwards alike.",
    "quadratic where |x − t| < 1",
    kind="softmax and losses",
    inputs=normal((4, 6), (4, 6)),
    keywords={"operator": lambda x, t: F.smooth_l1_loss(x, t, reduction="none")},
    gradcheck="never",
)
def smooth_l1():
    def made(size):
        def forward(x, t):
            d = x - t
            return np.where(size(d) < 1, d * d / 2, np.where(d > 0, d, -d) - 0.5), d

        def backward(dy, d):
            dx = dy * np.where(size(d) < 1, d, np.sign(d))
            return dx, -dx

        return twins(forward, backward, backward)[0]

    return made(lambda d: np.where(d > 0, d, -d)), made(lambda d: d)


@bug(
    "tenstorrent/tt-metal#55534",
    "The gradient of xⁿ was replaced by +∞ wherever x ≤ 0.",
    "dx = dy·n·xⁿ⁻¹",
    kind="activations and powers",
    inputs=normal((4, 6)),
)
def power_of_negative_base():
    def forward(x, n=3):
        return x**n, (x, n)

    def backward(dy, saved):
        x, n = saved
        return dy * n * x ** (n - 1)

    def wrong(dy, saved):
        return np.where(saved[0] > 0, backward(dy, saved), np.inf)

    return twins(forward, backward, wrong)


@bug(
    "tenstorrent/tt-metal#52144",
    "The backward of bˣ differentiated xᵇ.",
    "dx = dy·log(b)·bˣ",
    kind="activations and powers",
    inputs=normal((4, 6)),
)
def power_of_a_constant():
    def forward(x, base=3.0):
        return base**x, (x, base)

    def backward(dy, saved):
        x, base = saved
        return dy * np.log(base) * base**x

    def wrong(dy, saved):
        x, base = saved
        return dy * base * x ** (base - 1)

    return twins(forward, backward, wrong)


@bug(
    "tensorflow/tfjs#346",
    "The exponent's gradient is y·log(x), which is 0·(−∞) at x = 0.",
    "de = dy·y·log(x) where x > 0, else 0",
    kind="activations and powers",
    inputs=lambda rng: (rng.uniform(0.5, 2, (4, 6)), rng.standard_normal((4, 6))),
    telling=lambda rng: (
        np.array([0.0, 0.7, 1.3, 2.0]),
        np.array([2.0, 3.0, 2.0, 1.0]),
    ),
    telling_inputs="a base of 0",
    seen="telling",
    gradcheck="telling",
)
def power_of_zero():
    def forward(x, e):
        return x**e, (x, e)

    def backward(dy, saved):
        x, e = saved
        return dy * e * x ** (e - 1), dy * x**e * np.log(np.where(x > 0, x, 1))

    def wrong(dy, saved):
        x, e = saved
        with np.errstate(divide="ignore", invalid="ignore"):
            return dy * e * x ** (e - 1), dy * x**e * np.log(x)

    return twins(forward, backward, wrong)


@bug(
    "jax-ml/jax#40828",
    "SiLU's gradient formed eˣ·(1 + eˣ + x), which is flushed to 0 where eˣ is subnormal though the product is not.",
    "dx = dy·σ(x)·(1 + x·(1 − σ(x))), its small factor last",
    kind="activations and powers",
    inputs=normal((4, 6)),
    telling=lambda rng: (np.array([-709.0, -1.0, 0.5]),),
    telling_inputs="x = −709 in float64",
    missed="an error of 1e-305 beside gradients of size 1: errors are measured by the largest element",
    gradcheck="never",
)
def silu_tail():
    def forward(x):
        return x * sigmoid(x), x

    def backward(dy, x):
        return dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))

    def wrong(dy, x):
        e = np.exp(-np.abs(x))
        e = np.where(
            e < np.finfo(e.dtype).tiny, 0, e
        )  # as hardware that knows no subnormal numbers does
        return dy * np.where(x < 0, e * (1 + e + x), 1 + e + x * e) / (1 + e) ** 2

    return twins(forward, backward, wrong)


@bug(
    "flagos-ai/FlagGems#4992",
    "PReLU's backward took the weight along the last axis, the forward along the channels.",
    "w is indexed by axis 1 of x; dw sums over every other axis",
    kind="activations and powers",
    inputs=normal((2, 3, 5), (3,)),
    telling=normal((2, 4, 4), (4,)),
    telling_inputs="as many positions as channels: with others the backward raised",
)
def prelu():
    def forward(x, w):
        require(x.ndim == 3, "x of three axes")
        return np.where(x > 0, x, x * w[:, None]), (x, w)

    def backward(dy, saved):
        x, w = saved
        return dy * np.where(x > 0, 1, w[:, None]), np.sum(
            dy * np.where(x > 0, 0, x), axis=(0, 2)
        )

    def wrong(dy, saved):
        x, w = saved
        return dy * np.where(x > 0, 1, w), np.sum(
            dy * np.where(x > 0, 0, x), axis=(0, 1)
        )

    return twins(forward, backward, wrong)


@bug(
    "ByteDance-Seed/Triton-distributed#180",
    "SwiGLU's backward advanced its inputs' pointers by the row and not its outputs', so every row was stored in row 0.",
    "row r of da and db is stored in row r",
    kind="activations and powers",
    inputs=normal((3, 4), (3, 4), (3,)),
)
def swiglu_rows():
    def forward(a, b, scale):
        require(a.ndim == 2, "a of two axes")
        return a * sigmoid(a) * b * scale[:, None], (a, b, scale)

    def backward(dy, saved):
        a, b, scale = saved
        s = sigmoid(a)
        dz = dy * scale[:, None]
        return (
            dz * b * s * (1 + a * (1 - s)),
            dz * a * s,
            np.sum(dy * a * s * b, axis=-1),
        )

    def wrong(dy, saved):
        da, db, dscale = backward(dy, saved)
        first = [np.zeros_like(da), np.zeros_like(db)]
        first[0][0], first[1][0] = da[-1], db[-1]
        return *first, dscale

    return twins(forward, backward, wrong)


def fake_quantised(x, scale, least, most):
    """What torch.fake_quantize_per_tensor_affine computes and passes on, in any dtype;
    it takes float32 alone."""
    q = torch.round(x / scale)
    passed = x * ((q >= least) & (q <= most))
    return (q.clamp(least, most) * scale).detach() + passed - passed.detach()


@bug(
    "microsoft/nni#3160",
    "A quantiser's straight-through gradient was passed on where the input had been clipped, too.",
    "dx = dy where x/scale lies within the range, else 0",
    kind="quantisation",
    inputs=normal((4, 6)),
    keywords={
        "operator": lambda x: fake_quantised(x, 0.25, -4, 3),
        "conventions": {
            "x": "a straight-through estimator: rounding is differentiated as the identity"
        },
    },
    gradcheck="never",
)
def straight_through():
    def forward(x, scale=0.25):
        return np.round(np.clip(x / scale, -4, 3)) * scale, (x, scale)

    def backward(dy, saved):
        x, scale = saved
        q = np.round(x / scale)
        return dy * ((q >= -4) & (q <= 3))

    return twins(forward, backward, lambda dy, saved: 1.0 * dy)


@bug(
    "huggingface/candle#2082",
    "SiLU's backward took σ(x) from the output as y/x, which is 0/0 where x = 0.",
    "dx = dy·σ·(1 + x·(1 − σ)) with σ = 1/(1 + e⁻ˣ)",
    kind="activations and powers",
    inputs=normal((4, 6)),
    telling=lambda rng: (np.array([-1.0, 0.0, 0.5]),),
    telling_inputs="x = 0",
    seen="varied",
    gradcheck="telling",
)
def silu_at_zero():
    def taking(gate):
        def backward(dy, saved):
            x, y = saved
            with np.errstate(invalid="ignore"):
                s = gate(x, y)
            return dy * s * (1 + x * (1 - s))

        return backward

    def forward(x):
        y = x * sigmoid(x)
        return y, (x, y)

    return twins(forward, taking(lambda x, y: sigmoid(x)), taking(lambda x, y: y / x))
