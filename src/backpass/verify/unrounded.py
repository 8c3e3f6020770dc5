"""Return what kernels would have computed without rounding: the numbers in float64
beside those of an execution."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass.ptx.beside import CODES, SIZES
from backpass.ptx.shadow import Shadow
from backpass.ptx.tensors import address_of
from backpass.verify.convert import is_torch, to_numpy

TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def without_rounding(done: Any, shadow: Shadow) -> Any:
    """Return an execution with the numbers beside its y and its gradients; those that
    were executed, where they are not known."""
    y, gradients = (_each(of, shadow) for of in (done.y, done.gradients))
    return done._replace(y=y, gradients=gradients)


def _each(value: Any, shadow: Shadow) -> Any:
    if isinstance(value, dict):
        return {name: _each(of, shadow) for name, of in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_each(of, shadow) for of in value)
    return _beside(value, shadow) if is_torch(value) else value


def _beside(tensor: Any, shadow: Shadow) -> Any:
    """Return the numbers beside a tensor that a launch has written."""
    import torch

    type = TYPES.get(str(tensor.dtype).removeprefix("torch."))
    if type is None or not tensor.is_contiguous():
        return tensor
    executed = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    start, size = address_of(executed), executed.size
    for (address, n), (space, content) in shadow.spaces.items():
        at = start - address
        if not 0 <= at <= n - size:
            continue
        if not np.array_equal(content[at : at + size], executed):
            return tensor  # changed since
        slots = at // 2 + SIZES[type] * np.arange(tensor.numel())
        known = space.codes[slots] == CODES[type]
        numbers = np.where(known, space.values[slots], to_numpy(tensor).ravel())
        return torch.from_numpy(numbers.reshape(tuple(tensor.shape)))
    return tensor
