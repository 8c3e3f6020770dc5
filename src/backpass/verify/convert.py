"""Arrays from one library to another: NumPy for judging, float64 for proving, PyTorch for comparing."""

from __future__ import annotations

import sys

import array_api_compat
import numpy as np

from backpass.arrays import Array, is_array, namespace

EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}


def is_torch(value: object) -> bool:
    """Whether ``value`` is a PyTorch tensor; does not import PyTorch."""
    return sys.modules.get("torch") is not None and array_api_compat.is_torch_array(
        value
    )


def is_floating(value: object) -> bool:
    """Whether ``value`` is an array of real floating-point numbers."""
    return is_array(value) and namespace(value).isdtype(value.dtype, "real floating")


def to_numpy(value: Array) -> np.ndarray:
    """A NumPy copy on the CPU; floating-point numbers become float64, which holds each of them exactly."""
    if is_torch(value):
        there = value.detach()
        wide = there.double() if there.is_floating_point() else there
        here = wide.cpu()
        return np.array(here.numpy(), copy=here is there)
    return np.array(
        value, dtype=np.float64 if np.issubdtype(value.dtype, np.floating) else None
    )


def to_torch(value: object, device: str = "cpu", dtype=None):
    """A fresh tensor on ``device``; floating-point numbers become ``dtype`` (float64 unless given).

    What is no array passes through: None, a number, an option.
    """
    import torch

    if not is_array(value):
        return value
    if is_floating(value):
        return torch.as_tensor(to_numpy(value)).to(
            device=device, dtype=dtype or torch.float64
        )
    value = (
        value.detach().clone() if is_torch(value) else torch.as_tensor(np.array(value))
    )
    return value.to(device)


def to_kind_of(like: Array, values: np.ndarray) -> Array:
    """A fresh array of the values, in the library and dtype and on the device of ``like``."""
    return (
        to_torch(values, device_of(like), like.dtype)
        if is_torch(like)
        else values.astype(like.dtype)
    )


def dtype_name(value: Array) -> str:
    """``float32`` for NumPy's and PyTorch's alike."""
    return str(value.dtype).removeprefix("torch.")


def epsilon(*arrays: Array) -> float:
    """The distance from 1 to the next number in the coarsest of the arrays' dtypes."""
    return max(EPSILON[dtype_name(array)] for array in arrays)


def device_of(value: Array) -> str:
    """``cpu`` or ``cuda:0``."""
    return str(value.device) if is_torch(value) else "cpu"
