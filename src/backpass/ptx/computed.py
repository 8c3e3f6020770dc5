"""Instructions that only compute: each result is a function of registers.

Both executors, ``block`` and ``lockstep``, call these functions. An instruction's
operands are flat arrays. For an instruction that a warp executes together, the elements
are those of whole warps, lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from backpass.ptx import arithmetic, tensor_cores
from backpass.ptx.formats import UNSIGNED
from backpass.ptx.parse import (
    Instruction,
    Label,
    Operand,
    Register,
    Vector,
    targets_of,
    unsupported,
    width_of,
)
from backpass.ptx.values import Value, extended, halves_known, known

CARRY = Register("CC.CF")
# Instructions that all threads of a warp execute together, and that only compute.
OF_WARPS = ("shfl", "vote", "redux", "mma")
_MOVES = ("mov", "cvta")  # a generic address is the same number
_WITH_CARRY = ("addc", "subc", "madc")


class Form(NamedTuple):
    """What an instruction reads, with the types, and the registers that it writes, or
    None for a result that is dropped."""

    sources: tuple[tuple[Operand, str], ...]
    targets: tuple[Register | None, ...]


def is_computed(instruction: Instruction) -> bool:
    """Return whether this module has the instruction."""
    operation = instruction.parts[0]
    return operation in (*_MOVES, *OF_WARPS) or operation in arithmetic.OPERATIONS


def is_of_threads(operation: str) -> bool:
    """Return whether this module has an operation, and each thread computes it from its
    own registers."""
    return operation in _MOVES or operation in arithmetic.OPERATIONS


@lru_cache(maxsize=1 << 14)
def form_of(instruction: Instruction) -> Form:
    """Return what an instruction of this module reads and writes."""
    operation, type = instruction.parts[0], instruction.parts[-1]
    if operation in _MOVES:
        return _form_of_move(instruction)
    first, *rest = instruction.operands
    targets: Sequence[Register | None] = targets_of(first)
    if operation == "mma":
        own = "b64" if "f64" in instruction.parts else "b32"
        parts = [targets_of(x) for x in rest]
        if len(parts) != 3:
            raise unsupported(instruction)
        return Form(tuple((x, own) for part in parts for x in part), tuple(targets))
    if operation == "shfl":
        return Form(tuple((x, "b32") for x in rest[:3]), tuple(targets))
    if operation in ("vote", "redux"):
        own = "pred" if operation == "vote" else "b32"
        return Form(((rest[0], own),), tuple(targets))
    types = _operand_types(instruction)
    if operation in _WITH_CARRY:
        rest, types = [*rest, CARRY], [*types, "pred"]
    if operation == "setp" and "x2" not in type:
        targets = targets[:2]
    if "cc" in instruction.parts:
        targets = [*targets, CARRY]
    return Form(tuple(zip(rest, types, strict=False)), tuple(targets))


def _form_of_move(instruction: Instruction) -> Form:
    """Return the form of mov, which may also join the parts of a register or divide
    it."""
    target, source = instruction.operands
    type = instruction.parts[-1]
    if isinstance(source, Vector):
        own = f"b{width_of(type) // len(source.parts)}"
        return Form(tuple((x, own) for x in source.parts), (target,))  # type: ignore[arg-type]
    if isinstance(target, Vector):
        targets = tuple(None if x == Label("_") else x for x in target.parts)
        return Form(((source, type),), targets)  # type: ignore[arg-type]
    return Form(((source, type),), (target,))  # type: ignore[arg-type]


def compute(
    instruction: Instruction, bits: list[np.ndarray], approximate: int | None = None
) -> Sequence[np.ndarray]:
    """Return the bits ``[n]`` of each result, given those of the operands."""
    own = _COMPUTED.get(instruction.parts[0])
    if own is not None:
        return own(instruction, bits)
    results = arithmetic.compute(instruction.name, bits, approximate)
    if instruction.parts[0] == "setp" and "x2" not in instruction.parts[-1]:
        return (*results, ~results[0])  # for a second target
    if _is_signed(instruction):
        return (extended(results[0], instruction.parts[-2]),)
    return results


def known_results(
    instruction: Instruction, values: list[Value]
) -> Sequence[np.ndarray]:
    """Return the defined bits ``[n]`` of each result, or whether all are defined."""
    own = _KNOWN.get(instruction.parts[0])
    if own is not None:
        return own(instruction, values)
    if instruction.parts[0] == "setp" and "x2" in instruction.parts[-1]:
        return halves_known(values)
    defined = known(instruction.name, values)
    if _is_signed(instruction) and defined.dtype != bool:
        defined = extended(defined, instruction.parts[-2])
    return defined, defined


def _is_signed(instruction: Instruction) -> bool:
    """Return whether a conversion extends the sign of its result to the register."""
    return instruction.parts[0] == "cvt" and instruction.parts[-2][0] == "s"


def _moved(instruction: Instruction, parts: list[np.ndarray]) -> list[np.ndarray]:
    """Return what mov writes: bits, or which of them are defined."""
    target, _ = instruction.operands
    type = instruction.parts[-1]
    if len(parts) > 1:
        kind = UNSIGNED[width_of(type)]
        width = width_of(type) // len(parts)
        return [sum(x.astype(kind) << kind(i * width) for i, x in enumerate(parts))]  # type: ignore[list-item]
    if not isinstance(target, Vector):
        return parts
    width, (bits,) = width_of(type) // len(target.parts), parts
    return [
        (bits >> bits.dtype.type(i * width)).astype(UNSIGNED[width])
        for i in range(len(target.parts))
    ]


def _shuffled(instruction: Instruction, bits: list[np.ndarray]) -> list[np.ndarray]:
    """shfl.sync: read a register of another thread of the warp."""
    of, inside = lanes(instruction, bits)
    return [bits[0][of], inside]


def lanes(
    instruction: Instruction, bits: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the element that each thread of shfl reads, and whether the lane is within
    the thread's segment."""
    own, inside = tensor_cores.shuffled_from(instruction.parts[2], *bits[1:])
    return np.arange(len(own)) // 32 * 32 + own, inside


