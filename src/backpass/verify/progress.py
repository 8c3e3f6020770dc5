"""Show on standard error what a check is doing, if it takes longer than two seconds.

Nothing is shown if standard error is not a terminal.
"""

from __future__ import annotations

import sys
import threading
import time

PATIENCE = 2.0  # seconds before the first line and between updates


class Progress:
    """A context manager that rewrites one line while it is open."""

    def __init__(self, name: str):
        self.name = name
        self.doing = ""
        self._done = threading.Event()
        self._shown = False

    def __enter__(self) -> Progress:
        self._start = time.perf_counter()
        if sys.stderr is not None and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
            print(
                f"\r\x1b[Kchecking {self.name}: {self.doing}, {seconds:.0f} s",
                end="",
                file=sys.stderr,
                flush=True,
            )
