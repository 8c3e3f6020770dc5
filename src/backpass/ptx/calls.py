"""Calls that Triton's compiler emits: of vprintf for ``tl.device_print``, and of
__assertfail for ``tl.device_assert``.

CUDA C++ Programming Guide, "Formatted Output" and "Assertion".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from backpass.ptx.faults import Assertion, Unsupported
from backpass.ptx.parse import Instruction, Label
from backpass.ptx.threads import Threads

_CONVERSION = re.compile(r"%([-+ #0]*\d*(?:\.\d+)?)(hh|h|ll|l)?([diouxXeEfgGcps%])")


def call(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute ``call`` for the chosen threads. A failed assertion is a fault."""
    names = [x.name.strip("()") for x in instruction.operands if isinstance(x, Label)]
    function = next((name for name in names if name in _FUNCTIONS), None)
    if function is None:
        raise Unsupported(
            "ptx: calls of functions that are not inlined are not supported; inline it, "
            "or call it from the host"
        )
    _FUNCTIONS[function](threads, names[names.index(function) + 1 :], chosen)


def _print(threads: Threads, names: list[str], chosen: np.ndarray) -> None:
    """Append the text that CUDA's printf prints for each thread."""
    forms, values = (threads.passed[name].bits for name in names)
    for thread in threads.numbers[chosen]:
        text = _text(threads, int(forms[thread]))
        threads.printed += _formatted(threads, text, int(thread), int(values[thread]))


def _fail(threads: Threads, names: list[str], chosen: np.ndarray) -> None:
    message = threads.passed[names[0]].bits[chosen][0]
    raise threads.fault(
        Assertion, f"fails the assertion {_text(threads, int(message))!r}", chosen
    )


_FUNCTIONS = {"vprintf": _print, "__assertfail": _fail}


def _text(threads: Threads, address: int) -> str:
    """Return the string at an address in one of the kernel's tables."""
    for name, content in threads.program.tables.items():
        offset = address - threads.parameters[name]
        if 0 <= offset < len(content):
            return content[offset:].partition(b"\0")[0].decode(errors="replace")
    raise Unsupported("ptx: a text that is not in a table of the kernel")


def _formatted(threads: Threads, text: str, thread: int, at: int) -> Iterator[str]:
    """Yield the parts of a text, with values in place of conversions. The values are in
    the thread's local memory from ``at`` on, each at a multiple of its size."""
    end = 0
    for found in _CONVERSION.finditer(text):
        yield text[end : found.start()]
        end = found.end()
        flags, length, kind = found.groups()
        if kind == "%":
            yield "%"
            continue
        size = 8 if kind in "eEfgGps" or length in ("l", "ll") else 4
        at = -(-at // size) * size
        data, defined = (kept[thread, at : at + size] for kept in threads.local)
        at += size
        if not defined.all():
            yield "(undefined)"
        elif kind in "eEfgG":
            yield f"%{flags}{kind}" % data.view(np.float64)[0]
        elif kind == "s":
            yield f"%{flags}s" % _text(threads, int(data.view(np.uint64)[0]))
        else:
            signed = "i" if kind in "di" else "u"
            number = int(data.view(f"{signed}{size}")[0])
            yield hex(number) if kind == "p" else f"%{flags}{kind}" % number
    yield text[end:]
