"""Says on each page where it is in the book, and folds the parts of the table of contents, except the page's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

import yaml
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

READING = "chapters/foundations/how_to_read"  # has a table of what each page takes and needs
ROW = re.compile(
    r"^\| \[[^\]]+\]\((?P<page>[\w./]+)\.md\) \| (?P<minutes>\d+) \| (?P<needs>.+?) \|$", re.MULTILINE
)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


class Place(NamedTuple):
    """Where a page is: the part, its first page, which page of it this is, and of how many."""

    part: str
    first: str
    number: int
    pages: int
    reading: str = ""  # what reading it takes, and needs


def places(book: Path) -> Iterator[tuple[str, Place]]:
    """Each page that is in a part of the table of contents."""
    toc = yaml.safe_load((book / "_toc.yml").read_text())
    reading = dict(reading_times(book))
    for part in toc.get("parts", ()):
        names = [chapter["file"].removesuffix(".md") for chapter in part["chapters"]]
        for number, name in enumerate(names, start=1):
            if "caption" in part:
                place = Place(part["caption"], names[0], number, len(names), reading.get(name, ""))
                yield name, place


def reading_times(book: Path) -> Iterator[tuple[str, str]]:
    path = book / f"{READING}.md"
    for row in ROW.finditer(path.read_text() if path.exists() else ""):
        page = (path.parent / f"{row['page']}.md").resolve().relative_to(book.resolve())
        needs = LINK.sub(r"\1", row["needs"])
        yield page.with_suffix("").as_posix(), f"{row['minutes']} minutes · needs: {needs}"


def find_places(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Write again the pages whose place has changed."""
    before, env.places = getattr(env, "places", {}), dict(places(Path(app.srcdir)))
    return [name for name in env.found_docs if before.get(name) != env.places.get(name)]


def say_where(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Below a page's title: its part, and what reading it takes and needs."""
    place = getattr(app.env, "places", {}).get(page)
    if not place or "body" not in context:
        return
    part = escape(place.part)
    if page != place.first:
        part = f'<a href="{context["pathto"](place.first)}">{part}</a>'
    said = " · ".join(filter(None, (f"{part}, page {place.number} of {place.pages}", escape(place.reading))))
    context["body"] = context["body"].replace("</h1>", f'</h1>\n<p class="bp-where">{said}</p>', 1)


def fold_parts(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Wrap what the theme writes in its sidebar."""
    theirs = context.get("generate_toctree_html")

    def ours(kind: str, **options: object) -> object:
        written = theirs(kind=kind, **options)
        return folded(str(written)) if kind == "sidebar" else written

    if theirs:
        context["generate_toctree_html"] = ours


def folded(contents: str) -> str:
    """The table of contents with each part in a box that opens, the part of the current page open."""
    soup = BeautifulSoup(contents, "html.parser")
    for caption in soup.select("p.caption"):
        pages = caption.find_next_sibling("ul")
        box, summary = soup.new_tag("details", attrs={"class": "bp-part"}), soup.new_tag("summary")
        if pages.select_one(".current"):
            box["open"] = ""
        summary.string = caption.get_text()
        caption.replace_with(box)
        box.extend([summary, pages])
    return str(soup)


def setup(app: Sphinx) -> dict:
    app.connect("env-updated", find_places)
    app.connect("html-page-context", say_where)
    app.connect("html-page-context", fold_parts, priority=900)  # after the theme has defined what it calls
    return {"parallel_read_safe": True, "parallel_write_safe": True}
