"""Wrap the private names of PyTorch that the package needs, which a release may change.

No other module uses such a name. ``tests/test_torch_internals.py`` has a test for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "READ",
    "TorchDispatchMode",
    "Unread",
    "dual_level",
    "is_fake",
    "read_by",
    "share_memory",
    "storage_id",
    "transformed",
    "written_by",
]

# The operator that reads the number in a tensor of one element.
READ = torch.ops.aten._local_scalar_dense.default

_READS = (READ, torch.ops.aten.item.default, torch.ops.aten.is_nonzero.default)


class Unread(TorchDispatchMode):
    """A mode in which reading a tensor that has a shape but no values returns 0 or
    False. An operation that looks for bad inputs reads this from good ones."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in _READS or not (args[0].is_meta or is_fake(args[0])):
            return func(*args, **(kwargs or {}))
        if args[0].dtype == torch.bool or func is torch.ops.aten.is_nonzero.default:
            return False
        return 0.0 if args[0].is_floating_point() else 0


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is running.

    Its tensors hide those that an operator would read.
    """
    return torch._C._are_functorch_transforms_active()


def dual_level() -> bool:
    """Whether forward mode is on. If not, ``forward_ad.unpack_dual`` raises."""
    return forward_ad._current_level >= 0


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both tensors are views of one storage. An operator's results must not be.

    This also works for tensors without memory.
    """
    return torch._C._is_alias_of(a, b)  # type: ignore[attr-defined]  # not in the stubs


def storage_id(x: torch.Tensor) -> int:
    """Return a number that identifies the storage while it is alive.

    ``data_ptr()`` does not, because it is 0 for every tensor without memory.
    """
    return x.untyped_storage()._cdata


def is_fake(x: torch.Tensor) -> bool:
    """Whether ``x`` has no values, because torch.compile is inferring shapes."""
    return isinstance(x, FakeTensor)


def read_by(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors whose values a call of an operator reads: none if it returns
    views of them, or needs only their shapes."""
    name = func.overloadpacket.__name__
    views = (
        r.alias_info is not None and not r.alias_info.is_write
        for r in func._schema.returns
    )
    if any(views) or name.endswith("_like") or name.startswith("new_"):
        return
    written = [id(x) for x in written_by(func, args, kwargs)]
    for value in (*args, *kwargs.values()):
        several = value if isinstance(value, (list, tuple)) else [value]
        for x in several:
            if isinstance(x, torch.Tensor) and id(x) not in written:
                yield x


def written_by(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call of an operator writes to in place."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
    given |= kwargs
    for argument in func._schema.arguments:
        alias = argument.alias_info
        value = given.get(argument.name)
        if alias is not None and alias.is_write:
            several = value if isinstance(value, (list, tuple)) else [value]
            yield from (x for x in several if isinstance(x, torch.Tensor))
