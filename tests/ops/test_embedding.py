"""What embedding promises beside the contract: repeated tokens, any integers, no token outside, sums that do not stall."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backpass.interpreters import counting
from backpass.ops import embedding
from backpass.verify import check

MAKERS = pytest.mark.parametrize(
    "make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"]
)


def plain(x):
    return x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)


def gradient(make, t, w, dy):
    y, saved = embedding.forward(make(t), make(w))
    return plain(y), plain(embedding.backward(make(dy), saved))


@MAKERS
def test_the_gpt2_posts_example(make):
    """Tokens 2, 5, 2 counted from 1: row 2 gets the first and the third gradient, row 5 the second, others none."""
    rng = np.random.default_rng(0)
    w, dy = rng.standard_normal((6, 3)), rng.standard_normal((3, 3))
    y, dw = gradient(make, np.array([1, 4, 1]), w, dy)
    assert np.array_equal(y, w[[1, 4, 1]])
    assert np.array_equal(dw, [0 * dy[0], dy[0] + dy[2], 0 * dy[0], 0 * dy[0], dy[1], 0 * dy[0]])


@MAKERS
@pytest.mark.parametrize("shape", [(0,), (1,), (), (3, 0), (2, 1, 3, 1, 2)])
@pytest.mark.parametrize("vocabulary", [1, 4])
def test_it_is_the_product_with_rows_of_one_1(make, shape, vocabulary):
    rng = np.random.default_rng(0)
    t = np.asarray(rng.integers(0, vocabulary, shape))
    w, dy = rng.standard_normal((vocabulary, 3)), rng.standard_normal((*shape, 3))
    marks = (t.reshape(-1)[:, None] == np.arange(vocabulary)).astype(float)
    y, dw = gradient(make, t, w, dy)
    assert np.array_equal(y, (marks @ w).reshape(dy.shape))
    np.testing.assert_allclose(dw, marks.T @ dy.reshape(-1, 3), rtol=1e-13, atol=1e-15)


@MAKERS
@pytest.mark.parametrize("outside", [5, 9, -1, -6])
def test_a_token_outside_the_vocabulary_is_named_before_any_arithmetic(make, outside):
    t = make(np.array([[0, 4], [outside, 3]]))
    with (
        counting.tally() as tally,
        pytest.raises(IndexError, match=rf"^t: expected tokens from 0 to 4; got {outside}$"),
    ):
        embedding.forward(t, make(np.ones((5, 2))))
    assert tally.total == 0


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_any_integers_are_tokens(dtype, library):
    """Also those that are too short to say how large the vocabulary is."""
    t, w, dy = np.array([3, 0, 3]), np.arange(600.0).reshape(300, 2), np.ones((3, 2))
    if library == "torch":
        t, w, dy = torch.tensor(t).to(getattr(torch, dtype)), torch.tensor(w), torch.tensor(dy)
    else:
        t = t.astype(dtype)
    y, saved = embedding.forward(t, w)
    assert plain(y).tolist() == [[6, 7], [0, 1], [6, 7]]
    assert plain(embedding.backward(dy, saved))[:4].tolist() == [[1, 1], [0, 0], [0, 0], [2, 2]]


@pytest.mark.parametrize(
    ("t", "w", "error", "message"),
    [
        (np.zeros(3), np.ones((4, 2)), TypeError, "t: expected integers; got dtype float64"),
        (np.ones(3, bool), np.ones((4, 2)), TypeError, "t: expected integers; got dtype bool"),
        ([0, 1], np.ones((4, 2)), TypeError, r"t: expected an array t\[\*\]; got list"),
        (np.zeros(3, int), torch.ones(4, 2), TypeError, "w: expected t's array library, numpy; got torch"),
        (np.zeros(3, int), np.ones((0, 2)), ValueError, r"w: expected w\[V, h\] with V of at least 1"),
        (np.zeros(3, int), np.ones(4), ValueError, r"w: expected w\[V, h\], which has exactly 2 axes"),
    ],
    ids=["floats", "booleans", "list", "library", "no words", "axes"],
)
def test_bad_tokens_and_tables_are_rejected(t, w, error, message):
    with pytest.raises(error, match=message):
        embedding.forward(t, w)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, np.float16], ids=str)
def test_a_token_that_occurs_a_thousand_times_is_summed_in_float32(dtype):
    """bfloat16 has 8 bits of mantissa: 256 + 1 is 256 there, and a sum of ones goes no further. float16 has 11."""
    many = 1000 if dtype == torch.bfloat16 else 4096
    if dtype is np.float16:
        t, w, dy = np.zeros(many, int), np.ones((2, 3), dtype), np.ones((many, 3), dtype)
    else:
        t, w, dy = (
            torch.zeros(many, dtype=torch.int64),
            torch.ones(2, 3).to(dtype),
            torch.ones(many, 3).to(dtype),
        )
    _, saved = embedding.forward(t, w)
    assert embedding.backward(dy, saved).tolist() == [[many] * 3, [0] * 3]


def test_the_gradient_is_the_same_each_time_on_several_threads():
    """PyTorch's index_put_, for one, adds float32 rows in whatever order its threads come."""
    generator = torch.Generator().manual_seed(0)
    t = torch.randint(0, 20, (20000,), generator=generator)
    dy = torch.randn(20000, 64, generator=generator)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _, saved = embedding.forward(t, torch.ones(20, 64))
        first, *others = (embedding.backward(dy, saved) for _ in range(4))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first, other) for other in others)


