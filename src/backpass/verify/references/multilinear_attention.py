"""A composition, because PyTorch has no operator.

It computes all factors at once, and multiplies hidden scores by 0.
"""

import torch


def operator(
    q, k, v, *, p=1, normalization="softmax", causal=False, causal_variant="upper_left"
):
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    q, k = (x.unflatten(-1, (p, -1)) for x in (q, k))
    scores = torch.einsum("...imc,...jmc->...ijm", q, k).prod(dim=-1)
    seen = torch.ones_like(scores)
    if causal:
        seen = seen.tril(
            scores.shape[-1] - scores.shape[-2]
            if causal_variant == "lower_right"
            else 0
        )
    if normalization == "softmax":
        scores = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    scores = scores * seen
    length = torch.linalg.vector_norm(
        scores, 2 if normalization == "sphere" else 1, dim=-1, keepdim=True
    )
    return (scores / length.masked_fill(length == 0, 1.0)) @ v
