"""What every page keeps to: each operation is derived, what is displayed was checked, numbers agree."""

import re
import symtable

import pytest
from backpass_notebooks import parts
from build import read_notebook

from backpass import ops

from .chapters import BOOK, chapters, code_cells, derivations, prose

PAGES = [pytest.param(page, id=str(page.relative_to(BOOK))) for page in chapters()]


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"(?:file|root): (\S+)", (BOOK / "_toc.yml").read_text())
    assert sorted(listed) == sorted(str(page.relative_to(BOOK).with_suffix("")) for page in chapters())


@pytest.mark.parametrize("stem", ops.STEMS)
def test_every_operation_is_derived_on_the_page_its_docstring_names(stem):
    """The page's cell stops the build unless the derivation starts at the forward and ends in the backward."""
    derived_on = {page.relative_to(BOOK) for page, d in derivations() if d.operation == stem}
    pages = sorted(str(path.with_suffix("")).removeprefix("chapters/") for path in derived_on)
    assert ops.page(stem) in pages, (
        f"chapters/{ops.page(stem)}.md has no derivation with operation={stem!r}; these have: {pages}"
    )


@pytest.mark.parametrize("page", PAGES)
def test_displayed_mathematics_comes_from_derivations(page):
    assert "$$" not in prose(page)
    assert "{math}" not in page.read_text()
    assert r"\begin{" not in prose(page)


def names_set(cell) -> set[str]:
    """The names that a cell of code sets at its top level, imports included."""
    top = symtable.symtable(cell.source, "cell", "exec")
    return {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def names_used(cell) -> set[str]:
    """The names that a cell of code, or a function in it, reads and the cell does not set."""

    def read(table: symtable.SymbolTable, top: bool) -> set[str]:
        symbols = (s for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        return {s.get_name() for s in symbols}.union(*(read(inner, False) for inner in table.get_children()))

    return read(symtable.symtable(cell.source, "cell", "exec"), True) - names_set(cell)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_without_its_solutions(page):
    """No cell outside of the solutions uses a name that a solution has bound, or bound again: notebooks may leave them out."""
    notebook = read_notebook(page)
    solved: set[str] = set()
    for cell, exercise, _ in parts(notebook.cells) if notebook else ():
        if cell.cell_type != "code":
            continue
        if exercise:
            solved |= names_set(cell)
            continue
        used = names_used(cell) & solved
        assert not used, f"bound in a solution: {', '.join(sorted(used))}"
        solved -= names_set(cell)


@pytest.mark.parametrize("page", PAGES)
def test_names_of_derivations_are_unique_on_a_page(page):
    pieces = [(d.name, d.first_number) for where, d in derivations() if where == page]
    assert len(pieces) == len(set(pieces))


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_kept_without_outputs_and_with_one_title(page):
    text = prose(page)
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    assert not any(re.search(r"^\s*(%timeit|!)", cell, re.MULTILINE) for cell in code_cells(page))


def test_reading_times_are_those_of_the_pages():
    """At 200 words a minute, code at half: no page is more than four minutes off what the table says; one that gives each
    section its minutes, among them those for figures and an exercise, has their sum."""
    guide = BOOK / "chapters" / "foundations" / "how_to_read.md"
    stated = re.findall(r"^\| \[[^\]]+\]\(([\w./]+\.md)\) \| (\d+) \|", guide.read_text(), re.MULTILINE)
    short = {"intro", "how_to_read", "api", "api_checks", "bibliography", "card", "proofs"}
    listed = {(guide.parent / path).resolve() for path, _ in stated}
    missing = [
        str(p.relative_to(BOOK))
        for p in chapters()
        if p.stem not in short and p.parent.name != "claims" and p.resolve() not in listed
    ]
    assert not missing, f"add a row to the table of {guide.relative_to(BOOK)} for {', '.join(missing)}"
    for path, minutes in stated:
        page = (guide.parent / path).resolve()
        if own := re.findall(r"^\d+\. \[[^\]]+\]\([\w-]+\): (\d+) minutes$", page.read_text(), re.MULTILINE):
            assert int(minutes) == sum(map(int, own))
            continue
        words = len(prose(page).split()) + sum(len(cell.split()) for cell in code_cells(page)) / 2
        assert abs(words / 200 - int(minutes)) <= 4, f"{page.stem}: {words / 200:.0f} minutes"


TAUGHT = [
    pytest.param(page, id=str(page.relative_to(BOOK)))
    for page in chapters()
    if page.parent.name
    in ("foundations", "operations", "attention", "networks", "cost", "numerics", "parallel")
    and page.stem not in ("how_to_read", "thirty_minutes", "calculator")
]
EXERCISE = re.compile(
    r"^(`{3,})\{exercise-start\}[ ]*(?P<title>.*?)\n(?P<body>.*?)^\1\{exercise-end\}",
    re.DOTALL | re.MULTILINE,
)
KINDS = ("Derive", "Debug", "Write", "Count", "Measure", "Explain")


@pytest.mark.parametrize("page", TAUGHT)
def test_a_chapter_has_exercises_of_three_levels_to_work_in(page):
    exercises = list(EXERCISE.finditer(page.read_text()))
    assert page.read_text().count("{exercise") == 2 * len(exercises), "an exercise without a place to work in"
    titles = [exercise["title"] for exercise in exercises]
    read = [re.fullmatch(rf"({'|'.join(KINDS)}), level ([123]): \S.*", title) for title in titles]
    assert None not in read, f"expected 'KIND, level N: …'; got {titles}"
    assert {"Derive", "Debug"} <= {match[1] for match in read}
    levels = [match[2] for match in read]
    assert set(levels) == set("123") and levels == sorted(levels)
    assert all("{code-cell}" in exercise["body"] for exercise in exercises)


# A listing is long if it fills a third of a laptop's screen.
LONG = 25


@pytest.mark.parametrize("page", TAUGHT)
def test_a_picture_comes_before_the_first_long_listing(page):
    shows = r"figures\.show|\bshow\(|show_steps|svg|_repr_html_|NetworkMap\(\s*root"
    for cell in read_notebook(page).cells:
        if cell.cell_type != "code":
            continue
        if re.search(shows, cell.source):
            return
        folded = {"hide-input", "remove-input", "hide-cell"} & set(cell.metadata.get("tags", ()))
        assert folded or cell.source.count("\n") < LONG, f"a listing before any picture: {cell.source[:80]!r}"
    pytest.fail("no picture")
