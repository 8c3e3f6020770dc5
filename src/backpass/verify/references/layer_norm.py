"""PyTorch's ``layer_norm``."""

import torch


def operator(x, w=None, b=None, *, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, eps)
