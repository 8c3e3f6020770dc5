"""How a check executes the kernels of a user's object, and what of them the user
accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# The number of an autotuned kernel's configurations, None for all, or a function that
# selects some.
Configurations = int | None | Callable[[Sequence[Any]], Sequence[Any]]
CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Kernels:
    """The arguments of ``check`` that concern compiled kernels.

    ``atomic_sums`` says that a kernel may add floating-point numbers in any order, and
    ``tf32_products`` that it may round the operands of products in float32 to TF32.
    """

    capability: tuple[int, int] = CAPABILITY
    configurations: Configurations = 1
    atomic_sums: bool = False
    tf32_products: bool = False

    @classmethod
    def of(cls, op: object, compiled: bool, **given: Any) -> Kernels:
        """Return the arguments as given, or as declared by the object. Raises
        ValueError for a choice of what is compiled if nothing is."""
        for name in ("capability", "configurations"):
            if not compiled and (value := given[name]) != getattr(cls, name):
                raise ValueError(
                    f"{name}={value!r}: expected compiled=True too, because only "
                    "compiled kernels depend on it"
                )
        for name in ("atomic_sums", "tf32_products"):
            given[name] = given[name] or bool(getattr(op, name.upper(), False))
        return cls(**given)
