"""A computation is stopped after some seconds, and the process's timer and handler are as before."""

import signal
import threading
import time

import pytest

from backpass.derivation.text.limit import TooLong, limited

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")


@pytest.fixture(autouse=True)
def restored():
    """The handler before and after a test, which has no timer."""
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    handler = signal.getsignal(signal.SIGPROF)
    yield handler
    assert signal.getsignal(signal.SIGPROF) == handler
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def endless():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            pass


def test_a_computation_that_takes_too_long():
    with pytest.raises(TooLong), limited(0.02):
        endless()


def test_a_computation_in_time():
    with limited(60):
        pass
    with pytest.raises(KeyError), limited(60):
        raise KeyError


def test_no_limit():
    with limited(0):
        assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_other_threads_have_no_limit():
    said = []

    def work():
        with limited(0.01):
            time.sleep(0.05)
            said.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == ["done"]


def test_a_timer_that_runs_is_restored():
    rung = []
    handler = signal.signal(signal.SIGPROF, lambda *_: rung.append(True))
    try:
        signal.setitimer(signal.ITIMER_PROF, 600)
        with pytest.raises(TooLong), limited(0.01):
            endless()
        assert 0 < signal.getitimer(signal.ITIMER_PROF)[0] < 600
        signal.raise_signal(signal.SIGPROF)
        assert rung == [True]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
