"""The CPU time of the tests, by test, file, and family, and the limits for each.

CPU time is that of the process and its children, so it depends little on what else the machine does. The run fails if
the body of a test takes more than ``TEST`` seconds, if the tests of a file together take more than ``FILE``, or if a
process needs more than ``COLLECTION`` to collect the tests. On a machine that computes more slowly, is busy, or starts
programs more slowly, they are as much higher, and twice as high where a service runs the tests, on a machine that others
share. ``make test-all`` has no limits, nor has a test that proves in full what has changed.
"""

from __future__ import annotations

import json
import os
import resource
from collections import Counter

import pytest
from slowness import slowness, slowness_of_programs

TEST, FILE, COLLECTION = 30, 180, 45
OF_SERVICE = 2  # times the limits
BROWSERS = ("browser", "window", "visit")  # fixtures of tests that run in Chromium


def used() -> float:
    """Return the CPU seconds of this process, and of its children that have ended."""
    every = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in every)


def used_by_browser() -> float:
    """Return the CPU seconds of the processes that this one has started and that still run."""
    import psutil

    total = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            pass
    return total


class Plugin:
    """Measures each phase of each test, and adds up what the workers report."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._tests: Counter[str] = Counter()
        self._setup: Counter[str] = Counter()
        self._proved: set[str] = set()  # tests without a limit: they prove in full what changed
        self._collection: dict[str, float] = {}
        self._slowness = 1.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item):
        yield from self._measured(item, "setup")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        yield from self._measured(item, "call")

    def _measured(self, item: pytest.Item, phase: str):
        shown = any(name in BROWSERS for name in item.fixturenames)
        before = used() + (used_by_browser() if shown else 0)
        yield
        after = used() + (used_by_browser() if shown else 0)
        item.user_properties.append((f"cpu of {phase}", max(0.0, after - before)))

    def pytest_collection_finish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["cpu of collection"] = used()
            self._config.workeroutput["slowness"] = slowness()
        else:
            self._collection["this process"] = used()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error) -> None:
        output = getattr(node, "workeroutput", {})
        self._collection[node.gateway.id] = output.get("cpu of collection", 0.0)
        self._slowness = max(self._slowness, output.get("slowness", 1.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            if any(name == "proved" for name, _ in report.user_properties):
                self._proved.add(report.nodeid)
            spent = dict(each for each in report.user_properties if each[0].startswith("cpu of "))
            self._tests[report.nodeid] += spent.get("cpu of call", 0.0)
            self._setup[report.nodeid] += spent.get("cpu of setup", 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workeroutput"):
            return
        self._slowness = max(self._slowness, slowness_of_programs())
        if self.too_heavy() and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def too_heavy(self) -> list[str]:
        """Return a line for each limit that was exceeded."""
        if os.environ.get("BACKPASS_PROVE") == "all":
            return []
        factor = self._slowness * (OF_SERVICE if os.environ.get("CI") else 1)
        limited = Counter(
            {name: seconds for name, seconds in self._tests.items() if name not in self._proved}
        )
        every = (
            (limited, TEST, "a test"),
            (self.files(limited), FILE, "a file"),
            (Counter(self._collection), COLLECTION, "a process that collects the tests"),
        )
        return [
            f"{name}: {seconds:.1f} s of CPU; {what} may take {limit * factor:.0f} s on this machine"
            for measured, limit, what in every
            for name, seconds in measured.most_common()
            if seconds > limit * factor
        ]

    def files(self, tests: Counter[str]) -> Counter[str]:
        """Return the seconds of each file of tests, with its set-up, except that of the site."""
        found: Counter[str] = Counter()
        for name, seconds in tests.items():
            file = name.partition("::")[0]
            found[file] += seconds + (0 if file.startswith("tests/book/") else self._setup[name])
        return found

    def families(self) -> Counter[str]:
        """Return the seconds of each folder of tests, with its set-up."""
        found: Counter[str] = Counter()
        for measured in (self._tests, self._setup):
            for name, seconds in measured.items():
                file = name.partition("::")[0]
                found[file.rpartition("/")[0] if file.count("/") > 1 else file] += seconds
        found["collection, and what the workers import"] = sum(self._collection.values())
        return found

    def pytest_terminal_summary(self, terminalreporter) -> None:
        families = self.families()
        terminalreporter.section(f"CPU time: {families.total():.0f} s")
        for name, seconds in families.most_common():
            if seconds >= 1:
                terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
        heaviest = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._tests.most_common(5))
        terminalreporter.write_line(f"heaviest tests: {heaviest}")
        for line in self.too_heavy():
            terminalreporter.write_line(f"TOO HEAVY {line}", red=True)
        if record := os.environ.get("BACKPASS_WEIGHT"):
            with open(record, "w") as file:
                tests = {name: round(s, 2) for name, s in self._tests.most_common() if s >= 0.05}
                json.dump({"families": dict(families.most_common()), "tests": tests}, file, indent=1)
