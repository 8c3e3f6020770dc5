"""What layer_norm promises beside the contract: large offsets, constant rows, one column, any ε."""

import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.ops import layer_norm


def drawn(shape=(7, 33), offset=0.0, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) + offset).astype(dtype)
    w, b = rng.standard_normal(shape[-1:]).astype(dtype), rng.standard_normal(shape[-1:]).astype(dtype)
    return x, w, b, rng.standard_normal(shape).astype(dtype)


def both(x, w, b, dy, **options):
    y, saved = layer_norm.forward(x, w, b, **options)
    return y, *layer_norm.backward(dy, saved)


def errors(got, expected):
    """Of each result, the largest error over the largest element."""
    return [
        np.abs(np.asarray(a, np.float64) - e).max() / np.abs(e).max()
        for a, e in zip(got, expected, strict=True)
    ]


def by_torch(x, w, b, dy):
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, w, b)]
    y = torch.nn.functional.layer_norm(leaves[0], x.shape[-1:], *leaves[1:])
    y.backward(torch.tensor(dy))
    return [a.detach().numpy() for a in (y, *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("n", [33, 768])
def test_an_offset_of_1e4_in_float32_costs_no_more_than_the_rounding_of_the_mean(n):
    arrays = drawn((7, n), offset=1e4, dtype=np.float32)
    expected = both(*(a.astype(np.float64) for a in arrays))
    ours = errors(both(*arrays), expected)
    # The mean has float32's spacing near 1e4, about 1e-3, and rows of variance 1 feel it in full.
    assert max(ours) < np.spacing(np.float32(1e4)), ours
    theirs = errors(by_torch(*arrays), expected)
    assert all(mine <= 2 * its + 1e-6 for mine, its in zip(ours, theirs, strict=True)), (ours, theirs)


def test_the_offset_itself_does_not_show():
    """The difference of two moments would: at 1e4 it is off by the whole variance in float32."""
    x, w, b, _ = drawn(offset=1e4, dtype=np.float32)
    mean, mean_square = x.mean(axis=-1), (x * x).mean(axis=-1)
    assert np.abs(mean_square - mean * mean - x.astype(np.float64).var(axis=-1)).max() > 0.5
    _, saved = layer_norm.forward(x, w, b)
    np.testing.assert_allclose(saved.rstd[:, 0], 1 / x.astype(np.float64).std(axis=-1), rtol=1e-5)


@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
@pytest.mark.parametrize("value", [0.0, 3.0, -1e6])
def test_a_constant_row_gives_the_bias(make, value):
    """And x_hat is 0, but dx is not: it is what ε leaves of the centred gradient."""
    x, w, b, dy = drawn((3, 5))
    x[1] = value
    arrays = [make(a) for a in (x, w, b, dy)]
    y, dx, dw, db = (np.asarray(a.to_numpy() if hasattr(a, "to_numpy") else a) for a in both(*arrays))
    np.testing.assert_array_equal(y[1], b)
    g = dy[1] * w
    np.testing.assert_allclose(dx[1], (g - g.mean()) / np.sqrt(1e-5), rtol=1e-12)
    assert np.isfinite(dx).all() and np.isfinite(dw).all() and np.isfinite(db).all()


@pytest.mark.filterwarnings("error")
def test_one_column_is_its_own_mean():
    x, w, b, dy = drawn((4, 1))
    y, dx, dw, db = both(x, w, b, dy)
    np.testing.assert_array_equal(y, np.broadcast_to(b, y.shape))
    assert not dx.any() and not dw.any()
    np.testing.assert_allclose(db, dy.sum(axis=0))


@pytest.mark.parametrize("eps", [1e-12, 1e-300, 0, 1e-5, 1.0, 1e6])
def test_any_epsilon_agrees_with_pytorch(eps):
    x, w, b, dy = drawn()
    y, dx, dw, db = both(x, w, b, dy, eps=eps)
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, w, b)]
    expected = torch.nn.functional.layer_norm(leaves[0], x.shape[-1:], *leaves[1:], eps)
    expected.backward(torch.tensor(dy))
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-12, atol=1e-13)
    assert max(errors((dx, dw, db), [leaf.grad.numpy() for leaf in leaves])) < 1e-12


def test_the_jacobian_kills_the_ones_and_x_hat_up_to_epsilon():
    x, *_ = drawn((1, 9))
    eps = 0.25
    y, saved = layer_norm.forward(x, eps=eps)
    rows = np.concatenate([layer_norm.backward(e[None], saved)[0] for e in np.eye(9)])
    np.testing.assert_allclose(rows @ np.ones(9), 0, atol=1e-15)
    rstd = saved.rstd[0, 0]
    np.testing.assert_allclose(rows @ y[0], eps * rstd**3 * y[0], rtol=1e-12)
    other = np.linalg.svd(rows)[1]
    np.testing.assert_allclose(other[:7], rstd, rtol=1e-12)
    np.testing.assert_allclose(other[7:], [eps * rstd**3, 0], atol=1e-15)


