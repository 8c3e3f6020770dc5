"""The log_softmax kernel against ``ops.log_softmax`` in float64 and beside PyTorch's operator, element by element."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import log_softmax as kernel  # noqa: E402
from backpass.ops import log_softmax as op  # noqa: E402

from .score_rows import ScoreRows  # noqa: E402
from .support import DTYPES, INF, assert_as_exact_as_pytorch, draw  # noqa: E402


def check_backward(dy, y, dx):
    """The backward is judged on the ``y`` it was given, the rounded one."""
    dy64, y64 = dy.double(), y.double()
    exact = op.backward(dy64, op.Saved(y64))
    sums = torch.sum(dy64.abs(), dim=-1, keepdim=True)
    largest_term = (dy64.abs() + torch.exp(y64) * sums).amax(dim=-1, keepdim=True)
    theirs = torch.ops.aten._log_softmax_backward_data(dy, y, -1, y.dtype)
    assert_as_exact_as_pytorch("dx", dx, theirs, exact, largest_term)
    assert exact.abs().max() > 0, "a gradient of zeros would prove nothing"


def check(x, dy):
    """Forward and backward of the kernel on these, of any strides, and neither changed."""
    x_before, dy_before = x.clone(), dy.clone()

    y, saved = kernel.forward(x)
    exact, _ = op.forward(x.double())
    finite = exact > -INF
    assert torch.equal(y > -INF, finite)
    # What is rounded: x less its largest, then the logarithm of a sum of at most n.
    largest_term = torch.where(finite, exact, 0.0).abs().amax(-1, keepdim=True) + math.log(x.shape[-1])
    found = [torch.where(finite, value, 0.0) for value in (y, torch.log_softmax(x, -1), exact)]
    assert_as_exact_as_pytorch("y", *found, largest_term)

    dx = kernel.backward(dy, saved)
    check_backward(dy, y, dx)

    assert torch.equal(x, x_before)
    assert torch.equal(dy, dy_before)
    return y, dx


class TestRows(ScoreRows):
    kernel, operator, alone = kernel, torch.log_softmax, 0.0
    check, check_backward = staticmethod(check), staticmethod(check_backward)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_minus_infinity_stays_and_adds_nothing(dtype, path, device, poisoned):
    x = draw(4, 3, 45, dtype=dtype, device=device)
    x[0, :, ::3] = -INF
    x[1, 1, 1:] = -INF
    x[2] = -INF
    x[3, :, :40] = -INF  # whole tiles of it before the first score
    dy = draw(4, 3, 45, dtype=dtype, device=device, seed=1)
    _, dx = check(x, dy)
    assert torch.equal(dx[x == -INF], dy[x == -INF])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_of_ten_thousand(dtype, path, device, poisoned):
    x = draw(3, 77, dtype=dtype, device=device)
    dy = draw(3, 77, dtype=dtype, device=device, seed=1)
    check(torch.round(x) + 1e4, dy)
    check(torch.round(x) - 1e4, dy)
    check(2e3 * x, dy)
