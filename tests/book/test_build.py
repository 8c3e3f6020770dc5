"""The build fails when it should, and keeps no result that a change has made stale.

A build takes four seconds of CPU, so each test tells the story of one book, with a defect or a feature in every page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import build as build_module
import nbformat
import pytest
from backpass_notebooks import Page, installing
from backpass_site import set_address
from build import is_current, main
from jupyter_cache import get_cache
from sphinx.errors import ConfigError, ExtensionError

from .conftest import BOOK

HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

"""


@pytest.fixture
def book(tmp_path) -> Path:
    """A book without chapters, with this book's configuration and nothing else of it."""
    for name in ("_config.yml", "references.bib"):
        shutil.copy(BOOK / name, tmp_path)
    for name in ("ext", "_templates"):
        (tmp_path / name).symlink_to(BOOK / name)
    (tmp_path / "assets").mkdir()
    for name in ("logo.svg", "favicon.svg"):
        shutil.copy(BOOK / "assets" / name, tmp_path / "assets")
    (tmp_path / "assets" / "site").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "value.py").write_text("value = 1\n")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: intro\nchapters:\n")
    (tmp_path / "intro.md").write_text("# A small book\n\n```{bibliography}\n```\n")
    return tmp_path


def add_page(book: Path, name: str, code: str, text: str = "Text.") -> None:
    with (book / "_toc.yml").open("a") as contents:
        contents.write(f"  - file: {name}\n")
    write_page(book, name, code, text)


def write_page(book: Path, name: str, code: str, text: str = "Text.") -> None:
    cells = (
        f"```{{code-cell}} python\nfrom pathlib import Path\n```\n\n```{{code-cell}} python\n{code}\n```\n"
    )
    (book / f"{name}.md").write_text(f"{HEADER}# The page {name}\n\n{text}\n\n{cells}")


