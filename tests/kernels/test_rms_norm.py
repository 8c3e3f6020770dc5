"""The rms_norm kernel against ``ops.rms_norm`` in float64 and beside PyTorch's operator, element by element."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import launch, norm_rows, on_cpu, sums_over_rows  # noqa: E402
from backpass.kernels import rms_norm as kernel  # noqa: E402
from backpass.ops import rms_norm as op  # noqa: E402

from .support import (  # noqa: E402
    DTYPES,
    STRIDED,
    apart_from_sums,
    assert_as_exact_as_pytorch,
    draw,
    draw_view,
    gradients_by_autograd,
)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """Several rows for each program, so that it has sums to keep."""
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", 2)


def weight(n, dtype, device):
    return draw(n, dtype=dtype, device=device, seed=2)


def check(x, dy, w=None, eps=None):
    """Forward and backward of the kernel on these, of any strides, and neither changed."""
    before = [value.clone() for value in (x, dy)]
    eps = (
        torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps if eps is None else eps
    )

    def theirs(x, w):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps)

    y, saved = kernel.forward(x, w, eps=eps)
    dx, dw = kernel.backward(dy, saved)
    wide = [None if value is None else value.double() for value in (x, w)]
    exact_y, exact_saved = op.forward(*wide, eps=eps)
    exact_dx, exact_dw = op.backward(dy.double(), exact_saved)

    largest_y = exact_y.abs().amax(-1, keepdim=True)
    assert_as_exact_as_pytorch("y", y, theirs(x, w), exact_y, largest_y)
    their_dx, their_dw = gradients_by_autograd(theirs, dy, x, w)
    size = exact_saved.x_hat.abs().amax(-1, keepdim=True)
    sizes = dy.double().abs().amax(-1, keepdim=True) * (1 if w is None else wide[1].abs().max())
    largest = exact_saved.rstd * sizes * (1 + size * size)  # terms of dx, which cancel
    assert_as_exact_as_pytorch("dx", dx, their_dx, exact_dx, largest, roundings=8)
    if w is None:
        assert dw is None
    else:
        rows = (dy.double().abs() * size).reshape(-1, x.shape[-1]).sum(0).max()
        assert_as_exact_as_pytorch("dw", dw, their_dw, exact_dw, rows, roundings=8)

    for now, then in zip((x, dy), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (2, 5, 100), (300,), (65, 2)], ids=str)
def test_odd_sizes(shape, dtype, path, device, poisoned):
    x, dy = (draw(*shape, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    check(x, dy, weight(shape[-1], dtype, device))


def test_without_a_weight(path, device, poisoned):
    check(*(draw(5, 37, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1)))


@pytest.mark.filterwarnings(
    "ignore:Mismatch dtype between input and weight"
)  # PyTorch's, which then is slower
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (2, 5, 100)], ids=str)
def test_a_weight_of_float32_gets_a_gradient_of_float32(shape, dtype, path, device, poisoned):
    x, dy = (draw(*shape, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    w = weight(shape[-1], torch.float32, device)
    check(x, dy, w)
    y, saved = kernel.forward(x, w)
    dx, dw = kernel.backward(dy, saved)
    assert (y.dtype, dx.dtype, dw.dtype) == (dtype, dtype, torch.float32)
    _, exact_saved = op.forward(x.double(), w.double(), eps=torch.finfo(torch.float32).eps)
    _, right = op.backward(dy.double(), exact_saved)
    _, half = kernel.backward(dy, kernel.forward(x, w.to(dtype))[1])
    error, of_half = ((each.double() - right).norm() for each in (dw, half))
    assert half.dtype == dtype and 500 * error < of_half


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_the_longest_kind_and_longer(dtype, device, poisoned):
    longest = kernel.ROW_BYTES // (8 if dtype == torch.float64 else 4)
    for n in (longest // 2, longest, longest + 1001):
        x, dy = (draw(2, n, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
        check(x, dy, weight(n, dtype, device))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_apart_from_rows(dtype, device, poisoned, monkeypatch):
    apart_from_sums(kernel, monkeypatch, 63, dtype)
    check(*(draw(7, 63, dtype=dtype, device=device, seed=seed) for seed in (0, 1)), weight(63, dtype, device))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_totals_of_several_pieces(dtype, device, poisoned, monkeypatch):
    """Each program of the last launch adds up two pieces of partial sums, for some of the columns."""
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", 5)
    monkeypatch.setattr(norm_rows, "TOTALS", (4, 16))
    monkeypatch.setattr(launch, "SHORT_ROWS_ELEMENTS", 64)
    check(*(draw(7, 63, dtype=dtype, device=device, seed=seed) for seed in (0, 1)), weight(63, dtype, device))


@pytest.mark.parametrize("view", STRIDED)
@pytest.mark.parametrize("strided", ["x", "dy"])
def test_any_strides(view, strided, path, device, poisoned):
    viewed = draw_view(view, device=device)
    plain = draw(*viewed.shape, dtype=torch.float32, device=device, seed=1)
    x, dy = (viewed, plain) if strided == "x" else (plain, viewed)
    check(x, dy, weight(2 * viewed.shape[-1], torch.float32, device)[::2])


def test_rows_of_1000_in_float16_do_not_overflow(path, device, poisoned):
    x = draw(3, 60, dtype=torch.float16, device=device, scale=1000.0)
    check(x, draw(3, 60, dtype=torch.float16, device=device, seed=1))


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_rows_of_zeros(path, device):
    x = torch.zeros(2, 50, device=device)
    y, saved = kernel.forward(x, eps=1e-4)
    assert torch.equal(y, x)
    dy = draw(2, 50, dtype=torch.float32, device=device)
    torch.testing.assert_close(kernel.backward(dy, saved)[0], 100 * dy)
    assert torch.isnan(kernel.forward(x, eps=0)[0]).all()


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # in rows beyond the last
def test_sums_over_many_rows_of_16_bits_do_not_stall(device):
    """Added up in bfloat16, ones would stop at 256."""
    ones = torch.ones(1000, 4, dtype=torch.bfloat16, device=device)
    _, saved = kernel.forward(ones, ones[0], eps=0)
    assert kernel.backward(ones, saved)[1].tolist() == [1000] * 4


def test_nan_spoils_its_own_row_only(path, device):
    x = draw(3, 50, dtype=torch.float32, device=device)
    x[1, 7] = torch.nan
    y, saved = kernel.forward(x)
    dx, _ = kernel.backward(draw(3, 50, dtype=torch.float32, device=device, seed=1), saved)
    for found in (y, dx):
        assert torch.isnan(found).any(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5)], ids=str)
def test_no_rows(shape, device):
    x = draw(*shape, dtype=torch.float32, device=device)
    y, saved = kernel.forward(x, weight(5, torch.float32, device))
    dx, dw = kernel.backward(x, saved)
    assert y.shape == dx.shape == shape
    assert torch.equal(dw, torch.zeros(5, device=device))


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # in rows beyond the last
def test_one_element_is_its_own_root(path, device):
    x = torch.tensor([[3.0], [-0.5]], device=device)
    y, saved = kernel.forward(x, eps=0)
    assert torch.equal(y, torch.tensor([[1.0], [-1.0]], device=device))
    assert torch.equal(kernel.backward(x, saved)[0], torch.zeros(2, 1, device=device))


def test_an_epsilon_below_zero_is_rejected(device):
    with pytest.raises(ValueError, match="eps: expected a finite number of at least 0; got -1"):
        kernel.forward(torch.ones(3, device=device), eps=-1.0)


@pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
@pytest.mark.parametrize("n", [2**13, 2**15], ids=["rows", "tiles"])
def test_offsets_beyond_32_bits(n, device):
    m = 2**31 // n + 1
    x, dy = (torch.zeros(m, n, dtype=torch.float16, device=device) for _ in range(2))
    x[-1], dy[-1] = (draw(n, dtype=torch.float16, device=device, seed=seed) for seed in (0, 1))
    w = weight(n, torch.float16, device)
    y, saved = kernel.forward(x, w)
    last_y, last_saved = kernel.forward(x[-1], w)
    assert torch.equal(y[-1], last_y)
    for all_of_it, last in zip(kernel.backward(dy, saved), kernel.backward(dy[-1], last_saved), strict=True):
        assert torch.equal(all_of_it[-1] if all_of_it.ndim == 2 else all_of_it, last)
