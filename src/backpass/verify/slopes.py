"""List derivatives that a backward may take for those of a function.

They are functions of the argument z and of the result y, each by its name in a
diagnosis. A function of PyTorch that is one operation, such as ``silu``, also has
derivatives of its own, of which a part is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Slope = Callable[[Any, Any], Any]

SLOPES: dict[str, Slope] = {
    "1": lambda z, y: y * 0 + 1,
    "y, its result": lambda z, y: y,
    "1 − y, where y is its result": lambda z, y: 1 - y,
    "y·(1 − y), where y is its result": lambda z, y: y * (1 - y),
    "1 − y², where y is its result": lambda z, y: 1 - y * y,
}

S = "where s is the sigmoid of its argument z"
PHI = "where Φ is the normal distribution of its argument z, and φ its density"


def _normal(z: Any) -> Any:
    return (1 + (z / math.sqrt(2)).erf()) / 2


def _density(z: Any) -> Any:
    return (-z * z / 2).exp() / math.sqrt(2 * math.pi)


# Those of functions of PyTorch, by name.
OF_FUNCTIONS: dict[str, dict[str, Slope]] = {
    "silu": {
        f"s, {S}": lambda z, y: z.sigmoid(),
        f"z·s·(1 − s), {S}": lambda z, y: y * (1 - z.sigmoid()),
        f"s·(1 − s), {S}": lambda z, y: z.sigmoid() * (1 - z.sigmoid()),
        f"s + s·(1 − s), {S}": lambda z, y: z.sigmoid() * (2 - z.sigmoid()),
        f"s·(1 − z·(1 − s)), {S}": lambda z, y: z.sigmoid() - y * (1 - z.sigmoid()),
        f"s·(1 + z·s), {S}": lambda z, y: z.sigmoid() * (1 + y),
    },
    "gelu": {
        f"Φ, {PHI}": lambda z, y: _normal(z),
        f"z·φ, {PHI}": lambda z, y: z * _density(z),
        f"φ, {PHI}": lambda z, y: _density(z),
        f"Φ + φ, {PHI}": lambda z, y: _normal(z) + _density(z),
        f"Φ − z·φ, {PHI}": lambda z, y: _normal(z) - z * _density(z),
        f"Φ + z·φ, {PHI}": lambda z, y: _normal(z) + z * _density(z),
    },
    "softplus": {
        f"1 − s, {S}": lambda z, y: 1 - z.sigmoid(),
        f"s·(1 − s), {S}": lambda z, y: z.sigmoid() * (1 - z.sigmoid()),
    },
}


def slope_of(name: str, function: str) -> Slope:
    """Return the derivative of that name, for all functions or for this one."""
    return SLOPES[name] if name in SLOPES else OF_FUNCTIONS[function][name]
