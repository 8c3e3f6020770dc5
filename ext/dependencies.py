"""Finds the files that the results of a page's cells depend on: the modules of the package that the page imports, directly
or indirectly, and the records and texts that it reads.

The code is parsed, not run. In doubt, a file counts as a dependency: a module that computes the name of an import depends
on all modules of the folder in question. A file that is read is recognised by its name in a string. The files that a
kernel opens are noted while it runs (`forked_kernels`), and the build fails if one of them was not recognised.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import nbformat

SOURCES = "src"
# Modules that read any file of a folder, and those files.
READERS = {
    "backpass.recorded.records": "benchmarks/results/*",
    "backpass.recorded.code": "src/backpass/**/*.py",
    "backpass.recorded.findings": "assets/records/*",
    "backpass.commands.bench": "benchmarks/*",
}
# Folders whose files cells may read.
DATA = (Path("benchmarks", "results"), *(Path("assets", each) for each in ("", "records", "site/_static")))
ALWAYS = ("constraints.txt", "ext/forked_kernels.py")
STARTED = "__main__"  # the module of a package that `python -m` runs
BY_NAME = {"import_module", "__import__", "run_module"}


def is_type_checking(node: ast.AST) -> bool:
    """Whether a statement is ``if TYPE_CHECKING:``, whose imports never run."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of code that runs, without docstrings and code for type checkers."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        children = [*ast.iter_child_nodes(node)]
        if is_type_checking(node):
            children = node.orelse
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            children = [child for child in children if not is_text_alone(child)]
        waiting += children


def is_text_alone(node: ast.AST) -> bool:
    """Whether a statement is a string and nothing else."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


class Dependencies:
    """The dependencies of a book's pages."""

    def __init__(self, book: Path):
        self.book = book
        self.modules: dict[str, Path] = {}
        for path in sorted((book / SOURCES).rglob("*.py")):
            parts = path.relative_to(book / SOURCES).with_suffix("").parts
            self.modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self._directly: dict[str, frozenset[str | Path]] = {}
        self._digests: dict[Path, bytes] = {}

    @cached_property
    def data(self) -> dict[str, list[Path]]:
        """The files that cells may read, by name."""
        found: dict[str, list[Path]] = {}
        folders = [*(self.book / folder for folder in DATA)]
        paths = [path for folder in folders for path in folder.glob("*")]
        for path in (*paths, *(self.book / SOURCES).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.setdefault(path.name, []).append(path)
        return found

    def of(self, notebook: nbformat.NotebookNode) -> frozenset[Path]:
        """Return every file of the book that a notebook's results depend on."""
        found: set[str | Path] = set()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                try:
                    found |= self._needed(ast.parse(cell.source), "", in_page=True)
                except SyntaxError:  # such as an IPython magic
                    found.update(self.modules)
        return self.closed(found)

    def closed(self, found: Iterable[str | Path]) -> frozenset[Path]:
        """Return the files of these modules and of all that they import, and the files given."""
        waiting, seen = [*found], set()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            if isinstance(each, str):
                waiting += self._needed_by_module(each)
        always = (self.book / name for name in ALWAYS)
        files = {self.modules[each] if isinstance(each, str) else each for each in seen}
        return frozenset(files.union(path for path in always if path.exists()))

    def key(self, files: Iterable[Path]) -> str:
        """Return a hash of the files and of Python's version."""
        digest = hashlib.sha256(sys.version.encode())
        for path in sorted(files):
            if path not in self._digests:
                self._digests[path] = hashlib.sha256(path.read_bytes()).digest()
            digest.update(f"{path.relative_to(self.book)}\0".encode() + self._digests[path])
        return digest.hexdigest()[:16]

    def started(self, command: list[str]) -> frozenset[Path]:
        """Return the files that a Python process with these arguments depends on."""
        found: set[str | Path] = {
            Path(each) for each in command if Path(each).is_relative_to(self.book) and Path(each).is_file()
        }
        for option, value in pairwise(command):
            if option == "-m":
                found |= {*self._resolved(value), *self._resolved(f"{value}.{STARTED}")}
            if option == "-c":
                found |= self._needed(ast.parse(value), "", in_page=True)
        return self.closed(found)

    def _needed_by_module(self, name: str) -> frozenset[str | Path]:
        if name not in self._directly:
            path = self.modules[name]
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found = self._needed(tree, package, in_page=False)
            if name in READERS:
                found |= {path for path in self.book.glob(READERS[name]) if path.is_file()}
            self._directly[name] = frozenset(found)
        return self._directly[name]

    def _needed(self, tree: ast.AST, package: str, in_page: bool) -> set[str | Path]:
        """Return the modules and files that code names; ``package`` is the package of the code."""
        found: set[str | Path] = set()
        for node in walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found |= self._resolved(alias.name)
            elif isinstance(node, ast.ImportFrom):
                start = (
                    ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level])
                    if node.level
                    else ""
                )
                origin = ".".join(filter(None, (start, node.module)))
                for alias in node.names:
                    found |= self._resolved(f"{origin}.{alias.name}")
            elif isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", None))
                if called in BY_NAME and node.args:
                    found |= self._imported_by_name(node.args[0], package)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= self._named(node.value, in_page)
        return found

    def _resolved(self, name: str) -> set[str]:
        """Return the module, or the module that defines the name, and the packages above it."""
        found = set()
        while name:
            if name in self.modules:
                found.add(name)
            name = name.rpartition(".")[0]
        return found

    def _inside(self, folder: str) -> set[str]:
        return {name for name in self.modules if f"{name}.".startswith(f"{folder}.")}

    def _imported_by_name(self, name: ast.expr, package: str) -> set[str]:
        """Return the modules in the folder of a name that begins with a known part; otherwise those beside the code.

        A command, in the package's top folder, imports what its user names; a page names that module in a string.
        """
        if isinstance(name, ast.Constant):
            return self._resolved(str(name.value))
        if isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
            return self._inside(str(name.values[0].value).rpartition(".")[0])
        return self._inside(package) if "." in package else set()

    def _named(self, text: str, in_page: bool) -> set[str | Path]:
        """Return the modules and files that a string names; in a page also the package's command."""
        found: set[str | Path] = {*self.data.get(text.rpartition("/")[2], ())}
        if text in self.modules and "." in text:
            found |= self._resolved(text)
        if in_page:
            for name in re.findall(r"\b[a-z_]\w*(?:\.\w+)*", text):
                if name.partition(".")[0] in self._packages:
                    found |= self._resolved(name)
                    if name in self._packages:
                        found |= self._resolved(f"{name}.{STARTED}")
        return found

    @cached_property
    def _packages(self) -> frozenset[str]:
        return frozenset(name for name in self.modules if "." not in name)
