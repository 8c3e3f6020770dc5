"""The array helper: the same in every library, and adjoint where it says so."""

import math

import mpmath
import numpy as np
import pytest
import torch

from backpass.contract import arrays
from backpass.interpreters import counting, symbolic

LIBRARIES = pytest.mark.parametrize(
    "make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"]
)


def plain(x):
    return x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)


@pytest.mark.parametrize("value", [np.ones(2), torch.ones(2), counting.array(1.0), symbolic.array("x", ())])
def test_arrays_are_arrays(value):
    assert arrays.is_array(value)


@pytest.mark.parametrize("value", [1.0, [1.0], (1.0,), None, "x", 1j])
def test_numbers_and_lists_are_not(value):
    assert not arrays.is_array(value)


def test_a_namespace_is_shared_or_rejected():
    assert arrays.namespace(torch.ones(2), None) is arrays.namespace(torch.ones(3))
    with pytest.raises(TypeError):
        arrays.namespace(np.ones(2), torch.ones(2))
    with pytest.raises(TypeError):
        arrays.namespace(np.ones(2), counting.array(1.0))


def test_zeros_are_like_an_array():
    for like in (np.ones(2, np.float16), torch.ones(2, dtype=torch.bfloat16)):
        found = arrays.zeros((3, 4), like)
        assert type(found) is type(like) and found.dtype == like.dtype
        assert tuple(found.shape) == (3, 4) and not (found != 0).any()


def test_size():
    assert [arrays.size(shape) for shape in [(), (3,), (2, 3), (2, 0)]] == [1, 3, 6, 0]


@LIBRARIES
def test_transpose_and_as_matrix(make):
    x = np.arange(24.0).reshape(2, 3, 4)
    assert np.array_equal(plain(arrays.transpose(make(x))), x.swapaxes(1, 2))
    assert np.array_equal(plain(arrays.as_matrix(make(x))), x.reshape(6, 4))
    assert np.array_equal(plain(arrays.as_matrix(make(x[0, 0]))), x[0, 0][None])
    assert plain(arrays.as_matrix(make(np.ones((2, 0, 3))))).shape == (0, 3)


@LIBRARIES
@pytest.mark.parametrize(
    ("shape", "full"),
    [
        ((), (2, 3)),
        ((3,), (2, 3)),
        ((1, 3), (2, 3)),
        ((2, 1, 4), (5, 2, 3, 4)),
        ((1, 1), (1, 1)),
        ((2, 3), (2, 3)),
        ((1,), (0, 3)),
        ((1, 3), (1, 1, 3)),
    ],
)
def test_sum_to_shape_is_the_adjoint_of_broadcasting(make, shape, full):
    """⟨broadcast x, z⟩ = ⟨x, sum_to_shape z⟩, at the cost of one addition for each element that vanishes."""
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal(shape), rng.standard_normal(full)
    with counting.tally() as t:
        found = plain(arrays.sum_to_shape(make(z), shape))
    assert found.shape == shape
    np.testing.assert_allclose((found * x).sum(), (np.broadcast_to(x, full) * z).sum(), rtol=1e-12)
    if make is counting.array and z.size:
        assert t.total == z.size - found.size


@LIBRARIES
@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (0, 3)])
def test_pick_reads_the_entry_that_one_hot_marks(make, shape):
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((*shape, 5)), np.asarray(rng.integers(0, 5, shape))
    with counting.tally() as t:
        picked, marks = plain(arrays.pick(make(x), make(index))), plain(arrays.one_hot(make(index), 5))
    assert marks.dtype == bool and marks.shape == x.shape
    assert np.array_equal(marks.sum(axis=-1), np.ones(shape))
    assert np.array_equal(picked, np.where(marks, x, 0.0).sum(axis=-1))
    assert t.total == 0


@LIBRARIES
def test_an_integer_without_a_place_is_marked_nowhere(make):
    marks = plain(arrays.one_hot(make(np.array([[-1, 2], [3, 0]])), 3))
    assert np.array_equal(marks, [[[0, 0, 0], [0, 0, 1]], [[0, 0, 0], [1, 0, 0]]])


@LIBRARIES
def test_pick_reads_0_where_the_index_is_minus_1(make):
    x = np.arange(1.0, 7.0).reshape(2, 3)
    assert plain(arrays.pick(make(x), make(np.array([-1, 2])))).tolist() == [0, 6]
    assert plain(arrays.pick(make(x * np.nan), make(np.array([-1, -1])))).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_are_widened_and_rounded_back(dtype):
    x = torch.tensor([300.0, -2.5]).to(dtype)
    wide = arrays.widened(x)
    assert wide.dtype == torch.float32 and torch.equal(wide, x.float())
    back = arrays.as_type_of(wide * wide / wide, x)
    assert back.dtype == dtype and torch.equal(back, x)
    half = np.ones(2, dtype=np.float16)
    assert arrays.widened(half).dtype == np.float32


@LIBRARIES
def test_wider_types_are_left_alone(make):
    x = make(np.ones(3))
    assert arrays.widened(x) is x and arrays.as_type_of(x, x) is x


