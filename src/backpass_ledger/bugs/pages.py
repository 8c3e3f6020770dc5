"""The bugs as Markdown, each with what was wrong, and which tool catches it where."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable

from backpass.text.markdown import Markdown, code, division, escaped, folded, table
from backpass_ledger.bugs import KINDS, Bug, every
from backpass_ledger.bugs.running import (
    LARGEST,
    LEVELS,
    elements,
    faults,
    recorded,
)

COLUMNS = (*LEVELS, "never")


def summary() -> Markdown:
    """Return how many bugs each tool catches, in three sentences."""
    bugs = every()
    check = Counter(bug.seen for bug in bugs if not bug.missed)
    gradcheck = Counter(bug.gradcheck for bug in bugs if bug.gradcheck != "never")
    both = Counter(map(caught_by, bugs))
    return Markdown(
        f"`check` catches {check.total()} of {len(bugs)} bugs: {check['usual']} at the "
        f"usual inputs, {check['varied']} more with `vary=True`, and "
        f"{check['telling']} only at the telling inputs. `gradcheck` catches "
        f"{gradcheck.total()}: {gradcheck['usual']} at the usual inputs and "
        f"{gradcheck['telling']} at the telling ones. {both['check alone']} bugs are "
        f"caught by `check` alone, {both['gradcheck alone']} by `gradcheck` alone, and "
        f"{both['neither']} by neither."
    )


def counts() -> Markdown:
    """Return a table with the number of bugs by kind, and by the first inputs at which
    each tool catches them."""
    check = [f"check: {level}" for level in COLUMNS]
    gradcheck = [f"grad&shy;check: {level}" for level in COLUMNS if level != "varied"]
    rows = [["kind", "bugs", *check, *gradcheck]]
    rows += [
        [f"[{kind}](#{_label('bugs', kind)})", *_numbers(bugs)]
        for kind, bugs in by_kind()
    ]
    rows.append(["all", *_numbers(every())])
    return table(rows, ":--" + "|--:" * (len(rows[0]) - 1))


def every_bug() -> Markdown:
    """Show every bug by kind, with the verdicts that the tests recorded.

    Raises RuntimeError that lists every bug whose stated facts those verdicts
    contradict.
    """
    if wrong := [fault for bug in every() for fault in faults(bug, recorded(bug))]:
        raise RuntimeError("\n".join(wrong))
    lines = [
        "<p><noscript>The filter needs JavaScript. Without it, every bug can be read."
        "</noscript></p>",
        "",
    ]
    for kind, bugs in by_kind():
        group = [f"({_label('bugs', kind)})=", "```{rubric} " + kind.capitalize()]
        group += [":heading-level: 3", "```", ""]
        for bug in bugs:
            group += shown(bug)
        lines += division(group, "claims-group")
    return Markdown("\n".join(lines))


def uncaught() -> Markdown:
    """Return a list of the bugs that neither tool catches, each with the reason."""
    return Markdown(
        "\n".join(
            f"- {_link(bug)}: {escaped(bug.wrong)} {_caught(bug)}"
            for bug in every()
            if caught_by(bug) == "neither"
        )
    )


def telling() -> Markdown:
    """Return a list of the inputs that show the bugs which neither the usual nor varied
    inputs show, each with its bug."""
    return Markdown(
        "\n".join(
            f"- {escaped(bug.telling_inputs)}: {_link(bug)}"
            for bug in every()
            if bug.seen == "telling" and not bug.missed
        )
    )


def shown(bug: Bug) -> list[str]:
    """Return a bug as lines of Markdown: its thread, what was wrong, what is right,
    which tool catches it where, what `check` says, and the twins' code, folded."""
    lines = [
        f"({_label('bug', bug.name)})=",
        f"**{_link(bug)}** · [{bug.thread}]({_url(bug)}) · "
        f'<span class="verdict">{_sign(bug)}</span>',
        "",
        escaped(bug.wrong),
        "",
        f"**Right:** {escaped(bug.right)}.",
        "",
        _caught(bug),
    ]
    if said := _said(bug):
        lines += ["", "What `check` says:", "", *said]
    if bug.alarmed:
        lines += ["", f"`check` fails the corrected twin, too: {escaped(bug.alarm)}."]
    lines += ["", *folded(f"The twins, in {_file(bug)}", code(source(bug)))]
    return division(
        lines,
        "claim",
        kind=bug.kind,
        caught_by=caught_by(bug),
        inputs=recorded(bug).seen or "none",
    )


