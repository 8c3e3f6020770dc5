"""Converts the book's formulas from LaTeX to typst, all of them with one call of pandoc."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence

from paper import PaperError

DELIMITED = re.compile(r"^\\[(\[](?P<inside>.*)\\[)\]]$", re.DOTALL)
CLASS = re.compile(r"\\class\{[\w-]+\}")  # a mark for the site's scripts; the group after it stays
SIZE = r"\\[bB]igg?[lrm]?(?![a-zA-Z])\s*"
OPENING, CLOSING = (
    rf"{SIZE}(?P<opening>\(|\[|\\\{{|\\langle)",
    rf"{SIZE}(?P<closing>\)|\]|\\\}}|\\rangle)",
)
# What pandoc 3.9 writes, and what typst 0.15 calls it.
RENAMED = {"dot.circle": "dot.o", "times.circle": "times.o", "plus.circle": "plus.o"}
RENAMED["parallel"] = "bar.v.double"  # a norm's bars are not a relation
# A name in upright letters is an operator; typst sets a string with the spaces around it.
NAME = re.compile(r"\\mathrm\s*\{(?P<name>[a-zA-Z]{2,})\}")
STRING = re.compile(
    r'(?P<font>(?:upright|bold|italic|cal|bb|frak|mono|sans|serif)\(|delim: )?(?P<string>"[^"]*")'
)
COULD_NOT = re.compile(r"Could not convert TeX math (?P<latex>.*?), rendering as TeX", re.DOTALL)


def plain(latex: str) -> str:
    r"""The formula without `\(…\)`, and without what only a browser understands."""
    latex = latex.strip()
    if match := DELIMITED.match(latex):
        latex = match["inside"]
    return CLASS.sub("", latex).strip()


def prepared(latex: str) -> str:
    r"""The formula with `\Big(…\Big)` as `\left(…\right)`, for which typst finds the size.

    A size without its partner in the same group is dropped.
    """
    latex = NAME.sub(r"\\operatorname{\g<name>}", latex)
    sizes = list(re.finditer(f"{OPENING}|{CLOSING}|{SIZE}|(?<!\\\\)[{{}}]", latex))
    groups: list[list[re.Match]] = [[]]
    words = {}  # what replaces a match, by where it begins
    for match in sizes:
        if match[0] == "{":
            groups.append([])
        elif match[0] == "}":
            groups[len(groups) > 1 and -1].clear()
            if len(groups) > 1:
                groups.pop()
        elif match["opening"]:
            groups[-1].append(match)
        elif match["closing"] and groups[-1]:
            opening = groups[-1].pop()
            words[opening.start()] = rf"\left{opening['opening']}"
            words[match.start()] = rf"\right{match['closing']}"
    for match in reversed(sizes):
        if match[0] not in "{}":
            alone = (match["opening"] or match["closing"] or "") + " "
            latex = latex[: match.start()] + words.get(match.start(), alone) + latex[match.end() :]
    return latex


def mended(typst: str) -> str:
    """Pandoc's typst with the names that typst has now, and with operators as operators."""
    for old, new in RENAMED.items():
        typst = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, typst)
    return STRING.sub(lambda match: match[0] if match["font"] else f"op({match['string']})", typst)


def converted(formulas: Sequence[str], pandoc: str) -> list[str]:
    """The formulas in typst's markup for mathematics, without the dollar signs.

    Raises PaperError with each formula that pandoc leaves as it was.
    """
    blocks = [
        {"t": "Para", "c": [{"t": "Math", "c": [{"t": "InlineMath"}, prepared(latex)]}]} for latex in formulas
    ]
    document = {"pandoc-api-version": [1, 23, 1], "meta": {}, "blocks": blocks}
    run = subprocess.run(
        [pandoc, "--from=json", "--to=typst", "--wrap=none"],
        input=json.dumps(document),
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise PaperError(f"pandoc: {run.stderr.strip()}")
    if failed := COULD_NOT.findall(run.stderr):
        raise PaperError("pandoc cannot convert " + "; ".join(failed))
    found = [piece.strip() for piece in run.stdout.strip("\n").split("\n\n")] if formulas else []
    if len(found) != len(formulas):
        raise PaperError(f"pandoc returned {len(found)} formulas of {len(formulas)}")
    return [mended(piece.removeprefix("$").removesuffix("$").strip()) for piece in found]
