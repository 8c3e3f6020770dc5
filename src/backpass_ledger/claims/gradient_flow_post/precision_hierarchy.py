"""Which format holds what, and how many bytes that is for 70B parameters (§3.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost

from ..evidence import Evidence
from ..tools import numbers, torch
from .heads import WHOLE, saved_weights
from .setting import GIB, MIB, printed

CLAIMS = """
F182  true          0  precision  numerics/precision        §3.1, list, forward
F183  caveat        3  softmax    operations/softmax        §3.1, list, scores
F184  inconsistent  3  attention  cost/memory               §3.1, list, scores, against §1.4 and §4.1
F185  true          0  loss       operations/cross_entropy  §3.1, list, loss
F186  true          0  precision  numerics/precision        §3.1, list, gradients
F187  caveat        2  precision  numerics/averaging        §3.1, list, accumulation
F188  true          0  precision  numerics/precision        §3.1, list, master weights
F189  true          0  optimiser  numerics/optimiser        §3.1, list, Adam
F190  inconsistent  5  memory     cost/memory               §3.1, list against the bytes below it
F191  true          0  memory     cost/memory               §3.1, bytes, row 1
F192  true          0  memory     cost/memory               §3.1, bytes, rows 2 and 3
F193  true          0  memory     cost/memory               §3.1, bytes, row 4
F194  true          0  memory     cost/memory               §3.1, bytes, row 5
F195  caveat        1  memory     cost/memory               §3.1, bytes, total
F196  left-out      5  memory     cost/memory               §3.1, bytes, total, against the list
F197  inconsistent  3  memory     cost/memory               §3.1, §4.1, and §4.3, units
F198  true          0  parallel   cost/memory               §3.1, after the list
F199  false         3  parallel   cost/memory               §3.1, after the list, eight devices (implied)
F200  false         3  parallel   cost/memory               §3.1, after the list, optimiser states
"""

GB = 10**9
N = 70 * 10**9


def gigabytes(elements: float, dtype: str) -> float:
    """Return the decimal gigabytes of that many elements of a PyTorch format."""
    return elements * getattr(torch, dtype).itemsize / GB


def states(elements: float = N) -> float:
    """Return the decimal gigabytes of the five rows of the list of bytes."""
    return sum(gigabytes(elements, d) for d in ["float32"] * 3 + ["float16"] * 2)


def takes(it: Evidence, row: str, dtype: str, size: int) -> None:
    """Judge a row of the list of bytes."""
    it.as_printed(gigabytes(N, dtype) == printed("3.1", row) == size)


def under_autocast() -> dict[str, Any]:
    """Run a linear layer and a loss in BF16 autocast, with FP32 weights, and return the
    formats of the output, its gradient, and the loss."""
    w = torch.tensor(numbers(9, 7), dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.nn.functional.linear(torch.tensor(numbers(5, 7)).float(), w)
        loss = torch.nn.functional.cross_entropy(y, torch.tensor([1, 8, 3, 0, 5]))
    (dy,) = torch.autograd.grad(loss, y)
    return {"y": y.dtype, "loss": loss.dtype, "dy": dy.dtype}


def added(size: float, dtype: str, count: int = 10_000) -> float:
    """Return count·size as a running sum in a format has it, relative to the truth."""
    step = torch.tensor(size, dtype=getattr(torch, dtype))
    total = torch.zeros_like(step)
    for _ in range(count):
        total += step
    return float(total) / (count * float(step))


def of_adam(*shape: int) -> list[int]:
    """Return the bytes of Adam's states of an FP32 weight."""
    p = torch.nn.Parameter(torch.ones(shape))
    p.grad = torch.ones_like(p)
    adam = torch.optim.Adam([p])
    adam.step()
    return [state.nbytes for state in adam.state[p].values() if state.shape == p.shape]


def F182(it: Evidence) -> None:
    """In mixed precision the products of the forward are FP16 or BF16, 2 bytes an
    element."""
    it.as_printed(under_autocast()["y"] is torch.bfloat16)
    it.as_printed(torch.bfloat16.itemsize == 2 and torch.float16.itemsize == 2)