def _shuffled_known(instruction: Instruction, values: list[Value]) -> list[np.ndarray]:
    value, lane, bound = values
    of, _ = lanes(instruction, [x.bits for x in values])
    known = lane.whole & bound.whole
    return [np.where(known, value.defined[of], value.defined.dtype.type(0)), known]


def _voted(instruction: Instruction, bits: list[np.ndarray]) -> list[np.ndarray]:
    """vote.sync: whether the predicate is true for all threads of a warp, or for any of
    them, or a bit for each thread."""
    how, type = instruction.parts[2], instruction.parts[-1]
    warps = bits[0].reshape(-1, 32)
    if how == "ballot" and type == "b32":
        found = (warps.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1)
    elif how in ("all", "any") and type == "pred":
        found = getattr(warps, how)(axis=1)
    else:
        raise unsupported(instruction)
    return [np.repeat(found, 32)]


def _reduced(instruction: Instruction, bits: list[np.ndarray]) -> list[np.ndarray]:
    """redux.sync: the sum, or another reduction, of the numbers of a warp."""
    found = tensor_cores.redux(instruction.name, bits[0].reshape(-1, 32))
    return [found.reshape(-1)]


def _whole_warps(_: Instruction, values: list[Value]) -> list[np.ndarray]:
    """Return whether the value is defined in all threads of each warp."""
    whole = values[0].whole.reshape(-1, 32).all(axis=1)
    return [np.repeat(whole, 32)]


def _multiplied(instruction: Instruction, bits: list[np.ndarray]) -> list[np.ndarray]:
    """mma.sync: multiply the tiles that a warp holds."""
    return _of_lanes(tensor_cores.mma(instruction.name, *_tiles(instruction, bits)))


def _multiplied_known(
    instruction: Instruction, values: list[Value]
) -> list[np.ndarray]:
    flags = _tiles(instruction, [x.whole for x in values])
    return _of_lanes(tensor_cores.mma_needs(instruction.name, *flags))


def _tiles(instruction: Instruction, parts: list[np.ndarray]) -> list[np.ndarray]:
    """Return the registers ``[warps, 32, n]`` of each of the operands."""
    found = []
    for operand in instruction.operands[1:]:
        n = len(targets_of(operand))
        own, parts = parts[:n], parts[n:]
        found.append(np.stack(own, axis=-1).reshape(-1, 32, n))
    return found


def _of_lanes(found: np.ndarray) -> list[np.ndarray]:
    return [found[:, :, i].reshape(-1) for i in range(found.shape[2])]


_COMPUTED: dict[str, Callable[..., Sequence[np.ndarray]]] = {
    "mov": _moved,
    "cvta": _moved,
    "shfl": _shuffled,
    "vote": _voted,
    "redux": _reduced,
    "mma": _multiplied,
}
_KNOWN: dict[str, Callable[..., Sequence[np.ndarray]]] = {
    "mov": lambda instruction, values: _moved(instruction, [x.defined for x in values]),
    "cvta": lambda instruction, values: _moved(
        instruction, [x.defined for x in values]
    ),
    "shfl": _shuffled_known,
    "vote": _whole_warps,
    "redux": _whole_warps,
    "mma": _multiplied_known,
}


def _operand_types(instruction: Instruction) -> list[str]:
    """Return the types of the source operands of an arithmetic instruction."""
    parts, n = instruction.parts, len(instruction.operands) - 1
    type = parts[-1]
    if parts[0] == "selp":
        return [type, type, "pred"]
    if parts[0] in ("shl", "shr"):
        return [type, "b32"]
    if parts[0] == "bfe":
        return [type, "b32", "b32"]
    if parts[0] == "mad" and "wide" in parts:
        return [type, type, f"b{2 * width_of(type)}"]
    return [type] * n