def test_only_the_tokens_are_saved():
    t, w = np.array([1, 0, 1]), np.ones((4, 2))
    _, saved = embedding.forward(t, w)
    assert saved.t is t and saved.table == (4, 2)


@MAKERS
def test_a_second_gradient_of_the_table_is_added_to(make):
    rng = np.random.default_rng(0)
    t, w, dy = np.array([[1, 4], [1, 0]]), rng.standard_normal((5, 3)), rng.standard_normal((2, 2, 3))
    other = rng.standard_normal((5, 3))
    _, saved = embedding.forward(make(t), make(w))
    own = make(other)
    found = embedding.backward_onto(own, make(dy), saved)
    np.testing.assert_allclose(plain(found), other + plain(embedding.backward(make(dy), saved)), rtol=1e-14)
    assert make is counting.array or found is own


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_second_gradient_in_half_precision_is_rounded_once(dtype):
    many = 1000 if dtype == torch.bfloat16 else 4096
    t, ones = torch.zeros(many, dtype=torch.int64), torch.ones(2, 3, dtype=dtype)
    _, saved = embedding.forward(t, ones)
    found = embedding.backward_onto(ones, torch.ones(many, 3, dtype=dtype), saved)
    assert found.dtype == dtype
    assert found.tolist() == [[float(torch.tensor(many + 1.0).to(dtype))] * 3, [1] * 3]


def test_a_second_gradient_that_does_not_fit_is_rejected():
    _, saved = embedding.forward(np.zeros(2, int), np.ones((5, 3)))
    for other in (np.ones((4, 3)), np.ones((5, 3), np.float32), torch.ones(5, 3, dtype=torch.float64)):
        with pytest.raises(
            ValueError, match=r"dw: expected the table's shape \[5, 3\] and kind, numpy cpu float64"
        ):
            embedding.backward_onto(other, np.ones((2, 3)), saved)


