"""PyTorch's ``rms_norm``."""

import torch


def operator(x, w=None, *, eps=None):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps)
