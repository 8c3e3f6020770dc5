"""What happens to a gradient before the weights change."""

from __future__ import annotations

import numpy as np

from backpass.training import accumulation, adamw, clipping
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, same, torch

CLAIMS = """
U38  caveat  2  optimiser  numerics/optimiser  texts on Adam
U39  false   3  clipping   numerics/clipping   posts on clipping
U40  false   1  clipping   numerics/clipping   a common reading of `clip_grad_norm_`
U41  caveat  6  training   numerics/averaging  training loops with gradient accumulation
U42  false   3  optimiser  numerics/optimiser  optimisers called Adam that implement decay as an L2 term
U43  true    0  precision  numerics/precision  guides to mixed precision
U44  false   3  precision  numerics/precision  a common explanation of loss scaling
U45  false   2  clipping   numerics/clipping   a common explanation of clipping
"""


def updated(
    gradient: np.ndarray, steps: int = 1, *, weight_decay: float = 0.01
) -> np.ndarray:
    """Return a parameter after AdamW's steps with one gradient."""
    parameters = {"w": numbers(5, seed=9)}
    state = adamw.start(parameters)
    for _ in range(steps):
        adamw.update(parameters, {"w": gradient}, state, weight_decay=weight_decay)
    return parameters["w"]


def U38(it: Evidence) -> None:
    r"""Adam's step does not depend on the scale of the gradient.

    This is right while the gradient's elements are large compared with ε (1e-8 by
    default) and the scale is the same in every step."""
    g = numbers(5)
    it.as_printed(same(updated(g, 3), updated(1000 * g, 3), 1e-6))
    it.elsewhere(same(updated(g), updated(1e-9 * g), 1e-6))


def U39(it: Evidence) -> None:
    """Under Adam, clipping every gradient to a tenth of its norm makes the step a tenth
    as long.

    Adam divides by the gradient's size, so the same factor in every step cancels.
    Clipping acts through what changes from step to step."""
    start, g = numbers(5, seed=9), numbers(5)
    whole = updated(g, 3, weight_decay=0.0) - start
    clipped = updated(g / 10, 3, weight_decay=0.0) - start
    it.as_printed(same(clipped, whole / 10, 1e-3))
    it.right(same(clipped, whole, 1e-6))


def U40(it: Evidence) -> None:
    r"""A gradient that is clipped has exactly the norm max_norm.

    PyTorch multiplies by max_norm/(norm + 1e-6), so the result is slightly below
    max_norm, and far below it only if the norm is not large compared with 1e-6."""

    def after(scale: float, max_norm: float) -> float:
        p = torch.zeros(7, dtype=torch.float64, requires_grad=True)
        p.grad = torch.tensor(scale * numbers(7))
        torch.nn.utils.clip_grad_norm_([p], max_norm)
        return float(p.grad.norm())

    it.as_printed(after(1, 0.5) == 0.5)
    norm = np.linalg.norm(numbers(7))
    for scale, max_norm in ((1, 0.5), (1e-6, 1e-7)):
        size = scale * norm
        it.right(same(after(scale, max_norm), max_norm * size / (size + 1e-6)))
    it.right(0.5 - 1e-6 < after(1, 0.5) < 0.5 and after(1e-6, 1e-7) < 0.8e-7)
    clipped, _ = clipping.clip({"w": numbers(7)}, 0.5)
    it.right(abs(np.linalg.norm(clipped["w"]) - 0.5) < 1e-6)


def U41(it: Evidence) -> None:
    """The mean of the losses of micro-batches, each a mean over its tokens, has the
    gradient of the whole batch.

    So it is if all of them have the same number of counted tokens. Otherwise each has
    to be weighted by that number."""
    x = numbers(12, 3)
    for first, judge in ((6, it.as_printed), (9, it.elsewhere)):
        parts = np.split(x, [first])
        judge(same(np.mean([part.mean(0) for part in parts], axis=0), x.mean(0)))
        each = ((np.array(0.0), {"w": part.mean(0)}, len(part)) for part in parts)
        it.right(same(accumulation.mean(each)[1]["w"], x.mean(0)))


def U42(it: Evidence) -> None:
    r"""Weight decay is the same as an L2 term in the loss.

    They are the same under SGD. Under Adam, the L2 term's gradient is divided by a
    running size of the gradient; decoupled decay is not."""
    w, g, decay = numbers(5, seed=9), numbers(5), 0.1
    as_loss = updated(g + decay * w, 3, weight_decay=0.0)
    decoupled = updated(g, 3, weight_decay=decay)
    it.as_printed(same(as_loss, decoupled, 1e-6))
    sgd = [w - 0.01 * (g + decay * w), w * (1 - 0.01 * decay) - 0.01 * g]
    it.right(same(*sgd) and not same(as_loss, decoupled, 1e-6))


def U43(it: Evidence) -> None:
    r"""BF16 does not need loss scaling, because it has the exponents of float32.

    Its smallest positive number is 2⁻¹³³, about 1e-40, against 6e-8 in FP16. It has 8
    significant bits, with or without loss scaling: if the weights are stored in BF16
    and rounded to nearest, an update below 1/512 of its weight is lost."""
    tiny = torch.tensor(1e-30, dtype=torch.float64)
    it.as_printed(tiny.to(torch.bfloat16) > 0 and bool(tiny.to(torch.float16) == 0))
    it.right(float(torch.tensor(2.0**-133).to(torch.bfloat16)) == 2.0**-133)
    it.right(float(torch.tensor(2.0**-24).to(torch.float16)) > 5e-8)
    one = torch.tensor(1.0, dtype=torch.bfloat16)
    it.right(bool(one + 0.9 * one / 256 == one))
    weights = torch.arange(128, 256, dtype=torch.float64) / 128
    for update in (0.99 / 512 * weights, -0.99 / 512 * weights):
        lost = (weights + update).to(torch.bfloat16) == weights.to(torch.bfloat16)
        it.right(bool(lost.all()))


def U44(it: Evidence) -> None:
    """FP16 needs loss scaling because gradients overflow.

    It needs it because small gradients underflow: below half of the smallest subnormal
    number, 2⁻²⁴, they become 0. A larger loss brings them back. Gradients that overflow
    become infinite sooner with it, and the scale then has to be lowered."""

    def gradient(true: float, scale: float) -> float:
        w = torch.ones(1, dtype=torch.float16, requires_grad=True)
        (w * true).backward(torch.tensor([scale], dtype=torch.float16))
        return float(w.grad) / scale

    small, large = 2.0**-26, 100.0
    it.as_printed(gradient(large, 1) == np.inf > gradient(large, 1024))
    it.right(gradient(small, 1) == 0 and gradient(small, 1024) == small)
    it.right(gradient(large, 1) == large and gradient(large, 1024) == np.inf)


def U45(it: Evidence) -> None:
    """Clipping by the global norm changes the direction of the gradient.

    It multiplies all gradients by one number, so the direction stays. Clipping each
    element, or each array by its own norm, changes it."""
    given = {"a": numbers(5), "b": 30 * numbers(3, seed=1)}

    def cosine(clipped: dict[str, np.ndarray]) -> float:
        one, other = (np.concatenate([*g.values()]) for g in (given, clipped))
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    together, _ = clipping.clip(given, 1.0)
    alone = {name: g / np.linalg.norm(g) for name, g in given.items()}
    it.as_printed(cosine(together) < 1 - 1e-12)
    it.right(cosine(together) > 1 - 1e-12 and cosine(alone) < 0.9)
    it.right(cosine({name: g.clip(-1, 1) for name, g in given.items()}) < 0.9)
