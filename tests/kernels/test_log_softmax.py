"""The log_softmax kernel against ``ops.log_softmax`` in float64 and beside PyTorch's operator, element by element."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import log_softmax as kernel  # noqa: E402
from backpass.kernels import on_cpu  # noqa: E402
from backpass.ops import log_softmax as op  # noqa: E402

from .support import DTYPES, INF, STRIDED, assert_as_exact_as_pytorch, draw, draw_view  # noqa: E402


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (3, 5, 100), (1000,), (2, 1, 3, 31), (33, 2)], ids=str)
def test_odd_sizes(shape, dtype, path, device, poisoned):
    check(draw(*shape, dtype=dtype, device=device), draw(*shape, dtype=dtype, device=device, seed=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_longer_than_a_block(dtype, device, poisoned):
    n = kernel.ROW_BYTES // 4 + 1001
    check(draw(2, n, dtype=dtype, device=device), draw(2, n, dtype=dtype, device=device, seed=1))


def test_the_longest_row_in_one_block(device, poisoned):
    n = kernel.ROW_BYTES // 4
    check(
        draw(2, n, dtype=torch.float32, device=device),
        draw(2, n, dtype=torch.float32, device=device, seed=1),
    )


@pytest.mark.parametrize("view", STRIDED)
@pytest.mark.parametrize("strided", ["x", "dy"])
def test_any_strides(view, strided, path, device, poisoned):
    x, dy = (draw_view(view, device=device, seed=seed) for seed in (0, 1))
    if strided == "x":
        check(x, draw(*x.shape, dtype=torch.float32, device=device, seed=1))
    else:
        check(draw(*dy.shape, dtype=torch.float32, device=device), dy)


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


def test_the_maximum_may_come_last(path, device, poisoned):
    """Each tile raises the maximum, so every sum so far is rescaled."""
    x = torch.arange(90.0, device=device).reshape(1, 90) * torch.tensor([[0.1], [1.0]], device=device)
    check(x, draw(2, 90, dtype=torch.float32, device=device, seed=1))


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
@pytest.mark.parametrize("bad", [torch.nan, INF])
def test_nan_and_infinity_spoil_their_own_row_only(bad, path, device):
    x = draw(3, 50, dtype=torch.float32, device=device)
    x[1, 7] = bad
    y, _ = kernel.forward(x)
    assert torch.isnan(y).any(dim=1).tolist() == [False, True, False]


def test_log_probabilities_need_not_be_contiguous(path, device):
    y = torch.log_softmax(draw(40, 6, dtype=torch.float32, device=device), 0).T
    dy = draw(6, 40, dtype=torch.float32, device=device, seed=1)
    check_backward(dy, y, kernel.backward(dy, kernel.Saved(y)))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5), (1, 1)], ids=str)
def test_no_rows_and_one_element(shape, device):
    x = draw(*shape, dtype=torch.float32, device=device)
    y, saved = kernel.forward(x)
    assert torch.equal(y, torch.zeros(shape, device=device))
    assert torch.equal(kernel.backward(x, saved), torch.zeros(shape, device=device))


def test_no_axis_and_an_empty_row_are_rejected(device):
    with pytest.raises(
        ValueError, match=r"x: expected x\[\*, n\], which has at least 1 axis; got shape \[\]"
    ):
        kernel.forward(torch.ones((), device=device))
    with pytest.raises(ValueError, match=r"x: expected x\[\*, n\] with n of at least 1; got shape \[3, 0\]"):
        kernel.forward(torch.ones(3, 0, device=device))


@pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
def test_offsets_beyond_32_bits(device):
    x = torch.zeros(2**17 + 1, 2**14, dtype=torch.float16, device=device)
    x[-1] = draw(2**14, dtype=torch.float16, device=device)
    y, saved = kernel.forward(x)
    assert torch.equal(y[-1], kernel.forward(x[-1])[0])
    dy = torch.zeros_like(x)
    dy[-1] = draw(2**14, dtype=torch.float16, device=device, seed=1)
    assert torch.equal(kernel.backward(dy, saved)[-1], kernel.backward(dy[-1], kernel.Saved(y[-1])))
