"""Tests of kernels as compiled. Triton compiles nothing in a process whose kernels are interpreted, so each process of
tests runs these tests in a second process (``process.py``), unless its own BACKPASS_PTX is 1."""

import os
from pathlib import Path

import pytest

from backpass import kernels

from .process import CONNECTION, Compiled, Server

HERE = Path(__file__).parent
collect_ignore_glob = ["test_*.py"] if kernels.missing() else []
compiled = pytest.StashKey[Compiled]()


def pytest_configure(config):
    if CONNECTION in os.environ:
        config.pluginmanager.register(Server(int(os.environ.pop(CONNECTION))))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Run the test in the other process, and report it as if it had run here."""
    if kernels.executed() or HERE not in item.path.parents:
        return None
    config = item.config
    if compiled not in config.stash:
        config.stash[compiled] = process = Compiled(config, HERE)
        config.add_cleanup(process.close)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in config.stash[compiled].run(item):
        report.user_properties.extend(item.user_properties)
        if report.skipped:  # this process has Triton, so nothing is missing there
            report.outcome = "failed"
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
