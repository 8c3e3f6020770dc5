"""What is measured: the operations, at which lengths, PyTorch's own function for each, and the bytes that must move.

A subject's lengths are those of its dimension letters, rows first. ``moved`` counts the numbers that each step must
read or write: inputs and upstream gradient once, results once. Indices, the statistics of a row and the parameters
of a norm, fewer by a row's length, are left out; a loss is given for forward and backward together, since either
alone can be made fast at the other's cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from harness import draw

from backpass.ops import rope

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
aten = torch.ops.aten

SMALL, TYPICAL, LARGE = "small", "typical", "large"
QUICK = "quick"
LOSSES = ("cross_entropy", "linear_cross_entropy")
VOCABULARY = 50257


class Subject(NamedTuple):
    """One operation with its options."""

    name: str
    stem: str
    letters: str
    lengths: dict[str, tuple[int, ...]]  # of the letters, rows first
    inputs: Callable[..., Inputs]  # lengths, and where and of which dtype
    pytorch: Callable[..., Tensor]
    moved: Callable[..., dict[str, int]]  # of the lengths: numbers a step must read or write
    options: Mapping[str, Any] = MappingProxyType({})
    # From the inputs a function of dy: the operator that autograd calls, where there is one of its own.
    pytorch_backward: Callable[..., Callable[[Tensor], Any]] | None = None
    liger: Callable[..., Tensor] | None = None
    # The elements of its results before any is dropped: PyTorch drops others than ours. None where nothing is drawn.
    undropped: Callable[[Tensor], Tensor] | None = None
    # Whether the operation is a norm that reads a residual sum: the results are then y and the sum.
    of_sum: bool = False
    rows_on_cuda: int = 8  # times as many rows on a GPU, so that its cache cannot hold them


def _sizes(small, typical, large, quick) -> dict[str, tuple[int, ...]]:
    return {SMALL: small, TYPICAL: typical, LARGE: large, QUICK: quick}


MATRIX = _sizes((64, 64), (2048, 1024), (4096, 4096), (5, 33))
HEADS = _sizes((1, 64, 64), (16, 1024, 128), (32, 4096, 128), (2, 5, 8))
SCORES = _sizes((64, 64), (256, VOCABULARY), (1024, VOCABULARY), (5, 33))
TABLE = _sizes((64, 64, 64), (2048, VOCABULARY, 768), (8192, VOCABULARY, 768), (9, 7, 5))
LAYER = _sizes((64, 64, 64), (512, 768, 3072), (1024, 1600, 6400), (5, 7, 9))
HEAD = _sizes((64, 64, 64), (128, 768, 8192), (256, 768, VOCABULARY), (5, 7, 9))


# Inputs. Weights of a product are drawn so that its results are about as large as its inputs.


def _arrays(count: int):
    def drawn(*shape, **like) -> Inputs:
        return tuple(draw(*shape, seed=seed, **like) for seed in range(count))

    return drawn


def _norm_inputs(parameters: int):
    def drawn(m, n, **like) -> Inputs:
        return draw(m, n, seed=0, **like), *(draw(n, seed=1 + at, **like) for at in range(parameters))

    return drawn


def _sum_inputs(m, n, **like) -> Inputs:
    """x, f, and the weight of the norm."""
    return draw(m, n, seed=0, **like), draw(m, n, seed=1, **like), draw(n, seed=2, **like)


def _indices(count: int, below: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randint(below, (count,), generator=generator).to(device)


def _scores(m, V, *, dtype, device) -> Inputs:
    return draw(m, V, seed=0, dtype=dtype, device=device), _indices(m, V, device)


def _table(m, V, h, *, dtype, device) -> Inputs:
    return _indices(m, V, device), draw(V, h, seed=0, dtype=dtype, device=device)


def _weights(rows, columns, seed, **like) -> Tensor:
    return draw(rows, columns, seed=seed, **like) / rows**0.5


def _layer(m, n, p, **like) -> Inputs:
    return draw(m, n, seed=0, **like), _weights(n, p, 1, **like), draw(p, seed=2, **like)


def _block(m, h, f, **like) -> Inputs:
    w_up, w_down = _weights(h, f, 1, **like), _weights(f, h, 2, **like)
    return draw(m, h, seed=0, **like), w_up, w_down, draw(f, seed=3, **like), draw(h, seed=4, **like)


def _head(m, h, V, *, dtype, device) -> Inputs:
    """The weights lie in memory as in models, a row for each token of the vocabulary, so no provider has to copy them."""
    x, rows = (draw(length, h, seed=seed, dtype=dtype, device=device) for seed, length in enumerate((m, V)))
    return x, (rows / h**0.5).mT, _indices(m, V, device)


def _heads(heads, s, d, **like) -> Inputs:
    x = draw(heads, s, d, seed=0, **like)
    return x, *rope.tables(s, d, like=x)


# The numbers that must move.


def _elementwise(forward: int, backward: int):
    def moved(*lengths):
        numbers = 1
        for length in lengths:
            numbers *= length
        return {"forward": forward * numbers, "backward": backward * numbers}

    return moved


def _moved_by_rope(heads, s, d):
    each = 2 * heads * s * d + s * d  # cos and sin together are as large as one head
    return {"forward": each, "backward": each}


def _moved_by_linear(m, n, p):
    inputs = m * n + n * p + p
    return {"forward": inputs + m * p, "backward": m * p + (m * n + n * p) + inputs}


def _moved_by_block(m, h, f):
    inputs = m * h + 2 * h * f + f + h
    return {"forward": inputs + m * h, "backward": m * h + 2 * inputs}


# PyTorch's functions and, where they have a name, the operators that autograd calls for their gradients.


def _softmax_backward(x):
    y = torch.softmax(x, dim=-1)
    return lambda dy: aten._softmax_backward_data(dy, y, -1, y.dtype)


def _log_softmax_backward(x):
    y = torch.log_softmax(x, dim=-1)
    return lambda dy: aten._log_softmax_backward_data(dy, y, -1, y.dtype)


def _layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


def _layer_norm_backward(x, w, b):
    _, mean, rstd = aten.native_layer_norm(x, x.shape[-1:], w, b, 1e-5)
    return lambda dy: aten.native_layer_norm_backward(
        dy, x, x.shape[-1:], mean, rstd, w, b, [True, True, True]
    )


def _relu_backward(x):
    y = torch.relu(x)
    return lambda dy: aten.threshold_backward(dy, y, 0)


def _rope(x, cos, sin):
    """PyTorch has none: as models write it, halves turned by two products and a sum."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * torch.cat((cos, cos), dim=-1) + turned * torch.cat((sin, sin), dim=-1)


