"""What multilinear_attention promises beside the contract: factors that are 0, negative scores, hidden keys, rejections."""

import itertools
import operator
from functools import reduce

import numpy as np
import pytest
import torch

from backpass.cost import memory
from backpass.interpreters import counting
from backpass.interpreters.closed_world import Array
from backpass.ops import attention, multilinear_attention

NORMALIZATIONS = ("softmax", "simplex", "sphere")
EVERY = list(itertools.product((1, 2, 3), NORMALIZATIONS))


def drawn(s_q=4, s_k=5, d=6, d_v=3, leading=(), seed=0):
    rng = np.random.default_rng(seed)
    lengths = ((s_q, d), (s_k, d), (s_k, d_v), (s_q, d_v))
    q, k, v, dy = (rng.standard_normal((*leading, *shape)) for shape in lengths)
    return np.abs(q), np.abs(k), v, dy


def both(q, k, v, dy, **options):
    y, saved = multilinear_attention.forward(q, k, v, **options)
    return y, *multilinear_attention.backward(dy, saved)


def by_autograd(q, k, v, dy, p, normalization):
    """From the definition, a query, a key and a factor at a time, through autograd, which divides by no factor."""
    q, k, v = (torch.tensor(x, requires_grad=True) for x in (q, k, v))
    width = q.shape[1] // p
    parts = [slice(m * width, (m + 1) * width) for m in range(p)]
    scores = torch.ones(len(q), len(k), dtype=torch.float64)
    for part in parts:
        scores = scores * (q[:, part] @ k[:, part].T)
    if normalization == "softmax":
        scores = scores.exp()
    norm = (scores * scores).sum(dim=1).sqrt() if normalization == "sphere" else scores.sum(dim=1)
    y = (scores / norm[:, None]) @ v
    return [a.detach().numpy() for a in (y, *torch.autograd.grad(y, (q, k, v), torch.tensor(dy)))]


def assert_agree(ours, theirs, rtol=1e-11):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


def with_zero_factors(q, k, count):
    """q and k of 3 factors of width 2, of which ``count`` are 0 for query 1 and key 2, and no score of another pair:
    there q_1 = (a, 0) and k_2 = (0, b)."""
    q, k = q.copy(), k.copy()
    for m in range(count):
        q[1, 2 * m + 1] = 0
        k[2, 2 * m] = 0
    return q, k


