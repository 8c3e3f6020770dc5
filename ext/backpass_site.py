"""The site's own small parts: what makes pages new again, accessible, and independent of other sites."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlsplit

from backpass_folds import title_of
from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode, HideInputCells
from pybtex import plugin
from pygments.formatters import HtmlFormatter
from pygments.token import Name, Punctuation, Text, Whitespace
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.errors import ConfigError
from sphinx.highlighting import PygmentsBridge
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx_exercise.nodes import solution_node

THEIR_BOXES = re.compile(r'\["pre","\.nboutput > \.output_area"[^]]*\]')  # in the theme's script
# Tokens of code that have the text's colour in both styles.
PLAIN = {Name, Name.Namespace, Punctuation, Whitespace}


class Highlighted(HtmlFormatter):
    """Formats code with elements only for tokens that have their own colour."""

    def format(self, tokensource, outfile) -> None:
        super().format(((Text if kind in PLAIN else kind, value) for kind, value in tokensource), outfile)


def set_address(app: Sphinx, config: Config) -> None:
    """Take the address the site will have from SITE_URL, which only the 404 page and previews need, and the address of
    a repository on GitHub from REPOSITORY_URL."""
    site_url = os.environ.get("SITE_URL", "").rstrip("/")
    if site_url:
        config.html_baseurl = config.ogp_site_url = f"{site_url}/"
        config.ogp_image = f"{site_url}/_static/page.png"
        config.notfound_urls_prefix = f"{urlsplit(site_url).path}/"
    repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
    if repository and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", repository):
        raise ConfigError(
            f"REPOSITORY_URL: expected an address such as https://github.com/owner/name; got {repository!r}"
        )
    config.repository = repository


def read_again(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list[str]:
    """Return the pages whose key has changed, because they show something that changed elsewhere."""
    known, keys = getattr(env, "page_keys", {}), app.config.page_keys
    env.page_keys = keys
    return [name for name in env.found_docs if known.get(name) != keys.get(name)]


def drop_solutions(app: Sphinx, doctree: nodes.document) -> None:
    """Leave the solutions out, where SOLUTIONS=0 asks for it: those with cells in them too."""
    if not app.config.solutions:
        for node in list(doctree.findall(solution_node)):
            node.parent.remove(node)


class SourceBelowOutput(SphinxPostTransform):
    """Moves the folded source of a cell below what it shows. In the order of the text, rather than by a style, which would
    move the source while a page loads."""

    default_priority = HideInputCells.default_priority + 1
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        for cell in self.document.findall(nodes.container):
            if cell.get("nb_element") == "cell_code" and cell.get("hide_mode") == "input":
                cell.children.sort(key=lambda child: isinstance(child, HideCodeCellNode))


class TakeawaysFirst(SphinxPostTransform):
    """Repeats a page's takeaways after its first paragraph, for who reads no further."""

    default_priority = SourceBelowOutput.default_priority
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        page = self.document.next_node(nodes.section)
        found = (
            [each for each in page.findall(nodes.section) if title_of(each) == "Takeaways"] if page else []
        )
        if not found:
            return
        repeated = [each.deepcopy() for each in found[0].children if isinstance(each, nodes.bullet_list)]
        for each in (inner for outer in repeated for inner in outer.findall(nodes.Element)):
            each["ids"], each["names"] = [], []  # a link leads to the section
        first = next(at for at, each in enumerate(page.children) if isinstance(each, nodes.paragraph))
        page.insert(first + 1, Aside("", nodes.paragraph(text="In short"), *repeated, classes=["takeaways"]))


class Aside(nodes.General, nodes.Element):
    """What stands beside the text."""


def visit_aside(translator, node: Aside) -> None:
    translator.body.append(translator.starttag(node, "aside", **{"aria-label": "Takeaways"}))


def depart_aside(translator, node: Aside) -> None:
    translator.body.append("</aside>\n")


def spare_layouts(app: Sphinx, error: Exception | None) -> None:
    """Take from the theme's script the boxes that scroll, which `_static/backpass.js` makes reachable from the keyboard: the
    script measures and changes one after the other, and so has the browser lay out a page hundreds of times."""
    script = Path(app.outdir, "_static", "scripts", "pydata-sphinx-theme.js")
    if not error and script.exists():
        script.write_text(THEIR_BOXES.sub('[".none"]', script.read_text()))


