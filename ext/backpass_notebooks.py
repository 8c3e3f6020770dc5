"""Writes every chapter, executed, as a notebook of plain Markdown, with the numbers that the pages show.

Directives become block quotes, roles their text, references the numbers and titles that Sphinx gave them.
A directive or role that has no plain form is an error, so that no notebook shows raw MyST. The cells have the order in
which the build executed them, so that the notebook runs from top to bottom. Solutions follow their exercises, folded: at
the end of the notebook, one would find the names that another has bound again.
"""

from __future__ import annotations

import ast
import base64
import copy
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
from build import is_notebook, read_notebook
from jupyter_cache import get_cache
from slides import divided, mark, mark_slides
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

# Under these names a page's metadata have the addresses of its notebooks, the second without solutions.
NOTEBOOK, EXERCISES = "backpass_notebook", "backpass_exercises"
BOXES = ("admonition", "attention", "caution", "hint", "important", "note", "seealso", "tip", "warning")
ORIGIN = "*A chapter of the book Backpass, with its cells in the order in which the book executed them.*"
BY_CELL = "*The next cell installs the packages that are missing.*"
BY_HAND = "*If the packages are not installed, run `pip install {packages}` in the folder of the book.*"
PACKAGES = {
    "backpass": ('".[book]"', '"backpass[book] @ git+{repository}@{commit}"'),
    "backpass_ledger": (
        "./src/backpass_ledger",
        '"backpass-ledger @ git+{repository}@{commit}#subdirectory=src/backpass_ledger"',
    ),
}
FENCE = re.compile(r"(?P<fence>`{3,}|:{3,}|~{3,})(?:\{(?P<name>[\w:-]+)\})?[ ]*(?P<argument>.*)")
OPTION = re.compile(r":(?P<name>[\w-]+):[ ]*(?P<value>.*)")
DEFINITION = re.compile(r"^(?P<term>\S.*)\n:[ ]+(?P<meaning>.*)$", re.MULTILINE)
# Opens or closes a solution that has cells in it.
GATE = re.compile(
    r"^(?P<fence>`{3,})\{solution-(?P<gate>start|end)\}[ ]*(?P<label>\S*).*?^(?P=fence)[ ]*$",
    re.DOTALL | re.MULTILINE,
)
SOLUTION = re.compile(r"^`{3,}\{solution(?:-start)?\}", re.MULTILINE)
NO_TEXT = re.compile(r"\([\w:-]+\)=|%.*")  # a label of what follows; a comment
NUMBERED = re.compile(r"^\$\$\n(?P<tex>.*?)\n\$\$[ ]*\((?P<label>[\w:-]+)\)[ ]*$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(
    r"""\{(?P<role>[\w:]+)\}(?P<ticks>`+)(?P<text>.+?)(?P=ticks)
      | (?P<run>`+)(?!`).+?(?<!`)(?P=run)(?!`) | \$\$.+?\$\$ | (?<!\\)\$[^$]+?\$   # code and mathematics stay
      | \[(?P<title>[^\]]*)\]\((?P<target>[^):\s]+)\)""",
    re.DOTALL | re.VERBOSE,
)


