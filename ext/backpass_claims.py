"""Ends each chapter with links to the claims of other texts that it settles, and writes the scripts that the pages of
claims load: the code of a text's checks, and the index of all claims."""

from __future__ import annotations

import json
import re
from pathlib import Path

from backpass_mathematics import AnyTypesetter, typesetter_of
from pybtex.database import parse_file
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.highlighting import PygmentsBridge

from backpass_ledger.claims.evidence import VERDICTS
from backpass_ledger.claims.ledger import TEXTS, Text, by_page, every
from backpass_ledger.claims.pages import COSTLY
from backpass_ledger.claims.search import constants

INDEX = "chapters/claims/ledger"  # the page that shows the index
FORMULA = re.compile(r"\$([^$]+)\$")
CITATION = re.compile(r"\{cite:\w\}`(\w+)`")


def settled(page: str) -> str:
    """A box of links to a chapter's claims, by verdict; "" if it has none."""
    if not page.startswith("chapters/"):  # so that a book without chapters does not import all claims
        return ""
    claims = by_page().get(page.removeprefix("chapters/"), ())
    if not claims:
        return ""
    lines = []
    for verdict in VERDICTS:
        links = [f"[{claim.name}](#{claim.name.lower()})" for claim in claims if claim.verdict is verdict]
        if links:
            lines.append(f"- {verdict.sign} {verdict.words}: {', '.join(links)}")
    box = [":::{admonition} Claims of other texts, judged by this page", ":class: dropdown", *lines, ":::"]
    return "\n".join(["", "", *box, ""])


def add(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] += settled(page)


def read_again(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list[str]:
    """Return the pages whose box has changed since they were read."""
    known = getattr(env, "settled", {})
    env.settled = {page: settled(page) for page in env.found_docs}
    return [page for page, box in env.settled.items() if known.get(page) != box]


def checks(text: Text, highlighter: PygmentsBridge) -> dict[str, str]:
    """The code of a text's checks as HTML, by claim, with the tests that show it."""
    found = {}
    for claim in text.claims():
        if claim.code:
            tests = ", ".join(f"<code>{test}</code>" for test in claim.shown_by)
            code = highlighter.highlight_block(claim.code, "python")
            found[claim.name] = (
                f'<div class="highlight-python notranslate">{code}</div>'
                + f"<p>Tests: {tests}.</p>" * bool(tests)
            )
    return found


def index(titles: dict[str, str], bibliography: Path, typesetter: AnyTypesetter) -> dict:
    """What the site's index of claims shows and ranks. A claim names its part, verdict, topic and chapter by number."""
    claims = list(every())
    parts = [(text, part) for text in TEXTS for part in text.parts]
    of_claim = {claim.name: at for at, (text, part) in enumerate(parts) for claim in text.part(part)}
    topics = sorted({claim.topic for claim in claims}, key=str.lower)
    chapters = sorted({claim.page for claim in claims})
    cited = {key for claim in claims for key in CITATION.findall(claim.says + claim.truth)}
    return {
        "rank": constants(),
        "costly": COSTLY,
        "texts": [[text.name, text.stem, text.letter] for text in TEXTS],
        "parts": [[TEXTS.index(text), text.titles[part]] for text, part in parts],
        "verdicts": [[verdict.sign, verdict.words] for verdict in VERDICTS],
        "topics": topics,
        "chapters": [[f"../{each}.html", titles[f"chapters/{each}"]] for each in chapters],
        "cited": labels(cited, bibliography),
        "formulas": formulas(
            [text for claim in claims for text in (claim.where, claim.says, claim.truth)], typesetter
        ),
        "claims": [
            [
                *(claim.name, of_claim[claim.name], VERDICTS.index(claim.verdict), topics.index(claim.topic)),
                *(chapters.index(claim.page), claim.harm, claim.where, claim.says, claim.truth),
            ]
            for claim in claims
        ],
    }


def formulas(texts: list[str], typesetter: AnyTypesetter) -> dict[str, str]:
    """The MathML of each formula in the texts, by its LaTeX; without what cannot be typeset, of which the claim's own page
    complains."""
    found = [latex for text in texts for latex in FORMULA.findall(text)]
    known = typesetter.converted((latex.strip(), False) for latex in found)
    return {latex: known[latex.strip(), False][0] for latex in found}


def labels(keys: set[str], bibliography: Path) -> dict[str, str]:
    """The authors and the year of each work, as a citation shows them."""
    works, found = parse_file(str(bibliography)).entries if keys else {}, {}
    for key in sorted(keys):
        names = [" ".join(person.last_names) for person in works[key].persons["author"]]
        who = f"{names[0]} et al." if len(names) > 2 or names[-1] == "others" else " and ".join(names)
        found[key] = f"{who}, {works[key].fields['year']}"
    return found


def write_scripts(app: Sphinx, error: Exception | None) -> None:
    """Write the scripts beside the site's other scripts, for pages that are opened from disk cannot fetch."""
    if error or app.builder.name != "html" or INDEX not in app.env.found_docs:
        return
    folder = Path(app.outdir, "_static", "claims")
    folder.mkdir(parents=True, exist_ok=True)
    highlighter = PygmentsBridge("html", app.config.pygments_style)
    for text in TEXTS:
        write(folder / f"{text.stem}.js", "CHECKS", checks(text, highlighter))
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    write(
        folder / "index.js", "LEDGER", index(titles, Path(app.srcdir, "references.bib"), typesetter_of(app))
    )


def write(path: Path, name: str, value: dict) -> None:
    """Write a script that adds the value's entries to a global object."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(f"window.{name} = Object.assign(window.{name} || {{}}, {text});\n")


def add_index(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Load the index on its page alone."""
    if page == INDEX:
        app.add_js_file("claims/index.js", loading_method="defer")
        app.add_js_file("ledger.js", loading_method="defer")


def setup(app: Sphinx) -> dict:
    app.connect("source-read", add)
    app.connect("env-get-outdated", read_again)
    app.connect("html-page-context", add_index)
    app.connect("build-finished", write_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
