"""Loss scaling, and the formats compared (§3.3)."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from ..evidence import Evidence
from ..tools import numbers, raises, same, torch
from .setting import tensors

CLAIMS = """
F217  true          0  precision  numerics/precision        §3.3, FP16's range
F218  caveat        1  precision  numerics/precision        §3.3, underflow
F219  uncheckable   0  precision  numerics/precision        §3.3, underflow, deep layers
F220  true          0  precision  numerics/precision        §3.3, loss scaling
F221  caveat        2  precision  numerics/precision        §3.3, loss scaling, factor
F222  caveat        1  precision  numerics/precision        §3.3, code, autocast
F223  true          0  loss       operations/cross_entropy  §3.3, code, loss
F224  caveat        2  loss       operations/cross_entropy  §3.3, code, loss, shapes
F225  true          0  precision  numerics/precision        §3.3, code, backward
F226  caveat        4  precision  numerics/precision        §3.3, code, unscaling
F227  true          0  precision  numerics/precision        §3.3, code, overflow, rule
F228  left-out      5  precision  numerics/precision        §3.3, code, overflow, check
F229  true          0  precision  numerics/precision        §3.3, BF16's range
F230  true          0  precision  numerics/precision        §3.3, BF16 without scaling
F231  inconsistent  1  precision  numerics/precision        §3.3, BF16's mantissa, against the table
F232  uncheckable   0  precision  numerics/precision        §3.3, BF16's hardware
F233  true          0  precision  numerics/precision        §3.3, table, FP32
F234  true          0  precision  numerics/precision        §3.3, table, BF16
F235  true          0  precision  numerics/precision        §3.3, table, FP16
F236  true          0  precision  numerics/precision        §3.3, table, FP8, bits and largest
F237  inconsistent  4  precision  numerics/precision        §3.3, table, FP8, smallest, against the other rows
F238  false         5  precision  numerics/precision        §3.3, table, FP8, gap
F239  caveat        2  precision  numerics/precision        §3.3, table, FP8, scaling
F240  uncheckable   0  precision  numerics/precision        §3.3, table, note
"""

INPUT = np.float16(0.02 * numbers(4001))


def gradient(scale: float, dtype: str, size: float = 1.0) -> Any:
    """Return the gradient that a backward in a format gives for weights of INPUT, with
    a loss of that size, scaled."""
    x = torch.tensor(INPUT, dtype=getattr(torch, dtype))
    w = torch.zeros_like(x, requires_grad=True)
    (scale * (size * (w * x).double().sum())).backward()
    return w.grad.double().numpy()


@cache
def all_numbers(dtype: str) -> Any:
    """Return every positive finite number of a format, in order."""
    kind = getattr(torch, dtype)
    codes = torch.arange(2 ** (8 * kind.itemsize - 1))
    codes = codes.to(torch.uint8 if kind.itemsize == 1 else torch.int16)
    values = codes.view(kind).double().numpy()
    return np.sort(values[np.isfinite(values) & (values > 0)])


def bits(dtype: str) -> tuple[int, int]:
    """Return the exponent and the mantissa bits of a format, from its numbers."""
    values = all_numbers(dtype)
    mantissa = int(((values >= 1) & (values < 2)).sum()).bit_length() - 1
    return 8 * getattr(torch, dtype).itemsize - 1 - mantissa, mantissa


def smallest_normal(dtype: str) -> float:
    """Return the smallest number that has all mantissa bits: from there on, the gap
    grows with the number."""
    values = all_numbers(dtype)
    gaps = np.diff(values)
    # Subnormal numbers and the first binade of normal ones share one gap.
    return float(values[np.argmax(gaps > gaps[0])] / 2)


def row(dtype: str) -> str:
    """Return a format's smallest normal number, its largest number, and its gap above
    1, as the table prints them."""
    values = all_numbers(dtype)
    gap = values[values > 1].min() - 1
    return f"{smallest_normal(dtype):.1e} {values[-1]:.1e} {gap:.1e}"


def unscaled(gradient: Any, dtype: str = "float32", scale: float = 1024.0) -> Any:
    """Return a PyTorch module whose one parameter has this gradient, divided in place
    as the listing does."""
    module = torch.nn.Module()
    kind = getattr(torch, dtype)
    module.w = torch.nn.Parameter(torch.ones(len(gradient), dtype=kind))
    module.w.grad = torch.tensor(gradient, dtype=kind).div_(scale)
    return module


def F217(it: Evidence) -> None:
    """FP16's smallest normal number is `6.1e-5`, its smallest subnormal one `6e-8`."""
    it.as_printed(f"{smallest_normal('float16'):.1e}" == "6.1e-05")
    it.as_printed(f"{all_numbers('float16')[0]:.0e}" == "6e-08")