class Page:
    """One page's way from MyST to plain Markdown, with its solutions or without."""

    def __init__(self, env: BuildEnvironment, name: str, solutions: bool = True, folder: str = ""):
        self.env, self.name, self.solutions, self.folder = env, name, solutions, folder
        self.labels = env.get_domain("std")

    def plain(self, text: str) -> str:
        """MyST without its directives, roles, labels and comments."""
        lines, out, prose = text.split("\n"), [], []
        while lines:
            line = lines.pop(0)
            match = FENCE.fullmatch(line)
            if match:
                closing = re.compile(re.escape(match["fence"]) + rf"{match['fence'][0]}*\s*")
                body = []
                while lines and not closing.fullmatch(lines[0]):
                    body.append(lines.pop(0))
                last = lines.pop(0) if lines else ""
                out.append(self._inline("\n".join(prose)))
                out.append(self._directive(match, body) if match["name"] else "\n".join([line, *body, last]))
                prose = []
            elif not NO_TEXT.fullmatch(line):
                prose.append(line)
        return "\n".join([*out, self._inline("\n".join(prose))]).strip("\n")

    def _inline(self, text: str) -> str:
        text = DEFINITION.sub(r"- \g<term>: \g<meaning>", text)
        text = NUMBERED.sub(lambda m: f"$$\n{m['tex']} \\tag{{{self.equation(m['label'])}}}\n$$", text)
        return INLINE.sub(self._role_or_link, text)

    def _role_or_link(self, match: re.Match) -> str:
        if match["role"]:
            return self._role(match["role"], match["text"])
        if match["target"]:
            path = match["target"].split("#")[0]
            # A label of a section or of a page has no address in a notebook.
            if not path.endswith(".md"):
                return match["title"]
            title = match["title"] or self._title("doc", path.removesuffix(".md"))
            address = self._address(path)
            return f"[{title}]({address})" if address else title
        return match[0]

    def _address(self, path: str) -> str:
        """Return the way to the notebook of another page, "" if it has none. A notebook without solutions leads to
        others without them."""
        offered = self.env.metadata.get(self._document(path), {})
        if not self.folder or EXERCISES in offered:
            return Path(offered.get(NOTEBOOK, "")).name
        return f"../{offered[NOTEBOOK]}" if NOTEBOOK in offered else ""

    def _document(self, path: str) -> str:
        below = posixpath.join("/", posixpath.dirname(self.name), path.removesuffix(".md"))
        return posixpath.normpath(below).lstrip("/")

    def _directive(self, match: re.Match, lines: list[str]) -> str:
        name, argument, options = match["name"], match["argument"], {}
        while lines and (option := OPTION.fullmatch(lines[0])):
            options[option["name"]] = option["value"]
            lines = lines[1:]
        body = "\n".join(lines).strip("\n")

        if name == "math":
            tag = rf" \tag{{{self.equation(options['label'])}}}" if "label" in options else ""
            return f"$$\n{body}{tag}\n$$"
        if name in BOXES:
            title = argument if name == "admonition" else name.capitalize()
            return quote(f"**{title}**\n\n{self.plain(body)}")
        if name in ("exercise", "exercise-start"):
            heading = self.number("exercise", options["label"]) + (f" ({argument})" if argument else "")
            return quote(f"**{heading}**\n\n{self.plain(body)}".strip())
        if name == "exercise-end":
            return ""
        if name == "solution":
            heading = f"Solution of {self.number('exercise', argument)}"
            return folded(heading, self.plain(body), begins=True) if self.solutions else ""
        if name in ("figure", "image"):
            return f"![{options.get('alt', '')}]({self._data(argument)})\n\n{self.plain(body)}".rstrip()
        if name == "grid":
            return self.plain(body)
        if name == "grid-item-card":
            return f"**{argument}.** {self.plain(body)}\n"
        if name == "table":
            return f"**{argument}**\n\n{self.plain(body)}"
        if name == "rubric":
            return f"**{argument}**"
        if name == "literalinclude":
            return f"```{options.get('language', 'python')}\n{self._source(argument, options)}\n```"
        if name == "bibliography":
            return ""
        raise ExtensionError(f"{self.name}: directive {name!r} has no plain form in a notebook")

    def _role(self, name: str, text: str) -> str:
        titled = re.fullmatch(r"(?P<title>.+?)\s*<(?P<target>.+)>", text, re.DOTALL)
        title, target = (titled["title"], titled["target"]) if titled else (None, text)
        if name == "eq":
            return f"({self.equation(target)})"
        if name in ("ref", "numref", "doc"):
            return title or self._title(name, target)
        if name.split(":")[0] == "cite":
            return self.citation(target, textual=name == "cite:t")
        if name == "math":
            return f"${text}$"
        if name in ("py:func", "py:mod", "py:class", "func", "mod", "class"):
            return f"`{(title or target).lstrip('~')}`"
        if name in ("abbr", "term", "sup", "sub"):
            return title or text
        raise ExtensionError(f"{self.name}: role {name!r} has no plain form in a notebook")

    def equation(self, label: str) -> str:
        """The number that the page shows beside an equation."""
        known = self.env.get_domain("math").equations
        if label not in known:
            raise ExtensionError(f"{self.name}: no equation {label!r}")
        page, serial = known[label]
        number = self.env.toc_fignumbers.get(page, {}).get("displaymath", {}).get(f"equation-{label}")
        return ".".join(map(str, number)) if number else str(serial)

    def number(self, kind: str, label: str) -> str:
        """'Exercise 7.1': the numbered thing as the pages call it."""
        for kinds in self.env.toc_fignumbers.values():
            if label in kinds.get(kind, {}):
                return f"{kind.capitalize()} {'.'.join(map(str, kinds[kind][label]))}"
        return kind.capitalize()

    def citation(self, keys: str, textual: bool) -> str:
        """'Vaswani et al. (2017)', or all of it in parentheses."""
        cited = []
        for key in keys.replace(" ", "").split(","):
            entry = self.env.get_domain("cite").bibdata.data.entries[key]
            names = [" ".join(person.last_names) for person in entry.persons.get("author", ())]
            who = entry.fields["title"] if not names else names[0]
            who += " et al." if len(names) > 2 else f" and {names[1]}" if len(names) == 2 else ""
            who, year = re.sub(r"[{}\\]", "", who), entry.fields.get("year")
            cited.append(who if not year else f"{who} ({year})" if textual else f"{who}, {year}")
        return ", ".join(cited) if textual else f"({'; '.join(cited)})"

    def _title(self, role: str, target: str) -> str:
        if role == "doc":
            return self.env.titles[self._document(target)].astext()
        for kind in ("exercise", "figure", "table"):
            if (number := self.number(kind, target)) != kind.capitalize():
                return number
        return self.labels.labels[target.lower()][2]

    def _path(self, argument: str) -> Path:
        return (Path(self.env.doc2path(self.name)).parent / argument).resolve()

    def _data(self, argument: str) -> str:
        path = self._path(argument)
        kind = {".svg": "svg+xml", ".png": "png", ".jpg": "jpeg"}[path.suffix]
        return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"

    def _source(self, argument: str, options: dict) -> str:
        text = self._path(argument).read_text()
        wanted = options.get("pyobject")
        if not wanted:
            return text.rstrip()
        for node in ast.parse(text).body:
            if getattr(node, "name", None) == wanted:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                return "\n".join(text.split("\n")[first - 1 : node.end_lineno])
        raise ExtensionError(f"{self.name}: {argument} has no {wanted!r}")


