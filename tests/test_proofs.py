"""What is proved in full, what in part, and the tests' limits of CPU time."""

import functools
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import slowness

import proofs
import unchanged
import weight

CHANGES = list(range(200))
CONFIG = SimpleNamespace(getoption=lambda name: "", args=["tests"])
FACTOR, OTHER = 2, 3
TABLE = {"plus": math.ceil, "times": lambda x: FACTOR * x}


class Case(SimpleNamespace):
    """A collected test."""

    __hash__ = object.__hash__


def helper(x):
    return x + 1


def documented(x):
    """Return one more."""
    return helper(x)  # a comment


def scaled(x):
    return FACTOR * x + OTHER


def looked_up(x):
    return TABLE["times"](x)


def enclosing(factor):
    return lambda x: factor * x


def plain(x):
    return helper(x)


def replaced(x):
    return helper(x) + 0


@pytest.fixture
def node():
    """The node of a test in this file."""
    return SimpleNamespace(path=__file__, user_properties=[], config=CONFIG)


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """An empty lock, a seed, and no choice of tests."""
    monkeypatch.setenv("BACKPASS_SEED", "1f2ac09")
    monkeypatch.setenv("BACKPASS_PROVE", "")
    monkeypatch.setattr(proofs, "proved", dict)


def test_a_hash_is_of_code_and_of_what_it_calls(monkeypatch):
    before = proofs.digest(plain)
    assert proofs.digest(documented) != proofs.digest(replaced) != before
    monkeypatch.setitem(globals(), "helper", replaced)
    proofs._source.cache_clear()
    assert proofs.digest(plain) != before


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (scaled, "FACTOR", 3),
        (scaled, "OTHER", 2),
        (looked_up, "FACTOR", 5),
        (looked_up, "TABLE", {"times": abs}),
    ],
)
def test_a_hash_is_of_the_constants_and_tables_that_are_read(function, name, value, monkeypatch):
    before = proofs.digest(function)
    monkeypatch.setitem(globals(), name, value)
    proofs._source.cache_clear()
    assert proofs.digest(function) != before


def test_a_hash_is_of_what_a_function_encloses_or_is_given():
    assert proofs.digest(enclosing(2)) != proofs.digest(enclosing(3))
    assert proofs.digest(functools.partial(plain, 2)) != proofs.digest(functools.partial(plain, 3))


def test_a_hash_is_the_same_in_each_version_of_python(tmp_path):
    """So the lock holds for all of them."""
    (tmp_path / "x.py").write_text("def f(x, *, y=2):\n    return [a + y for a in x if a] or f'{x!r}: {y}'\n")
    assert proofs.folder(tmp_path / "x.py") == "7dc78c9b937d"


def test_imports_are_followed():
    before = proofs.imports("backpass.ops.gelu")
    assert before != proofs.imports("backpass.ops.gelu", "backpass.text.table")
    assert proofs.own(Path(__file__).parent / "models" / "test_mutations.py") != proofs.own(Path(__file__))


def test_docstrings_comments_and_places_do_not_count(tmp_path):
    found = set()
    for at, text in enumerate(
        ["def f(x):\n    return -x\n", "\n\n# Why.\ndef f(x):\n    'It.'\n    return (-x)\n"]
    ):
        path = tmp_path / f"{at}.py"
        path.write_text(text)
        found.add(proofs.folder(path))
    assert len(found) == 1


