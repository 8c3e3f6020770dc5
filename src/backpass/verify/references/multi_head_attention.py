"""PyTorch's attention between einsums.

Its ``MultiheadAttention`` has a single width and cannot share heads.
"""

import torch

from backpass.verify.references import attention


def operator(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, memory, **options):
    rows = x if memory is None else memory
    q, k, v = (
        torch.einsum("...sh,hnd->...nsd", array, w) + (0 if b is None else b[:, None])
        for array, w, b in ((x, w_q, b_q), (rows, w_k, b_k), (rows, w_v, b_v))
    )
    y = torch.einsum("...nsd,ndh->...sh", attention.operator(q, k, v, **options), w_o)
    return y if b_o is None else y + b_o
