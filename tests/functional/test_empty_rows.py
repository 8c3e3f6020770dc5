"""Rows without elements: softmax and the norms return an empty result, as PyTorch's functions do."""

import pytest
import torch
import torch.nn.functional as F

from backpass import functional as B

PAIRS = {
    "softmax": (B.softmax, lambda x: F.softmax(x, -1), 0),
    "log_softmax": (B.log_softmax, lambda x: F.log_softmax(x, -1), 0),
    "layer_norm": (B.layer_norm, lambda x, w, b: F.layer_norm(x, (0,), w, b), 2),
    "layer_norm, plain": (B.layer_norm, lambda x: F.layer_norm(x, (0,)), 0),
    "rms_norm": (B.rms_norm, lambda x, w: F.rms_norm(x, (0,), w), 1),
}


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("ours", "theirs", "rows"), PAIRS.values(), ids=PAIRS)
def test_the_result_and_the_gradients_are_those_of_pytorch(ours, theirs, rows, dtype, shape):
    found = []
    for function in (ours, theirs):
        leaves = [torch.ones(shape, dtype=dtype), *(torch.ones(0, dtype=dtype) for _ in range(rows))]
        leaves = [x.requires_grad_() for x in leaves]
        y = function(*leaves)
        found.append([y, *torch.autograd.grad(y.sum(), leaves)])
    for one, other in zip(*found, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)


def test_their_other_arguments_are_still_checked():
    x = torch.ones(3, 0)
    with pytest.raises(ValueError, match=r"w: expected w\[n\] with n = 0, as in x; got shape \[4\]"):
        B.layer_norm(x, torch.ones(4))
    with pytest.raises(TypeError, match=r"w: .*dtype"):
        B.layer_norm(x, torch.ones(0, dtype=torch.float64))
    with pytest.raises(ValueError, match="eps: expected a finite number of at least 0; got -1"):
        B.rms_norm(x, eps=-1.0)
    with pytest.raises(TypeError, match="x: expected floating-point"):
        B.softmax(torch.ones(3, 0, dtype=torch.int64))


def test_a_loss_over_no_classes_is_rejected_as_by_pytorch():
    for function in (B.cross_entropy, F.cross_entropy):
        with pytest.raises((ValueError, IndexError)):
            function(torch.ones(3, 0), torch.zeros(3, dtype=torch.int64))
