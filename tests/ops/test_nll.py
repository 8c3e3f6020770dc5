"""What the negative log-likelihood promises beside the contract: ignored targets, and those that are not classes."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from backpass.interpreters import counting
from backpass.ops import cross_entropy, linear_cross_entropy, nll

OPS = pytest.mark.parametrize("op", [nll, cross_entropy], ids=["nll", "cross_entropy"])
MAKERS = pytest.mark.parametrize(
    "make", [np.array, torch.tensor, counting.array], ids=["numpy", "torch", "counting"]
)
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
OPERATORS = {nll: torch.nn.functional.nll_loss, cross_entropy: torch.nn.functional.cross_entropy}


def plain(x):
    return x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)


def pytorch(op, x, t, dy, weight=None, **options):
    x = torch.tensor(x, requires_grad=True)
    y = OPERATORS[op](x, torch.tensor(t), None if weight is None else torch.tensor(weight), **options)
    return y.detach().numpy(), torch.autograd.grad(y, x, torch.tensor(dy))[0].numpy()


SMOOTHED = pytest.mark.parametrize(
    ("op", "smoothing"),
    [(nll, 0.0), *((cross_entropy, smoothing) for smoothing in (0.0, 0.1, 1.0))],
    ids=["nll", "cross_entropy", "smoothed", "smoothed throughout"],
)
WEIGHT = np.array([0.5, 0.0, 2.0, 1.25])  # a class of weight 0 is not an ignored one


@SMOOTHED
@REDUCTIONS
@MAKERS
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["all equal", "class weights"])
@pytest.mark.parametrize("ignore_index", [-100, 2, -1])
@pytest.mark.parametrize("ignored", [[], [0, 3], [0, 1, 2, 3, 4]], ids=["none", "some", "all"])
@pytest.mark.filterwarnings("error")
def test_ignored_targets_count_for_nothing_as_in_pytorch(
    op, reduction, make, weight, smoothing, ignore_index, ignored
):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 4))
    t, dy = np.array([0, 1, 3, 3, 0]), rng.standard_normal(5) if reduction == "none" else -1.75
    t[ignored] = ignore_index
    options = {"ignore_index": ignore_index, "reduction": reduction}
    options |= {"label_smoothing": smoothing} if op is cross_entropy else {}
    y, saved = op.forward(make(x), make(t), None if weight is None else make(weight), **options)
    dx = plain(op.backward(make(np.array(dy)), saved))
    expected_y, expected = pytorch(op, x, t, dy, weight, **options)
    np.testing.assert_allclose(plain(y), expected_y, rtol=1e-14)
    np.testing.assert_allclose(dx, expected, rtol=1e-13, atol=1e-16)
    assert not dx[ignored].any()
    if reduction == "none":
        assert not plain(y)[ignored].any()
    else:
        assert np.isnan(plain(y)) == (len(ignored) == 5 and reduction == "mean")


@OPS
@MAKERS
@pytest.mark.filterwarnings("error")
def test_targets_whose_classes_have_no_weight_have_no_mean_as_in_pytorch(op, make):
    x, t, weight = np.random.default_rng(1).standard_normal((3, 4)), np.array([1, -100, 1]), WEIGHT
    y, saved = op.forward(make(x), make(t), make(weight))
    expected_y, expected = pytorch(op, x, t, 2.0, weight)
    assert np.isnan(plain(y)) and np.isnan(expected_y)
    np.testing.assert_array_equal(
        np.isnan(plain(op.backward(make(np.array(2.0)), saved))), np.isnan(expected)
    )


@OPS
def test_class_weights_are_one_for_each_class_and_of_the_scores_dtype(op):
    x, t = np.ones((3, 4)), np.zeros(3, int)
    with pytest.raises(
        ValueError, match=r"^weight: expected weight\[V\] with V = 4, as in x; got shape \[5\]$"
    ):
        op.forward(x, t, np.ones(5))
    with pytest.raises(TypeError, match=r"^weight: expected x's dtype, float64; got float32$"):
        op.forward(x, t, np.ones(4, np.float32))
    with pytest.raises(TypeError, match=r"^weight: expected floating-point numbers; got dtype int64$"):
        op.forward(x, t, np.ones(4, int))


@OPS
@MAKERS
@pytest.mark.parametrize("outside", [4, 9, -1, -101])
def test_a_target_outside_the_classes_is_rejected_before_any_arithmetic(op, make, outside):
    t = make(np.array([[0, 3], [outside, 7]]))
    message = rf"^t: expected targets from 0 to 3, or -100 to ignore; got {outside}$"
    with counting.tally() as tally, pytest.raises(IndexError, match=message):
        op.forward(make(np.ones((2, 2, 4))), t)
    assert tally.total == 0


@OPS
@pytest.mark.parametrize(
    ("t", "options", "error", "message"),
    [
        (np.zeros(3), {}, TypeError, "t: expected integers; got dtype float64"),
        ([0, 1, 2], {}, TypeError, r"t: expected an array t\[\*\]; got list"),
        (torch.zeros(3, dtype=torch.int64), {}, TypeError, "t: expected x's array library, numpy; got torch"),
        (
            np.zeros(2, int),
            {},
            ValueError,
            r"t: expected t\[\*\] with leading axes \[3\], as in x; got shape \[2\]",
        ),
        (np.zeros((3, 1), int), {}, ValueError, r"leading axes \[3\], as in x; got shape \[3, 1\]"),
        (
            np.zeros(3, int),
            {"reduction": "average"},
            ValueError,
            "^reduction: expected 'mean' or 'sum' or 'none'; got 'average'$",
        ),
        (np.zeros(3, int), {"ignore_index": 0.5}, TypeError, "ignore_index: expected an integer; got float"),
        (
            np.zeros(3, int),
            {"ignore_index": 2**63},
            ValueError,
            "ignore_index: expected an integer of at most 64 bits",
        ),
    ],
    ids=["floats", "list", "library", "rows", "axes", "reduction", "ignore_index", "large"],
)
def test_bad_targets_and_options_are_rejected(op, t, options, error, message):
    with pytest.raises(error, match=message):
        op.forward(np.ones((3, 4)), t, **options)


@OPS
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "uint64"])
def test_any_integers_are_targets(op, dtype):
    x = np.random.default_rng(0).standard_normal((3, 4))
    t = np.array([3, 0, 3])
    expected, _ = op.forward(x, t)
    assert op.forward(x, t.astype(dtype))[0] == expected


@OPS
def test_one_class_and_one_row(op):
    y, saved = op.forward(np.array([-0.5]), np.array(0))
    assert y == (0.5 if op is nll else 0)
    dx = op.backward(np.array(3.0), saved)
    assert dx.tolist() == [-3.0 if op is nll else 0]


def test_an_ignored_row_may_hold_anything():
    """Padding need not be finite for the loss to be."""
    x = np.array([[-1.0, -2.0], [-np.inf, np.nan]])
    y, saved = nll.forward(x, np.array([1, -100]))
    assert y == 2
    assert nll.backward(np.array(1.0), saved).tolist() == [[0, -1], [0, 0]]


class Reads(TorchDispatchMode):
    """Counts the numbers that leave PyTorch for Python: for each of them a GPU is waited for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("op", [nll, cross_entropy, linear_cross_entropy], ids=lambda op: op.__name__[13:])
def test_a_gpu_is_waited_for_once(op, reduction):
    x, t = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, -100, 3, 0])
    w = [torch.eye(4)] if op is linear_cross_entropy else []
    with Reads() as reads:
        _, saved = op.forward(x, *w, t, reduction=reduction)
    assert reads.count == 1
    with Reads() as reads:
        op.backward(torch.tensor(2.0), saved)
    assert reads.count == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@OPS
def test_sums_of_16_bits_neither_overflow_nor_stall(op, dtype):
    """20,000 losses of 8 are past float16's largest number, and in bfloat16 one more of them changes nothing."""
    x, t = torch.zeros(20_000, 8, dtype=dtype), torch.ones(20_000, dtype=torch.int64)
    x[:, :2] = torch.tensor([8.0, -8.0])
    y, _ = op.forward(x, t)
    expected, _ = op.forward(x.double(), t)
    assert y.dtype == dtype
    assert abs(y.double() - expected) <= torch.finfo(dtype).eps * expected


def test_a_large_unsigned_target_is_not_taken_for_one_to_ignore():
    with pytest.raises(IndexError, match="t: expected targets from 0 to 3"):
        nll.forward(np.ones((1, 4)), np.array([2**64 - 100], np.uint64))
