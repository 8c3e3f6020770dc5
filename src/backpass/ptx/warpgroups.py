"""wgmma: four warps multiply matrices, of which at least one is in shared memory.

The instruction only starts the product. It is a fault if a thread uses a register of
the product before it has waited, if it writes to shared memory that the product still
reads, or if a product uses a register that has changed, without wgmma.fence since the
last wait. The result is computed at once. PTX ISA 8.7, chapter
9.7.15.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from backpass.ptx import tensor_cores
from backpass.ptx.descriptors import STEP, places
from backpass.ptx.faults import Barrier, Fault, TooEarly
from backpass.ptx.formats import bits_of, rounded
from backpass.ptx.parse import (
    Instruction,
    Number,
    Operand,
    Register,
    Vector,
    targets_of,
    unsupported,
    width_of,
)
from backpass.ptx.products import SIZE, UNWAITED, Flight, names_of
from backpass.ptx.threads import Threads
from backpass.ptx.values import Value

_FLOATS = {("f32", "f16"), ("f16", "f16"), ("f32", "bf16"), ("f32", "tf32")}
_FLOATS |= {("f32", "f32")}  # tensor_cores.with_all_digits
_FLOATS |= {(d, a) for d in ("f32", "f16") for a in ("e4m3", "e5m2")}
_INTEGERS = {("s32", "s8"), ("s32", "u8")}


def warpgroup(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute an instruction of wgmma."""
    own, what = threads.products, instruction.parts[1]
    for number, mask in _warpgroups(threads, chosen):
        if what == "fence":
            values = threads.registers.values
            own.fenced[number] = {name: (x, "") for name, x in values.items()}
            own.open[number] = True
        elif what == "mma_async":
            _start(threads, instruction, number, mask)
        elif what == "commit_group":
            own.groups[number].append([])
        elif what == "wait_group":
            left = int(instruction.operands[0].text, 0)  # type: ignore[union-attr]
            _await(threads, number, left)
            own.open[number] = False
        else:
            raise unsupported(instruction)


