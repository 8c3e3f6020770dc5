"""Prove in full what changed, and a rotating part of the rest.

Some tests ask whether a gradient is right; they run at every push. Others ask whether the checks still notice mistakes:
they change a backward, a scheme, or a displayed line in one place at a time, and expect a check to fail.
``tests/proved.lock`` has a line for each subject of such a test: its key, a hash of its code, and a hash of what checks
it, as they were when all of its changes were proved. A subject whose hash differs is proved in full. Of each of the
others a part is proved, which is drawn from a seed, the commit's hash; the part is larger if only the hash of the checks
differs. The seed is printed, and ``BACKPASS_SEED`` repeats the draw.

``BACKPASS_PROVE=changed`` (``make lock``) writes the lines of what was proved in full to the lock.
``BACKPASS_PROVE=all`` (``make test-all``) proves everything in full and then writes the lock.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import math
import os
import random
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any

import grimp
import pytest

from backpass import kernels
from backpass.verify.mutation import PLUMBING

BOOK = Path(__file__).parents[2]
PACKAGES = ("backpass", "backpass_ledger")
LOCK = BOOK / "tests" / "proved.lock"
PATHS = (
    "tests/tools",
    "tests/book",
    "ext",
    "benchmarks",
)  # from which tests import modules by their own name
MORE = 3  # the part is so many times as large if what checks a subject has changed


def seed() -> str:
    """Return the seed of the rotation: ``BACKPASS_SEED``, or otherwise the commit."""
    if "BACKPASS_SEED" not in os.environ:
        found = ""
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            command = ["git", "rev-parse", "--short=12", "HEAD"]
            found = subprocess.run(
                command, cwd=BOOK, capture_output=True, text=True, check=True
            ).stdout.strip()
        os.environ["BACKPASS_SEED"] = found or "0"  # the workers of a run inherit it
    return os.environ["BACKPASS_SEED"]


def chosen(config: pytest.Config) -> bool:
    """Whether tests are chosen by ``-k`` or by name. They then run in full."""
    return bool(config.getoption("keyword") or any("::" in argument for argument in config.args))


def proving() -> str:
    """Return "all", "changed", or "" if the lock stays as it is. Compiled kernels are tested in full."""
    return "all" if kernels.executed() else os.environ.get("BACKPASS_PROVE", "")


@functools.cache
def proved() -> dict[str, tuple[str, str]]:
    """Read the lock: for each key, the hash of the subject and the hash of its checks."""
    if not LOCK.exists():
        return {}
    lines = (line.rsplit(maxsplit=2) for line in LOCK.read_text().splitlines() if not line.startswith("#"))
    return {key: (subject, checks) for key, subject, checks in lines}


def write(found: dict[str, tuple[str, str]], whole: bool) -> None:
    """Write the lock, without any earlier lines if the ``whole`` suite was proved."""
    lines = found if whole else proved() | found
    LOCK.write_text(
        "# What has been proved in full, as it was then; see tests/tools/proofs.py. `make lock` writes this file.\n"
        + "".join(f"{key} {' '.join(lines[key])}\n" for key in sorted(lines))
    )


def digest(*things: Any) -> str:
    """Return a hash of functions with all of the project that they call, of modules, of files, and of texts.

    Docstrings, comments, and places do not count, nor do functions that only validate.
    """
    parts: dict[str, None] = {}
    todo = list(things)
    while todo:
        text, used = _described(todo.pop(0))
        if text not in parts:
            parts[text] = None
            todo += used
    return hashlib.sha256("\0".join(sorted(parts)).encode()).hexdigest()[:12]


def _described(thing: Any) -> tuple[str, list]:
    """Return a thing as text, and what it uses."""
    if isinstance(thing, Path):
        return hashlib.sha256(thing.read_bytes()).hexdigest(), []
    if isinstance(thing, functools.partial):
        return "partial", [
            part for value in (thing.func, thing.args, thing.keywords) for part in _parts(value)
        ]
    thing = inspect.unwrap(getattr(thing, "fn", thing)) if callable(thing) else thing
    if isinstance(thing, (FunctionType, type)) or inspect.ismethod(thing):
        return _source(thing)
    if isinstance(thing, ModuleType):
        return folder(Path(thing.__file__)), [
            each for each in vars(thing).values() if _is_own(each, thing.__name__)
        ]
    if " at 0x" in (text := repr(thing)):  # an object of ours that has functions
        return type(thing).__qualname__, [
            type(thing),
            *(part for value in vars(thing).values() for part in _parts(value)),
        ]
    return text.replace(str(BOOK), "."), []


@functools.cache
def _source(thing: Any) -> tuple[str, list]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):  # a named tuple's methods, for one
        return f"{thing.__module__}.{thing.__qualname__}", []
    scope = getattr(thing, "__globals__", None) or vars(inspect.getmodule(thing))
    closure = getattr(thing, "__closure__", None) or ()
    enclosed = [("enclosed", cell.cell_contents) for cell in closure if cell != CellType()]
    texts, used = [_text(tree)], []
    for name, value in (*_used(tree, scope), *enclosed):
        for part in _parts(value):
            texts.append(
                f"{name} = {part if isinstance(part, str) else getattr(part, '__qualname__', 'module')}"
            )
            used += [] if isinstance(part, str) else [part]
    return "\n".join(texts), used


def _text(node: Any) -> str:
    """Return a tree as text, the same in each version of Python, without docstrings and places."""
    if isinstance(node, list):
        return "[" + ",".join(map(_text, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
    body = fields.get("body")
    if isinstance(body, list) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        fields["body"] = body[1:]
    return f"{type(node).__name__}({','.join(f'{name}={_text(value)}' for name, value in fields.items())})"


def _parts(value: Any) -> Iterator[Any]:
    """Yield what a hash includes of a value: our functions and modules, also those in a collection, one by one; other
    values as text, if the text is the same in each process."""
    if isinstance(value, dict):
        keys = (key.__name__ if isinstance(key, ModuleType) else str(key) for key in value)
        yield f"{{{', '.join(keys)}}}"
        for each in value.values():
            yield from _parts(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value:
            yield from _parts(each)
    elif _is_ours(value) or isinstance(value, functools.partial):
        if getattr(value, "__name__", "") not in PLUMBING:
            yield value
    elif not callable(value) and not isinstance(value, ModuleType) and " at 0x" not in (text := repr(value)):
        yield text.replace(str(BOOK), ".")  # the same wherever the project is


def _used(tree: ast.AST, scope: dict) -> Iterator[Any]:
    """Yield the global names that a tree reads, each with its value; also the attributes of modules that it reads, and
    what it imports itself. Tables that the module's functions fill are left out: they depend on what has run."""
    filled = _filled(scope["__name__"])
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in scope and node.id not in filled:
            if not isinstance(scope[node.id], ModuleType):
                yield node.id, scope[node.id]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("backpass"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                found = getattr(module, alias.name, None)
                yield alias.name, found or importlib.import_module(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = scope.get(node.value.id)
            if isinstance(module, ModuleType) and _is_ours(module) and hasattr(module, node.attr):
                yield node.attr, getattr(module, node.attr)
    passed = (each for node in ast.walk(tree) if isinstance(node, ast.Call) for each in node.args)
    for node in passed:  # a module as an argument
        if (
            isinstance(node, ast.Name)
            and isinstance(scope.get(node.id), ModuleType)
            and _is_ours(scope[node.id])
        ):
            yield node.id, scope[node.id]


@functools.cache
def _filled(module: str) -> frozenset[str]:
    """Return the names of what a module's functions store elements in."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # a module without a file
        return frozenset()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    stored = (
        node for function in functions for node in ast.walk(function) if isinstance(node, ast.Subscript)
    )
    return frozenset(
        node.value.id
        for node in stored
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
    )


def _is_ours(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] in (*PACKAGES, "tests")


def _is_own(value: Any, module: str) -> bool:
    value = getattr(value, "fn", value)
    return getattr(value, "__module__", None) == module and isinstance(value, (FunctionType, type))


@functools.cache
def folder(path: Path) -> str:
    """Return a hash of the Python files below ``path``, or of one file, without docstrings and comments."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    found = hashlib.sha256()
    for file in files:
        found.update(_text(ast.parse(file.read_text(encoding="utf-8"))).encode())
    return found.hexdigest()[:12]


@functools.cache
def imports(*names: str) -> str:
    """Return a hash of modules or packages of the project, with all that they import of it by name."""
    return digest(*map(folder, imported(*names)))


def imported(*names: str) -> list[Path]:
    """Return the files of modules or packages of the project, and of all that they import of it by name."""
    found = {*names}.union(*(graph().find_descendants(name) for name in names))
    found |= set().union(*(graph().find_upstream_modules(name, as_package=True) for name in names))
    return [file_of(name) for name in sorted(found)]


@functools.cache
def file_of(module: str) -> Path:
    return Path(importlib.util.find_spec(module).origin)


@functools.cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)


@functools.cache
def own(path: Path) -> str:
    """Return a hash of a module of tests, of the modules of tests that it imports, and of the pinned versions."""
    return digest(BOOK / "constraints.txt", *sorted(map(folder, tests_used(path))))


@functools.cache
def tests_used(path: Path) -> frozenset[Path]:
    """Return a module of tests, its folders' ``conftest.py``, and the modules of tests that these import."""
    files: set[Path] = set()
    todo = [path, *(parent / "conftest.py" for parent in path.parents if BOOK / "tests" in parent.parents)]
    while todo:
        file = todo.pop()
        if file.is_file() and file not in files:
            files.add(file)
            todo += _imported_tests(file)
    return frozenset(files)


@functools.cache
def parsed(file: Path) -> list[ast.AST]:
    """Return the nodes of a file that import, and its strings."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    kinds = (ast.Import, ast.ImportFrom)
    return [n for n in nodes if isinstance(n, kinds) or isinstance(getattr(n, "value", None), str)]


@functools.cache
def _imported_tests(file: Path) -> list[Path]:
    return [found for node in parsed(file) for found in _meant(node, file)]


def _meant(node: ast.AST, file: Path) -> list[Path]:
    """Return the files that an import of tests, or of their tools, may mean."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return []
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import) or not (node.level or (node.module or "").startswith("tests")):
        modules = names if isinstance(node, ast.Import) else [node.module or ""]
        return [BOOK / place / f"{module}.py" for module in modules if "." not in module for place in PATHS]
    base = file.parents[node.level - 1] if node.level else BOOK
    module = base.joinpath(*(node.module or "").split("."))
    return [module.with_suffix(".py"), *(module / f"{name}.py" for name in names)]


