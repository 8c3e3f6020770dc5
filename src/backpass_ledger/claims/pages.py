"""The claims as Markdown, each with its verdict, after their checks ran."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backpass.text import table as tables
from backpass.text.markdown import Markdown, division, table
from backpass_ledger.claims.evidence import CAVEAT, TRUE, UNCHECKABLE, VERDICTS, Verdict
from backpass_ledger.claims.ledger import TEXTS, text, text_of
from backpass_ledger.claims.record import Claim

COSTLY = 3  # the harm from which a reader has to change something
MOST = 15  # costly claims that a page shows first
_SECTION = re.compile(r"§\d+(?:\.\d+)*")
_NUMBERS = 'style="text-align: right"'
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def part(stem: str, name: str) -> Markdown:
    """Run the checks of one part of a text and show its claims, folded.

    Raises RuntimeError that lists every claim whose check does not support its verdict.
    """
    claims = text(stem).part(name)
    faults = []
    for claim in claims:
        try:
            claim.run()
        except Exception as error:
            faults.append(f"{claim.name}: {type(error).__name__}: {error}")
    if faults:
        raise RuntimeError("\n".join(faults))
    file = (
        f"The checks of these records: `{stem}/{name}.py` in `backpass_ledger/claims`."
    )
    inside = [*(line for claim in claims for line in shown(claim)), file]
    return Markdown(
        "\n".join(
            [
                f'<details class="claims-section" data-checks="{stem}">'
                f"<summary>{summary(claims)}</summary>",
                "",
                *inside,
                "",
                "</details>",
            ]
        )
    )


def summary(claims: Sequence[Claim]) -> str:
    """Return where in their text the claims are, if its sections are numbered, how many
    they are, and how many have each verdict."""
    count = Counter(claim.verdict for claim in claims)
    verdicts = ", ".join(f"{count[v]} {v.words}" for v in VERDICTS if count[v])
    records = "1 record" if len(claims) == 1 else f"{len(claims)} records"
    return f"{_sections(claims)}{records}: {verdicts}"


def _sections(claims: Iterable[Claim]) -> str:
    """Return the first and the last of the numbered sections at which claims begin."""
    found = [m[0] for claim in claims if (m := _SECTION.match(claim.where))]
    if not found:
        return ""
    ordered = sorted(found, key=lambda at: [*map(int, at[1:].split("."))])
    first, last = ordered[0], ordered[-1]
    return f"{first} · " if first == last else f"{first} to {last} · "


def shown(claim: Claim) -> list[str]:
    """Return a claim as lines of Markdown: number, place, and verdict; the chapter with
    the derivation; what the text claims, and what is right. A script of the site adds
    the code of the check."""
    lines = [
        f"({claim.name.lower()})=",
        f"**{_link(claim)}** · {claim.where} · {_verdict(claim)} · [](../{claim.page}.md)",
        "",
        claim.says,
    ]
    if claim.truth:
        lines += ["", f"**Right:** {claim.truth}"]
    return division(lines, "claim", verdict=claim.verdict.words, topic=claim.topic)


def counts() -> Markdown:
    """Return a table with the number of claims by text and verdict."""
    headings = [verdict.key.replace("-", " ") for verdict in VERDICTS]
    rows = [["text", *headings, "all"]]
    total: Counter[Verdict] = Counter()
    for found in TEXTS:
        count = Counter(claim.verdict for claim in found.claims())
        total += count
        rows.append([f"[{found.name}](../claims/{found.stem}.md)", *_numbers(count)])
    rows.append(["all", *_numbers(total)])
    return table(rows, aligned=":--" + "|--:" * (len(VERDICTS) + 1))


def costly(stem: str) -> Markdown:
    """Return the claims of a text that cost a reader most, each with what is right,
    after sentences that say how many claims there are, and which of them it shows."""
    every = text(stem).claims()
    found = sorted((claim for claim in every if claim.harm >= COSTLY), key=_harm)
    first = found[:MOST]
    true = sum(claim.verdict is TRUE for claim in every)
    which = (
        f"The {len(first)} with the greatest harm come first; of equal ones, those that "
        "are earlier in the text. All"
        if found[MOST:]
        else "They come first. All"
    )
    lines = [
        f"Of the {len(every)} records, {true} are true without a caveat. "
        f"{len(found)} have a harm of {COSTLY} or more, by our own estimate on a scale "
        "from 0 to 10: a reader who relies on such a claim or list has to change "
        f"something. {which} records follow below, by section.",
        "",
        "<p><noscript>The filters and the code of the checks need JavaScript. Without "
        "it, every record can be read, and the checks are in "
        f"<code>backpass_ledger/claims/{stem}</code>.</noscript></p>",
        "",
    ]
    return Markdown("\n".join([*lines, *map(_costly, first)]))


def _costly(claim: Claim) -> str:
    """Return a claim as an item of a list."""
    head = f"**{_link(claim)}** · {claim.where} · {_verdict(claim)}"
    paragraphs = [head, claim.says]
    if claim.truth:
        paragraphs.append(f"**Right:** {claim.truth}")
    joined = "\n\n".join(paragraphs)
    return f"1. {joined}\n".replace("\n\n", "\n\n   ")


def worst(number: int = 10) -> Markdown:
    """Return a list of the claims that cost a reader most, at most three of a text,
    each with what is right."""
    of_texts = (sorted(found.claims(), key=_harm)[:3] for found in TEXTS)
    claims = sorted((claim for three in of_texts for claim in three), key=_harm)[
        :number
    ]
    return Markdown(
        "\n".join(
            f"1. {_link(claim)}, {text_of(claim).name}: {claim.says} "
            f"**Right:** {claim.truth}"
            for claim in claims
        )
    )


class Figure(NamedTuple):
    """A figure that a text prints, the right one, and whether the first is wrong."""

    printed: str
    right: str
    wrong: bool


def figure(
    printed: str, right: float, *, shown: int = 0, to: int | None = None
) -> Figure:
    """Compare a printed figure with the right number, which a page shows with ``shown``
    decimals.

    The printed figure is right if the number rounds to it: to ``to`` decimals, by
    default as many as it has.
    """
    match = _NUMBER.search(printed)
    if match is None:
        raise ValueError(f"printed: expected a figure with a number; got {printed!r}")
    digits = match[0].replace(",", "")
    decimals = len(digits.partition(".")[2]) if to is None else to
    return Figure(
        printed, f"{right:,.{shown}f}", round(right, decimals) != float(digits)
    )


def corrected(
    stem: str,
    caption: str,
    headings: Sequence[str],
    rows: Iterable[tuple[str, Sequence[Figure], str]],
) -> str:
    """Return a table of a text with the right figure beside each printed one.

    A row has a name, a figure for each heading, and the places of the claims that judge
    it, separated by semicolons. The right figure is bold where the printed one is
    wrong. Raises ValueError if a place has no claim, or if a figure is wrong and all
    claims at its places are true.
    """
    columns = ("printed", "right")
    lines: list[list[str | tables.Cell]] = []
    for name, row, places in rows:
        claims = at(stem, *places.split("; "))
        wrong = any(each.wrong for each in row)
        if wrong and all(claim.verdict is TRUE for claim in claims):
            raise ValueError(f"{name}: a figure is wrong where all claims are true")
        line: list[str | tables.Cell] = [name]
        for each in row:
            right = f"<strong>{each.right}</strong>" if each.wrong else each.right
            line += [tables.Cell(html.escape(each.printed), _NUMBERS)]
            line += [tables.Cell(right, _NUMBERS)]
        lines.append([*line, tables.Cell(" ".join(map(_anchor, claims)))])
    names: list[str | tables.Cell] = [""]
    for heading in headings:
        names += [tables.Cell(f"{heading}, {which}", _NUMBERS) for which in columns]
    names.append("records")
    return tables.page(names, lines, caption=caption)


def at(stem: str, *places: str) -> list[Claim]:
    """Return the claims of a text at places, or at places below them. Raises ValueError
    for a place without a claim."""
    found = []
    for place in places:
        claims = [
            c for c in text(stem).claims() if f"{c.where},".startswith(f"{place},")
        ]
        if not claims:
            raise ValueError(f"place: expected a place of {stem}; got {place!r}")
        found += claims
    return found


def _anchor(claim: Claim) -> str:
    return f'<a href="#{claim.name.lower()}">{claim.name}</a>'


def index() -> Markdown:
    """Return the place where a script of the site shows the index of all claims."""
    links = ", ".join(f"[{t.name}](../claims/{t.stem}.md)" for t in TEXTS)
    return Markdown(
        '<div id="ledger-index">\n\n'
        "The index needs JavaScript. Without it, every record is on the page of its "
        f"text: {links}.\n\n</div>"
    )


def sign(verdict: Verdict) -> str:
    """Return a verdict as a page shows it."""
    return f"{verdict.sign} {verdict.words}"


def _verdict(claim: Claim) -> str:
    wrong = "" if claim.verdict in (TRUE, CAVEAT, UNCHECKABLE) else " wrong"
    return f'<span class="verdict{wrong}">{sign(claim.verdict)}</span>'


def _link(claim: Claim) -> str:
    return f"[{claim.name}](#{claim.name.lower()})"


def _harm(claim: Claim) -> int:
    return -claim.harm


def _numbers(count: Counter[Verdict]) -> list[str]:
    return [*(str(count[verdict]) for verdict in VERDICTS), str(count.total())]