def _warpgroups(threads: Threads, chosen: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the number of each warpgroup that executes an instruction, and its
    threads."""
    if len(chosen) % SIZE:
        what = "executes wgmma in a block that does not consist of whole warpgroups"
        raise threads.fault(Barrier, what, chosen)
    groups = chosen.reshape(-1, SIZE)
    bad = chosen & ~np.repeat(groups.all(axis=1), SIZE)
    if bad.any():
        what = "executes wgmma without all threads of its warpgroup"
        raise threads.fault(Barrier, what, bad)
    numbers = np.flatnonzero(groups.all(axis=1))
    return [(int(i), np.arange(len(chosen)) // SIZE == i) for i in numbers]


def _await(threads: Threads, number: int, left: int) -> None:
    """Complete the products of all committed groups except the last ``left``."""
    own = threads.products
    groups = own.groups[number]
    done = max(len(groups) - 1 - left, 0)
    for flight in (flight for group in groups[:done] for flight in group):
        for at in flight.bytes:
            threads.proxy.reading[at] -= 1
        own.flying = [x for x in own.flying if x is not flight]
    del groups[:done]


class _Form(NamedTuple):
    """The parts of an instruction of wgmma.mma_async."""

    rows: int  # of B along N
    types: tuple[str, str, str]  # of D, A, and B
    d: tuple[str, ...]
    a: Operand
    b: Operand
    scale: Operand  # whether D is added
    signs: tuple[int, int]
    transposed: tuple[bool, bool]
    satfinite: bool


@lru_cache(maxsize=1 << 12)
def _form(instruction: Instruction) -> _Form:
    """Return the parts of an instruction. Raises Unsupported."""
    parts = instruction.parts
    rest, satfinite = parts[5:], "satfinite" in parts
    rest = [x for x in rest if x != "satfinite"]
    if parts[1:4] != ["mma_async", "sync", "aligned"] or len(rest) != 3:
        raise unsupported(instruction)
    d, a, b, scale, *more = instruction.operands
    types = rest[0], rest[1], rest[2]
    k = 8 * STEP // width_of(types[1])
    shape = re.fullmatch(rf"m64n(\d+)k{k}", parts[4])
    eight = width_of(types[1]) == width_of(types[2]) == 8
    known = types[:2] in _FLOATS | _INTEGERS and (types[2] == types[1] or eight)
    if shape is None or not known:
        raise unsupported(instruction)
    n = int(shape[1])
    numbers = [int(x.text, 0) for x in more if isinstance(x, Number)]
    if len(numbers) != len(more):
        raise unsupported(instruction)
    signs = (numbers[0], numbers[1]) if len(numbers) > 1 else (1, 1)
    turned = [bool(x) for x in numbers[2:]]
    if isinstance(a, Vector) and len(turned) == 1:
        turned = [False, *turned]
    turned = [*turned, False, False][:2]
    names = tuple(x.name for x in targets_of(d))
    each = 2 if types[0] == "f16" else 1
    if len(names) * each * 2 != n or (any(turned) and width_of(types[1]) != 16):
        raise unsupported(instruction)
    both = turned[0], turned[1]
    return _Form(n, types, names, a, b, scale, signs, both, satfinite)


def _start(
    threads: Threads, instruction: Instruction, number: int, mask: np.ndarray
) -> None:
    form = _form(instruction)
    first = SIZE * number
    own = slice(first, first + SIZE)
    read = frozenset(names_of(form.a) if isinstance(form.a, Vector) else ())
    _check_fenced(threads, form, read, number, mask, instruction.parts[4])
    used: list[np.ndarray] = []
    a, a_known = _operand(threads, form, 0, mask, used)
    b, b_known = _operand(threads, form, 1, mask, used)
    scale = threads.read(form.scale, "pred")
    threads.check(scale, mask, "multiplies with an uninitialised predicate")
    added = _uniform(threads, scale, mask, "predicate")
    with np.errstate(all="ignore"):
        sums = form.signs[0] * form.signs[1] * (a @ b.T)
    known = a_known[:, None] & b_known[None, :]
    rows, columns = _accumulator(form.rows)
    if added:
        before = [threads.read(Register(x), "b32") for x in form.d]
        bits = np.stack([x.bits[own] for x in before], axis=1)
        flags = np.stack([x.whole[own] for x in before], axis=1)
        numbers = _elements(bits, form.types[0])
        of_d = np.zeros(sums.shape)
        of_d[rows, columns] = numbers
        with np.errstate(all="ignore"):
            sums = sums + of_d
        whole = np.zeros(sums.shape, bool)
        whole[rows, columns] = np.repeat(flags, rows.shape[1] // flags.shape[1], axis=1)
        known &= whole
    found = _registers(sums[rows, columns], form)
    defined = known[rows, columns].reshape(SIZE, len(form.d), -1).all(axis=2)
    for i, name in enumerate(form.d):
        bits, flags = np.zeros(len(mask), np.uint32), np.zeros(len(mask), bool)
        bits[own], flags[own] = found[:, i], defined[:, i]
        threads.write(Register(name), bits, flags, mask)
    fenced = threads.products.fenced[number]
    assert fenced is not None
    for name in form.d:
        fenced[name] = threads.registers.values[name], instruction.parts[4]
    for at in used:
        threads.proxy.reading[at] += 1
    flight = Flight(mask, {*form.d}, used)
    threads.products.groups[number][-1].append(flight)
    threads.products.flying.append(flight)


def _check_fenced(
    threads: Threads,
    form: _Form,
    read: frozenset[str],
    number: int,
    mask: np.ndarray,
    shape: str,
) -> None:
    """Raise a fault if a register of the product was written since the last
    wgmma.fence, or belongs to a product of another kind in flight.

    By the manual, a write between the fence and the product is a fault, too. But LLVM
    moves instructions there from before the fence, and ptxas then lets the product
    wait for them.
    """
    fenced = threads.products.fenced[number]
    values = threads.registers.values
    for name in (*form.d, *sorted(read)):
        before, last = (None, "")
        if fenced is not None:
            before, last = fenced.get(name, (None, ""))
        now = values.get(name)
        changed = now is not before and not threads.products.open[number]
        changed = changed and not _same(now, before, mask)
        if fenced is None or changed or last not in ("", shape):
            what = (
                f"multiplies with the register {name} without wgmma.fence since it was "
                "last written"
            )
            raise threads.fault(Fault, what, mask)
    for flight in threads.products.flying:
        wrong = sorted(read & flight.written)
        if wrong and (flight.threads & mask).any():
            raise threads.fault(TooEarly, UNWAITED.format(wrong[0]), mask)


def _same(one: Value | None, other: Value | None, mask: np.ndarray) -> bool:
    """Return whether two values are the same for the threads of a mask."""
    if one is None or other is None:  # never written, by these threads
        known = one or other
        return known is None or not known.defined[mask].any()
    return np.array_equal(one.bits[mask], other.bits[mask]) and np.array_equal(
        one.defined[mask], other.defined[mask]
    )


def _operand(
    threads: Threads, form: _Form, which: int, mask: np.ndarray, used: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers ``[rows, K]`` of A or B, and which rows are defined. The bytes
    that are read from shared memory are added to ``used``."""
    operand, type = (form.a, form.b)[which], form.types[1 + which]
    if isinstance(operand, Vector):
        return _from_registers(threads, operand, type, mask)
    value = threads.read(operand, "b64")
    threads.check(value, mask, "multiplies with an uninitialised matrix descriptor")
    descriptor = _uniform(threads, value, mask, "matrix descriptor")
    width = width_of(type) // 8
    rows = 64 if which == 0 else form.rows
    at = places(descriptor, rows, width, transposed=form.transposed[which])
    ends = [threads.numbers[mask][i] for i in (0, -1)]
    by = [threads.who(np.full(rows, x)) for x in ends]
    data, defined = threads.proxy.load(at, by, threads.registers.seed, "wgmma")
    used.append(at)
    return _numbers(data, type), np.all(defined, axis=1)


def _from_registers(
    threads: Threads, operand: Vector, type: str, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of A that are in registers, 16 rows in each warp."""
    values = [threads.read(x, "b32") for x in operand.parts]
    width = width_of(type) // 8
    where = {1: tensor_cores.A_32, 2: tensor_cores.A_16, 4: tensor_cores.A_8}[width]
    bits = np.stack([x.bits[mask] for x in values], axis=1).reshape(4, 32, -1)
    flags = np.stack([x.whole[mask] for x in values], axis=1).reshape(4, 32, -1)
    numbers = _numbers(np.ascontiguousarray(bits).view(np.uint8), type)
    found = tensor_cores.matrices(numbers, where)
    each = len(where.rows) // flags.shape[2]
    whole = tensor_cores.matrices(np.repeat(flags, each, axis=2), where)
    return found.reshape(64, -1), np.all(whole.reshape(64, -1), axis=1)


def _numbers(data: np.ndarray, type: str) -> np.ndarray:
    """Return the numbers in bytes ``[..., n]``."""
    words = np.ascontiguousarray(data).view(np.uint32)
    return tensor_cores.numbers_of(words, type).astype(np.float64)


def _uniform(threads: Threads, value: Value, mask: np.ndarray, what: str) -> int:
    """Return the value, which all threads of the warpgroup have to share."""
    own = value.bits[mask]
    if (own != own[0]).any():
        bad = mask & (value.bits != own[0])
        raise threads.fault(Fault, f"has another {what} than its warpgroup", bad)
    return int(own[0])


@lru_cache(maxsize=256)
def _accumulator(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the column ``[128, n / 2]`` of each thread's elements of D."""
    thread, i = np.arange(SIZE)[:, None], np.arange(n // 2)[None, :]
    lane = thread % 32
    rows = thread // 32 * 16 + lane // 4 + i // 2 % 2 * 8
    return rows, i // 4 * 8 + lane % 4 * 2 + i % 2


def _elements(bits: np.ndarray, type: str) -> np.ndarray:
    """Return the numbers in the registers ``[128, n]`` of D."""
    return tensor_cores.numbers_of(np.ascontiguousarray(bits), type).astype(np.float64)


def _registers(sums: np.ndarray, form: _Form) -> np.ndarray:
    """Return the registers ``[128, n]`` that hold the sums."""
    type = form.types[0]
    if type == "s32":
        whole = sums.astype(np.int64)
        if form.satfinite:
            whole = np.clip(whole, -(2**31), 2**31 - 1)
        return bits_of(whole, "s32")
    bits = np.ascontiguousarray(bits_of(rounded(sums, type), type))
    return bits.view(np.uint32)
