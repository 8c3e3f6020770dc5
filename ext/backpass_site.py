"""The site's own small parts: what makes pages new again, accessible, and independent of other sites."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx_exercise.nodes import solution_node


def set_address(app: Sphinx, config: Config) -> None:
    """Take the address the site will have from SITE_URL, which only the 404 page and previews need."""
    site_url = os.environ.get("SITE_URL", "").rstrip("/")
    if site_url:
        config.html_baseurl = config.ogp_site_url = f"{site_url}/"
        config.notfound_urls_prefix = f"{urlsplit(site_url).path}/"


def drop_solutions(app: Sphinx, doctree: nodes.document) -> None:
    """Leave the solutions out, where SOLUTIONS=0 asks for it: those with cells in them too."""
    if not app.config.solutions:
        for node in list(doctree.findall(solution_node)):
            node.parent.remove(node)


def mend_citations(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Docutils calls citations a list whose items are no list items, which screen readers refuse."""
    if "body" in context:
        context["body"] = (
            context["body"]
            .replace('<div role="list" class="citation-list">', '<div class="citation-list">')
            .replace(' role="doc-biblioentry"', "")
        )


def add_buttons(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Offer the page's notebook, where it has one, beside printing."""
    if doctree is None:
        return
    notebook = app.env.metadata.get(page, {}).get("backpass_notebook")
    if notebook:
        context["header_buttons"].append(
            {
                "type": "link",
                "url": context["pathto"](f"_notebooks/{notebook}", resource=True),
                "icon": "fas fa-download",
                "text": "Notebook",
                "tooltip": "Download this page as an executed Jupyter notebook",
                "label": "notebook",
            }
        )


def setup(app: Sphinx) -> dict:
    for unused in ("comments_config", "use_jupyterbook_latex"):  # set by Jupyter Book for parts we leave out
        app.add_config_value(unused, None, "")
    # Its value is a hash of src/ and ext/: when they change, every page is read again.
    app.add_config_value("sources_fingerprint", "", "env")
    app.add_config_value("solutions", True, "env")
    app.set_html_assets_policy("always")  # mathematics may be in the outputs of cells alone
    app.connect("config-inited", set_address)
    app.connect("doctree-read", drop_solutions, priority=100)  # before anything takes note of them
    app.connect("html-page-context", mend_citations)
    app.connect("html-page-context", add_buttons, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