def F183(it: Evidence) -> None:
    """Attention's scores go to FP32 for the softmax, which avoids overflow.

    FP32 moves the overflow from scores of 12 to scores of 89. Subtracting each row's
    maximum avoids it, in FP16 too. FP32 buys the precision of the sum."""

    def finite(score: float, dtype: Any, shift: bool = False) -> bool:
        x = np.array([score, 0], dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            e = np.exp(x - x.max() if shift else x)
            return bool(np.isfinite(e / e.sum(dtype=dtype)).all())

    it.as_printed(finite(11, np.float16) and not finite(12, np.float16))
    it.as_printed(finite(12, np.float32) and finite(88, np.float32))
    it.elsewhere(finite(89, np.float32))
    it.right(finite(1e4, np.float16, shift=True))


def F184(it: Evidence) -> None:
    """The softmax intermediate takes 4 bytes per element; elsewhere the weights of
    attention count 2 bytes, 8 GiB per layer.

    If softmax's FP32 result is cast, autograd saves both: 16 + 8 GiB per layer."""
    it.clashes(4 * WHOLE != printed("1.4", "weights of attention") * GIB == 8 * GIB)
    it.right([b * WHOLE for b in saved_weights("float32")] == [16 * GIB, 8 * GIB])


def F185(it: Evidence) -> None:
    """Cross-entropy is computed in FP32, because it is sensitive to rounding.

    The loss of a probable token is small: its probability rounds to 1 in BF16, and the
    whole loss is lost. The mean of squares loses less than a hundredth."""

    scores = torch.tensor([9.0, 0.3, -0.7, 0.1], dtype=torch.float64)

    def lost(function: Any, dtype: Any) -> float:
        return abs(float(function(scores.to(dtype))) / float(function(scores)) - 1)

    half, full = torch.bfloat16, torch.float32
    losses = [lost(lambda x: -x.softmax(-1).log()[0], kind) for kind in (half, full)]
    it.as_printed(under_autocast()["loss"] is torch.float32)
    it.as_printed(losses[0] == 1 and losses[1] < 0.01)
    it.right(lost(lambda x: x.square().mean(), half) < 0.01)


def F186(it: Evidence) -> None:
    """Most gradients are computed in FP16 or BF16."""
    it.as_printed(under_autocast()["dy"] is torch.bfloat16)


def F187(it: Evidence) -> None:
    """Gradients are accumulated in FP32, because they are small and need precision.

    A term is lost because it is small beside the sum, not because it is small. With all
    terms 2⁴⁰ times smaller, a running sum in BF16 stops at the same share of the true
    sum."""
    large, small = (added(1e-3 * 2.0**power, "bfloat16") for power in (0, -40))
    it.as_printed(abs(added(1e-3, "float32") - 1) < 1e-3 and large < 0.1)
    it.elsewhere(small < large)
    it.right(small == large)


def F188(it: Evidence) -> None:
    """Master weights are FP32, because an update is tiny relative to its weight."""
    for share, dtype, moves in (
        (1e-5, "bfloat16", False),
        (1e-5, "float32", True),
        (0.1, "bfloat16", True),  # an update that is not tiny
    ):
        weight = torch.tensor(0.7, dtype=getattr(torch, dtype))
        it.as_printed(bool(weight - share * weight != weight) is moves)


def F189(it: Evidence) -> None:
    """Adam has two FP32 states a parameter, 4 + 4 bytes."""
    it.as_printed(of_adam(7, 3) == [4 * 21, 4 * 21])


def F190(it: Evidence) -> None:
    """Gradients are accumulated in FP32, 4 bytes; the list of bytes has gradients of 2
    bytes only, 140 GB.

    FP32 gradients of 70B parameters take 280 GB."""
    it.clashes(gigabytes(N, "float32") != printed("3.1", "gradients") == 140)
    it.right(gigabytes(N, "float32") == 280)


def F191(it: Evidence) -> None:
    """FP32 master weights of 70B parameters take 280 GB (decimal)."""
    takes(it, "master weights", "float32", 280)


def F192(it: Evidence) -> None:
    """Adam's mean and its mean square take 280 GB each."""
    takes(it, "first moment", "float32", 280)
    takes(it, "second moment", "float32", 280)


def F193(it: Evidence) -> None:
    """The working copy of the weights in FP16 takes 140 GB."""
    takes(it, "weights", "float16", 140)


def F194(it: Evidence) -> None:
    """Gradients in FP16 take 140 GB."""
    takes(it, "gradients", "float16", 140)


def F195(it: Evidence) -> None:
    """Without activations, training a 70B model takes 1,120 GB: 16 bytes per parameter.

    This holds for exactly 70 · 10⁹ parameters. Llama 3 70B has 70.55 · 10⁹, and needs
    1,129 GB."""
    parameters = cost.tally("llama-3-70b", 1, 8192).parameters
    it.as_printed(states() == 16 * N / GB == 1120 == printed("3.1", "states"))
    it.elsewhere(round(states(parameters)) == 1120)
    it.right(round(states(parameters)) == 1129 and round(parameters / GB, 2) == 70.55)


def F196(it: Evidence) -> None:
    """The 1,120 GB hold everything of the list above but activations.

    They lack the FP32 gradients in which the list accumulates: 1,260 GB if these
    replace the FP16 ones, 1,400 GB if both are alive at once."""
    both = 1120 + gigabytes(N, "float32")
    it.left_out(both - states())
    it.right(both == 1400 and both - gigabytes(N, "float16") == 1260)


def F197(it: Evidence) -> None:
    """GB has one meaning in the text.

    It is 10⁹ bytes for the states here, 1,000 MiB for activations in `§4.1`, which adds
    the two, and 2³⁰ bytes in `§4.3`."""
    shown = [round(80 * 2016 * MIB / unit, 1) for unit in (GB, 1_000 * MIB, GIB)]
    it.clashes(shown == [169.1, 161.3, 157.5])
    it.right(printed("4.1", "80 layers with flash attention") == round(shown[1]))
    it.right(printed("4.3", "no checkpoints, in GB") == shown[2])
    it.right(4 * N == printed("3.1", "master weights") * GB)


def F198(it: Evidence) -> None:
    """The states of a 70B model do not fit one H100, which has 80 GB."""
    it.as_printed(states() > gigabytes(N, "float16") > 80)


def F199(it: Evidence) -> None:
    """What a 70B model needs on 8 devices of 80 GB, 640 GB together, is ZeRO-3 or FSDP.

    It is not enough: sharding divides the bytes and does not remove any. 1,120 GB on 8
    devices are 140 GB each. Before any activation it takes 14 devices, or memory of the
    host."""
    it.as_printed(states() <= 8 * 80 == 640)
    it.right(8 * 80 == 640 and states() / 8 == 140 and states() == 1120)
    it.right(min(n for n in range(1, 99) if states() / n <= 80) == 14)


def F200(it: Evidence) -> None:
    """Even with the model divided among devices, it takes ZeRO-3 or FSDP to divide the
    optimiser's states.

    Each device's optimiser has states for its own weights only, so a divided model
    divides them. Among copies of a model, ZeRO-1 does."""
    whole, half = of_adam(6, 14), of_adam(6, 7)  # a matrix, and half of its columns
    it.as_printed(half == whole)
    it.right(2 * sum(half) == sum(whole))
