"""Folds, on the site, what supports a page and is not its argument: each behind a line that says what it is.

Folded are: cells that only show the package's source; cells that only assert, whose line is the assertion; the code of a cell that
prints numbers; tables of many rows, behind their captions; the cell of an exercise to derive, write, or count; and what
follows the first paragraph of a section on a kernel, a cost, or other accounts, or of one that the page's header names in
`folded`, with the fold's line. The code that a reader follows stays open: the backward step by
step, the mistakes, what a cell computes and returns, and the guides of the reference, which are about calls. The tag
`open` leaves a cell as it is.

A fold is a `<details>`, so it opens without a script, by a link into it, and by a search in the page. Paper, notebooks, and
the PDF have everything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

import yaml
from backpass_search import HEADER
from docutils import nodes
from myst_nb.sphinx_ import HideInputCells
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx_exercise.nodes import is_exercise_node, is_solution_node

GUIDES = "chapters/reference/"  # their cells are calls to copy
LEFT_OUT = ("intro", "chapters/claims/", "chapters/foundations/thirty_minutes")
STEPS = re.compile(r"step by step|mistake", re.IGNORECASE)  # sections whose code a reader follows
ASIDE = re.compile(r"cost|kernel|measured|verdict", re.IGNORECASE)  # sections whose results a reader wants
REST = {
    "The kernel": "The kernel’s code, what it needs of a GPU, and its speed",
    "The cost": "The count, checked, and what follows from it",
    "What it costs": "The count, checked, and what follows from it",
    "Beside other accounts": "What they say, and where they differ",
}
LONG = 8  # lines of code from which a cell that prints is folded
LONG_ASIDE = 4
SET_UP = 12  # lines from which a cell that shows nothing is folded
MANY = 15  # rows of a table
WORK = re.compile(r"(Derive|Write|Count|Measure|Explain), level")
CODE = re.compile(r"`([^`]+)`")
CAPTION = re.compile(r"<caption[^>]*>(.*?)</caption>", re.DOTALL)


class Fold(nodes.General, nodes.Element):
    """A fold, with its line in `line`, as text with code between backticks, or in `html`."""


def visit_fold(translator, node: Fold) -> None:
    line = node.get("html") or CODE.sub(r"<code>\1</code>", escape(node["line"]))
    translator.body.append(f'<details class="fold {node["kind"]}"><summary>{line}</summary>\n')


def depart_fold(translator, node: Fold) -> None:
    translator.body.append("</details>\n")


class Cell:
    """A cell of code on a page: its code, what it shows, and where it stands."""

    def __init__(self, node: nodes.container):
        self.node = node
        parts = {
            child.get("nb_element"): child for child in node.children if isinstance(child, nodes.Element)
        }
        self.input, self.output = parts.get("cell_code_source"), parts.get("cell_code_output")
        self.code = self.input.astext().strip() if self.input else ""
        self.body = parsed(self.code)
        above = list(ancestors(node))
        sections = [each for each in above if isinstance(each, nodes.section)][:-1]  # the last is the page
        self.sections = [title_of(each) for each in sections]
        self.exercise = next(filter(is_exercise_node, above), None)
        self.solved = any(map(is_solution_node, above))

    def is_in(self, titles: re.Pattern) -> bool:
        return any(titles.search(title) for title in self.sections)

    def has(self, kind: type[ast.AST], only: bool = False) -> bool:
        """Whether a statement is of this kind; with ``only``, whether all are, imports apart."""
        if only:
            return all(isinstance(each, kind | ast.Import | ast.ImportFrom) for each in self.body)
        return any(isinstance(each, kind) for statement in self.body for each in ast.walk(statement))

    @property
    def lines(self) -> int:
        return self.code.count("\n") + 1

    def prints(self) -> bool:
        """Whether all that it shows is printed lines and tables."""
        return all(is_print(child) or is_table(child) for child in self.output.children)


def is_print(node: nodes.Node) -> bool:
    return isinstance(node, nodes.literal_block) and "stream" in node["classes"]


def is_table(node: nodes.Node) -> bool:
    return isinstance(node, nodes.table | Fold) or (
        isinstance(node, nodes.raw) and "<table" in node.astext() and "backpass-report" not in node.astext()
    )


def parsed(code: str) -> list[ast.stmt]:
    try:
        return ast.parse(code).body
    except SyntaxError:  # a magic of IPython
        return []


def title_of(node: nodes.Element) -> str:
    """Return the title of a section or of an exercise, "" if it has none."""
    return next((each.astext() for each in node.children if isinstance(each, nodes.title)), "")


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while (node := node.parent) is not None:
        yield node


class FoldCells(SphinxPostTransform):
    """Folds the cells of a page."""

    default_priority = HideInputCells.default_priority - 1
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        page = self.env.docname
        if page.startswith(LEFT_OUT):
            return
        for node in list(self.document.findall(nodes.container)):
            if node.get("nb_element") != "cell_code" or "tag_open" in node["classes"]:
                continue
            cell = Cell(node)
            if cell.output and not page.startswith(GUIDES):
                fold_tables(cell)
            if cell.body and not node.get("hide_mode"):
                fold(cell, guide=page.startswith(GUIDES))
        rest = REST | folded(Path(self.env.doc2path(page)))
        sections = {title_of(section): section for section in self.document.findall(nodes.section)}
        if unknown := rest.keys() - sections.keys() - REST.keys():
            raise ExtensionError(f"{page}: folded: no section {', '.join(map(repr, unknown))}")
        for title in rest.keys() & sections.keys():
            fold_rest(sections[title], rest[title])


def folded(path: Path) -> dict[str, str]:
    """Return the lines of the sections that a page's header says to fold, by title."""
    header = HEADER.match(path.read_text())
    return (yaml.safe_load(header[1]) or {}).get("folded", {}) if header else {}


