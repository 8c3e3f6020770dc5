"""The lines of an operation as a compiler should see them.

Each change computes the same, in loops that take less time on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from backpass import torch_internals as internals
from backpass.contract.arrays import traced

aten = torch.ops.aten

BLOCK = 64  # rows that a sum over rows adds at a time
_PRODUCTS = {
    aten.div.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.mul_.Tensor,
}


@contextmanager
def seen_by_a_compiler() -> Iterator[None]:
    """Return a context for lines that a compiler traces."""
    with traced(), _Simplified():
        yield


class _Simplified(internals.TorchDispatchMode):
    """A mode that replaces two kinds of calls.

    A division by a power of two becomes a multiplication, which has the same result. A
    sum over the rows of a matrix first adds blocks of ``BLOCK`` rows: Inductor's loops
    for one sum go down the columns, and each step reads another row.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS and not kwargs and _is_power_of_two(args[1]):
            return _PRODUCTS[func](args[0], 1 / args[1])
        if func is aten.sum.dim_IntList and not kwargs and _is_over_rows(*args):
            rows, columns = args[0].shape
            blocks = args[0].reshape(rows // BLOCK, BLOCK, columns)
            return func(func(blocks, [1]), [0])
        return func(*args, **(kwargs or {}))


def _is_power_of_two(divisor: Any) -> bool:
    """Whether the reciprocal of a number is exact in every floating-point dtype."""
    return (
        type(divisor) in (int, float)
        and math.frexp(divisor)[0] in (0.5, -0.5)
        and 2**-14 <= abs(divisor) <= 2**14
    )


def _is_over_rows(x: torch.Tensor, axes: Any = None, *others: Any) -> bool:
    """Whether a sum is one over the first axis of a matrix of more than one block."""
    return (
        axes is not None
        and [*axes] == [0]
        and not others
        and x.ndim == 2
        and x.shape[0] > BLOCK
        and x.shape[0] % BLOCK == 0
    )
