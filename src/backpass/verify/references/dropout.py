"""PyTorch's formula for dropout, with the package's mask.

PyTorch draws a different mask.
"""

import numpy as np
import torch


def operator(x, *, p=0.5, seed=0, training=True):
    if not training:
        return torch.nn.functional.dropout(x, p, training=False)
    mask = torch.asarray(
        np.random.default_rng(seed).random(tuple(x.shape)) >= p, device=x.device
    )
    return x * mask * (1 / (1 - p))
