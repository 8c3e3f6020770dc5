"""What simplex_norm and sphere_norm promise beside the contract: rows of zeros, NaN, the mean, what they save, and which
other operations they are made of."""

import numpy as np
import pytest
import torch

from backpass.cost import count, memory
from backpass.interpreters import counting
from backpass.interpreters.closed_world import Array
from backpass.ops import rms_norm, simplex_norm, softmax, sphere_norm

BOTH = pytest.mark.parametrize("op", [simplex_norm, sphere_norm], ids=["simplex", "sphere"])


def drawn(op, shape=(4, 7), seed=0):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
    return np.abs(x) if op is simplex_norm else x, dy


def plain(x):
    return x.to_numpy() if isinstance(x, Array) else np.asarray(x)


def step(op, x, dy, **options):
    y, saved = op.forward(x, **options)
    return y, op.backward(dy, saved)


def by_pytorch(op, x, dy, mean=False):
    x = torch.tensor(x, requires_grad=True)
    terms = x if op is simplex_norm else x.square()
    size = terms.mean(dim=-1, keepdim=True) if mean else terms.sum(dim=-1, keepdim=True)
    y = x / (size if op is simplex_norm else size.sqrt())
    (dx,) = torch.autograd.grad(y, x, torch.tensor(dy))
    return y.detach().numpy(), dx.numpy()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
@BOTH
def test_a_row_of_zeros_has_output_and_gradient_zero(op, make, mean):
    x, dy = drawn(op)
    x[1] = 0
    y, dx = map(plain, step(op, make(x), make(dy), mean=mean))
    assert not y[1].any() and not dx[1].any()
    others = [0, 2, 3]
    for ours, alone in zip((y, dx), step(op, x[others], dy[others], mean=mean), strict=True):
        np.testing.assert_allclose(ours[others], alone, rtol=1e-14)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("op", "x", "normalised"),
    [
        (simplex_norm, np.array([[5e-324, 0.0, 0.0], [1.0, 2.0, 3.0]]), [0.5, 1.0, 1.5]),
        (sphere_norm, np.array([[4e-23, 0, 0], [1, -1, 1]], np.float32), [1, -1, 1]),
    ],
    ids=["simplex", "sphere"],
)
def test_a_row_whose_mean_is_too_small_for_the_dtype_has_output_and_gradient_zero(op, x, normalised, make):
    dy = np.array([[1, -2, 3]] * 2, x.dtype)
    y, dx = map(plain, step(op, make(x), make(dy), mean=True))
    assert not y[0].any() and not dx[0].any()
    assert y[1].tolist() == normalised and dx[1].any()
    of_small = plain(op.forward(make(x))[0])[0]  # over the sum or the length, which is not 0
    assert of_small.tolist() == [1, 0, 0] if op is simplex_norm else of_small[0] > 0.9


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize(
    ("op", "x"),
    [(simplex_norm, [1e308, 1e308, 1.0]), (sphere_norm, [1e200, -1.0, 1.0])],
    ids=["simplex", "sphere"],
)
def test_a_row_whose_sum_is_past_the_dtype_has_output_and_gradient_zero_as_in_pytorch(op, x, mean):
    x, dy = np.array(x), np.array([1.0, -2.0, 3.0])
    for ours, theirs in zip(step(op, x, dy, mean=mean), by_pytorch(op, x, dy, mean), strict=True):
        np.testing.assert_array_equal(ours, 0)
        np.testing.assert_array_equal(theirs, 0)


@BOTH
def test_nan_passes_in_both_directions(op):
    x, dy = drawn(op)
    x[2, 3] = np.nan
    y, dx = step(op, x, dy)
    assert np.isnan(y[2]).all() and np.isnan(dx[2]).all()
    assert np.isfinite(y[[0, 1, 3]]).all() and np.isfinite(dx[[0, 1, 3]]).all()


