"""The benchmark of a step's time: the bytes of PyTorch's operators, and which operation they belong to."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import step_time  # noqa: E402

from backpass.ops import attention, feed_forward, linear  # noqa: E402


@pytest.mark.parametrize(
    "run, arrays",
    [
        (lambda x, y: x * y, 3),
        (lambda x, y: x * x, 2),  # reads x once
        (lambda x, y: x.mul_(y), 3),  # x is read and written
        (lambda x, y: x.mT[1:].reshape(-1, 2), 0),  # a view
        (lambda x, y: x.exp() + y, 2 + 3),
    ],
)
def test_the_bytes_of_operators(run, arrays):
    x, y = torch.randn(6, 1), torch.randn(6, 1)
    with step_time.Bytes() as counted:
        run(x, y)
    assert sum(counted.moved.values()) == arrays * 6 * 4


def test_the_operation_that_is_named_is_the_outermost():
    """In a feed-forward block it is the one inside, since the block's own calls are listed apart."""
    q, k, v, x = (torch.randn(1, 1, 3, 4) for _ in range(4))
    w_up, w_down = torch.randn(4, 5), torch.randn(5, 4)
    originals = attention.forward, linear.forward
    with step_time.Bytes() as counted, step_time.watched(counted):
        attention.forward(q, k, v)
        x + x
        feed_forward.forward(x, w_up, w_down, activation="gelu_tanh")
    assert {*counted.moved} == {"attention", step_time.REST, "linear", "gelu"}
    assert counted.moved[step_time.REST] == 2 * 12 * 4
    assert counted.moved["linear"] == 2 * (12 + 20 + 15) * 4
    assert originals == (attention.forward, linear.forward)


def test_the_seconds_of_the_outermost_operation():
    clock = step_time.Clock()
    q, k, v = (torch.randn(2, 3, 4) for _ in range(3))
    with step_time.watched(clock):
        attention.forward(q, k, v)
    assert {*clock.spent} == {"attention"}
    assert clock.spent["attention"] > 0
