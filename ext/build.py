"""Builds the book: executes the chapters side by side, then lets Jupyter Book write the pages.

    python ext/build.py                     the whole site, in _build/html; any warning fails it
    python ext/build.py --chapter softmax   one chapter, in _build/chapter/html; the others without outputs

The results of a chapter's cells are stored with a key: a hash of the files that the chapter imports and reads
(`dependencies`). So an edit of a module makes all chapters that import it, and no others, run again. A chapter that fails
is not stored, so it fails again.

The cells of a chapter are limited in CPU seconds, which depend little on how busy the machine is. A limit of wall time
ends only what hangs.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import source_from_cache
from pathlib import Path
from typing import NamedTuple

import nbformat
import psutil
import yaml
from dependencies import Dependencies
from forked_kernels import NOTES, ForkedKernelManager, collect_seldom, preload, stop
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn, JupyterCacheAbstract
from jupyter_cache.cache.db import NbCacheRecord
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from slowness import slowness_of_programs

WORKERS = int(os.environ.get("WORKERS", 2))
BUDGET = 12  # CPU seconds of a chapter's cells; the build marks a chapter above it
MOST_CPU = 25  # CPU seconds above which a chapter is killed, and fails; more on a slower machine
HANGS = 1800  # seconds after which a chapter that still runs is assumed to hang, even on a busy machine
PAGES_DEPEND_ON = ("ext/*.py", "ext/temml/*", "ext/fonts/*", "constraints.txt")  # for every page
SITE_DEPENDS_ON = (
    *PAGES_DEPEND_ON,
    *("_config.yml", "_toc.yml", "references.bib", "benchmarks/results/*"),
    *(f"{folder}/**/*" for folder in ("_static", "_templates", "assets", "src")),
)
SETTINGS = ("SOLUTIONS", "SITE_URL", "REPOSITORY_URL", "GITHUB_SHA")  # of the environment


def fingerprint(book: Path, patterns: tuple[str, ...], *also: str) -> str:
    """Return a hash of the files that match, and of the texts."""
    digest = hashlib.sha256("\0".join([sys.version, *also]).encode())
    for path in sorted(path for pattern in patterns for path in book.glob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(book)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def state(book: Path) -> str:
    """Return a hash of all that the site depends on."""
    pages = tuple(f"{name}.md" for name in chapters(book))
    return fingerprint(book, (*SITE_DEPENDS_ON, *pages), *(os.environ.get(name, "") for name in SETTINGS))


def is_current(book: Path) -> bool:
    """Whether the whole site was written without a warning, and nothing has changed since."""
    written = book / "_build" / "written"
    return written.exists() and written.read_text() == state(book)


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


def shows_docstrings(path: Path) -> bool:
    """Whether a page has the directive ``{api}``."""
    return "{api}" in path.read_text()


def imported_by(notebook: nbformat.NotebookNode) -> set[str]:
    """The packages that the cells import by name."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE))


def uses_too_much(seconds: float) -> bool:
    """Whether a page has used more CPU time than it may, on a machine as slow as this one is now."""
    return seconds > MOST_CPU and seconds > MOST_CPU * slowness_of_programs()


class Watch(threading.Thread):
    """Measures the CPU seconds of a kernel and its children, and kills them if they use too many or hang."""

    def __init__(self, client: NotebookClient):
        super().__init__(daemon=True)
        self.client, self.seconds, self.ended = client, 0.0, ""
        self._since, self._finished = time.monotonic(), threading.Event()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._finished.set()
        self.join()

    def run(self) -> None:
        while not self._finished.wait(1):
            self.measure()
            if uses_too_much(self.seconds):
                self.end(f"the page used more than {MOST_CPU} CPU-seconds")
            elif time.monotonic() - self._since > HANGS:
                self.end(
                    f"the page did not end in {HANGS // 60} minutes, with {self.seconds:.0f} CPU-seconds used"
                )

    def processes(self) -> list[psutil.Process]:
        provisioner = self.client.km and self.client.km.provisioner
        pid = getattr(provisioner, "pid", None)
        try:
            kernel = psutil.Process(pid) if pid else None
            return [kernel, *kernel.children(recursive=True)] if kernel else []
        except psutil.NoSuchProcess:
            return []

    def measure(self) -> None:
        """Update the CPU seconds of the kernel and its children, including those that have ended."""
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        self.seconds = max(self.seconds, total)

    def end(self, why: str) -> None:
        self.ended = why
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


