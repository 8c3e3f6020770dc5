"""PyTorch's ``silu`` of the gate, times the values."""

import torch


def operator(g, u, *, keep_sigmoid=False):
    return torch.nn.functional.silu(g) * u
