"""Show on standard error what long work is doing, if it takes longer than two seconds.

Nothing is shown if standard error is not a terminal.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import ClassVar

PATIENCE = 2.0  # seconds before the first line and between updates


class Progress:
    """A context manager that rewrites one line while it is open: ``what`` is done, such
    as "checking softmax". Inside the context of another one, it adds to that one's
    line."""

    _open: ClassVar[list[Progress]] = []

    def __init__(self, what: str):
        self.what = what
        self.doing = ""
        self._done = threading.Event()
        self._shown = False

    def __enter__(self) -> Progress:
        self._start = time.perf_counter()
        Progress._open.append(self)
        alone = Progress._open[0] is self
        if alone and sys.stderr is not None and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        Progress._open.remove(self)
        self._done.set()
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def now(self, doing: str) -> None:
        """Set the step that is shown."""
        self.doing = doing

    def _show(self) -> None:
        while not self._done.wait(PATIENCE):
            self._shown = True
            seconds = time.perf_counter() - self._start
            parts = [f"{x.what}: {x.doing}" if x.doing else x.what for x in self._open]
            line, width = ", ".join(parts), shutil.get_terminal_size().columns - 10
            print(
                f"\r\x1b[K{line[:width]}, {seconds:.0f} s",
                end="",
                file=sys.stderr,
                flush=True,
            )