class Run(NamedTuple):
    """The time that a page's execution took, and what failed ("" if nothing did)."""

    seconds: float
    cpu: float
    failure: str


def execute(chapter: Chapter, dependencies: Dependencies) -> Run:
    """Run every cell, in an empty folder of its own."""
    start, current, failure = time.perf_counter(), 0, ""
    notebook = chapter.notebook

    def note_cell(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own:
        notes = Path(own, "notes")
        client = NotebookClient(
            notebook,
            kernel_manager_class=ForkedKernelManager,
            kernel_name="python3",
            timeout=None,
            record_timing=False,  # it would change the metadata, by which stored results are looked up
            resources={"metadata": {"path": folder}},
            on_cell_execute=note_cell,
            on_cell_executed=lambda **_: watch.measure(),
        )
        with open(Path(own, "stderr"), "w+") as log, Watch(client) as watch:
            try:
                client.execute(stderr=log, env=os.environ | {NOTES: str(notes)})
            except CellExecutionError as error:
                failure = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without the terminal's colours
            except RuntimeError as error:
                log.seek(0)
                atexit.unregister(client._cleanup_kernel)  # the clean-up of a dead kernel would fail
                failure = watch.ended or f"the kernel died or did not start: {error}\n{log.read()}"
        # The last cell may have exceeded the limit after the watch's last check.
        if not failure and uses_too_much(watch.seconds):
            failure = f"the page used {watch.seconds:.1f} CPU-seconds, more than {MOST_CPU}"
        if not failure and notes.exists():
            failure = used_besides(notes.read_text(), chapter.depends_on, dependencies)

    if failure:
        line = notebook.metadata["source_map"][current] + 1
        number = sum(cell.cell_type == "code" for cell in notebook.cells[: current + 1])
        failure = f"line {line}, code cell {number}: {failure}"
    return Run(time.perf_counter() - start, watch.seconds, failure)


def used_besides(notes: str, depends_on: frozenset[Path], dependencies: Dependencies) -> str:
    """Return an error message if the cells used a file of the book that is not in ``depends_on``; else ""."""
    book, used = dependencies.book, set()
    for line in notes.splitlines():
        what = json.loads(line)
        if isinstance(what, list):
            if Path(what[0]).name.startswith("python"):
                used |= dependencies.started(what[1:])
            continue
        path = Path(what)
        if path.parent.name == "__pycache__" and path.suffix == ".pyc":
            path = Path(source_from_cache(what))
        if not path.is_relative_to(book) or path.is_relative_to(sys.prefix):
            continue
        top = path.relative_to(book).parts[0]
        if not top.startswith((".", "_build")) and "__pycache__" not in path.parts:
            used.add(path)
    unknown = sorted(str(path.relative_to(book)) for path in used - depends_on)
    if not unknown:
        return ""
    return (
        f"the cells use {', '.join(unknown[:5])}{', …' if unknown[5:] else ''}, on which the page is not known to depend "
        "(ext/dependencies.py); import the module, or name the file, in a cell"
    )


class Chapter(NamedTuple):
    """A chapter with cells: the files that their results depend on, and the key with which they are stored."""

    notebook: nbformat.NotebookNode
    depends_on: frozenset[Path]
    key: str

    def kept(self, cache: JupyterCacheAbstract) -> NbCacheRecord | None:
        """Return its stored results, None if there are none for these cells and this key."""
        try:
            record = cache.match_cache_notebook(self.notebook)
        except KeyError:
            return None
        return record if record.data.get("key") == self.key else None


def with_cells(book: Path, names: list[str], dependencies: Dependencies) -> dict[str, Chapter]:
    """Return the chapters that have cells."""
    found = {}
    for name in names:
        notebook = read_notebook(book / f"{name}.md")
        if notebook is not None and any(cell.cell_type == "code" for cell in notebook.cells):
            depends_on = dependencies.of(notebook)
            found[name] = Chapter(notebook, depends_on, dependencies.key(depends_on))
    return found


def forget_others(chapters: Iterable[Chapter], cache: JupyterCacheAbstract) -> None:
    """Remove all stored results except the current ones of these chapters."""
    current = {record.pk for chapter in chapters if (record := chapter.kept(cache))}
    for record in cache.list_cache_records():
        if record.pk not in current:
            cache.remove_cache(record.pk)


def execute_chapters(
    chapters: dict[str, Chapter], dependencies: Dependencies, cache: JupyterCacheAbstract
) -> int:
    """Run the chapters whose results are not in the cache; return how many failed."""
    stale = {name: chapter for name, chapter in chapters.items() if not chapter.kept(cache)}
    preload(name for chapter in stale.values() for name in imported_by(chapter.notebook))
    failures, cpu = 0, {}
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = {pool.submit(execute, chapter, dependencies): name for name, chapter in stale.items()}
        for done, finished in enumerate(as_completed(runs), start=1):
            name, run = runs[finished], finished.result()
            cpu[name] = run.cpu
            remark = "FAILED" if run.failure else f"above {BUDGET} CPU-s" if run.cpu > BUDGET else ""
            times = f"{run.seconds:6.1f} s {run.cpu:6.1f} CPU-s"
            print(f"  [{done}/{len(runs)}] {name:<40} {times}  {remark}".rstrip(), flush=True)
            if run.failure:
                failures += 1
                print(f"\n{name}.md, {run.failure}\n", file=sys.stderr, flush=True)
            else:
                data = {"key": stale[name].key, "cpu_seconds": run.cpu}
                bundle = CacheBundleIn(stale[name].notebook, f"{name}.md", data=data)
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    stop()
    if stale:
        print(f"  {len(stale)} chapters took {sum(cpu.values()):.0f} CPU-s", flush=True)
    if record := os.environ.get("BACKPASS_WEIGHT"):  # for benchmarks/weight.py
        Path(record).write_text(json.dumps({"families": cpu}))
    return failures


def write_pages(book: Path, output: Path, keys: dict[str, str], overrides: dict, strict: bool) -> bool:
    """Run Sphinx as Jupyter Book does; return whether it succeeded.

    A page is read again if its text or its key has changed.
    """
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
            "page_keys": keys,
            "solutions": os.environ.get("SOLUTIONS") != "0",
            "nitpicky": True,
            **overrides,
        },
        quiet=True,
        warningiserror=strict,
        keep_going=True,
        jobs=WORKERS,
    )
    return status == 0


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the children that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


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

    written = book / "_build" / "written"
    now = state(book)
    if arguments.chapter is None:
        if is_current(book):
            print("_build/html is up to date")
            return 0
        written.unlink(missing_ok=True)

    results = book / "_build" / "cells"
    cache, dependencies = get_cache(results), Dependencies(book)
    with_results = with_cells(book, chosen, dependencies)
    if arguments.chapter is None:
        forget_others(with_results.values(), cache)
    failures = execute_chapters(with_results, dependencies, cache)
    if failures:
        print(f"{failures} chapter(s) failed; no page was written", file=sys.stderr)
        return 1

    overrides = {"nb_execution_cache_path": str(results)}
    output = book / "_build" / "html"
    if arguments.chapter is not None:
        overrides["nb_execution_excludepatterns"] = [f"{name}.md" for name in names if name not in chosen]
        overrides["suppress_warnings"] = ["myst.xref_missing"]  # labels in the outputs of the other pages
        output = book / "_build" / "chapter" / "html"
    keys = {name: chapter.key for name, chapter in with_results.items()}
    keys |= {
        name: fingerprint(book, ("src/**/*.py",)) for name in chosen if shows_docstrings(book / f"{name}.md")
    }
    if not write_pages(book, output, keys, overrides, strict=arguments.chapter is None):
        # Sphinx reads again only what changed, and so would pass over the same warnings next time.
        shutil.rmtree(output.parent / ".doctrees", ignore_errors=True)
        print("the book has the defects above; _build/html is not to be trusted", file=sys.stderr)
        return 1
    if arguments.chapter is None:
        written.write_text(now)

    page = output / (f"{chosen[0]}.html" if arguments.chapter else "index.html")
    print(
        f"{page.relative_to(book)} written in {time.perf_counter() - start:.0f} s and {cpu_seconds():.0f} CPU-s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
