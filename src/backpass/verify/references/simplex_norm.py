"""PyTorch has none: here ``normalize`` by the 1-norm, which is the sum of a row without
negative elements.
"""

import torch


def operator(x, *, mean=False):
    y = torch.nn.functional.normalize(x, p=1, dim=-1, eps=0)
    return y * x.shape[-1] if mean else y
