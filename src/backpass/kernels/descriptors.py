"""Tensor descriptors as arguments of compiled kernels.

Below compute capability 9.0, Triton lowers a descriptor to a pointer, a shape, and
strides. For 9.0 it passes a tensor map. On a GPU, the driver encodes the map; here,
``ptx`` encodes it in a format of its own. A kernel that creates descriptors itself
writes their maps to scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from triton.runtime import _allocation

from backpass import ptx
from backpass.ptx.tensor_maps import SPANS, TYPES, aligned

MAP = "tensor map"  # the type of an argument


def arguments(
    name: str, value: Any, told: Mapping[str, Any] | None
) -> Iterator[tuple[str, str, Any]]:
    """Yield the names, types, and values of a descriptor's arguments. ``told`` says how
    its tiles are copied, or is None if it is lowered to a pointer: the base, the shape
    and strides, flags, and the shape and strides again."""
    sizes = [*enumerate((*value.shape, *value.strides))]
    if told:
        yield name, MAP, (value, told)
        yield from ((f"{name} size {at}", "i64", size) for at, size in sizes)
        return
    yield name, "*", value.base
    yield from ((f"{name} size {at}", "i64", size) for at, size in sizes)
    yield f"{name} padding", "i1", value.padding == "nan"
    if hasattr(value, "round_f32_to_tf32"):  # since Triton 3.7
        yield f"{name} rounding", "i1", value.round_f32_to_tf32
    yield from ((f"{name} size {at} again", "i64", size) for at, size in sizes)


def map_of(value: Any, told: Mapping[str, Any]) -> ptx.TensorMap:
    """Return the tensor map of a descriptor, whose address is not known here."""
    if told["fp4_padded"] or getattr(value, "round_f32_to_tf32", False):
        raise ptx.Unsupported(
            "tensor descriptors: numbers of 4 bits and rounding to TF32 are not "
            "supported for compute capability 9.0; execute it with capability=(8, 0)"
        )
    width = told["elem_size"]
    return ptx.TensorMap(
        0,
        TYPES[told["elem_type"]],
        (*reversed(value.shape),),
        tuple(width * x for x in reversed(value.strides[:-1])),
        (*reversed(told["block_size"]),),
        SPANS[told["swizzle"]],
        value.padding == "nan",
    )


def scratch(metadata: Any, grid: Sequence[int]) -> ptx.Tensor:
    """Return the scratch memory of a launch. As on a GPU, ``triton.set_allocator`` must
    have been called; the allocator itself is not used."""
    if _allocation._allocator.get() is _allocation._NULL_ALLOCATOR:
        raise RuntimeError(
            f"{metadata.name}: the kernel creates tensor descriptors, for which Triton "
            "allocates memory on an H100; call triton.set_allocator first"
        )
    size = math.prod(grid) * metadata.global_scratch_size
    content = aligned(np.zeros(size, np.uint8), max(metadata.global_scratch_align, 128))
    return ptx.Tensor(content, defined=False)
