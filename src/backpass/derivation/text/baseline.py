"""Compare verdicts with those of an earlier run, which a file records.

A line is known by what it says: a hash of the two sides of its equation without spaces.
So a line that moves stays known, and a line that is edited is a new one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from backpass.derivation.text.verdict import Verdict

VERSION = 1
_WAYS = {
    "equal": "judged",
    "definition": "judged",
    "refused": "wrong",
    "ill-formed": "wrong",
    "follows": "wrong",
}
Record = dict[str, dict[str, dict[str, int]]]  # files, lines, and counts of verdicts


class Change(NamedTuple):
    """A line that is worse than it was: "wrong", or "not judged"."""

    name: str
    way: str
    verdict: Verdict


def key_of(verdict: Verdict) -> str:
    """Return what a line is known by."""
    text = "".join(f"{verdict.left}={verdict.latex}".split())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recorded(verdicts: list[Verdict]) -> dict[str, dict[str, int]]:
    """Return how many times each line is judged and wrong."""
    found: dict[str, dict[str, int]] = {}
    for verdict in verdicts:
        if verdict.display >= 0 and (way := _WAYS.get(verdict.kind)):
            counts = found.setdefault(key_of(verdict), {})
            counts[way] = counts.get(way, 0) + 1
    return dict(sorted(found.items()))


def written(files: Record) -> str:
    """Return the text of a baseline."""
    return json.dumps({"version": VERSION, "files": files}, indent=1) + "\n"


def read(text: str) -> Record:
    """Return what a baseline records. Raises `ValueError` if it is not one."""
    try:
        facts: Any = json.loads(text)
        version, files = facts["version"], facts["files"]
        assert all(isinstance(lines, dict) for lines in files.values())
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError):
        raise ValueError("expected a baseline that this command has written") from None
    if version != VERSION:
        raise ValueError(f"expected a baseline of version {VERSION}; got {version}")
    return dict(files)


def changes(
    name: str, verdicts: list[Verdict], before: dict[str, dict[str, int]]
) -> Iterator[Change]:
    """Yield the lines that are wrong and were not, and those that were judged and are
    not any more."""
    here: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.display >= 0:
            here.setdefault(key_of(verdict), []).append(verdict)
    for key, found in here.items():
        was = Counter(before.get(key, {}))
        wrong = [one for one in found if _WAYS.get(one.kind) == "wrong"]
        unread = [one for one in found if one.kind == "not readable"]
        for one in wrong[was["wrong"] :]:
            yield Change(name, "wrong", one)
        lost = min(was["judged"] + was["wrong"], len(found)) - (
            len(found) - len(unread)
        )
        for one in unread[: max(lost, 0)]:
            yield Change(name, "not judged", one)
