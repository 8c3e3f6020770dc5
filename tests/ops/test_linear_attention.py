"""What linear_attention promises beside the contract: the quadratic form's values and gradients, in linear memory."""

import tracemalloc

import numpy as np
import pytest
import torch

from backpass import cost
from backpass.interpreters import counting
from backpass.interpreters.closed_world import Array
from backpass.ops import linear_attention, multilinear_attention


def drawn(s=7, d=4, d_v=3, leading=(2,), seed=0):
    rng = np.random.default_rng(seed)
    q, k, v, dy = (rng.standard_normal((*leading, s, width)) for width in (d, d, d_v, d_v))
    return np.abs(q), np.abs(k), v, dy


def plain(x):
    return x.to_numpy() if isinstance(x, Array) else np.asarray(x)


def both(op, q, k, v, dy, **options):
    y, saved = op.forward(q, k, v, **options)
    return y, *op.backward(dy, saved)


def quadratic(*arrays, causal):
    return both(multilinear_attention, *arrays, normalization="simplex", causal=causal)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_the_quadratic_forms(causal, chunk):
    arrays = drawn()
    for ours, theirs in zip(
        both(linear_attention, *arrays, causal=causal, chunk=chunk),
        quadratic(*arrays, causal=causal),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


def test_a_chunk_that_does_not_divide_a_long_sequence():
    arrays = drawn(s=301, d=8, d_v=5, leading=())
    for ours, theirs in zip(
        both(linear_attention, *arrays, causal=True, chunk=64), quadratic(*arrays, causal=True), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_whose_scores_are_all_0_has_output_and_gradient_0(causal, make):
    """A query of zeros; and one that is orthogonal to each key so far, with ReLU's features a usual thing."""
    q, k, v, dy = drawn(leading=())
    q[2] = 0
    q[4, 2:], k[:5, :2] = 0, 0
    found = [plain(a) for a in both(linear_attention, *map(make, (q, k, v, dy)), causal=causal, chunk=2)]
    expected = quadratic(q, k, v, dy, causal=causal)
    assert not found[0][2].any() and not found[1][2].any()
    assert found[0][4].any() == (not causal)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_a_sum_of_scores_that_is_negative_is_rejected_by_both_forms(causal):
    q, k, v, _ = drawn()
    q[1, 3] = -q[1, 3]
    for op, options in ((linear_attention, {}), (multilinear_attention, {"normalization": "simplex"})):
        message = r"q · k: expected rows whose sums are positive; got a sum of -\d.* in row \[1, 3\]"
        with pytest.raises(ValueError, match=message):
            op.forward(q, k, v, causal=causal, **options)


def test_scores_that_cancel_to_exactly_0_pass_here_and_not_there():
    """Only their sum is known here."""
    q, k = np.array([[1.0, 1.0], [1.0, 1.0]]), np.array([[2.0, 1.0], [-1.0, -2.0]])
    v = dy = np.ones((2, 2))
    y, dq, *_ = both(linear_attention, q, k, v, dy, causal=True)
    assert y.tolist() == [[1, 1], [0, 0]] and not dq[1].any()
    with pytest.raises(ValueError, match=r"got a sum of 0\.0"):
        multilinear_attention.forward(q, k, v, normalization="simplex", causal=True)


def test_a_factor_on_a_query_changes_nothing_and_divides_its_gradient():
    q, k, v, dy = drawn()
    y, dq, dk, dv = both(linear_attention, q, k, v, dy, causal=True)
    q[0, 5] *= 8
    y_of_scaled, dq_of_scaled, *others = both(linear_attention, q, k, v, dy, causal=True)
    dq[0, 5] /= 8
    for ours, theirs in zip((y_of_scaled, dq_of_scaled, *others), (y, dq, dk, dv), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(np.sum(dq * q, axis=-1), 0, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("s", [64, 128, 256])
def test_what_it_keeps_grows_with_the_length(s, causal):
    d, d_v = 4, 3
    arrays = drawn(s, d, d_v, leading=())
    kept = cost.memory(linear_attention, *arrays[:3], causal=causal).activations
    assert kept == 8 * s * (2 * d + 2 * d_v + 1)


def peak(s):
    """Bytes at the highest moment of a causal forward and backward, above the inputs."""
    arrays = drawn(s, leading=())
    tracemalloc.start()
    both(linear_attention, *arrays, causal=True, chunk=32)
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return highest


def test_no_array_of_the_length_squared_is_ever_made():
    peak(64)  # what is allocated once, at the first run
    short, long = peak(1024), peak(4096)
    assert long < 4.5 * short
    assert long < 4096 * 4096  # bytes; such an array has 8 for each pair


def test_flops_grow_with_the_length_and_the_quadratic_forms_with_its_square():
    def total(op, s, **options):
        return sum(cost.formula(op, (s, 64), (s, 64), (s, 64), **options))

    linear = [total(linear_attention, s, causal=True) for s in (1024, 2048)]
    square = [total(multilinear_attention, s, normalization="simplex") for s in (1024, 2048)]
    assert linear[1] == 2 * linear[0]
    assert abs(square[1] / square[0] - 4) < 0.01


@pytest.mark.parametrize(
    ("chunk", "error", "message"),
    [
        (0, ValueError, "chunk: expected at least 1 query at a time; got 0"),
        (2.0, TypeError, "chunk: expected an integer; got float"),
    ],
)
def test_what_is_not_a_chunk_is_rejected_before_any_arithmetic(chunk, error, message):
    q, k, v, _ = map(counting.array, drawn())
    with counting.tally() as t, pytest.raises(error, match=message):
        linear_attention.forward(q, k, v, chunk=chunk)
    assert t.total == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_long_sum_of_16_bits_is_as_good_as_its_rounding(dtype):
    """The state after 3000 keys is past what 16 bits tell apart; it is held in float32."""
    q, k, v, _ = (torch.tensor(a).to(dtype) for a in drawn(s=3000, d=8, leading=()))
    y, saved = linear_attention.forward(q, k, v, causal=True)
    exact, _ = linear_attention.forward(q.double(), k.double(), v.double(), causal=True)
    assert y.dtype == dtype and saved.divisor.dtype == torch.float32
    assert (y.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
