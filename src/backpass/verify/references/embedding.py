"""PyTorch's ``embedding``."""

import torch


def operator(t, w, *, padding_idx=None):
    return torch.nn.functional.embedding(t, w, padding_idx=padding_idx)
