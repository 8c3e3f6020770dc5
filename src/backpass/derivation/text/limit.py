"""Stop a computation that takes too long."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooLong(BaseException):
    """Raised in a computation that takes too long. No handler of errors catches it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the block after ``seconds`` of CPU time; 0 sets no limit.

    The limit does not apply outside the main thread, or on Windows. A timer that was
    already running is restarted with the time left.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if seconds <= 0 or not is_main or not hasattr(signal, "setitimer"):
        yield
        return
    within = True

    def stop(number: int, frame: FrameType | None) -> None:
        if within:
            raise TooLong

    start = time.process_time()
    handler = signal.signal(signal.SIGPROF, stop)
    before, interval = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        try:
            yield
        finally:
            within = False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL if handler is None else handler)
        if before:
            left = max(before - (time.process_time() - start), 1e-3)
            signal.setitimer(signal.ITIMER_PROF, left, interval)