@LIBRARIES
@pytest.mark.parametrize("index", [[2, 0, 2, 2], [1], []], ids=str)
def test_scatter_add_is_the_adjoint_of_taking_rows(make, index):
    """⟨w[index], z⟩ = ⟨w, scatter_add z⟩, at the cost of an addition for each element that meets another."""
    rng = np.random.default_rng(0)
    w, z = rng.standard_normal((4, 3)), rng.standard_normal((len(index), 3))
    index = np.array(index, dtype=np.int64)
    with counting.tally() as t:
        found = plain(arrays.scatter_add(make(z), make(index), 4))
    assert found.shape == w.shape and not found[3].any()
    np.testing.assert_allclose((found * w).sum(), (w[index] * z).sum(), rtol=1e-12, atol=1e-15)
    if make is counting.array:
        assert t.total == 3 * (len(index) - len(set(index.tolist())))


def test_scatter_add_of_symbols():
    found = arrays.scatter_add(symbolic.array("z", (3, 1)), symbolic.xp.asarray(np.array([1, 0, 1])), 3)
    assert [str(z) for z in found.to_numpy().flat] == ["z_1_0", "z_0_0 + z_2_0", "0"]


def test_the_gpus_way_of_adding_rows_adds_the_same_here():
    generator = torch.Generator().manual_seed(0)
    index, rows = torch.randint(0, 5, (40,), generator=generator), torch.randn(40, 3, generator=generator)
    expected = arrays.scatter_add(rows, index, 6)
    torch.testing.assert_close(arrays._add_sorted(torch.zeros(6, 3), index, rows), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_scatter_add_on_the_gpu_is_right_and_the_same_each_time():
    generator = torch.Generator().manual_seed(0)
    index, rows = (
        torch.randint(0, 5, (9000,), generator=generator),
        torch.randn(9000, 70, generator=generator),
    )
    expected = arrays.scatter_add(rows.double(), index, 6)
    first, *others = (arrays.scatter_add(rows.cuda(), index.cuda(), 6) for _ in range(5))
    assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(first.cpu().double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("error")
@LIBRARIES
def test_bounded_puts_0_for_infinities_alone(make):
    x = np.array([-np.inf, -1e300, 0.0, 2.0, np.inf])
    assert plain(arrays.bounded_below(make(x))).tolist() == [0, -1e300, 0, 2, np.inf]
    assert plain(arrays.bounded(make(x))).tolist() == [0, -1e300, 0, 2, 0]


@pytest.mark.filterwarnings("error")
@LIBRARIES
def test_near_zero_moves_what_is_far(make):
    x = np.array([-np.inf, -2.0, 0.0, 2.0, np.inf, np.nan])
    np.testing.assert_array_equal(plain(arrays.near_zero(make(x))), [-1e4, -2, 0, 2, 1e4, np.nan])
    np.testing.assert_array_equal(plain(arrays.not_far_below(make(x))), [-1e4, -2, 0, 2, np.inf, np.nan])


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_near_zero_moves_large_numbers_as_well(make):
    """Their squares and cubes then do not overflow, even in float32."""
    x = make(np.array([-3e38, -1e4, 1e4, 3e38], np.float32))
    assert plain(arrays.near_zero(x)).tolist() == [-1e4, -1e4, 1e4, 1e4]
    assert plain(arrays.not_far_below(x)).tolist()[:3] == [-1e4, -1e4, 1e4]
    assert plain(arrays.near_zero(x) ** 3 < np.inf).all()


@pytest.mark.filterwarnings("error")
@LIBRARIES
def test_sigmoid_keeps_the_digits_of_both_tails_and_never_overflows(make):
    x = np.array([-np.inf, -1e300, -1e4, -700.0, -40.0, -1.0, 0.0, 1.0, 40.0, 700.0, 1e4, 1e300, np.inf])
    with mpmath.workdps(50):
        exact = [float(1 / (1 + mpmath.exp(-mpmath.mpf(v)))) for v in x]
    np.testing.assert_allclose(plain(arrays.sigmoid(make(x))), exact, rtol=4e-16, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("function", [arrays.sigmoid, arrays.erf])
def test_sigmoid_and_erf_keep_dtype_and_shape(dtype, function):
    for shape in [(), (3,), (2, 0), (2, 3)]:
        x = np.ones(shape, dtype=dtype)
        assert function(x).dtype == x.dtype and function(x).shape == shape
        if dtype != "complex128":
            assert function(torch.tensor(x)).dtype == torch.tensor(x).dtype


@LIBRARIES
def test_erf_is_pythons(make):
    x = np.linspace(-7, 7, 41)
    np.testing.assert_allclose(plain(arrays.erf(make(x))), [math.erf(v) for v in x], rtol=2e-16)


def test_erf_of_complex_numbers_is_analytic():
    """In a strip about the real axis, and with the imaginary part of a complex step."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-7, 7, 50), [0.0, -6.0, 6.0]])
    for imaginary in (0.0, 1e-30, -0.3, 0.9):
        z = x + 1j * imaginary
        with mpmath.workdps(60):
            exact = np.array([complex(mpmath.erf(v)) for v in z])
        found = arrays.erf(z)
        np.testing.assert_allclose(found.real, exact.real, atol=1e-14)
        np.testing.assert_allclose(found.imag, exact.imag, atol=1e-14 * abs(imaginary), rtol=1e-13)