def mend_citations(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Docutils calls citations a list whose items are not list items, which screen readers reject."""
    if "body" in context:
        context["body"] = (
            context["body"]
            .replace('<div role="list" class="citation-list">', '<div class="citation-list">')
            .replace(' role="doc-biblioentry"', "")
        )


DERIVATION = re.compile(r'<div class="derivation[ "][^>]*>\n')
STEPPER = """<div class="derivation-stepper pst-js-only">
<span>Point at a line to see what changed, or step:</span>
<button type="button" data-by="-1" aria-label="Previous step" aria-disabled="true">◀</button>
<button type="button" data-by="1" aria-label="Next step">▶</button>
<output></output>
</div>
"""


def announce_steps(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Put buttons above the page's first derivation that has two steps, else above the first that has one: they lead from
    step to step, and say that the lines of every derivation can be pointed at."""
    starts = [match.end() for match in DERIVATION.finditer(context.get("body", ""))]
    if not starts:
        return
    body = context["body"]
    steps = [
        body.count(" data-above=", start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
    for least in (2, 1):
        for start, found in zip(starts, steps, strict=True):
            if found >= least:
                context["body"] = body[:start] + STEPPER + body[start:]
                return


def add_buttons(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Offer the page's notebooks, where it has any, beside printing; and where a repository is known, to run it and to
    mend the page."""
    if doctree is None:
        return

    def button(text: str, url: str, icon: str, tooltip: str) -> None:
        context["header_buttons"].append(
            {
                "type": "link",
                "url": url,
                "icon": f"fas fa-{icon}",
                "text": text,
                "tooltip": tooltip,
                "label": text.lower() if icon == "download" else "repository",
            }
        )

    notebook = app.env.metadata.get(page, {}).get("backpass_notebook")
    if notebook:
        url = context["pathto"](f"_notebooks/{notebook}", resource=True)
        button("Notebook", url, "download", "Download this page as an executed Jupyter notebook")
    if exercises := app.env.metadata.get(page, {}).get("backpass_exercises"):
        url = context["pathto"](f"_notebooks/{exercises}", resource=True)
        button("Exercises", url, "download", "Download the same notebook without the solutions")
    for text, url, icon, tooltip in repository_links(app.config.repository, page, notebook):
        button(text, url, icon, tooltip)


def repository_links(repository: str, page: str, notebook: str | None) -> Iterator[tuple[str, str, str, str]]:
    """The text, address, icon and tooltip of each link from a page to its repository; none without one."""
    if not repository:
        return
    where = repository.removeprefix("https://github.com/")
    if notebook:
        colab = f"https://colab.research.google.com/github/{where}/blob/notebooks/{notebook}"
        yield "Colab", colab, "up-right-from-square", "Run this page's notebook on Google Colab"
        binder = f"https://mybinder.org/v2/gh/{where}/notebooks?urlpath=lab/tree/{notebook}"
        yield "Binder", binder, "up-right-from-square", "Run this page's notebook on Binder"
    yield "Edit", f"{repository}/edit/main/{page}.md", "pen", "Suggest a change of this page"
    title = quote(f"{page}: ")
    yield (
        "Issue",
        f"{repository}/issues/new?title={title}",
        "circle-exclamation",
        "Say what is wrong on this page",
    )


def allow_reading_in_parallel(app: Sphinx) -> None:
    """Vouch for two extensions that do not say it: one only writes LaTeX, and one numbers the pages when all are read."""
    for name in ("sphinx_jupyterbook_latex", "sphinx_multitoc_numbering"):
        if name in app.extensions:
            app.extensions[name].parallel_read_safe = True


def setup(app: Sphinx) -> dict:
    for unused in ("comments_config", "use_jupyterbook_latex"):  # set by Jupyter Book for parts we leave out
        app.add_config_value(unused, None, "")
    # The value is a hash of ext/ and of the versions. If it changes, every page is read again.
    app.add_config_value("sources_fingerprint", "", "env")
    app.add_config_value("page_keys", {}, "")  # for each page, a hash of what it shows besides its text
    app.add_config_value("solutions", True, "env")
    app.add_config_value("repository", "", "env")  # an address on GitHub, "" if none is known
    plugin.entry_points = cache(
        plugin.entry_points
    )  # otherwise each citation searches all installed packages
    PygmentsBridge.html_formatter = Highlighted
    app.add_node(Aside, html=(visit_aside, depart_aside))
    app.add_post_transform(SourceBelowOutput)
    app.add_post_transform(TakeawaysFirst)
    app.connect("config-inited", set_address)
    app.connect("builder-inited", allow_reading_in_parallel)
    app.connect("env-get-outdated", read_again)
    app.connect("doctree-read", drop_solutions, priority=100)  # before anything takes note of them
    app.connect("build-finished", spare_layouts)
    app.connect("html-page-context", mend_citations)
    app.connect("html-page-context", announce_steps)
    app.connect("html-page-context", add_buttons, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