def _feed_forward(x, w_up, w_down, b_up, b_down):
    return F.linear(F.gelu(F.linear(x, w_up.mT, b_up)), w_down.mT, b_down)


DROPPED = 0.1  # the probability in GPT-2


# Liger-Kernel's, where it is installed. Its SwiGLU and its losses write gradients over their inputs.


def _liger(name: str, *more):
    def call(*inputs):
        from liger_kernel.transformers import functional

        return getattr(functional, name)(*inputs, *more)

    return call


def _liger_linear_cross_entropy(x, w, t):
    from liger_kernel.transformers import functional

    return functional.liger_fused_linear_cross_entropy(x, w.mT, t)


SUBJECTS = (
    Subject(
        "softmax",
        "softmax",
        "m n",
        MATRIX,
        _arrays(1),
        lambda x: torch.softmax(x, dim=-1),
        _elementwise(2, 3),
        pytorch_backward=_softmax_backward,
        liger=_liger("liger_softmax"),
    ),
    Subject(
        "log_softmax",
        "log_softmax",
        "m n",
        MATRIX,
        _arrays(1),
        lambda x: torch.log_softmax(x, dim=-1),
        _elementwise(2, 3),
        pytorch_backward=_log_softmax_backward,
    ),
    Subject(
        "cross_entropy",
        "cross_entropy",
        "m V",
        SCORES,
        _scores,
        F.cross_entropy,
        lambda m, V: {"both": 2 * m * V},
        liger=_liger("liger_cross_entropy"),
    ),
    Subject(
        "layer_norm",
        "layer_norm",
        "m n",
        MATRIX,
        _norm_inputs(2),
        _layer_norm,
        _elementwise(2, 3),
        pytorch_backward=_layer_norm_backward,
        liger=_liger("liger_layer_norm", 1e-5),
    ),
    Subject(
        "rms_norm",
        "rms_norm",
        "m n",
        MATRIX,
        _norm_inputs(1),
        lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
        _elementwise(2, 3),
        {"eps": 1e-6},
        liger=_liger("liger_rms_norm", 1e-6, 0.0, "llama", False),
    ),
    Subject(
        "rms_norm of a sum",
        "rms_norm",
        "m n",
        MATRIX,
        _sum_inputs,
        lambda x, f, w: (F.rms_norm(x + f, x.shape[-1:], w, 1e-6), x + f),
        _elementwise(4, 4),
        {"eps": 1e-6},
        liger=_liger("liger_fused_add_rms_norm", 1e-6, 0.0, "llama", False),
        of_sum=True,
    ),
    Subject(
        "relu",
        "relu",
        "m n",
        MATRIX,
        _arrays(1),
        torch.relu,
        _elementwise(2, 3),
        pytorch_backward=_relu_backward,
    ),
    Subject(
        "gelu",
        "gelu",
        "m n",
        MATRIX,
        _arrays(1),
        F.gelu,
        _elementwise(2, 3),
        pytorch_backward=lambda x: lambda dy: aten.gelu_backward(dy, x),
    ),
    Subject(
        "gelu, tanh",
        "gelu",
        "m n",
        MATRIX,
        _arrays(1),
        lambda x: F.gelu(x, approximate="tanh"),
        _elementwise(2, 3),
        {"approximate": "tanh"},
        pytorch_backward=lambda x: lambda dy: aten.gelu_backward(dy, x, approximate="tanh"),
    ),
    Subject(
        "silu",
        "silu",
        "m n",
        MATRIX,
        _arrays(1),
        F.silu,
        _elementwise(2, 3),
        pytorch_backward=lambda x: lambda dy: aten.silu_backward(dy, x),
    ),
    Subject(
        "swiglu",
        "swiglu",
        "m n",
        MATRIX,
        _arrays(2),
        lambda g, u: F.silu(g) * u,
        _elementwise(3, 5),
        liger=_liger("liger_swiglu"),
    ),
    Subject(
        "dropout",
        "dropout",
        "m n",
        MATRIX,
        _arrays(1),
        lambda x: F.dropout(x, DROPPED),
        _elementwise(2, 2),
        {"p": DROPPED, "seed": 0},
        undropped=lambda x: x / (1 - DROPPED),
    ),
    Subject("rope", "rope", "heads s d", HEADS, _heads, _rope, _moved_by_rope),
    Subject(
        "embedding",
        "embedding",
        "m V h",
        TABLE,
        _table,
        F.embedding,
        lambda m, V, h: {"forward": 2 * m * h, "backward": (m + V) * h},
        pytorch_backward=lambda t, w: lambda dy: aten.embedding_dense_backward(dy, t, w.shape[0], -1, False),
    ),
    Subject(
        "linear",
        "linear",
        "m n p",
        LAYER,
        _layer,
        lambda x, w, b: F.linear(x, w.mT, b),
        _moved_by_linear,
    ),
    Subject("feed_forward", "feed_forward", "m h f", LAYER, _block, _feed_forward, _moved_by_block),
    Subject(
        "linear_cross_entropy",
        "linear_cross_entropy",
        "m h V",
        HEAD,
        _head,
        lambda x, w, t: F.cross_entropy(x @ w, t),
        lambda m, h, V: {"both": 2 * (m * h + h * V)},
        liger=_liger_linear_cross_entropy,
        rows_on_cuda=64,  # with few tokens, a chunk's products would be too small
    ),
)