@pytest.mark.parametrize(("p", "normalization"), EVERY)
def test_values_and_gradients_are_autograds(p, normalization):
    arrays = drawn()
    assert_agree(both(*arrays, p=p, normalization=normalization), by_autograd(*arrays, p, normalization))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_factors_that_are_0_for_one_pair_do_not_spoil_the_others_gradients(normalization, count):
    q, k, v, dy = drawn()
    q, k = with_zero_factors(q, k, count)
    _, saved = multilinear_attention.forward(q, k, v, p=3, normalization=normalization)
    assert [int(factor[1, 2] == 0) for factor in saved.factors] == [1] * count + [0] * (3 - count)
    assert all(np.count_nonzero(factor == 0) <= 1 for factor in saved.factors)
    ours = both(q, k, v, dy, p=3, normalization=normalization)
    assert all(np.isfinite(a).all() for a in ours)
    assert_agree(ours, by_autograd(q, k, v, dy, 3, normalization))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_query_that_is_0_in_one_factor_under_softmax(p):
    """All its scores are 0 and its weights equal; the gradient of the factor that is 0 need not be."""
    q, k, v, dy = drawn()
    width = 6 // p
    q[1, :width] = 0
    y, dq, *others = both(q, k, v, dy, p=p)
    np.testing.assert_allclose(y[1], v.mean(axis=0), rtol=1e-14)
    assert dq[1, :width].all() and not dq[1, width:].any()
    assert_agree((y, dq, *others), by_autograd(q, k, v, dy, p, "softmax"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"])
@pytest.mark.parametrize("normalization", ["simplex", "sphere"])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_query_whose_scores_are_all_0_has_output_and_gradient_0(p, normalization, make):
    q, k, v, dy = drawn()
    q[1, : 6 // p] = 0
    found = both(*map(make, (q, k, v, dy)), p=p, normalization=normalization)
    found = [a.to_numpy() if isinstance(a, Array) else np.asarray(a) for a in found]
    y, dq, dk, dv = found
    assert not y[1].any() and not dq[1].any()
    others = [0, 2, 3]
    alone = by_autograd(q[others], k, v, dy[others], p, normalization)
    assert_agree((y[others], dq[others], dk, dv), alone)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_scores_of_either_sign_lie_on_the_sphere_and_pass_softmax(p):
    rng = np.random.default_rng(3)
    q, k, v, dy = (rng.standard_normal(x.shape) for x in drawn())
    for normalization in ("softmax", "sphere"):
        arrays = (q, k, v, dy)
        assert_agree(both(*arrays, p=p, normalization=normalization), by_autograd(*arrays, p, normalization))


@pytest.mark.parametrize(("p", "normalization"), EVERY)
@pytest.mark.parametrize(
    ("s_q", "s_k", "variant"), [(4, 4, "upper_left"), (3, 5, "lower_right"), (5, 3, "upper_left")]
)
def test_a_causal_query_sees_what_it_would_alone(p, normalization, s_q, s_k, variant):
    q, k, v, dy = drawn(s_q, s_k)
    y, dq, dk, dv = both(q, k, v, dy, p=p, normalization=normalization, causal=True, causal_variant=variant)
    expected = [np.zeros_like(x) for x in (y, dq, dk, dv)]
    for i in range(s_q):
        seen = min(s_k, i + 1 + (s_k - s_q if variant == "lower_right" else 0))
        one, keys = slice(i, i + 1), slice(0, seen)
        found = by_autograd(q[one], k[keys], v[keys], dy[one], p, normalization)
        for whole, part, rows in zip(expected, found, (one, one, keys, keys), strict=True):
            whole[rows] += part
    assert_agree((y, dq, dk, dv), expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("p", "normalization"), EVERY)
def test_a_query_that_sees_no_key_has_output_and_gradient_0(p, normalization):
    q, k, v, dy = drawn(5, 3)
    options = {"causal": True, "causal_variant": "lower_right"}
    y, dq, dk, dv = both(q, k, v, dy, p=p, normalization=normalization, **options)
    assert not y[:2].any() and not dq[:2].any()
    rest = both(q[2:], k, v, dy[2:], p=p, normalization=normalization, **options)
    assert_agree((y[2:], dq[2:], dk, dv), rest)


def test_with_one_factor_and_softmax_it_is_attention_without_the_scale():
    q, k, v, dy = drawn(leading=(2, 3))
    expected, saved = attention.forward(q, k, v, scale=1.0, causal=True)
    assert_agree(both(q, k, v, dy, causal=True), (expected, *attention.backward(dy, saved)[:3]))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_it_keeps_its_inputs_the_weights_and_of_several_factors_each(p):
    q, k, v, _ = drawn(leading=(2,))
    kept = memory(multilinear_attention, q, k, v, p=p, normalization="sphere").activations
    square, divisor = 2 * 4 * 5 * 8, 2 * 4 * 8
    assert kept == q.nbytes + k.nbytes + v.nbytes + (1 + (p if p > 1 else 0)) * square + divisor


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"p": 4}, ValueError, "p: expected a number of factors that divides d = 6; got 4"),
        ({"p": 0}, ValueError, "p: expected a number of factors that divides d = 6; got 0"),
        ({"p": 2.0}, TypeError, "p: expected an integer; got float"),
        (
            {"normalization": "cube"},
            ValueError,
            "normalization: expected 'softmax' or 'simplex' or 'sphere'; got 'cube'",
        ),
        ({"normalization": ["softmax"]}, ValueError, r"normalization: expected .* got \['softmax'\]"),
        ({"normalization": np.array(["softmax"])}, ValueError, r"normalization: expected .* got array\("),
        ({"causal": True, "causal_variant": "left"}, ValueError, "causal_variant: expected .* got 'left'"),
    ],
)
def test_what_it_does_not_know_is_rejected_before_any_arithmetic(options, error, message):
    q, k, v, _ = map(counting.array, drawn())
    with counting.tally() as t, pytest.raises(error, match=message):
        multilinear_attention.forward(q, k, v, **options)
    assert t.total == 0