def sample(key: str, items: Sequence, share: float) -> list:
    """Return a part of the items, at least one, in their order."""
    count = min(len(items), math.ceil(share * len(items) - 1e-9))
    chosen = random.Random(f"{seed()}: {key}").sample(range(len(items)), count)
    return [items[at] for at in sorted(chosen)]


def share_now(key: str, now: tuple[str, str], share: float) -> float:
    """Return the share of a subject's changes to prove: all if it has changed, a larger share if its checks have.

    ``make lock`` proves all in both cases.
    """
    known = proved().get(key)
    if known is None or known[0] != now[0] or (known != now and proving() == "changed"):
        return 1
    return share if known == now else min(1, MORE * share)


_products: dict[str, tuple[str, str]] = {}  # hashes of what products of choices test, by key


def product_is_whole(key: str, of: Iterable[str], path: Path) -> bool:
    """Whether every case of several choices runs: if a module that is tested, one that it imports, or the module of the
    test has changed."""
    return product_has_changed(key, (imports(*of), own(path)))


def product_has_changed(key: str, now: tuple[str, str]) -> bool:
    """Whether a line differs that, unlike others, is written only by a run of all tests that passes."""
    _products[key] = now
    return proving() == "all" or proved().get(key) != now


class Proof:
    """The part of a subject's changes that a test proves."""

    def __init__(self, node: pytest.Item):
        self._node = node
        self.whole = True

    def part(
        self, key: str, items: Iterable, of: Iterable, checks: Iterable = (), share: float = 0.05
    ) -> list:
        """Return the changes of a subject that this run proves.

        ``of`` is the subject's code, and ``checks`` is what notices its changes, both as arguments of ``digest``; the
        test's own module is one of the checks. Afterwards, ``whole`` says whether the part is all of them.
        """
        items = list(items)
        now = (digest(*of), digest(own(Path(self._node.path)), *checks))
        everything = proving() == "all" or chosen(self._node.config)
        part = items if everything else sample(key, items, share_now(key, now, share))
        self.whole = len(part) == len(items)
        if self.whole:
            self._node.user_properties.append(("proved", (key, *now)))
        return part


