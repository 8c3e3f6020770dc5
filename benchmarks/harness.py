"""What every benchmark shares: the machine it runs on, how a call is timed, the record that is left.

Providers of the same result are timed in one process, in rounds, each round in a new random order, so that
a machine that slows down slows all of them; the median over the rounds is kept. Nothing timed is zeros, and
each provider's error against float64 stands beside its speed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

import backpass
from backpass.recorded import code, records

warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")

ROOT = Path(__file__).resolve().parents[1]
TIMED = (
    "benchmarks/*.py",
    "src/backpass/ops",
    "src/backpass/kernels",
    "src/backpass/models",
    "src/backpass/training",
    "src/backpass/*.py",
)
WARM_UPS = 3
if torch.cuda.is_available():
    # Everything on one stream, and not the default one: a backward runs where its forward did, and nothing on the
    # default stream can be recorded.
    torch.cuda.set_stream(torch.cuda.Stream())
    # Shared by all graphs: one runs at a time, and none is asked for its results.
    MEMORY_OF_GRAPHS = torch.cuda.graph_pool_handle()


class Settings(NamedTuple):
    """What the command line chose."""

    device: str  # "cpu" or "cuda"
    quick: bool
    folder: Path | None  # for the record; None where none is kept
    names: tuple[str, ...] = ()  # of what was asked for; none where all of it was
    rehearsal: bool = False  # every call runs once, untimed
    any_commit: bool = False  # an unfinished record of another commit is continued, too

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 21 if self.device == "cpu" else 11

    @property
    def seconds(self) -> float:
        """After which no further round is begun."""
        return 0.2 if self.quick else 3.0

    def pick(self, full, quick):
        """The one of the two that this run asks for."""
        return quick if self.quick else full


def settings(question: str, names: Iterable[str] = ()) -> Settings:
    """Read the command line of a benchmark script; ``names`` are what it can be restricted to.

    On a CPU one thread is used unless OMP_NUM_THREADS asks for more, so that records compare.
    """
    parser = argparse.ArgumentParser(description=question)
    if names := tuple(names):
        parser.add_argument("names", nargs="*", metavar="name", help=f"only these, of: {', '.join(names)}")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default, help=f"default here: {default}")
    parser.add_argument("--quick", action="store_true", help="small shapes, few rounds: tries the script out")
    parser.add_argument(
        "--results", type=Path, help="folder for the record (benchmarks/results; with --quick none)"
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="run every call once without timing it, which fills the compilers' caches; writes no record",
    )
    parser.add_argument(
        "--any-commit",
        action="store_true",
        help="continue an unfinished record of another commit too, and name the commit of each part in it (default: "
        "continue only a record of this commit)",
    )
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this machine has no CUDA device that PyTorch can use")
    requested = tuple(chosen.names) if names else ()
    for name in requested:
        if name not in names:
            parser.error(f"{name!r} is not timed here; there are: {', '.join(names)}")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    folder = chosen.results or (None if chosen.quick else records.RESULTS)
    return Settings(
        chosen.device,
        chosen.quick,
        None if requested or chosen.rehearse else folder,
        requested,
        chosen.rehearse,
        chosen.any_commit,
    )


def say(text: str) -> None:
    print(text, flush=True)


def draw(*shape: int, seed: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Normally distributed numbers, the same in every run on a device."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def largest_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest element's error over the largest element of the exact result."""
    return float((got.double() - exact).abs().max() / exact.abs().max())


def no_compiler(device: str) -> str | None:
    """Why ``torch.compile`` cannot be timed here, or None."""
    if device == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        return "torch.compile was not timed: on a CPU it needs a C++ compiler, and there is no g++"
    return None


def medians(calls: dict[str, Callable[[], object]], chosen: Settings) -> dict[str, float]:
    """Median seconds of each call."""
    return {name: statistics.median(seconds) for name, seconds in samples(calls, chosen).items()}