def test_of_what_has_not_changed_a_part_is_proved(node, monkeypatch):
    proof = proofs.Proof(node)
    assert proof.part("plain", CHANGES, of=[plain]) == CHANGES and proof.whole  # no line yet
    (_, (key, *line)) = node.user_properties.pop()
    monkeypatch.setattr(proofs, "proved", lambda: {key: tuple(line)})
    part = proof.part("plain", CHANGES, of=[plain])
    assert len(part) == 10 and part == sorted(part) and not proof.whole and not node.user_properties
    assert proof.part("plain", CHANGES, of=[plain]) == part
    assert len(proof.part("plain", CHANGES, of=[plain], checks=["others"])) == 30
    monkeypatch.setenv("BACKPASS_PROVE", "changed")
    assert proof.part("plain", CHANGES, of=[plain], checks=["others"]) == CHANGES
    assert proof.part("plain", CHANGES, of=[plain]) == part
    monkeypatch.setenv("BACKPASS_PROVE", "")
    assert proof.part("plain", CHANGES[:1], of=[plain]) == CHANGES[:1]
    assert proof.part("plain", CHANGES, of=[replaced]) == CHANGES
    monkeypatch.setenv("BACKPASS_SEED", "another commit")
    assert proof.part("plain", CHANGES, of=[plain]) != part
    monkeypatch.setenv("BACKPASS_PROVE", "all")
    assert proof.part("plain", CHANGES, of=[plain]) == CHANGES


def test_the_lock_is_read_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(proofs, "LOCK", tmp_path / "proved.lock")
    proofs.proved.cache_clear()
    lines = {"b.backward": ("1", "2"), "a test[with spaces]": ("3", "4")}
    proofs.write(lines, whole=True)
    assert proofs.proved() == lines
    proofs.write({"b.backward": ("5", "6")}, whole=False)
    proofs.proved.cache_clear()
    assert proofs.proved() == lines | {"b.backward": ("5", "6")}
    proofs.proved.cache_clear()


def test_cases_that_rotate_run_where_they_changed(monkeypatch):
    def case(number, share=0.1):
        marker = pytest.mark.rotates(share=share, of=lambda n: [n]).mark
        return Case(
            nodeid=f"tests/test_x.py::test_y[{number}]",
            path=__file__,
            callspec=SimpleNamespace(params={"n": number}),
            get_closest_marker=lambda name: marker,
            config=CONFIG,
            user_properties=[],
        )

    cases = [case(number) for number in range(40)]
    assert proofs._kept(cases) == cases
    lock = {case.user_properties[0][1][0]: case.user_properties[0][1][1:] for case in cases}
    lock[cases[7].nodeid] = ("changed", "0")
    monkeypatch.setattr(proofs, "proved", lambda: lock)
    kept = proofs._kept(cases)
    assert cases[7] in kept and len(kept) == 1 + 4
    assert proofs._kept(cases[7:8]) == cases[7:8]
    runs = 0
    for seed in range(40):  # a test without other cases runs in the same share of the commits
        monkeypatch.setenv("BACKPASS_SEED", str(seed))
        runs += len(proofs._kept(cases[:1]))
    assert 0 < runs < 12


@pytest.mark.parametrize(
    ("arguments", "status", "written"),
    [(["tests"], 0, True), (["tests"], 1, False), (["tests/ops"], 0, False)],
)
def test_products_are_proved_where_all_tests_pass(arguments, status, written, monkeypatch):
    lines = {}
    monkeypatch.setenv("BACKPASS_PROVE", "changed")
    monkeypatch.setattr(proofs, "write", lambda found, whole: lines.update(found))
    monkeypatch.setattr(proofs, "_products", {})
    plugin = proofs.Plugin(SimpleNamespace(args=arguments, getoption=lambda name: None))
    plugin.pytest_testnodedown(SimpleNamespace(workeroutput={"products": {"pairs": ("1", "1")}}), None)
    plugin.pytest_sessionfinish(SimpleNamespace(), status)
    assert lines == ({"pairs": ("1", "1")} if written else {})