def quote(text: str) -> str:
    """The text as a block quote."""
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


class Part(NamedTuple):
    """A cell, or the part of a cell of text that is inside or outside of a solution with cells in it."""

    cell: nbformat.NotebookNode
    exercise: str = ""  # the label of the exercise that the solution solves; "" outside of solutions
    begins: bool = False  # whether the solution begins here


def parts(cells: list[nbformat.NotebookNode]) -> Iterator[Part]:
    """The cells in their order, those of text divided where a solution with cells in it begins or ends."""
    exercise = ""
    for cell in cells:
        if cell.cell_type != "markdown":
            yield Part(cell, exercise)
            continue
        at, begins = 0, False
        for match in GATE.finditer(cell.source):
            yield Part(
                nbformat.v4.new_markdown_cell(cell.source[at : match.start()].strip()), exercise, begins
            )
            exercise, begins = (match["label"], True) if match["gate"] == "start" else ("", False)
            at = match.end()
        yield Part(nbformat.v4.new_markdown_cell(cell.source[at:].strip()), exercise, begins)


FOLDED = {
    "jupyter": {"source_hidden": True, "outputs_hidden": True},  # JupyterLab, Notebook 7, VS Code
    "cellView": "form",  # Colab
}


def folded(heading: str, text: str, begins: bool) -> str:
    """The text of a solution, which a click opens; where it begins, at least its heading."""
    if text:
        return (
            f"<details><summary>{heading}{'' if begins else ', continued'}</summary>\n\n{text}\n\n</details>"
        )
    return f"**{heading}**: open the folded cell." if begins else ""


