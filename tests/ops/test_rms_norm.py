"""What rms_norm promises beside the contract: PyTorch's ε, large and constant rows, one column."""

import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.ops import layer_norm, rms_norm


def drawn(shape=(7, 33), offset=0.0, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) + offset).astype(dtype)
    return x, rng.standard_normal(shape[-1:]).astype(dtype), rng.standard_normal(shape).astype(dtype)


def both(x, w, dy, **options):
    y, saved = rms_norm.forward(x, w, **options)
    return y, *rms_norm.backward(dy, saved)


def by_torch(x, w, dy, eps=None):
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, w)]
    y = torch.nn.functional.rms_norm(leaves[0], x.shape[-1:], leaves[1], eps)
    y.backward(torch.tensor(dy))
    return [a.detach().numpy() for a in (y, *(leaf.grad for leaf in leaves))]


def errors(got, expected):
    """Of each result, the largest error over the largest element."""
    return [
        np.abs(np.asarray(a, np.float64) - e).max() / np.abs(e).max()
        for a, e in zip(got, expected, strict=True)
    ]


@pytest.mark.parametrize("eps", [None, 0, 1e-300, 1e-12, 1e-6, 1.0, 1e6])
def test_any_epsilon_agrees_with_pytorch(eps):
    arrays = drawn()
    assert max(errors(both(*arrays, eps=eps), by_torch(*arrays, eps))) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_default_epsilon_is_pytorchs(dtype):
    """At rows so small that ε is all there is below the root."""
    x = torch.full((1, 4), 1e-6, dtype=dtype)
    y, _ = rms_norm.forward(x)
    expected = torch.nn.functional.rms_norm(x, (4,))
    np.testing.assert_allclose(y.double(), expected.double(), rtol=4 * torch.finfo(dtype).eps)


def test_an_offset_of_1e4_in_float32_loses_no_digits():
    """No mean is taken away, so nothing cancels forward; of dx the part along x_hat does."""
    arrays = drawn(offset=1e4, dtype=np.float32)
    expected = both(*(a.astype(np.float64) for a in arrays), eps=2.0**-23)
    y, dx, dw = errors(both(*arrays), expected)
    assert y < 4e-7 and dw < 1e-6
    their_dx = errors(by_torch(*arrays), expected)[1]
    assert dx <= max(2 * their_dx, 1e-6), (dx, their_dx)


@pytest.mark.parametrize("value", [3.0, -1e6, 1e-3])
def test_a_constant_row_keeps_only_its_sign(value):
    x, w, dy = drawn((3, 5))
    x[1] = value
    y, dx, _ = both(x, w, dy, eps=0)
    np.testing.assert_allclose(y[1], np.sign(value) * w, rtol=1e-15)
    g = dy[1] * w
    np.testing.assert_allclose(dx[1], (g - g.mean()) / abs(value), rtol=1e-10)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