@MAKERS
@pytest.mark.parametrize("padding_idx", [0, 2, -1, -5])
def test_the_row_of_padding_is_read_and_has_no_gradient_as_in_pytorch(make, padding_idx):
    rng = np.random.default_rng(0)
    t, w = np.array([[3, 0, 2, 0], [2, 4, 2, 1]]), rng.standard_normal((5, 3))
    dy = rng.standard_normal((2, 4, 3))
    y, saved = embedding.forward(make(t), make(w), padding_idx=padding_idx)
    dw = plain(embedding.backward(make(dy), saved))
    leaf = torch.tensor(w, requires_grad=True)
    theirs = torch.nn.functional.embedding(torch.tensor(t), leaf, padding_idx=padding_idx)
    (expected,) = torch.autograd.grad(theirs, leaf, torch.tensor(dy))
    assert np.array_equal(plain(y), w[t])
    np.testing.assert_allclose(dw, expected.numpy(), rtol=1e-14)
    _, dw_of_all = gradient(make, t, w, dy)
    others = np.arange(5) != padding_idx % 5
    assert not dw[~others].any() and dw_of_all[~others].any()
    assert np.array_equal(dw[others], dw_of_all[others])


@MAKERS
def test_a_second_gradient_of_the_row_of_padding_stays(make):
    """That of the output head, whose weight is the same table: its tokens are not padding."""
    rng = np.random.default_rng(0)
    t, w, dy = np.array([1, 4, 1]), rng.standard_normal((5, 3)), rng.standard_normal((3, 3))
    other = rng.standard_normal((5, 3))
    _, saved = embedding.forward(make(t), make(w), padding_idx=1)
    found = plain(embedding.backward_onto(make(other), make(dy), saved))
    assert np.array_equal(found[:4], other[:4])
    np.testing.assert_allclose(found[4], other[4] + dy[1], rtol=1e-14)


@MAKERS
def test_padding_that_is_not_finite_reaches_no_row(make):
    t, dy = np.array([1, 4]), np.array([[np.nan], [2.0]])
    _, saved = embedding.forward(make(t), make(np.ones((5, 1))), padding_idx=1)
    assert plain(embedding.backward(make(dy), saved)).tolist() == [[0], [0], [0], [0], [2]]


@pytest.mark.parametrize(
    ("padding_idx", "error", "message"),
    [
        (5, ValueError, "^padding_idx: expected an integer from -5 to 4; got 5$"),
        (-6, ValueError, "^padding_idx: expected an integer from -5 to 4; got -6$"),
        (1.0, TypeError, "^padding_idx: expected an integer, or None; got float$"),
        (True, TypeError, "^padding_idx: expected an integer, or None; got bool$"),
    ],
)
def test_padding_that_is_not_a_row_is_rejected(padding_idx, error, message):
    with pytest.raises(error, match=message):
        embedding.forward(np.zeros(3, int), np.ones((5, 2)), padding_idx=padding_idx)


METHODS = ("finite_difference", "complex_step", "symbolic", "autograd", "pytorch", "precision")


def test_a_check_knows_that_the_row_of_padding_is_a_convention():
    """Neither is the right gradient accused, nor does forward's own derivative pass."""
    t, w = np.array([1, 4, 1, 0]), np.random.default_rng(0).standard_normal((5, 3))
    report = check(embedding, t, w, padding_idx=1, methods=METHODS)
    judged = {row.method for row in report.rows if row.quantity == "dw" and row.verdict == "passed"}
    assert "PyTorch's operator" in judged and not judged & {"finite differences", "torch autograd"}
    left_out = [row.reason for row in report.rows if row.verdict == "not run" and row.quantity == "dw"]
    assert set(left_out) == {"by convention: the row padding_idx is not trained"}

    def derivative(dy, saved):
        return embedding.backward(dy, saved._replace(padding_idx=None))

    def of_another_row(dy, saved):
        return embedding.backward(dy, saved._replace(padding_idx=0))

    for backward in (derivative, of_another_row):
        wrong = SimpleNamespace(**{**vars(embedding), "backward": backward})
        report = check(wrong, t, w, padding_idx=1, raises=False)
        assert {row.method for row in report.failed} >= {"PyTorch's operator"}
    assert check(embedding, t, w, methods=METHODS).passed  # without padding every method judges