def F218(it: Evidence) -> None:
    """FP16 gradients below these limits underflow to zero.

    Only gradients of at most half the smallest subnormal number become 0. Larger ones,
    up to the smallest normal number, lose bits."""
    smallest = all_numbers("float16")[0]
    it.as_printed(float(np.float16(0.4 * smallest)) == 0)
    it.elsewhere(float(np.float16(1e-5)) == 0)
    it.right(
        [float(np.float16(x * smallest)) > 0 for x in (0.5, 0.51)] == [False, True]
    )
    it.right(1e-3 < abs(float(np.float16(1.01e-6)) / 1.01e-6 - 1) < 0.1)


def F219(it: Evidence) -> None:
    """In deep layers, many gradients are below that.

    It depends on the network, the loss, and the batch."""


def F220(it: Evidence) -> None:
    """Multiplying the loss by 1024 or 4096 before the backward, and dividing the
    gradients by it after, leaves the gradients as they are.

    This holds to the last bit, because both factors are powers of two."""
    for scale in (1024, 4096):
        found = gradient(scale, "float64", 0.7) / scale
        it.as_printed((found == gradient(1, "float64", 0.7)).all())


def F221(it: Evidence) -> None:
    """A fixed factor of 1024 solves the underflow.

    Gradients below `2.9e-11` still vanish, and those above 64 overflow."""

    def through(gradient: float) -> float:
        with np.errstate(over="ignore"):
            return float(np.float32(np.float16(1024 * gradient)) / 1024)

    it.as_printed(abs(through(1e-7) / 1e-7 - 1) < 1e-3)
    it.elsewhere(through(2.8e-11) > 0)
    it.elsewhere(np.isfinite(through(64.0)))
    it.right(through(3e-11) > 0 and through(63.9) < 64)


def F222(it: Evidence) -> None:
    """FP16 autocast is `torch.cuda.amp.autocast(dtype=torch.float16)`.

    It works and is deprecated: `torch.autocast("cuda", dtype=torch.float16)`."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        context = torch.cuda.amp.autocast(dtype=torch.float16)
    it.as_printed(context.fast_dtype is torch.float16)
    it.elsewhere(not any("deprecated" in str(each.message) for each in found))


def F223(it: Evidence) -> None:
    """Inside autocast, the loss is computed in FP32."""
    x, w = (a.float() for a in tensors(numbers(3, 5), numbers(7, 5)))
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            scores = torch.nn.functional.linear(x, w)
            loss = torch.nn.functional.cross_entropy(scores, torch.tensor([6, 0, 2]))
        it.as_printed(scores.dtype is dtype and loss.dtype is torch.float32)


def F224(it: Evidence) -> None:
    """`cross_entropy(logits, labels)` takes the model's output and the labels.

    Scores [B, S, V] with labels [B, S] raise an error: PyTorch's wants both flattened,
    as the listing of the last section has them."""
    scores, labels = tensors(numbers(2, 3, 7), [[1, 0, 6], [2, 2, 5]])
    loss = torch.nn.functional.cross_entropy
    it.as_printed(loss(scores[0], labels[0]).ndim == 0)
    it.elsewhere(not raises((RuntimeError, ValueError), lambda: loss(scores, labels)))
    it.right(loss(scores.view(-1, 7), labels.view(-1)).ndim == 0)


def F225(it: Evidence) -> None:
    """After `scaled_loss.backward()` the gradients are 1024 times larger, and fewer
    underflow."""
    plain, scaled = (gradient(scale, "float16", 2**-20) for scale in (1, 1024))
    it.as_printed((scaled == 0).sum() < (plain == 0).sum() / 10)
    it.as_printed(same(scaled, 1024 * 2**-20 * np.float64(INPUT), 1e-3))


def F226(it: Evidence) -> None:
    """Division by the loss scale, in place, gives the gradients back.

    This holds if the gradients are FP32, as under autocast. FP16 gradients, as in the
    text's list of bytes, underflow in this division after all."""
    for note, dtype in ((it.as_printed, "float32"), (it.elsewhere, "float16")):
        found = unscaled([1024 * 2e-8, -1024 * 1e-8], dtype).w.grad
        note(same(found.double().numpy(), [2e-8, -1e-8], 1e-3))


def F227(it: Evidence) -> None:
    """After an overflow, skip the step and halve the scale; after 2000 steps without
    one, double it."""
    scaler = torch.amp.GradScaler("cpu")
    it.as_printed(scaler.get_backoff_factor() == 1 / 2)
    it.as_printed(scaler.get_growth_factor() == 2)
    it.as_printed(scaler.get_growth_interval() == 2000)


def F228(it: Evidence) -> None:
    """The listing unscales, checks for overflow, and steps.

    The check is a comment: a gradient that overflowed goes to the optimiser, and the
    weight is lost."""
    printed, other = (unscaled([np.inf, 1024.0, 2048.0], scale=s) for s in (1024, 1))
    torch.optim.Adam(printed.parameters(), lr=0.1).step()
    it.left_out(int((~printed.w.isfinite()).sum()))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(1))  # makes the scale
    scaler.step(torch.optim.Adam(other.parameters(), lr=0.1))
    it.right(bool((other.w == 1).all()))


