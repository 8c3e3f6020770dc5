"""What SwiGLU's gate promises beside the contract: two arrays saved, or three and fewer FLOPs."""

import math

import numpy as np
import pytest
import torch

from backpass import cost
from backpass.interpreters import counting
from backpass.ops import silu, swiglu
from backpass.verify import check

KEEP = pytest.mark.parametrize("keep_sigmoid", [False, True])


def drawn(shape=(5, 7), seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape) for _ in range(3))


def both(g, u, dy, **options):
    y, saved = swiglu.forward(g, u, **options)
    return y, *swiglu.backward(dy, saved)


@KEEP
def test_it_is_silu_times_u(keep_sigmoid):
    g, u, dy = drawn()
    y, dg, du = both(g, u, dy, keep_sigmoid=keep_sigmoid)
    activated, saved = silu.forward(g)
    np.testing.assert_allclose(y, activated * u, rtol=1e-15)
    np.testing.assert_allclose(du, dy * activated, rtol=1e-15)
    np.testing.assert_allclose(dg, silu.backward(dy * u, saved), rtol=1e-14)


def test_a_third_array_buys_five_flops_an_element():
    for keep_sigmoid, arrays, backward in ((False, 2, 13), (True, 3, 8)):
        found = cost.count(swiglu, (4, 6), (4, 6), keep_sigmoid=keep_sigmoid)
        assert found.saved_bytes == arrays * 24 * 8
        assert (found.forward.total, found.backward.total) == (7 * 24, backward * 24)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_kept_sigmoid_has_the_inputs_dtype_and_does_no_harm(dtype):
    g, u, _ = (torch.tensor(a).to(dtype) for a in drawn())
    _, saved = swiglu.forward(g, u, keep_sigmoid=True)
    assert saved.sigmoid.dtype == dtype
    assert not check(swiglu, g, u, keep_sigmoid=True, methods=["precision"]).failed


@KEEP
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_no_g_is_too_large(keep_sigmoid, dtype):
    g = torch.tensor([-math.inf, -6e4, -1e4, 1e4, 6e4, math.inf]).to(dtype)
    y, dg, du = both(g, torch.ones_like(g), torch.ones_like(g), keep_sigmoid=keep_sigmoid)
    for value in (y, du):
        assert value[:3].tolist() == [0.0] * 3 and torch.equal(value[3:], g[3:])
    assert dg.tolist() == [0.0] * 3 + [1.0] * 3


@pytest.mark.filterwarnings("error")
def test_nothing_overflows_on_the_way():
    g = np.array([-np.inf, -1e300, 1e300, np.inf])
    y, dg, du = both(g, np.full(4, 0.5), np.ones(4))
    assert y.tolist() == [0, 0, 5e299, np.inf] and du.tolist() == [0, 0, 1e300, np.inf]
    assert dg.tolist() == [0, 0, 0.5, 0.5]


def test_nothing_is_broadcast():
    with (
        counting.tally() as t,
        pytest.raises(ValueError, match=r"u: expected u\[\*\] with leading axes \[2, 3\]"),
    ):
        swiglu.forward(counting.array(np.ones((2, 3))), counting.array(np.ones(3)))
    assert t.total == 0


@KEEP
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 1, 3, 1, 2)])
def test_any_shape(keep_sigmoid, shape):
    arrays = drawn(shape)
    found = both(*arrays, keep_sigmoid=keep_sigmoid)
    flat = both(*(a.reshape(-1) for a in arrays), keep_sigmoid=keep_sigmoid)
    for a, b in zip(found, flat, strict=True):
        assert a.shape == shape and np.array_equal(np.ravel(a), b)
