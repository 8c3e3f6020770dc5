"""Ends each chapter with links to the claims of other texts that it settles."""

from __future__ import annotations

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from backpass_ledger.claims.evidence import VERDICTS
from backpass_ledger.claims.ledger import by_page


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
    return "\n".join(
        ["", "", ":::{admonition} Claims of other texts, judged by this page", *lines, ":::", ""]
    )


def add(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] += settled(page)


def read_again(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list[str]:
    """Return the pages whose box has changed since they were read."""
    known = getattr(env, "settled", {})
    env.settled = {page: settled(page) for page in env.found_docs}
    return [page for page, box in env.settled.items() if known.get(page) != box]


def setup(app: Sphinx) -> dict:
    app.connect("source-read", add)
    app.connect("env-get-outdated", read_again)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
