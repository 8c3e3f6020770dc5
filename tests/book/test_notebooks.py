"""The notebooks that the pages offer: the cells as the build executed them, and all that they need beside the package."""

from __future__ import annotations

import os
import random
import re
import shutil
import tomllib
from pathlib import Path

import nbformat
import pytest
from backpass_notebooks import SOLUTION, parts
from build import chapters, is_notebook, read_notebook, with_cells
from dependencies import ALWAYS, READERS, Dependencies
from jupyter_cache import get_cache
from slides import divided, mark_slides

import proofs

from .conftest import BOOK
from .test_site import Links

LIGHT = 8  # CPU seconds
NOTEBOOKS = [name for name in chapters(BOOK) if is_notebook(BOOK / f"{name}.md")]
WITH_SOLUTIONS = [name for name in NOTEBOOKS if SOLUTION.search((BOOK / f"{name}.md").read_text())]
PACKAGED = tomllib.loads((BOOK / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "force-include"
]


def code_of(name: str) -> list[str]:
    """The page's cells of code, in the order in which the build executes them."""
    cells = read_notebook(BOOK / f"{name}.md").cells
    return [cell.source for cell in cells if cell.cell_type == "code" and cell.source]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_the_cells_that_ran_in_their_order(site, name):
    stem = name.split("/")[-1]
    links = Links((site / f"{name}.html").read_text())
    assert any(address.endswith(f"_notebooks/{stem}.ipynb") for address in links.addresses)

    notebook = nbformat.read(site / "_notebooks" / f"{stem}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == code_of(name)
    assert all(cell.execution_count for cell in code)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_plain_markdown_with_folded_solutions(site, name):
    notebook = nbformat.read(site / "_notebooks" / f"{name.split('/')[-1]}.ipynb", as_version=4)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "pip install" in notebook.cells[0].source
    bare = re.sub(r"```.*?```|`[^`]*`", "", prose, flags=re.DOTALL)
    assert re.findall(r"\{[a-z:]+\}`|^[`:]{3,}\{.*|^\([\w-]+\)=", bare, flags=re.MULTILINE) == []

    solved = [part for part in parts(read_notebook(BOOK / f"{name}.md").cells) if part.exercise]
    begun = sum(part.begins for part in solved)
    headings = r"^(?:<details><summary>|\*\*)Solution of [^,]*?(?:</summary>|\*\*: open the folded cell)"
    assert len(re.findall(headings, prose, re.MULTILINE)) == begun
    folded = [cell for cell in notebook.cells if cell.metadata.get("jupyter", {}).get("outputs_hidden")]
    inside = [part.cell.source for part in solved if part.cell.cell_type == "code" and part.cell.source]
    assert [cell.source for cell in folded] == inside


@pytest.mark.parametrize("name", WITH_SOLUTIONS)
def test_a_second_notebook_has_all_cells_but_the_solutions(site, name):
    stem = name.split("/")[-1]
    links = Links((site / f"{name}.html").read_text())
    assert any(address.endswith(f"_notebooks/exercises/{stem}.ipynb") for address in links.addresses)

    whole, without = (
        nbformat.read(site / "_notebooks" / folder / f"{stem}.ipynb", as_version=4)
        for folder in ("", "exercises")
    )
    nbformat.validate(without)
    assert "Solution of" not in "\n".join(cell.source for cell in without.cells)
    at = iter(whole.cells)
    for cell in without.cells:  # in the same order
        same = next(other for other in at if unlinked(other.source) == unlinked(cell.source))
        assert same.metadata == cell.metadata and same.get("outputs") == cell.get("outputs")
    solved = [part.cell for part in parts(read_notebook(BOOK / f"{name}.md").cells) if part.exercise]
    code = sum(cell.cell_type == "code" and bool(cell.source) for cell in solved)
    assert [len(code_cells(nb)) for nb in (whole, without)] == [len(code_of(name)), len(code_of(name)) - code]

    for address in re.findall(r"\]\((\S+\.ipynb)\)", "\n".join(cell.source for cell in without.cells)):
        assert (site / "_notebooks" / "exercises" / address).exists(), address


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def unlinked(text: str) -> str:
    """The text with the names of the notebooks that it links to, without their folders."""
    return text.replace("](../", "](")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_section_begins_a_slide_and_solutions_are_on_none(site, name):
    notebook = nbformat.read(site / "_notebooks" / f"{name.split('/')[-1]}.ipynb", as_version=4)
    for cell in notebook.cells:
        kind = cell.metadata["slideshow"]["slide_type"]
        first_line = cell.source.split("\n")[0]
        assert (kind == "slide") == (cell.cell_type == "markdown" and bool(re.match(r"##? ", first_line)))
        assert kind == "skip" or "Solution of Exercise" not in first_line
    solved = {part.cell.source for part in parts(read_notebook(BOOK / f"{name}.md").cells) if part.exercise}
    assert all(
        cell.metadata["slideshow"]["slide_type"] == "skip"
        for cell in code_cells(notebook)
        if cell.metadata.get("jupyter", {}).get("outputs_hidden") and cell.source in solved
    )


def test_text_is_divided_at_titles_and_exercises_but_not_in_listings_or_quotes():
    parts = [
        "Before.",
        "# A title\n\nText.\n\n```python\n# a comment\n## another\n```",
        "### A subsection\n\n#### Below it\n\n**Bold** text.",
        "**A title in bold.** Its text.",
        "> **Exercise 1.1 (Derive, level 1: a sum)**\n>\n> ## In the box\n\nMore.",
    ]
    assert list(divided("\n\n".join(parts))) == parts
    assert list(divided("# A title")) == ["# A title"]


def test_slides_begin_at_sections_and_show_code_after_its_text():
    code, text = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    shows = [nbformat.v4.new_output("stream", text="2")]
    cells = {
        "slide": text("## A section\n\nText."),
        "-": text("More text."),
        "fragment": code("1 + 1", outputs=shows),
        "skip": code("x = 1\nassert x"),
        "subslide": text("Text after code."),
    }
    mark_slides(list(cells.values()))
    assert {kind: cell.metadata["slideshow"]["slide_type"] for kind, cell in cells.items()} == {
        kind: kind for kind in cells
    }

    followed = [text("## The mistake people make here"), code("x = 1\nassert x"), text("### A subsection")]
    mark_slides(followed)
    assert [cell.metadata["slideshow"]["slide_type"] for cell in followed] == [
        "slide",
        "fragment",
        "subslide",
    ]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the packages as a wheel would install them, and nothing else of the repository."""
    folder = tmp_path_factory.mktemp("installed")
    for package in ("backpass", "backpass_ledger"):
        shutil.copytree(
            BOOK / "src" / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for source, target in PACKAGED.items():
        copy = shutil.copytree if (BOOK / source).is_dir() else shutil.copy
        copy(BOOK / source, folder / target)
    return folder


def test_an_installed_package_has_what_the_pages_read():
    """The files beside src/ that a page depends on."""
    dependencies = Dependencies(BOOK)
    needed = set()
    for chapter in with_cells(BOOK, NOTEBOOKS, dependencies).values():
        needed |= {path.relative_to(BOOK).as_posix() for path in chapter.depends_on}
    besides = {path for path in needed if not path.startswith("src/")} - set(ALWAYS)
    besides -= {path.relative_to(BOOK).as_posix() for path in BOOK.glob(READERS["backpass.commands.bench"])}
    missing = {path for path in besides if not any(f"{path}/".startswith(f"{each}/") for each in PACKAGED)}
    assert missing == set(), "add them to force-include in pyproject.toml"


def drawn() -> list[str]:
    """All notebooks with `make test-all`; else one, of those whose cells take at most LIGHT seconds of CPU."""
    stems = sorted(name.split("/")[-1] for name in NOTEBOOKS)
    if proofs.proving() == "all":
        return stems
    records = get_cache(BOOK / "_build" / "cells").list_cache_records()
    heavy = {Path(record.uri).stem for record in records if record.data.get("cpu_seconds", 0) > LIGHT}
    return [random.Random(proofs.seed()).choice([stem for stem in stems if stem not in heavy])]


def test_a_notebook_runs_where_only_the_package_is_installed(site, installed, tmp_path):
    """The build has executed the same cells in the same order; what differs is what surrounds them."""
    from nbclient import NotebookClient

    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    for stem in drawn():
        notebook = nbformat.read(site / "_notebooks" / f"{stem}.ipynb", as_version=4)
        folder = tmp_path / stem
        folder.mkdir()
        client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
        client.execute(env=settings | {"PYTHONPATH": str(installed)})