def test_a_row_of_zeros_gives_zeros_and_a_finite_gradient(make):
    x, w, dy = drawn((3, 5))
    x[1] = 0
    found = both(*map(make, (x, w, dy)))
    y, dx, dw = (a.to_numpy() if hasattr(a, "to_numpy") else np.asarray(a) for a in found)
    assert not y[1].any() and np.isfinite(dx).all() and np.isfinite(dw).all()
    np.testing.assert_allclose(dx[1], dy[1] * w * 2.0**26, rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_one_column_keeps_only_its_sign():
    x, w, dy = drawn((4, 1))
    y, dx, dw = both(x, w, dy, eps=0)
    np.testing.assert_allclose(y, np.sign(x) * w, rtol=1e-15)
    assert np.abs(dx).max() < 1e-15 * np.abs(1 / x).max()
    np.testing.assert_allclose(dw, np.sum(dy * np.sign(x), axis=0))


def test_the_jacobian_kills_x_hat_alone_up_to_epsilon():
    x, *_ = drawn((1, 9))
    eps = 0.25
    y, saved = rms_norm.forward(x, eps=eps)
    rows = np.concatenate([rms_norm.backward(e[None], saved)[0] for e in np.eye(9)])
    rstd = saved.rstd[0, 0]
    np.testing.assert_allclose(rows @ y[0], eps * rstd**3 * y[0], rtol=1e-12)
    values = np.linalg.svd(rows)[1]
    np.testing.assert_allclose(values, [rstd] * 8 + [eps * rstd**3], rtol=1e-12)


def test_of_centred_rows_it_is_layer_norm():
    x, w, dy = drawn()
    centred = x - x.mean(axis=-1, keepdims=True)
    y, dx, dw = both(centred, w, dy, eps=1e-5)
    layer_y, saved = layer_norm.forward(x, w)
    layer_dx, layer_dw, _ = layer_norm.backward(dy, saved)
    np.testing.assert_allclose(y, layer_y, rtol=1e-13)
    np.testing.assert_allclose(dx - dx.mean(axis=-1, keepdims=True), layer_dx, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(dw, layer_dw, rtol=1e-12)


def test_without_a_weight_x_hat_is_y_and_is_kept_once():
    x, *_ = drawn()
    y, saved = rms_norm.forward(x)
    assert saved.x_hat is y and saved.w is None
    assert rms_norm.backward(x, saved)[1] is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_squares_beyond_float16_do_not_overflow(dtype):
    """300² is past float16's largest number, and outliers of a residual stream are as large."""
    x, *parameters, dy = (torch.tensor(300 * a if a.ndim > 1 else a).to(dtype) for a in drawn())
    y, saved = rms_norm.forward(x, *parameters)
    expected = torch.nn.functional.rms_norm(x.double(), x.shape[-1:], *(p.double() for p in parameters))
    assert y.dtype == saved.x_hat.dtype == dtype and saved.rstd.dtype == torch.float32
    assert errors([y.double()], [expected.numpy()])[0] < torch.finfo(dtype).eps
    dx, *_ = rms_norm.backward(dy / 300, saved)
    exact = rms_norm.backward(
        dy.double() / 300, rms_norm.forward(x.double(), *(p.double() for p in parameters))[1]
    )[0]
    assert errors([dx.double()], [exact.numpy()])[0] < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_weight_of_float32_gets_a_gradient_of_float32(dtype):
    """y is the rounding of float64's; dw is as exact as x_hat, which is saved in x's dtype."""
    x, w, dy = (torch.tensor(a) for a in drawn((400, 33)))
    x, dy, w = x.to(dtype), dy.to(dtype), w.float()
    y, saved = rms_norm.forward(x, w)
    dx, dw = rms_norm.backward(dy, saved)
    assert (y.dtype, saved.x_hat.dtype, dx.dtype, dw.dtype) == (dtype,) * 3 + (torch.float32,)
    exact_y, _, exact_dw = both(*(a.double() for a in (x, w, dy)), eps=torch.finfo(torch.float32).eps)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), exact_y, rtol=eps / 2 * 1.001, atol=1e-6)
    terms = (dy.double() * saved.x_hat.double()).abs().sum(0)
    assert ((dw.double() - exact_dw).abs() <= (eps / 2 + 1e-5) * terms).all()
    wide = rms_norm.forward(x, w, wanted=("w",))[1]
    assert torch.equal(rms_norm.backward(dy, wide)[1], dw)


def test_no_rows_give_no_rows_and_gradients_zero():
    _, w, _ = drawn()
    empty = np.zeros((0, 33))
    y, dx, dw = both(empty, w, empty)
    assert y.shape == dx.shape == (0, 33) and dw.shape == (33,) and not dw.any()


@pytest.mark.parametrize(
    ("eps", "error", "message"),
    [
        ("1e-5", TypeError, "eps: expected a real number; got str"),
        (1j, TypeError, "eps: expected a real number; got complex"),
        (-1e-6, ValueError, "eps: expected a finite number of at least 0; got -1e-06"),
        (float("nan"), ValueError, "eps: expected a finite number of at least 0; got nan"),
        (float("inf"), ValueError, "eps: expected a finite number of at least 0; got inf"),
    ],
)
def test_what_is_not_an_epsilon_is_rejected_before_any_arithmetic(eps, error, message):
    with counting.tally() as t, pytest.raises(error, match=message):
        rms_norm.forward(counting.array(np.ones((2, 3))), eps=eps)
    assert t.total == 0
