"""Read the recorded results of tests, for the pages that show them.

A page shows the recorded result of a long test instead of repeating the test. The
files are in ``assets/records``, with an entry for each operation, kernel, or bug;
``make records`` writes them. The tests compare each entry with their own result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1] / "assets" / "records"
# In a checkout, the folder that the tests write to. An installed package has a copy.
FOLDER = _CHECKOUT if _CHECKOUT.is_dir() else _PACKAGE / "findings_of_tests"


@dataclass(frozen=True)
class Findings:
    """The results of a test by operation, kernel, or bug, and the versions used."""

    versions: dict[str, str]
    entries: dict[str, Any]

    @property
    def provenance(self) -> str:
        """The versions, in one line."""
        return in_words(self.versions)


def in_words(versions: dict[str, str]) -> str:
    """Return the names and the versions, in one line."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def load(name: str, folder: Path = FOLDER) -> Findings:
    """Return the findings of that name. Raises FileNotFoundError if there are none."""
    return Findings(**json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))


def save(name: str, findings: Findings, folder: Path = FOLDER) -> None:
    """Write the findings, an entry a line."""
    lines = (
        f"    {json.dumps(key)}: {json.dumps(entry, ensure_ascii=False)}"
        for key, entry in sorted(findings.entries.items())
    )
    versions = json.dumps(findings.versions)
    text = f'{{\n  "versions": {versions},\n  "entries": {{\n' + ",\n".join(lines)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(f"{text}\n  }}\n}}\n", encoding="utf-8")
