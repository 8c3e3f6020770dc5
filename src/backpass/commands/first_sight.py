"""What ``backpass derive`` prints of lines that it reads without a declaration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from backpass.text import terminal

if TYPE_CHECKING:
    from backpass.derivation.text.contents import Document
    from backpass.derivation.text.sight.suggestion import Suggestion
    from backpass.derivation.text.verdict import Verdict

SHOWN = 6  # at most so many lines are named that rest on one inference


def inferred(document: Document, verdicts: list[Verdict], width: int) -> list[str]:
    """Return the lines that say what was inferred, and for which lines."""
    lines: dict[str, list[str]] = {}
    for verdict in verdicts:
        for words in verdict.inferred:
            places = lines.setdefault(words, [])
            if (place := document.place(verdict.line)) not in places:
                places.append(place)
    if not lines:
        return []
    found = ["", "* not declared, but inferred from the text:"]
    for words, places in lines.items():
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        noun = "line" if len(places) == 1 else "lines"
        text = f"{words} ({noun} {', '.join(places[:SHOWN])}{more})"
        first, *rest = terminal.folded(text, width - 4)
        found += [f"  {first}", *(f"  {line}" for line in rest)]
    return found


def waiting(verdicts: list[Verdict]) -> Iterator[str]:
    """Yield a line that says how many lines wait for a declaration, if any do."""
    unread = [v for v in verdicts if v.kind == "not readable" and v.display >= 0]
    waits = [verdict for verdict in unread if verdict.waits]
    if not waits:
        return
    names = {name for verdict in waits for name in verdict.waits}
    noun = "name" if len(names) == 1 else "names"
    verb = "needs" if len(waits) == 1 else "need"
    yield (
        f"{len(waits)} of {len(unread)} unread lines {verb} {len(names)} {noun}: "
        "--suggest prints a comment to start from"
    )


def suggested(suggestion: Suggestion, form: str) -> list[str]:
    """Return the comment to paste."""
    return suggestion.lines(form)


def remaining(
    document: Document, suggestion: Suggestion, verdicts: list[Verdict]
) -> Iterator[str]:
    """Yield what the comment leaves to the author."""
    yield from waiting(verdicts)
    if suggestion.wrong:
        places = dict.fromkeys(document.place(one.line) for one in suggestion.wrong)
        noun = "line" if len(places) == 1 else "lines"
        yield (
            f"with this comment, {noun} {', '.join(places)} would be wrong: check the "
            "declarations before you paste it"
        )
    if suggestion.missing:
        yield f"declare or define these yourself: {', '.join(suggestion.missing)}"
    elif not suggestion.directives:
        yield "nothing was inferred"
