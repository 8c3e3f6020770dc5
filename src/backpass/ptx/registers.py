"""The registers of the threads of a block."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from backpass.ptx import garbage
from backpass.ptx.arithmetic import is_float
from backpass.ptx.faults import Unsupported
from backpass.ptx.formats import UNSIGNED, bits_of
from backpass.ptx.parse import Label, Number, Operand, Register, width_of
from backpass.ptx.values import Value, all_bits


class Registers:
    """The registers of n threads, which read their operands through ``read``.

    By name, ``widths`` holds the bits of each register, ``special`` the values of
    special registers, and ``variables`` the addresses of variables.
    """

    def __init__(
        self,
        n: int,
        widths: Mapping[str, int],
        special: Mapping[str, np.ndarray],
        variables: Mapping[str, int],
    ) -> None:
        self.n, self.widths = n, widths
        self.special, self.variables = special, variables
        self.seed = 0  # of the bits that are in registers never written; 0 for none
        self.values: dict[str, Value] = {}

    def read(self, operand: Operand, type: str) -> Value:
        """Return the bits of an operand, as a type, for all threads."""
        if isinstance(operand, Number):
            bits = constant(operand.text, type, self.n)
        elif isinstance(operand, Label):
            address = self.address_of(operand.name)
            bits = np.full(self.n, address, UNSIGNED[width_of(type)])
        elif not isinstance(operand, Register):
            raise Unsupported(f"ptx: the operand {operand} is not supported here")
        elif operand.name in self.special:
            bits = self.special[operand.name]
        elif operand.name in self.values:
            return self.values[operand.name].resized(kind_of(type))
        else:
            bits = np.zeros(self.n, self.kind(operand.name))
            return Value(self._garbage(operand.name, bits), bits).resized(kind_of(type))
        return Value(bits, np.full(self.n, all_bits(bits.dtype)))

    def write(
        self,
        register: Operand,
        bits: np.ndarray,
        defined: np.ndarray,
        chosen: np.ndarray,
    ) -> None:
        """Write bits ``[threads]`` for the chosen threads. ``defined`` says which bits
        of each thread are defined, or whether all are."""
        if not isinstance(register, Register):
            raise Unsupported(f"ptx: {register} cannot be written to")
        kind = self.kind(register.name)
        if defined.dtype == bool:
            full = all_bits(bits.dtype)
            defined = np.where(defined, full, ~full)
        bits, defined = Value(bits, defined).resized(kind)
        if not chosen.all():
            before = self.read(
                register, "pred" if kind is bool else f"b{8 * np.dtype(kind).itemsize}"
            )
            bits = np.where(chosen, bits, before.bits)
            defined = np.where(chosen, defined, before.defined)
        self.values[register.name] = Value(bits, defined)

    def _garbage(self, name: str, bits: np.ndarray) -> np.ndarray:
        if not self.seed:
            return bits
        return garbage.of_register(name, self.n, self.kind(name), self.seed)

    def kind(self, name: str) -> type:
        """Return NumPy's type of a register."""
        width = self.widths.get(name)
        if width is None:
            raise Unsupported(f"ptx: the register {name} is not supported")
        return kind_of("pred" if width == 1 else f"b{width}")

    def address_of(self, name: str) -> int:
        """Return the address of a variable, or the number as an address."""
        if name in self.variables:
            return self.variables[name]
        if not name.isdigit():
            raise Unsupported(f"ptx: the name {name} is not supported here")
        return int(name)


def special_registers(
    n: int, number: int | np.ndarray, blocks: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """Return what the special registers of the n threads of a block hold, by name, or
    those of the threads of several blocks, one block after the other."""
    numbers = np.tile(np.arange(n), np.size(number))
    place = np.repeat(number, n)
    found: dict[str, np.ndarray | int] = {"%laneid": numbers % 32}
    found |= {"%warpid": numbers // 32}
    bit = 1 << numbers % 32
    found |= {"%lanemask_eq": bit, "%lanemask_lt": bit - 1, "%lanemask_le": 2 * bit - 1}
    found |= {"%lanemask_ge": 2**32 - bit, "%lanemask_gt": 2**32 - 2 * bit}
    found |= {"%tid.x": numbers, "%tid.y": 0, "%tid.z": 0}
    found |= {"%ntid.x": n, "%ntid.y": 1, "%ntid.z": 1}
    for axis, length in zip("xyz", blocks, strict=True):
        found |= {f"%ctaid.{axis}": place % length, f"%nctaid.{axis}": length}
        place = place // length
    return {
        name: np.broadcast_to(np.asarray(x, np.uint32), numbers.shape)
        for name, x in found.items()
    }


def kind_of(type: str) -> type:
    """Return NumPy's type of a register that holds a type."""
    width = width_of(type)
    return bool if width == 1 else UNSIGNED[width]


def constant(text: str, type: str, n: int) -> np.ndarray:
    """Return the bits of a constant for n threads."""
    if type == "pred":
        return np.full(n, int(text, 0) != 0)
    width = width_of(type)
    if text.startswith(("0f", "0F", "0d", "0D")):
        own = 32 if text[1] in "fF" else 64
        if own != width:
            raise Unsupported(f"ptx: the constant {text} is not of type {type}")
        return np.full(n, int(text[2:], 16), UNSIGNED[width])
    if not text.startswith(("0x", "0X")) and re.search(r"[.eE]", text):
        if not is_float(type):
            raise Unsupported(f"ptx: the constant {text} is not of type {type}")
        return bits_of(np.full(n, float(text)), type)
    base = 8 if re.match(r"-?0\d", text) else 0
    return np.full(n, int(text.rstrip("U"), base) % 2**width, UNSIGNED[width])
