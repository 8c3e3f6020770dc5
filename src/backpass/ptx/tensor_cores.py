"""The instructions that the threads of a warp execute together: they load matrices from
shared memory, multiply matrices, and exchange registers.

PTX ISA 8.7 fixes which thread holds which element of a matrix, in chapters 9.7.14 (mma,
ldmatrix) and 9.7.9.6 (shfl). Most functions work on all warps at once: the first axis
of their arrays is the warp, and the second is the lane.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from backpass.ptx.faults import Unsupported
from backpass.ptx.formats import UNSIGNED, bits_of, rounded, values_of
from backpass.ptx.parse import width_of

LANES = np.arange(32)
GROUP, PLACE = LANES // 4, LANES % 4  # a lane's group of four, and its place there


class Fragment(NamedTuple):
    """Where the lanes' elements are in a matrix: element i of a lane is at ``rows[i,
    lane]`` and ``columns[i, lane]``."""

    rows: np.ndarray  # [elements, 32]
    columns: np.ndarray
    shape: tuple[int, int]


def _fragment(
    shape: tuple[int, int], *places: tuple[np.ndarray, np.ndarray]
) -> Fragment:
    rows, columns = zip(*places, strict=True)
    return Fragment(np.stack(rows), np.stack(columns), shape)


# mma.m16n8k16 of half precision: a lane holds eight elements of A, four of B and C.
A_16 = _fragment(
    (16, 16),
    *((GROUP + 8 * (i // 2 % 2), 2 * PLACE + i % 2 + 8 * (i // 4)) for i in range(8)),
)
B_16 = _fragment(
    (16, 8), *((2 * PLACE + i % 2 + 8 * (i // 2), GROUP) for i in range(4))
)
C = _fragment((16, 8), *((GROUP + 8 * (i // 2), 2 * PLACE + i % 2) for i in range(4)))
# mma.m16n8k32 of int8: a lane holds sixteen elements of A and eight of B.
A_32 = _fragment(
    (16, 32),
    *((GROUP + 8 * (i // 4 % 2), 4 * PLACE + i % 4 + 16 * (i // 8)) for i in range(16)),
)
B_32 = _fragment(
    (32, 8), *((4 * PLACE + i % 4 + 16 * (i // 4), GROUP) for i in range(8))
)
# mma.m8n8k4 of float64.
A_4 = _fragment((8, 4), (GROUP, PLACE))
B_4 = _fragment((4, 8), (PLACE, GROUP))
C_4 = _fragment((8, 8), *((GROUP, 2 * PLACE + i) for i in range(2)))
# mma.m16n8k8 of tf32.
A_8 = _fragment(
    (16, 8), *((GROUP + 8 * (i % 2), PLACE + 4 * (i // 2)) for i in range(4))
)
B_8 = _fragment((8, 8), *((PLACE + 4 * i, GROUP) for i in range(2)))


def left_of_float64(k: int) -> Fragment:
    """Return where A is in mma.m16n8k4, k8, or k16 of float64."""
    places = ((GROUP + 8 * (i % 2), PLACE + 4 * (i // 2)) for i in range(k // 2))
    return _fragment((16, k), *places)


def right_of_float64(k: int) -> Fragment:
    """Return where B is in these instructions."""
    return _fragment((k, 8), *((PLACE + 4 * i, GROUP) for i in range(k // 4)))


def matrices(values: np.ndarray, where: Fragment) -> np.ndarray:
    """Return the matrices ``[warps, *shape]``, given the lanes' elements ``[warps, 32,
    elements]``."""
    found = np.zeros((len(values), *where.shape), values.dtype)
    found[:, where.rows, where.columns] = np.moveaxis(values, 2, 1)
    return found


def elements(found: np.ndarray, where: Fragment) -> np.ndarray:
    """Return the lanes' elements of the matrices: the inverse of ``matrices``."""
    return np.moveaxis(found[:, where.rows, where.columns], 1, 2)