def build(book: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(BOOK / "ext" / "build.py"), "--book", str(book), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def page(book: Path, name: str = "page") -> str:
    return (book / "_build" / "html" / f"{name}.html").read_text()


def notebook(book: Path, name: str = "page") -> str:
    return (book / "_build" / "notebooks" / f"{name}.ipynb").read_text()


def test_failing_cells_fail_each_time_and_are_named_and_one_chapter_can_be_built_alone(book):
    add_page(book, "raises", "raise LookupError('a deliberate defect')")
    add_page(book, "dies", "import os\nos.system('echo last words >&2')\nos._exit(3)")
    # The name of this file is not written in any cell, so the page is not known to depend on it.
    add_page(book, "reads", f"Path({str(book / 'src')!r}, 'val' + 'ue.py').read_text()")
    result = build(book, WORKERS="3")
    assert result.returncode == 1
    assert "raises.md, line 21, code cell 2: " in result.stderr
    assert "LookupError: a deliberate defect" in result.stderr
    assert "dies.md, line 21, code cell 2: the kernel died" in result.stderr
    assert "last words" in result.stderr
    assert "reads.md, line 21, code cell 2: the cells use src/value.py, on which the page" in result.stderr
    assert "3 chapter(s) failed" in result.stderr
    assert get_cache(book / "_build" / "cells").list_cache_records() == [], "so they run, and fail, each time"
    assert (book / "raises.md").read_text().splitlines()[21 - 1].startswith("raise LookupError")

    write_page(book, "raises", "'mend' + 'ed'")
    result = build(book, "--chapter", "raises")
    assert result.returncode == 0, result.stderr
    assert "mended" in (book / "_build" / "chapter" / "html" / "raises.html").read_text()


def test_a_page_may_use_more_on_a_slower_machine(monkeypatch):
    monkeypatch.setattr(build_module, "slowness_of_programs", lambda: 2)
    most = build_module.MOST_CPU
    assert not build_module.uses_too_much(1.9 * most) and build_module.uses_too_much(2.1 * most)


SPINS = "while True:\n    pass"
PARENT = """import multiprocessing
def spin():
    while True:
        pass
multiprocessing.get_context("fork").Process(target=spin).start()"""


def test_a_page_that_uses_too_much_is_ended_with_its_children(book, monkeypatch, capsys):
    """The limit is in CPU seconds, so a busy machine does not matter. A page that sleeps for too long is ended too."""
    monkeypatch.setattr(build_module, "MOST_CPU", 1)
    for name, code in {"spins": SPINS, "parent": f"{PARENT}\nimport time; time.sleep(1000)"}.items():
        add_page(book, name, code)
    dependencies = build_module.Dependencies(book)
    found = build_module.with_cells(book, ["spins", "parent"], dependencies)
    for chapter in found.values():
        run = build_module.execute(chapter, dependencies)
        assert run.failure == "line 21, code cell 2: the page used more than 1 CPU-seconds"
        assert run.cpu > 1
    monkeypatch.setattr(build_module, "HANGS", 0)
    write_page(book, "spins", "import time; time.sleep(1000)")
    sleeps = build_module.with_cells(book, ["spins"], dependencies)["spins"]
    assert "the page did not end in 0 minutes" in build_module.execute(sleeps, dependencies).failure
    build_module.stop()


def test_an_unknown_chapter_is_rejected_with_those_there_are(book, monkeypatch, capsys):
    add_page(book, "page", "1")
    monkeypatch.setattr(sys, "argv", ["build.py", "--book", str(book), "--chapter", "pge"])
    assert main() == 2
    said = capsys.readouterr().err
    assert "'pge'" in said and "page" in said


def test_each_warning_fails_the_build_each_time_and_names_its_page(book):
    add_page(book, "link", "1", "See [this](nowhere.md).")
    add_page(book, "stderr", "import sys; print('to stderr', file=sys.stderr)")
    add_page(book, "equation", "1", "See {eq}`nowhere`.")
    add_page(book, "citation", "1", "See {cite:t}`nobody1900nothing`.")
    complaints = {
        "link": "nowhere",
        "stderr": "stderr",
        "equation": "nowhere",
        "citation": "nobody1900nothing",
    }
    for _ in range(2):
        check_warnings(build(book), complaints)

    # The notebooks cannot be written with the last two. Warnings alone fail the build too.
    for name in ("equation", "citation"):
        write_page(book, name, "1")
        del complaints[name]
    result = build(book)
    check_warnings(result, complaints)
    assert "Extension error" not in result.stderr


def check_warnings(result: subprocess.CompletedProcess, complaints: dict[str, str]) -> None:
    """The build failed, with one warning for each page."""
    warnings = sorted(line for line in result.stderr.splitlines() if "WARNING" in line)
    assert result.returncode == 1
    assert len(warnings) == len(complaints)
    for line, (name, complaint) in zip(warnings, sorted(complaints.items()), strict=True):
        assert f"{name}.md:" in line and complaint in line


# Kernels are forked from a process that has imported SymPy, but see neither the build nor each other. No port that
# another program may take is chosen for them.
MARK = """import os, sys, sympy
from ipykernel.kernelapp import IPKernelApp
assert 'build' not in sys.modules and not hasattr(sympy, 'mark')
assert IPKernelApp.instance().transport == 'ipc' and os.listdir() == []
sympy.mark = 'left'; sympy.mark"""

TEXT = """(a-label)=
## Text

See {eq}`an-equation`, [a label](a-label), {ref}`a-label`, {doc}`intro`, [a page](page.md), {math}`x^2` and {cite:p}`vaswani2017attention`.
Left alone: `{ref}`, `a[0](b)`, $\\dot{X}$, `{X}`.

% a comment

$$
a = b
$$ (an-equation)

A term
: What it means.

:::{tip}
Inside, {eq}`an-equation`.
:::

```{rubric} A heading
:heading-level: 3
```

```text
{eq}`untouched`
```
"""

EXERCISES = """```{exercise}
:label: first
Ask.
```

```{solution} first
A plain answer.
```

```{exercise}
:label: second
Ask again.
```

```{solution-start} second
```

An answer with a cell.

```{code-cell} python
"computed" + " answer"
```

```{solution-end}
```

The text goes on."""
QUESTIONS = ("Ask.", "Ask again.", "The text goes on.")
ANSWERS = ("A plain answer.", "An answer with a cell.", "computed answer")


DOORS = """::::{grid} 1 2 2 2
:::{grid-item-card} Learn
Begin with [the page](door.md).
:::
::::"""
REPOSITORY = "https://github.com/owner/name"


def test_a_book_is_written_and_follows_what_changes(book):
    source = book / "src" / "value.py"
    add_page(book, "page", f"exec(Path({str(source)!r}).read_text()); f'value is {{value}}'", TEXT)
    add_page(book, "exercises", MARK, EXERCISES)
    add_page(book, "other", f"{MARK}\n# in another chapter")
    add_page(book, "door", "1 + 1", DOORS)
    result = build(book, WORKERS="1")  # one chapter after another
    assert result.returncode == 0, result.stderr
    assert "[1/4]" in result.stdout
    assert "value is 1" in page(book)
    assert "left" in page(book, "exercises") and "left" in page(book, "other")
    check_plain_markdown(book)
    for text in (*QUESTIONS, *ANSWERS):
        assert text in page(book, "exercises") and text in notebook(book, "exercises")
    order = [notebook(book, "exercises").index(text) for text in ("Ask again.", *ANSWERS[1:], QUESTIONS[-1])]
    assert order == sorted(order)
    (folded,) = [cell for cell in cells_of(book, "exercises") if cell.metadata.get("cellView") == "form"]
    assert folded.source == '"computed" + " answer"' and folded.metadata["jupyter"]["source_hidden"]
    check_exercises(book)
    for text in (page(book, "door"), notebook(book, "door")):
        assert "github" not in text and "%pip" not in text, "no address of a repository without one"
    assert 'run `pip install ".[book]"` in the folder' in cells_of(book, "door")[0].source
    assert is_current(book)

    address = {"REPOSITORY_URL": REPOSITORY, "GITHUB_SHA": "0123abc", "SITE_URL": "https://book.example/b"}
    result = build(book, SOLUTIONS="0", **address)
    assert result.returncode == 0, result.stderr
    assert "[1/" not in result.stdout, "no cell has changed, so no chapter runs"
    for text in QUESTIONS:
        assert text in page(book, "exercises") and text in notebook(book, "exercises")
    for text in ANSWERS:
        assert text not in page(book, "exercises") and text not in notebook(book, "exercises")
    check_links_to_the_repository(book)

    source.write_text("value = 2\n")
    assert not is_current(book)
    result = build(book, SOLUTIONS="0", **address)
    assert result.returncode == 0, result.stderr
    assert "[1/1] page" in result.stdout, "one chapter reads the file that has changed"
    assert "value is 2" in page(book) and "value is 2" in notebook(book)


def cells_of(book: Path, name: str) -> list[nbformat.NotebookNode]:
    return nbformat.reads(notebook(book, name), as_version=4).cells


def check_exercises(book: Path) -> None:
    """A second notebook has no solutions, and the page offers it; a page without solutions has none."""
    without = notebook(book, "exercises/exercises")
    assert all(text in without for text in QUESTIONS) and not any(text in without for text in ANSWERS)
    assert 'href="_notebooks/exercises/exercises.ipynb"' in page(book, "exercises")
    assert "_notebooks/exercises" not in page(book, "door")
    assert not (book / "_build" / "notebooks" / "exercises" / "door.ipynb").exists()


def check_links_to_the_repository(book: Path) -> None:
    """And a first cell that installs."""
    for address in (
        "https://colab.research.google.com/github/owner/name/blob/notebooks/door.ipynb",
        "https://mybinder.org/v2/gh/owner/name/notebooks?urlpath=lab/tree/door.ipynb",
        f"{REPOSITORY}/edit/main/door.md",
        f"{REPOSITORY}/issues/new?title=door%3A%20",
    ):
        assert f'href="{address}"' in page(book, "door").replace("&amp;", "&")
    assert '<meta property="og:image" content="https://book.example/b/_static/page.png"' in page(book, "door")
    first = next(cell for cell in cells_of(book, "door") if cell.cell_type == "code")
    assert f'%pip install --quiet "backpass[book] @ git+{REPOSITORY}@0123abc"' in first.source
    assert "**Learn.** Begin with" in notebook(book, "door")


def test_an_address_of_a_repository_that_is_not_one_is_rejected(monkeypatch):
    monkeypatch.setenv("REPOSITORY_URL", "https://example.org/name")
    with pytest.raises(ConfigError, match="REPOSITORY_URL: expected an address such as"):
        set_address(None, SimpleNamespace())


def check_plain_markdown(book: Path) -> None:
    """The notebook shows what the page does, and no MyST."""
    cells = nbformat.reads(notebook(book), as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert (
        "See (1), a label, Text, A small book, [a page](page.ipynb), $x^2$ and (Vaswani et al., 2017)."
        in text
    )
    assert "Left alone: `{ref}`, `a[0](b)`, $\\dot{X}$, `{X}`." in text
    assert "$$\na = b \\tag{1}\n$$" in text
    assert "- A term: What it means." in text
    assert "> **Tip**\n>\n> Inside, (1)." in text
    assert "\n**A heading**\n" in text
    assert "```text\n{eq}`untouched`\n```" in text
    assert "comment" not in text and "(a-label)=" not in text


def test_a_directive_without_a_plain_form_is_an_error():
    other = Page(SimpleNamespace(get_domain=lambda name: None), "other")
    with pytest.raises(ExtensionError, match="other: directive 'grid-item' has no plain form in a notebook"):
        other.plain("::::{grid}\n:::{grid-item}\nText.\n:::\n::::")


def page_beside(offered: dict[str, str], **options) -> Page:
    """A page from which links lead to another, which offers these notebooks."""
    env = SimpleNamespace(
        titles={"chapters/cost/tally": SimpleNamespace(astext=lambda: "The tally")},
        metadata={"chapters/cost/tally": offered},
        get_domain=lambda name: None,
    )
    return Page(env, "chapters/claims/usual", **options)


@pytest.mark.parametrize(
    "offered, address",
    [
        ({"backpass_notebook": "tally.ipynb"}, "../tally.ipynb"),
        ({"backpass_notebook": "tally.ipynb", "backpass_exercises": "exercises/tally.ipynb"}, "tally.ipynb"),
    ],
)
def test_a_notebook_without_solutions_leads_to_others_without_them(offered, address):
    assert page_beside(offered, folder="exercises").plain("[It](../cost/tally.md)") == f"[It]({address})"
    assert page_beside(offered).plain("[It](../cost/tally.md)") == "[It](tally.ipynb)"


@pytest.mark.parametrize("folder", ["", "exercises"])
def test_a_link_to_a_page_that_is_not_a_notebook_is_its_text(folder):
    assert page_beside({}, folder=folder).plain("[It](../cost/tally.md)") == "It"


@pytest.mark.parametrize("target", ["../cost/tally.md", "../claims/../cost/tally.md"])
def test_a_link_without_a_text_has_the_title_of_its_page(target):
    page = page_beside({"backpass_notebook": "tally.ipynb"})
    assert (
        page.plain(f"See []({target}) and [it]({target}).")
        == "See [The tally](tally.ipynb) and [it](tally.ipynb)."
    )


@pytest.mark.parametrize("imported", ["backpass", "backpass_ledger"])
def test_the_first_cell_installs_what_is_imported_and_does_nothing_where_it_is_installed(imported):
    from IPython.core.inputtransformer2 import TransformerManager

    cells = installing([nbformat.v4.new_code_cell(f"from {imported} import x")], REPOSITORY, "main")
    (cell,) = (each.source for each in cells if each.cell_type == "code")
    assert ("#subdirectory=src/backpass_ledger" in cell) == (imported == "backpass_ledger")
    exec(TransformerManager().transform_cell(cell), {})  # get_ipython is not there to be called