def test_without_parameters_x_hat_is_y_and_is_kept_once():
    x, *_ = drawn()
    y, saved = layer_norm.forward(x)
    assert saved.x_hat is y and saved.w is None and saved.wanted == ("x",)
    _, dw, db = layer_norm.backward(x, saved)
    assert dw is None and db is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_squares_beyond_float16_do_not_overflow(dtype):
    """300² is past float16's largest number, and outliers of a residual stream are as large."""
    x, *parameters, dy = (torch.tensor(300 * a if a.ndim > 1 else a).to(dtype) for a in drawn())
    y, saved = layer_norm.forward(x, *parameters)
    expected = torch.nn.functional.layer_norm(x.double(), x.shape[-1:], *(p.double() for p in parameters))
    assert y.dtype == saved.x_hat.dtype == dtype and saved.rstd.dtype == torch.float32
    assert errors([y.double()], [expected.numpy()])[0] < torch.finfo(dtype).eps
    dx, *_ = layer_norm.backward(dy / 300, saved)
    exact = layer_norm.backward(
        dy.double() / 300, layer_norm.forward(x.double(), *(p.double() for p in parameters))[1]
    )[0]
    assert errors([dx.double()], [exact.numpy()])[0] < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_parameters_of_float32_get_gradients_of_float32(dtype):
    """y is the rounding of float64's. db is exact to float32; dw as exact as x_hat, which is saved in x's dtype."""
    x, w, b, dy = (torch.tensor(a) for a in drawn((400, 33), offset=0.5))
    x, dy, w, b = x.to(dtype), (dy + 1).to(dtype), w.float(), b.float()
    y, saved = layer_norm.forward(x, w, b)
    dx, dw, db = layer_norm.backward(dy, saved)
    assert (y.dtype, saved.x_hat.dtype, dx.dtype, dw.dtype, db.dtype) == (dtype,) * 3 + (torch.float32,) * 2
    exact = both(*(a.double() for a in (x, w, b, dy)))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), exact[0], rtol=eps / 2 * 1.001, atol=1e-6)
    half_saved = layer_norm.forward(x, w.to(dtype), b.to(dtype))[1]
    *_, half_db = layer_norm.backward(dy, half_saved)
    error, of_half = ((each.double() - exact[3]).norm() for each in (db, half_db))
    assert half_db.dtype == dtype and 500 * error < of_half
    terms = (dy.double() * saved.x_hat.double()).abs().sum(0)
    assert ((dw.double() - exact[2]).abs() <= (eps / 2 + 1e-5) * terms).all()


@pytest.mark.parametrize("wanted", [("w",), ("b",), ("w", "b"), ("x", "b")], ids=str)
def test_each_gradient_has_the_dtype_of_its_input(wanted):
    x = torch.ones(3, 5, dtype=torch.bfloat16)
    w, b = torch.ones(5), torch.ones(5, dtype=torch.bfloat16)
    _, saved = layer_norm.forward(x, w, b, wanted=wanted)
    found = dict(zip("xwb", layer_norm.backward(x, saved), strict=True))
    dtypes = {"x": torch.bfloat16, "w": torch.float32, "b": torch.bfloat16}
    assert {name: dx.dtype for name, dx in found.items() if dx is not None} == {n: dtypes[n] for n in wanted}


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (torch.bfloat16, torch.float64, r"x's dtype, torch\.bfloat16, or float32; got torch\.float64"),
        (torch.bfloat16, torch.float16, r"x's dtype, torch\.bfloat16, or float32; got torch\.float16"),
        (torch.float32, torch.bfloat16, r"x's dtype, torch\.float32; got torch\.bfloat16"),
    ],
)
def test_no_other_dtypes_are_mixed(x, w, message):
    with pytest.raises(TypeError, match=f"w: expected {message}"):
        layer_norm.forward(torch.ones(2, 3, dtype=x), torch.ones(3, dtype=w))


def test_no_rows_give_no_rows_and_gradients_zero():
    _, w, b, _ = drawn()
    empty = np.zeros((0, 33))
    y, dx, dw, db = both(empty, w, b, empty)
    assert y.shape == dx.shape == (0, 33)
    assert not dw.any() and not db.any() and dw.shape == db.shape == (33,)


@pytest.mark.parametrize(
    ("eps", "error", "message"),
    [
        ("1e-5", TypeError, "eps: expected a real number; got str"),
        (None, TypeError, "eps: expected a real number; got NoneType"),
        (1j, TypeError, "eps: expected a real number; got complex"),
        (-1e-5, ValueError, "eps: expected a finite number of at least 0; got -1e-05"),
        (float("nan"), ValueError, "eps: expected a finite number of at least 0; got nan"),
        (float("inf"), ValueError, "eps: expected a finite number of at least 0; got inf"),
    ],
)
def test_what_is_not_an_epsilon_is_rejected_before_any_arithmetic(eps, error, message):
    with counting.tally() as t, pytest.raises(error, match=message):
        layer_norm.forward(counting.array(np.ones((2, 3))), eps=eps)
    assert t.total == 0
