"""Convert arrays between libraries and dtypes.

Results are compared as NumPy arrays, gradients are checked in float64, and PyTorch's
operators need tensors.
"""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

import array_api_compat
import numpy as np

from backpass.contract.arrays import Array, is_array, namespace

EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}


def is_torch(value: object) -> TypeGuard[Any]:
    """Whether ``value`` is a PyTorch tensor. Does not import PyTorch."""
    return sys.modules.get("torch") is not None and array_api_compat.is_torch_array(
        value
    )


def requires_grad(value: object) -> bool:
    """Whether a value is a tensor that requires a gradient."""
    return is_torch(value) and value.requires_grad


def is_floating(value: object) -> TypeGuard[Array]:
    """Whether ``value`` is an array of real floating-point numbers."""
    return is_array(value) and namespace(value).isdtype(value.dtype, "real floating")


def to_numpy(value: Array) -> np.ndarray:
    """Return a NumPy copy on the CPU.

    Floating-point numbers become float64, which represents every number of the shorter
    dtypes exactly.
    """
    if is_torch(value):
        there = value.detach()
        there = (
            there if there.layout == sys.modules["torch"].strided else there.to_dense()
        )
        wide = there.double() if there.is_floating_point() else there
        here = wide.cpu()
        return np.array(here.numpy(), copy=here is there)
    return np.array(
        value, dtype=np.float64 if np.issubdtype(value.dtype, np.floating) else None
    )


def to_torch(value: object, device: str = "cpu", dtype=None):
    """Copy an array to a tensor on ``device``, with ``dtype`` or float64.

    Only floating-point arrays change their dtype. A value that is not an array, such as
    None or a number, is returned as it is.
    """
    import torch

    if not is_array(value):
        return value
    dtype = (dtype or torch.float64) if is_floating(value) else None
    return torch.as_tensor(to_numpy(value)).to(device=device, dtype=dtype)


def as_number(dy: Array) -> Array:
    """Return the cotangent of a loss, an array of no axes, as a number of NumPy, which
    ``dy *= 2`` does not change in place."""
    return dy[()] if isinstance(dy, np.ndarray) and not dy.ndim else dy


def to_kind_of(like: Array, values: np.ndarray) -> Array:
    """Copy the values to an array of the library, dtype and device of ``like``."""
    return (
        to_torch(values, device_of(like), like.dtype)
        if is_torch(like)
        else values.astype(like.dtype)
    )


def in_dtype(value: Any, dtype: str) -> Any:
    """Return a floating-point array in a dtype of its library, such as ``float32``;
    return anything else as it is."""
    if not is_floating(value):
        return value
    return (
        value.to(getattr(sys.modules["torch"], dtype))
        if is_torch(value)
        else value.astype(dtype)
    )


def dtype_name(value: Array) -> str:
    """Return the dtype's name, such as ``float32``, for arrays of NumPy and PyTorch."""
    return str(value.dtype).removeprefix("torch.")


def epsilon(*arrays: Array) -> float:
    """Return the distance from 1 to the next number in the coarsest of the arrays'
    dtypes."""
    return max(EPSILON[dtype_name(array)] for array in arrays)


def device_of(value: Array) -> str:
    """Return the device's name, such as ``cpu`` or ``cuda:0``."""
    return str(value.device) if is_torch(value) else "cpu"
