"""The chapters as text: their code cells, their prose, and the derivations in them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from backpass.derivation import Derivation

BOOK = Path(__file__).parents[2]
_CELL = re.compile(r"^(`{3,})\{code-cell\}[^\n]*\n(.*?)^\1\s*$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"(?P<fence>`{3,}|~{3,}|:{3,})(?:\{(?P<name>[\w-]+)\})?.*")
_WORDS = (
    "exercise",
    "solution",
    "admonition",
    "note",
    "tip",
    "important",
    "grid",
    "warning",
)  # directives that hold prose


@cache
def chapters() -> tuple[Path, ...]:
    """Every page of the book, in the order of their paths."""
    return (BOOK / "intro.md", *sorted((BOOK / "chapters").rglob("*.md")))


def code_cells(page: Path) -> list[str]:
    """The code of the page's cells, without their tags."""
    bodies = (match[2] for match in _CELL.finditer(page.read_text(encoding="utf-8")))
    return [re.sub(r"\A(?::\w[^\n]*\n)+\n?", "", body) for body in bodies]


def prose(page: Path) -> str:
    """The page without its header, code cells and other literal blocks; with what exercises, solutions and boxes say."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    kept, literal = [], ""
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line)
        if literal:
            closes = match and not match["name"] and line.startswith(literal) and not line.strip(literal[0])
            literal = "" if closes else literal
        elif match and match["name"] and match["name"].startswith(_WORDS):
            pass  # it opens; its end is a fence alone
        elif match and (match["name"] or line.strip(match["fence"][0])):
            literal = match["fence"]
        elif not match:
            kept.append(line)
    return "\n".join(kept)


@cache
def derivations() -> tuple[tuple[Path, Derivation], ...]:
    """Every ``derive(…)`` of every page, in order, read but not checked, each with its page.

    Their arguments must be literals, except ``after``, which names an earlier one of the page.
    """
    found = []
    for page in chapters():
        named: dict[str, Derivation] = {}
        for cell in code_cells(page):
            for statement in ast.parse(cell).body:
                for call in (node for node in ast.walk(statement) if _is_derive(node)):
                    derivation = _read(call, named)
                    found.append((page, derivation))
                    if isinstance(statement, ast.Assign):
                        named[statement.targets[0].id] = derivation
    return tuple(found)


def _is_derive(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) == "derive"


def _read(call: ast.Call, named: dict[str, Derivation]) -> Derivation:
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    after = options.pop("after", None)
    values = {name: ast.literal_eval(value) for name, value in options.items()}
    return Derivation(ast.literal_eval(call.args[0]), **values, after=named[after.id] if after else None)
