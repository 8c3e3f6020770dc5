"""Changes to PTX, one at a time, as a mistake in a kernel would cause them."""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple


class Change(NamedTuple):
    """A text with one instruction changed."""

    kind: str
    line: str  # the line of the source, such as "softmax_rows.py:120"
    before: str  # the instruction
    at: int  # where its line begins in the text
    text: str


def changes(text: str) -> Iterator[Change]:
    """Yield texts with one change each: a barrier removed, a mask removed, the stride of an address halved, or the
    casts of a source line truncating instead of rounding."""
    place = ""
    at = 0
    casts: dict[str, list[int]] = {}
    for line in text.splitlines(keepends=True):
        start, at = at, at + len(line)
        code = line.split("//")[0]
        if code.lstrip().startswith(".loc"):
            place = _place(line) or place
            continue
        for kind, changed in _changed(code):
            yield Change(
                kind, place, " ".join(code.split()), start, text[:start] + changed + "\n" + text[at:]
            )
        if found := re.match(r"\s*cvt\.rn(?=\.(?:bf16|f16)(?:x2)?\.f32)", code):
            casts.setdefault(place, []).append(start + found.end() - len("rn"))
    for line, places in casts.items():
        parts = [text[a + 2 : b] for a, b in itertools.pairwise([-2, *places, len(text)])]
        yield Change("casts", line, f"{len(places)} casts", places[0], "rz".join(parts))


def without_default(change: Change, text: str) -> str:
    """The text in which a masked load leaves its registers undefined where its mask is false: they are first set from
    a register that is never written."""
    code = text[change.at : text.index("\n", change.at)]
    loaded = re.search(r"\.[a-z](\d+)\s*\{([^}]*)\}", code)
    width = loaded[1]
    moves = [f"mov.b{width} {name.strip()}, %unwritten;\n" for name in loaded[2].split(",")]
    text = text[: change.at] + "".join(moves) + text[change.at :]
    return text.replace("\n{\n", f"\n{{\n.reg .b{width} %unwritten;\n", 1)


def with_huge_stride(change: Change, text: str) -> str:
    """The text in which the stride that was halved is so large that every index except 0 is outside the tensor."""
    code, after = text[change.at :].split("\n", 1)
    code = re.sub(r"(\bshl\.b64\s.*,\s*)\d+;", r"\g<1>44;", code)
    code = re.sub(r"(\.wide\.[su]32\s+%\w+,\s*%\w+,\s*)\d+", rf"\g<1>{2**30}", code)
    return f"{text[: change.at]}{code}\n{after}"


def _changed(code: str) -> Iterator[tuple[str, str]]:
    if re.match(r"\s*bar\.sync\s", code):
        yield "barrier", ""
    if found := re.match(r"\s*@!?%p\d+\s+((?:ld|st)\.global.*)", code):
        yield f"mask of {'a load' if found[1].startswith('ld') else 'a store'}", found[1]
    if found := re.match(r"(\s*shl\.b64\s.*,\s*)(\d+)(;.*)", code, re.DOTALL):
        yield "stride", f"{found[1]}{int(found[2]) - 1}{found[3].rstrip()}"
    if found := re.match(r"(\s*(?:mul|mad)\.wide\.[su]32\s+%\w+,\s*%\w+,\s*)(\d+)([;,].*)", code, re.DOTALL):
        if int(found[2]) > 1:
            yield "stride", f"{found[1]}{int(found[2]) // 2}{found[3].rstrip()}"


def _place(line: str) -> str:
    """The innermost line that a .loc names in a kernel's own file."""
    files = re.findall(r"([\w.]+\.py):(\d+)", line)
    own = [f"{file}:{number}" for file, number in files if file != "standard.py"]
    return own[0] if own else ""