def convert(
    notebook: nbformat.NotebookNode,
    page: Page,
    title: str,
    first: list[nbformat.NotebookNode],
) -> nbformat.NotebookNode:
    """The notebook with the first cells before its own, and with plain Markdown in its cells and in their outputs. Its code
    cells have the order in which they were executed."""
    cells = []
    for cell, exercise, begins in parts(notebook.cells):
        if exercise and not page.solutions:
            continue
        if cell.cell_type == "markdown":
            text = page.plain(cell.source)
            if exercise:
                heading = f"Solution of {page.number('exercise', exercise)}"
                cell.source = folded(heading, text, begins)
                mark(cell, "skip")
                cells.append(cell)
            else:
                cells += [nbformat.v4.new_markdown_cell(part) for part in divided(text)]
            continue
        cells.append(cell)
        if exercise:
            cell.metadata.update(FOLDED)
            mark(cell, "skip")
        elif {"hide-input", "remove-input", "hide-cell"} & set(cell.metadata.get("tags", ())):
            cell.metadata["jupyter"] = {"source_hidden": True}
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/markdown" in data:
                data["text/markdown"] = page.plain(data["text/markdown"])
    cells = [cell for cell in cells if cell.source]
    mark_slides(cells)
    notebook.cells = [*first, *cells]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # those that nbformat draws differ from build to build
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "title": title}
    return notebook


def installing(
    cells: list[nbformat.NotebookNode], repository: str, commit: str
) -> list[nbformat.NotebookNode]:
    """Return the first cells: where the notebook is from, and how to install what its cells import; where a repository
    is known, with code that does so."""
    imported = [name for name in PACKAGES if name == "backpass" or name in code_of(cells)]
    local, remote = zip(*(PACKAGES[name] for name in imported), strict=True)
    how = BY_CELL if repository else BY_HAND.format(packages=" ".join(local))
    first = [nbformat.v4.new_markdown_cell(f"{ORIGIN} {how}")]
    if repository:
        packages = " ".join(remote).format(repository=repository, commit=commit)
        code = f"try:\n    import {', '.join(imported)}\nexcept ImportError:\n    %pip install --quiet {packages}"
        first.append(nbformat.v4.new_code_cell(code))
    for cell in first:
        mark(cell, "skip")
    return first


def code_of(cells: list[nbformat.NotebookNode]) -> str:
    return "\n".join(cell.source for cell in cells if cell.cell_type == "code")


def collect(app: Sphinx, env: BuildEnvironment) -> None:
    """Note which pages are notebooks, and which of them have solutions, for the buttons that offer them."""
    for name in env.found_docs:
        path = Path(env.doc2path(name))
        if is_notebook(path):
            env.metadata[name][NOTEBOOK] = f"{path.stem}.ipynb"
            if SOLUTION.search(path.read_text()):
                env.metadata[name][EXERCISES] = f"exercises/{path.stem}.ipynb"


def write(app: Sphinx, failure: Exception | None) -> None:
    """Write them to _build/notebooks, and where the site offers them; each page with solutions also without them."""
    if failure or app.builder.format != "html" or app.config.nb_execution_excludepatterns:
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    repository, commit = app.config.repository, os.environ.get("GITHUB_SHA", "main")
    for name, metadata in app.env.metadata.items():
        if NOTEBOOK not in metadata:
            continue
        _, executed = cache.merge_match_into_notebook(read_notebook(Path(app.env.doc2path(name))))
        title = app.env.titles[name].astext()
        first = installing(executed.cells, repository, commit)
        for kind in (NOTEBOOK, EXERCISES):
            if kind in metadata:
                whole = kind == NOTEBOOK
                page = Page(app.env, name, whole and app.config.solutions, "" if whole else "exercises")
                notebook = convert(copy.deepcopy(executed), page, title, first)
                text = nbformat.writes(notebook) + "\n"
                for folder in (app.outdir.parent / "notebooks", app.outdir / "_notebooks"):
                    path = folder / metadata[kind]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict:
    app.connect("env-updated", collect)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
