"""PyTorch's ``log_softmax``."""

import torch


def operator(x):
    return torch.log_softmax(x, dim=-1)
