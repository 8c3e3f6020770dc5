"""Builds the book: executes the chapters side by side, then lets Jupyter Book write the pages.

    python ext/build.py                     the whole site, in _build/html; any warning fails it
    python ext/build.py --chapter softmax   one chapter, in _build/chapter/html; the others without outputs

Results of cells are kept in a folder named by a hash of everything they depend on beside themselves, so no
change in src/ leaves a page as it was. What fails is never kept, so it fails again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
import yaml
from forked_kernels import ForkedKernelManager, collect_seldom, preload, stop
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn, JupyterCacheAbstract
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

WORKERS = int(os.environ.get("WORKERS", 2))
CELL_TIMEOUT = 600  # seconds
CELLS_DEPEND_ON = (
    "src/**/*.py",
    "assets/text.txt",
    "assets/records/*.json",
    "assets/site/_static/calculator_formulas.js",
    "benchmarks/results/*.json",
    "constraints.txt",
)
PAGES_DEPEND_ON = (*CELLS_DEPEND_ON, "ext/*.py")


def fingerprint(book: Path, patterns: tuple[str, ...]) -> str:
    """A hash of the files that match."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(path for pattern in patterns for path in book.glob(pattern)):
        digest.update(f"{path.relative_to(book)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def chapters(book: Path) -> list[str]:
    """Document names in the table of contents, in reading order."""

    def walk(node: dict) -> Iterator[str]:
        for key in ("root", "file"):
            if key in node:
                yield node[key].removesuffix(".md")
        for key in ("parts", "chapters", "sections"):
            for child in node.get(key, ()):
                yield from walk(child)

    return list(walk(yaml.safe_load((book / "_toc.yml").read_text())))


def is_notebook(path: Path) -> bool:
    """Whether a page is a notebook, and not plain Markdown."""
    return re.match(r"---\n(.*\n)*?(jupytext:|file_format: mystnb)", path.read_text()) is not None


def read_notebook(path: Path) -> nbformat.NotebookNode | None:
    """The notebook that a page is, None when it is plain Markdown."""
    if not is_notebook(path):
        return None
    return read_myst_markdown_notebook(path.read_text(), path=path, add_source_map=True)


def imported_by(notebook: nbformat.NotebookNode) -> set[str]:
    """The packages that the cells import by name."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE))


def execute(notebook: nbformat.NotebookNode) -> tuple[float, str]:
    """Run every cell, in a folder of its own; return seconds, and what failed ("" when nothing did)."""
    start, current, failure = time.perf_counter(), 0, ""

    def note_cell(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index

    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w+") as log:
        client = NotebookClient(
            notebook,
            kernel_manager_class=ForkedKernelManager,
            kernel_name="python3",
            timeout=CELL_TIMEOUT,
            record_timing=False,  # it would change the metadata, by which results are found again
            resources={"metadata": {"path": folder}},
            on_cell_execute=note_cell,
        )
        try:
            client.execute(stderr=log)
        except CellExecutionError as error:
            failure = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without the terminal's colours
        except CellTimeoutError as error:
            failure = f"took longer than {CELL_TIMEOUT} s: {error}"
        except RuntimeError as error:
            log.seek(0)
            failure = f"the kernel died or did not start: {error}\n{log.read()}"

    if failure:
        line = notebook.metadata["source_map"][current] + 1
        number = sum(cell.cell_type == "code" for cell in notebook.cells[: current + 1])
        failure = f"line {line}, code cell {number}: {failure}"
    return time.perf_counter() - start, failure


def execute_chapters(book: Path, names: list[str], cache: JupyterCacheAbstract) -> int:
    """Run those chapters whose cells are not in the cache; return how many failed."""
    stale = {}
    for name in names:
        notebook = read_notebook(book / f"{name}.md")
        if notebook is None or not any(cell.cell_type == "code" for cell in notebook.cells):
            continue
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            stale[name] = notebook

    preload(name for notebook in stale.values() for name in imported_by(notebook))
    failures = 0
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = {pool.submit(execute, notebook): name for name, notebook in stale.items()}
        for done, run in enumerate(as_completed(runs), start=1):
            name, (seconds, failure) = runs[run], run.result()
            print(
                f"  [{done}/{len(runs)}] {name:<40} {seconds:6.1f} s",
                "  FAILED" if failure else "",
                flush=True,
            )
            if failure:
                failures += 1
                print(f"\n{name}.md, {failure}\n", file=sys.stderr, flush=True)
            else:
                bundle = CacheBundleIn(
                    stale[name], str(book / f"{name}.md"), data={"execution_seconds": seconds}
                )
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    stop()
    return failures


def write_pages(book: Path, output: Path, overrides: dict, strict: bool) -> bool:
    """Run Sphinx as Jupyter Book does; whether it succeeded."""
    from jupyter_book.sphinx import build_sphinx
    from sphinx.util.console import nocolor

    if not sys.stderr.isatty():
        nocolor()
    collect_seldom()
    status = build_sphinx(
        book,
        output,
        noconfig=True,  # there is no conf.py
        path_config=book / "_config.yml",
        confoverrides={
            "latex_individualpages": False,
            "external_toc_path": "_toc.yml",
            "sources_fingerprint": fingerprint(book, PAGES_DEPEND_ON),
            "solutions": os.environ.get("SOLUTIONS") != "0",
            "nitpicky": True,
            **overrides,
        },
        quiet=True,
        warningiserror=strict,
        keep_going=True,
    )
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the book.")
    parser.add_argument("--chapter", metavar="NAME", help="this chapter only, quickly")
    parser.add_argument(
        "--book", type=Path, default=Path(__file__).parents[1], help="folder with _config.yml"
    )
    arguments = parser.parse_args()
    book, start = arguments.book.resolve(), time.perf_counter()

    names = chapters(book)
    chosen = names
    if arguments.chapter is not None:
        chosen = [name for name in names if name.split("/")[-1] == arguments.chapter.split("/")[-1]]
        if not chosen:
            print(
                f"no chapter {arguments.chapter!r}; there are:",
                *(n.split("/")[-1] for n in names),
                file=sys.stderr,
            )
            return 2

    results = book / "_build" / "cells" / fingerprint(book, CELLS_DEPEND_ON)
    for outdated in results.parent.glob("*"):
        if outdated != results:
            shutil.rmtree(outdated)
    failures = execute_chapters(book, chosen, get_cache(results))
    if failures:
        print(f"{failures} chapter(s) failed; no page was written", file=sys.stderr)
        return 1

    overrides = {"nb_execution_cache_path": str(results)}
    output = book / "_build" / "html"
    if arguments.chapter is not None:
        overrides["nb_execution_excludepatterns"] = [f"{name}.md" for name in names if name not in chosen]
        overrides["suppress_warnings"] = ["myst.xref_missing"]  # labels in the outputs of the other pages
        output = book / "_build" / "chapter" / "html"
    if not write_pages(book, output, overrides, strict=arguments.chapter is None):
        # Sphinx reads again only what changed, and so would pass over the same warnings next time.
        shutil.rmtree(output.parent / ".doctrees", ignore_errors=True)
        print("the book has the defects above; _build/html is not to be trusted", file=sys.stderr)
        return 1

    page = output / (f"{chosen[0]}.html" if arguments.chapter else "index.html")
    print(f"{page.relative_to(book)} written in {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
