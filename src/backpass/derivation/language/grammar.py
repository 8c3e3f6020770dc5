"""The parser of the language, from its grammar (language.lark).

Lark analyses the grammar in half a second. The result is stored beside Python's
bytecode, and like it: not if ``sys.dont_write_bytecode`` is set, and under another name
if the grammar, Lark, or Python changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import lark
from lark import Lark

GRAMMAR = Path(__file__).with_name("language.lark")
OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "start": ["expression", "declarations", "conditions", "moved", "head"],
    "propagate_positions": True,
}
# Of a token: without its spaces. A function is not stored.
CALLBACKS: dict[str, Any] = {
    "lexer_callbacks": {"SHIFTED": lambda t: t.update(value="".join(t.split()))}
}


@cache
def parser() -> Lark:
    text = GRAMMAR.read_text(encoding="utf-8")
    if sys.dont_write_bytecode:
        return Lark(text, **OPTIONS, **CALLBACKS)
    return stored(text, Path(cache_from_source(str(GRAMMAR))))


def stored(text: str, beside: Path) -> Lark:
    """Return the parser of a grammar. Its analysis is read from a file whose name
    begins as that of ``beside``; if no such file can be read, one is written."""
    facts = repr((text, OPTIONS, lark.__version__)).encode()
    path = beside.with_suffix(f".{hashlib.sha256(facts).hexdigest()[:16]}")
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        analysis = pickle.loads(path.read_bytes())
        analysis["data"]["options"] |= CALLBACKS
        return Lark.load(analysis)
    found = Lark(text, **OPTIONS, **CALLBACKS)
    # Under another name until it is complete: another process may read it.
    own = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    with contextlib.suppress(OSError):
        with own.open("wb") as file:
            found.save(file, exclude_options=CALLBACKS)
        own.replace(path)
    return found
