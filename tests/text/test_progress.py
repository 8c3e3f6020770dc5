"""What takes long says what it does, in one line."""

import sys
import time

from backpass.text import progress


class Terminal:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_an_inner_progress_adds_to_the_line_of_the_outer_one(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.005)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.Progress("checking softmax") as outer:
        outer.now("compiled")
        with progress.Progress("executing kernel") as inner:
            inner.now("block 2 of 3")
            until = time.perf_counter() + 5
            while "executing" not in terminal.text and time.perf_counter() < until:
                time.sleep(0.005)
    line = "checking softmax: compiled, executing kernel: block 2 of 3, 0 s"
    assert line in terminal.text
    assert terminal.text.endswith("\r\x1b[K")
    assert progress.Progress._open == []


def test_a_line_is_no_longer_than_the_terminal(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.005)
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.Progress("executing " + "x" * 50):
        until = time.perf_counter() + 5
        while not terminal.text and time.perf_counter() < until:
            time.sleep(0.005)
    assert terminal.text.startswith("\r\x1b[Kexecuting xxxxxxxxxx, 0 s")
