"""The sum, put into the root's row of zeros."""

import torch


def operator(x, *, root=0):
    return torch.zeros_like(x).index_add(
        0, torch.full((len(x),), root, device=x.device), x
    )