def test_simplex_rejects_scores_whose_sum_is_not_positive_and_names_the_query():
    q, k, v, _ = drawn(leading=(2,))
    q[1, 3] = -q[1, 3]
    message = r"q · k: expected rows whose sums are positive; got a sum of -\d.* in row \[1, 3\]"
    with pytest.raises(ValueError, match=message):
        multilinear_attention.forward(q, k, v, normalization="simplex")
    multilinear_attention.forward(
        q, k, v, p=2, normalization="simplex"
    )  # a product of two negative factors is positive


SIXTEEN_BITS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def composite(q, k, v, dy, p, normalization):
    """As PyTorch computes it of its own parts, each rounded to the inputs' dtype."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    parts = zip(q.chunk(p, dim=-1), k.chunk(p, dim=-1), strict=True)
    scores = reduce(operator.mul, (a @ b.mT for a, b in parts))
    if normalization == "softmax":
        weights = scores.softmax(dim=-1)
    elif normalization == "sphere":
        weights = scores / scores.norm(dim=-1, keepdim=True)
    else:
        weights = scores / scores.sum(dim=-1, keepdim=True)
    y = weights @ v
    return y.detach(), *torch.autograd.grad(y, (q, k, v), dy)


@SIXTEEN_BITS
@pytest.mark.parametrize(("p", "normalization"), EVERY)
def test_errors_of_16_bits_stay_within_twice_those_of_pytorchs_composite(p, normalization, dtype):
    arrays = [torch.tensor(x).to(dtype) for x in drawn(17, 19, 12, 5, leading=(20,))]
    exact = composite(*(x.double() for x in arrays), p, normalization)
    ours = both(*arrays, p=p, normalization=normalization)
    theirs = composite(*arrays, p, normalization)
    for one, other, true in zip(ours, theirs, exact, strict=True):
        assert one.dtype == dtype
        assert (one - true).norm() <= 2 * (other - true).norm()


@SIXTEEN_BITS
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_factors_past_float16_do_not_overflow(normalization, dtype):
    """Of queries and keys about 300 a factor is about 180,000, past float16's largest number. For softmax two others make
    scores of a few out of it; the rest takes quotients of its third power."""
    q, k, v, dy = (torch.tensor(x) for x in drawn())
    sizes = torch.tensor((300, 0.003, 1) if normalization == "softmax" else (300, 300, 300))
    q, k = q * sizes.repeat_interleave(2), k * sizes.repeat_interleave(2)
    arrays = [x.to(dtype) for x in (q, k, v, dy)]
    found = both(*arrays, p=3, normalization=normalization)
    exact = both(*(x.double() for x in arrays), p=3, normalization=normalization)
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).abs().max() <= 8 * torch.finfo(dtype).eps * b.abs().max()


@SIXTEEN_BITS
def test_the_weights_are_kept_in_16_bits_and_the_factors_in_float32(dtype):
    q, k, v, _ = (torch.tensor(x).to(dtype) for x in drawn())
    _, saved = multilinear_attention.forward(q, k, v, p=3, normalization="sphere")
    assert saved.a.dtype == dtype and saved.weights.divisor.dtype == torch.float32
    assert [factor.dtype for factor in saved.factors] == [torch.float32] * 3


@SIXTEEN_BITS
def test_a_product_of_16_bits_passes_through_numbers_past_their_range(dtype):
    """Of factors about 600, 600 and 0.02 the first two make 360,000, past float16's largest number; all three do not."""
    q, k, v, dy = drawn()
    q *= np.repeat([300.0, 300.0, 0.01], 2)
    arrays = [torch.tensor(a).to(dtype) for a in (q, k, v, dy)]
    found = both(*arrays, p=3, normalization="simplex")
    exact = both(*(a.double() for a in arrays), p=3, normalization="simplex")
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).abs().max() <= 8 * torch.finfo(dtype).eps * b.abs().max()
