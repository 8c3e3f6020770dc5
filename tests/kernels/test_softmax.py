"""The softmax kernel against ``ops.softmax`` in float64 and beside PyTorch's operator, element by element."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import on_cpu  # noqa: E402
from backpass.kernels import softmax as kernel  # noqa: E402
from backpass.kernels.launch import rows_of  # noqa: E402
from backpass.ops import softmax as op  # noqa: E402

from .support import DTYPES, INF, STRIDED, assert_as_exact_as_pytorch, draw, draw_view  # noqa: E402


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


def test_weights_need_not_be_contiguous(path, device):
    y = torch.softmax(draw(40, 6, dtype=torch.float32, device=device), 0).T
    dy = draw(6, 40, dtype=torch.float32, device=device, seed=1)
    check_backward(dy, y, kernel.backward(dy, kernel.Saved(y)))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5), (1, 1)], ids=str)
def test_no_rows_and_one_element(shape, device):
    x = draw(*shape, dtype=torch.float32, device=device)
    y, saved = kernel.forward(x)
    assert torch.equal(y, torch.ones(shape, device=device))
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