def test_what_is_too_heavy_is_named(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    plugin = weight.Plugin(SimpleNamespace())
    plugin._tests = Counter(
        {"tests/a.py::x": 31.0, "tests/a.py::y": 29.0, **{f"tests/ops/b.py::{n}": 29.0 for n in range(7)}}
    )
    plugin._collection = {"gw0": 46.0, "gw1": 5.0}
    found = plugin.too_heavy()
    assert [line.partition(": ")[0] for line in found] == ["tests/a.py::x", "tests/ops/b.py", "gw0"]
    plugin._slowness = 1.5  # gw0's 46 s are 31 on the machine of the limits
    assert plugin.too_heavy() == []
    plugin._slowness = 1.0
    plugin._proved = {"tests/a.py::x"}
    assert [line.partition(": ")[0] for line in plugin.too_heavy()] == ["tests/ops/b.py", "gw0"]
    monkeypatch.setenv("CI", "true")  # a machine that others share
    assert plugin.too_heavy() == []
    monkeypatch.delenv("CI")
    assert plugin.families()["tests/ops"] == 7 * 29.0 and plugin.families()["tests/a.py"] == 60.0
    monkeypatch.setenv("BACKPASS_PROVE", "all")
    assert plugin.too_heavy() == []


def test_limits_are_higher_on_a_slower_machine_and_nowhere_lower(monkeypatch):
    monkeypatch.setattr(slowness, "REFERENCE", 1e9)
    assert slowness.slowness() == 1
    monkeypatch.setattr(slowness, "REFERENCE", 1e-9)
    assert slowness.slowness() > 1000


def test_a_machine_may_be_slower_only_for_programs_that_start(monkeypatch):
    monkeypatch.setattr(slowness, "REFERENCE", 1e9)
    monkeypatch.setattr(slowness, "PROGRAM", "print(2.5)")
    monkeypatch.setattr(slowness, "REFERENCE_START", 0.5)
    assert slowness.slowness_of_programs() == 5
    monkeypatch.setattr(slowness, "REFERENCE_START", 5.0)
    assert slowness.slowness_of_programs() == 1


DIGESTS = """
import importlib, json, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import proofs
from backpass import ops, parallel
from backpass.models import llama, stacks
modules = [ops.load(stem) for stem in ops.STEMS] + [llama, stacks]
modules += [importlib.import_module(f"backpass.parallel.{m.name}") for m in pkgutil.iter_modules(parallel.__path__)]
if len(sys.argv) > 2:
    import torch
    from backpass.verify import check
    ops.load("softmax").forward(torch.ones(2, 3))
    check("softmax")
print(json.dumps({module.__name__: proofs.digest(module) for module in modules}))
"""


def test_hashes_do_not_depend_on_the_folder_the_process_or_what_has_run(tmp_path):
    for folder in ("src", "tests/tools"):
        shutil.copytree(proofs.BOOK / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    found = []
    for book, seed, more in ((proofs.BOOK, "1", []), (tmp_path, "2", ["ran"])):
        run = [sys.executable, "-c", DIGESTS, str(book / "tests/tools"), *more]
        settings = os.environ | {"PYTHONPATH": str(book / "src"), "PYTHONHASHSEED": seed}
        done = subprocess.run(run, cwd=book, env=settings, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    assert found[0] == found[1] and len({*found[0].values()}) == len(found[0])


class Project:
    """A project of one package, with tests that use it, in which files can change."""

    def __init__(self, folder: Path, monkeypatch):
        self.folder = folder
        self.lines: dict[str, tuple[str, str]] = {}
        self.passed: dict[str, tuple[str, str]] = {}
        for name, text in FILES.items():
            self.write(name, text)
        monkeypatch.setattr(proofs, "BOOK", folder)
        monkeypatch.setattr(proofs, "PACKAGES", ("small",))
        monkeypatch.setattr(proofs, "proved", lambda: self.passed)
        monkeypatch.setattr(proofs, "_products", self.lines)
        monkeypatch.setattr(unchanged, "LOADED_BY_NAME", {"small.loaded": "small.loaded"})
        monkeypatch.syspath_prepend(folder / "src")

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, keyword: str = "") -> Counter[str]:
        """Count the tests of each file that run, and let all of them pass."""
        forget()
        paths = [path for path in FILES if path.rpartition("/")[2].startswith("test_")]
        items = [
            Case(nodeid=f"{path}[{n}]", path=self.folder / path, get_closest_marker=lambda name: None)
            for path in paths
            for n in range(8)
        ]
        out: list[Case] = []
        hook = SimpleNamespace(pytest_deselected=lambda items: out.extend(items))
        config = SimpleNamespace(hook=hook, args=["tests"], getoption=lambda name: keyword)
        unchanged.Plugin().pytest_collection_modifyitems(config, items)
        assert len(items) + len(out) == 8 * len(paths)
        self.passed = dict(self.lines)
        return Counter(item.path.name for item in items)


def forget() -> None:
    """Let no hash of a file be remembered."""
    for each in (*vars(proofs).values(), *vars(unchanged).values()):
        if hasattr(each, "cache_clear"):
            each.cache_clear()


FILES = {
    "constraints.txt": "numpy==2.0\n",
    "pyproject.toml": "",
    "tests/conftest.py": "",
    "assets/text.txt": "",
    "src/small/__init__.py": "",
    "src/small/used.py": "from small import deep\n",
    "src/small/deep.py": "",
    "src/small/loaded/__init__.py": "",
    "src/small/loaded/one.py": "",
    "src/small/command.py": "",
    "src/small/rules.lark": "",
    "benchmarks/memory.py": "",
    "tests/tools/shared.py": "",
    "tests/verify/conftest.py": "",
    "tests/verify/test_a.py": "import shared\nfrom small import used\n",
    "tests/cost/test_b.py": "from small import loaded\nfrom small.deep import name\n",
    "tests/ptx/test_c.py": "import subprocess\nfolders = 'chapters', 'assets/more', 'benchmarks'\n",
}
A, B, C = "test_a.py", "test_b.py", "test_c.py"


@pytest.fixture
def project(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        yield Project(tmp_path, patch)
    forget()
    for name in [name for name in sys.modules if name.partition(".")[0] == "small"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("changed", "whole"),
    [
        ("src/small/used.py", {A, C}),
        ("src/small/deep.py", {A, B, C}),
        ("src/small/loaded/one.py", {B, C}),
        ("src/small/command.py", {C}),
        ("tests/tools/shared.py", {A}),
        ("tests/verify/conftest.py", {A}),
        ("tests/cost/test_b.py", {B}),
        ("tests/conftest.py", {A, B, C}),
        ("src/small/__init__.py", {A, B, C}),
        ("src/small/rules.lark", {A, B, C}),
        ("assets/text.txt", {A, B, C}),
        ("chapters/page.md", {C}),
        ("benchmarks/memory.py", {C}),
        ("constraints.txt", {A, B, C}),
        ("assets/other.txt", {C}),
        ("README.md", set()),
        ("src/small/__pycache__/rules.made", set()),
        ("src/.made_cache/name.txt", set()),
        ("src/small.egg-info/SOURCES.txt", set()),
    ],
)
def test_of_tests_of_unchanged_code_a_part_runs(changed, whole, project):
    assert project.run() == {A: 8, B: 8, C: 8}
    assert project.run() == {A: 2, B: 2, C: 2}
    assert project.run("test_a") == {A: 8, B: 8, C: 8}
    path = project.folder / changed
    project.write(changed, (path.read_text() if path.exists() else "") + "# changed\n")
    assert project.run() == {name: 8 if name in whole else 2 for name in (A, B, C)}


def test_tests_of_unchanged_code_run_on_another_version_and_on_a_gpu(project, monkeypatch):
    project.run()
    assert project.run() == {A: 2, B: 2, C: 2}
    monkeypatch.setattr(unchanged, "version", lambda name: "another")
    assert project.run() == {A: 8, B: 8, C: 8}
    assert project.run() == {A: 2, B: 2, C: 2}
    monkeypatch.setattr(unchanged.kernels, "interpreted", lambda: False)
    assert project.run() == {A: 8, B: 8, C: 8}
