"""Run tests in a process whose kernels are compiled, not interpreted.

A process chooses one of the two when it imports triton. ``Compiled`` starts a second pytest with BACKPASS_PTX=1, sends it
the names of tests, and receives their reports. So these tests are chosen, distributed, and reported like all others.
"""

import os
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

import weight

CONNECTION = "BACKPASS_TESTS"  # the environment variable with the file descriptor of the second process


class Compiled:
    """A process that has collected the tests below a folder."""

    def __init__(self, config: pytest.Config, folder):
        self._config = config
        self._printed = tempfile.TemporaryFile("w+")
        self._connection, theirs = Pipe()
        unwanted = ("TRITON_INTERPRET", "BACKPASS_WEIGHT")  # this process writes the record of the weight
        environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        environment |= {"BACKPASS_PTX": "1", CONNECTION: str(theirs.fileno())}
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:proofs"]
        self._process = subprocess.Popen(
            [sys.executable, *command, str(folder)],
            env=environment,
            cwd=config.rootpath,
            pass_fds=[theirs.fileno()],
            stdout=self._printed,
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        self._started = False

    def run(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Run a test there, and return its reports."""
        try:
            if not self._started:
                item.user_properties.append(("cpu of setup", self._connection.recv()))
                self._started = True
            self._connection.send(item.nodeid)
            received = self._connection.recv()
            if received is None:
                raise RuntimeError(f"the process of compiled kernels has not collected {item.nodeid}")
        except (EOFError, OSError):
            self._printed.seek(0)
            raise RuntimeError(
                f"the process of compiled kernels ended:\n{self._printed.read()[-3000:]}"
            ) from None
        return [
            self._config.hook.pytest_report_from_serializable(config=self._config, data=d) for d in received
        ]

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.wait()


class Server:
    """In the second process: runs the tests whose names it receives, until the connection is closed."""

    def __init__(self, descriptor: int):
        self._connection = Connection(descriptor)
        self._reports: list[pytest.TestReport] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._connection.send(weight.used())  # the CPU time of collecting them
        while True:
            try:
                name = self._connection.recv()
            except EOFError:
                return True
            self._reports.clear()
            if name not in items:
                self._connection.send(None)
                continue
            session.config.hook.pytest_runtest_protocol(item=items[name], nextitem=None)
            hook = session.config.hook
            self._connection.send(
                [
                    hook.pytest_report_to_serializable(config=session.config, report=report)
                    for report in self._reports
                ]
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)
