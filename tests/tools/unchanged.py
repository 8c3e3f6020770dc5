"""Of tests whose code has not changed since all tests passed, run a rotating part.

A test of the folders and files ``PLACES`` depends on its own file, on the modules of tests and of the package that this
file imports, on what those import, on the data that they read, and on the installed versions; one of the site depends
on the whole project. ``tests/proved.lock`` has a line for each such file: a hash of all that, as it was when every test
passed. While it is the same, of each file's tests the part ``SHARE`` runs, drawn from the seed of ``proofs.py``. On a
GPU, all tests run.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import proofs
from backpass import kernels

PLACES = frozenset(
    "book compiled cost derivation functional kernels models parallel ptx verify".split()
    + "test_flop_counter.py test_functional.py".split()
)
# Each run derives and checks every gradient, and counts every operation.
ALWAYS = frozenset("test_all_operations.py test_docstring.py test_formulas.py".split())
SHARE = 0.25
# Modules that others import by a name that is not in their source.
LOADED_BY_NAME = {
    "backpass.kernels": "backpass.kernels",
    "backpass.ops": "backpass.ops",
    "backpass.torch_door.operators": "backpass.flop_counter",
}
SETTINGS = "constraints.txt pyproject.toml tests/conftest.py".split()
# What is read by its path: by the package, and by tests that name it, or that belong to the site.
OF_PACKAGE = "assets/records assets/text.txt benchmarks/results".split()
READ = (
    "_config.yml _static _templates _toc.yml assets benchmarks chapters ext intro.md references.bib".split()
)
OWN_RECORD = "weight-"  # of the tests' own time
STARTERS = ("cli", "subprocess")  # what starts a command, which may import anything
MADE = re.compile(r"\..*|__pycache__|.*\.egg-info")  # folders that tools make, on each machine their own


class Plugin:
    """Leaves out what rotates of unchanged tests, unless ``-k`` or a name chooses."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        out = set() if proofs.chosen(config) else left_out(items)
        if out:
            config.hook.pytest_deselected(items=[item for item in items if item in out])
            items[:] = [item for item in items if item not in out]


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that this run leaves out. Tests that rotate by themselves are not among them."""
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if {item.path.parent.name, item.path.name}.isdisjoint(PLACES) or item.path.name in ALWAYS:
            continue
        if not _rotates(item):
            files[item.path].append(item)
    out: set[pytest.Item] = set()
    for path, tests in files.items():
        key = f"file:{path.relative_to(proofs.BOOK)}"
        if not proofs.product_has_changed(key, described(path)):
            out |= {*tests} - {*proofs.sample(key, tests, SHARE)}
    return out


def _rotates(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("rotates")) or "proof" in getattr(item, "fixturenames", ())


def described(path: Path) -> tuple[str, str]:
    """Return a hash of the package's modules that a file of tests uses, and one of the tests' code, of the data that they
    and the package read, and of the versions that are installed. Comments and docstrings count: some tests read them."""
    files = proofs.tests_used(path)
    packages = {parent / "__init__.py" for file in files for parent in file.parents} & {*_below("tests")}
    names = {name for file in files for name in _package(file)}
    of_site = path.parent.name == "book"
    if of_site:
        names |= {*proofs.PACKAGES}
    read = READ if of_site else {name for file in files for name in _named_places(file)}
    places = [*SETTINGS, *OF_PACKAGE, *read]
    data = [file for name in places for file in _below(name)]
    data += [
        file for name in ("src", f"tests/{path.parent.name}") for file in _below(name) if file.suffix != ".py"
    ]
    return _hash(_modules(frozenset(names))), _hash({*files, *packages, *data}, _installed())


def _hash(files: Iterable[Path], *more: str) -> str:
    named = [f"{file.relative_to(proofs.BOOK)} {_content(file)}" for file in sorted({*files})]
    return hashlib.sha256("\0".join([*named, *more]).encode()).hexdigest()[:12]


@functools.cache
def _content(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@functools.cache
def _package(file: Path) -> frozenset[str]:
    """Return the modules and packages of the project that a file imports by name."""
    return frozenset(name for node in proofs.parsed(file) for name in _imported(node))


def _imported(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        yield from (name for name in names if _is_own(name))
    elif not node.level and _is_own(node.module or ""):
        yield from (_module(node.module, name) for name in names)
    if any(name.rpartition(".")[2] in STARTERS for name in names):
        yield from proofs.PACKAGES


def _is_own(name: str) -> bool:
    return name.partition(".")[0] in proofs.PACKAGES


def _module(package: str, name: str) -> str:
    """Return the module that ``from package import name`` imports, or the package if it is a name within it."""
    return f"{package}.{name}" if f"{package}.{name}" in proofs.graph().modules else package


@functools.cache
def _modules(names: frozenset[str]) -> frozenset[Path]:
    """Return the files of modules and of all that they import: by name, by the names of files, and as packages."""
    graph = proofs.graph()
    reached = set(names).union(*(graph.find_descendants(name) for name in names))
    while True:
        more = {by_name for name, by_name in LOADED_BY_NAME.items() if name in reached}
        more |= {name.rpartition(".")[0] for name in reached if "." in name}
        more |= set().union(*(graph.find_descendants(name) for name in more & {*LOADED_BY_NAME.values()}))
        more |= set().union(*map(_imported_by, reached | more))
        if more <= reached:
            return frozenset(map(proofs.file_of, reached))
        reached |= more


@functools.cache
def _imported_by(name: str) -> set[str]:
    return proofs.graph().find_upstream_modules(name)


@functools.cache
def _named_places(file: Path) -> frozenset[str]:
    """Return what a file of tests names in a string, such as "chapters" or "chapters/operations"."""
    named = (node.value for node in proofs.parsed(file) if isinstance(node, ast.Constant))
    return frozenset(name for one in named for name in READ if one.partition("/")[0] == name)


@functools.cache
def _below(name: str) -> list[Path]:
    path = proofs.BOOK / name
    files = [path] if path.is_file() else path.rglob("*.*")
    kept = (file for file in files if file.is_file() and not file.name.startswith(OWN_RECORD))
    return sorted(
        file for file in kept if not any(map(MADE.fullmatch, file.relative_to(proofs.BOOK).parts[:-1]))
    )


@functools.cache
def _installed() -> str:
    if not kernels.interpreted():
        return "a GPU"
    pinned = re.findall(r"^([\w.-]+)==", (proofs.BOOK / "constraints.txt").read_text(), re.M)
    return " ".join([".".join(platform.python_version_tuple()[:2]), *map(_version, pinned)])


def _version(name: str) -> str:
    """Return the version of a package, without that of its build; "" if it is not installed."""
    with suppress(PackageNotFoundError):
        return version(name).partition("+")[0]
    return ""