def mma(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the registers ``[warps, 32, n]`` of A·B + C, given those of A, B, and C.

    The order in which a tensor core adds is not documented, and neither is the format
    of its partial sums. This function adds the products in float64 and rounds the sum
    once, so its result may be more accurate than a GPU's. Raises Unsupported for shapes
    and types that it does not know.
    """
    where, types = known(name)
    left, right, added = (
        matrices(numbers_of(x, type), place).astype(np.float64)
        for x, type, place in zip((a, b, c), types[1:], where, strict=True)
    )
    sums = left @ right + added  # exact for integers
    if types[0] == "s32":
        whole = sums.astype(np.int64)
        if "satfinite" in name:
            whole = np.clip(whole, -(2**31), 2**31 - 1)
        return bits_of(elements(whole, where[2]), "s32")
    return _joined(bits_of(elements(rounded(sums, types[0]), where[2]), types[0]))


def mma_needs(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return whether the registers ``[warps, 32, n]`` of A·B + C are defined, given
    whether those of A, B, and C are.

    An element of the result needs a row of A, a column of B, and an element of C.
    """
    where, _ = known(name)
    left, right, added = (
        matrices(np.repeat(x, len(place.rows) // x.shape[2], axis=2), place)
        for x, place in zip((a, b, c), where, strict=True)
    )
    rows, columns = np.all(left, axis=2), np.all(right, axis=1)
    found = rows[:, :, None] & columns[:, None] & added
    own = elements(found, where[2])
    return np.all(own.reshape(*own.shape[:2], c.shape[2], -1), axis=3)


def known(name: str) -> tuple[tuple[Fragment, Fragment, Fragment], tuple[str, ...]]:
    """Return where the elements of A, B, and C are, and the types of D, A, B, and C."""
    parts = name.split(".")
    shape, types = parts[3], tuple(parts[-4:])
    where = _KNOWN.get((shape, types)) if parts[4:6] == ["row", "col"] else None
    if where is None or not {*parts[6:-4]} <= {"satfinite"}:
        raise Unsupported(f"ptx: the instruction {name} is not supported")
    return where, types


# Where the elements are, by the shape and the types of D, A, B, and C.
_KNOWN: dict[tuple[str, tuple[str, ...]], tuple[Fragment, Fragment, Fragment]] = {
    ("m16n8k16", ("f32", "bf16", "bf16", "f32")): (A_16, B_16, C),
    ("m16n8k16", ("f32", "f16", "f16", "f32")): (A_16, B_16, C),
    ("m16n8k16", ("f16", "f16", "f16", "f16")): (A_16, B_16, C),
    **{
        ("m16n8k32", ("s32", a, b, "s32")): (A_32, B_32, C)
        for a in ("s8", "u8")
        for b in ("s8", "u8")
    },
    **{
        ("m16n8k32", ("f32", a, b, "f32")): (A_32, B_32, C)
        for a in ("e4m3", "e5m2")
        for b in ("e4m3", "e5m2")
    },
    ("m16n8k8", ("f32", "tf32", "tf32", "f32")): (A_8, B_8, C),
    ("m16n8k8", ("f32", "f32", "f32", "f32")): (A_8, B_8, C),  # with_all_digits
    ("m8n8k4", ("f64", "f64", "f64", "f64")): (A_4, B_4, C_4),
    **{
        (f"m16n8k{k}", ("f64", "f64", "f64", "f64")): (
            left_of_float64(k),
            right_of_float64(k),
            C,
        )
        for k in (4, 8, 16)
    },
}


def rounds_to_tf32(text: str) -> bool:
    """Whether a kernel has products that round float32 operands to TF32."""
    return ".tf32.tf32" in text


def with_all_digits(text: str) -> str:
    """Return a kernel's PTX with products of float32 that use all digits of their
    operands. A GPU has no such instruction: what these products return shows how much
    of an error comes from TF32."""
    text = re.sub(r"\.tf32\.tf32\b", ".f32.f32", text)
    return re.sub(r"\bcvt\.\w+\.tf32\.f32\b", "mov.b32", text)


def numbers_of(registers: np.ndarray, type: str) -> np.ndarray:
    """Return the numbers in registers ``[warps, 32, n]``. A register of 32 bits holds
    two 16-bit numbers, or four 8-bit numbers."""
    if type == "tf32":  # a float32 whose last 13 bits are ignored
        return values_of(registers & np.uint32(0xFFFFE000), "f32")
    parts = np.ascontiguousarray(registers).view(UNSIGNED[width_of(type)])
    return values_of(parts, type)


def _joined(bits: np.ndarray) -> np.ndarray:
    """Return the registers that hold the numbers: the inverse of ``numbers_of``."""
    if bits.itemsize >= 4:
        return bits
    return np.ascontiguousarray(bits).view(np.uint32)


def loaded_matrices(rows: np.ndarray, transposed: bool) -> np.ndarray:
    """Return ldmatrix's registers ``[warps, 32, n]``, given the rows ``[warps, n, 8,
    8]`` of n matrices of 16-bit elements.

    Lane l holds two elements of row ⌊l/4⌋: element 2(l mod 4) and the next. With
    ``transposed``, they are the elements of that column.
    """
    found = np.swapaxes(rows, 2, 3) if transposed else rows
    lower, upper = (found[:, :, GROUP, 2 * PLACE + i].astype(np.uint32) for i in (0, 1))
    return np.moveaxis(lower | upper << np.uint32(16), 1, 2)


def stored_matrices(registers: np.ndarray, transposed: bool) -> np.ndarray:
    """Return the rows ``[warps, n, 8, 8]`` that stmatrix writes, given its registers
    ``[warps, 32, n]``: the inverse of ``loaded_matrices``."""
    found = np.zeros((len(registers), registers.shape[2], 8, 8), np.uint16)
    own = np.moveaxis(registers, 2, 1)
    for i in (0, 1):
        found[:, :, GROUP, 2 * PLACE + i] = (own >> np.uint32(16 * i)).astype(np.uint16)
    return np.swapaxes(found, 2, 3) if transposed else found


REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def redux(name: str, operand: np.ndarray) -> np.ndarray:
    """Return the bits ``[warps, 32]`` that each lane receives: those of the sum, or of
    another reduction, of the warp's numbers."""
    parts = name.split(".")
    if parts[2] not in REDUCTIONS or parts[-1] not in ("s32", "u32", "b32"):
        raise Unsupported(f"ptx: the instruction {name} is not supported")
    numbers = values_of(operand, parts[-1])
    found = REDUCTIONS[parts[2]].reduce(numbers, axis=1, dtype=numbers.dtype)
    return np.repeat(bits_of(found, parts[-1])[:, None], 32, axis=1)


def shuffled_from(how: str, by: np.ndarray, clamp: np.ndarray) -> tuple:
    """Return the lane ``[n]`` from which each of n threads gets its value, and whether
    that lane is within the thread's segment.

    ``by`` and ``clamp`` are the second and third source operands of shfl.
    """
    b, c = np.asarray(by, np.int64) & 31, np.asarray(clamp, np.int64)
    lane = np.arange(len(b)) % 32
    segment, bound = c >> 8 & 31, c & 31
    most = (lane & segment) | (bound & ~segment)
    least = lane & segment
    if how == "up":
        source, inside = lane - b, lane - b >= most
    elif how == "down":
        source, inside = lane + b, lane + b <= most
    elif how == "bfly":
        source, inside = lane ^ b, (lane ^ b) <= most
    elif how == "idx":
        source = least | (b & ~segment)
        inside = source <= most
    else:
        raise Unsupported(f"ptx: shfl.{how} is not supported")
    return np.where(inside, source, lane), inside
