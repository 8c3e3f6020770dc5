"""Tensor maps: what a bulk copy knows of a tensor in global memory.

A map has the address of a tensor, its shape, its strides, the shape of a tile, and how
the tile is swizzled in shared memory. A GPU's map has 128 bytes whose format is not
documented; here they have a format of this module. Axes count from the innermost one.
PTX ISA 8.7, chapters 5.5.8 and 9.7.9.27.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from backpass.ptx.faults import Fault, Undefined, Unsupported
from backpass.ptx.memory import check_aligned
from backpass.ptx.parse import Instruction, unsupported, width_of
from backpass.ptx.races import Who
from backpass.ptx.threads import Threads

SIZE = 128
# The types by their numbers in tensormap.replace.
_INTEGERS = ("u8", "u16", "u32", "s32", "u64", "s64")
TYPES = (*_INTEGERS, "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz")
SPANS = (0, 32, 64, 128)  # by the numbers of the modes of swizzling; 0 is none
_FIELDS = {  # of the map: the offset, and the format
    "global_address": (0, "<Q"),
    "global_dim": (8, "<5I"),
    "global_stride": (32, "<4Q"),
    "box_dim": (64, "<5I"),
    "element_stride": (84, "<5I"),
    "rank": (104, "<B"),
    "elemtype": (105, "<B"),
    "interleave_layout": (106, "<B"),
    "swizzle_mode": (107, "<B"),
    "fill_mode": (108, "<B"),
}


class TensorMap(NamedTuple):
    """A tensor map, without what this package does not execute."""

    address: int
    type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes, without that of the innermost axis
    box: tuple[int, ...]
    span: int  # of the swizzling, in bytes; 0 for none
    fill_nan: bool = False

    @property
    def width(self) -> int:
        """The size of an element in bytes."""
        return width_of(self.type) // 8

    @property
    def size(self) -> int:
        """The size of a tile in bytes."""
        return int(np.prod(self.box)) * self.width

    def encoded(self) -> np.ndarray:
        """Return the 128 bytes of the map."""
        rank, found = len(self.shape), bytearray(SIZE)
        values = {
            "global_address": (self.address,),
            "global_dim": self.shape,
            "global_stride": self.strides,
            "box_dim": self.box,
            "element_stride": (1,) * rank,
            "rank": (rank - 1,),
            "elemtype": (TYPES.index(self.type),),
            "swizzle_mode": (SPANS.index(self.span),),
            "fill_mode": (int(self.fill_nan),),
        }
        for name, given in values.items():
            at, form = _FIELDS[name]
            n = int(form[1:-1] or 1)
            struct.pack_into(form, found, at, *given, *(0,) * (n - len(given)))
        return aligned(np.frombuffer(found, np.uint8), SIZE)


class Mapped(NamedTuple):
    """A tensor, and the map through which a kernel accesses it; the map's address is
    that of the tensor, whatever it says."""

    tensor: Any
    map: TensorMap


def aligned(content: np.ndarray, to: int) -> np.ndarray:
    """Return a copy of bytes at an address that is a multiple of ``to``."""
    found = np.zeros(len(content) + to, np.uint8)
    found = found[-found.ctypes.data % to :][: len(content)]
    found[:] = content
    return found


def read(threads: Threads, address: int, who: Who) -> TensorMap:
    """Return the map at an address in global memory. Raises a fault or Unsupported."""
    first = who.only(np.zeros(1, int))
    check_aligned(np.array([address]), 64, first, "a tensor map")
    data, defined = threads.memory.load_bytes(np.array([address]), SIZE, first)
    content = data[0].tobytes()
    own = {
        name: struct.unpack_from(f, content, at) for name, (at, f) in _FIELDS.items()
    }
    rank = own["rank"][0] + 1
    for name, (at, form) in _FIELDS.items():
        axes = rank - 1 if name == "global_stride" else rank
        size = struct.calcsize(form[-1]) * (axes if len(form) > 2 else 1)
        if not defined[0, at : at + size].all():
            what = f"uses a tensor map of which {name} is not initialised"
            raise first.fault(Undefined, what, np.ones(1, bool))
    fine = rank <= 5 and own["elemtype"][0] < len(TYPES) and own["swizzle_mode"][0] < 4
    fine &= set(own["element_stride"][:rank]) == {1}
    if not fine or own["interleave_layout"][0] or own["fill_mode"][0] > 1:
        raise Unsupported(
            "ptx: a tensor map with steps between elements, an interleaved layout, or "
            "an unknown type or mode is not supported"
        )
    found = TensorMap(
        own["global_address"][0],
        TYPES[own["elemtype"][0]],
        own["global_dim"][:rank],
        own["global_stride"][: rank - 1],
        own["box_dim"][:rank],
        SPANS[own["swizzle_mode"][0]],
        bool(own["fill_mode"][0]),
    )
    _check(found, first)
    return found


def _check(own: TensorMap, who: Who) -> None:
    """Raise a fault unless a map is one that bulk copies take."""
    if own.type.startswith("tf32") or own.type.endswith("ftz"):
        raise Unsupported(f"ptx: a tensor map of {own.type} is not supported")
    row, bad = own.box[0] * own.width, np.ones(1, bool)
    if own.address % 16 or any(x % 16 for x in own.strides) or row % 16:
        what = (
            "uses a tensor map whose address, strides, and row of a tile are not all "
            "multiples of 16 bytes"
        )
        raise who.fault(Fault, what, bad)
    if not all(1 <= x <= 256 for x in own.box) or (own.span and row > own.span):
        what = f"uses a tensor map with a tile of {own.box}, which is too large"
        raise who.fault(Fault, what, bad)
    if own.span and row != own.span:
        raise Unsupported(
            f"ptx: a tensor map with rows of {row} bytes, swizzled over {own.span}, is "
            "not supported"
        )


def tensormap(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute tensormap.replace and tensormap.cp_fenceproxy."""
    parts = instruction.parts
    if parts[1] == "replace" and parts[2] == "tile":
        _replace(threads, instruction, chosen)
    elif instruction.name == _COPY:
        _copy(threads, instruction, chosen)
    else:
        raise unsupported(instruction)


