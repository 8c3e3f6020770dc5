"""PyTorch's ``softmax``."""

import torch


def operator(x):
    return torch.softmax(x, dim=-1)
