"""Compare a test's result with the file that a page shows; see ``backpass.recorded.findings``.

With ``BACKPASS_RECORD=1`` (``make records``), one process writes the file first.
"""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backpass import kernels
from backpass.recorded import findings
from backpass.recorded.findings import Findings

RECORDS = os.environ.get("BACKPASS_RECORD") == "1"


def versions() -> dict[str, str]:
    """Return the versions on which a result may depend."""
    libraries = ["numpy", "torch", *(["triton"] if kernels.missing() is None else [])]
    return {"python": platform.python_version(), **{name: version(name) for name in libraries}}


def entry(name: str, key: str, found: Any) -> Any:
    """Return an entry of a file. If records are written, it is ``found``."""
    if RECORDS:
        entries = findings.load(name).entries if (findings.FOLDER / f"{name}.json").exists() else {}
        findings.save(name, Findings(versions(), entries | {key: found}))
    return findings.load(name).entries[key]


def holds(path: Path, text: str) -> bool:
    """Whether a file has this text. If records are written, the text is written to it first."""
    if RECORDS:
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8") == text
