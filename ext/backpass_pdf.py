"""Writes the book as one PDF, _build/html/backpass.pdf, from the pages that `make book` wrote.

    python ext/backpass_pdf.py              the whole book
    python ext/backpass_pdf.py --keep DIR   the same, with typst's sources left in DIR

Pandoc converts the formulas and typst sets the pages; both come from PyPI (`pip install '.[pdf]'`). Any warning of
typst, and whatever has no form on paper, is an error that names the chapter, and then no file is written.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paper import PaperError
from paper.pages import Part, page, parts
from paper.terms import Index
from paper.writer import Formulas, Writer, anchors_of, string

NAME = "backpass.pdf"
OFFERED_ON = "chapters/foundations/how_to_read"
OFFER = re.compile(r'\n?<p id="book-as-pdf">.*?</p>', re.DOTALL)
FIRST_PARAGRAPH = re.compile(r'<article class="bd-article">.*?<h1>.*?</h1>.*?</p>', re.DOTALL)
WHAT_IS_LEFT_OUT = (
    "This is the whole book on paper: every page of the site, with what its cells computed when it was built. Left out "
    "are the folded source of figures and derivations, the code below each judged claim and bug, and the table behind "
    "each report of a check, of which the line with its verdict remains. Solutions stand at the end of their chapter. "
    "Sliders and choices show their first state; the calculators need the site. Whatever is missing here is in the "
    "repository, and the site offers each chapter as a notebook that has run."
)


@dataclass(frozen=True)
class Edition:
    """Which state of the book this is."""

    commit: str
    date: str
    timestamp: int


def edition(book: Path) -> Edition:
    """The commit that is checked out, and its date; empty without git."""
    command = ["git", "log", "-1", "--format=%h %cs %ct"]
    try:
        said = subprocess.run(command, cwd=book, capture_output=True, text=True, check=True).stdout.split()
        return Edition(said[0], said[1], int(said[2]))
    except (OSError, subprocess.CalledProcessError, IndexError):
        return Edition("", "", 0)


def operations_and_methods() -> tuple[list[str], list[str]]:
    """The names that the index looks for: of the package's operations, and of its ways of checking."""
    from backpass import ops
    from backpass.verify.checking import METHODS

    # "symbolic" and "contract" are words of every day too; the pages introduce them in italics.
    return list(ops.STEMS), [method.NAME for method in METHODS.values() if " " in method.NAME]


def write_sources(book: Path, folder: Path, pandoc: str, say: Callable[[str], None]) -> dict[str, str]:
    """Write typst's sources of the whole book into the folder; return the LaTeX of each formula by its typst."""
    site, contents = book / "_build" / "html", parts(book)
    names = [name for part in contents for name in part.chapters]
    articles, labels = {}, set()
    for at, name in enumerate(names, start=1):
        say(f"[{at}/{len(names)}] {name}")
        articles[name] = page(site, name)
        labels.update(anchors_of(name, articles[name]))
    articles[names[0]].select_one("h1").string = "Introduction"  # its title is the book's

    index, maths, texts = Index(*operations_and_methods()), Formulas(), {}
    pictures = folder / "pictures"
    pictures.mkdir()
    for name in names:
        writer = Writer(name, labels, maths, index)
        texts[name] = writer.chapter(articles[name])
        for picture, svg in writer.pictures.items():
            (pictures / picture).write_text(svg, encoding="utf-8")

    say(f"{len(maths.numbers)} formulas")
    found = maths.converted(pandoc)
    for name, text in texts.items():
        path = folder / f"{name}.typ"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#import "/book.typ": *\n\n{Formulas.placed(text, found)}\n', encoding="utf-8")

    shutil.copy(Path(__file__).parent / "paper" / "book.typ", folder)
    shutil.copy(book / "assets" / "logo.svg", pictures)
    (folder / "main.typ").write_text(main_file(contents, index, edition(book)), encoding="utf-8")
    return {
        typst: f"{latex}, first in {maths.first[latex]}"
        for latex, typst in zip(maths.numbers, found, strict=True)
    }


