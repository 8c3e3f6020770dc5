"""What the tiled operations share: written in place where the array is the caller's own, and laid out like another
array, in each library."""

import math
import warnings

import numpy as np
import pytest
import torch

from backpass.contract.arrays import traced
from backpass.interpreters import counting
from backpass.ops import _tiling
from backpass.verify.mutation import compiled, mutants

LIBRARIES = pytest.mark.parametrize(
    "make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"]
)


def plain(x):
    return x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)


@LIBRARIES
def test_a_total_begins_with_its_first_term(make):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 2, 3)), rng.standard_normal((4, 3, 5))
    total, products = None, None
    with counting.tally() as t:
        for left, right in zip(a, b, strict=True):
            total = _tiling.plus(total, make(left))
            products = _tiling.add_product(products, make(left), make(right))
    np.testing.assert_allclose(plain(total), a.sum(axis=0), rtol=1e-14)
    np.testing.assert_allclose(plain(products), (a @ b).sum(axis=0), rtol=1e-13)
    if make is counting.array:
        assert t.by_kind == {"add": 3 * 6 + 10 * (4 * 3 - 1), "multiply": 4 * 2 * 3 * 5}


@LIBRARIES
@pytest.mark.parametrize("leading", [(), (2,), (2, 0), (3, 2)])
def test_a_product_and_a_row_are_added(make, leading):
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape) for shape in ((*leading, 3), (3, 5), (5,)))
    found = plain(_tiling.product_plus(make(x), make(w), make(b)))
    assert found.shape == (*leading, 5)
    np.testing.assert_allclose(found, x @ w + b, rtol=1e-13)


def check_plus_product(make, add_product=_tiling.add_product):
    rng = np.random.default_rng(0)
    for leading in ((), (4,)):
        a, b, c = (rng.standard_normal((*leading, *shape)) for shape in ((3, 3), (3, 5), (7, 5)))
        first = add_product(None, make(a), make(b))
        np.testing.assert_allclose(plain(first), a @ b, rtol=1e-13)
        assert plain(first).flags.c_contiguous
        if make is np.array and not leading:
            assert add_product(None, a, b, b.copy("F")).flags.f_contiguous
        whole = make(c)
        part = whole[..., 1:4, :]
        expected = c[..., 1:4, :] + a @ b
        found = add_product(part, make(a), make(b))
        np.testing.assert_allclose(plain(found), expected, rtol=1e-12)
        if make is not counting.array:
            assert found is part
            assert np.array_equal(plain(whole[..., 1:4, :]), plain(found))


def check_with_rows(make, set_rows=_tiling.set_rows):
    rng = np.random.default_rng(0)
    for leading in ((), (2, 4)):
        x = rng.standard_normal((*leading, 7, 3))
        first = whole = make(np.zeros_like(x))
        for start in (3, 6, 0):
            whole = set_rows(whole, make(x[..., start : start + 3, :]), start)
        assert np.array_equal(plain(whole), x)
        assert np.array_equal(plain(set_rows(whole, make(x[..., :0, :]), 2)), x)
        assert make is counting.array or whole is first


def check_tile_added(make, add_tile=_tiling.add_tile):
    rng = np.random.default_rng(0)
    rows, columns = slice(3, 5), slice(1, 4)
    for shape, at in (
        ((7, 5), (rows, columns)),
        ((2, 4, 7, 5), (slice(None), slice(None), rows, columns)),
        ((4, 1, 5), (slice(None), slice(0, 1), columns)),
        ((5,), (columns,)),
        ((), ()),
    ):
        x = rng.standard_normal(shape)
        part = rng.standard_normal(x[at].shape)
        whole = make(x.copy())
        found = add_tile(whole, make(part), at)
        expected = x.copy()
        expected[at] += part
        np.testing.assert_array_equal(plain(found), expected)
        assert plain(found).shape == shape
        assert make is counting.array or found is whole


def check_exp_over(make, exp_in_place=_tiling.exp_in_place):
    x = np.array([[-math.inf, -90.0, -1e-3, 0.0], [1.0, -700.0, 12.5, -40.0]])
    own = make(x)
    found = exp_in_place(own)
    np.testing.assert_allclose(plain(found), np.exp(x), rtol=2e-13)
    assert make is counting.array or found is own


def check_laid_out(make, product=_tiling.product):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3)), rng.standard_normal((3, 5))
    for turned in (False, True):
        found = product(make(a), make(b), turned)
        np.testing.assert_allclose(plain(found), a @ b, rtol=1e-13)
        if make is not counting.array:
            assert plain(found).flags.c_contiguous != turned
            assert plain(found).flags.f_contiguous == turned