def F229(it: Evidence) -> None:
    r"""BF16 has FP32's range, $\pm 3.4 \cdot 10^{38}$."""
    info = np.finfo(np.float32)
    for largest in (all_numbers("bfloat16")[-1], float(info.max)):
        it.as_printed(round(largest / 1e38, 1) == 3.4)
    it.as_printed(smallest_normal("bfloat16") == float(info.tiny))


def F230(it: Evidence) -> None:
    """BF16 largely makes loss scaling needless."""
    gradients = torch.tensor(1e-12 * numbers(4001))
    it.as_printed(bool((gradients.bfloat16() != 0).all()))
    it.as_printed(bool((gradients.half() == 0).all()))


def F231(it: Evidence) -> None:
    """BF16 has 8 bits of mantissa; in the table below it has 7.

    7 are stored. With the leading one there are 8, and then FP16 has 11 and FP32 24."""
    it.clashes(bits("bfloat16")[1] == 7 != 8)
    it.right(bits("float16")[1] + 1 == 11 and np.finfo(np.float32).nmant + 1 == 24)


def F232(it: Evidence) -> None:
    """BF16 is preferred where the hardware has it: A100, H100, and TPUs.

    This is a statement about usage. The data sheets of the three list BF16."""


def F233(it: Evidence) -> None:
    """FP32 has 8 exponent bits and 23 mantissa bits, reaches from `1e-38` to `3.4e38`,
    has a gap of `1.19e-7` at 1, and needs no loss scaling."""
    info = np.finfo(np.float32)
    it.as_printed((32 - 1 - info.nmant, info.nmant) == (8, 23))
    it.as_printed(f"{info.tiny:.0e} {info.max:.1e}" == "1e-38 3.4e+38")
    it.as_printed(f"{np.nextafter(np.float32(1), np.float32(2)) - 1:.2e}" == "1.19e-07")


def F234(it: Evidence) -> None:
    """BF16 has 8 exponent bits and 7 mantissa bits, reaches from `1e-38` to `3.4e38`,
    has a gap of `7.8e-3` at 1, and usually needs no loss scaling."""
    it.as_printed(bits("bfloat16") == (8, 7))
    it.as_printed(row("bfloat16") == "1.2e-38 3.4e+38 7.8e-03")


def F235(it: Evidence) -> None:
    """FP16 has 5 exponent bits and 10 mantissa bits, reaches from `6.1e-5` to 65504,
    has a gap of `9.8e-4` at 1, and needs loss scaling."""
    it.as_printed(bits("float16") == (5, 10) and all_numbers("float16")[-1] == 65504)
    it.as_printed(row("float16") == "6.1e-05 6.6e+04 9.8e-04")


def F236(it: Evidence) -> None:
    """FP8 (E4M3) has 4 exponent bits and 3 mantissa bits, and goes to 448."""
    it.as_printed(bits("float8_e4m3fn") == (4, 3))
    it.as_printed(all_numbers("float8_e4m3fn")[-1] == 448)


def F237(it: Evidence) -> None:
    """E4M3's range begins at `1.95e-3`, in a column that gives the smallest normal
    number of the other formats.

    `1.95e-3` is its smallest subnormal number. The smallest normal one is `1.56e-2`,
    eight times as large."""
    smallest, normal = all_numbers("float8_e4m3fn")[0], smallest_normal("float8_e4m3fn")
    it.right(f"{smallest:.2e} {normal:.2e}" == "1.95e-03 1.56e-02")
    it.clashes(normal == 8 * smallest)
    it.clashes(all_numbers("float16")[0] != smallest_normal("float16"))


def F238(it: Evidence) -> None:
    """E4M3's precision at 1 is `6.25e-2`.

    The other rows give the gap above 1, which is 0.125 here. 0.0625 is the gap
    below."""
    values = all_numbers("float8_e4m3fn")
    below, above = 1 - values[values < 1].max(), values[values > 1].min() - 1
    it.as_printed(above == 6.25e-2)
    it.right(above == 0.125 and below == 0.0625)


def F239(it: Evidence) -> None:
    """FP8 needs loss scaling.

    One factor for the loss is not enough: gradients that FP16 holds can span more than
    E4M3's whole range. FP8 training scales each tensor or block."""
    values = all_numbers("float8_e4m3fn")
    least, most = values[0] / 2, values[-1]
    gradients = np.array([2.0**-24, 1.0])
    scaled = np.multiply.outer(2.0 ** np.arange(-40, 60), gradients)  # a factor a row
    held = (scaled > least) & (scaled <= most)
    it.as_printed(bool(1e-4 < least))  # without scaling it becomes 0
    it.elsewhere(held.all(1).any())
    it.right(held.any(0).all() and (np.float16(gradients) > 0).all())


def F240(it: Evidence) -> None:
    """BF16 is the default for training language models, because of FP32's range.

    This is a statement about usage."""