@BOTH
def test_it_keeps_its_output_and_one_number_a_row(op):
    x, _ = drawn(op)
    y, saved = op.forward(x)
    assert saved.y is y and saved.divisor.shape == (4, 1)
    assert memory(op, x).activations == y.nbytes + 4 * 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("op", "n", "normalised"),
    [(simplex_norm, 300, 1 / 300), (sphere_norm, 4, 0.5)],
    ids=["simplex", "sphere"],
)
def test_a_sum_beyond_float16_does_not_overflow(op, n, normalised, dtype):
    x = torch.full((2, n), 300.0).to(dtype)
    y, saved = op.forward(x)
    assert y.dtype == dtype and saved.divisor.dtype == torch.float32
    torch.testing.assert_close(y, torch.full((2, n), normalised).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("op", "factor"),
    [(simplex_norm, factor) for factor in (1e-300, 1e-3, 1e300)]
    + [(sphere_norm, factor) for factor in (1e-140, 0.25, -1.0, -3.0, 1e140)],
)
def test_a_factor_leaves_its_sign_and_divides_the_gradient(op, factor):
    """For the simplex, 1/σ would overflow before x/σ does: so x is divided."""
    x, dy = drawn(op)
    y, dx = step(op, x, dy)
    y_of_scaled, dx_of_scaled = step(op, x * factor, dy)
    np.testing.assert_allclose(y_of_scaled, np.sign(factor) * y, rtol=1e-14)
    np.testing.assert_allclose(dx_of_scaled, dx / abs(factor), rtol=1e-12)


class TestSimplex:
    def test_rows_sum_to_1_and_with_the_mean_to_n(self):
        x, _ = drawn(simplex_norm)
        np.testing.assert_allclose(simplex_norm.forward(x)[0].sum(axis=1), 1, rtol=1e-15)
        np.testing.assert_allclose(simplex_norm.forward(x, mean=True)[0].sum(axis=1), 7, rtol=1e-15)

    def test_the_mean_makes_output_and_gradient_n_times_as_large(self):
        x, dy = drawn(simplex_norm)
        found = step(simplex_norm, x, dy), step(simplex_norm, x, dy, mean=True)
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(other, 7 * one, rtol=1e-12)

    def test_of_exponentials_it_is_softmax(self):
        scores = np.random.default_rng(2).standard_normal((4, 7))
        _, dy = drawn(simplex_norm)
        expected, saved = softmax.forward(scores)
        y, dexps = step(simplex_norm, np.exp(scores), dy)
        np.testing.assert_allclose(y, expected, rtol=1e-14)
        dscores = dexps * np.exp(scores)
        np.testing.assert_allclose(dscores, softmax.backward(dy, saved), rtol=1e-12, atol=1e-16)

    def test_entries_may_be_negative_where_the_sum_is_positive(self):
        x, dy = drawn(simplex_norm)
        x[:, 0] = -0.5 * x[:, 1]
        found = step(simplex_norm, x, dy), by_pytorch(simplex_norm, x, dy)
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)

    @pytest.mark.parametrize(
        "make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"]
    )
    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (
                [[1.0, 2.0], [1.0, -1.5]],
                r"x: expected rows whose sums are positive; got a sum of -0.5 in row \[1\]",
            ),
            ([[[1.0, 2.0], [1.0, -1.0]]], r"got a sum of 0.0 in row \[0, 1\]"),
            ([-1.0, 0.5], "got a sum of -0.5 in the only row"),
        ],
    )
    def test_a_sum_that_is_not_positive_is_rejected(self, make, rows, message):
        with pytest.raises(ValueError, match=message):
            simplex_norm.forward(make(np.array(rows)))

    def test_where_only_a_shape_is_given_the_numbers_drawn_are_positive(self):
        assert count(simplex_norm, (50, 3)).forward.total == 50 * 5


class TestSphere:
    def test_with_the_mean_it_is_rms_norm_without_epsilon_and_without_it_root_n_times_smaller(self):
        x, dy = drawn(sphere_norm)
        expected, saved = rms_norm.forward(x, eps=0)
        expected = expected, rms_norm.backward(dy, saved)[0]
        found = step(sphere_norm, x, dy, mean=True), step(sphere_norm, x, dy)
        for ours, smaller, theirs in zip(*found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
            np.testing.assert_allclose(np.sqrt(7) * smaller, theirs, rtol=1e-12)

    def test_the_jacobian_is_symmetric_and_kills_y_alone(self):
        x, _ = drawn(sphere_norm, (1, 9))
        y, saved = sphere_norm.forward(x)
        rows = np.concatenate([sphere_norm.backward(e[None], saved) for e in np.eye(9)])
        np.testing.assert_allclose(rows, rows.T, atol=1e-16)
        np.testing.assert_allclose(rows @ y[0], 0, atol=1e-15)
        np.testing.assert_allclose(np.linalg.svd(rows)[1][:8], 1 / np.linalg.norm(x), rtol=1e-12)
