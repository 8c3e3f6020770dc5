"""PyTorch's ``gelu``."""

import torch


def operator(x, *, approximate="none"):
    return torch.nn.functional.gelu(x, approximate=approximate)
