"""PyTorch's ``normalize``."""

import torch


def operator(x, *, mean=False):
    y = torch.nn.functional.normalize(x, p=2, dim=-1, eps=0)
    return y * x.shape[-1] ** 0.5 if mean else y
