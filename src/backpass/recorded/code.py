"""Hash the code of the package's files, so that a record can state which code it timed.

Comments, docstrings, imports, and white space do not count: an imported file has a hash
of its own. A record has the hashes of the files that its script had loaded. A page that
shows the record compares them with the files as they are: no history of the repository
is needed.
"""

from __future__ import annotations

import ast
import hashlib
import io
import sys
import tokenize
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
# The folders of the package that a script may time, in the order in which their files
# are named. Modules beside them count too.
TIMED = ("kernels", "ops", "models", "training", "parallel", "torch_door", "contract")
# What runs kernels on the CPU is loaded with them, and not timed.
UNTIMED = tuple(
    f"kernels/{name}.py"
    for name in (
        "addresses",
        "allocated",
        "as_cuda",
        "compiled",
        "descriptors",
        "tuning",
        "untimed",
    )
)
LENGTH = 12  # of a hash


def loaded() -> dict[str, str]:
    """Return the hash of each timed file of the package that this process has loaded,
    by its path in the package."""
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    paths = (Path(name).resolve() for name in files if name)
    own = (path.relative_to(PACKAGE) for path in paths if PACKAGE in path.parents)
    timed = sorted(path.as_posix() for path in own if _is_timed(path))
    return {path: _now(PACKAGE / path) or "" for path in timed}


def changed(recorded: Mapping[str, str], package: Path = PACKAGE) -> list[str]:
    """Return the paths of those recorded files whose code is different now, or that do
    not exist."""
    found = [path for path, own in recorded.items() if _now(package / path) != own]
    return sorted(found, key=lambda path: (_folder(path), path))


def _folder(path: str) -> int:
    first = path.partition("/")[0]
    return TIMED.index(first) if first in TIMED else len(TIMED)


@cache
def _now(path: Path) -> str | None:
    return hashed(path.read_text("utf-8")) if path.is_file() else None


def hashed(source: str) -> str:
    """Return a hash of Python code that does not depend on comments, docstrings,
    imports, or white space."""
    lines = io.StringIO(source).readlines()
    for (first, start), (last, stop) in _unread(source):
        for at in range(first, last + 1):
            begin = start if at == first else 0
            end = stop if at == last else len(lines[at])
            lines[at] = lines[at][:begin] + " " * (end - begin) + lines[at][end:]
    text = "".join("".join(lines).split())
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def _is_timed(path: Path) -> bool:
    timed = path.parts[0] in TIMED or len(path.parts) == 1
    return timed and path.as_posix() not in UNTIMED


def _unread(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where comments, docstrings, and imports begin and end, as lines and
    columns. One may lie within another."""
    found = [
        ((token.start[0] - 1, token.start[1]), (token.end[0] - 1, token.end[1]))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    lines = io.StringIO(source).readlines()
    for node in ast.walk(ast.parse(source)):
        left_out: Any = node if isinstance(node, ast.Import | ast.ImportFrom) else None
        scopes = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
        if (
            isinstance(node, scopes)
            and ast.get_docstring(node, clean=False) is not None
        ):
            left_out = node.body[0]
        if left_out is not None:
            # The columns of a syntax tree count bytes.
            last = lines[left_out.end_lineno - 1].encode()[: left_out.end_col_offset]
            begin = (left_out.lineno - 1, left_out.col_offset)
            found.append((begin, (left_out.end_lineno - 1, len(last.decode()))))
    return found
