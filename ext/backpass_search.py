"""Gives the search page the words that each page names in its header, by which readers look for it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

HEADER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)


def words(path: Path) -> list[str]:
    """The list ``search`` of a page's header, without which it is found by its text alone."""
    header = HEADER.match(path.read_text())
    found = (yaml.safe_load(header[1]) or {}).get("search", []) if header else []
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ExtensionError(f"{path}: search: expected a list of words; got {found!r}")
    return found


def add_words(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """In the order of the book, so that of equals the first is found first."""
    if page == "search":
        toc = app.env.toctree_includes
        root = app.config.root_doc
        order = [root, *toc.get(root, ())]
        context["page_words"] = {name: words(Path(app.env.doc2path(name))) for name in order}


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", add_words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
