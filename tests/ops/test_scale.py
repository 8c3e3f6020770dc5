"""What scale promises beside the contract: its factor is a constant, and brings no dtype along."""

import numpy as np
import pytest

from backpass import ops
from backpass.interpreters import counting


@pytest.mark.parametrize(
    "factor", [np.float64(0.3), np.float32(0.5), np.int64(3)], ids=lambda f: f.dtype.name
)
def test_scale_by_a_scalar_of_numpy_keeps_the_dtype(factor):
    y, saved = ops.scale.forward(np.ones((2, 3), dtype=np.float32), factor=factor)
    assert y.dtype == ops.scale.backward(y, saved).dtype == np.float32


def test_a_factor_that_16_bits_cannot_hold_is_rounded_with_the_product_alone():
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float16)
    y, saved = ops.scale.forward(x, factor=96**-0.5)
    expected = (x.astype(np.float64) * 96**-0.5).astype(np.float16)
    assert np.array_equal(y, expected)
    assert np.array_equal(ops.scale.backward(x, saved), expected)


@pytest.mark.parametrize("factor", ["2", None, 1j, np.ones(1)], ids=str)
def test_what_is_not_a_real_number_is_rejected_before_any_arithmetic(factor):
    with (
        counting.tally() as t,
        pytest.raises(TypeError, match="factor: expected a real number, a constant; got"),
    ):
        ops.scale.forward(counting.array(np.ones(3)), factor=factor)
    assert t.total == 0
