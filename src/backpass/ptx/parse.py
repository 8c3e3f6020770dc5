"""Parse the text of one PTX kernel, as Triton's compiler emits it.

A statement is an instruction, a label, or a directive. The parser reads only directives
that declare the parameters, the number of threads, the registers, local memory, and the
lines of the source. PTX ISA 8.7, chapters 4 and 5.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterator
from pathlib import PurePath
from typing import NamedTuple

from backpass.ptx.faults import Place, Unsupported


class Register(NamedTuple):
    """A register, which may be a special register such as %tid.x."""

    name: str


class Number(NamedTuple):
    """A constant, as it is written."""

    text: str


class Vector(NamedTuple):
    """Several registers in braces; ``_`` stands for no register."""

    parts: tuple[Operand, ...]


class Address(NamedTuple):
    """An address: a register, a parameter, or a variable in shared memory, and an
    offset in bytes."""

    base: str
    offset: int


class Label(NamedTuple):
    """The name of a branch target or of a variable."""

    name: str


Operand = Register | Number | Vector | Address | Label


class Instruction(NamedTuple):
    """An instruction. A thread executes it only if the predicate ``guard``, or its
    negation, is true."""

    name: str  # with its modifiers, such as "add.s32"
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    place: Place | None

    @property
    def parts(self) -> list[str]:
        """The name and its modifiers."""
        return self.name.split(".")


class Parameter(NamedTuple):
    """A parameter of the kernel."""

    name: str
    type: str  # such as "u64"
    pointer: bool


class Program(NamedTuple):
    """A kernel."""

    name: str
    parameters: tuple[Parameter, ...]
    threads: int
    code: tuple[Instruction, ...]
    labels: dict[str, int]  # the position of each in the code
    widths: dict[str, int]  # of the registers, by name or by the letters of the name
    local: int = 0  # bytes of local memory of each thread


def parse(text: str) -> Program:
    """Return the kernel in the text. Raises Unsupported if it cannot be parsed."""
    entry = re.search(r"\.entry\s+(\w+)\s*\(([^)]*)\)", text)
    threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)\s*(?:,\s*(\d+))?", text)
    if entry is None or threads is None:
        raise Unsupported("ptx: expected an .entry with .reqntid, as Triton emits it")
    if threads[2] not in (None, "1"):
        raise Unsupported("ptx: expected blocks of one dimension")
    name, parameters = entry[1], _parameters(entry[2])
    body = text[text.index("{", threads.end()) + 1 :]
    end = re.search(r"^\}", body, re.MULTILINE)
    body = body if end is None else body[: end.start()]
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text))

    code: list[Instruction] = []
    labels: dict[str, int] = {}
    widths = {"p": 1}
    local, place = 0, None
    for statement in _statements(body):
        if re.match(r"\.loc\s", statement):
            place = _place(statement, files) or place
        elif found := re.match(r"\.reg\s+\.(\w+)\s+(.+)$", statement.strip("{ ")):
            widths |= _declared(found[2], width_of(found[1]))
        elif found := re.match(r"\.local\s.*\[(\d+)\]$", statement):
            local += int(found[1])
        elif found := re.match(r"([$\w]+):$", statement):
            labels[found[1]] = len(code)
        elif not statement.startswith((".", "{", "}")):
            code.append(_instruction(statement, place, widths))
    count = int(threads[1])
    return Program(name, parameters, count, tuple(code), labels, widths, local)


def width_of(type: str) -> int:
    """Return the width in bits of a type such as "f32" or "bf16x2"."""
    if type == "pred":
        return 1
    found = re.fullmatch(r"(?:bf|[usbf]|tf)(\d+)(x2)?", type)
    if found is None:
        raise Unsupported(f"ptx: unknown type {type}")
    return int(found[1]) * (2 if found[2] else 1)


def _parameters(text: str) -> tuple[Parameter, ...]:
    found = re.findall(r"\.param\s+\.(\w+)\s+((?:\.\w+\s+(?:\d+\s+)?)*)(\w+)", text)
    return tuple(Parameter(name, type, ".ptr" in more) for type, more, name in found)


def _declared(names: str, width: int) -> dict[str, int]:
    """Return the widths of the registers that .reg declares.

    %r<9> declares %r0 to %r8, which are recorded under their letters alone. Registers
    of inline assembly may have no %; each is recorded under its name.
    """
    found = {}
    for sign, letters, count in re.findall(r"(%?)(\w+)(?:<(\d+)>)?", names):
        found[letters] = width
        if not sign:
            found |= {f"{letters}{i}": width for i in range(int(count or 0))}
    return found


def _place(statement: str, files: dict[str, str]) -> Place | None:
    """Return the line of a .loc, or None for line 0, which marks instructions that the
    compiler added.

    For an inlined function, a comment lists the chain of its callers. The place is the
    innermost line of the chain that is not in Triton's own files.
    """
    found = re.match(r"\.loc\s+(\d+)\s+(\d+)", statement)
    if found is None or found[2] == "0":
        return None
    paths = {PurePath(path).name: path for path in files.values()}
    path = files.get(found[1], f"file {found[1]}")
    calls = re.findall(r"@\[ ([^:]+):(\d+)", statement)
    lines = [(path, found[2]), *((paths.get(name, name), line) for name, line in calls)]
    own = [(path, line) for path, line in lines if "triton" not in PurePath(path).parts]
    path, line = (own or lines)[0]
    parts = PurePath(path).parts
    cell = any(part.startswith("ipykernel_") for part in parts)
    text = linecache.getline(path, int(line)).strip()
    return Place("cell" if cell else parts[-1], int(line), text)


def _statements(body: str) -> Iterator[str]:
    """Yield the statements, without comments except those of .loc. Labels and .loc end
    without a semicolon."""
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    body = re.sub(r"^(?!\s*\.loc\b)([^\n]*?)//[^\n]*", r"\1", body, flags=re.MULTILINE)
    for line in re.split(r";|\n", body):
        found = line.strip()
        while match := re.match(r"([$\w]+:)\s*(.*)$", found):
            yield match[1]
            found = match[2]
        if found:
            yield found


def _instruction(
    statement: str, place: Place | None, known: Collection[str]
) -> Instruction:
    found = re.match(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)$", statement)
    if found is None:
        raise Unsupported(f"ptx: cannot parse {statement!r}")
    negated, guard, name, rest = found.groups()
    texts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)
    operands = tuple(_operand(text.strip(), known) for text in texts)
    register = None if guard is None else Register(guard)
    return Instruction(name, operands, register, negated == "!", place)


def _operand(text: str, known: Collection[str]) -> Operand:
    if text.startswith("{"):
        parts = text[1:-1].split(",")
        return Vector(tuple(_operand(part.strip(), known) for part in parts))
    if text.startswith("["):
        found = re.fullmatch(r"\[\s*([%$\w.]+)\s*(?:\+\s*(-?\d+))?\s*\]", text)
        if found is None:
            raise Unsupported(f"ptx: cannot parse the address {text}")
        return Address(found[1], int(found[2] or 0))
    if text.startswith("%") or text in known:
        return Register(text)
    if re.match(r"-?\d", text):
        return Number(text)
    return Label(text)