def by_kind() -> list[tuple[str, list[Bug]]]:
    """Return the bugs of each kind that has any."""
    found = [(kind, [bug for bug in every() if bug.kind == kind]) for kind in KINDS]
    return [(kind, bugs) for kind, bugs in found if bugs]


def caught_by(bug: Bug) -> str:
    """Return which tools catch a bug at any of its inputs, in words."""
    return {
        (True, True): "check and gradcheck",
        (True, False): "check alone",
        (False, True): "gradcheck alone",
        (False, False): "neither",
    }[not bug.missed, bug.gradcheck != "never"]


def source(bug: Bug) -> str:
    """Return the code of the function that makes a bug's twins, without its record."""
    return inspect.getsource(bug.twins).partition("\n)\n")[2].rstrip()


def _caught(bug: Bug) -> str:
    given = [
        f"`{name}`" for name in ("operator", "conventions") if name in bug.keywords
    ]
    told = f" `check` is given {' and '.join(given)}." if given else ""
    if bug.missed:
        check = f"`check` does not see it: {escaped(bug.missed)}."
    elif bug.seen == bug.gradcheck:
        return f"`check` and `gradcheck` catch it {_where(bug, bug.seen)}.{told}"
    else:
        check = f"`check` catches it {_where(bug, bug.seen)}."
    return f"{check}{told} {_gradcheck(bug)}"


def _gradcheck(bug: Bug) -> str:
    if bug.gradcheck != "never":
        return f"`gradcheck` catches it {_where(bug, bug.gradcheck)}."
    levels: dict[tuple[bool, bool], list[str]] = {}
    for level, accepts in recorded(bug).verdicts.items():
        levels.setdefault(accepts, []).append(_where(bug, level))
    said = {
        (True, True): "accepts both twins",
        (False, False): "rejects both twins",
        (False, True): "accepts the wrong twin and rejects the corrected one",
    }
    each = [f"{said[accepts]} {' and '.join(at)}" for accepts, at in levels.items()]
    if bug.telling and (count := elements(bug, "telling")) > LARGEST:
        each.append(
            f"is not run {_where(bug, 'telling')}: "
            f"it would compare matrices of {count:,}² elements at most"
        )
    return f"`gradcheck` {', and '.join(each)}."


def _where(bug: Bug, level: str) -> str:
    return {
        "usual": "at the usual inputs",
        "varied": "with `vary=True`",
        "telling": f"with {escaped(bug.telling_inputs)}",
    }[level]


def _said(bug: Bug) -> list[str]:
    """Return a bug's diagnosis as a list, without the advice on how to search on. A
    quantity about which nothing is known but where it differs is listed only if it is
    the first."""
    found = recorded(bug).diagnosis
    named = [one for one in found[1:] if "no simple relation" not in one[1]]
    return [
        f"- {escaped(where)}: {escaped(what.partition('; diagnose(')[0])}"
        for where, what in (*found[:1], *named)
    ]


def _file(bug: Bug) -> str:
    """Return the file of a bug's twins, below the ledger's package."""
    return f"{bug.twins.__module__.partition('.')[2].replace('.', '/')}.py"


def _numbers(bugs: Iterable[Bug]) -> list[str]:
    bugs = list(bugs)
    check = Counter("never" if bug.missed else bug.seen for bug in bugs)
    gradcheck = Counter(bug.gradcheck for bug in bugs)
    numbers = [len(bugs), *(check[level] for level in COLUMNS)]
    numbers += [gradcheck[level] for level in COLUMNS if level != "varied"]
    return [str(number) if number else "" for number in numbers]


def _sign(bug: Bug) -> str:
    return f"{'✗' if caught_by(bug) == 'neither' else '✓'} {caught_by(bug)}"


def _link(bug: Bug) -> str:
    return f"[{bug.name.replace('_', ' ')}](#{_label('bug', bug.name)})"


def _label(prefix: str, name: str) -> str:
    return "-".join((prefix, *re.findall(r"\w+", name.replace("_", " "))))


def _url(bug: Bug) -> str:
    project, _, number = bug.thread.partition("#")
    return f"https://github.com/{project}/issues/{number}"
