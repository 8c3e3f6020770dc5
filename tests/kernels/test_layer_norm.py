"""The layer_norm kernel against ``ops.layer_norm`` in float64 and beside PyTorch's operator, element by element."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")

from backpass.kernels import launch, norm_rows, on_cpu, sums_over_rows  # noqa: E402
from backpass.kernels import layer_norm as kernel  # noqa: E402
from backpass.ops import layer_norm as op  # noqa: E402

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


def parameters(n, dtype, device):
    return (draw(n, dtype=dtype, device=device, seed=seed) for seed in (2, 3))


def check(x, dy, w=None, b=None, eps=1e-5):
    """Forward and backward of the kernel on these, of any strides, and neither changed."""
    before = [value.clone() for value in (x, dy)]

    def theirs(x, w, b):
        # On a GPU PyTorch's operator takes parameters of x's dtype only, so x is cast to theirs.
        wide = x if w is None else x.to(w.dtype)
        return torch.nn.functional.layer_norm(wide, x.shape[-1:], w, b, eps).to(x.dtype)

    y, saved = kernel.forward(x, w, b, eps=eps)
    dx, dw, db = kernel.backward(dy, saved)
    wide = [None if value is None else value.double() for value in (x, w, b)]
    exact_y, exact_saved = op.forward(*wide, eps=eps)
    exact = op.backward(dy.double(), exact_saved)

    # What is rounded: x less its mean, however close the two are; then terms of dx that cancel.
    size = x.double().abs().amax(-1, keepdim=True) * exact_saved.rstd.double()
    weight = torch.ones(()) if w is None else wide[1].abs().max()
    largest_y = size * weight + (0 if b is None else wide[2].abs().max())
    assert_as_exact_as_pytorch("y", y, theirs(x, w, b), exact_y, largest_y)
    their_dx, their_dw, their_db = gradients_by_autograd(theirs, dy, x, w, b)
    sizes = dy.double().abs().amax(-1, keepdim=True) * weight
    largest = exact_saved.rstd * sizes * (1 + size * size)
    assert_as_exact_as_pytorch("dx", dx, their_dx, exact[0], largest, roundings=8)
    rows = (dy.double().abs() * (1 + size)).reshape(-1, x.shape[-1]).sum(0).max()
    for name, got, their, exactly in (("dw", dw, their_dw, exact[1]), ("db", db, their_db, exact[2])):
        if exactly is None:
            assert got is None
        else:
            assert_as_exact_as_pytorch(name, got, their, exactly, rows, roundings=8)

    for now, then in zip((x, dy), before, strict=True):
        assert torch.equal(now, then)
    return y, dx, dw, db


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (2, 5, 100), (300,), (65, 2)], ids=str)
def test_odd_sizes(shape, dtype, path, device, poisoned):
    x, dy = (draw(*shape, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    check(x, dy, *parameters(shape[-1], dtype, device))


@pytest.mark.parametrize("given", ["neither", "w", "b"])
def test_with_and_without_parameters(given, path, device, poisoned):
    x, dy = (draw(5, 37, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1))
    w, b = parameters(37, torch.float32, device)
    check(x, dy, w if given == "w" else None, b if given == "b" else None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(7, 63), (2, 5, 100)], ids=str)
def test_parameters_of_float32_get_gradients_of_float32(shape, dtype, path, device, poisoned):
    x, dy = (draw(*shape, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    w, b = parameters(shape[-1], torch.float32, device)
    y, dx, dw, db = check(x, dy, w, b)
    assert (y.dtype, dx.dtype, dw.dtype, db.dtype) == (dtype, dtype, torch.float32, torch.float32)
    _, saved = op.forward(x.double(), w.double(), b.double())
    exact = op.backward(dy.double(), saved)
    _, half_saved = kernel.forward(x, w.to(dtype), b.to(dtype))
    for got, half, right in zip((dw, db), kernel.backward(dy, half_saved)[1:], exact[1:], strict=True):
        error, of_half = ((each.double() - right).norm() for each in (got, half))
        assert half.dtype == dtype and 500 * error < of_half


def test_only_the_bias_may_be_float32(path, device, poisoned):
    x = draw(5, 37, dtype=torch.bfloat16, device=device)
    w, b = parameters(37, torch.bfloat16, device)
    _, saved = kernel.forward(x, w, b.float())
    _, dw, db = kernel.backward(x, saved)
    assert (dw.dtype, db.dtype) == (torch.bfloat16, torch.float32)
    _, saved = kernel.forward(x, None, b.float())
    assert kernel.backward(x, saved)[1] is None and torch.equal(kernel.backward(x, saved)[2], db)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_the_longest_kind_and_longer(dtype, device, poisoned):
    longest = kernel.ROW_BYTES // (8 if dtype == torch.float64 else 4)
    for n in (longest // 2, longest, longest + 1001):
        x, dy = (draw(2, n, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
        check(x, dy, *parameters(n, dtype, device))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_apart_from_rows(dtype, device, poisoned, monkeypatch):
    apart_from_sums(kernel, monkeypatch, 63, dtype)
    check(
        *(draw(7, 63, dtype=dtype, device=device, seed=seed) for seed in (0, 1)),
        *parameters(63, dtype, device),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_totals_of_several_pieces(dtype, device, poisoned, monkeypatch):
    """Each program of the last launch adds up two pieces of partial sums, for some of the columns."""
    monkeypatch.setattr(sums_over_rows, "PROGRAMS", 5)
    monkeypatch.setattr(norm_rows, "TOTALS", (4, 16))
    monkeypatch.setattr(launch, "SHORT_ROWS_ELEMENTS", 64)
    check(
        *(draw(7, 63, dtype=dtype, device=device, seed=seed) for seed in (0, 1)),
        *parameters(63, dtype, device),
    )


@pytest.mark.parametrize("view", STRIDED)
@pytest.mark.parametrize("strided", ["x", "dy"])
def test_any_strides(view, strided, path, device, poisoned):
    if view == "expanded over the row" and strided == "x":
        view = "expanded over the batch"  # rows of one value have no variance: see test_constant_rows
    viewed = draw_view(view, device=device)
    plain = draw(*viewed.shape, dtype=torch.float32, device=device, seed=1)
    x, dy = (viewed, plain) if strided == "x" else (plain, viewed)
    w, b = parameters(2 * viewed.shape[-1], torch.float32, device)
    check(x, dy, w[::2], b[::2])


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_an_offset_of_ten_thousand(offset, path, device, poisoned):
    """The variance is taken about the mean: the difference of two mean squares would round to noise."""
    x = draw(4, 70, dtype=torch.float32, device=device) + offset
    y, *_ = check(x, draw(4, 70, dtype=torch.float32, device=device, seed=1))
    exact, _ = op.forward(x.double())
    assert (y - exact).abs().max() < 2e-3  # the spacing of numbers at 1e4, over a deviation of 1


def test_rows_of_1000_in_float16_do_not_overflow(path, device, poisoned):
    x = draw(3, 60, dtype=torch.float16, device=device, scale=1000.0)
    check(x, draw(3, 60, dtype=torch.float16, device=device, seed=1))


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_constant_rows(path, device):
    x = torch.full((3, 50), 0.1, device=device)
    dy = draw(3, 50, dtype=torch.float32, device=device)
    y, saved = kernel.forward(x)
    assert y.abs().max() < 1e-4
    expected = (dy - dy.mean(-1, keepdim=True)) / 1e-5**0.5
    torch.testing.assert_close(kernel.backward(dy, saved)[0], expected, rtol=1e-3, atol=1e-2)
    assert torch.isnan(kernel.forward(torch.zeros(2, 50, device=device), eps=0)[0]).all()


def test_sums_over_many_rows_of_16_bits_do_not_stall(device):
    """Added up in bfloat16, ones would stop at 256."""
    x = draw(1000, 4, dtype=torch.bfloat16, device=device)
    w, b = (torch.ones(4, dtype=torch.bfloat16, device=device) for _ in range(2))
    _, saved = kernel.forward(x, w, b)
    *_, db = kernel.backward(torch.ones_like(x), saved)
    assert db.tolist() == [1000] * 4


def test_nan_spoils_its_own_row_only(path, device):
    x = draw(3, 50, dtype=torch.float32, device=device)
    x[1, 7] = torch.nan
    y, saved = kernel.forward(x)
    dx, *_ = kernel.backward(draw(3, 50, dtype=torch.float32, device=device, seed=1), saved)
    for found in (y, dx):
        assert torch.isnan(found).any(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5)], ids=str)
def test_no_rows(shape, device):
    x = draw(*shape, dtype=torch.float32, device=device)
    w, b = parameters(5, torch.float32, device)
    y, saved = kernel.forward(x, w, b)
    dx, dw, db = kernel.backward(x, saved)
    assert y.shape == dx.shape == shape
    assert torch.equal(dw, torch.zeros(5, device=device))
    assert torch.equal(db, torch.zeros(5, device=device))


def test_one_element_is_its_own_mean(path, device):
    x, dy = (draw(3, 1, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1))
    y, saved = kernel.forward(x)
    assert torch.equal(y, torch.zeros(3, 1, device=device))
    assert torch.equal(kernel.backward(dy, saved)[0], torch.zeros(3, 1, device=device))


def test_an_epsilon_below_zero_is_rejected(device):
    with pytest.raises(ValueError, match="eps: expected a finite number of at least 0; got -1"):
        kernel.forward(torch.ones(3, device=device), eps=-1.0)


@pytest.mark.skipif(on_cpu(), reason="needs a CUDA device: the interpreter would take minutes for 4 GiB")
@pytest.mark.parametrize("n", [2**13, 2**15], ids=["rows", "tiles"])
def test_offsets_beyond_32_bits(n, device):
    m = 2**31 // n + 1
    x, dy = (torch.zeros(m, n, dtype=torch.float16, device=device) for _ in range(2))
    x[-1], dy[-1] = (draw(n, dtype=torch.float16, device=device, seed=seed) for seed in (0, 1))
    w, b = parameters(n, torch.float16, device)
    y, saved = kernel.forward(x, w, b)
    last_y, last_saved = kernel.forward(x[-1], w, b)
    assert torch.equal(y[-1], last_y)
    for all_of_it, last in zip(kernel.backward(dy, saved), kernel.backward(dy[-1], last_saved), strict=True):
        assert torch.equal(all_of_it[-1] if all_of_it.ndim == 2 else all_of_it, last)
