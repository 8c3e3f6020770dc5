"""A page depends on all that it imports and reads, and on nothing else.

The build itself checks that a kernel uses no other file, as `test_build.py` shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from build import chapters, read_notebook, used_besides
from dependencies import Dependencies
from nbformat.v4 import new_code_cell, new_notebook

from .conftest import BOOK

FILES = {
    "src/pkg/__init__.py": '"""Names pkg.unused, as docstrings do."""',
    "src/pkg/__main__.py": "from pkg import command",
    "src/pkg/command.py": "from importlib import import_module\ndef load(name):\n    return import_module(name)",
    "src/pkg/first.py": "def late():\n    from . import second",
    "src/pkg/second.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg import unused",
    "src/pkg/unused.py": "",
    "src/pkg/reader.py": 'from pathlib import Path\nGRAMMAR = Path(__file__).with_name("grammar.lark")',
    "src/pkg/grammar.lark": "",
    "src/pkg/loaded/__init__.py": "from importlib import import_module\n"
    'def load(stem):\n    return import_module(f"{__name__}.{stem}")',
    "src/pkg/loaded/one.py": "import pkg.second",
    "src/pkg/elsewhere.py": 'from importlib import import_module\nimport_module(f"pkg.loaded.{1}")',
    "src/backpass/__init__.py": "",
    "src/backpass/recorded/records.py": "",
    "assets/text.txt": "",
    "benchmarks/results/times-cpu.json": "",
    "constraints.txt": "",
}
ALWAYS = {"constraints.txt"}
LOADED = {"src/pkg/__init__.py", "src/pkg/loaded/__init__.py", "src/pkg/loaded/one.py", "src/pkg/second.py"}


@pytest.fixture
def small(tmp_path) -> Dependencies:
    """The dependencies of a book with a small package."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Dependencies(tmp_path)


def names(dependencies: Dependencies, *cells: str) -> set[str]:
    """Return what a page of these cells depends on, without what every page depends on."""
    found = dependencies.of(new_notebook(cells=[new_code_cell(cell) for cell in cells]))
    return {str(path.relative_to(dependencies.book)) for path in found} - ALWAYS


@pytest.mark.parametrize(
    ("cell", "expected"),
    {
        "1 + 1": set(),
        "import numpy.linalg": set(),
        "import pkg.first as name": {"src/pkg/__init__.py", "src/pkg/first.py", "src/pkg/second.py"},
        "from pkg import first": {"src/pkg/__init__.py", "src/pkg/first.py", "src/pkg/second.py"},
        "def f():\n    from pkg.second import anything": {"src/pkg/__init__.py", "src/pkg/second.py"},
        "from pkg import loaded": LOADED,
        "from pkg import elsewhere": LOADED | {"src/pkg/elsewhere.py"},
        "import importlib; importlib.import_module('pkg.second')": {
            "src/pkg/__init__.py",
            "src/pkg/second.py",
        },
        "main(['check', 'pkg.second:f'])": {"src/pkg/__init__.py", "src/pkg/second.py"},
        "run('pkg check'.split())": {"src/pkg/__init__.py", "src/pkg/__main__.py", "src/pkg/command.py"},
        "import pkg.reader": {"src/pkg/__init__.py", "src/pkg/reader.py", "src/pkg/grammar.lark"},
        "open(folder / 'text.txt')": {"assets/text.txt"},
        "from backpass.recorded import records": {
            *(
                "src/backpass/__init__.py",
                "src/backpass/recorded/records.py",
                "benchmarks/results/times-cpu.json",
            )
        },
        "%matplotlib inline": {name for name in FILES if name.endswith((".py", ".lark", ".json"))},
    }.items(),
)
def test_a_page_depends_on_what_it_names(small, cell, expected):
    assert names(small, "x = 1", cell) == expected


def test_the_key_follows_what_the_page_depends_on_alone(small):
    files = small.of(new_notebook(cells=[new_code_cell("import pkg.first")]))
    before = small.key(files)
    (small.book / "src/pkg/unused.py").write_text("changed = 1")
    assert Dependencies(small.book).key(files) == before
    (small.book / "src/pkg/second.py").write_text("changed = 1")
    assert Dependencies(small.book).key(files) != before


def test_what_a_kernel_used_besides_is_named(small):
    files = small.of(new_notebook(cells=[new_code_cell("import pkg.first")]))

    def said(*used: object) -> str:
        return used_besides("".join(f"{each}\n" for each in used), files, small)

    def opened(name: str) -> str:
        return f'"{small.book / name}"'

    assert said(opened("src/pkg/__pycache__/second.cpython-311.pyc"), '"/usr/lib/x.py"', '"/dev/null"') == ""
    assert said(opened("_build/x"), opened(".git/HEAD"), '["gcc", "src/pkg/unused.py"]') == ""
    assert "use src/pkg/unused.py, on which" in said(opened("src/pkg/__pycache__/unused.cpython-311.pyc"))
    assert "use assets/text.txt, on which" in said(opened("assets/text.txt"))
    assert "src/pkg/__main__.py, src/pkg/command.py" in said('["/bin/python3", "-m", "pkg", "check"]')
    assert "src/pkg/unused.py" in said('["/bin/python3", "-c", "import pkg.unused"]')
    assert said('["/bin/python3", "-m", "pkg.second"]') == ""


def test_an_edit_of_a_claim_concerns_the_pages_of_claims():
    dependencies = Dependencies(BOOK)
    claims = BOOK / "src" / "backpass_ledger" / "claims"
    concerned = set()
    for name in chapters(BOOK):
        notebook = read_notebook(BOOK / f"{name}.md")
        if notebook and any(path.is_relative_to(claims) for path in dependencies.of(notebook)):
            concerned.add(Path(name).parent)
    assert concerned == {Path("chapters/claims")}