def check_less_at(make, less_at=_tiling.less_at):
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((6, 3)), np.array([2, -1, 0, -1, -1, 1])
    x[1], x[4, 0] = np.nan, np.inf  # which 0 · x would not clear
    for amount in (None, 0.25, rng.standard_normal((6, 1))):
        each = 1 if amount is None else amount
        expected = np.where(index[:, None] < 0, 0, x - each * (index[:, None] == np.arange(3)))
        own = make(x.copy())
        amounts = () if amount is None else (make(amount) if isinstance(amount, np.ndarray) else amount,)
        found = less_at(own, make(index), *amounts)
        np.testing.assert_array_equal(plain(found), expected)
        assert make is counting.array or found is own
        if make is torch.tensor:
            with traced():
                computed = less_at(make(x.copy()), make(index), *amounts)
            np.testing.assert_array_equal(plain(computed), expected)


def check_is_turned(make, is_turned=_tiling.is_turned):
    w = make(np.ones((5, 2)))
    assert is_turned(w) is False
    assert is_turned(None) is False
    if make is counting.array:
        return
    turned = w.mT if make is torch.tensor else w.T
    assert is_turned(turned) is True
    assert is_turned(turned[:, 1:3]) is True
    assert is_turned(turned[:1, :]) is False  # neither: its numbers are two apart
    assert is_turned(w[:, :1]) is False
    assert is_turned(w[:1, :]) is False  # both


IN_PLACE = {
    "add_product": check_plus_product,
    "set_rows": check_with_rows,
    "add_tile": check_tile_added,
    "exp_in_place": check_exp_over,
    "product": check_laid_out,
    "is_turned": check_is_turned,
    "less_at": check_less_at,
}
EQUIVALENT = {
    "array_api_compat.is_torch_array(total) → array_api_compat.is_torch_array(a)": "The three are of one library.",
    "array_api_compat.is_torch_array(total) → array_api_compat.is_torch_array(b)": "The three are of one library.",
    "array_api_compat.is_torch_array(whole) → array_api_compat.is_torch_array(part)": "Both are of one library.",
    "array_api_compat.is_numpy_array(whole) → array_api_compat.is_numpy_array(part)": "Both are of one library.",
    **dict.fromkeys(
        [
            *(
                f"array_api_compat.is_{library}_array(whole) → array_api_compat.is_{library}_array({other})"
                for library in ("numpy", "torch")
                for other in ("rows", "columns")
            ),
            *(
                "array_api_compat.is_torch_array(whole) or array_api_compat.is_numpy_array(whole) → "
                f"array_api_compat.is_{change}_array(whole)"
                for change in ("numpy", "torch", "torch_array(whole) and array_api_compat.is_numpy")
            ),
        ],
        "Of add_tile alone: set_rows then writes the row of tiles in place, with the same numbers.",
    ),
    "array_api_compat.is_torch_array(total) → array_api_compat.is_torch_array(like)": "Adds in place too, by way of a "
    "second array.",
    "array_api_compat.is_torch_array(x) → array_api_compat.is_torch_array(index)": "Both are of one library.",
    "array_api_compat.is_torch_array(x) → array_api_compat.is_torch_array(nowhere)": "Both are of one library.",
    "array_api_compat.is_numpy_array(x) → array_api_compat.is_numpy_array(index)": "Both are of one library.",
    "array_api_compat.is_numpy_array(x) → array_api_compat.is_numpy_array(nowhere)": "Both are of one library.",
    "xp.where(nowhere, 0.0, xp.where(one_hot(index, x.shape[-1]), less, x)) → "
    "xp.where(nowhere, -0.0, xp.where(one_hot(index, x.shape[-1]), less, x))": "A zero of the other sign is equal to zero.",
    "xp.where(nowhere, 0.0, less) → xp.where(nowhere, -0.0, less)": "A zero of the other sign is equal to zero.",
    "-1 → 1": "The array has two axes.",
    "slice(0, 1) → slice(0, 2)": "Of an axis of length 1.",
    "np.take_along_axis(x, at, axis=1) → np.take_along_axis(x, at)": "The default is the last of the two axes.",
    "total.shape → a.shape": "All three have as many axes.",
    "total.shape → b.shape": "All three have as many axes.",
}


@LIBRARIES
@pytest.mark.parametrize("name", IN_PLACE)
def test_results_are_written_over_what_is_the_callers_own(make, name):
    IN_PLACE[name](make)


@pytest.mark.parametrize("name", IN_PLACE)
def test_every_change_of_what_writes_in_place_is_caught(name):
    """In each library: a backward that calls them is checked in NumPy."""

    def survives(mutant):
        try:
            for make in (np.array, torch.tensor, counting.array):
                IN_PLACE[name](make, compiled(mutant, _tiling)[name])
        except Exception:
            return False
        return True

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        survivors = {mutant.change for mutant in mutants(vars(_tiling)[name]) if survives(mutant)}
    assert survivors <= set(EQUIVALENT), survivors - set(EQUIVALENT)


def test_an_exponential_costs_one_operation():
    with counting.tally() as t:
        _tiling.exp_in_place(counting.array(np.ones((2, 4))))
    assert t.by_kind == {"exp": 8}
