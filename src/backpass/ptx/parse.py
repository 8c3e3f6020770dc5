"""Parse the text of one PTX kernel, as Triton's compiler emits it.

A statement is an instruction, a label, or a directive. The parser reads only directives
that declare the parameters, the number of threads, the registers, the variables, and
the lines of the source. PTX ISA 8.7, chapters 4 and 5.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
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
Line = tuple[str, str, str]  # the number of a file, a line, and a column


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
        return _divided(self.name)


@cache
def _divided(name: str) -> list[str]:
    return name.split(".")


def unsupported(instruction: Instruction) -> Unsupported:
    """Return the error for an instruction that is not supported."""
    return Unsupported(f"ptx: the instruction {instruction.name} is not supported")


def targets_of(operand: Operand) -> Sequence[Register]:
    """Return the registers that an operand names: one register, several in braces, or
    two predicates separated by a bar."""
    if isinstance(operand, Vector):
        return operand.parts  # type: ignore[return-value]
    if isinstance(operand, Register) and "|" in operand.name:
        return [Register(name) for name in operand.name.split("|")]
    return [operand]  # type: ignore[list-item]


def label_of(instruction: Instruction) -> str:
    """Return the label to which an instruction branches."""
    (target,) = instruction.operands
    if not isinstance(target, Label):
        raise Unsupported(f"ptx: expected a label to branch to; got {target}")
    return target.name


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
    widths: dict[str, int]  # of the registers, by name
    variables: dict[str, int]  # the addresses of variables in shared and local memory
    tables: dict[str, bytes]  # the variables in global and constant memory
    local: int  # bytes of local memory of each thread
    shared: int  # bytes of shared memory of the variables whose size is declared
    swapped: frozenset[Operand]  # the addresses of compare-and-swaps
    asynchronous: bool  # whether wgmma or bulk copies access shared memory
    fences: bool  # whether fences order atomic instructions

    @property
    def addressed(self) -> list[str]:
        """The tables, and the parameters that are passed as bytes in memory."""
        own = [x.name for x in self.parameters if x.type == IN_MEMORY]
        return [*self.tables, *own]


def parse(text: str) -> Program:
    """Return the kernel in the text. Raises Unsupported if it cannot be parsed."""
    entry = re.search(r"\.entry\s+(\w+)\s*\(([^)]*)\)", text)
    threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)\s*(?:,\s*(\d+))?", text)
    if entry is None or threads is None:
        raise Unsupported("ptx: expected an .entry with .reqntid, as Triton emits it")
    if threads[2] not in (None, "1"):
        raise Unsupported("ptx: expected blocks of one dimension")
    if int(threads[1]) % 32:
        raise Unsupported(
            f"ptx: expected blocks of whole warps; got {threads[1]} threads"
        )
    name, parameters = entry[1], _parameters(entry[2])
    body = _body(text[text.index("{", threads.end()) :])
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text))

    code: list[Instruction] = []
    labels: dict[str, int] = {}
    widths = {"CC.CF": 1}  # the carry of an addition
    scopes: list[dict[str, str]] = [{}]  # the names in each pair of braces
    declared, place, inner = _variables(text), None, 0
    callers: dict[Line, Line] = {}
    for statement in _statements(body):
        if re.match(r"\.loc\s", statement):
            place = _place(statement, files, callers) or place
        elif statement == "{":
            inner += 1
            scopes.append({**scopes[-1], "{": str(inner)})
        elif statement == "}":
            scopes.pop()
        elif found := re.match(r"\.reg\s+\.(\w+)\s+(.+)$", statement):
            for register in _registers(found[2]):
                own = (
                    register if register not in widths else f"{register}@{len(widths)}"
                )
                scopes[-1][register], widths[own] = own, width_of(found[1])
        elif found := re.match(r"([$\w]+):$", statement):
            label = found[1]
            if len(scopes) > 1:  # instructions within the braces may branch back to it
                label = f"${label}@{scopes[-1]['{']}"
                scopes[-1][found[1]] = label
            if label in labels:
                raise Unsupported(f"ptx: the label {found[1]} is declared twice")
            labels[label] = len(code)
        elif not statement.startswith((".", "createpolicy")):  # a hint for the cache
            code.append(_instruction(statement, place, scopes[-1]))
    variables, sizes = _placed(declared)
    return Program(
        name,
        parameters,
        int(threads[1]),
        tuple(code),
        labels,
        widths,
        variables,
        {v.name: _content(v) for v in declared if v.space in ("global", "const")},
        local=sizes["local"],
        shared=sizes["shared"],
        swapped=frozenset(
            operand
            for instruction in code
            for operand in instruction.operands
            if "cas" in instruction.parts and isinstance(operand, Address)
        ),
        asynchronous=any(
            x.parts[0] in ("wgmma", "mbarrier") or x.parts[1:3] == ["async", "bulk"]
            for x in code
        ),
        fences=any(x.name.startswith("fence.acq_rel.") for x in code),
    )


@cache
def width_of(type: str) -> int:
    """Return the width in bits of a type such as "f32" or "bf16x2"."""
    if type == "pred":
        return 1
    found = re.fullmatch(r"(?:(?:bf|[usbf]|tf)(8|16|32|64)|e4m3|e5m2)(x2)?", type)
    if found is None:
        raise Unsupported(f"ptx: unknown type {type}")
    return int(found[1] or 8) * (2 if found[2] else 1)


def _body(text: str) -> str:
    """Return the text between the first brace and the matching brace."""
    depth = 0
    for brace in re.finditer(r"[{}]", text):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[1 : brace.start()]
    raise Unsupported("ptx: expected a closing brace at the end of the kernel")


# The type of a parameter that is passed as its 128 bytes: a tensor map.
IN_MEMORY = "b8[128]"


def _parameters(text: str) -> tuple[Parameter, ...]:
    # A number in half precision is declared as its bytes: .align 2 .b8 name[2].
    align = r"(?:\.align\s+\d+\s+)?"
    found = re.findall(
        rf"\.param\s+{align}\.(\w+)\s+((?:\.\w+\s+(?:\d+\s+)?)*)(\w+)(\[128\])?",
        text,
    )
    return tuple(
        Parameter(name, IN_MEMORY if size else type, ".ptr" in more)
        for type, more, name, size in found
    )


class _Variable(NamedTuple):
    """A variable: its size in memory, and its initial values if it has any."""

    space: str
    alignment: int
    width: int  # of an element, in bytes
    name: str
    size: int  # in bytes; 0 if the declaration states no size
    values: str


def _variables(text: str) -> list[_Variable]:
    """Return the variables in the order of their declarations. A variable without a
    declared size is last, because it takes the rest of the shared memory."""
    form = (
        r"(?<![\w.])\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+\d)\s+"
        r"([$\w]+)(\[\d*\])?\s*(?:=\s*\{?([^;}]*))?"
    )
    found = []
    for space, align, type, name, length, values in re.findall(form, text):
        width = width_of(type) // 8
        size = width * int(length.strip("[]") or 0) if length else width
        found.append(_Variable(space, int(align or width), width, name, size, values))
    return sorted(found, key=lambda variable: not variable.size)


def _placed(declared: list[_Variable]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the addresses of the variables in shared and local memory, and how many
    bytes of each memory the variables take."""
    found, sizes = {}, {"shared": 0, "local": 0}
    for space, alignment, _, name, size, _ in declared:
        if space in sizes:
            found[name] = -(-sizes[space] // alignment) * alignment
            sizes[space] = found[name] + size
    return found, sizes


def _content(variable: _Variable) -> bytes:
    """Return the bytes of a variable. Values that are not declared are 0."""
    values = re.split(r"[,\s]+", variable.values.strip())
    try:
        numbers = [int(value, 0) % 256**variable.width for value in values if value]
    except ValueError:
        what = f"ptx: the values of the variable {variable.name} are not supported"
        raise Unsupported(what) from None
    content = b"".join(x.to_bytes(variable.width, "little") for x in numbers)
    return content.ljust(variable.size, b"\0")


def _registers(names: str) -> Iterator[str]:
    """Yield the registers that .reg declares: %r<9> declares %r0 to %r8."""
    for name, count in re.findall(r"([%\w$]+)(?:<(\d+)>)?", names):
        yield from (f"{name}{i}" for i in range(int(count))) if count else (name,)


def _place(
    statement: str, files: dict[str, str], callers: dict[Line, Line]
) -> Place | None:
    """Return the line of a .loc, or None for line 0, which marks instructions that the
    compiler added.

    For an inlined function, Triton 3.7 lists the chain of its callers in a comment, and
    3.8 gives the next caller, whose own is that of the last .loc with its position;
    ``callers`` collects these. The place is the innermost line of the chain that is not
    in Triton's own files.
    """
    found = re.match(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)", statement)
    if found is None or found[2] == "0":
        return None
    chain: list[Line] = [(found[1], found[2], found[3])]
    callers.pop(chain[0], None)
    if caller := re.search(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)", statement):
        callers[chain[0]] = (caller[1], caller[2], caller[3])
    while (above := callers.get(chain[-1])) and above not in chain:
        chain.append(above)
    lines = [(files.get(file, f"file {file}"), line) for file, line, _ in chain]
    paths = {PurePath(path).name: path for path in files.values()}
    calls = re.findall(r"@\[ ([^:]+):(\d+)", statement)
    lines += [(paths.get(name, name), line) for name, line in calls]
    own = [(path, line) for path, line in lines if "triton" not in PurePath(path).parts]
    path, line = (own or lines)[0]
    parts = PurePath(path).parts
    cell = any(part.startswith("ipykernel_") for part in parts)
    text = linecache.getline(path, int(line)).strip()
    return Place("cell" if cell else parts[-1], int(line), text)


def _statements(body: str) -> Iterator[str]:
    """Yield the statements, without comments except those of .loc. Labels, .loc, and
    braces around statements end without a semicolon."""
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    body = re.sub(r"^(?!\s*\.loc\b)([^\n]*?)//[^\n]*", r"\1", body, flags=re.MULTILINE)
    for line in re.split(r";|\n", body):
        found = line.strip()
        while match := re.match(r"([$\w]+:|[{}])\s*(.*)$", found):
            yield match[1]
            found = match[2]
        if found:
            yield found


_ATOMIC_LOAD = re.compile(
    r"ld((?:\.(?!v\d)\w+)*\.(?:acquire|relaxed)(?:\.(?!v\d)\w+)*)\.[a-z](\d+)"
)


def _instruction(
    statement: str, place: Place | None, names: Mapping[str, str]
) -> Instruction:
    found = re.match(r"(?:@(!?)([%$\w]+)\s+)?([a-z][\w.:]*)\s*(.*)$", statement)
    if found is None:
        raise Unsupported(f"ptx: cannot parse {statement!r}")
    negated, guard, name, rest = found.groups()
    texts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)
    if "L2::cache_hint" in name:  # the last operand is the hint
        texts = texts[:-1]
    if atomic := _ATOMIC_LOAD.fullmatch(name):  # it is as if it wrote what it reads
        name, texts = f"atom{atomic[1]}.or.b{atomic[2]}", [*texts, "0"]
    operands = tuple(_operand(text.strip(), names) for text in texts)
    register = None if guard is None else Register(names.get(guard, guard))
    return Instruction(name, operands, register, negated == "!", place)


def _operand(text: str, names: Mapping[str, str]) -> Operand:
    """Return an operand. ``names`` holds the registers that are declared at this place:
    the same name may stand for another register outside a pair of braces."""
    if text.startswith("{"):
        parts = text[1:-1].split(",")
        return Vector(tuple(_operand(part.strip(), names) for part in parts))
    if text.startswith("["):
        if tile := re.fullmatch(r"(\[[^,]*),\s*(\{.*\})\s*\]", text):
            both = _operand(f"{tile[1]}]", names), _operand(tile[2], names)
            return Vector(both)
        found = re.fullmatch(r"\[\s*([%$\w.]+)\s*(?:([+-])\s*(-?\d+))?\s*\]", text)
        if found is None:
            raise Unsupported(f"ptx: cannot parse the address {text}")
        offset = int(found[3] or 0) * (-1 if found[2] == "-" else 1)
        return Address(names.get(found[1], found[1]), offset)
    if "|" in text:
        return Register("|".join(names.get(part, part) for part in text.split("|")))
    if text.startswith("%") or text in names:
        own = names.get(text, text)
        return Label(own) if own.startswith("$") else Register(own)
    if re.match(r"-?\d", text):
        return Number(text)
    return Label(text)
