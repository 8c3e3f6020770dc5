"""The build fails when it should, and keeps no result that a change has made stale.

A build takes four seconds, so each test tells the story of one book, with a defect or a feature in every page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from backpass_notebooks import INSTALL, Page
from build import main

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
    for _ in range(2):
        result = build(book)
        assert result.returncode == 1
        assert "raises.md, line 21, code cell 2: " in result.stderr
        assert "LookupError: a deliberate defect" in result.stderr
        assert "dies.md, line 21, code cell 2: the kernel died" in result.stderr
        assert "last words" in result.stderr
        assert "2 chapter(s) failed" in result.stderr
    assert (book / "raises.md").read_text().splitlines()[21 - 1].startswith("raise LookupError")

    write_page(book, "raises", "'mend' + 'ed'")
    result = build(book, "--chapter", "raises")
    assert result.returncode == 0, result.stderr
    assert "mended" in (book / "_build" / "chapter" / "html" / "raises.html").read_text()


def test_an_unknown_chapter_is_refused_with_those_there_are(book, monkeypatch, capsys):
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


# Kernels are forked from a process that has imported SymPy, but see neither the build nor each other.
MARK = """import sys, sympy
assert 'build' not in sys.modules and not hasattr(sympy, 'mark')
sympy.mark = 'left'; sympy.mark"""

TEXT = """(a-label)=
## Text

See {eq}`an-equation`, [a label](a-label), {ref}`a-label`, {doc}`intro`, [a page](intro.md), {math}`x^2` and {cite:p}`vaswani2017attention`.
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


def test_a_book_is_written_and_follows_what_changes(book):
    source = book / "src" / "value.py"
    add_page(book, "page", f"exec(Path({str(source)!r}).read_text()); f'value is {{value}}'", TEXT)
    add_page(book, "exercises", MARK, EXERCISES)
    add_page(book, "other", f"{MARK}\n# in another chapter")
    result = build(book, WORKERS="1")  # one chapter after another
    assert result.returncode == 0, result.stderr
    assert "[1/3]" in result.stdout
    assert "value is 1" in page(book)
    assert "left" in page(book, "exercises") and "left" in page(book, "other")
    check_plain_markdown(book)
    for text in (*QUESTIONS, *ANSWERS):
        assert text in page(book, "exercises") and text in notebook(book, "exercises")
    order = [notebook(book, "exercises").index(text) for text in (QUESTIONS[-1], "## Solutions", ANSWERS[0])]
    assert order == sorted(order)

    result = build(book, SOLUTIONS="0")
    assert result.returncode == 0, result.stderr
    assert "[1/" not in result.stdout, "no cell has changed, so no chapter runs"
    for text in QUESTIONS:
        assert text in page(book, "exercises") and text in notebook(book, "exercises")
    for text in ANSWERS:
        assert text not in page(book, "exercises") and text not in notebook(book, "exercises")

    source.write_text("value = 2\n")
    result = build(book)
    assert result.returncode == 0, result.stderr
    assert "value is 2" in page(book)

    write_page(book, "other", "1", "::::{grid}\n:::{grid-item}\nText.\n:::\n::::")
    result = build(book)
    assert result.returncode == 1
    assert "other: directive 'grid-item' has no plain form in a notebook" in result.stderr


def check_plain_markdown(book: Path) -> None:
    """The notebook shows what the page does, and no MyST."""
    cells = nbformat.reads(notebook(book), as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert (
        "See (1), a label, Text, A small book, [a page](intro.ipynb), $x^2$ and (Vaswani et al., 2017)."
        in text
    )
    assert "Left alone: `{ref}`, `a[0](b)`, $\\dot{X}$, `{X}`." in text
    assert "$$\na = b \\tag{1}\n$$" in text
    assert "- A term: What it means." in text
    assert "> **Tip**\n>\n> Inside, (1)." in text
    assert "\n**A heading**\n" in text
    assert "```text\n{eq}`untouched`\n```" in text
    assert "comment" not in text and "(a-label)=" not in text


@pytest.mark.parametrize("target", ["../cost/tally.md", "../claims/../cost/tally.md"])
def test_a_link_without_a_text_has_the_title_of_its_page(target):
    titles = {"chapters/cost/tally": SimpleNamespace(astext=lambda: "The tally")}
    page = Page(SimpleNamespace(titles=titles, get_domain=lambda name: None), "chapters/claims/usual")
    assert (
        page.plain(f"See []({target}) and [it]({target}).")
        == "See [The tally](tally.ipynb) and [it](tally.ipynb)."
    )


DOORS = """::::{grid} 1 2 2 2
:::{grid-item-card} Learn
Begin with [the page](door.md).
:::
::::"""
REPOSITORY = "https://github.com/owner/name"


def test_a_known_repository_adds_links_and_a_first_cell_that_installs(book):
    """And no address of any repository without one."""
    add_page(book, "door", "1 + 1", DOORS)
    assert build(book, REPOSITORY_URL="https://example.org/name").returncode == 1

    result = build(book, REPOSITORY_URL=REPOSITORY, GITHUB_SHA="0123abc", SITE_URL="https://book.example/b")
    assert result.returncode == 0, result.stderr
    for address in (
        "https://colab.research.google.com/github/owner/name/blob/notebooks/door.ipynb",
        "https://mybinder.org/v2/gh/owner/name/notebooks?urlpath=lab/tree/door.ipynb",
        f"{REPOSITORY}/edit/main/door.md",
        f"{REPOSITORY}/issues/new?title=door%3A%20",
    ):
        assert f'href="{address}"' in page(book, "door").replace("&amp;", "&")
    assert '<meta property="og:image" content="https://book.example/b/_static/page.png"' in page(book, "door")
    first = next(
        c for c in nbformat.reads(notebook(book, "door"), as_version=4).cells if c.cell_type == "code"
    )
    assert f'%pip install --quiet "backpass[book] @ git+{REPOSITORY}@0123abc"' in first.source
    assert "**Learn.** Begin with" in notebook(book, "door")

    assert build(book).returncode == 0
    for text in (page(book, "door"), notebook(book, "door")):
        assert "github" not in text and "pip install" not in text


def test_the_first_cell_does_nothing_where_the_package_is_installed():
    from IPython.core.inputtransformer2 import TransformerManager

    cell = INSTALL.format(repository=REPOSITORY, commit="main")
    exec(TransformerManager().transform_cell(cell), {})  # get_ipython is not there to be called
