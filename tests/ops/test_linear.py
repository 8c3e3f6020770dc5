"""What linear promises beside the contract: a weight's gradient lies in memory as the weight does."""

import numpy as np
import pytest
import torch

from backpass.ops import linear


@pytest.mark.parametrize("turned", [False, True], ids=["[in, out]", "[out, in] turned"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_gradient_of_a_weight_lies_in_memory_as_the_weight(library, turned):
    rng = np.random.default_rng(0)
    x, w, dy = rng.standard_normal((2, 4, 3)), rng.standard_normal((3, 5)), rng.standard_normal((2, 4, 5))
    expected = x.reshape(8, 3).T @ dy.reshape(8, 5)
    if turned:
        w = np.ascontiguousarray(w.T).T
    if library == "torch":
        x, w, dy = map(torch.from_numpy, (x, w, dy))
    _, saved = linear.forward(x, w)
    _, dw, _ = linear.backward(dy, saved)
    np.testing.assert_allclose(dw, expected, rtol=1e-13)
    assert np.asarray(dw).flags.f_contiguous == turned
    assert np.asarray(dw).flags.c_contiguous != turned
