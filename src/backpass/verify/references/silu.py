"""PyTorch's ``silu``."""

import torch


def operator(x):
    return torch.nn.functional.silu(x)
