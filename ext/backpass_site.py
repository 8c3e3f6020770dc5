"""The site's own small parts: what makes pages new again, accessible, and independent of other sites."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from sphinx.application import Sphinx
from sphinx.config import Config


def set_address(app: Sphinx, config: Config) -> None:
    """Take the address the site will have from SITE_URL, which only the 404 page and previews need."""
    site_url = os.environ.get("SITE_URL", "").rstrip("/")
    if site_url:
        config.html_baseurl = config.ogp_site_url = f"{site_url}/"
        config.notfound_urls_prefix = f"{urlsplit(site_url).path}/"


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
    app.connect("config-inited", set_address)
    app.connect("html-page-context", mend_citations)
    app.connect("html-page-context", add_buttons, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
