"""The claims as Markdown, each with its verdict and the check that ran."""

from __future__ import annotations

from collections import Counter

from backpass.text.markdown import Markdown, code, division, folded, table
from backpass_ledger.claims.evidence import VERDICTS, Verdict
from backpass_ledger.claims.ledger import TEXTS, every, text, text_of
from backpass_ledger.claims.record import Claim


def part(stem: str, name: str) -> Markdown:
    """Run the checks of one part of a text and show its claims.

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
    return Markdown("\n".join(map(shown, claims)))


def shown(claim: Claim) -> str:
    """Return a claim as Markdown: number, place and verdict; what it says and what is
    right; the chapter with the derivation; the code of its check, folded."""
    lines = [
        f"({claim.name.lower()})=",
        f"**{_link(claim)}** · {claim.where} · {_verdict(claim)} · [](../{claim.page}.md)",
        "",
        claim.says,
    ]
    if claim.truth:
        lines += ["", f"**Right:** {claim.truth}"]
    if claim.code:
        tests = ", ".join(f"`{test}`" for test in claim.shown_by)
        more = ["", f"Tests: {tests}."] if tests else []
        lines += ["", *folded("The check", [*code(claim.code), *more])]
    return "\n".join(_framed(claim, lines))


def counts() -> Markdown:
    """Return a table with the number of claims by text and verdict."""
    rows = [["text", *(verdict.key.replace("-", " ") for verdict in VERDICTS), "all"]]
    total: Counter[Verdict] = Counter()
    for found in TEXTS:
        count = Counter(claim.verdict for claim in found.claims())
        total += count
        rows.append([f"[{found.name}](../claims/{found.stem}.md)", *_numbers(count)])
    rows.append(["all", *_numbers(total)])
    return table(rows, aligned=":--" + "|--:" * (len(VERDICTS) + 1))


def worst(number: int = 10) -> Markdown:
    """Return a list of the claims that cost a reader most, at most three of a text,
    each with what is right."""
    of_texts = (sorted(found.claims(), key=_harm)[:3] for found in TEXTS)
    claims = sorted((claim for three in of_texts for claim in three), key=_harm)[
        :number
    ]
    return Markdown(
        "\n".join(
            f"1. {_link(claim)}, {_text(claim)}: {claim.says} **Right:** {claim.truth}"
            for claim in claims
        )
    )


def every_claim() -> Markdown:
    """Return a list of all claims, which a script of the site filters."""
    lines = []
    for claim in every():
        line = f"{_link(claim)} · {_verdict(claim)} · {claim.says}"
        lines += _framed(claim, [line])
    return Markdown("\n".join(lines))


def sign(verdict: Verdict) -> str:
    """Return a verdict as a page shows it."""
    return f"{verdict.sign} {verdict.words}"


def _verdict(claim: Claim) -> str:
    return f'<span class="verdict">{sign(claim.verdict)}</span>'


def _link(claim: Claim) -> str:
    return f"[{claim.name}](#{claim.name.lower()})"


def _harm(claim: Claim) -> int:
    return -claim.harm


def _text(claim: Claim) -> str:
    return text_of(claim).name


def _framed(claim: Claim, lines: list[str]) -> list[str]:
    kinds = {"text": _text(claim), "verdict": claim.verdict.words, "topic": claim.topic}
    return division(lines, "claim", **kinds)


def _numbers(count: Counter[Verdict]) -> list[str]:
    return [*(str(count[verdict]) for verdict in VERDICTS), str(count.total())]