def samples(calls: dict[str, Callable[[], object]], chosen: Settings) -> dict[str, list[float]]:
    """Seconds of each call in each of several rounds; a round times every call once, in random order.

    In a rehearsal each runs once, untimed.
    """
    if chosen.rehearsal:
        for call in calls.values():
            call()
        return {name: [1.0] for name in calls}
    timers = {name: _timer(call, chosen) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    begun = time.perf_counter()
    for done in range(chosen.rounds):
        if done >= 5 and time.perf_counter() - begun > chosen.seconds:
            break
        for name in order.sample(list(timers), len(timers)):
            seconds[name].append(timers[name]())
    return seconds


def _timer(call: Callable[[], object], chosen: Settings) -> Callable[[], float]:
    """A function that runs the call often enough for the clock and returns the seconds of one."""
    enough = 1e-4 if chosen.quick else 5e-3
    if chosen.device == "cuda":
        return _graph_timer(call, enough)
    repeats = _repeats(lambda: _seconds(call, 1), enough)
    return lambda: _seconds(call, repeats) / repeats


def _repeats(one: Callable[[], float], enough: float) -> int:
    """How many fill the time that is enough, from trying a few, which also warms up caches and allocators. One that
    takes a hundred times as long is tried once."""
    fastest = one()
    for _ in range(WARM_UPS - 1):
        if fastest < 100 * enough:
            fastest = min(fastest, one())
    return max(1, round(enough / max(fastest, 1e-7)))


def _seconds(call: Callable[[], object], repeats: int) -> float:
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - begun


def _graph_timer(call: Callable[[], object], enough: float) -> Callable[[], float]:
    """On a GPU: the call recorded once as a graph and replayed, so that kernels are timed and not their
    launching. A call that reads from the device cannot be recorded, and is timed as it runs."""
    for _ in range(WARM_UPS):
        call()
    torch.cuda.synchronize()
    run = call
    if not _waits(call):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=MEMORY_OF_GRAPHS, stream=torch.cuda.current_stream()):
                call()
            run = graph.replay
        except RuntimeError as reason:
            torch.cuda.synchronize()
            say(f"timed as it runs, since it could not be recorded: {str(reason).splitlines()[0]}")

    def replay(repeats: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3

    repeats = _repeats(lambda: replay(1), enough)
    return lambda: replay(repeats) / repeats


def _waits(call: Callable[[], object]) -> bool:
    """Whether a call waits for the device, as one does that reads a number from it. To find out by a recording that
    fails would leave its memory taken."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def call_seconds(call: Callable[[], object], chosen: Settings) -> float:
    """On a GPU: median seconds of a call as Python makes it, launching included, one after the other."""
    if chosen.rehearsal:
        return 1.0

    def twenty() -> None:
        for _ in range(20):
            call()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    slow = _seconds(twenty, 1) > 0.02
    return statistics.median(_seconds(twenty, 1) / 20 for _ in range(3 if slow else chosen.rounds))


def device_name(device: str) -> str:
    """The processor's name: "NVIDIA H200", "AMD EPYC"."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    return model[1].strip() if model else platform.processor() or platform.machine()


class Recording:
    """A record that is written after each of its parts, so an interrupted run leaves what it has measured.

    It continues an unfinished record of the same device, versions and commit. ``order`` is the key by which rows are
    sorted, for parts that are measured in a different order from the one in which they are shown.
    """

    def __init__(
        self,
        chosen: Settings,
        name: str,
        question: str,
        columns: Iterable[tuple[str, str, str]],
        notes: Iterable[str | None] = (),
        method: str | None = None,
        order: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.chosen = chosen
        self.order = order
        fresh = _record(chosen, name, question, columns, [], notes, method=method)
        begun = _begun(fresh, chosen)
        if begun:
            say(f"continues a record with {', '.join(begun.parts)}")
            fresh = replace(
                fresh,
                rows=begun.rows,
                facts=begun.facts,
                parts=begun.parts,
                notes=list(dict.fromkeys([*fresh.notes, *begun.notes])),
                dirty=fresh.dirty or begun.dirty,
                code={**fresh.code, **begun.code},
            )
        self.record = replace(fresh, finished=False)

    def lacks(self, part: str) -> bool:
        """Whether the part has still to be measured."""
        return part not in self.record.parts

    def add(
        self,
        part: str,
        rows: Iterable[dict[str, Any]] = (),
        notes: Iterable[str] = (),
        facts: dict[str, float] | None = None,
    ) -> None:
        """Add what was measured of a part, and write the record."""
        all_rows = [*self.record.rows, *rows]
        self.record = replace(
            self.record,
            rows=sorted(all_rows, key=self.order) if self.order else all_rows,
            notes=list(dict.fromkeys([*self.record.notes, *notes])),
            facts={**self.record.facts, **(facts or {})},
            parts={**self.record.parts, part: self.record.commit},
            # A part of an earlier commit ran the code of that commit.
            code={**code.loaded(), **self.record.code},
        )
        if self.chosen.folder:
            records.save(self.record, self.chosen.folder)

    def finish(self, missing: Iterable[str] = ()) -> int:
        """Write and show the record, as finished unless parts are ``missing``; return the exit status."""
        missing = list(missing)
        parts = self.record.parts
        if not missing and set(parts.values()) <= {self.record.commit}:
            parts = {}  # the record's commit is that of every part
        self.record = replace(self.record, finished=not missing, parts=parts)
        _show(self.record, self.chosen)
        if missing:
            say(f"missing, and measured by the next run: {', '.join(missing)}")
        return int(bool(missing))


def _begun(fresh: records.Record, chosen: Settings) -> records.Record | None:
    """Return the unfinished record that a run continues, None if there is none."""
    if not chosen.folder:
        return None
    try:
        begun = records.load(fresh.name, fresh.device, chosen.folder)
    except LookupError:
        return None
    same = (begun.versions, begun.threads, begun.columns) == (fresh.versions, fresh.threads, fresh.columns)
    of_this_commit = chosen.any_commit or (begun.commit == fresh.commit and not (begun.dirty or fresh.dirty))
    return begun if same and of_this_commit and not begun.finished else None


def write(
    chosen: Settings,
    name: str,
    question: str,
    columns: Iterable[tuple[str, str, str]],
    rows: list[dict[str, Any]],
    notes: Iterable[str | None] = (),
    facts: dict[str, float] | None = None,
    method: str | None = None,
) -> None:
    """Save the record, and show it. ``method`` says how it was measured, where not by ``medians``."""
    _show(_record(chosen, name, question, columns, rows, notes, facts, method), chosen)


def _record(
    chosen: Settings,
    name: str,
    question: str,
    columns: Iterable[tuple[str, str, str]],
    rows: list[dict[str, Any]],
    notes: Iterable[str | None] = (),
    facts: dict[str, float] | None = None,
    method: str | None = None,
) -> records.Record:
    method = method or f"Medians of at most {chosen.rounds} rounds, providers in random order in each."
    columns = [list(column) for column in columns]
    threads_by_row = any(key == "threads" for key, *_ in columns)
    commit, dirty = _commit()
    return records.Record(
        name=name,
        question=question,
        device=device_name(chosen.device),
        threads=torch.get_num_threads() if chosen.device == "cpu" else None,
        versions=_versions(),
        date=datetime.date.today().isoformat(),
        commit=commit,
        dirty=dirty,
        columns=columns,
        rows=rows,
        facts=facts or {},
        notes=[method, *_surroundings(chosen, threads_by_row), *(note for note in notes if note)],
        code=code.loaded(),
    )


def _show(record: records.Record, chosen: Settings) -> None:
    """Save a record if this run has a folder for it, and print it."""
    written = "no record written: these rows are part of one"
    if chosen.folder:
        written = f"written: {records.save(record, chosen.folder).name}"
    if chosen.rehearsal:
        say(f"rehearsed: {record.name}, {len(record.rows)} rows")
        return
    say(f"{record}\n\n{'tried out: no figures to keep' if chosen.quick else written}")


def _commit() -> tuple[str, bool]:
    """Return the commit of this checkout, and whether the timed code differs from it. For a copy without its repository,
    the variable BACKPASS_COMMIT says both: it has what ``git describe --always --dirty --abbrev=12`` prints there."""
    if described := os.environ.get("BACKPASS_COMMIT"):
        return described.removesuffix("-dirty"), described.endswith("-dirty")
    commit = _git("rev-parse", "--short=12", "HEAD")
    return commit or "unknown", bool(commit and _git("status", "--porcelain", "--", *TIMED))


def _versions() -> dict[str, str]:
    found = {
        "backpass": backpass.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for library in ("triton", "liger_kernel"):
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def _surroundings(chosen: Settings, threads_by_row: bool) -> list[str]:
    """What else changes the figures of a CPU several-fold: other work on the machine, and glibc's
    allocator."""
    if chosen.device != "cpu":
        return []
    load = f"Processes waiting or running, averaged over the last minute: {os.getloadavg()[0]:.1f}."
    malloc = {name: os.environ[name] for name in os.environ if name.startswith("MALLOC_")}
    kept = ", ".join(f"{name}={value}" for name, value in malloc.items()) or "glibc's defaults"
    threads = "As many threads as OMP_NUM_THREADS says, which is 1 in `make bench` and where it is not set."
    threads = "Threads as each row says." if threads_by_row else threads
    return [threads, load, f"Memory allocation: {kept}."]


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