_COPY = (
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync."
    "aligned"
)


def _replace(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Set a field of a map in shared memory."""
    parts = instruction.parts
    name = parts[3]
    if name not in _FIELDS or parts[4] not in ("shared::cta", "shared"):
        raise unsupported(instruction)
    target, *index, value = instruction.operands
    at, form = _FIELDS[name]
    width = struct.calcsize(form[-1])
    if index:
        at += width * int(index[0].text, 0)  # type: ignore[union-attr]
    given = threads.read(value, parts[-1])
    who, addresses = threads.who(chosen), threads.addresses(target, chosen)
    places = addresses[:, None] + at + np.arange(width)
    threads.shared.indices(addresses, SIZE, who, "writes")
    words = given.bits[chosen].astype(np.uint64)[:, None].view(np.uint8)[:, :width]
    whole = np.repeat(given.whole[chosen][:, None], width, axis=1)
    threads.shared.store(places, words, whole, who)


def _copy(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Copy a map from shared to global memory. A whole warp executes this."""
    target, source, size = instruction.operands
    if int(size.text, 0) != SIZE:  # type: ignore[union-attr]
        raise unsupported(instruction)
    one = first_of_each_warp(chosen)
    who = threads.who(one)
    at = threads.shared.indices(threads.addresses(source, one), SIZE, who, "reads")
    data, defined = threads.shared.load(at, who)
    threads.memory.store(threads.addresses(target, one), data, defined, who)


def first_of_each_warp(chosen: np.ndarray) -> np.ndarray:
    """Return a mask of the first chosen thread of each warp."""
    warps = chosen.reshape(-1, 32)
    found = np.zeros_like(warps)
    rows = np.flatnonzero(warps.any(axis=1))
    found[rows, warps[rows].argmax(axis=1)] = True
    return found.reshape(-1)
