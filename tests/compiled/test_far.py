"""Elements beyond 2³¹, which 32-bit offsets cannot reach: only the last programs of a kernel run, so most pages of its
tensors are never written and take no memory."""

import numpy as np
import pytest
import torch

from backpass import kernels, ops
from backpass.contract.shapes import parse
from backpass.kernels import compiled
from backpass.verify.drawing import options_for

N = 1001  # the last row is in the last program, or in the last two
M = 2**31 // N + 2


def far(row):
    """A tensor of more than 2³¹ elements, 0 except in its last row."""
    x = torch.from_numpy(np.zeros((M, *row.shape), np.uint16)).view(torch.bfloat16)
    x[-1] = row
    return x


@pytest.mark.parametrize(
    "stem", ["softmax", "log_softmax", "gelu", "relu", "silu", "softcap", "swiglu", "layer_norm", "rms_norm"]
)
def test_the_last_row_beyond_32_bits(stem):
    op, kernel, options = ops.load(stem), kernels.load(stem), options_for(ops.load(stem))
    generator = torch.Generator().manual_seed(0)
    specs = parse(op.SHAPES).inputs
    rows = [torch.randn(N, generator=generator).bfloat16() for _ in (*specs, "dy")]
    with compiled.executing(only=[-2, -1]):
        inputs = [far(row) if "*" in spec.axes else row for spec, row in zip(specs, rows, strict=False)]
        y, saved = kernel.forward(*inputs, **options)
        found = [y]
        if "norm" not in stem:  # in a norm's backward, each program loops over many rows
            gradients = kernel.backward(far(rows[-1]), saved)
            found += gradients if isinstance(gradients, tuple) else [gradients]
    y, saved = op.forward(*(row.double() for row in rows[:-1]), **options)
    gradients = op.backward(rows[-1].double(), saved)
    expected = [y, *(gradients if isinstance(gradients, tuple) else [gradients])]
    assert all(x.numel() > 2**31 and x[-1].abs().max() > 0 for x in found)
    for got, right in zip(found, expected, strict=False):
        assert (got[-1].double() - right).abs().max() <= 2.0**-8 * right.abs().max()
