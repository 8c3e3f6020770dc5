"""The bugs as Markdown, each with what finds it."""

from __future__ import annotations

from backpass.claims.bug import KINDS, MISSED, TELLING, USUAL, Bug
from backpass.claims.bugs import bugs_of, every_bug
from backpass.claims.pages import Markdown, table

TOOLS = ("check", "gradcheck")
LEVELS = (USUAL, TELLING, MISSED)


def kind(name: str) -> Markdown:
    """Give the bugs of one kind to ``check`` and to gradcheck; show what they found.

    Raises RuntimeError that lists every bug whose record is wrong.
    """
    lines, faults = [], []
    for bug in bugs_of(name):
        try:
            found = bug.run(explain=True)
        except Exception as error:
            faults.append(f"{bug.name}: {type(error).__name__}: {error}")
            continue
        said = f" It says: {found.said}." if found.said else ""
        lines += [
            f'<div class="claim" data-verdict="{_caught(bug)}" data-topic="{bug.kind}">',
            "",
            f"**{bug.name.replace('_', ' ')}** · [{bug.thread}]({bug.address}) · "
            f'<span class="verdict">{_caught(bug)}</span>',
            "",
            bug.says,
            "",
            f"**The tests lacked:** {bug.lacked}",
            "",
            f"`check` catches it {bug.check}, gradcheck {bug.gradcheck}.{said}",
            "",
            "<details><summary>The bug and its mended twin</summary>",
            "",
            "```python",
            bug.code,
            "```",
            "",
            "</details>",
            "",
            "</div>",
            "",
        ]
    if faults:
        raise RuntimeError("\n".join(faults))
    return Markdown("\n".join(lines))


def counts() -> Markdown:
    """Return a table of how many bugs each tool catches, by kind."""
    rows = [
        ["kind", "bugs", *(f"{tool} {where}" for tool in TOOLS for where in LEVELS)]
    ]
    for kind in (*KINDS, "all"):
        chosen = [bug for bug in every_bug() if kind in (bug.kind, "all")]
        counts = (
            sum(getattr(bug, tool) == where for bug in chosen)
            for tool in TOOLS
            for where in LEVELS
        )
        rows.append([kind, str(len(chosen)), *map(str, counts)])
    return table(rows, aligned=":--" + "|--:" * (len(rows[0]) - 1))


def _caught(bug: Bug) -> str:
    tools = [tool for tool in TOOLS if getattr(bug, tool) != MISSED]
    return f"caught by {' and '.join(tools)}" if tools else "caught by neither"
