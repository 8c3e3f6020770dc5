"""Which format holds what, and how many bytes that is for 70B parameters (§3.1)."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from backpass import cost
from backpass.cost import sources
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.heads import saved_weights
from backpass_ledger.claims.tools import numbers, torch

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
F199  left-out      3  parallel   cost/memory               §3.1, after the list, eight devices (implied)
F200  false         3  parallel   cost/memory               §3.1, after the list, optimiser states
"""


GB, GIB = 10**9, 2**30
N = 70 * 10**9


def gigabytes(elements: float, dtype: str) -> float:
    """Return the decimal gigabytes of that many elements of a PyTorch format."""
    return elements * torch.empty(1, dtype=getattr(torch, dtype)).element_size() / GB


def printed(name: str) -> int:
    """Return a figure of the list of §3.1."""
    rows = (n for n in sources.NUMBERS if n.source == sources.GRADIENT_FLOW)
    return next(int(n.printed) for n in rows if (n.place, n.name) == ("3.1", name))


def under_autocast() -> dict[str, Any]:
    """Run a linear layer and a loss in BF16 autocast, with FP32 weights, and return the
    formats of the output, its gradient, the loss, and the weight's gradient."""
    w = torch.tensor(numbers(9, 7), dtype=torch.float32, requires_grad=True)
    found: dict[str, Any] = {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.nn.functional.linear(torch.tensor(numbers(5, 7)).float(), w)
        y.register_hook(lambda dy: found.update(dy=dy.dtype))
        loss = torch.nn.functional.cross_entropy(y, torch.tensor([1, 8, 3, 0, 5]))
    loss.backward()
    assert w.grad is not None
    return found | {"y": y.dtype, "loss": loss.dtype, "dw": w.grad.dtype}


def added(size: float, dtype: str, count: int = 10_000) -> float:
    """Return count·size as a running sum in a format has it, relative to the truth."""
    total = torch.tensor(0.0, dtype=getattr(torch, dtype))
    step = torch.tensor(size, dtype=getattr(torch, dtype))
    for _ in range(count):
        total += step
    return float(total) / (count * float(step))


def F182(it: Evidence) -> None:
    """In mixed precision the products of the forward are FP16 or BF16, 2 bytes an
    element."""
    it.as_printed(under_autocast()["y"] is torch.bfloat16)
    it.as_printed(torch.bfloat16.itemsize == 2 and torch.float16.itemsize == 2)


def F183(it: Evidence) -> None:
    """Attention's scores go to FP32 for the softmax, which avoids overflow.

    FP32 moves the overflow from scores of 12 to scores of 89. What avoids it is
    subtracting each row's maximum, and that works in FP16 too. FP32 buys the precision
    of the sum.
    """

    def softmax(scores: list[float], dtype: Any, shift: bool) -> Any:
        x = np.array(scores, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            e = np.exp(x - x.max() if shift else x)
            return e / e.sum(dtype=dtype)

    it.as_printed(np.isnan(softmax([12, 0], np.float16, False)).any())
    it.as_printed(np.isfinite(softmax([12, 0], np.float32, False)).all())
    it.elsewhere(np.isfinite(softmax([89, 0], np.float32, False)).all())
    it.right(np.isfinite(softmax([1e4, 0], np.float16, True)).all())


def F184(it: Evidence) -> None:
    """The softmax intermediate takes 4 bytes an element; elsewhere the weights of
    attention count 2 bytes, 8 GiB a layer.

    If softmax runs in FP32 and its result is cast, autograd saves both: 16 + 8 GiB a
    layer.
    """
    elements = 64 * 8192**2
    row = next(n for n in sources.NUMBERS if n.name == "weights of attention")
    it.clashes(4 * elements != int(row.printed) * GIB)
    it.right([b * elements for b in saved_weights("float32")] == [16 * GIB, 8 * GIB])


def F185(it: Evidence) -> None:
    """Cross-entropy is computed in FP32, because it is sensitive to rounding.

    The loss of a probable token is small: its probability rounds to 1 in BF16, and the
    whole loss is lost. The mean of squares loses less than a hundredth.
    """

    def loss(x: Any) -> Any:
        return -torch.log(torch.softmax(x, -1))[0]

    def lost(function: Any, dtype: Any) -> float:
        scores = torch.tensor([9.0, 0.3, -0.7, 0.1], dtype=torch.float64)
        return abs(float(function(scores.to(dtype))) / float(function(scores)) - 1)

    it.as_printed(under_autocast()["loss"] is torch.float32)
    it.as_printed(lost(loss, torch.bfloat16) == 1 and lost(loss, torch.float32) < 0.01)
    it.right(lost(lambda x: x.square().mean(), torch.bfloat16) < 0.01)


def F186(it: Evidence) -> None:
    """Most gradients are computed in FP16 or BF16."""
    it.as_printed(under_autocast()["dy"] is torch.bfloat16)


def F187(it: Evidence) -> None:
    """Gradients are accumulated in FP32, because they are small and need precision.

    FP32 is needed, but not because they are small: a running sum of BF16 numbers stops
    at the same share of the truth if all are 2⁴⁰ times smaller. A term is lost that is
    small beside the sum.
    """
    it.as_printed(abs(added(1e-3, "float32") - 1) < 1e-3)
    it.as_printed(added(1e-3, "bfloat16") < 0.1)
    it.elsewhere(added(1e-3 * 2.0**-40, "bfloat16") < added(1e-3, "bfloat16"))
    it.right(added(1e-3 * 2.0**-40, "bfloat16") == added(1e-3, "bfloat16"))


def F188(it: Evidence) -> None:
    """Master weights are FP32, because an update is tiny relative to its weight."""
    for size, dtype, moves in ((1e-5, "bfloat16", False), (1e-5, "float32", True)):
        weight = torch.tensor(0.7, dtype=getattr(torch, dtype))
        it.as_printed(bool(weight - size * weight != weight) is moves)
    coarse = torch.tensor(0.7, dtype=torch.bfloat16)
    it.as_printed(bool(coarse - 0.1 * coarse != coarse))  # an update that is not tiny


def F189(it: Evidence) -> None:
    """Adam has two FP32 states a parameter, 4 + 4 bytes."""
    p = torch.nn.Parameter(torch.tensor(numbers(7, 3)).float())
    p.grad = torch.ones_like(p)
    adam = torch.optim.Adam([p])
    adam.step()
    sizes = [v.nbytes for v in adam.state[p].values() if v.shape == p.shape]
    it.as_printed(sizes == [4 * p.numel(), 4 * p.numel()])


def F190(it: Evidence) -> None:
    """Gradients are accumulated in FP32, 4 bytes; the list of bytes has gradients of 2
    bytes only, 140 GB.

    FP32 gradients of 70B parameters take 280 GB.
    """
    it.clashes(gigabytes(N, "float32") != printed("gradients") == 140)
    it.right(gigabytes(N, "float32") == 280)


def F191(it: Evidence) -> None:
    """FP32 master weights of 70B parameters take 280 GB (decimal)."""
    it.as_printed(gigabytes(N, "float32") == printed("master weights") == 280)


def F192(it: Evidence) -> None:
    """Adam's mean and its mean square take 280 GB each."""
    it.as_printed(gigabytes(N, "float32") == printed("first moment") == 280)
    it.as_printed(gigabytes(N, "float32") == printed("second moment") == 280)


def F193(it: Evidence) -> None:
    """The working copy of the weights in FP16 takes 140 GB."""
    it.as_printed(gigabytes(N, "float16") == printed("weights") == 140)


def F194(it: Evidence) -> None:
    """Gradients in FP16 take 140 GB."""
    it.as_printed(gigabytes(N, "float16") == printed("gradients") == 140)


def F195(it: Evidence) -> None:
    """Without activations, training a 70B model takes 1,120 GB: 16 bytes a parameter.

    The rows add up for exactly 70 · 10⁹ parameters. Llama 3 70B has 70.55 · 10⁹, and
    needs 1,129 GB.
    """
    states = ["float32"] * 3 + ["float16"] * 2
    it.as_printed(sum(gigabytes(N, dtype) for dtype in states) == 1120)
    parameters = cost.tally("llama-3-70b", 1, 8192).parameters
    whole = sum(gigabytes(parameters, dtype) for dtype in states)
    it.elsewhere(round(whole) == 1120)
    it.right(round(whole) == 1129 and round(parameters / GB, 2) == 70.55)


def F196(it: Evidence) -> None:
    """The 1,120 GB hold everything of the list above but activations.

    They lack the FP32 gradients in which the list accumulates: 1,260 GB if these
    replace the FP16 ones, 1,400 GB if both are alive at once.
    """
    both = 1120 + gigabytes(N, "float32")
    it.left_out(both - 1120)
    it.right(both == 1400 and both - gigabytes(N, "float16") == 1260)


def F197(it: Evidence) -> None:
    """GB has one meaning in the text.

    It has three: 10⁹ bytes for the states here, 1,000 MiB for activations in `§4.1`,
    and 2³⁰ bytes in `§4.3`. `§4.1` then adds the first two.
    """
    activations = 80 * 2016 * 2**20
    units = {"GB": GB, "GB of 1000 MiB": 1000 * 2**20, "GiB": GIB}
    shown = {name: round(activations / unit, 1) for name, unit in units.items()}
    it.right(shown == {"GB": 169.1, "GB of 1000 MiB": 161.3, "GiB": 157.5})
    it.right(4 * N == 280 * GB)
    it.clashes(len(set(shown.values())) == 3)


def F198(it: Evidence) -> None:
    """The states of a 70B model need several accelerators: one H100 has 80 GB."""
    states = ["float32"] * 3 + ["float16"] * 2
    it.as_printed(ceil(sum(gigabytes(N, dtype) for dtype in states) / 80) > 1)


def F199(it: Evidence) -> None:
    """With ZeRO-3 or FSDP over 8 devices of 80 GB, 640 GB together, the training
    states of a 70B model fit.

    The text does not count the devices that sharding needs. It divides the bytes and
    does not remove any: 1,120 GB on 8 devices are 140 GB each. Before any activation it
    takes 14 devices, or memory of the host.
    """
    states = sum(gigabytes(N, d) for d in ["float32"] * 3 + ["float16"] * 2)
    it.left_out(max(states - 8 * 80, 0))
    it.right(8 * 80 == 640 and states / 8 == 140 and states == 1120)
    it.right(min(n for n in range(1, 99) if states / n <= 80) == 14)


def F200(it: Evidence) -> None:
    """Even with the model divided among devices, it takes ZeRO-3 or FSDP to divide the
    optimiser's states.

    Each device's optimiser has states for its own weights only, so a divided model
    divides them. Among copies of a model, ZeRO-1 already divides them; ZeRO-3 also
    divides weights and gradients.
    """

    def states(*shape: int) -> int:
        p = torch.nn.Parameter(torch.tensor(numbers(*shape)).float())
        p.grad = torch.ones_like(p)
        adam = torch.optim.Adam([p])
        adam.step()
        return sum(v.nbytes for v in adam.state[p].values() if v.shape == p.shape)

    whole, half = states(6, 14), states(6, 7)  # a matrix, and half of its columns
    it.as_printed(half == whole)
    it.right(2 * half == whole)
