"""What a planner asks of a step: whether it fits, how long it takes, and what a run of
so many tokens costs."""

from __future__ import annotations

import argparse
import math
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from backpass.commands.command import value
from backpass.cost.budget import Budget
from backpass.cost.cluster import CLUSTERS

REACHED = 2 / 3  # of the predicted rate: what published runs reached
UNIT = 10**9  # tokens, if the run's are not given
DAYS = 2 * 86_400  # seconds above which a time is in days instead of hours
_SUFFIXES = {"k": 3, "K": 3, "M": 6, "B": 9, "G": 9, "T": 12}


def _tokens(text: str) -> int:
    """Return the number that 300B, 300e9, or 300,000,000,000 writes, for argparse."""
    digits = text.strip().replace(",", "")
    power = _SUFFIXES.get(digits[-1:], 0)
    number = _decimal(digits[:-1] if power else digits) * 10**power
    if number <= 0:
        raise argparse.ArgumentTypeError(
            f"expected a number above 0, such as 300B or 1.5e13; got {text!r}"
        )
    return math.ceil(number)


def _amount(text: str) -> float:
    """Return a number above 0, for argparse."""
    number = float(_decimal(text))
    if number <= 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0; got {text!r}")
    return number


def _decimal(text: str) -> Decimal:
    """Return the number that a text writes; 0 if it writes none, or none that ends."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return Decimal(0)
    return number if number.is_finite() else Decimal(0)


OPTIONS = (
    value(
        "--memory",
        "GIB",
        "the memory of a GPU in GiB, instead of the machine's",
        type=_amount,
    ),
    value(
        "--tokens",
        "N",
        "the tokens of a run, such as 300B or 3e11 (default 1e9)",
        type=_tokens,
    ),
    value("--price", "P", "the price of a GPU-hour", type=_amount),
)


class Plan(NamedTuple):
    """A step in bfloat16 on so many GPUs, at the published peaks of a machine."""

    machine: str
    ranks: int
    budget: Budget
    seconds: float
    tokens: int  # of a step
    arguments: argparse.Namespace  # of OPTIONS

    @property
    def capacity(self) -> float:
        """The bytes of a GPU's memory."""
        if self.arguments.memory is not None:
            return self.arguments.memory * 2**30
        return CLUSTERS[self.machine].device.capacity  # type: ignore[return-value]

    @property
    def fits(self) -> bool:
        """Whether the bytes of the step fit."""
        return self.budget.bytes <= self.capacity

    @property
    def run(self) -> dict[str, Any]:
        """What the whole run takes at best. Its steps are whole; without a number of
        tokens, they are those of UNIT tokens, in part."""
        given, price = self.arguments.tokens, self.arguments.price
        steps = UNIT / self.tokens if given is None else -(-given // self.tokens)
        seconds = steps * self.seconds
        hours = seconds * self.ranks / 3600
        found = {"tokens": given or UNIT, "seconds": seconds, "gpu_hours": hours}
        return found if price is None else {**found, "price": price * hours}

    def facts(self) -> dict[str, Any]:
        """Return what the lines say, in numbers."""
        shares = (share for share in self.budget.shares if share.summed)
        return {
            "cluster": self.machine,
            "ranks": self.ranks,
            "bytes": {share.what: share.bytes for share in shares},
            "capacity": self.capacity,
            "fits": self.fits,
            "seconds": self.seconds,
            "run": self.run,
            "reached": REACHED,
        }

    def lines(self) -> list[str]:
        """Return whether the step fits, its time, and what a run takes."""
        many = self.ranks > 1
        where = f"the fullest of {self.ranks:,} GPUs" if many else "one GPU"
        held, capacity = (n / 2**30 for n in (self.budget.bytes, self.capacity))
        step, peaks = self.seconds, f"published {self.machine.upper()} peaks"
        on = f"on {self.ranks:,} GPUs" if many else "on one GPU"
        return [
            f"{'fits' if self.fits else 'does not fit'}: {significant(held)} of "
            f"{significant(capacity)} GiB on {where}, with AdamW in bfloat16",
            f"a step: {significant(step)} s at best ({peaks}), "
            f"{significant(step / REACHED)} s as runs reach",
            f"{self.run['tokens']:,} tokens {on}:",
            f"  {self._costs(1)} at best",
            f"  {self._costs(1 / REACHED)} as runs reach",
        ]

    def _costs(self, times: float) -> str:
        run = self.run
        seconds, hours = times * run["seconds"], times * run["gpu_hours"]
        found = [f"{significant(hours)} GPU-hours"]
        if seconds >= DAYS:
            found.insert(0, f"{significant(seconds / 86_400)} days")
        elif self.ranks > 1:
            found.insert(0, f"{significant(seconds / 3600)} h")
        if "price" in run:
            found.append(f"price {significant(times * run['price'])}")
        return ", ".join(found)


def significant(number: float) -> str:
    """Return a number above 0 with four significant digits."""
    places = 3 - int(f"{number:.3e}".partition("e")[2])
    return f"{round(number, places):,.{max(0, places)}f}"
