"""The build fails when it should, and keeps no result that a change has made stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

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
    """A book of one page, with this book's configuration and nothing else of it."""
    for name in ("_config.yml", "references.bib"):
        shutil.copy(BOOK / name, tmp_path)
    (tmp_path / "ext").symlink_to(BOOK / "ext")
    (tmp_path / "assets").mkdir()
    for name in ("logo.svg", "favicon.svg"):
        shutil.copy(BOOK / "assets" / name, tmp_path / "assets")
    (tmp_path / "assets" / "site").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "value.py").write_text("value = 1\n")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: intro\nchapters:\n  - file: page\n")
    (tmp_path / "intro.md").write_text("# A small book\n\n```{bibliography}\n```\n")
    write_page(tmp_path, "1 + 1")
    return tmp_path


def write_page(book: Path, code: str, text: str = "Text.") -> None:
    cells = (
        f"```{{code-cell}} python\nfrom pathlib import Path\n```\n\n```{{code-cell}} python\n{code}\n```\n"
    )
    (book / "page.md").write_text(f"{HEADER}# A page\n\n{text}\n\n{cells}")


def build(book: Path, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(BOOK / "ext" / "build.py"), "--book", str(book)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def page(book: Path) -> str:
    return (book / "_build" / "html" / "page.html").read_text()


def test_failing_cell_fails_each_time_and_is_named(book):
    write_page(book, "raise LookupError('a deliberate defect')")
    for _ in range(2):
        result = build(book)
        assert result.returncode == 1
        assert "page.md, line 21, code cell 2" in result.stderr
        assert "LookupError: a deliberate defect" in result.stderr
    assert (book / "page.md").read_text().splitlines()[21 - 1].startswith("raise LookupError")

    write_page(book, "'mended'")
    assert build(book).returncode == 0
    assert "mended" in page(book)


def test_a_kernel_that_dies_is_named_with_what_it_said(book):
    write_page(book, "import os\nos.system('echo last words >&2')\nos._exit(3)")
    result = build(book)
    assert result.returncode == 1
    assert "page.md, line 21, code cell 2: the kernel died" in result.stderr and "last words" in result.stderr


def test_each_chapter_runs_in_a_process_of_its_own(book):
    """Kernels are forked, but not from each other, nor does a cell see more of the build than its imports."""
    (book / "_toc.yml").write_text(
        "format: jb-book\nroot: intro\nchapters:\n  - file: page\n  - file: other\n"
    )
    code = "import sys, torch\nassert 'build' not in sys.modules and not hasattr(torch, 'mark')\ntorch.mark = 'left'; torch.mark"
    write_page(book, code)
    (book / "other.md").write_text((book / "page.md").read_text() + "\nAnother page.\n")
    assert build(book, WORKERS="1").returncode == 0
    assert "left" in page(book)


@pytest.mark.parametrize(
    ("code", "text", "complaint"),
    [
        ("1", "See {eq}`nowhere`.", "nowhere"),
        ("1", "See {cite:t}`nobody1900nothing`.", "nobody1900nothing"),
        ("1", "See [this](nowhere.md).", "nowhere"),
        ("import sys; print('to stderr', file=sys.stderr)", "Text.", "stderr"),
    ],
    ids=["equation", "citation", "link", "stderr"],
)
def test_warning_fails_each_time_and_names_the_page(book, code, text, complaint):
    write_page(book, code, text)
    for _ in range(2):
        result = build(book)
        assert result.returncode == 1
        assert "page.md" in result.stderr and complaint in result.stderr


def test_change_in_src_runs_the_cells_again(book):
    source = book / "src" / "value.py"
    write_page(book, f"exec(Path({str(source)!r}).read_text()); f'value is {{value}}'")
    assert build(book).returncode == 0
    assert "value is 1" in page(book)

    again = build(book)
    assert again.returncode == 0
    assert "page " not in again.stdout, "nothing changed, so no chapter runs"

    source.write_text("value = 2\n")
    assert build(book).returncode == 0
    assert "value is 2" in page(book)


def test_one_chapter_alone(book):
    command = [sys.executable, str(BOOK / "ext" / "build.py"), "--book", str(book), "--chapter"]
    assert subprocess.run([*command, "page"]).returncode == 0
    assert (book / "_build" / "chapter" / "html" / "page.html").exists()

    unknown = subprocess.run([*command, "pge"], capture_output=True, text=True)
    assert unknown.returncode == 2
    assert "'pge'" in unknown.stderr and "page" in unknown.stderr


def test_solutions_can_be_left_out(book):
    write_page(
        book,
        "1",
        """```{exercise}
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

The text goes on.""",
    )
    notebook = book / "_build" / "notebooks" / "page.ipynb"
    answers = ("A plain answer.", "An answer with a cell.", "computed answer")
    questions = ("Ask.", "Ask again.", "The text goes on.")

    assert build(book).returncode == 0
    for text in (*questions, *answers):
        assert text in page(book) and text in notebook.read_text()
    written = notebook.read_text()
    assert (
        written.index("The text goes on.") < written.index("## Solutions") < written.index("A plain answer.")
    )
    result = build(book, SOLUTIONS="0")
    assert result.returncode == 0, result.stderr
    for text in questions:
        assert text in page(book) and text in notebook.read_text()
    for text in answers:
        assert text not in page(book) and text not in notebook.read_text()


NOTEBOOK = """(a-label)=
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

```text
{eq}`untouched`
```
"""


def test_notebook_is_plain_markdown(book):
    write_page(book, "1", NOTEBOOK)
    result = build(book)
    assert result.returncode == 0, result.stderr
    cells = nbformat.read(book / "_build" / "notebooks" / "page.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert (
        "See (1), a label, Text, A small book, [a page](intro.ipynb), $x^2$ and (Vaswani et al., 2017)."
        in text
    )
    assert "Left alone: `{ref}`, `a[0](b)`, $\\dot{X}$, `{X}`." in text
    assert "$$\na = b \\tag{1}\n$$" in text
    assert "- A term: What it means." in text
    assert "> **Tip**\n>\n> Inside, (1)." in text
    assert "```text\n{eq}`untouched`\n```" in text
    assert "comment" not in text and "(a-label)=" not in text


def test_what_has_no_plain_form_is_refused(book):
    write_page(book, "1", "::::{grid}\n:::{grid-item}\nText.\n:::\n::::")
    result = build(book)
    assert result.returncode == 1
    assert "page: directive 'grid' has no plain form in a notebook" in result.stderr