def main_file(contents: list[Part], index: Index, of: Edition) -> str:
    """The book: a title page, the contents, each part with its chapters, and the index."""
    lines = [
        '#import "/book.typ": *',
        '#show: book.with(title: "Backpass", authors: "The Backpass authors")',
        f"#title-page({string(of.commit)}, {string(of.date)}, {string(WHAT_IS_LEFT_OUT)})",
        "#contents()",
    ]
    for part in contents:
        if part.title:
            lines.append(f"#part({string(part.title)}, {string(f'part: {part.title}')})")
        lines += [f'#include "/{name}.typ"' for name in part.chapters]
    rows = []
    for entry in index.sorted():
        main, places = (
            "".join(f"{string(name)}, " for name in names) for names in (entry.main, entry.places)
        )
        rows.append(f"  ({string(entry.term)}, {str(entry.is_code).lower()}, ({main}), ({places})),")
    lines += ["#index((", *rows, "))"]
    return "\n".join(lines) + "\n"


def explained(error: object, formulas: dict[str, str]) -> str:
    """Typst's message, with the LaTeX of the formula that it points at."""
    said = getattr(error, "diagnostic", None) or str(error)
    lines = re.findall(r"^\s*\d+ │ (.*)$", said, re.MULTILINE)
    meant = [
        latex
        for typst, latex in formulas.items()
        if any(f"${typst}$" in line or f"$display({typst})$" in line for line in lines)
    ]
    return said.strip() + "".join(f"\n  the formula {latex}" for latex in meant[:5])


def typeset(folder: Path, formulas: dict[str, str], timestamp: int = 0) -> bytes:
    """The PDF of the sources in the folder. Raises PaperError for each warning too."""
    import typst

    compiler = typst.Compiler(input=folder / "main.typ", root=folder, ignore_system_fonts=True)
    try:
        # The site is the accessible form of the book; tags would make the file three times as large.
        pdf, warnings = compiler.compile_with_warnings(
            format="pdf", timestamp=timestamp or None, pdf_tags=False
        )
    except typst.TypstError as error:
        raise PaperError(explained(error, formulas)) from None
    if warnings:
        raise PaperError("\n".join(explained(each, formulas) for each in warnings))
    return pdf


@contextlib.contextmanager
def working_folder(kept: Path | None) -> Iterator[Path]:
    """A folder for typst's sources, which goes away unless it is to be kept."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="backpass-pdf-") as folder:
            yield Path(folder)
        return
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    yield kept


def offer(site: Path, pages: int, megabytes: float) -> None:
    """Link to the PDF on the page "How to read"; `make book` writes that page without the link."""
    path = site / f"{OFFERED_ON}.html"
    text = OFFER.sub("", path.read_text(encoding="utf-8"))
    href = "../" * OFFERED_ON.count("/") + NAME
    words = f'\n<p id="book-as-pdf"><a href="{html.escape(href)}">The book as one PDF</a> ({pages} pages, {megabytes:.0f} MB).</p>'
    text = FIRST_PARAGRAPH.sub(lambda match: match[0] + words, text, count=1)
    path.write_text(text, encoding="utf-8")


def make(book: Path, kept: Path | None, say: Callable[[str], None]) -> Path:
    """Write the PDF and offer it on the site; return where it is. Raises PaperError."""
    try:
        import pypandoc
        import typst  # noqa: F401  (before minutes of work, not after)
    except ImportError as error:
        raise PaperError(
            f"{error.name} is missing; `make pdf` installs it, as does pip install '.[pdf]'"
        ) from None

    with working_folder(kept) as folder:
        formulas = write_sources(book, folder, pypandoc.get_pandoc_path(), say)
        say("typesetting")
        pdf = typeset(folder, formulas, edition(book).timestamp)
    site = book / "_build" / "html"
    written = site / NAME
    unfinished = written.with_suffix(".unfinished")
    try:
        unfinished.write_bytes(pdf)
        os.replace(unfinished, written)
    finally:
        unfinished.unlink(missing_ok=True)
    count = pages_in(pdf)
    offer(site, count, len(pdf) / 1e6)
    say(f"{count} pages, {len(pdf) / 1e6:.1f} MB")
    return written


def pages_in(pdf: bytes) -> int:
    """How many pages the root of its page tree counts."""
    return max(map(int, re.findall(rb"/Count (\d+)", pdf)), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the book as one PDF.")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave typst's sources in this folder")
    parser.add_argument(
        "--book", type=Path, default=Path(__file__).parents[1], help="folder with _toc.yml and _build/html"
    )
    arguments = parser.parse_args()
    start = time.perf_counter()

    def say(words: str) -> None:
        print(f"  {words:<60} {time.perf_counter() - start:5.0f} s", flush=True)

    try:
        written = make(arguments.book.resolve(), arguments.keep, say)
    except PaperError as error:
        print(f"no PDF was written: {error}", file=sys.stderr)
        return 1
    print(f"{written.relative_to(arguments.book.resolve())} written in {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
