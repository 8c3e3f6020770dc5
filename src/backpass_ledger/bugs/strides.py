"""An output gradient, or another tensor, read with strides that are not its own."""

import torch

from . import bug, require, twins
from .norms_and_losses import tensors

OF_OTHERS = 1e3  # what memory holds that belongs to another array


def in_memory(values, strides):
    """What a kernel reads from a tensor if it takes these strides for the tensor's."""
    memory = torch.empty(0, dtype=values.dtype).set_(values.untyped_storage())
    at = torch.full(values.shape, values.storage_offset())
    for axis, stride in enumerate(strides):
        steps = stride * torch.arange(values.shape[axis])
        at = at + steps.reshape(-1, *[1] * (values.ndim - 1 - axis))
    return torch.where(at < len(memory), memory[at % len(memory)], OF_OTHERS)


def as_contiguous(values):
    """What a kernel reads if it takes a tensor for contiguous."""
    return in_memory(values, torch.empty(values.shape).stride())


@bug(
    "pytorch/pytorch#194719",
    "A Triton backward addressed dy with the strides of x; the dy of a torch.cat has others.",
    "dy is read by its own strides",
    kind="strides",
    inputs=tensors((4, 3), (3,)),
    says="dx differs for a dy that is not contiguous",
    gradcheck="never",
)
def strides_of_x():
    def forward(x, w):
        require(w.ndim == 1, "a weight of one axis")
        return x * w, (x, w)

    def backward(dy, saved):
        x, w = saved
        return dy * w, (dy * x).sum(dim=tuple(range(x.ndim - 1)))

    def wrong(dy, saved):
        return backward(in_memory(dy, saved[0].stride()), saved)

    return twins(forward, backward, wrong)


@bug(
    "ROCm/TransformerEngine#623",
    "A fused cross-entropy read the rows' dy with stride 1; that of loss.sum() is one number, expanded with stride 0.",
    "row i reads dy_i by dy's stride",
    kind="strides",
    inputs=lambda rng: (
        torch.tensor(rng.standard_normal((5, 7))),
        torch.tensor(rng.integers(0, 7, 5)),
    ),
    gradcheck="never",
)
def expanded_dy():
    def forward(x, t):
        require(x.ndim == 2 and len(x) == len(t), "a label for each row")
        p = x.softmax(dim=-1)
        rows = torch.arange(len(t))
        g = p.detach().clone()
        g[rows, t] -= 1
        return -x.log_softmax(dim=-1)[rows, t], g

    def backward(dy, g):
        return dy[:, None] * g

    return twins(forward, backward, lambda dy, g: backward(as_contiguous(dy), g))


@bug(
    "fla-org/flash-linear-attention#871",
    "A causal convolution's backward read dy as if it were contiguous.",
    "dx_t = Σ w_k·dy_{t+K−1−k}, with dy by its own strides",
    kind="strides",
    inputs=tensors((5, 3), (3, 2)),
    gradcheck="never",
)
def strided_dy_of_convolution():
    def forward(x, w):
        require(x.ndim == w.ndim == 2 and x.shape[1] == len(w), "a kernel per channel")
        width = w.shape[1]
        padded = torch.cat([torch.zeros_like(x[:1]).expand(width - 1, -1), x])
        y = sum(padded[k : k + len(x)] * w[:, k] for k in range(width))
        return y, (padded, w)

    def backward(dy, saved):
        padded, w = saved
        width, length = w.shape[1], len(dy)
        dpadded, dw = torch.zeros_like(padded), torch.zeros_like(w)
        for k in range(width):
            dpadded[k : k + length] += dy * w[:, k]
            dw[:, k] = (dy * padded[k : k + length]).sum(dim=0)
        return dpadded[width - 1 :], dw

    def wrong(dy, saved):
        return backward(as_contiguous(dy), saved)

    return twins(forward, backward, wrong)


@bug(
    "Dao-AILab/flash-attention#355",
    "Attention's backward took the output gradient for contiguous; after a transpose it is not.",
    "dy is read by its own strides, or copied first",
    kind="strides",
    inputs=tensors((2, 3, 4), (2, 5, 4), (2, 5, 3)),
    gradcheck="never",
)
def strided_dy_of_attention():
    def forward(q, k, v):
        require(q.ndim == 3 and len(q) == len(k) == len(v), "heads of q, k, and v")
        p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        return p @ v, (q, k, v, p)

    def backward(dy, saved):
        q, k, v, p = saved
        dp = dy @ v.mT
        ds = p * (dp - (dp * p).sum(dim=-1, keepdim=True)) / q.shape[-1] ** 0.5
        return ds @ k, ds.mT @ q, p.mT @ dy

    def wrong(dy, saved):
        return backward(as_contiguous(dy), saved)

    return twins(forward, backward, wrong)
