"""The softmax kernel against ``ops.softmax`` in float64 and beside PyTorch's operator, element by element."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import softmax as kernel  # noqa: E402
from backpass.kernels.launch import rows_of  # noqa: E402
from backpass.ops import softmax as op  # noqa: E402

from .score_rows import ScoreRows  # noqa: E402
from .support import DTYPES, INF, assert_as_exact_as_pytorch, draw  # noqa: E402


def gradient_by_pytorch(dy, y):
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def check_backward(dy, y, dx):
    """The backward is judged on the ``y`` it was given, the rounded one."""
    dy64, y64 = dy.double(), y.double()
    exact = op.backward(dy64, op.Saved(y64))
    dot_of_sizes = torch.sum(dy64.abs() * y64, dim=-1, keepdim=True)
    largest_term = (y64 * (dy64.abs() + dot_of_sizes)).amax(dim=-1, keepdim=True)
    assert_as_exact_as_pytorch("dx", dx, gradient_by_pytorch(dy, y), exact, largest_term)
    assert exact.abs().max() > 0, "a gradient of zeros would prove nothing"


def check(x, dy):
    """Forward and backward of the kernel on these, of any strides, and neither changed."""
    x_before, dy_before = x.clone(), dy.clone()

    y, saved = kernel.forward(x)
    exact, _ = op.forward(x.double())
    finite = x.max(dim=-1, keepdim=True).values > -INF
    theirs = torch.where(finite, torch.softmax(x, -1), 0.0)
    assert_as_exact_as_pytorch("y", y, theirs, exact, exact.amax(dim=-1, keepdim=True))

    dx = kernel.backward(dy, saved)
    check_backward(dy, y, dx)

    assert torch.equal(x, x_before)
    assert torch.equal(dy, dy_before)
    return y, dx


class TestRows(ScoreRows):
    kernel, operator, alone = kernel, torch.softmax, 1.0
    check, check_backward = staticmethod(check), staticmethod(check_backward)


def test_rows_are_found_without_a_copy():
    heads = torch.empty(2, 5, 3, 35, device="meta")
    assert rows_of(heads)[1]["length_1"] == 1  # contiguous: one axis of 30 rows
    swapped = heads.transpose(1, 2)
    same, walk = rows_of(swapped)
    assert same is swapped
    assert walk == {
        "length_1": 3,
        "length_2": 5,
        "stride_0": 525,
        "stride_1": 35,
        "stride_2": 105,
        "stride_n": 1,
    }
    assert rows_of(torch.empty(35, device="meta").expand(4, 5, 35))[1]["stride_0"] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_minus_infinity_has_weight_and_gradient_zero(dtype, path, device, poisoned):
    x = draw(4, 3, 45, dtype=dtype, device=device)
    x[0, :, ::3] = -INF
    x[1, 1, 1:] = -INF
    x[2] = -INF
    x[3, :, :40] = -INF  # whole tiles of it before the first score
    y, dx = check(x, draw(4, 3, 45, dtype=dtype, device=device, seed=1))
    assert torch.all(y[x == -INF] == 0)
    assert torch.all(dx[x == -INF] == 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_of_ten_thousand(dtype, path, device, poisoned):
    x = draw(3, 77, dtype=dtype, device=device)
    dy = draw(3, 77, dtype=dtype, device=device, seed=1)
    check(torch.round(x) + 1e4, dy)
    check(torch.round(x) - 1e4, dy)
    y, _ = kernel.forward(1e4 * x)
    assert torch.equal(y, torch.nn.functional.one_hot(x.argmax(-1), 77).to(dtype))
