"""Llama's two implementations, because PyTorch has no operator.

Neither is written like the package's.
"""

import torch


def operator(x, cos, sin, *, interleaved=False):
    if interleaved:  # pairs as complex numbers, which half precision does not have
        wide = torch.promote_types(x.dtype, torch.float32)
        pairs = torch.view_as_complex(
            x.to(wide).reshape(*x.shape[:-1], -1, 2).contiguous()
        )
        turned = pairs * torch.complex(cos.to(wide), sin.to(wide))
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    half_turned = torch.cat((-second, first), dim=-1)
    return x * torch.cat((cos, cos), dim=-1) + half_turned * torch.cat(
        (sin, sin), dim=-1
    )