def fold(cell: Cell, guide: bool) -> None:
    """Fold the cell, or its code, if it is of a kind that is folded."""
    if shown := source_shown(cell.body):
        wrap(cell.node, cell.node.children, "source", line_of_source(shown, cell.output))
    elif cell.solved or guide:
        return
    elif cell.exercise:
        if WORK.search(title_of(cell.exercise)):
            wrap(cell.node, cell.node.children, "starter", f"A cell to work in: {counted(cell.lines)}")
    elif not cell.output:
        if cell.has(ast.Assert, only=cell.is_in(STEPS)) and cell.has(ast.Assert):
            wrap(cell.node, cell.node.children, "assertion", f"Asserted: `{assertion(cell)}`")
        elif cell.lines >= SET_UP and not cell.is_in(STEPS):
            wrap(cell.node, cell.node.children, "set-up", f"What the next cells use: {counted(cell.lines)}")
    elif cell.prints() and not cell.is_in(STEPS):
        if cell.lines >= (LONG_ASIDE if cell.is_in(ASIDE) else LONG):
            fold_code(cell)


def fold_code(cell: Cell) -> None:
    """Put the cell's code below what it shows, folded, as the code of a figure is."""
    code = cell.input
    cell.node.remove(code)
    cell.node.append(Fold("", code, line=f"The code: {counted(cell.lines)}", kind="code"))


def wrap(parent: nodes.Element, children: list[nodes.Node], kind: str, line: str) -> None:
    """Put the last children of a node into a fold."""
    inside = list(children)
    for child in inside:
        parent.remove(child)
    parent.append(Fold("", *inside, line=line, kind=kind))


def source_shown(body: list[ast.stmt]) -> list[str]:
    """Return what a cell shows with `source`, if it does nothing else."""
    *before, last = body
    call = getattr(last, "value", None)
    if not isinstance(call, ast.Call) or getattr(call.func, "id", getattr(call.func, "attr", "")) != "source":
        return []
    if not all(isinstance(each, ast.Import | ast.ImportFrom) for each in before):
        return []
    return [ast.unparse(argument) for argument in call.args]


def line_of_source(names: list[str], output: nodes.Element | None) -> str:
    blocks = list(output.findall(nodes.literal_block)) if output else []
    lines = sum(block.astext().strip().count("\n") + 1 for block in blocks)
    return f"The package’s {', '.join(f'`{name}`' for name in names)}: {counted(lines)}"


def counted(lines: int) -> str:
    return f"{lines} line{'s' * (lines > 1)}"


def assertion(cell: Cell) -> str:
    """Return the cell's last assertion, on one line."""
    found = [each for statement in cell.body for each in ast.walk(statement) if isinstance(each, ast.Assert)]
    last = max(found, key=lambda each: each.lineno)
    text = " ".join((ast.get_source_segment(cell.code, last.test) or "").split()).replace("`", "")
    return re.sub(r"(?<=[(\[{]) |,? (?=[)\]}])", "", text)  # a call on several lines as one line would be


def fold_tables(cell: Cell) -> None:
    """Fold what the cell shows if it is a table of many rows with a caption."""
    for table in list(cell.output.findall(nodes.raw)):
        text = table.astext()
        caption = CAPTION.search(text)
        if caption and text.count("<tr") > MANY and "<details" not in text:
            table.replace_self(Fold("", table.deepcopy(), html=caption[1], line="", kind="table"))


def fold_rest(section: nodes.section, line: str) -> None:
    """Fold what follows the first paragraph of a section, and of each of its subsections."""
    own = list(section.children)
    for each in own:
        if isinstance(each, nodes.section):
            fold_rest(each, line)
    at = next((at for at, each in enumerate(own) if isinstance(each, nodes.paragraph)), len(own))
    while at + 1 < len(own) and own[at].astext().rstrip().endswith(":"):  # its sentence ends in what follows
        at += 1
    rest = [each for each in own[at + 1 :] if not isinstance(each, nodes.section | nodes.target)]
    if rest:
        for each in rest:
            section.remove(each)
        section.insert(at + 1, Fold("", *rest, line=line, kind="rest"))


def setup(app: Sphinx) -> dict:
    app.add_node(Fold, html=(visit_fold, depart_fold))
    app.add_post_transform(FoldCells)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
