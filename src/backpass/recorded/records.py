"""Show recorded measurements: what was timed, on which machine, when, at which commit.

The scripts in ``benchmarks/`` write the records, one JSON file for each question and
device. Chapters read records instead of timing anything, because pages are executed
side by side and would disturb each other's times.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from backpass.recorded import code
from backpass.recorded.findings import in_words
from backpass.text import table

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1] / "benchmarks" / "results"
# In a checkout, the folder that the benchmarks write to. An installed package has a
# copy.
RESULTS = _CHECKOUT if _CHECKOUT.is_dir() else _PACKAGE / "results"
LISTED = 6  # at most so many parts that were measured at one other commit are named


@dataclass(frozen=True)
class Record:
    """One run of one benchmark script."""

    name: str
    question: str
    device: str  # the processor's name
    threads: int | None  # of the CPU; None on a GPU
    versions: dict[str, str]
    date: str  # ISO 8601, day only
    commit: str
    dirty: bool  # whether package or benchmarks differed from that commit
    columns: list[list[str]]  # [key, heading, unit]
    rows: list[dict[str, Any]]
    # Facts about the machine, such as its copy bandwidth.
    facts: dict[str, float] = field(default_factory=dict)
    # How it was measured, and what was not measured and why.
    notes: list[str] = field(default_factory=list)
    # The parts of a record that is written part by part, each with the commit at which
    # it was measured.
    parts: dict[str, str] = field(default_factory=dict)
    finished: bool = True  # whether the run reached its last part
    # The files of the package that were loaded, each with a hash of its code.
    code: dict[str, str] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether it was measured on a GPU."""
        return self.threads is None

    @property
    def provenance(self) -> str:
        """The machine, date, commit and versions, in one line. It names parts that were
        measured at another commit, a run that did not reach its end, and files whose
        code has changed since."""
        threads = ""
        if self.threads:
            threads = f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        changed = " with changes" if self.dirty else ""
        versions = in_words(self.versions)
        earlier: dict[str, list[str]] = {}
        for part, commit in self.parts.items():
            if commit != self.commit:
                earlier.setdefault(commit, []).append(part)
        others = "".join(
            f" ({_listed(parts)}: commit {commit})" for commit, parts in earlier.items()
        )
        unfinished = "" if self.finished else ", unfinished"
        return (
            f"{self.device}{threads}, {self.date}, commit {self.commit}{changed}"
            f"{others}, {versions}{unfinished}{self.since}"
        )

    @property
    def since(self) -> str:
        """Which of the files that were timed have different code now, for the end of a
        sentence; an empty text if none has, or if the record does not say."""
        changed = code.changed(self.code)
        if not changed:
            return ""
        named = ", ".join(changed[:LISTED]) + ", …" * (len(changed) > LISTED)
        return (
            f"; since then the code of {len(changed)} of the {len(self.code)} files that "
            f"were loaded has changed: {named}"
        )

    def where(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the rows with these entries: ``record.where(step="backward")``."""
        return [
            row
            for row in self.rows
            if all(row.get(key) == value for key, value in wanted.items())
        ]

    def only(self, **wanted: Any) -> Record:
        """Return the record of those rows, without the columns that were given."""
        columns = [column for column in self.columns if column[0] not in wanted]
        return replace(self, columns=columns, rows=self.where(**wanted))

    def __repr__(self) -> str:
        cells = [self._headings(), *(self._cells(row) for row in self.rows)]
        recorded = f"Recorded on {self.provenance}."
        lines = [self.question, *table.aligned(cells), recorded, *self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = map(self._cells, self.rows)
        shown = table.page(self._headings(), rows, caption=self.question)
        notes = "".join(f"<br>{html.escape(note)}" for note in self.notes)
        return f"{shown}<p><small>Recorded on {html.escape(self.provenance)}.{notes}</small></p>"

    def _headings(self) -> list[str]:
        return [
            f"{heading} ({unit})" if unit else heading
            for _, heading, unit in self.columns
        ]

    def _cells(self, row: dict[str, Any]) -> list[str]:
        return [_shown(row.get(key)) for key, _, _ in self.columns]


def load(
    name: str,
    device: str | None = None,
    folder: Path = RESULTS,
    *,
    gpu: bool | None = None,
) -> Record:
    """Return the record of that name, from that device or else the latest one: of a
    GPU only if ``gpu`` is true, of a CPU only if it is false.

    Raises LookupError if there is no such record, and lists those that there are.
    """
    records = [
        record
        for record in _all(folder)
        if record.name == name
        and device in (None, record.device)
        and gpu in (None, record.on_gpu)
    ]
    if not records:
        known = (f"{record.name} on {record.device}" for record in _all(folder))
        there_are = ", ".join(known) or "none"
        kind = "" if gpu is None else " of a GPU" if gpu else " of a CPU"
        on = kind + (f" on {device}" if device else "")
        raise LookupError(
            f"no record of {name!r}{on} in {folder.name}/; there are: {there_are}"
        )
    return max(records, key=lambda record: record.date)


def devices(name: str, folder: Path = RESULTS) -> list[str]:
    """Return the devices that have a record of that name."""
    return sorted(record.device for record in _all(folder) if record.name == name)


def save(record: Record, folder: Path = RESULTS) -> Path:
    """Write the record to ``<name>-<device>.json``, and return the path.

    An earlier record of the same name and device is overwritten.
    """
    device = "-".join(re.findall(r"[^\W_]+", record.device.lower()))
    path = folder / f"{record.name}-{device}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # A run may be stopped at any moment, so the file is replaced in one step.
    written = path.with_suffix(".new")
    written.write_text(_json(record), encoding="utf-8")
    written.replace(path)
    return path


def read(path: Path) -> Record:
    """Read a record from a file. Raises ValueError if the file is not a record."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is not a record: {error}") from None


def _all(folder: Path) -> list[Record]:
    return [read(path) for path in sorted(folder.glob("*.json"))]


def _listed(parts: list[str]) -> str:
    return "; ".join(parts) if len(parts) <= LISTED else f"{len(parts)} parts"


def _json(record: Record) -> str:
    """Return JSON with one row a line, so that a new number changes one line."""
    fields = asdict(record)
    rows, columns = (
        ",\n".join(f"    {json.dumps(x, ensure_ascii=False)}" for x in fields.pop(name))
        for name in ("rows", "columns")
    )
    rest = json.dumps(fields, indent=2, ensure_ascii=False).removesuffix("\n}")
    return f'{rest},\n  "columns": [\n{columns}\n  ],\n  "rows": [\n{rows}\n  ]\n}}\n'


def _shown(value: Any) -> str:
    """Format a float with three significant digits, and an integer with all digits."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if 0 < abs(value) < 1e-3:
            return f"{value:.1e}"
        rounded = float(f"{value:.3g}")
        return f"{rounded:,.0f}" if abs(rounded) >= 1e4 else f"{rounded:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
