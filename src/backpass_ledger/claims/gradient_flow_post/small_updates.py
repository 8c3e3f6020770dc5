"""An update that is small beside its weight (§3.2)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from backpass.training import formats

from ..evidence import Evidence
from ..tools import numbers, torch

CLAIMS = """
F201  false   3  precision  numerics/precision  §3.2, heading
F202  true    0  precision  numerics/precision  §3.2, example
F203  caveat  5  optimiser  numerics/optimiser  §3.2, example, rule
F204  false   4  precision  numerics/precision  §3.2, FP16, spacing
F205  caveat  1  precision  numerics/precision  §3.2, FP16, ratio
F206  caveat  1  precision  numerics/precision  §3.2, FP16, result
F207  false   2  precision  numerics/precision  §3.2, BF16, spacing
F208  caveat  1  precision  numerics/precision  §3.2, BF16, result
F209  false   3  precision  numerics/precision  §3.2, FP32, spacing
F210  false   8  precision  numerics/precision  §3.2, FP32, result
F211  false   5  precision  numerics/precision  §3.2, rule
F212  caveat  3  optimiser  numerics/optimiser  §3.2, momentum, sum
F213  false   8  optimiser  numerics/optimiser  §3.2, momentum, what it keeps
F214  false   4  precision  numerics/precision  §3.2, conclusion, weights
F215  false   3  optimiser  numerics/optimiser  §3.2, conclusion, optimiser states
F216  caveat  2  precision  numerics/precision  §3.2, conclusion, many steps
"""

RATE, GRADIENT = 3e-4, 1e-4
UPDATE = 3e-8


def gaps(dtype: str) -> tuple[float, float]:
    """Return the distance from 1 to the next number of a format below and above it."""
    one = torch.tensor(1.0, dtype=getattr(torch, dtype))
    below, above = torch.nextafter(one, 0 * one), torch.nextafter(one, 2 * one)
    return 1 - float(below), float(above) - 1


def smallest(it: Evidence, dtype: str, power: int) -> tuple[float, float]:
    """Judge that a power of 2 is the smallest difference from 1; return the gaps."""
    below, above = gaps(dtype)
    it.as_printed(min(below, above) == 2.0**power)
    it.right(above == 2.0**power and below == 2.0 ** (power - 1))
    return below, above


def stepped(dtype: str, update: float = UPDATE, steps: int = 1) -> float:
    """Subtract an update from 1.0 in a format, and return the weight."""
    weight = torch.tensor(1.0, dtype=getattr(torch, dtype))
    for _ in range(steps):
        weight -= torch.tensor(update, dtype=weight.dtype)
    return float(weight)


def change(optimiser: str) -> float:
    """Return how far a step of a PyTorch optimiser moves the weight 1.0."""
    p = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    p.grad = torch.full_like(p, GRADIENT)
    getattr(torch.optim, optimiser)([p], lr=RATE).step()
    return 1 - float(p.detach())


def F201(it: Evidence) -> None:
    """The example of the lost update shows why gradients have to be FP32.

    It shows why the weights have to: with FP32 weights, the update survives an FP16
    gradient; with FP16 weights, an FP32 gradient does not help."""
    half = float(np.float16(GRADIENT))
    it.as_printed(stepped("float16", RATE * GRADIENT) != 1)
    it.right(stepped("float32", RATE * half) != 1 and abs(half / GRADIENT - 1) < 1e-3)


def F202(it: Evidence) -> None:
    r"""$W = 1$, $g = 10^{-4}$, and $\eta = 3 \cdot 10^{-4}$ give the update $\eta g =
    0.00000003$ and $W = 0.99999997$."""
    update = Fraction(3, 10**4) * Fraction(1, 10**4)
    it.as_printed(update == Fraction("0.00000003") and float(update) == 0.00000003)
    it.as_printed(float(1 - update) == 0.99999997)


def F203(it: Evidence) -> None:
    r"""The update of this weight is $\eta g$.

    This holds for SGD. The text trains with Adam, whose first step is $\eta$ whatever
    the gradient: here 10,000 times as large as $\eta g$, and large enough to change an
    FP16 weight."""
    it.as_printed(abs(change("SGD") / UPDATE - 1) < 1e-6)
    it.elsewhere(abs(change("Adam") / UPDATE - 1) < 0.5)
    it.right(abs(change("Adam") / (10_000 * UPDATE) - 1) < 1e-3)
    it.right(stepped("float16", RATE) < 1)


def F204(it: Evidence) -> None:
    r"""FP16 has a smallest difference from 1.0 of $2^{-10} \approx 0.000977$.

    The number is the gap above 1. The gap below 1, where this update goes, is half of
    it, $2^{-11}$."""
    _, above = smallest(it, "float16", -10)
    it.right(round(above, 6) == 0.000977 and float(np.float16(1.0)) == 1.0)


def F205(it: Evidence) -> None:
    """The update is 32,000 times smaller than FP16's precision at 1.

    The gap above is 32,552 times the update. Half the gap below decides: 8,138 times
    the update, since sums are rounded to the nearest number."""
    below, above = gaps("float16")
    it.as_printed(above / UPDATE // 1000 * 1000 == 32_000)
    it.elsewhere(below / 2 / UPDATE // 1000 * 1000 == 32_000)
    it.right(round(above / UPDATE) == 32_552 and round(below / 2 / UPDATE) == 8_138)


def F206(it: Evidence) -> None:
    """In FP16 the update is rounded to zero, and the weight never changes.

    The difference is rounded to 1. The update itself is not rounded to zero: in FP16 it
    is the smallest subnormal number."""
    it.as_printed(stepped("float16", steps=10_000) == 1)
    it.elsewhere(float(np.float16(UPDATE)) == 0)
    it.right(float(np.float16(UPDATE)) == 2.0**-24)


def F207(it: Evidence) -> None:
    r"""BF16 has a smallest difference from 1 of $2^{-7} \approx 0.0078$.

    The number is the gap above 1; below it is $2^{-8} \approx 0.0039$."""
    below, above = smallest(it, "bfloat16", -7)
    it.right(round(above, 4) == 0.0078 and round(below, 4) == 0.0039)


def F208(it: Evidence) -> None:
    """BF16's gap is 260,000 times the update, which is lost.

    The gap above 1 is 260,417 times the update. Half the gap below decides: 65,104
    times the update."""
    below, above = gaps("bfloat16")
    it.as_printed(round(above / UPDATE, -4) == 260_000)
    it.as_printed(stepped("bfloat16", steps=1000) == 1)
    it.elsewhere(round(below / 2 / UPDATE, -4) == 260_000)
    it.right(round(above / UPDATE) == 260_417 and round(below / 2 / UPDATE) == 65_104)


def F209(it: Evidence) -> None:
    r"""FP32 has a smallest difference from 1 of $2^{-23}$, `1.19e-7`.

    The number is the gap above 1; below it is $2^{-24}$, `5.96e-8`."""
    below, above = smallest(it, "float32", -23)
    it.right(f"{above:.2e} {below:.2e}" == "1.19e-07 5.96e-08")


def F210(it: Evidence) -> None:
    r"""An update of $3 \cdot 10^{-8}$ is below FP32's gap, so FP32 loses it in a step.

    FP32 doubles the step: the update exceeds $2^{-25}$, half the gap below 1, so the
    weight becomes $1 - 2^{-24} \approx 0.99999994$. After 10,000 such steps it is
    0.9994, where 0.9997 is right. Upwards from 1 the same update would be lost."""
    it.as_printed(stepped("float32") == 1)
    it.right(stepped("float32") == 1 - 2**-24 and UPDATE > 2**-25)
    it.right(round(stepped("float32"), 8) == 0.99999994)
    it.right(round(stepped("float32", steps=10_000), 4) == 0.9994)
    it.right(round(1 - 10_000 * UPDATE, 4) == 0.9997)
    it.right(stepped("float32", -UPDATE, 1000) == 1)


def F211(it: Evidence) -> None:
    """An update below the gap of a format at the weight is lost.

    It is lost if it is below half the gap on the side to which it goes (at half
    exactly, the even neighbour wins)."""
    for share in (0.3, 0.4, 0.5, 0.6, 0.9):
        for sign, gap in zip((1, -1), gaps("float16"), strict=True):
            lost = float(np.float16(1 - sign * share * gap)) == 1
            it.as_printed(lost)
            it.right(lost is (share <= 0.5))


def F212(it: Evidence) -> None:
    """Adam's momentum accumulates gradients over many steps.

    It averages about the last ten: their share of it is 65 %. Under a constant gradient
    it tends to that gradient, and does not grow with the number of steps."""

    def momentum(steps: int) -> float:
        p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        p.grad = torch.full_like(p, GRADIENT)
        adam = torch.optim.Adam([p], lr=RATE)
        for _ in range(steps):
            adam.step()
        return float(adam.state[p]["exp_avg"])

    it.as_printed(momentum(10) > 6 * momentum(1))
    it.elsewhere(momentum(1000) > 6 * momentum(10))
    it.right(abs(momentum(10) / momentum(1000) - 0.65) < 0.005)
    it.right(abs(momentum(1000) / GRADIENT - 1) < 1e-9)


def F213(it: Evidence) -> None:
    """What rounding takes from the weight is preserved in Adam's FP32 momentum.

    No state of Adam holds it. With BF16 weights and FP32 moments, a thousand steps of a
    thousandth of the gap leave the weight where it is. A finer copy of the weight, or a
    compensated sum, keeps the rest."""
    p = torch.nn.Parameter(torch.ones(1))
    p.grad = torch.full_like(p, GRADIENT)
    adam, coarse = torch.optim.Adam([p], lr=4e-6), torch.ones(1).bfloat16()
    for _ in range(1000):
        before = p.detach().clone()
        adam.step()
        coarse = (coarse.float() + (p.detach() - before)).bfloat16()
    it.as_printed(float(coarse) != 1)
    it.right(float(coarse) == 1 and abs(float(p.detach()) - 0.996) < 1e-4)


def F214(it: Evidence) -> None:
    """Weights that are updated must be FP32.

    It is enough that adding the updates loses nothing. BF16 weights achieve this too:
    on average with stochastic rounding, or with a second BF16 number that stores what
    rounding took."""
    weights, update, rng = np.ones(4000), 2.0**-11, np.random.default_rng(7)
    kept, rest = np.ones(1), np.zeros(1)
    for _ in range(64):
        noise = rng.uniform(size=weights.shape)
        weights = formats.rounded(weights - update, formats.BF16, noise=noise)
        wanted = formats.rounded(rest - update, formats.BF16)
        new = formats.rounded(kept + wanted, formats.BF16)
        rest, kept = formats.rounded(wanted - (new - kept), formats.BF16), new
    close = [abs(w.mean() - (1 - 64 * update)) < 1e-3 for w in (weights, kept)]
    it.as_printed(not any(close))
    it.right(all(close) and stepped("bfloat16", update, 64) == 1)


def F215(it: Evidence) -> None:
    r"""Adam's states must be FP32.

    The argument is about the weights' sum. With moments rounded to BF16 and $\beta_2 =
    0.95$, a least-squares fit with FP32 weights ends within 1 % of the same decrease of
    the loss. With 0.999, a second moment that is rounded to the nearest BF16 number
    cannot fall. DeepSeek-V3 was trained with BF16 moments."""
    x, y = numbers(40, 6), numbers(40, seed=1)

    def losses(bf16: bool) -> list[float]:
        w, m, v, found = np.zeros(6), np.zeros(6), np.zeros(6), []
        for t in range(1, 301):
            found.append(float(np.square(x @ w - y).mean()))
            g = 2 * x.T @ (x @ w - y) / 40
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            if bf16:
                m, v = (formats.rounded(a, formats.BF16) for a in (m, v))
            w = w - 0.01 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        return found

    fine, coarse = losses(False), losses(True)
    close = abs(fine[-1] - coarse[-1]) < 0.01 * (fine[0] - fine[-1])
    it.as_printed(not close)
    it.right(close and fine[-1] < fine[0])
    v = 1 + np.arange(128) / 128  # every BF16 number from 1 to 2
    it.right((formats.rounded(0.999 * v, formats.BF16) == v).all())
    it.right((formats.rounded(0.95 * v, formats.BF16) < v).all())


def F216(it: Evidence) -> None:
    """Updates that are too small for 16 bits accumulate, in FP32, to a meaningful
    change over thousands of steps.

    They do, but in this example FP32 itself makes the change twice too large."""
    moved = 1 - stepped("float32", steps=10_000)
    it.as_printed(moved > 1e-4 and stepped("float16", steps=10_000) == 1)
    it.elsewhere(abs(moved / (10_000 * UPDATE) - 1) < 0.1)
    it.right(1.9 < moved / (10_000 * UPDATE) < 2.1)