@pytest.fixture
def proof(request) -> Proof:
    """Chooses which changes of a subject this run proves."""
    return Proof(request.node)


class Plugin:
    """Prints the seed, leaves out what rotates, and writes the lock."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._found: dict[str, tuple[str, str]] = {}

    def pytest_report_header(self) -> str:
        what = {"all": "everything is proved"}.get(
            proving(), "what changed is proved in full, the rest in part"
        )
        return f"rotation: {what}; BACKPASS_SEED={seed()} repeats the draw"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        groups: dict[tuple, list[pytest.Item]] = defaultdict(list)
        for item in items:
            if item.get_closest_marker("rotates"):
                groups[item.path, getattr(item, "originalname", item.name)].append(item)
        left_out = set()
        for group in groups.values():
            left_out |= set(group) - set(_kept(group))
        if left_out:
            config.hook.pytest_deselected(items=[item for item in items if item in left_out])
            items[:] = [item for item in items if item not in left_out]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._found |= {
                line[0]: tuple(line[1:]) for name, line in report.user_properties if name == "proved"
            }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error) -> None:
        _products.update(getattr(node, "workeroutput", {}).get("products", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["products"] = _products
        elif os.environ.get("BACKPASS_PROVE") and not kernels.executed():
            options = ("keyword", "markexpr", "ignore", "ignore_glob", "deselect", "lf", "collectonly")
            selected = self._config.args != ["tests"] or any(self._config.getoption(each) for each in options)
            passed = exitstatus == 0 and not selected
            if found := self._found | (_products if passed else {}):
                write(found, whole=proving() == "all" and passed)

    def pytest_terminal_summary(self, terminalreporter, exitstatus: int) -> None:
        if exitstatus:
            terminalreporter.write_line(f"BACKPASS_SEED={seed()} repeats the draw of what was proved in part")


def _kept(group: list[pytest.Item]) -> list[pytest.Item]:
    """Return, of the cases of one test, those that changed and a part of the others."""
    marker = group[0].get_closest_marker("rotates")
    of: Callable[..., Iterable] | None = marker.kwargs.get("of")
    checks = digest(own(Path(group[0].path)), *marker.kwargs.get("checks", tuple)())
    lines = []
    for item in group:
        key = item.nodeid.replace(" ", "_")
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        lines.append((key, (digest(*of(**parameters)) if of else checks, checks)))
        item.user_properties.append(("proved", (key, *lines[-1][1])))
    if proving() == "all" or chosen(group[0].config):
        return group
    shares = [share_now(key, now, marker.kwargs.get("share", 0.1)) for key, now in lines]
    same = [item for item, share in zip(group, shares, strict=True) if share < 1]
    share = max(share for share in (0, *shares) if share < 1)
    name = group[0].nodeid.partition("[")[0]
    kept = set(
        sample(name, same, share)
        if len(group) > 1 or random.Random(f"{seed()}: {name}").random() < share
        else ()
    )
    return [item for item in group if item not in same or item in kept]
